// SPDX-License-Identifier: Apache-2.0
/* The table of ops, and the ops at both ends of a model: embeddings, hidden states, logits, draws.
 * Each op checks what its kernel relies on, and launches it. */
#include "cuda/cuda_ops.h"
#include "cuda/cuda_comm.h"

/* Ids are looked up on the device, so the host need not know drafts here. */
/* True if there is no other table, or its rows can be added to those of the first. */
static bool same_rows(const struct weight *w, const struct weight *other)
{
    return !other || (other->n_in == w->n_in && other->dtype == w->dtype);
}

static struct lookup_view lookup_of(const struct weight *w, int32_t first)
{
    struct lookup_view view = {.data = NULL};
    if (w) {
        view = (struct lookup_view){w->data, w->n_out, first};
    }
    return view;
}

static enum status cuda_op_embed(struct backend *base, const struct embed_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct weight *w = a->table;
    if (!be->passes.pass || !w || a->n_rows > be->passes.view.n_rows ||
        !fits(a->x, (int32_t)w->n_in) || !same_rows(w, a->positions) || !same_rows(w, a->types)) {
        return ERR_INVALID;
    }
    const struct embed_tables tables = {.tokens = lookup_of(w, 0),
                                        .positions = lookup_of(a->positions, a->first_position),
                                        .types = lookup_of(a->types, 0)};
    CUDA_TRY(&be->device,
             k_embed(be->device.stream, a, &tables, w->dtype, (int32_t)w->n_in, &be->passes.view));
    return OK;
}

/* Only rows that have logits or are pooled are passed on to the head. */
static enum status cuda_op_gather(struct backend *base, const struct gather_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || a->n_out > be->passes.shape.n_out || !fits(a->x, a->width) ||
        !fits(a->out, a->width) || a->x.dtype != a->out.dtype) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_gather(be->device.stream, a, &be->passes.view));
    return OK;
}

/* The view of hidden states by slot; NULL if `a` does not match it. */
static const struct kv_view *hidden_view(const struct cuda_backend *be, const struct hidden_args *a)
{
    const struct kv_view *v = kv_layer(&be->kv, HIDDEN_SET, 0);
    const bool ok = be->passes.pass && v && a->width > 0 && v->head_dim_k % a->width == 0 &&
                    a->first >= 0 && a->first % a->width == 0 &&
                    a->first + a->width <= v->head_dim_k && v->dtype == a->x.dtype &&
                    fits(a->x, a->width);
    return ok ? v : NULL;
}

static enum status cuda_op_hidden_store(struct backend *base, const struct hidden_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *v = hidden_view(be, a);
    const struct pass_shape *s = &be->passes.shape;
    if (!v || a->n_rows > (a->out_rows ? s->n_out : s->n_rows)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_hidden_store(be->device.stream, a, v, &be->passes.view));
    return OK;
}

static enum status cuda_op_hidden_load(struct backend *base, const struct hidden_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *v = hidden_view(be, a);
    if (!v || a->n_rows > be->passes.shape.n_rows) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_hidden_load(be->device.stream, a, v, &be->passes.view));
    return OK;
}

/* The ranks' shards are first gathered into local memory, then joined row by row. Scale and cap are
 * applied only if they change something. */
static enum status cuda_op_logits(struct backend *base, const struct logits_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const bool as_is = a->scale == 1.0f && a->softcap <= 0.0f;
    if (!fits(a->logits, a->vocab) || a->logits.dtype != DT_F32) {
        return ERR_INVALID;
    }
    const int32_t n_ranks = be->device.options.n_ranks;
    if (a->ids.p) {
        if (!fits(a->local, a->n_ids) || a->local.dtype != DT_F32) {
            return ERR_INVALID;
        }
        CUDA_TRY(&be->device, k_spread_logits(be->device.stream, a));
    } else if (n_ranks > 1 && a->local.mem.p != a->logits.mem.p) {
        const int32_t width = a->vocab / n_ranks;
        const size_t n = (size_t)a->n_out * (size_t)width;
        if (a->local.stride != width || a->vocab % n_ranks != 0 ||
            n * (size_t)n_ranks > (size_t)be->limits.max_out_rows * (size_t)be->limits.vocab) {
            return ERR_INVALID;
        }
        enum status st = OK;
        if (!peers_join(&be->peers, a, width, &st)) {
            TRY(cuda_comm_all_gather(&be->device, a->local.mem.p, be->scratch.shards, n));
            CUDA_TRY(&be->device,
                     k_join_shards(be->device.stream, be->scratch.shards, a->logits.mem.p,
                                   a->logits.stride, n_ranks, a->n_out, width));
        }
        TRY(st);
    } else if (a->local.mem.p != a->logits.mem.p) {
        CUDA_TRY(&be->device,
                 cudaMemcpy2DAsync(a->logits.mem.p, (size_t)a->logits.stride * 4, a->local.mem.p,
                                   (size_t)a->local.stride * 4, (size_t)a->vocab * 4,
                                   (size_t)a->n_out, cudaMemcpyDeviceToDevice, be->device.stream));
    }
    if (!as_is) {
        CUDA_TRY(&be->device, k_scale_logits(be->device.stream, a));
    }
    return OK;
}

/* Copies whole rows of logits to the step's pinned memory. A pass that copies rows is never
 * captured. */
static enum status copy_logits(struct cuda_backend *be, const struct sample_args *a)
{
    const struct pass *pass = be->passes.pass;
    for (int32_t i = 0; i < a->n_draws && i < pass->n_draws; i++) {
        const struct pass_draw *d = &pass->draws[i];
        if (d->logits > 0) {
            const float *row = (const float *)a->logits.mem.p + d->out_row * a->logits.stride;
            CUDA_TRY(&be->device, cudaMemcpyAsync(steps_logits(&be->steps, d->logits - 1), row,
                                                  (size_t)a->n_vocab_used * sizeof *row,
                                                  cudaMemcpyDeviceToHost, be->device.stream));
        }
    }
    return OK;
}

/* If the head has stored the best logit of each band, draws that need nothing else read only these.
 * They must belong to the same rows and vocabulary. */
static enum status cuda_op_sample(struct backend *base, const struct sample_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || a->logits.dtype != DT_F32 || !fits(a->logits, a->n_vocab_used) ||
        a->n_vocab_used > be->limits.vocab || a->n_draws > be->max_draws) {
        return ERR_INVALID;
    }
    if (a->bests.n_bands > 0 &&
        (a->bests.n_drawn != a->n_vocab_used || a->bests.n_rows < a->n_out)) {
        return ERR_INVALID; // the head may have skipped rows
    }
    const struct row_bests bests = {
        .pairs = a->bests.pairs.p, .stride = a->bests.stride, .n_bands = a->bests.n_bands};
    CUDA_TRY(&be->device, k_sample(be->device.stream, a, &be->passes.view, &be->scratch.sample,
                                   &bests, be->passes.results));
    return copy_logits(be, a);
}

/* Sums over several passes stay on the device until the last of these passes. */
static enum status cuda_op_pool(struct backend *base, const struct pool_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    if (!be->passes.pass || !fits(a->hidden, a->width) || a->width != be->limits.hidden) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device, k_pool(be->device.stream, a, &be->passes.view, be->passes.n_pool,
                                 be->passes.pooled_results));
    return OK;
}

const struct backend_ops cuda_ops = {
    .facts = cuda_facts,
    .alloc = cuda_alloc_op,
    .weight_open = cuda_weight_open,
    .weight_bytes = cuda_weight_bytes,
    .rope_open = cuda_rope_open,
    .kv_bytes = cuda_kv_bytes,
    .setup = cuda_setup,
    .kv_open = cuda_kv_open,
    .close = cuda_close,
    .step_begin = cuda_step_begin,
    .lane_tokens = cuda_lane_tokens,
    .lane_blocks = cuda_lane_blocks,
    .lane_params = cuda_lane_params,
    .copy_blocks = cuda_copy_blocks,
    .move_slots = cuda_move_slots,
    .poison_blocks = cuda_poison_blocks,
    .lane_pages = cuda_lane_pages,
    .copy_pages = cuda_copy_pages,
    .poison_pages = cuda_poison_pages,
    .pass_begin = cuda_pass_begin,
    .pass_pause = cuda_pass_pause,
    .pass_draws = cuda_pass_draws,
    .pass_end = cuda_pass_end,
    .step_end = cuda_step_end,
    .step_wait = cuda_step_wait,
    .step_done = cuda_step_done,
    .embed = cuda_op_embed,
    .norm = cuda_op_norm,
    .linear = cuda_op_linear,
    .linear_heads = cuda_op_linear_heads,
    .rope_store = cuda_op_rope_store,
    .mla_store = cuda_op_mla_store,
    .attention = cuda_op_attention,
    .activation = cuda_op_activation,
    .moe_route = cuda_op_moe_route,
    .moe_ffn = cuda_op_moe_ffn,
    .moe = cuda_op_moe,
    .row_gate = cuda_op_row_gate,
    .reduce = cuda_op_reduce,
    .reduce_norm = cuda_op_reduce_norm,
    .linear_act = cuda_op_linear_act,
    .mlp = cuda_op_mlp,
    .norm_linear = cuda_op_norm_linear,
    .linear_adapter = cuda_op_linear_adapter,
    .weight_adapter_set = cuda_weight_adapter_set,
    .rope_attention = cuda_op_rope_attention,
    .mla = cuda_op_mla,
    .index_store = cuda_op_index_store,
    .index_pick = cuda_op_index_pick,
    .hyper = cuda_op_hyper,
    .norms = cuda_op_norms,
    .norm_adds_sums = cuda_op_norm_adds_sums,
    .rope_store_adds_sums = cuda_op_rope_store_adds_sums,
    .state_bytes = cuda_state_bytes,
    .state_open = cuda_state_open,
    .copy_states = cuda_copy_states,
    .short_conv = cuda_op_short_conv,
    .recurrence = cuda_op_recurrence,
    .gate = cuda_op_gate,
    .streams = cuda_op_streams,
    .rms_match = cuda_op_rms_match,
    .cutoff = cuda_op_cutoff,
    .moe_identity = cuda_op_moe_identity,
    .recurrent = cuda_op_recurrent,
    .gated_conv = cuda_op_gated_conv,
    .hidden_open = cuda_hidden_open,
    .hidden_store = cuda_op_hidden_store,
    .hidden_load = cuda_op_hidden_load,
    .alive = cuda_alive,
    .gather = cuda_op_gather,
    .logits = cuda_op_logits,
    .sample = cuda_op_sample,
    .pool = cuda_op_pool,
    .write = cuda_write,
    .read = cuda_read,
};
