// SPDX-License-Identifier: Apache-2.0
/* A pass's metadata: one image in pinned memory, sent with one copy, at addresses that depend only
 * on the bucket. */
#include "cuda/cuda_pass.h"
#include "cuda/pass_head.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* The offsets of a pass's arrays in the metadata area. They depend only on the bucket. */
struct meta_layout {
    size_t rows, row_seq, seqs, groups, out_rows, draws, pool, keeps, plan, plan_bytes, tree, end;
    struct {
        size_t rows, items;
    } adapted, adapted_out;
};

/* The maximum number of state boundaries that a pass of n_rows rows may store as snapshots. A
 * sequence can pass several boundaries. */
static int32_t most_keeps(int32_t n_rows)
{
    return n_rows / 8 + 1;
}

static size_t place(size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at = (here + n_bytes + 15) / 16 * 16;
    return here;
}

/* Computes the offsets of all parts. They depend only on the bucket, because a captured graph
 * contains addresses. */
static struct meta_layout meta_layout(const struct attention_limits *attention, int32_t n_rows,
                                      int32_t n_out, int32_t n_draws, int32_t n_pool,
                                      int32_t n_adapters)
{
    struct meta_layout m = {0};
    size_t at = 0;
    place(&at, sizeof(struct pass_head));
    m.rows = place(&at, (size_t)n_rows * sizeof(struct pass_row));
    m.row_seq = place(&at, (size_t)n_rows * sizeof(int32_t));
    m.seqs = place(&at, (size_t)n_rows * sizeof(struct pass_seq));
    m.groups = place(&at, (size_t)n_rows * sizeof(struct pass_group));
    m.out_rows = place(&at, (size_t)n_out * sizeof(int32_t));
    m.draws = place(&at, (size_t)n_draws * sizeof(struct pass_draw));
    m.pool = place(&at, (size_t)n_pool * sizeof(struct pass_pool));
    m.keeps = place(&at, (size_t)most_keeps(n_rows) * sizeof(struct state_keep));
    if (n_adapters > 0) {
        const size_t size = sizeof(struct adapter_item);
        m.adapted.rows = place(&at, (size_t)n_rows * sizeof(int32_t));
        m.adapted.items = place(&at, (size_t)adapter_most_items(n_rows, n_adapters) * size);
        m.adapted_out.rows = place(&at, (size_t)n_out * sizeof(int32_t));
        m.adapted_out.items = place(&at, (size_t)adapter_most_items(n_out, n_adapters) * size);
    }
    m.plan_bytes = attention_plan_bytes(attention, n_rows);
    m.plan = place(&at, m.plan_bytes);
    m.tree = place(&at, (size_t)n_rows * TREE_MASK_WORDS * sizeof(uint64_t));
    m.end = at;
    return m;
}

/* The maximum number of pooled results of a pass: one per sequence, or one per row whose hidden
 * state is returned. */
static int32_t max_pooled(const struct backend_limits *limits)
{
    return limits->max_out_rows + limits->max_lanes;
}

size_t passes_meta_bytes(const struct attention_limits *attention,
                         const struct backend_limits *limits, int32_t max_draws, int32_t n_adapters)
{
    return meta_layout(attention, limits->max_rows, limits->max_out_rows, max_draws,
                       max_pooled(limits), n_adapters)
        .end;
}

static void see_windows(struct passes *p, const struct lanes *lanes)
{
    p->window_view = p->view;
    p->window_view.blocks = lanes->pages;
    p->window_view.n_blocks = lanes->n_pages;
}

/* Allocates for the largest pass. */
enum status passes_open(struct passes *p, struct cuda *device, struct graphs *graphs,
                        const struct lanes *lanes, const struct backend_limits *limits,
                        int32_t max_draws, const struct attention_limits *attention)
{
    const struct backend_limits *l = limits;
    const size_t hidden_bytes = ((size_t)l->max_lanes + 1) * (size_t)l->hidden * sizeof(float);
    p->device = device;
    p->graphs = graphs;
    p->limits = *l;
    p->max_draws = max_draws;
    p->attention = attention;
    const size_t n_bytes = passes_meta_bytes(attention, l, max_draws, device->n_adapters);
    p->adapter_of_row = xcalloc((size_t)l->max_rows, sizeof *p->adapter_of_row);
    p->adapter_counts = xcalloc((size_t)device->n_adapters + 1, sizeof *p->adapter_counts);
    TRY(cuda_alloc(device, n_bytes, (void **)&p->meta));
    TRY(cuda_alloc(device, (size_t)l->max_rows * 4, (void **)&p->tokens));
    TRY(cuda_alloc(device, hidden_bytes, (void **)&p->pooled));
    TRY(cuda_alloc(device, (size_t)max_pooled(l) * (size_t)l->hidden * sizeof(float),
                   (void **)&p->pooled_results));
    TRY(cuda_alloc(device, (size_t)max_draws * sizeof *p->results, (void **)&p->results));
    if (l->max_laws > 0) {
        const size_t n_laws = (size_t)l->max_laws;
        TRY(cuda_alloc(device, n_laws * (size_t)l->vocab * 4, (void **)&p->laws));
        TRY(cuda_alloc(device, n_laws * sizeof *p->law_totals, (void **)&p->law_totals));
    }
    TRY(draw_masks_open(&p->masks, device, l));
    p->view = (struct pass_view){
        .history_stride = lanes->history_stride,
        .blocks_stride = lanes->blocks_stride,
        .allowed_stride = lanes->allowed_stride,
        .max_lanes = l->max_lanes,
        .n_blocks = l->n_blocks,
        .history = lanes->history,
        .blocks = lanes->blocks,
        .params = lanes->params,
        .allowed = lanes->allowed,
        .masks = p->masks.words,
        .mask_slots = p->masks.slots,
        .pooled = p->pooled,
        .laws = p->laws,
        .law_totals = p->law_totals,
        .vocab = l->vocab,
        .tokens = p->tokens,
    };
    see_windows(p, lanes);
    return OK;
}

void passes_close(struct passes *p)
{
    draw_masks_close(&p->masks);
    free(p->adapter_of_row);
    free(p->adapter_counts);
}

/* Checks every index that the kernels use, so that none leads out of bounds. */
static bool pass_ok(const struct passes *ps, const struct pass *p)
{
    const struct backend_limits *l = &ps->limits;
    if (p->n_rows < 0 || p->n_rows > l->max_rows || p->n_out < 0 || p->n_out > l->max_out_rows ||
        p->n_draws < 0 || p->n_draws > ps->max_draws || p->n_pool < 0 ||
        p->n_pool > max_pooled(l) || p->n_seqs < 0 || p->n_seqs > p->n_rows || p->n_groups < 0 ||
        p->n_groups > p->n_seqs || p->n_masks < 0 || p->n_logits < 0 ||
        p->n_logits > ps->max_draws || p->n_keeps < 0 || p->n_keeps > most_keeps(p->n_rows) ||
        p->n_masks > l->max_masks || p->kv_set < 0 || p->kv_set >= CUDA_MAX_SETS ||
        p->hidden.n < 0 || p->hidden.n > MAX_HIDDEN_LAYERS) {
        return false;
    }
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct pass_row *r = &p->rows[i];
        if (r->lane < 0 || r->lane >= l->max_lanes || r->pos < 0 ||
            r->pos >= ps->view.history_stride || r->slot_pos < 0 ||
            r->slot_pos >= l->max_blocks_per_lane * l->block_tokens || r->token >= l->vocab) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct pass_seq *s = &p->seqs[i];
        if (s->first_row < 0 || s->n_rows <= 0 || s->first_row > p->n_rows - s->n_rows ||
            s->n_past < 0 || s->lane < 0 || s->lane >= l->max_lanes ||
            s->n_past > l->max_blocks_per_lane * l->block_tokens - s->n_rows || s->adapter < 0 ||
            s->adapter > ps->device->n_adapters ||
            (s->tree && (s->n_rows > MAX_TREE_NODES || !p->tree_mask)) ||
            (p->bidirectional && (s->tree || s->n_past > 0))) {
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
            d->pos < 0 || d->pos >= ps->view.history_stride || d->n_prompt < 0 || d->top_n < 0 ||
            d->top_n > MAX_TOP_LOGPROBS || d->tree_row >= p->n_rows || d->more < 0 ||
            d->more >= MAX_SIBLINGS || d->more_slot < 0 || d->law < 0 || d->law > l->max_laws ||
            d->more_slot > ps->view.history_stride - d->more || d->mask < 0 ||
            d->mask > p->n_masks || d->logits < 0 || d->logits > p->n_logits) {
            return false;
        }
    }
    for (int32_t i = 0; i < p->n_keeps; i++) {
        const struct state_keep *k = &p->keeps[i];
        if (k->lane < 0 || k->lane >= l->max_lanes || k->pos <= 0 || k->slot < l->max_lanes ||
            k->slot >= ps->n_state_slots[p->kv_set]) {
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

/* Padding rows belong to the null lane and to no sequence. */
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

/* Counts of a graph are rounded up to powers of two, so that few graphs are needed. */
static int32_t power_of_two(int32_t n)
{
    int32_t p = n > 0;
    while (p < n) {
        p *= 2;
    }
    return p;
}

/* A captured pass serves others with up to as many items. */
static struct adapter_list list_items(struct passes *ps, char *image, const int32_t *picks,
                                      int32_t n, size_t rows, size_t items)
{
    struct adapter_item *to = (struct adapter_item *)(image + items);
    struct adapter_list list = {
        .rows = (const int32_t *)(ps->meta + rows),
        .items = (const struct adapter_item *)(ps->meta + items),
        .tile = n <= ADAPTER_FEW ? ADAPTER_FEW_TILE : ADAPTER_MANY_TILE,
    };
    const int32_t n_adapters = ps->device->n_adapters;
    const int32_t n_items = adapter_items_make(ps->adapter_of_row, picks, n, list.tile, n_adapters,
                                               ps->adapter_counts, (int32_t *)(image + rows), to);
    const int32_t rounded = power_of_two(n_items), most = adapter_most_items(n, n_adapters);
    list.n_items = n <= GRAPH_MAX_ROWS ? lesser(rounded, most) : n_items;
    for (int32_t i = n_items; i < list.n_items; i++) {
        to[i] = (struct adapter_item){.n_rows = 0};
    }
    return list;
}

/* Lists the rows with adapters. Padding among the out rows counts as row 0. */
static void list_adapted(struct passes *ps, char *image, const struct meta_layout *m,
                         const struct pass *p, const struct pass_shape *shape)
{
    ps->adapted = ps->adapted_out = (struct adapter_list){.n_items = 0};
    if (!pass_is_adapted(p)) {
        return;
    }
    int32_t *of_row = ps->adapter_of_row;
    memset(of_row, 0, (size_t)shape->n_rows * sizeof *of_row);
    for (int32_t s = 0; s < p->n_seqs; s++) {
        for (int32_t i = 0; i < p->seqs[s].n_rows; i++) {
            of_row[p->seqs[s].first_row + i] = p->seqs[s].adapter;
        }
    }
    const int32_t *out_rows = (const int32_t *)(image + m->out_rows);
    ps->adapted = list_items(ps, image, NULL, shape->n_rows, m->adapted.rows, m->adapted.items);
    ps->adapted_out =
        list_items(ps, image, out_rows, shape->n_out, m->adapted_out.rows, m->adapted_out.items);
}

/* Begins the pass on the device with an image of n_bytes in pinned memory. The kernel that begins
 * it copies small images itself. */
static enum status begin_with(struct passes *ps, const char *image, size_t n_bytes)
{
    enum { SMALL_BYTES = 32 << 10 };
    struct cuda *be = ps->device;
    if (n_bytes <= SMALL_BYTES) {
        CUDA_TRY(be, k_pass_begin_small(be->stream, &ps->view, image, ps->meta,
                                        (n_bytes + 15) / 16 * 16));
        return OK;
    }
    CUDA_TRY(be, cudaMemcpyAsync(ps->meta, image, n_bytes, cudaMemcpyHostToDevice, be->stream));
    CUDA_TRY(be, k_pass_begin(be->stream, &ps->view));
    return OK;
}

/* Lanes that share a bit count as the same. */
static bool keeps_later(const struct pass *p)
{
    uint64_t seen[64] = {0};
    bool several = false, keeps = false;
    for (int32_t i = 0; i < p->n_draws; i++) {
        const uint32_t lane = (uint32_t)p->draws[i].lane % (64 * 64);
        several = several || (seen[lane / 64] >> lane % 64 & 1) != 0;
        seen[lane / 64] |= 1ull << lane % 64;
        keeps = keeps || p->draws[i].keep;
    }
    return several && keeps;
}

/* Builds the image in the slot's memory, sets the view that the kernels get, and begins the pass.
 * results: where the draws' results go. */
static enum status send_meta(struct passes *ps, struct lanes *lanes, const struct pass *p,
                             const struct pass_shape *shape, struct draw_result *results)
{
    const struct meta_layout m = meta_layout(ps->attention, shape->n_rows, shape->n_out,
                                             shape->n_draws, p->n_pool, ps->device->n_adapters);
    struct cuda *be = ps->device;
    char *image = lanes_room(lanes, m.end);
    if (!image) {
        return be->lost;
    }
    bool has_trees = false;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        has_trees = has_trees || p->seqs[i].tree;
    }
    *(struct pass_head *)image = (struct pass_head){
        {p->n_rows, p->n_seqs, p->n_groups, p->n_out, p->n_draws, p->n_pool, has_trees, p->n_keeps},
        results,
        keeps_later(p)};
    copy_array(image + m.rows, p->rows, p->n_rows, sizeof *p->rows);
    copy_array(image + m.seqs, p->seqs, p->n_seqs, sizeof *p->seqs);
    copy_array(image + m.groups, p->groups, p->n_groups, sizeof *p->groups);
    copy_array(image + m.out_rows, p->out_rows, p->n_out, sizeof *p->out_rows);
    copy_array(image + m.draws, p->draws, p->n_draws, sizeof *p->draws);
    copy_array(image + m.pool, p->pool, p->n_pool, sizeof *p->pool);
    copy_array(image + m.keeps, p->keeps, p->n_keeps, sizeof *p->keeps);
    fill_padding(image, &m, p, shape, ps->limits.max_lanes);
    list_adapted(ps, image, &m, p, shape);
    size_t plan_used = 0;
    if (m.plan_bytes > 0) {
        TRY(attention_plan(ps->attention, p, shape->n_rows, image + m.plan, &plan_used));
        ps->plan = attention_plan_facts(image + m.plan);
    }
    size_t n_bytes = m.plan + plan_used;
    if (has_trees) {
        copy_array(image + m.tree, p->tree_mask, p->n_rows, TREE_MASK_WORDS * sizeof(uint64_t));
        n_bytes = m.end;
    }
    lanes_use_room(lanes, n_bytes);
    struct pass_view *v = &ps->view;
    v->counts = (const struct pass_counts *)ps->meta;
    v->rows = (const struct pass_row *)(ps->meta + m.rows);
    v->row_seq = (const int32_t *)(ps->meta + m.row_seq);
    v->seqs = (const struct pass_seq *)(ps->meta + m.seqs);
    v->groups = (const struct pass_group *)(ps->meta + m.groups);
    v->tree_mask = (const uint64_t *)(ps->meta + m.tree);
    v->out_rows = (const int32_t *)(ps->meta + m.out_rows);
    v->draws = (const struct pass_draw *)(ps->meta + m.draws);
    v->pool = (const struct pass_pool *)(ps->meta + m.pool);
    v->keeps = (const struct state_keep *)(ps->meta + m.keeps);
    v->attention_plan = ps->meta + m.plan;
    v->n_rows = shape->n_rows;
    v->bidirectional = p->bidirectional;
    see_windows(ps, lanes);
    return begin_with(ps, image, n_bytes);
}

/* True if attention/few.cu should compute the pass. That kernel reads each row's keys separately,
 * so a prefix that 17 or more rows share goes to the general path. With more than 32 rows it does
 * not split a row's keys, so passes with a few long rows among short ones go there, too: each long
 * row would keep one block busy after all others have ended. In deterministic mode a row's keys are
 * never split, so a long row would keep a single warp busy. */
static bool is_few(const struct pass *p, int32_t n_rows, bool deterministic)
{
    enum { NO_GROUPS_FROM = 17, WHOLE_FROM = 33, SHORT = 512, LONGEST_SHARE = 24 };
    const int32_t share = deterministic ? 2 * LONGEST_SHARE : LONGEST_SHARE;
    int32_t most = attention_few_keys(n_rows);
    if (deterministic && n_rows < WHOLE_FROM) {
        most = lesser(most, (int32_t)SHORT);
    }
    int32_t longest = 0;
    int64_t sum = 0;
    bool few = most > 0 && p->n_seqs == p->n_rows && (n_rows < NO_GROUPS_FROM || p->n_groups == 0);
    for (int32_t i = 0; few && i < p->n_seqs; i++) {
        const int32_t n_past = p->seqs[i].n_past;
        few = !p->seqs[i].tree && n_past < most;
        longest = greater(n_past, longest);
        sum += n_past;
    }
    return few && (n_rows < WHOLE_FROM || longest < SHORT || (int64_t)longest * share <= sum);
}

static int32_t at_least(int32_t n, int32_t least)
{
    return greater(n, least);
}

/* Several rows of a sequence are for the same kernel if all sequences together are few. Their
 * largest number is rounded up, so that few graphs are needed. */
static struct few_pass few_of(const struct pass *p, int32_t n_rows, bool deterministic)
{
    const struct few_pass none = {.seq_rows = 0};
    if (p->bidirectional) { // those kernels store a row's key just before they read the keys
        return none;
    }
    if (is_few(p, n_rows, deterministic)) {
        return (struct few_pass){.n_seqs = n_rows, .seq_rows = 1};
    }
    if (deterministic || n_rows > ATTENTION_COMPLETE_ROWS || p->n_seqs > FEW_SEQS) {
        return none;
    }
    struct few_pass few = {.n_seqs = p->n_seqs};
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct pass_seq *s = &p->seqs[i];
        if (s->n_rows > FEW_SEQ_ROWS || s->n_past + s->n_rows > attention_few_keys(p->n_seqs)) {
            return none;
        }
        few.seq_rows = at_least(s->n_rows, few.seq_rows);
        few.has_trees |= s->tree;
    }
    few.seq_rows = power_of_two(few.seq_rows);
    return few.seq_rows > 1 ? few : none;
}

/* The counts of passes that may be captured are rounded up, because each count needs a separate
 * graph. */
static struct state_work state_work_of(const struct passes *ps, const struct pass *p, bool captured)
{
    const int32_t block = ps->state_block[p->kv_set];
    struct state_work w = {.windows = 0};
    for (int32_t i = 0; block > 0 && i < p->n_seqs; i++) {
        const struct pass_seq *s = &p->seqs[i];
        const int32_t windows = (s->n_rows + STATE_WINDOW - 1) / STATE_WINDOW;
        w.all_windows = at_least(windows, w.all_windows);
        w.has_trees = w.has_trees || s->tree;
        if (s->tree || windows == 1) {
            w.windows = at_least(windows, w.windows);
            const bool single = s->n_rows == 1 && !s->tree;
            w.has_single = w.has_single || single;
            w.has_several = w.has_several || !single;
        } else {
            w.n_chains++;
            w.n_blocks += (s->n_past + s->n_rows - 1) / block - s->n_past / block + 1;
        }
    }
    if (captured) {
        w.all_windows = power_of_two(w.all_windows);
        w.n_chains = power_of_two(w.n_chains);
        w.n_blocks = power_of_two(w.n_blocks);
    }
    return w;
}

/* The last bucket ends at the limit, where the engine's buffers end. */
static int32_t bucket_within(int32_t n, int32_t limit)
{
    const int32_t padded = cuda_bucket(n);
    return lesser(padded, limit);
}

/* The shape of a pass whose ops are captured. */
static struct pass_shape captured_shape(const struct passes *p, const struct pass *pass)
{
    return (struct pass_shape){bucket_within(pass->n_rows, p->limits.max_rows),
                               bucket_within(pass->n_out, p->limits.max_out_rows),
                               bucket_within(pass->n_draws, p->max_draws), true};
}

/* The shape of a pass whose ops are launched one by one. Many rows are padded because cuBLASLt
 * multiplies FP8 codes with scales of blocks only if their number is a multiple of 4. Otherwise the
 * weights would be dequantised, which is much slower. Tests, which have negative model ids, get
 * the rows that they ask for. */
static struct pass_shape launched_shape(const struct passes *p, const struct pass *pass)
{
    enum { MULTIPLE = 16 };
    struct pass_shape shape = {pass->n_rows, pass->n_out, pass->n_draws, true};
    if (pass->model >= 0 && pass->n_rows > GRAPH_MAX_ROWS) {
        const int32_t padded = (pass->n_rows + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
        shape.n_rows = lesser(padded, p->limits.max_rows);
    }
    return shape;
}

/* Checks the pass, chooses its shape, and sends the metadata in one copy. Padding rows belong to
 * the null lane. */
enum status passes_begin(struct passes *p, struct steps *steps, struct lanes *lanes,
                         const struct pass *pass, struct pass_shape *shape)
{
    struct cuda *be = p->device;
    if (p->pass || !pass_ok(p, pass) || !steps_has_room(steps, pass->n_pool)) {
        return ERR_INVALID;
    }
    _Static_assert((int)GRAPH_MAX_ROWS <= (int)ATTENTION_CAPTURED_ROWS,
                   "attention looks at the pass itself where nothing is captured");
    /* Tests use negative model ids, and their ops differ from pass to pass. */
    const bool may_capture = pass->model >= 0 && pass->n_rows > 0 && pass->n_pool == 0 &&
                             pass->n_logits == 0 && pass->n_rows <= GRAPH_MAX_ROWS;
    *shape = may_capture ? captured_shape(p, pass) : launched_shape(p, pass);
    TRY(steps_need_logits(steps, pass->n_logits));
    TRY(lanes_flush(lanes));
    if (!pass->draws_wait) {
        TRY(draw_masks_send(&p->masks, lanes, pass->masks, pass->n_masks));
    }
    TRY(send_meta(p, lanes, pass, shape, steps_draws(steps)));
    p->few = few_of(pass, shape->n_rows, be->options.deterministic);
    p->state_work = state_work_of(p, pass, may_capture);
    if (may_capture && !be->options.enforce_eager) {
        struct graph_key key = {.model = pass->model,
                                .set = pass->kv_set,
                                .n_rows = shape->n_rows,
                                .n_out = shape->n_out,
                                .n_draws = shape->n_draws,
                                .few = p->few,
                                .adapted = {p->adapted.n_items, p->adapted_out.n_items},
                                .draws_wait = pass->draws_wait,
                                .state = p->state_work,
                                .hidden.n = pass->hidden.n};
        memcpy(key.hidden.ids, pass->hidden.ids, (size_t)pass->hidden.n * sizeof *pass->hidden.ids);
        enum graph_use use = GRAPH_NONE;
        TRY(graphs_begin(p->graphs, &key, &use));
        shape->issue = use != GRAPH_REPLAY;
    }
    p->pass = pass;
    p->set = pass->kv_set;
    p->n_draws = pass->n_draws;
    p->n_pool = pass->n_pool;
    p->shape = *shape;
    return OK;
}

enum status passes_pause(struct passes *p)
{
    return p->pass && p->pass->draws_wait ? graphs_end(p->graphs) : ERR_INVALID;
}

/* For a pass whose masks arrive after it has begun: sends the masks. The draws are then launched,
 * never replayed. */
enum status passes_draws(struct passes *p, struct lanes *lanes, struct pass_shape *shape)
{
    struct cuda *be = p->device;
    if (!p->pass || !p->pass->draws_wait) {
        return be->lost != OK ? be->lost : ERR_INVALID;
    }
    if (be->lost != OK) {
        return be->lost;
    }
    TRY(draw_masks_send(&p->masks, lanes, p->pass->masks, p->pass->n_masks));
    *shape = p->shape;
    shape->issue = true;
    return OK;
}

/* If the pass was captured, the capture ends here and is launched. The draws store their results in
 * the step's pinned memory; pooled results are copied to it. */
enum status passes_end(struct passes *p, struct steps *steps)
{
    struct cuda *be = p->device;
    if (!p->pass) {
        return be->lost != OK ? be->lost : ERR_INVALID;
    }
    p->pass = NULL;
    if (be->lost != OK) {
        graphs_abort(p->graphs);
        return be->lost;
    }
    TRY(graphs_end(p->graphs));
    if (p->n_pool > 0) {
        CUDA_TRY(be, cudaMemcpyAsync(steps_pooled(steps), p->pooled_results,
                                     (size_t)p->n_pool * (size_t)p->limits.hidden * 4,
                                     cudaMemcpyDeviceToHost, be->stream));
    }
    steps_add(steps, p->n_draws, p->n_pool);
    return OK;
}
