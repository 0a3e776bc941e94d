/* A pass's metadata: one pinned image, one copy, at addresses that depend on the bucket alone. */
#include "cuda/cuda_backend.h"

#include <string.h>

static size_t place(size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at = (here + n_bytes + 15) / 16 * 16;
    return here;
}

struct meta_layout cuda_meta_layout(const struct cuda *be, int32_t n_rows, int32_t n_out,
                                    int32_t n_draws, int32_t n_pool)
{
    struct meta_layout m;
    size_t at = 0;
    place(&at, sizeof(struct pass_counts));
    m.rows = place(&at, (size_t)n_rows * sizeof(struct pass_row));
    m.row_seq = place(&at, (size_t)n_rows * sizeof(int32_t));
    m.seqs = place(&at, (size_t)n_rows * sizeof(struct pass_seq));
    m.groups = place(&at, (size_t)n_rows * sizeof(struct pass_group));
    m.out_rows = place(&at, (size_t)n_out * sizeof(int32_t));
    m.draws = place(&at, (size_t)n_draws * sizeof(struct pass_draw));
    m.pool = place(&at, (size_t)n_pool * sizeof(struct pass_pool));
    m.plan_bytes = attention_plan_bytes(&be->attention, n_rows);
    m.plan = place(&at, m.plan_bytes);
    m.tree = place(&at, (size_t)n_rows * TREE_MASK_WORDS * sizeof(uint64_t));
    m.end = at;
    return m;
}

/* What the kernels index with: everything that could lead them astray. */
static bool pass_ok(const struct cuda *be, const struct pass *p)
{
    const struct backend_limits *l = &be->limits;
    if (p->n_rows < 0 || p->n_rows > l->max_rows || p->n_out < 0 || p->n_out > l->max_out_rows ||
        p->n_draws < 0 || p->n_draws > be->max_draws || p->n_pool < 0 || p->n_pool > l->max_lanes ||
        p->n_seqs < 0 || p->n_seqs > p->n_rows || p->n_groups < 0 || p->n_groups > p->n_seqs ||
        p->kv_set < 0 || p->kv_set >= CUDA_MAX_SETS || p->hidden.n < 0 ||
        p->hidden.n > MAX_HIDDEN_LAYERS) {
        return false;
    }
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct pass_row *r = &p->rows[i];
        if (r->lane < 0 || r->lane >= l->max_lanes || r->pos < 0 ||
            r->pos >= be->view.history_stride || r->slot_pos < 0 ||
            r->slot_pos >= l->max_blocks_per_lane * l->block_tokens || r->token >= l->vocab) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct pass_seq *s = &p->seqs[i];
        if (s->first_row < 0 || s->n_rows <= 0 || s->first_row > p->n_rows - s->n_rows ||
            s->n_past < 0 || s->lane < 0 || s->lane >= l->max_lanes ||
            s->n_past > l->max_blocks_per_lane * l->block_tokens - s->n_rows ||
            (s->tree && (s->n_rows > MAX_TREE_NODES || !p->tree_mask))) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_out; i++) {
        if (p->out_rows[i] < 0 || p->out_rows[i] >= p->n_rows) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_draws; i++) {
        const struct pass_draw *d = &p->draws[i];
        if (d->out_row < 0 || d->out_row >= p->n_out || d->lane < 0 || d->lane >= l->max_lanes ||
            d->pos < 0 || d->pos >= be->view.history_stride || d->n_prompt < 0 || d->top_n < 0 ||
            d->top_n > MAX_TOP_LOGPROBS || d->tree_row >= p->n_rows || d->more < 0 ||
            d->more >= MAX_SIBLINGS || d->more_slot < 0 || d->law < 0 || d->law > l->max_laws ||
            d->more_slot > be->view.history_stride - d->more) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_pool; i++) {
        const struct pass_pool *e = &p->pool[i];
        if (e->lane < 0 || e->lane >= l->max_lanes || e->first_out < 0 || e->n_out < 0 ||
            e->first_out > p->n_out - e->n_out) {
            return false;
        }
    }
    return true;
}

static void copy_array(char *to, const void *from, int32_t n, size_t size)
{
    if (n > 0) {
        memcpy(to, from, (size_t)n * size);
    }
}

static void fill_padding(char *image, const struct meta_layout *m, const struct pass *p,
                         const struct pass_shape *shape, int32_t null_lane)
{
    struct pass_row *rows = (struct pass_row *)(image + m->rows);
    int32_t *row_seq = (int32_t *)(image + m->row_seq);
    for (int32_t i = 0; i < shape->n_rows; i++) {
        row_seq[i] = -1;
    }
    for (int32_t i = p->n_rows; i < shape->n_rows; i++) {
        rows[i] = (struct pass_row){.lane = null_lane};
    }
    for (int32_t s = 0; s < p->n_seqs; s++) {
        for (int32_t i = 0; i < p->seqs[s].n_rows; i++) {
            row_seq[p->seqs[s].first_row + i] = s;
        }
    }
    int32_t *out_rows = (int32_t *)(image + m->out_rows);
    for (int32_t i = p->n_out; i < shape->n_out; i++) {
        out_rows[i] = 0;
    }
    struct pass_draw *draws = (struct pass_draw *)(image + m->draws);
    for (int32_t i = p->n_draws; i < shape->n_draws; i++) {
        draws[i] = (struct pass_draw){.lane = null_lane, .tree_row = -1};
    }
}

/* Builds the image in the slot's memory and sends it; sets the view that kernels get. */
static enum status send_meta(struct cuda *be, const struct pass *p, const struct pass_shape *shape)
{
    const struct meta_layout m =
        cuda_meta_layout(be, shape->n_rows, shape->n_out, shape->n_draws, p->n_pool);
    struct slot *s = be->slot;
    if (s->used_bytes + m.end > be->staged_bytes) {
        CUDA_TRY(be, cudaStreamSynchronize(be->stream)); // many large passes in one step
        s->used_bytes = s->flushed_bytes = 0;
    }
    char *image = s->pinned + s->used_bytes;
    bool has_trees = false;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        has_trees = has_trees || p->seqs[i].tree;
    }
    *(struct pass_counts *)image = (struct pass_counts){
        p->n_rows, p->n_seqs, p->n_groups, p->n_out, p->n_draws, p->n_pool, has_trees, 0};
    copy_array(image + m.rows, p->rows, p->n_rows, sizeof *p->rows);
    copy_array(image + m.seqs, p->seqs, p->n_seqs, sizeof *p->seqs);
    copy_array(image + m.groups, p->groups, p->n_groups, sizeof *p->groups);
    copy_array(image + m.out_rows, p->out_rows, p->n_out, sizeof *p->out_rows);
    copy_array(image + m.draws, p->draws, p->n_draws, sizeof *p->draws);
    copy_array(image + m.pool, p->pool, p->n_pool, sizeof *p->pool);
    fill_padding(image, &m, p, shape, be->limits.max_lanes);
    size_t plan_used = 0;
    if (m.plan_bytes > 0) {
        TRY(attention_plan(&be->attention, p, shape->n_rows, image + m.plan, &plan_used));
        be->attention_slots = attention_plan_slots(image + m.plan);
    }
    size_t n_bytes = m.plan + plan_used;
    if (has_trees) {
        copy_array(image + m.tree, p->tree_mask, p->n_rows, TREE_MASK_WORDS * sizeof(uint64_t));
        n_bytes = m.end;
    }
    s->used_bytes += (n_bytes + 15) / 16 * 16;
    s->flushed_bytes = s->used_bytes;
    CUDA_TRY(be, cudaMemcpyAsync(be->meta, image, n_bytes, cudaMemcpyHostToDevice, be->stream));

    struct pass_view *v = &be->view;
    v->counts = (const struct pass_counts *)be->meta;
    v->rows = (const struct pass_row *)(be->meta + m.rows);
    v->row_seq = (const int32_t *)(be->meta + m.row_seq);
    v->seqs = (const struct pass_seq *)(be->meta + m.seqs);
    v->groups = (const struct pass_group *)(be->meta + m.groups);
    v->tree_mask = (const uint64_t *)(be->meta + m.tree);
    v->out_rows = (const int32_t *)(be->meta + m.out_rows);
    v->draws = (const struct pass_draw *)(be->meta + m.draws);
    v->pool = (const struct pass_pool *)(be->meta + m.pool);
    v->attention_plan = be->meta + m.plan;
    v->n_rows = shape->n_rows;
    return OK;
}

/* Whether attention_few.cu may take its rows. It reads each row's keys for itself, so prefixes that
 * 17 rows and more share are the general way's; and of more than 32 rows it does not cut them, so
 * long ones among short ones are, too: each would keep a block busy when all others have ended. */
static bool is_few(const struct pass *p, int32_t n_rows)
{
    enum { NO_GROUPS_FROM = 17, WHOLE_FROM = 33, SHORT = 512, LONGEST_SHARE = 24 };
    const int32_t most = attention_few_keys(n_rows);
    int32_t longest = 0;
    int64_t sum = 0;
    bool few = most > 0 && p->n_seqs == p->n_rows &&
               (n_rows < NO_GROUPS_FROM || p->n_groups == 0);
    for (int32_t i = 0; few && i < p->n_seqs; i++) {
        const int32_t n_past = p->seqs[i].n_past;
        few = !p->seqs[i].tree && n_past < most;
        longest = n_past > longest ? n_past : longest;
        sum += n_past;
    }
    return few && (n_rows < WHOLE_FROM || longest < SHORT ||
                   (int64_t)longest * LONGEST_SHARE <= sum);
}

/* The engine's buffers end at the limit: the last bucket does too. */
static int32_t bucket_within(int32_t n, int32_t limit)
{
    const int32_t padded = cuda_bucket(n);
    return padded < limit ? padded : limit;
}

enum status cuda_pass_begin(struct backend *base, const struct pass *pass, struct pass_shape *shape)
{
    struct cuda *be = cuda_of(base);
    TRY(be->lost);
    if (!be->slot || be->pass || be->slot->n_passes == be->limits.max_passes ||
        !pass_ok(be, pass) || be->slot->n_pooled + pass->n_pool > be->limits.max_lanes) {
        return ERR_INVALID;
    }
    _Static_assert((int)GRAPH_MAX_ROWS <= (int)ATTENTION_CAPTURED_ROWS,
                   "attention looks at the pass itself where nothing is captured");
    /* A negative model is a test's: its ops differ from pass to pass. */
    const bool may_capture = pass->model >= 0 && pass->n_rows > 0 && pass->n_pool == 0 &&
                             pass->n_rows <= GRAPH_MAX_ROWS;
    *shape = (struct pass_shape){pass->n_rows, pass->n_out, pass->n_draws, true};
    if (may_capture) {
        *shape = (struct pass_shape){bucket_within(pass->n_rows, be->limits.max_rows),
                                     bucket_within(pass->n_out, be->limits.max_out_rows),
                                     bucket_within(pass->n_draws, be->max_draws), true};
    }
    TRY(cuda_flush(be));
    TRY(send_meta(be, pass, shape));
    be->is_few = is_few(pass, shape->n_rows);
    if (may_capture && !be->options.enforce_eager) {
        struct graph_key key = {.model = pass->model, .set = pass->kv_set,
                                .n_rows = shape->n_rows, .n_out = shape->n_out,
                                .n_draws = shape->n_draws, .is_few = be->is_few,
                                .hidden.n = pass->hidden.n};
        memcpy(key.hidden.ids, pass->hidden.ids,
               (size_t)pass->hidden.n * sizeof *pass->hidden.ids);
        enum graph_use use = GRAPH_NONE;
        TRY(cuda_graph_begin(be, &key, &use));
        shape->issue = use != GRAPH_REPLAY;
    }
    be->pass = pass;
    be->pass_set = pass->kv_set;
    be->pass_n_draws = pass->n_draws;
    be->pass_n_pool = pass->n_pool;
    be->shape = *shape;
    if (shape->issue) {
        CUDA_TRY(be, k_pass_begin(be->stream, &be->view));
    }
    return OK;
}

enum status cuda_pass_end(struct backend *base)
{
    struct cuda *be = cuda_of(base);
    if (!be->pass) {
        return be->lost != OK ? be->lost : ERR_INVALID;
    }
    be->pass = NULL;
    if (be->lost != OK) {
        cuda_graph_abort(be);
        return be->lost;
    }
    TRY(cuda_graph_end(be));
    struct slot *s = be->slot;
    s->passes[s->n_passes].n_draws = be->pass_n_draws;
    s->passes[s->n_passes].first_pooled = s->n_pooled;
    if (be->pass_n_draws > 0) {
        CUDA_TRY(be, cudaMemcpyAsync(s->draws + (size_t)s->n_passes * (size_t)be->max_draws,
                                     be->results, (size_t)be->pass_n_draws * sizeof *be->results,
                                     cudaMemcpyDeviceToHost, be->stream));
    }
    if (be->pass_n_pool > 0) {
        CUDA_TRY(be, cudaMemcpyAsync(s->pooled + (size_t)s->n_pooled * (size_t)be->limits.hidden,
                                     be->pooled_results,
                                     (size_t)be->pass_n_pool * (size_t)be->limits.hidden * 4,
                                     cudaMemcpyDeviceToHost, be->stream));
    }
    s->n_pooled += be->pass_n_pool;
    s->n_passes++;
    return OK;
}
