// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/held_windows.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/schedule/holdings.h"

#include <stdlib.h>
#include <string.h>

static bool is_on(const struct holdings *h)
{
    return h->limits->n_pages > 0;
}

/* Called when the pool reuses the id of an idle page. */
static void forget(void *arg, int32_t page)
{
    struct held_windows *w = arg;
    w->page_of[w->block_of[page]] = -1;
}

void held_windows_init(struct holdings *h)
{
    const struct scheduler_limits *l = h->limits;
    struct held_windows *w = &h->windows;
    const size_t entries = (size_t)l->max_lanes * (size_t)l->max_blocks_per_lane;
    *w = (struct held_windows){.n_reserved = 0};
    if (!is_on(h)) {
        return;
    }
    ASSERT(l->n_pages >= windows_least_pages(l) && l->state_block == 0);
    kv_pool_init(&w->pages, l->n_pages, forget, w);
    w->page_of = xmalloc((size_t)l->n_blocks * sizeof *w->page_of);
    memset(w->page_of, 0xFF, (size_t)l->n_blocks * sizeof *w->page_of);
    w->block_of = xcalloc((size_t)l->n_pages, sizeof *w->block_of);
    w->tables = xcalloc(entries, sizeof *w->tables);
    w->twins = xcalloc(entries, sizeof *w->twins);
}

void held_windows_deinit(struct holdings *h)
{
    struct held_windows *w = &h->windows;
    if (is_on(h)) {
        kv_pool_deinit(&w->pages);
    }
    free(w->page_of);
    free(w->block_of);
    free(w->tables);
    free(w->twins);
    *w = (struct held_windows){0};
}

/* ---- pages -------------------------------------------------------------------------------- */

/* Holds the block's page; the block gets one if it has none. */
static int32_t see(struct holdings *h, int32_t block)
{
    struct held_windows *w = &h->windows;
    int32_t page = w->page_of[block];
    if (page >= 0) {
        kv_pool_retain(&w->pages, page);
        return page;
    }
    page = kv_pool_alloc(&w->pages);
    w->page_of[block] = page;
    w->block_of[page] = block;
    if (h->pool.cached[block]) {
        kv_pool_set_cached(&w->pages, page, true);
    }
    return page;
}

/* level: when the page is reused, if it is idle now. */
static void unsee(struct holdings *h, int32_t block, int level)
{
    struct held_windows *w = &h->windows;
    const int32_t page = w->page_of[block];
    ASSERT(page >= 0);
    const bool last = w->pages.refs[page] == 1, cached = w->pages.cached[page];
    if (last && cached) {
        idle_order_set_level(&w->pages.idle, page, level);
    }
    kv_pool_release(&w->pages, page);
    if (last && !cached) {
        w->page_of[block] = -1;
    }
}

void held_windows_entered(struct holdings *h, int32_t block)
{
    if (is_on(h) && h->windows.page_of[block] >= 0) {
        kv_pool_set_cached(&h->windows.pages, h->windows.page_of[block], true);
    }
}

void held_windows_gone(struct holdings *h, int32_t block)
{
    struct held_windows *w = &h->windows;
    if (is_on(h) && w->page_of[block] >= 0) {
        const bool idle = w->pages.refs[w->page_of[block]] == 0;
        kv_pool_set_cached(&w->pages, w->page_of[block], false);
        if (idle) {
            w->page_of[block] = -1;
        }
    }
}

/* ---- begin -------------------------------------------------------------------------------- */

/* The first block that a row at this position sees. */
static int32_t first_seen(const struct holdings *h, int32_t pos)
{
    return windows_first(h->limits, pos) / h->limits->block_tokens;
}

/* The longest front whose last blocks have the pages that the row after it sees. */
void held_windows_find(const struct holdings *h, struct cached_front *front)
{
    int32_t n_pages = 0; // number of consecutive blocks with pages that end here
    if (!is_on(h)) {
        return;
    }
    front->n_blocks = 0;
    for (int32_t n = 1; n <= front->n_matched; n++) {
        n_pages = h->windows.page_of[h->hits[n - 1]] >= 0 ? n_pages + 1 : 0;
        if (n - first_seen(h, n * h->limits->block_tokens) <= n_pages) {
            front->n_blocks = n;
        }
    }
}

/* Where the pages of a front begin that are of use. */
static int32_t front_first(const struct holdings *h, const struct cached_front *front)
{
    return first_seen(h, front->n_blocks * h->limits->block_tokens);
}

void held_windows_keep_front(struct holdings *h, const struct cached_front *front)
{
    for (int32_t i = front_first(h, front); is_on(h) && i < front->n_blocks; i++) {
        see(h, h->hits[i]);
    }
    if (is_on(h) && front->n_part > 0) {
        see(h, front->part);
    }
}

void held_windows_drop_part(struct holdings *h, const struct cached_front *front)
{
    if (is_on(h) && front->n_part > 0) {
        unsee(h, front->part, IDLE_ORDINARY);
    }
}

void held_windows_drop_front(struct holdings *h, const struct cached_front *front)
{
    held_windows_drop_part(h, front);
    for (int32_t i = front->n_blocks - 1; is_on(h) && i >= front_first(h, front); i--) {
        unsee(h, h->hits[i], IDLE_ORDINARY);
    }
}

static struct window_twin *twins_of(const struct holdings *h, const struct sequence *seq)
{
    return h->windows.twins + (size_t)seq->lane * (size_t)h->limits->max_blocks_per_lane;
}

static void grant(struct holdings *h, struct plan *p, struct sequence *seq, int32_t first)
{
    if (first < seq->page_end) {
        ASSERT(p->n_pages < max_page_grants(h->limits));
        p->pages[p->n_pages++] = (struct plan_pages){seq, first, seq->page_end - first};
    }
}

/* Extends the range of pages that the sequence sees up to block `end`. */
static void see_up_to(struct holdings *h, struct sequence *seq, int32_t end)
{
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t *table = holdings_pages(h, seq);
    for (; seq->page_end < end; seq->page_end++) {
        table[seq->page_end] = see(h, blocks[seq->page_end]);
    }
}

/* Attention to a common front of a group reads the table of one member for all, so the table also
 * names the pages that this sequence itself does not see. */
void held_windows_begin(struct holdings *h, struct plan *p, struct sequence *seq,
                        const struct cached_front *front)
{
    if (!is_on(h)) {
        return;
    }
    const int32_t *blocks = holdings_blocks(h, seq);
    int32_t *table = holdings_pages(h, seq);
    const int32_t f = front->n_blocks;
    for (int32_t i = 0; i < f; i++) {
        const int32_t page = h->windows.page_of[blocks[i]];
        table[i] = greater(page, 0);
    }
    memset(twins_of(h, seq), 0,
           (size_t)h->limits->max_blocks_per_lane * sizeof(struct window_twin));
    seq->page_first = front_first(h, front);
    seq->page_end = f;
    seq->n_resumed = front->n_matched;
    seq->n_reserved = 0;
    held_windows_reserve(h, seq, windows_pages(h->limits, seq->n_known, 0));
    if (front->n_part > 0) { // the copy needs a page to write to
        see_up_to(h, seq, f + 1);
    }
    grant(h, p, seq, 0);
}

void held_windows_fork(struct holdings *h, struct plan *p, struct sequence *seq,
                       const struct sequence *leader)
{
    if (!is_on(h)) {
        return;
    }
    const int32_t n_full = leader->n_prompt / h->limits->block_tokens;
    const int32_t *blocks = holdings_blocks(h, seq);
    memcpy(holdings_pages(h, seq), holdings_pages(h, leader), (size_t)n_full * sizeof(int32_t));
    memset(twins_of(h, seq), 0,
           (size_t)h->limits->max_blocks_per_lane * sizeof(struct window_twin));
    seq->page_first = first_seen(h, leader->n_prompt);
    seq->page_end = n_full;
    seq->n_resumed = n_full;
    seq->n_reserved = 0;
    held_windows_reserve(h, seq, windows_pages(h->limits, leader->n_prompt + 1, 1));
    for (int32_t i = seq->page_first; i < n_full; i++) {
        see(h, blocks[i]);
    }
    see_up_to(h, seq, seq->n_blocks);
    grant(h, p, seq, 0);
}

/* ---- copies ------------------------------------------------------------------------------- */

void held_windows_hold_copy(struct holdings *h, int32_t from, bool is_held)
{
    if (is_on(h)) {
        h->windows.n_reserved++;
        if (!is_held) {
            see(h, from);
        }
    }
}

void held_windows_end_copy(struct holdings *h, int32_t from)
{
    if (is_on(h)) {
        unsee(h, from, IDLE_ORDINARY);
        h->windows.n_reserved--;
    }
}

/* ---- continue ----------------------------------------------------------------------------- */

void held_windows_reserve(struct holdings *h, struct sequence *seq, int32_t n_pages)
{
    h->windows.n_reserved += n_pages - seq->n_reserved;
    seq->n_reserved = n_pages;
    ASSERT(h->windows.n_reserved <= h->limits->n_pages);
}

/* Which pages are worth keeping when the window has passed: those before places where another
 * sequence is likely to begin, which are the end of this prompt and where this sequence began. */
static int level_of(const struct holdings *h, const struct sequence *seq, int32_t i)
{
    const int32_t size = h->limits->block_tokens;
    const bool ends_prompt =
        i >= first_seen(h, (seq->n_prompt - 1) / size * size) && i * size < seq->n_prompt;
    const bool ends_front = i >= first_seen(h, seq->n_resumed * size) && i < seq->n_resumed;
    return ends_prompt || ends_front ? IDLE_ORDINARY : IDLE_RELEASED;
}

/* Steps in flight may still read the pages released here, but every step that could write to them
 * executes later. */
void held_windows_shift(struct holdings *h, struct sequence *seq, int32_t n_rows)
{
    if (!is_on(h)) {
        return;
    }
    const int32_t *blocks = holdings_blocks(h, seq);
    const int32_t first = first_seen(h, seq->n_computed);
    const int32_t end = holdings_blocks_for(h, seq->n_computed + n_rows);
    for (; seq->page_first < first && seq->page_first < seq->page_end; seq->page_first++) {
        unsee(h, blocks[seq->page_first], level_of(h, seq, seq->page_first));
    }
    for (; seq->page_end > end && seq->page_end > seq->page_first; seq->page_end--) {
        unsee(h, blocks[seq->page_end - 1], IDLE_RELEASED); // slots of rejected drafts
    }
}

void holdings_plan_rows(struct holdings *h, struct plan *p, struct sequence *seq, int32_t n_rows)
{
    if (!is_on(h)) {
        return;
    }
    held_windows_shift(h, seq, n_rows);
    const int32_t first = seq->page_end;
    see_up_to(h, seq, holdings_blocks_for(h, seq->n_computed + n_rows));
    ASSERT(seq->page_end - seq->page_first <= seq->n_reserved);
    grant(h, p, seq, first);
}

void holdings_narrow(struct holdings *h, struct sequence *seq)
{
    const int32_t least = windows_pages(h->limits, seq->n_known, 0);
    // Before drafts are verified, the next row is not known.
    if (seq->n_reserved > least && seq->n_verifying == 0) {
        held_windows_shift(h, seq, 0);
        held_windows_reserve(h, seq, least);
    }
}

int32_t holdings_fit_rows(struct holdings *h, struct sequence *seq, int32_t n_rows)
{
    const struct scheduler_limits *l = h->limits;
    if (l->n_pages == 0) {
        return n_rows;
    }
    held_windows_shift(h, seq, n_rows);
    const int32_t room = seq->n_reserved + l->n_pages - h->windows.n_reserved;
    const int32_t wanted = windows_pages(l, seq->n_computed + n_rows, n_rows);
    const int32_t least = windows_pages(l, seq->n_known, 0); // as when it began
    const int32_t most = greater(wanted, least);
    held_windows_reserve(h, seq, lesser(most, room));
    const int32_t first = windows_first(l, seq->n_computed) / l->block_tokens;
    const int32_t fit = (first + seq->n_reserved) * l->block_tokens - seq->n_computed;
    ASSERT(fit > 0);
    return lesser(n_rows, fit);
}

bool holdings_sees(const struct holdings *h, const struct sequence *seq, int32_t pos)
{
    const struct scheduler_limits *l = h->limits;
    return l->n_pages == 0 || seq->page_first <= windows_first(l, pos) / l->block_tokens;
}

void held_windows_leave(struct holdings *h, struct sequence *seq)
{
    if (!is_on(h)) {
        return;
    }
    const int32_t *blocks = holdings_blocks(h, seq);
    while (seq->page_end > seq->page_first) {
        unsee(h, blocks[--seq->page_end], IDLE_ORDINARY);
    }
    held_windows_reserve(h, seq, 0);
}

/* ---- blocks without pages ----------------------------------------------------------------- */

void held_windows_mark(struct holdings *h, const struct sequence *seq, int32_t i, int32_t node)
{
    if (is_on(h)) {
        twins_of(h, seq)[i] = (struct window_twin){h->cache.nodes[node].uid, node};
    }
}

/* Without this, a front that others hold but whose pages are gone would be computed again by every
 * sequence that begins with it. A kept block stays. */
void held_windows_replace(struct holdings *h, const struct sequence *seq, int32_t i)
{
    if (!is_on(h)) {
        return;
    }
    const int32_t own = holdings_blocks(h, seq)[i];
    const struct window_twin twin = twins_of(h, seq)[i];
    const struct prefix_node *node = &h->cache.nodes[twin.block];
    const int32_t *pages = h->windows.page_of;
    if (twin.uid == 0 || node->uid != twin.uid || node->state != NODE_VALID ||
        h->pool.cached[own] || pages[own] < 0 || pages[twin.block] >= 0 ||
        h->retention.keeper[twin.block] >= 0) {
        return;
    }
    const int32_t owner = h->pool.idle.user[twin.block];
    prefix_cache_move(&h->cache, twin.block, own);
    retention_entered(&h->retention, own, owner);
    held_windows_entered(h, own);
}

/* ---- checks ------------------------------------------------------------------------------- */

/* For tests: verifies that pages are held as often as sequences and copies see them. */
void held_windows_check(const struct holdings *h, const struct sequence *order,
                        const int32_t *sources, int32_t n_sources)
{
    const struct held_windows *w = &h->windows;
    if (!is_on(h)) {
        return;
    }
    int32_t *held = xcalloc((size_t)h->limits->n_pages, sizeof *held);
    int32_t n_reserved = n_sources;
    kv_pool_check(&w->pages);
    for (const struct sequence *q = order->next; q != order; q = q->next) {
        if (q->lane < 0) {
            continue;
        }
        ASSERT(q->page_end - q->page_first <= q->n_reserved && q->page_end <= q->n_blocks);
        for (int32_t i = q->page_first; i < q->page_end; i++) {
            const int32_t page = w->page_of[holdings_blocks(h, q)[i]];
            ASSERT(page >= 0 && holdings_pages(h, q)[i] == page);
            held[page]++;
        }
        n_reserved += q->n_reserved;
    }
    for (int32_t i = 0; i < n_sources; i++) {
        held[w->page_of[sources[i]]]++;
    }
    for (int32_t page = 0; page < h->limits->n_pages; page++) {
        const int32_t block = w->block_of[page];
        ASSERT(held[page] == w->pages.refs[page]);
        ASSERT(held[page] == 0 || w->page_of[block] == page);
        ASSERT(!w->pages.cached[page] || (w->page_of[block] == page && h->pool.cached[block]));
    }
    ASSERT(n_reserved == w->n_reserved && n_reserved <= h->limits->n_pages);
    free(held);
}
