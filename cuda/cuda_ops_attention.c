// SPDX-License-Identifier: Apache-2.0
/* Rope, stores into KV pages, and attention over them. */
#include "cuda/cuda_ops.h"

/* The layer's pages; NULL if there is no such layer in the pass. */
static const struct kv_view *layer_kv(const struct cuda_backend *be, int32_t layer)
{
    if (be->passes.pass) {
        return kv_layer(&be->kv, be->passes.set, layer);
    }
    return NULL;
}

/* The pass, with the tables that name the layer's pages. */
static const struct pass_view *layer_pass(const struct cuda_backend *be, int32_t layer)
{
    return kv_layer_is_windowed(&be->kv, be->passes.set, layer) ? &be->passes.window_view
                                                                : &be->passes.view;
}

static const struct rope_view no_rope = {.max_pos = 1};

static const struct rope_view *rope_of(const struct rope_store_args *a)
{
    return a->rope ? &a->rope->view : &no_rope;
}

static bool growth_ok(const struct query_growth *g)
{
    return g->beta == 0.0f || g->every > 0;
}

/* Checks what the kernel relies on: the op and the cache have the same geometry, and widths are
 * sufficient. */
static enum status rope_ok(const struct cuda_backend *be, const struct rope_store_args *a,
                           const struct kv_view *kv)
{
    const int32_t width = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    const bool ok = kv && a->n_rows <= be->passes.view.n_rows &&
                    (a->n_kv_heads == 0 || kv->n_kv_heads == a->n_kv_heads) &&
                    kv->head_dim_k == a->head_dim && kv->head_dim_v == a->head_dim &&
                    growth_ok(&a->growth) && fits(a->qkv, width) &&
                    (a->sums.n == 0 || a->sums.width == width) &&
                    (!a->rope || 2 * a->rope->view.n_pairs <= a->head_dim);
    return ok ? OK : ERR_INVALID;
}

static bool rope_adds_sums(const struct rope_store_args *a, const struct kv_view *kv)
{
    return kv &&
           k_rope_takes_sums(a, rope_of(a), vector_length(a->q_norm), vector_length(a->k_norm), kv);
}

/* True if attention/few.cu or few_several.cu will probably compute the op; may_be_few decides. */
static bool rope_is_few(const struct cuda_backend *be, const struct rope_store_args *a,
                        const struct kv_view *kv)
{
    const struct few_pass *few = &be->passes.few;
    const int32_t q_norm = vector_length(a->q_norm), k_norm = vector_length(a->k_norm);
    if (few->seq_rows == 0 || a->n_kv_heads == 0) {
        return false;
    }
    return few->seq_rows > 1
               ? k_attention_several_takes(a, rope_of(a), q_norm, k_norm, kv, &be->attention, few)
               : k_attention_few_takes(a, rope_of(a), q_norm, k_norm, kv, &be->attention);
}

/* See ATTENTION_COMPLETE_ROWS. */
bool cuda_op_rope_store_adds_sums(struct backend *base, const struct rope_store_args *a)
{
    const struct cuda_backend *be = cuda_backend_of(base);
    const struct kv_view *kv = layer_kv(be, a->layer);
    return rope_adds_sums(a, kv) &&
           !(a->n_rows <= ATTENTION_COMPLETE_ROWS && rope_is_few(be, a, kv));
}

/* Only the fast kernel accepts partial sums of the preceding product. */
enum status cuda_op_rope_store(struct backend *base, const struct rope_store_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    TRY(rope_ok(be, a, kv));
    const struct sum_parts sums = sums_in(&a->sums);
    if (sums.n > 0 && !rope_adds_sums(a, kv)) {
        return ERR_INVALID;
    }
    CUDA_TRY(&be->device,
             k_rope_store(be->device.stream, a, rope_of(a), vector(a->q_norm),
                          vector_length(a->q_norm), vector(a->k_norm), vector_length(a->k_norm), kv,
                          layer_pass(be, a->layer), &sums));
    return OK;
}

static enum status mla_ok(const struct cuda_backend *be, const struct mla_store_args *a,
                          const struct kv_view *kv)
{
    const int32_t key = a->kv_lora + a->rope_dim;
    const bool stores = a->kv.mem.p != NULL;
    const bool ok =
        kv && a->n_rows <= be->passes.view.n_rows && kv->n_kv_heads == 1 && kv->head_dim_k == key &&
        (!stores || (fits(a->kv, key) && a->kv.dtype == a->q.dtype)) &&
        head_growth_ok(&a->head_growth, a->n_heads) &&
        fits(a->q, (a->n_heads - 1) * a->q_head + a->q_rope_offset + a->rope_dim) &&
        fits(a->q_out, (a->n_heads - 1) * a->q_out_head + a->q_out_offset + a->rope_dim) &&
        a->q.dtype == a->q_out.dtype && growth_ok(&a->growth) &&
        (!a->rope || 2 * a->rope->view.n_pairs <= a->rope_dim);
    return ok ? OK : ERR_INVALID;
}

/* The latent key and the rotated part are stored as one head of the cache. Queries are rotated in
 * the same kernel. */
enum status cuda_op_mla_store(struct backend *base, const struct mla_store_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    TRY(mla_ok(be, a, kv));
    const struct head_factors growth = head_factors(&a->head_growth);
    CUDA_TRY(&be->device, k_mla_store(be->device.stream, a, a->rope ? &a->rope->view : &no_rope,
                                      vector(a->kv_norm), &growth, kv, layer_pass(be, a->layer)));
    return OK;
}

/* True if rows attend to lists of keys. */
static bool has_picks(const struct attention_args *a)
{
    return a->picks && a->picks->p.p;
}

/* Attention with bounds or caps has no lists, and lists of keys are only those of MLA. */
static bool picks_ok(const struct attention_args *a, const struct kv_view *kv)
{
    return !has_picks(a) ||
           ((a->picks->block > 0 ? kv->v_offset > 0 : a->n_kv_heads == 1 && kv->v_offset == 0) &&
            a->picks->n_sets == a->n_kv_heads && a->picks->top_k > 0 && a->window <= 0 &&
            a->chunk <= 0 && a->softcap <= 0.0f);
}

/* Checks what the attention kernels rely on. */
static enum status attention_ok(const struct cuda_backend *be, const struct attention_args *a,
                                const struct kv_view *kv)
{
    const bool ok = kv && a->n_rows <= be->passes.view.n_rows && kv->n_kv_heads == a->n_kv_heads &&
                    kv->head_dim_k == a->head_dim_k && kv->head_dim_v == a->head_dim_v &&
                    a->n_heads % a->n_kv_heads == 0 && fits(a->q, a->n_heads * a->head_dim_k) &&
                    fits(a->out, a->n_heads * a->head_dim_v) && a->q.dtype == a->out.dtype &&
                    picks_ok(a, kv);
    return ok ? OK : ERR_INVALID;
}

/* The parameters of the kernels, with the plan of this pass. */
static struct attention_launch launch_of(const struct cuda_backend *be,
                                         const struct attention_args *a, const struct kv_view *kv)
{
    return (struct attention_launch){
        .q = a->q.mem.p,
        .out = a->out.mem.p,
        .q_stride = a->q.stride,
        .out_stride = a->out.stride,
        .dtype = a->q.dtype,
        .kv = *kv,
        .pass = *layer_pass(be, a->layer),
        .n_rows = a->n_rows,
        .n_heads = a->n_heads,
        .n_seqs = be->passes.pass ? be->passes.pass->n_seqs : 0,
        .has_no_slots = be->passes.pass && be->passes.plan.n_slots == 0,
        .n_runs = be->passes.pass ? be->passes.plan.n_runs : 0,
        .has_others = be->passes.plan.has_others,
        .run_memory = be->kv.run_memory,
        .scale = a->scale,
        .window = a->window,
        .chunk = a->chunk,
        .softcap = a->softcap,
        .sinks = vector(a->sinks),
        .picks = has_picks(a) ? a->picks->p.p : NULL,
        .top_k = has_picks(a) ? a->picks->top_k : 0,
        .pick_block = has_picks(a) ? a->picks->block : 0,
        .workspace = be->scratch.attention,
        .workspace_bytes = attention_workspace_bytes(&be->attention),
        .limits = &be->attention,
    };
}

/* Rows of trees in deterministic mode read copies of their paths, which are made first; lists have
 * a path's keys in its order anyway. */
enum status cuda_op_attention(struct backend *base, const struct attention_args *a)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, a->layer);
    TRY(attention_ok(be, a, kv));
    const struct attention_launch l = launch_of(be, a, kv);
    if (be->attention.max_paths > 0 && be->passes.pass->kv_set == 0 && !has_picks(a)) {
        CUDA_TRY(&be->device, attention_paths(be->device.stream, &l));
    }
    CUDA_TRY(&be->device, attention_launch(be->device.stream, &l));
    return OK;
}

/* True if one kernel can do rope, store and attention: the pass has few sequences or single rows,
 * and attention is plain. */
static bool may_be_few(const struct cuda_backend *be, const struct rope_store_args *r,
                       const struct attention_args *a, const struct kv_view *kv)
{
    // few.cu supports windows and sinks up to this number of rows; few_kv.cu and few_fixed.cu do
    // not support them.
    enum { BOUNDED_ROWS = 32 };
    const bool plain = a->window <= 0 && !a->sinks;
    const bool bounded = !be->device.options.deterministic && kv->codes.format == KV_PLAIN &&
                         a->n_rows <= BOUNDED_ROWS && r->sums.n == 0 &&
                         (a->window <= 0 || !be->passes.few.has_trees);
    return r->n_rows == a->n_rows && r->layer == a->layer && r->n_kv_heads == a->n_kv_heads &&
           !has_picks(a) && a->chunk <= 0 && r->n_heads == a->n_heads &&
           r->qkv.mem.p == a->q.mem.p && r->qkv.dtype == a->q.dtype &&
           r->qkv.stride == a->q.stride && a->scale > 0.0f && (plain || bounded) &&
           a->softcap <= 0.0f && rope_is_few(be, r, kv);
}

/* True if attention can write its output as the codes that product `l` reads. The inputs that share
 * a scale must then be those of one head.
 */
static bool makes_codes(struct cuda_backend *be, const struct rope_store_args *r,
                        const struct attention_args *a, const struct sum_parts *sums,
                        const struct linear_args *l, struct round_args *codes)
{
    return l && l->x.mem.p == a->out.mem.p && l->n_rows == a->n_rows &&
           k_attention_few_makes_codes(r, sums, &be->attention) &&
           linear_wants_codes(be, l, codes) && codes->group == a->head_dim_v &&
           codes->n_in == a->n_heads * a->head_dim_v;
}

/* For decoding rows that may_be_few accepts, one kernel computes both ops, and may round its output
 * for the product that follows. Other passes call the ops separately. */
enum status cuda_op_rope_attention(struct backend *base, const struct rope_store_args *r,
                                   const struct attention_args *a, const struct linear_args *l)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, r->layer);
    TRY(rope_ok(be, r, kv));
    if (!may_be_few(be, r, a, kv)) {
        TRY(cuda_op_rope_store(base, r));
        TRY(cuda_op_attention(base, a));
        return l ? cuda_op_linear(base, l) : OK;
    }
    TRY(attention_ok(be, a, kv));
    const struct sum_parts sums = sums_in(&r->sums);
    if (sums.n > 0 && !rope_adds_sums(r, kv)) {
        return ERR_INVALID;
    }
    const struct attention_launch launch = launch_of(be, a, kv);
    const struct few_pass *few = &be->passes.few;
    if (few->seq_rows > 1) {
        if (sums.n > 0) {
            return ERR_INVALID;
        }
        CUDA_TRY(&be->device,
                 k_attention_several(be->device.stream, r, rope_of(r), vector(r->q_norm),
                                     vector(r->k_norm), &launch, few));
        return l ? cuda_op_linear(base, l) : OK;
    }
    struct round_args codes;
    const bool are_codes = makes_codes(be, r, a, &sums, l, &codes);
    CUDA_TRY(&be->device,
             k_attention_few(be->device.stream, r, rope_of(r), vector(r->q_norm), vector(r->k_norm),
                             &launch, &sums, are_codes ? &codes : NULL));
    if (are_codes) {
        return linear_of_codes(be, l);
    }
    return l ? cuda_op_linear(base, l) : OK;
}

/* True if the weight has one matrix per head, of this shape and dtype, not quantised and without
 * bias. */
static bool heads_are(const struct weight *w, enum dtype dtype, int32_t n_heads, int32_t n_out,
                      int32_t n_in)
{
    return w && w->kind == WEIGHT_HEADS && w->dtype == dtype && w->data &&
           w->n_experts == n_heads && w->n_out == n_out && w->n_in == n_in && !w->bias;
}

/* True if mla_few.cu, in which every row's head loads weights and keys of its own, is faster than
 * the separate ops (measured). Its clusters have at least two blocks. */
static bool mla_fits(const struct cuda_backend *be, const struct mla_store_args *s)
{
    enum { BLOCKS = 2, MOST_BLOCKS = 3 }; // per row's head; at most, per multiprocessor
    return (int64_t)s->n_rows * s->n_heads * BLOCKS <= (int64_t)MOST_BLOCKS * be->device.n_sms;
}

/* True if one kernel can compute all four ops: each row is a separate sequence, attention is plain,
 * and each op reads what the one before it writes. Fills in the kernel's arguments. */
static bool mla_is_few(const struct cuda_backend *be, const struct mla_store_args *s,
                       const struct linear_heads_args *absorb, const struct attention_args *a,
                       const struct linear_heads_args *expand, struct mla_few *m)
{
    const struct kv_view *kv = layer_kv(be, s->layer);
    const int32_t v_dim = expand->weight ? (int32_t)expand->weight->n_out : 0;
    const bool same = be->passes.few.seq_rows == 1 && s->layer == a->layer &&
                      s->n_heads == a->n_heads && s->n_rows == a->n_rows &&
                      absorb->n_rows == a->n_rows && expand->n_rows == a->n_rows &&
                      absorb->x.mem.p == s->q.mem.p && absorb->x_head == s->q_head &&
                      absorb->y.mem.p == a->q.mem.p && s->q_out.mem.p == a->q.mem.p &&
                      expand->x.mem.p == a->out.mem.p && expand->y_head >= v_dim;
    if (!same || !mla_fits(be, s) || a->window > 0 || a->chunk > 0 || a->softcap > 0.0f ||
        a->sinks || has_picks(a) || !s->kv.mem.p || s->head_growth.scale ||
        !heads_are(absorb->weight, s->q.dtype, s->n_heads, s->kv_lora, s->q_rope_offset) ||
        !heads_are(expand->weight, s->q.dtype, s->n_heads, v_dim, s->kv_lora) ||
        expand->y.dtype != s->q.dtype ||
        !fits(expand->y, (s->n_heads - 1) * expand->y_head + v_dim)) {
        return false;
    }
    *m = (struct mla_few){.store = s,
                          .absorb = absorb->weight->data,
                          .expand = expand->weight->data,
                          .out = expand->y,
                          .v_dim = v_dim,
                          .out_head = expand->y_head,
                          .scale = a->scale,
                          .rope = s->rope ? &s->rope->view : &no_rope,
                          .kv_norm = vector(s->kv_norm),
                          .pages = kv,
                          .pass = layer_pass(be, s->layer),
                          .limits = &be->attention};
    return k_mla_few_takes(m);
}

/* One kernel computes a pass of few decoding rows; other passes call four ops. */
enum status cuda_op_mla(struct backend *base, const struct mla_store_args *store,
                        const struct linear_heads_args *absorb, const struct attention_args *a,
                        const struct linear_heads_args *expand)
{
    struct cuda_backend *be = cuda_backend_of(base);
    TRY(be->device.lost);
    const struct kv_view *kv = layer_kv(be, store->layer);
    TRY(mla_ok(be, store, kv));
    TRY(attention_ok(be, a, kv));
    struct mla_few m;
    if (mla_is_few(be, store, absorb, a, expand, &m)) {
        return cuda_check(&be->device, k_mla_few(be->device.stream, &m), "MLA of few rows");
    }
    TRY(cuda_op_mla_store(base, store));
    TRY(cuda_op_linear_heads(base, absorb));
    TRY(cuda_op_attention(base, a));
    return cuda_op_linear_heads(base, expand);
}
