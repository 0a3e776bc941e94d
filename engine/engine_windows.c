// SPDX-License-Identifier: Apache-2.0
/* Memory for layers that see only a window: whether they get pages of their own, and how many. */
#include "engine/engine_state.h"

#include "engine/base/log.h"
#include "engine/base/minmax.h"

#include <inttypes.h>

/* Chosen: the pages suffice for sequences of this many windows, or of LEAST_TOKENS if those are
 * longer. Shorter ones need more pages for their blocks, longer ones fewer. */
enum { WINDOWS = 4, LEAST_TOKENS = 1024 };
enum { ROWS = 512 }; // chosen: fewer leave a GPU's units idle

/* Chosen: pages of their own must make room for this many times the tokens, because hits may become
 * shorter. */
static const double worth = 1.25;

/* Which layers of the target's KV set have only readers with a window. */
static int32_t find_layers(const struct model_config *c, bool windowed[MAX_KV_LAYERS])
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_kv_layers; i++) {
        windowed[i] = true;
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kv >= 0 && l->window == 0 && l->chunk == 0) {
            windowed[l->kv] = false;
        }
        if (l->index >= 0) {
            windowed[l->index] = false;
        }
    }
    for (int32_t i = 0; i < c->n_kv_layers; i++) {
        n += windowed[i];
    }
    return n;
}

void engine_windows_begin(struct engine *e)
{
    const struct model *m = &e->ranks.rank[0].target;
    const struct model_config *c = m->config;
    struct engine_windows *w = &e->windows;
    bool windowed[MAX_KV_LAYERS];
    if (find_layers(c, windowed) == 0 || c->n_state_layers > 0 || c->bidirectional ||
        !m->be->ops->lane_pages || e->options.disable_hybrid_kv_cache_manager) {
        return;
    }
    for (int32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kv >= 0 && windowed[l->kv]) {
            w->window = greater(w->window, l->window);
            w->chunk = greater(w->chunk, l->chunk);
        }
    }
}

void engine_windows_mark(const struct engine *e, const struct model *m, struct kv_layer *layers)
{
    bool windowed[MAX_KV_LAYERS];
    if (e->windows.n_pages == 0 || m->kv_set != 0) {
        return;
    }
    find_layers(m->config, windowed);
    for (int32_t i = 0; i < m->config->n_kv_layers; i++) {
        layers[i].windowed = windowed[i];
    }
}

/* Bytes of a page, over all windowed layers. */
static enum status count_page_bytes(struct engine *e)
{
    const struct model *m = &e->ranks.rank[0].target;
    struct kv_layer layers[MAX_KV_LAYERS];
    struct kv_set_desc d;
    bool windowed[MAX_KV_LAYERS];
    int32_t n = 0;
    engine_kv_set(e, m, layers, &d);
    find_layers(m->config, windowed);
    for (int32_t i = 0; i < d.n_layers; i++) {
        if (windowed[i]) {
            layers[n++] = layers[i];
        }
    }
    d.n_layers = n;
    return m->be->ops->kv_bytes(m->be, &d, e->info.block_tokens, &e->windows.page_bytes);
}

static struct scheduler_limits limits_of(const struct engine *e)
{
    return (struct scheduler_limits){.max_rows = e->info.max_rows,
                                     .block_tokens = e->info.block_tokens,
                                     .chunked = e->options.enable_chunked_prefill,
                                     .window = e->windows.window,
                                     .window_chunk = e->windows.chunk,
                                     .window_rows = engine_option(e->options.window_rows, ROWS),
                                     .n_pages = 1};
}

static int64_t assumed_length(const struct scheduler_limits *l)
{
    const int64_t window = greater(l->window, l->window_chunk);
    return greater(WINDOWS * window, LEAST_TOKENS);
}

/* What is left for blocks, and how many that are; at most MORE times those of one kind. */
static int64_t blocks_in(const struct engine *e, double budget, double per_block, int64_t n_pages,
                         int64_t most)
{
    enum { MORE = 16 }; // chosen: bounds the host's memory where all layers have a window
    const double page = (double)e->windows.page_bytes, block = per_block - page;
    const double left = budget - (double)n_pages * page, limit = MORE * budget / per_block;
    const double n = left < limit * block ? left / block : limit;
    return n < (double)most ? (int64_t)n : most;
}

/* Divides the memory between blocks and pages, so that both suffice for the same number of
 * sequences of some length: the assumed one, or, if a sequence of the requested max_model_len would
 * not fit, a longer one. */
static void divide(const struct engine *e, double budget, double per_block, int64_t most,
                   struct engine_split *out)
{
    const struct scheduler_limits l = limits_of(e);
    const double page = (double)e->windows.page_bytes, block = per_block - page;
    const bool asked = e->options.max_model_len > 0; // otherwise the length is reduced
    const int32_t size = l.block_tokens, longest = e->info.max_model_len;
    const int64_t least = windows_least_pages(&l), span = windows_span(&l, 1);
    int64_t length = assumed_length(&l);
    *out = (struct engine_split){0};
    if (budget < (double)least * page) {
        return;
    }
    for (bool fits = false; !fits; length *= 2) {
        const int64_t blocks = (lesser(length, longest) + size - 1) / size;
        const int64_t pages = lesser(span, blocks);
        const double n =
            (budget - (double)least * page) / ((double)blocks * block + (double)pages * page);
        out->n_pages = least + (int64_t)(n * (double)pages);
        out->n_blocks = blocks_in(e, budget, per_block, out->n_pages, most);
        fits = !asked || out->n_blocks * size >= longest || length >= longest;
    }
    if (asked && out->n_blocks * size < longest) { // then only one sequence
        out->n_pages = least;
        out->n_blocks = blocks_in(e, budget, per_block, least, most);
    }
    if (out->n_blocks == most && block > 0.0) { // more blocks would be of no use
        out->n_pages = (int64_t)((budget - (double)most * block) / page);
    }
    out->n_pages = lesser(out->n_pages, out->n_blocks);
}

/* With a given number of blocks, pages in the proportion that `divide` would choose. */
static int64_t pages_beside(const struct engine *e, int64_t n_blocks)
{
    const struct scheduler_limits l = limits_of(e);
    const int64_t blocks = greater(assumed_length(&l) / l.block_tokens, 1);
    return windows_least_pages(&l) + n_blocks * windows_span(&l, 1) / blocks;
}

static enum status refuse_few(const struct engine *e, int64_t least, struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "window-pages is %d: this model needs at least %" PRId64
                   ", for the windows and the rows of one sequence",
                   e->options.window_pages, least);
}

/* The number of pages is the same on all nodes, because it follows from the least budget. */
enum status engine_windows_choose(struct engine *e, size_t budget, size_t per_block, int64_t most,
                                  struct engine_split *out, struct err *err)
{
    struct engine_windows *w = &e->windows;
    const int64_t asked = e->options.window_pages, given = e->options.num_gpu_blocks_override;
    *out = (struct engine_split){0};
    if (w->window == 0 && w->chunk == 0) {
        return OK;
    }
    const struct scheduler_limits l = limits_of(e);
    const int64_t least = windows_least_pages(&l);
    int64_t bytes = (int64_t)budget;
    TRY(count_page_bytes(e));
    TRY(engine_agree(e, &bytes, err));
    const int64_t single = given > 0 ? given : lesser(bytes / (int64_t)per_block, most);
    if (asked > 0 && asked < least) {
        return refuse_few(e, least, err);
    }
    if (given > 0) {
        *out = (struct engine_split){given, asked > 0 ? asked : pages_beside(e, given)};
    } else if (asked > 0) {
        out->n_pages = asked;
        out->n_blocks = blocks_in(e, (double)bytes, (double)per_block, asked, most);
    } else {
        divide(e, (double)bytes, (double)per_block, most, out);
    }
    const bool pays =
        given > 0 ? worth * (double)out->n_pages <= (double)given
                  : (double)out->n_blocks >= worth * (double)single && out->n_pages >= least;
    if (asked <= 0 && !pays) {
        *out = (struct engine_split){0};
        return OK;
    }
    w->n_pages = (int32_t)lesser(out->n_pages, (int64_t)INT32_MAX / l.block_tokens);
    log_info("layers with a window have pages of their own: %d of them, for %" PRId64
             " blocks of %d tokens; one kind of block would be %" PRId64,
             w->n_pages, out->n_blocks, l.block_tokens, single);
    return OK;
}

void engine_windows_limits(const struct engine *e, struct scheduler_limits *out)
{
    const struct engine_windows *w = &e->windows;
    if (w->n_pages > 0) {
        out->n_pages = w->n_pages;
        out->window = w->window;
        out->window_chunk = w->chunk;
        out->window_rows = limits_of(e).window_rows;
    }
}
