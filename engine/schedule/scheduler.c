#include "engine/schedule/scheduler.h"

#include "engine/schedule/holdings.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------- */

void scheduler_init(struct scheduler *s, const struct scheduler_limits *limits)
{
    *s = (struct scheduler){.limits = *limits};
    size_t lanes = (size_t)limits->max_lanes, n = (size_t)limits->max_sequences;
    kv_pool_init(&s->pool, limits->n_blocks, NULL, NULL);
    prefix_cache_init(&s->cache, &s->pool, limits->block_tokens, limits->hash_key);
    s->sequences = xcalloc(n, sizeof *s->sequences);
    s->free_sequences = xcalloc(n, sizeof *s->free_sequences);
    for (size_t i = 0; i < n; i++) {
        s->sequences[i].index = (int32_t)i;
        s->free_sequences[n - 1 - i] = &s->sequences[i];
    }
    s->n_free_sequences = limits->max_sequences;
    s->order.prev = s->order.next = &s->order;
    s->free_lanes = xcalloc(lanes, sizeof *s->free_lanes);
    for (int32_t i = 0; i < limits->max_lanes; i++) {
        s->free_lanes[i] = limits->max_lanes - 1 - i;
    }
    s->n_free_lanes = limits->max_lanes;
    s->lane_blocks =
        xcalloc(lanes * (size_t)limits->max_blocks_per_lane, sizeof *s->lane_blocks);
    s->draft_valid = xcalloc((size_t)limits->n_blocks, sizeof *s->draft_valid);
    s->draft_producer = xcalloc((size_t)limits->n_blocks, sizeof *s->draft_producer);
    s->pending_copies = xcalloc(lanes, sizeof *s->pending_copies);
    s->pending_for = xcalloc(lanes, sizeof *s->pending_for);
    s->scratch = xcalloc((size_t)limits->n_blocks, sizeof *s->scratch);
    s->hits = xcalloc((size_t)limits->max_blocks_per_lane, sizeof *s->hits);
    s->known = xcalloc((size_t)limits->max_len, sizeof *s->known);
}

void scheduler_deinit(struct scheduler *s)
{
    prefix_cache_deinit(&s->cache);
    kv_pool_deinit(&s->pool);
    free(s->sequences);
    free(s->free_sequences);
    free(s->free_lanes);
    free(s->lane_blocks);
    free(s->draft_valid);
    free(s->draft_producer);
    free(s->pending_copies);
    free(s->pending_for);
    free(s->scratch);
    free(s->hits);
    free(s->known);
    *s = (struct scheduler){0};
}

void plan_init(struct plan *p, const struct scheduler_limits *limits)
{
    size_t lanes = (size_t)limits->max_lanes;
    *p = (struct plan){0};
    p->entries = xcalloc(lanes, sizeof *p->entries);
    p->forks = xcalloc(lanes, sizeof *p->forks);
    p->grants = xcalloc(2 * lanes, sizeof *p->grants);
    p->copies = xcalloc(lanes, sizeof *p->copies);
    p->failed = xcalloc(lanes, sizeof *p->failed);
}

void plan_deinit(struct plan *p)
{
    free(p->entries);
    free(p->forks);
    free(p->grants);
    free(p->copies);
    free(p->failed);
    *p = (struct plan){0};
}

/* ---- requests come ------------------------------------------------------------------------ */

static void order_insert(struct scheduler *s, struct sequence *seq)
{
    struct sequence *at = s->order.prev; // new ones mostly belong at the end
    while (at != &s->order && sequence_comes_before(seq, at)) {
        at = at->prev;
    }
    seq->prev = at;
    seq->next = at->next;
    at->next->prev = seq;
    at->next = seq;
}

struct sequence *scheduler_add(struct scheduler *s, struct engine_request *r, int32_t sample)
{
    if (s->n_free_sequences == 0) {
        return NULL;
    }
    struct sequence *seq = s->free_sequences[--s->n_free_sequences];
    int32_t index = seq->index, room = s->limits.max_len - r->n_prompt;
    *seq = (struct sequence){
        .request = r, .output = r->outputs ? &r->outputs[sample] : NULL, .sample = sample,
        .index = index, .state = SEQ_WAITING, .priority = r->priority,
        .order = (r->order << 8) + (uint64_t)sample, .n_prompt = r->n_prompt,
        .n_known = r->n_prompt, .lane = -1, .spec_doubt = -1.0f,
        .max_tokens = r->params.max_tokens < room ? r->params.max_tokens : room,
        .root = prefix_cache_root(&s->cache, r->cache_salt)};
    if (r->pool != POOL_NONE) {
        seq->max_tokens = 0;
    }
    order_insert(s, seq);
    s->n_waiting++;
    s->waiting_tokens += r->n_prompt;
    return seq;
}

/* ---- admission ---------------------------------------------------------------------------- */

enum admission { ADMITTED, DEFERRED, NO_ROOM };

/* Starts a sequence that has its lane: the cached blocks found (s->hits), and `need` new ones. */
static void begin(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_hit,
                  int32_t need)
{
    int32_t *blocks = scheduler_blocks(s, seq);
    memcpy(blocks, s->hits, (size_t)n_hit * sizeof *blocks);
    seq->state = SEQ_RUNNING;
    seq->n_blocks = n_hit;
    seq->n_granted = 0;
    for (; need > 0; need--) {
        blocks[seq->n_blocks++] = holdings_take_block(s);
    }
    seq->n_computed = n_hit * s->limits.block_tokens;
    seq->draft_marked = 0;
    seq->draft_computed = 0; // holdings_draft_rows walks over what the blocks have
    seq->n_entered = n_hit;
    holdings_enter(s, seq, seq->n_known / s->limits.block_tokens, NODE_PENDING);
    s->n_running++;
    s->n_waiting--;
    s->waiting_tokens -= seq->n_prompt;
    if (!seq->was_admitted) {
        seq->was_admitted = true;
        s->prefix_queries += seq->n_prompt;
        s->prefix_hits += seq->n_computed;
        if (seq->sample == 0) {
            seq->request->n_cached = seq->n_computed;
        }
    }
    holdings_grant(s, p, seq, true);
}

/* Gives a waiting sequence a lane, the cached front of its tokens, and blocks for all the rest, so
 * that a chunked prompt never stops half-way for want of blocks. */
static enum admission admit(struct scheduler *s, struct plan *p, struct sequence *seq)
{
    if (seq->n_inflight > 0) {
        return DEFERRED; // a token of it is still on its way
    }
    if (!holdings_has_lane(s, seq)) {
        return NO_ROOM;
    }
    uint64_t chain = seq->root;
    struct sequence *producer = NULL;
    int32_t n_hit = 0;
    if (holdings_reads_cache(s, seq)) {
        n_hit = holdings_look_up(s, seq, s->hits, &chain, &producer);
    }
    if (producer && !holdings_may_preempt(s, seq, producer)) {
        return DEFERRED;
    }
    for (int32_t i = 0; i < n_hit; i++) {
        kv_pool_retain(&s->pool, s->hits[i]); // before any allocation could take them
    }
    int32_t need = holdings_blocks_for(s, seq->n_known) - n_hit;
    if (!holdings_make_room(s, p, seq, need)) {
        for (int32_t i = n_hit - 1; i >= 0; i--) {
            kv_pool_release(&s->pool, s->hits[i]);
        }
        return NO_ROOM;
    }
    if (producer && producer->state == SEQ_RUNNING) {
        holdings_preempt(s, p, producer); // its turn may be far off: this one computes, it waits
    }
    seq->lane = holdings_take_lane(s, p, seq);
    seq->chain = chain;
    begin(s, p, seq, n_hit, need);
    return ADMITTED;
}

/* ---- n > 1 -------------------------------------------------------------------------------- */

/* The prompt's rows end in this entry: siblings that still wait share its full blocks and draw
 * their first token from its last row; a partial last block is copied before the next step. */
static void fork_siblings(struct scheduler *s, struct plan *p, int32_t entry)
{
    struct sequence *leader = p->entries[entry].seq;
    int32_t n_full = leader->n_prompt / s->limits.block_tokens;
    bool partial = leader->n_prompt % s->limits.block_tokens != 0;
    for (struct sequence *c = leader->next; c != &s->order && c->request == leader->request;
         c = c->next) {
        if (c->state != SEQ_WAITING || c->was_admitted || c->n_known != c->n_prompt ||
            !sequence_wants_token(c)) {
            continue;
        }
        if (s->n_free_lanes == 0 || kv_pool_available(&s->pool) < partial ||
            p->n_draws >= s->limits.max_draws) {
            return; // they come later as sequences of their own, and find the prompt cached
        }
        c->lane = s->free_lanes[--s->n_free_lanes];
        int32_t *blocks = scheduler_blocks(s, c);
        const int32_t *shared = scheduler_blocks(s, leader);
        for (int32_t i = 0; i < n_full; i++) {
            kv_pool_retain(&s->pool, shared[i]);
            blocks[i] = shared[i];
        }
        c->n_blocks = n_full;
        if (partial) {
            blocks[c->n_blocks++] = holdings_take_block(s);
            s->pending_copies[s->n_pending_copies] =
                (struct block_copy){shared[n_full], blocks[n_full]};
            s->pending_for[s->n_pending_copies++] = c;
        }
        c->state = SEQ_RUNNING;
        c->was_admitted = true;
        c->n_granted = 0;
        c->n_computed = c->n_prompt;
        c->draft_computed = c->draft_marked = 0;
        c->n_flight = 1;
        c->n_inflight = 1;
        c->planned_in = s->n_plans;
        c->chain = leader->chain;
        c->n_entered = n_full < leader->n_entered ? n_full : leader->n_entered;
        s->n_running++;
        s->n_waiting--;
        s->waiting_tokens -= c->n_prompt;
        s->prefix_queries += c->n_prompt;
        s->prefix_hits += c->n_prompt;
        holdings_grant(s, p, c, true);
        p->forks[p->n_forks++] = (struct plan_fork){c, entry};
        p->n_draws++;
    }
}

/* ---- the plan ----------------------------------------------------------------------------- */

/* Rows with logits among `n_rows` new rows of the sequence, given whether they reach the end. */
static int32_t out_rows(const struct sequence *seq, int32_t n_rows, int32_t n_drafts, bool draws)
{
    const struct engine_request *r = seq->request;
    if (r->pool == POOL_MEAN || (r->params.prompt_logprobs && seq->n_computed < seq->n_prompt)) {
        return n_rows;
    }
    return draws ? 1 + n_drafts : 0;
}

static void add_entry(struct scheduler *s, struct plan *p, struct sequence *seq, int32_t n_rows,
                      int32_t n_drafts)
{
    bool reaches = seq->n_computed + n_rows - n_drafts == sequence_future(seq);
    bool draws = reaches && (sequence_wants_token(seq) || seq->request->pool != POOL_NONE);
    int32_t n_out = out_rows(seq, n_rows, n_drafts, draws);
    int32_t entry = p->n_entries++;
    p->entries[entry] = (struct plan_entry){seq, seq->n_computed, n_rows, n_drafts, draws};
    p->n_rows += n_rows;
    p->n_out += n_out;
    p->n_draws += n_out;
    bool ends_prompt = reaches && seq->n_known == seq->n_prompt && seq->n_flight == 0;
    seq->n_computed += n_rows;
    seq->n_inflight++;
    seq->planned_in = s->n_plans;
    seq->n_verifying = n_drafts;
    if (draws && seq->request->pool == POOL_NONE) {
        seq->n_flight++;
    }
    if (ends_prompt && seq->request->n > 1 && seq->request->pool == POOL_NONE &&
        s->limits.prefix_cache) {
        fork_siblings(s, p, entry);
    }
}

/* One row short of what it knows, and that row lies behind the prompt. */
static bool is_decoding(const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->n_verifying == 0 && seq->n_computed >= seq->n_prompt &&
           sequence_future(seq) - seq->n_computed == 1 &&
           !(seq->waits_for_token && seq->n_flight > 0);
}

/* Rows of a step for a prompt, or for what was preempted; without chunks all of them for what no
 * step holds whole. */
static int32_t rows_owed(const struct scheduler *s, const struct sequence *seq)
{
    int32_t need = sequence_future(seq) - seq->n_computed, most = s->limits.max_rows;
    bool ready = seq->state == SEQ_RUNNING && seq->n_verifying == 0;
    if (!ready || need < 1 || (need == 1 && seq->n_computed >= seq->n_prompt)) {
        return 0;
    }
    if (out_rows(seq, need, 0, false) > 0) {
        most = s->limits.max_out < most ? s->limits.max_out : most;
    }
    return need <= most ? need : s->limits.chunked ? most : s->limits.max_rows;
}

/* Decode rows of everything that runs. Drafts take no row that a later one's decode or an earlier
 * prompt needs; nor does a decode without chunks, where the prompt would get none. */
static void plan_decodes(struct scheduler *s, struct plan *p)
{
    int32_t n_owed = 0, n_behind = 0;
    for (const struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        n_behind += is_decoding(seq);
    }
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (!is_decoding(seq)) {
            int32_t owed = rows_owed(s, seq), left = s->limits.max_rows - p->n_rows - n_owed;
            n_owed += owed <= left ? owed : s->limits.chunked && left > 0 ? left : 0;
            continue;
        }
        n_behind--;
        bool yields = !s->limits.chunked && p->n_rows + n_owed >= s->limits.max_rows;
        if (!sequence_wants_token(seq) || yields || p->n_rows >= s->limits.max_rows ||
            p->n_out >= s->limits.max_out || p->n_draws >= s->limits.max_draws) {
            continue;
        }
        int32_t room = s->limits.max_rows - p->n_rows - 1 - n_owed - n_behind;
        int32_t out_room = s->limits.max_out - p->n_out - 1 - n_behind, drafts = seq->n_drafts;
        room = room < out_room ? room : out_room;
        room = room > 0 ? room : 0;
        drafts = drafts < room ? drafts : room;
        int32_t end = sequence_future(seq);
        if (drafts > 0 && (kv_pool_available(&s->pool) <
                           holdings_blocks_for(s, end + drafts) - seq->n_blocks)) {
            drafts = 0; // drafts are the first thing given back when blocks are short
        }
        if (holdings_grow(s, p, seq, end + drafts)) {
            add_entry(s, p, seq, 1 + drafts, drafts);
        }
        seq->n_drafts = 0;
    }
}

/* The largest chunk that the budgets leave for a sequence that needs `need` rows; 0: none. */
static int32_t chunk_of(const struct scheduler *s, const struct plan *p,
                        const struct sequence *seq, int32_t need)
{
    int32_t rows = s->limits.max_rows - p->n_rows;
    int32_t outs = s->limits.max_out - p->n_out;
    int32_t draws = s->limits.max_draws - p->n_draws;
    int32_t n = need < rows ? need : rows;
    if (outs < 1 || draws < 1) {
        return 0;
    }
    outs = outs < draws ? outs : draws;
    if (out_rows(seq, need, 0, false) > 0 && n > outs) {
        n = outs;
    }
    if (!s->limits.chunked && n < need && p->n_rows > 0) {
        return 0; // whole prompts only, unless one is longer than any step
    }
    return n;
}

/* Prompt chunks, restores, and admission, in the total order. */
static void plan_chunks(struct scheduler *s, struct plan *p)
{
    enum { MAX_REFUSED = 16 }; // chosen: bounds the work of a step when nothing fits
    int32_t n_refused = 0;
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (p->n_rows >= s->limits.max_rows || n_refused >= MAX_REFUSED) {
            return;
        }
        bool waited = seq->state == SEQ_WAITING;
        if (waited) {
            bool fits = chunk_of(s, p, seq, seq->n_known) > 0;
            enum admission a = fits ? admit(s, p, seq) : NO_ROOM;
            n_refused += a == NO_ROOM;
            if (!fits && !s->limits.chunked) {
                return; // later ones would fill each step, and it would wait for ever
            }
            if (a != ADMITTED) {
                continue;
            }
        }
        if (seq->state != SEQ_RUNNING || seq->n_verifying > 0) {
            continue;
        }
        int32_t need = sequence_future(seq) - seq->n_computed;
        bool decoding = need == 1 && seq->n_computed >= seq->n_prompt;
        if (need < 1 || (decoding && !waited)) {
            continue;
        }
        int32_t n = chunk_of(s, p, seq, need);
        if (n > 0) {
            add_entry(s, p, seq, n, 0);
        } else if (!s->limits.chunked) {
            return;
        }
    }
}

/* Sequences that wait while later ones run. What decodes is planned first, and what is planned is
 * not taken: so they must get their room before, or a stream of small requests would keep a large
 * one out for ever. */
static void admit_overtaken(struct scheduler *s, struct plan *p)
{
    int32_t n_behind = s->n_running, rows = s->limits.max_rows - s->n_running;
    for (struct sequence *seq = s->order.next; seq != &s->order && n_behind > 0 && rows > 0;
         seq = seq->next) {
        if (seq->lane >= 0) {
            n_behind--;
        }
        if (seq->state != SEQ_WAITING) {
            continue;
        }
        int32_t n_running = s->n_running;
        enum admission a = admit(s, p, seq);
        if (a == NO_ROOM) {
            return;
        }
        if (a == ADMITTED) {
            n_behind -= n_running + 1 - s->n_running; // who was preempted for it
            rows -= sequence_future(seq) - seq->n_computed;
        }
    }
}

/* Everything the plan covers turns valid: later steps run behind it in the same order. */
static void publish(struct scheduler *s, const struct plan *p)
{
    for (int32_t e = 0; e < p->n_entries; e++) {
        const struct plan_entry *entry = &p->entries[e];
        const int32_t *blocks = scheduler_blocks(s, entry->seq);
        int32_t size = s->limits.block_tokens, end = entry->first + entry->n_rows;
        for (int32_t i = entry->first / size; (i + 1) * size <= end; i++) {
            if (holdings_produces(s, entry->seq, blocks[i])) {
                prefix_cache_validate(&s->cache, blocks[i]);
            }
        }
    }
}

/* Nothing could be planned and nothing is in flight: the first in order can never run. */
static void fail_head(struct scheduler *s, struct plan *p)
{
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (seq->n_inflight > 0) {
            return;
        }
    }
    struct sequence *head = s->order.next;
    if (head != &s->order && head->state != SEQ_RETIRING) {
        p->failed[p->n_failed++] = head;
    }
}

static bool is_forked_now(const struct plan *p, const struct sequence *seq)
{
    for (int32_t i = 0; i < p->n_forks; i++) {
        if (p->forks[i].seq == seq) {
            return true;
        }
    }
    return false;
}

/* Copies for sequences that earlier plans forked: this step runs behind the one that stored the
 * prompt's last rows, and before their own first rows. */
static void take_copies(struct scheduler *s, struct plan *p)
{
    int32_t n = 0;
    while (n < s->n_pending_copies && !is_forked_now(p, s->pending_for[n])) {
        p->copies[p->n_copies++] = s->pending_copies[n++];
    }
    holdings_cut_copies(s, 0, n);
}

bool scheduler_plan(struct scheduler *s, struct plan *p)
{
    p->n_rows = p->n_out = p->n_draws = 0;
    p->n_entries = p->n_forks = p->n_grants = p->n_copies = p->n_failed = 0;
    s->n_plans++;
    admit_overtaken(s, p);
    plan_decodes(s, p);
    plan_chunks(s, p);
    if (p->n_entries == 0) {
        fail_head(s, p);
        return false;
    }
    take_copies(s, p);
    publish(s, p);
    return true;
}

void scheduler_trim(struct plan *p, struct plan_entry *entry, int32_t n_drafts)
{
    int32_t n = entry->n_drafts - n_drafts;
    ASSERT(n >= 0 && n_drafts >= 0);
    entry->n_drafts -= n;
    entry->n_rows -= n;
    entry->seq->n_computed -= n;
    entry->seq->n_verifying -= n;
    p->n_rows -= n;
    p->n_out -= n;
    p->n_draws -= n;
}

/* ---- results ------------------------------------------------------------------------------ */

void scheduler_commit(struct scheduler *s, struct sequence *seq)
{
    bool verified = seq->n_verifying > 0;
    seq->n_verifying = 0;
    if (seq->state != SEQ_RUNNING) {
        return;
    }
    if (verified) { // rows of rejected drafts are overwritten by the next step
        seq->n_computed = seq->n_known - 1;
    }
    // A block may be entered once all its tokens are known and their rows submitted.
    int32_t sure = seq->n_computed < seq->n_known ? seq->n_computed : seq->n_known;
    holdings_enter(s, seq, sure / s->limits.block_tokens, NODE_VALID);
}

static void free_sequence(struct scheduler *s, struct sequence *seq)
{
    if (seq->lane >= 0) {
        holdings_leave(s, seq);
    }
    seq->prev->next = seq->next;
    seq->next->prev = seq->prev;
    seq->state = SEQ_FREE;
    seq->request = NULL;
    seq->output = NULL;
    s->free_sequences[s->n_free_sequences++] = seq;
}

bool scheduler_retire(struct scheduler *s, struct sequence *seq)
{
    ASSERT(seq->state == SEQ_WAITING || seq->state == SEQ_RUNNING);
    if (seq->state == SEQ_WAITING) {
        s->n_waiting--;
        s->waiting_tokens -= seq->n_prompt;
    }
    seq->state = SEQ_RETIRING;
    if (seq->n_inflight > 0) {
        return false;
    }
    free_sequence(s, seq);
    return true;
}

bool scheduler_step_over(struct scheduler *s, struct sequence *seq)
{
    ASSERT(seq->n_inflight > 0);
    seq->n_inflight--;
    if (seq->state != SEQ_RETIRING || seq->n_inflight > 0) {
        return false;
    }
    free_sequence(s, seq);
    return true;
}

/* ---- the books ---------------------------------------------------------------------------- */

void scheduler_check(const struct scheduler *s)
{
    kv_pool_check(&s->pool);
    int32_t *held = xcalloc((size_t)s->limits.n_blocks, sizeof *held);
    bool *filled = xcalloc((size_t)s->limits.n_blocks, sizeof *filled);
    int32_t n_lanes = 0, n_running = 0, n_waiting = 0, n_live = 0;
    int64_t waiting_tokens = 0;
    for (const struct sequence *q = s->order.next; q != &s->order; q = q->next) {
        ASSERT(q->next->prev == q);
        ASSERT(q->next == &s->order || sequence_comes_before(q, q->next));
        n_live++;
        n_running += q->state == SEQ_RUNNING || (q->state == SEQ_RETIRING && q->lane >= 0);
        n_waiting += q->state == SEQ_WAITING;
        waiting_tokens += q->state == SEQ_WAITING ? q->n_prompt : 0;
        n_lanes += q->lane >= 0;
        ASSERT(q->n_computed <= sequence_future(q) + q->n_verifying);
        const int32_t *blocks =
            q->lane >= 0 ? s->lane_blocks + (size_t)q->lane * (size_t)s->limits.max_blocks_per_lane
                         : NULL;
        for (int32_t i = 0; blocks && i < q->n_blocks; i++) {
            held[blocks[i]]++;
            filled[blocks[i]] |= s->draft_producer[blocks[i]] == q->index;
        }
        ASSERT(q->state != SEQ_RUNNING || q->n_blocks * s->limits.block_tokens >= q->n_computed);
    }
    for (int32_t b = 0; b < s->limits.n_blocks; b++) {
        ASSERT(held[b] == s->pool.refs[b]);
        ASSERT(s->pool.cached[b] == (s->cache.nodes[b].state != NODE_NONE));
        ASSERT(s->cache.nodes[b].state != NODE_PENDING || held[b] > 0);
        ASSERT(held[b] == 0 || s->draft_producer[b] < 0 || filled[b]); // by one who holds it
    }
    ASSERT(n_lanes + s->n_free_lanes == s->limits.max_lanes);
    ASSERT(n_running == s->n_running && n_waiting == s->n_waiting);
    ASSERT(waiting_tokens == s->waiting_tokens);
    ASSERT(n_live + s->n_free_sequences == s->limits.max_sequences);
    free(held);
    free(filled);
}
