// SPDX-License-Identifier: Apache-2.0
/* Ops that process each row independently. */
#include "cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

/* ---- norm --------------------------------------------------------------------------------- */

/* x += delta, then the norm of x. Products that norm their input row by row use this function,
 * too. */
void cpu_norm_row(const struct cpu_kernels *kernels, const struct norm_args *a, int32_t row,
                  float *out)
{
    float *x = tensor_row(&a->x, row);
    if (a->delta.mem.p) {
        kernels->add_scaled(x, tensor_row(&a->delta, row), a->delta_scale, a->width);
        if (a->x_scale != 0.0f) {
            kernels->scale(x, a->x_scale, a->width);
        }
    }
    if (out) {
        kernels->norm(a->kind, x, a->weight ? a->weight->vector : NULL, a->weight_offset,
                      a->bias ? a->bias->vector : NULL, a->eps, a->width, out);
    }
}

struct norm_job {
    const struct cpu_kernels *kernels;
    const struct norm_args *a;
};

static void norm_item(void *arg, int32_t row, int32_t thread)
{
    const struct norm_job *job = arg;
    (void)thread;
    cpu_norm_row(job->kernels, job->a, row,
                 job->a->out.mem.p ? tensor_row(&job->a->out, row) : NULL);
}

/* One item per row. */
enum status cpu_norm(struct backend *be, const struct norm_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct norm_job job = {cpu->kernels, a};
    pool_run(cpu->pool, a->n_rows, norm_item, &job);
    return OK;
}

/* ---- activation --------------------------------------------------------------------------- */

struct activation_job {
    const struct cpu_kernels *kernels;
    const struct activation_args *a;
};

static void activation_item(void *arg, int32_t row, int32_t thread)
{
    const struct activation_job *job = arg;
    const struct activation_args *a = job->a;
    const float *x = tensor_row(&a->x, row);
    const float *up = a->up.mem.p ? tensor_row(&a->up, row) : x + a->width;
    (void)thread;
    job->kernels->activate(a->kind, a->shape, x, a->gated ? up : NULL, tensor_row(&a->out, row),
                           a->width);
}

enum status cpu_activation(struct backend *be, const struct activation_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct activation_job job = {cpu->kernels, a};
    ASSERT(a->gated || (a->kind != ACT_GPT_OSS && a->kind != ACT_SILU_CLAMPED));
    ASSERT(!a->gated || a->kind != ACT_XIELU);
    pool_run(cpu->pool, a->n_rows, activation_item, &job);
    return OK;
}

/* ---- row gate ----------------------------------------------------------------------------- */

enum status cpu_row_gate(struct backend *be, const struct row_gate_args *a)
{
    const struct cpu_kernels *k = cpu_of(be)->kernels;
    for (int32_t row = 0; row < a->n_rows; row++) {
        float gate = k->dot(tensor_row(&a->x, row), a->weight->vector, a->x_width);
        k->scale(tensor_row(&a->y, row), 1.0f / (1.0f + expf(-gate)), a->y_width);
    }
    return OK;
}

/* ---- gate --------------------------------------------------------------------------------- */

struct gate_job {
    const struct cpu_kernels *kernels;
    const struct gate_args *a;
};

/* GATE_AS_IS multiplies by the gate's value without an activation. */
static float gate_of(enum gate_act act, float x)
{
    if (act == GATE_AS_IS) {
        return x;
    }
    if (act == GATE_SOFTPLUS) { // for large x they are equal in fp32
        return x > 20.0f ? x : log1pf(expf(x));
    }
    float sigmoid = 1.0f / (1.0f + expf(-x));
    return act == GATE_SILU ? x * sigmoid : sigmoid;
}

static void open_gate(const struct gate_args *a, const float *gate, const float *x, float *out)
{
    for (int32_t i = 0; i < a->width; i++) {
        out[i] = x[i] * gate_of(a->act, a->scale * gate[a->per_group ? i / a->group : i]);
    }
}

/* All groups share the weights of the norm, or each group has its own. */
static void norm_groups(const struct gate_job *job, const float *x, float *out)
{
    const struct gate_args *a = job->a;
    bool own = a->norm->n_in > a->group; // each group has its own weights
    for (int32_t i = 0; i < a->width; i += a->group) {
        job->kernels->norm(NORM_RMS, x + i, a->norm->vector + (own ? i : 0), 0.0f, NULL, a->eps,
                           a->group, out + i);
    }
}

/* Some layers gate before the norm, others after it. */
static void gate_item(void *arg, int32_t row, int32_t thread)
{
    const struct gate_job *job = arg;
    const struct gate_args *a = job->a;
    const float *x = tensor_row(&a->x, row), *gate = tensor_row(&a->gate, row);
    float *out = tensor_row(&a->out, row);
    (void)thread;
    if (!a->norm) {
        open_gate(a, gate, x, out);
    } else if (a->gate_first) {
        open_gate(a, gate, x, out);
        norm_groups(job, out, out);
    } else {
        norm_groups(job, x, out);
        open_gate(a, gate, out, out);
    }
}

enum status cpu_gate(struct backend *be, const struct gate_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct gate_job job = {cpu->kernels, a};
    ASSERT(a->group > 0 && a->width % a->group == 0);
    pool_run(cpu->pool, a->n_rows, gate_item, &job);
    return OK;
}

/* ---- gather, logits, pool ----------------------------------------------------------------- */

enum status cpu_gather(struct backend *be, const struct gather_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->pass && a->n_out <= cpu->pass->n_out);
    for (int32_t i = 0; i < a->n_out; i++) {
        int32_t row = cpu->pass->out_rows[i];
        ASSERT(row >= 0 && row < cpu->pass->n_rows);
        memmove(tensor_row(&a->out, i), tensor_row(&a->x, row), (size_t)a->width * sizeof(float));
    }
    return OK;
}

struct logits_job {
    const struct cpu_kernels *kernels;
    const struct logits_args *a;
};

static void logits_item(void *arg, int32_t row, int32_t thread)
{
    const struct logits_job *job = arg;
    float *x = tensor_row(&job->a->logits, row);
    (void)thread;
    if (job->a->scale != 1.0f) {
        job->kernels->scale(x, job->a->scale, job->a->vocab);
    }
    if (job->a->softcap != 0.0f) {
        job->kernels->softcap(x, job->a->softcap, job->a->vocab);
    }
}

/* Moves the logits of the few ids that the head knows to their places in the full vocabulary. */
static void spread_logits(const struct cpu_backend *cpu, const struct logits_args *a)
{
    const int32_t *ids = a->ids.p;
    for (int32_t i = 0; i < a->n_out; i++) {
        const float *from = tensor_row(&a->local, i);
        float *to = tensor_row(&a->logits, i);
        for (int32_t id = 0; id < a->vocab; id++) {
            to[id] = -INFINITY;
        }
        for (int32_t k = 0; k < a->n_ids; k++) {
            ASSERT(ids[k] >= 0 && ids[k] < cpu->limits.vocab);
            to[ids[k]] = from[k];
        }
    }
}

/* The shards of the ranks are gathered first; scale and cap apply to the whole row. */
enum status cpu_logits(struct backend *be, const struct logits_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (a->ids.p) {
        spread_logits(cpu, a);
    } else if (cpu->base.n_ranks > 1 && a->local.mem.p != a->logits.mem.p) {
        ASSERT(a->vocab % cpu->base.n_ranks == 0);
        if (!cpu_comm_gather(cpu, tensor_row(&a->local, 0), a->local.stride,
                             tensor_row(&a->logits, 0), a->logits.stride, a->n_out,
                             a->vocab / cpu->base.n_ranks)) {
            cpu->failed = true;
            return ERR_DEVICE;
        }
    }
    const bool copies = !a->ids.p && cpu->base.n_ranks == 1 && a->local.mem.p != a->logits.mem.p;
    for (int32_t i = 0; copies && i < a->n_out; i++) {
        memcpy(tensor_row(&a->logits, i), tensor_row(&a->local, i),
               (size_t)a->vocab * sizeof(float));
    }
    struct logits_job job = {cpu->kernels, a};
    if (a->scale != 1.0f || a->softcap != 0.0f) {
        pool_run(cpu->pool, a->n_out, logits_item, &job);
    }
    return OK;
}

/* The sum over a lane's rows may take several passes; `start` and `finish` mark the first and the
 * last of them. */
enum status cpu_pool_rows(struct backend *be, const struct pool_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    size_t n_bytes = (size_t)a->width * sizeof(float);
    ASSERT(cpu->pass && a->width <= cpu->limits.hidden);
    float *results = (float *)cpu->slots[cpu->slot].passes[cpu->slots[cpu->slot].n_passes].pooled;
    for (int32_t i = 0; i < cpu->pass->n_pool; i++) {
        const struct pass_pool *p = &cpu->pass->pool[i];
        ASSERT(p->lane >= 0 && p->lane < cpu->limits.max_lanes);
        ASSERT(p->first_out >= 0 && p->n_out >= 0 && p->n_out <= a->n_out - p->first_out);
        float *sum = cpu->lanes[p->lane].pooled;
        if (p->start) {
            memset(sum, 0, n_bytes);
        }
        for (int32_t r = 0; r < p->n_out; r++) {
            cpu->kernels->add_scaled(sum, tensor_row(&a->hidden, p->first_out + r), 1.0f, a->width);
        }
        if (p->finish) {
            memcpy(results + (size_t)i * (size_t)cpu->limits.hidden, sum, n_bytes);
        }
    }
    return OK;
}

/* ---- reduce ------------------------------------------------------------------------------- */

/* The biases of the experts are added once, in the order of expert ids, after the ranks have added
 * up their parts. */
static void add_expert_bias(const struct cpu_kernels *k, const struct reduce_args *a)
{
    const struct moe_ffn_args *moe = a->moe;
    if (!moe->down->bias) {
        return;
    }
    for (int32_t row = 0; row < a->n_rows; row++) {
        const int32_t *ids = (const int32_t *)moe->ids.p + (int64_t)row * moe->k;
        const float *weights = (const float *)moe->weights.p + (int64_t)row * moe->k;
        int32_t last = -1;
        for (int32_t i = 0; i < moe->k; i++) { // in order of expert id
            int32_t next = -1;
            for (int32_t j = 0; j < moe->k; j++) {
                if (ids[j] > last && (next < 0 || ids[j] < ids[next])) {
                    next = j;
                }
            }
            if (next < 0) {
                break;
            }
            last = ids[next];
            k->add_scaled(tensor_row(&a->y, row), moe->down->bias + (int64_t)last * a->width,
                          weights[next], a->width);
        }
    }
}

/* Ranks add up their partial products. Biases, which must be added only once, come after that. */
enum status cpu_reduce(struct backend *be, const struct reduce_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    if (cpu->base.n_ranks > 1 && !a->whole &&
        !cpu_comm_sum(cpu, tensor_row(&a->y, 0), a->y.stride, a->n_rows, a->width)) {
        cpu->failed = true;
        return ERR_DEVICE;
    }
    if (a->linear && a->linear->bias) {
        for (int32_t row = 0; row < a->n_rows; row++) {
            cpu->kernels->add_scaled(tensor_row(&a->y, row), a->linear->bias, 1.0f, a->width);
        }
    }
    if (a->moe) {
        add_expert_bias(cpu->kernels, a);
    }
    return OK;
}
