// SPDX-License-Identifier: Apache-2.0
/* All of a mixture, for tests of the op that computes it: the router, the experts and the shared
 * expert, with random weights on both backends. Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_MIXTURE_H
#define SLUICE_TEST_CUDA_MIXTURE_H

#include "engine/device/ops_default.h"
#include "test/cuda/cuda_coded.h"

/* One mixture: its sizes, and what varies between models. */
struct mixture_case {
    int32_t n_rows, n_experts, k, hidden, ffn, shared;
    bool gate, bias;
    enum moe_scoring scoring;
    int32_t n_group, topk_group;
    enum activation kind;
    bool plain;      // without gates
    bool own_router; // the router does not read what the experts read
    bool norm;       // x is the norm of another tensor
};

/* The number of rows that a weight has per feature. */
static inline int32_t factors(const struct mixture_case *c)
{
    return c->plain ? 1 : 2;
}

/* The args of both backends. */
struct mixture {
    struct moe_route_args route[2];
    struct moe_ffn_args ffn[2];
    struct shared_expert_args shared[2];
    struct row_gate_args gate[2];
    struct norm_args norm[2];
    struct pair_tensor y, x, residual;
};

static inline struct pair_weight matrix(struct pair *p, int32_t n_out, int32_t n_in)
{
    return weight_make(p, WEIGHT_LINEAR, p->dtype, 1, n_out, n_in, false,
                       1.0f / sqrtf((float)n_in));
}

/* The shared experts have separate weights and may have a gate per row. */
static inline void add_shared(struct pair *p, const struct mixture_case *c, struct mixture *m,
                              const struct pair_tensor *x)
{
    const struct pair_weight up = matrix(p, factors(c) * c->shared, c->hidden);
    const struct pair_weight down = matrix(p, c->hidden, c->shared);
    const struct pair_weight gate = vector_make(p, c->hidden, 0.1f);
    const struct pair_tensor in = tensor_poisoned(p, c->n_rows, factors(c) * c->shared, p->dtype);
    const struct pair_tensor out = tensor_poisoned(p, c->n_rows, c->shared, p->dtype);
    for (int b = 0; b < 2; b++) {
        m->gate[b] = (struct row_gate_args){.x = x->t[b],
                                            .y = m->y.t[b],
                                            .weight = gate.w[b],
                                            .n_rows = c->n_rows,
                                            .x_width = c->hidden,
                                            .y_width = c->hidden};
        m->shared[b] = (struct shared_expert_args){
            .up = {.weight = up.w[b], .x = x->t[b], .y = in.t[b], .n_rows = c->n_rows},
            .act = {.x = in.t[b],
                    .out = out.t[b],
                    .n_rows = c->n_rows,
                    .width = c->shared,
                    .kind = c->kind,
                    .gated = !c->plain,
                    .shape = ACT_SHAPE_PUBLISHED},
            .down = {.weight = down.w[b],
                     .x = out.t[b],
                     .y = m->y.t[b],
                     .n_rows = c->n_rows,
                     .partial = true},
            .gate = c->gate ? &m->gate[b] : NULL};
    }
}

/* The norm that makes x, with the addition before it; the memory of y holds the delta. */
static inline void add_norm(struct pair *p, const struct mixture_case *c, struct mixture *m)
{
    const struct pair_weight weight = vector_make(p, c->hidden, 1.0f);
    const struct pair_tensor delta =
        tensor_random(p, c->n_rows, c->hidden, m->y.t[CPU].stride, 1.0f);
    m->residual = tensor_random(p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    for (int b = 0; b < 2; b++) {
        m->norm[b] = (struct norm_args){.x = m->residual.t[b],
                                        .delta = c->n_rows == 3 ? delta.t[b] : m->y.t[b],
                                        .out = m->x.t[b],
                                        .weight = weight.w[b],
                                        .n_rows = c->n_rows,
                                        .width = c->hidden,
                                        .eps = 1e-5f,
                                        .weight_offset = 0.5f,
                                        .delta_scale = 0.7f};
    }
}

/* The weights of a product of all experts. */
static inline struct pair_weight experts(struct pair *p, const struct mixture_case *c,
                                         const struct format *format, int32_t n_out, int32_t n_in)
{
    return format ? open_experts(p, format, c->n_experts, n_out, n_in, c->bias)
                  : weight_make(p, WEIGHT_EXPERTS, p->dtype, c->n_experts, n_out, n_in, c->bias,
                                1.0f / sqrtf((float)n_in));
}

/* Everything that ops_moe needs, on both backends. format: of the experts' weights; NULL: they are
 * not quantised. */
static inline void make_mixture(struct pair *p, const struct mixture_case *c,
                                const struct format *format, struct mixture *m)
{
    const struct pair_weight up = experts(p, c, format, factors(c) * c->ffn, c->hidden);
    const struct pair_weight down = experts(p, c, format, c->hidden, c->ffn);
    const enum dtype held = c->n_rows <= 128 || c->bias ? DT_F32 : DT_BF16; // many rows: if bf16
                                                                            // suffices, it is used
    const struct pair_weight router =
        weight_make_of(p, held, WEIGHT_LINEAR, DT_F32, 1, c->n_experts, c->hidden, c->bias, 0.3f);
    const struct pair_weight correction = vector_make(p, c->n_experts, 0.2f);
    const struct pair_weight scale = vector_make(p, c->n_experts, 1.0f);
    struct backend_limits limits = pair_limits();
    limits.max_rows = c->n_rows > limits.max_rows ? c->n_rows : limits.max_rows;
    const struct pair_tensor x = tensor_random(p, c->n_rows, c->hidden, c->hidden + 8, 1.0f);
    const struct pair_tensor own = tensor_random(p, c->n_rows, c->hidden, c->hidden + 16, 1.0f);
    m->y = c->norm ? tensor_random(p, c->n_rows, c->hidden, c->hidden, 1.0f)
                   : tensor_poisoned(p, c->n_rows, c->hidden, p->dtype);
    for (int b = 0; b < 2; b++) {
        struct err err;
        const size_t n = (size_t)c->n_rows * (size_t)c->k * 4;
        struct moe_route_args *r = &m->route[b];
        *r = (struct moe_route_args){.router = router.w[b],
                                     .x = c->own_router ? own.t[b] : x.t[b],
                                     .n_rows = c->n_rows,
                                     .n_experts = c->n_experts,
                                     .k = c->k,
                                     .scoring = c->scoring,
                                     .renormalise = true,
                                     .scale = 1.5f,
                                     .spread = MIXER_SPREAD,
                                     .n_group = c->n_group,
                                     .topk_group = c->topk_group};
        r->correction = takes_correction(c->scoring) ? correction.w[b] : NULL;
        r->expert_scale = c->n_group > 1 ? scale.w[b] : NULL;
        CHECK_EQ(p->be[b]->ops->setup(p->be[b], &limits, &err), OK);
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n, &r->ids), OK);
        CHECK_EQ(p->be[b]->ops->alloc(p->be[b], n, &r->weights), OK);
        m->ffn[b] = (struct moe_ffn_args){.gate_up = up.w[b],
                                          .down = down.w[b],
                                          .x = x.t[b],
                                          .y = m->y.t[b],
                                          .ids = r->ids,
                                          .weights = r->weights,
                                          .n_rows = c->n_rows,
                                          .n_experts = c->n_experts,
                                          .k = c->k,
                                          .ffn = c->ffn,
                                          .kind = c->kind,
                                          .accumulate = c->shared > 0,
                                          .plain = c->plain,
                                          .shape = ACT_SHAPE_PUBLISHED};
    }
    m->x = x;
    if (c->norm) {
        add_norm(p, c, m);
    }
    if (c->shared > 0) {
        add_shared(p, c, m, &x);
    }
}

static inline const struct format *format_named(const char *name)
{
    int32_t i = 0;
    while (strcmp(formats[i].name, name) != 0) {
        i++;
    }
    return &formats[i];
}

#endif
