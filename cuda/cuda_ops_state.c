// SPDX-License-Identifier: Apache-2.0
/* Recurrent layers: short convolutions, recurrences and their gates. */
#include "cuda/conv_single.h"
#include "cuda/cuda_ops.h"

/* Checks the number of taps and the layer's width. */
static enum status conv_ok(const struct state_view *s, const struct short_conv_args *a)
{
    const struct state_layer *g = &s->geometry;
    const bool vectors = vector_length(a->weight) >= a->width * a->kernel &&
                         (!a->bias || vector_length(a->bias) >= a->width);
    return vectors && a->width == g->conv_width && a->kernel == g->conv_kernel &&
                   fits(a->x, a->width) && a->x.dtype == s->dtype
               ? OK
               : ERR_INVALID;
}

/* Checks the places of q, k and v in a row, and the vectors that a layer of this kind needs. */
static enum status recurrence_ok(const struct state_view *s, const struct recurrence_args *a)
{
    const struct state_layer *g = &s->geometry;
    const int32_t keys = g->n_key_heads * g->key_dim, values = g->n_heads * g->value_dim;
    const bool delta = g->kind == STATE_DELTA, ok = g->kind != STATE_CONV;
    const bool vectors = vector_length(a->a_log) >= g->n_heads &&
                         vector_length(a->dt_bias) >= g->n_heads * s->decays &&
                         (!a->skip || vector_length(a->skip) >= g->n_heads);
    const bool places = a->q_at >= 0 && a->k_at >= 0 && a->v_at >= 0 &&
                        fits(a->x, a->q_at + keys) && fits(a->x, a->k_at + keys) &&
                        fits(a->x, a->v_at + values);
    const bool tensors = fits(a->decay, 1) && (!delta || fits(a->beta, 1)) &&
                         fits(a->out, values) && a->x.dtype == s->dtype &&
                         a->decay.dtype == s->dtype && (!delta || a->beta.dtype == s->dtype) &&
                         a->out.dtype == s->dtype;
    return ok && vectors && places && tensors ? OK : ERR_INVALID;
}

/* Checks the gates, which are per element or per group. */
static enum status gate_ok(const struct gate_args *a)
{
    const bool group = a->group > 0 && a->width > 0 && a->width % a->group == 0;
    return group && fits(a->x, a->width) && fits(a->out, a->width) &&
                   fits(a->gate, a->per_group ? a->width / a->group : a->width) &&
                   a->x.dtype == a->out.dtype && a->gate.dtype == a->x.dtype &&
                   (!a->norm || vector_length(a->norm) >= a->group)
               ? OK
               : ERR_INVALID;
}

static const struct state_view *layer_state(const struct cuda_backend *be, int32_t layer,
                                            int32_t n_rows)
{
    const bool pass = be->passes.pass && n_rows == be->passes.view.n_rows;
    return pass ? states_layer(&be->states, be->passes.set, layer) : NULL;
}

/* The args and vectors of both ops in one struct, because fused kernels need both. */
static struct state_rows_launch state_launch(const struct cuda_backend *be,
                                             const struct state_view *s,
                                             const struct short_conv_args *conv,
                                             const struct recurrence_args *a)
{
    return (struct state_rows_launch){
        .conv = conv,
        .a = a,
        .vectors = {.kernel = conv ? vector(conv->weight) : NULL,
                    .bias = conv ? vector(conv->bias) : NULL,
                    .a_log = a ? vector(a->a_log) : NULL,
                    .dt_bias = a ? vector(a->dt_bias) : NULL,
                    .skip = a ? vector(a->skip) : NULL},
        .state = *s,
        .pass = be->passes.view,
        .n_seqs = be->passes.view.n_rows,
    };
}

/* A window is a fixed number of rows of each sequence. Windows depend on each other, so each is a
 * separate launch. */
static enum status run_windows(struct cuda_backend *be, struct state_rows_launch *l, int32_t n)
{
    for (l->window = 0; l->window < n; l->window++) {
        CUDA_TRY(&be->device, k_state_rows(be->device.stream, l));
    }
    return OK;
}

/* True if sequences of many rows are processed one block of the state at a time. False if a row's
 * bits must not depend on the number of rows. */
static bool in_blocks(const struct cuda_backend *be, const struct state_rows_launch *l)
{
    return be->passes.state_work.n_blocks > 0 && !be->device.options.deterministic &&
           k_state_blocks_takes(l) && k_state_blocks_bytes(&l->state, 1) <= be->scratch.n_bytes;
}

/* True if k_state_few should compute the pass: all sequences have few rows, and none is a tree. */
static bool are_few(const struct cuda_backend *be, const struct state_rows_launch *l)
{
    const struct state_work *w = &be->passes.state_work;
    return w->all_windows == 1 && !w->has_trees && !be->device.options.deterministic &&
           k_state_few_takes(l);
}

/* Prompts are computed in blocks of the state, sequences of few rows in windows, and single rows by
 * special kernels. If all sequences have few rows, k_state_few computes them where it can. */
static enum status run_rows(struct cuda_backend *be, struct state_rows_launch *l)
{
    const struct state_work *w = &be->passes.state_work;
    if (are_few(be, l)) {
        CUDA_TRY(&be->device, k_state_few(be->device.stream, l));
        return OK;
    }
    if (w->has_single && !be->device.options.deterministic && k_state_single_takes(l)) {
        CUDA_TRY(&be->device, k_state_single(be->device.stream, l));
        l->several = true;
    }
    const bool others = w->has_several || !l->several;
    if (!in_blocks(be, l)) {
        return others || w->n_chains > 0 ? run_windows(be, l, w->all_windows) : OK;
    }
    l->few_alone = true;
    l->n_chains = w->n_chains;
    l->n_blocks = w->n_blocks;
    TRY(run_windows(be, l, others ? w->windows : 0));
    CUDA_TRY(&be->device,
             k_state_blocks(be->device.stream, l, be->scratch.memory, be->scratch.n_bytes));
    return OK;
}

static enum status short_conv_ok(const struct state_view *s, const struct short_conv_args *a)
{
    return !s || conv_ok(s, a) != OK || !fits(a->out, a->width) || a->out.dtype != s->dtype
               ? ERR_INVALID
               : OK;
}

static enum status short_conv(struct cuda_backend *be, const struct state_rows_launch *l)
{
    const struct state_work *w = &be->passes.state_work;
    const bool single = w->has_single && !w->has_several && w->n_chains == 0;
    if (single && k_conv_single_takes(l)) {
        return cuda_check(&be->device, k_conv_single(be->device.stream, l), "k_conv_single");
    }
    return cuda_check(&be->device, k_short_conv(be->device.stream, l), "k_short_conv");
}

enum status cuda_op_short_conv(struct backend *base, const struct short_conv_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    TRY(short_conv_ok(s, a));
    const struct state_rows_launch l = state_launch(be, s, a, NULL);
    return short_conv(be, &l);
}

/* True if the convolution can apply a gate itself, of its input or of its output. */
static bool conv_gates(const struct gate_args *a, const struct short_conv_args *conv,
                       const struct tensor *t)
{
    return gate_ok(a) == OK && k_short_conv_takes_gate(a) && a->width == conv->width &&
           a->n_rows == conv->n_rows && a->out.mem.p == t->mem.p && a->x.mem.p == t->mem.p;
}

/* With few rows, one kernel computes the convolution and both gates. */
enum status cuda_op_gated_conv(struct backend *base, const struct gate_args *before,
                               const struct short_conv_args *conv, const struct gate_args *after)
{
    enum { ROWS = 64 };
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (be->device.options.deterministic || conv->n_rows > ROWS ||
        !conv_gates(before, conv, &conv->x) || (after && !conv_gates(after, conv, &conv->out))) {
        TRY(cuda_op_gate(base, before));
        TRY(cuda_op_short_conv(base, conv));
        return after ? cuda_op_gate(base, after) : OK;
    }
    const struct state_view *s = layer_state(be, conv->layer, conv->n_rows);
    TRY(short_conv_ok(s, conv));
    struct state_rows_launch l = state_launch(be, s, conv, NULL);
    l.before = before;
    l.gate = after;
    return short_conv(be, &l);
}

enum status cuda_op_recurrence(struct backend *base, const struct recurrence_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    if (!s || recurrence_ok(s, a) != OK) {
        return ERR_INVALID;
    }
    struct state_rows_launch l = state_launch(be, s, NULL, a);
    return run_rows(be, &l);
}

enum status cuda_op_gate(struct backend *base, const struct gate_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    TRY(gate_ok(a));
    CUDA_TRY(&be->device, k_gate(be->device.stream, a, vector(a->norm),
                                 a->norm && vector_length(a->norm) > a->group));
    return OK;
}

/* Convolution, recurrence and gate. The convolution's output is the recurrence's input, so that
 * kernels may fuse them. */
enum status cuda_op_recurrent(struct backend *base, const struct short_conv_args *conv,
                              const struct recurrence_args *a, const struct gate_args *gate)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct state_view *s = layer_state(be, a->layer, a->n_rows);
    if (!s || conv_ok(s, conv) != OK || recurrence_ok(s, a) != OK ||
        conv->out.mem.p != a->x.mem.p || (gate && gate_ok(gate) != OK)) {
        return ERR_INVALID;
    }
    const struct state_layer *g = &s->geometry;
    struct state_rows_launch l = state_launch(be, s, conv, a);
    if (gate && !in_blocks(be, &l) && (gate->group == g->value_dim || !gate->norm) &&
        gate->x.mem.p == a->out.mem.p && gate->width == g->n_heads * g->value_dim &&
        !gate->per_group) {
        l.gate = gate;
        l.vectors.norm = vector(gate->norm);
        l.vectors.norm_is_wide = gate->norm && vector_length(gate->norm) > gate->group;
        return run_rows(be, &l);
    }
    TRY(run_rows(be, &l));
    return gate ? cuda_op_gate(base, gate) : OK;
}
