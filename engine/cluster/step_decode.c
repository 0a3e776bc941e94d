// SPDX-License-Identifier: Apache-2.0
/* Reads a step from the wire: int32s in memory layout and in a fixed order; a list is a count and
 * its items. A whole step consists of: slot, kind, begun, the updates (lanes, copies, state copies,
 * window pages, moves; absent if the step was already begun), the wanted outputs, the draft passes,
 * and the target's pass. A level has one pass instead of all passes; a frame of draws has only
 * masks. Words of a tree's mask have 8 bytes and may need padding before them; everything else is
 * aligned to 4.
 */
#include "engine/cluster/step_wire.h"

#include <string.h>

/* `bad` names the first error; all reads after it return zero. */
struct reader {
    const struct step_sizes *sizes;
    const unsigned char *at;
    size_t left;
    const char *bad;
};

static void refuse(struct reader *r, const char *what)
{
    if (!r->bad) {
        r->bad = what;
    }
}

/* NULL after the first error, so that callers need only one check at the end. */
static const void *take(struct reader *r, size_t n_bytes)
{
    if (r->bad || n_bytes > r->left) {
        refuse(r, "its end");
        return NULL;
    }
    const void *p = r->at;
    r->at += n_bytes;
    r->left -= n_bytes;
    return p;
}

/* An int32 in [least, most]; `least` after an error. */
static int32_t get(struct reader *r, int64_t least, int64_t most, const char *what)
{
    int32_t v = (int32_t)least;
    const void *p = take(r, sizeof v);
    if (p) {
        memcpy(&v, p, sizeof v);
    }
    if (v < least || v > most) {
        refuse(r, what);
        return (int32_t)least;
    }
    return v;
}

static void check(struct reader *r, int32_t v, int64_t least, int64_t most, const char *what)
{
    if (v < least || v > most) {
        refuse(r, what);
    }
}

/* A list of n ids, used where it lies in the message; each is in [0, end). */
static const int32_t *get_ids(struct reader *r, int32_t n, int64_t end, const char *what)
{
    const int32_t *ids = take(r, (size_t)n * sizeof *ids);
    for (int32_t i = 0; ids && i < n; i++) {
        check(r, ids[i], 0, end - 1, what);
    }
    return r->bad ? NULL : ids;
}

/* The members in the order of put_params (step_encode.c). Counts and ids are checked as they are
 * read, and then the whole as for a request. */
static void get_params(struct reader *r, struct sampling_params *p)
{
    float reals[6] = {0};
    const void *f = take(r, sizeof reals);
    if (f) {
        memcpy(reals, f, sizeof reals);
    }
    int32_t vocab = r->sizes->vocab;
    *p = (struct sampling_params){.temperature = reals[0],
                                  .top_p = reals[1],
                                  .min_p = reals[2],
                                  .repetition_penalty = reals[3],
                                  .frequency_penalty = reals[4],
                                  .presence_penalty = reals[5]};
    p->top_k = get(r, 0, INT32_MAX, "top_k");
    uint32_t low = (uint32_t)get(r, INT32_MIN, INT32_MAX, "seed");
    p->seed = (uint64_t)(uint32_t)get(r, INT32_MIN, INT32_MAX, "seed") << 32 | low;
    p->max_tokens = get(r, 0, INT32_MAX, "max_tokens");
    p->min_tokens = get(r, 0, INT32_MAX, "min_tokens");
    int32_t flags = get(r, 0, 7, "flags");
    p->ignore_eos = flags & 1;
    p->logprobs = flags & 2;
    p->prompt_logprobs = flags & 4;
    p->top_logprobs = get(r, 0, vocab, "top_logprobs");
    p->prompt_top_logprobs = get(r, 0, vocab, "prompt_top_logprobs");
    p->num_speculative_tokens = get(r, -1, INT32_MAX, "num_speculative_tokens");
    p->n_stop_ids = get(r, 0, MAX_STOP_IDS, "stop ids");
    p->stop_ids = get_ids(r, p->n_stop_ids, vocab, "stop ids");
    p->n_bias = get(r, 0, MAX_BIAS, "logit_bias");
    p->bias = take(r, (size_t)p->n_bias * sizeof *p->bias);
    p->n_allowed = get(r, 0, vocab, "allowed ids");
    p->allowed = get_ids(r, p->n_allowed, vocab, "allowed ids");
    p->n_bad_words = get(r, 0, MAX_BAD_WORDS, "bad words");
    p->bad_word_lengths = get_ids(r, p->n_bad_words, MAX_BAD_TOKENS + 1, "bad words");
    int32_t n_bad = get(r, 0, MAX_BAD_TOKENS, "bad words"), sum = 0;
    p->bad_word_tokens = get_ids(r, n_bad, vocab, "bad words");
    for (int32_t i = 0; p->bad_word_lengths && i < p->n_bad_words; i++) {
        sum += p->bad_word_lengths[i];
    }
    check(r, sum, n_bad, n_bad, "bad words");
    struct err err;
    if (!r->bad && sampling_params_check(p, vocab, &err) != OK) {
        refuse(r, "sampling parameters");
    }
}

/* Blocks must fit into the lane's table, and prompt and output into its length. */
static void get_lane(struct reader *r, struct lane_update *u)
{
    const struct scheduler_limits *l = r->sizes->limits;
    *u = (struct lane_update){0};
    u->lane = get(r, 0, l->max_lanes - 1, "a lane");
    u->first_block = get(r, 0, l->max_blocks_per_lane, "a lane's blocks");
    u->fresh = get(r, 0, 1, "a lane");
    u->n_blocks = get(r, 0, l->max_blocks_per_lane - u->first_block, "a lane's blocks");
    u->blocks = get_ids(r, u->n_blocks, l->n_blocks, "a block");
    if (u->fresh) {
        u->n_prompt = get(r, 0, l->max_len, "a prompt");
        u->prompt = get_ids(r, u->n_prompt, r->sizes->vocab, "a prompt's token");
        u->n_generated = get(r, 0, l->max_len - u->n_prompt, "generated tokens");
        u->generated = get_ids(r, u->n_generated, r->sizes->vocab, "a generated token");
        get_params(r, &u->params);
    }
}

/* Only drafts may have positions beyond the context, up to the backends' limit. */
static int64_t last_pos(const struct reader *r)
{
    return (int64_t)r->sizes->limits->max_len + MAX_TREE_NODES - 1;
}

/* Token -1 stands for the token in the lane's history on the device. */
static void get_rows(struct reader *r, struct pass *p, struct pass_row *rows)
{
    const struct scheduler_limits *l = r->sizes->limits;
    for (int32_t i = 0; i < p->n_rows && !r->bad; i++) {
        rows[i].lane = get(r, 0, l->max_lanes - 1, "a row's lane");
        rows[i].token = get(r, -1, r->sizes->vocab - 1, "a row's token");
        rows[i].pos = get(r, 0, last_pos(r), "a row's position");
        rows[i].slot_pos = get(r, 0, last_pos(r), "a row's slot");
    }
}

/* Sequences are contiguous and cover all rows. */
static void get_seqs(struct reader *r, struct pass *p, struct pass_seq *seqs)
{
    int32_t next = 0;
    for (int32_t i = 0; i < p->n_seqs && !r->bad; i++) {
        struct pass_seq *s = &seqs[i];
        s->lane = get(r, 0, r->sizes->limits->max_lanes - 1, "a sequence's lane");
        s->first_row = get(r, next, next, "a sequence's rows");
        s->n_rows = get(r, 1, p->n_rows - next, "a sequence's rows");
        s->n_past = get(r, 0, p->bidirectional ? 0 : last_pos(r), "a sequence's past");
        s->tree = get(r, 0, p->tree_mask != NULL, "a tree");
        s->second = get(r, 0, last_pos(r), "a sequence's second text");
        s->adapter = get(r, 0, r->sizes->n_adapters, "an adapter");
        next += s->n_rows;
    }
    check(r, next, p->n_rows, p->n_rows, "a sequence's rows");
}

/* Flag bits that no writer sets are an error, too. */
static void get_draws(struct reader *r, struct pass *p, struct pass_draw *draws)
{
    for (int32_t i = 0; i < p->n_draws && !r->bad; i++) {
        struct pass_draw *d = &draws[i];
        *d = (struct pass_draw){.out_row = get(r, 0, p->n_out - 1, "a draw's row")};
        d->lane = get(r, 0, r->sizes->limits->max_lanes - 1, "a draw's lane");
        d->pos = get(r, 0, last_pos(r), "a draw's position");
        d->n_prompt = get(r, 0, r->sizes->limits->max_len, "a draw's prompt");
        int32_t flags = get(r, 0, 0x7FF, "a draw");
        check(r, flags & 0xFF, 0, DRAW_SCORE, "a draw");
        d->kind = (uint8_t)(flags & 0xFF);
        d->keep = flags >> 8 & 1;
        d->noise = flags >> 9 & 1;
        d->logprobs = flags >> 10 & 1;
        d->top_n = get(r, 0, MAX_TOP_LOGPROBS, "a draw");
        d->tree_row = get(r, -1, p->n_rows - 1, "a draw's tree");
        d->more = get(r, 0, MAX_SIBLINGS - 1, "a draw's further ids");
        d->more_slot = get(r, 0, last_pos(r) + 1 - d->more, "a draw's further ids");
        d->mask = get(r, 0, p->n_masks, "a draw's mask");
        d->logits = get(r, 0, p->n_logits, "a draw's logits");
    }
}

static void get_pool(struct reader *r, struct pass *p, struct pass_pool *pools)
{
    for (int32_t i = 0; i < p->n_pool && !r->bad; i++) {
        struct pass_pool *q = &pools[i];
        q->lane = get(r, 0, r->sizes->limits->max_lanes - 1, "a pool's lane");
        q->first_out = get(r, 0, p->n_out, "a pool's rows");
        q->n_out = get(r, 0, p->n_out - q->first_out, "a pool's rows");
        int32_t flags = get(r, 0, 3, "a pool");
        q->start = flags & 1;
        q->finish = flags >> 1;
    }
}

static int32_t get_boundary(struct reader *r)
{
    int32_t block = r->sizes->limits->state_block, pos = get(r, block, last_pos(r), "a state");
    check(r, block > 0 ? pos % block : 1, 0, 0, "a state");
    return pos;
}

/* Kept states must lie at block boundaries and go to snapshot slots, which come after those of the
 * lanes. */
static void get_keeps(struct reader *r, struct pass *p, struct state_keep *keeps, int32_t most)
{
    const struct scheduler_limits *l = r->sizes->limits;
    p->n_keeps = get(r, 0, most, "the number of kept states");
    for (int32_t i = 0; i < p->n_keeps && !r->bad; i++) {
        keeps[i].lane = get(r, 0, l->max_lanes - 1, "a kept state's lane");
        keeps[i].pos = get_boundary(r);
        keeps[i].slot = get(r, l->max_lanes, l->max_lanes + l->n_snapshots - 1, "a kept state");
    }
}

/* Where the arrays of a received pass are stored: in the step's own arrays. NULL: this pass has no
 * such array. */
struct pass_room {
    struct pass_row *rows;
    struct pass_seq *seqs;
    struct pass_group *groups;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct pass_pool *pools;
    struct state_keep *keeps;
    int32_t max_rows, max_seqs, max_groups, max_out, max_draws, max_pools, max_masks, max_keeps;
    int32_t max_model;
};

static void get_masks(struct reader *r, struct pass *p)
{
    p->masks = take(r, (size_t)p->n_masks * (size_t)mask_words(r->sizes->vocab) * sizeof *p->masks);
}

/* A tree_mask that is not NULL means that there is a tree. */
static void get_tree(struct reader *r, struct pass *p)
{
    if (p->tree_mask) {
        if ((uintptr_t)r->at % 8 != 0) {
            get(r, 0, 0, "a tree");
        }
        p->tree_mask = take(r, (size_t)p->n_rows * TREE_MASK_WORDS * sizeof *p->tree_mask);
    }
}

/* Every count is checked against the size of its array, so a forged message cannot write out of
 * bounds. */
static void get_pass(struct reader *r, struct pass *p, const struct pass_room *room)
{
    static const uint64_t present;
    *p = (struct pass){.rows = room->rows,
                       .seqs = room->seqs,
                       .groups = room->groups,
                       .out_rows = room->out_rows,
                       .draws = room->draws,
                       .pool = room->pools,
                       .keeps = room->keeps};
    p->n_rows = get(r, 1, room->max_rows, "the number of rows");
    p->n_seqs = get(r, 1, room->max_seqs, "the number of sequences");
    p->n_groups = get(r, 0, room->max_groups, "the number of groups");
    p->n_out = get(r, 0, room->max_out, "the number of rows with logits");
    p->n_draws = get(r, 0, room->max_draws, "the number of draws");
    p->n_masks = get(r, 0, room->max_masks, "the number of masks");
    p->draws_wait = get(r, 0, p->n_masks > 0, "a pass whose draws wait");
    p->n_pool = get(r, 0, room->max_pools, "the number of pools");
    bool tree = get(r, 0, 1, "a tree");
    p->tree_mask = tree ? &present : NULL;
    p->model = get(r, 0, room->max_model, "a pass's model");
    p->hidden.n = get(r, 0, MAX_HIDDEN_LAYERS, "the number of hidden states");
    p->n_logits = get(r, 0, p->n_draws, "the number of rows of logits");
    p->bidirectional = get(r, 0, !tree, "a bidirectional pass");
    for (int32_t i = 0; i < p->hidden.n && !r->bad; i++) { // model_forward validates the layers
        p->hidden.ids[i] = get(r, 0, INT32_MAX, "a layer");
    }
    get_rows(r, p, room->rows);
    get_seqs(r, p, room->seqs);
    for (int32_t i = 0, next = 0; i < p->n_groups && !r->bad; i++) {
        struct pass_group *g = &room->groups[i];
        g->first_seq = get(r, next, p->n_seqs - 1, "a group");
        g->n_seqs = get(r, 1, p->n_seqs - g->first_seq, "a group");
        g->n_blocks = get(r, 0, r->sizes->limits->max_blocks_per_lane, "a group's blocks");
        next = g->first_seq + g->n_seqs;
    }
    for (int32_t i = 0; i < p->n_out && !r->bad; i++) {
        room->out_rows[i] = get(r, 0, p->n_rows - 1, "a row with logits");
    }
    get_draws(r, p, room->draws);
    if (!p->draws_wait) {
        get_masks(r, p);
    }
    get_pool(r, p, room->pools);
    get_keeps(r, p, room->keeps, room->max_keeps);
    get_tree(r, p);
}

/* The accepted paths, and the moves of slots in each KV set. There must be no moves for a set that
 * no draft model uses. */
static void get_moves(struct reader *r, struct tree_moves *m)
{
    const struct scheduler_limits *l = r->sizes->limits;
    m->n_paths = get(r, 0, l->max_lanes, "the number of paths");
    for (int32_t i = 0; i < m->n_paths && !r->bad; i++) {
        struct tree_path *p = &m->paths[i];
        p->lane = get(r, 0, l->max_lanes - 1, "a path's lane");
        p->first = get(r, 0, l->max_len, "a path's place");
        p->n = get(r, 0, MAX_DRAFTS + 1, "a path");
        const int32_t *tokens = get_ids(r, p->n, r->sizes->vocab, "a path's token");
        for (int32_t k = 0; tokens && k < p->n; k++) {
            p->tokens[k] = tokens[k];
        }
    }
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        int64_t most = 0;
        if (set <= r->sizes->n_draft_models) {
            most = (int64_t)l->max_lanes * MAX_DRAFTS;
        }
        m->n_moves[set] = get(r, 0, most, "the number of moves");
        for (int32_t i = 0; i < m->n_moves[set] && !r->bad; i++) {
            struct slot_move *v = &m->moves[set][i];
            v->lane = get(r, 0, l->max_lanes - 1, "a move's lane");
            v->from = get(r, 0, last_pos(r), "a move");
            v->to = get(r, 0, last_pos(r), "a move");
        }
    }
}

/* A copy from lane to lane may be at any position, other copies only at a boundary. */
static void get_state_copy(struct reader *r, struct state_copy *c)
{
    const struct scheduler_limits *l = r->sizes->limits;
    int64_t last = (int64_t)l->max_lanes + l->n_snapshots - 1;
    c->from = get(r, 0, last, "a copied state");
    c->to = get(r, 0, last, "a copied state");
    bool lanes = c->from < l->max_lanes && c->to < l->max_lanes;
    check(r, c->from < l->max_lanes || c->to < l->max_lanes, true, true, "a copied state");
    if (lanes) {
        c->pos = get(r, 1, last_pos(r), "a state");
    } else {
        c->pos = get_boundary(r);
    }
}

static void get_pages(struct reader *r, struct step *st)
{
    const struct scheduler_limits *l = r->sizes->limits;
    st->n_page_updates = get(r, 0, max_page_grants(l), "the number of tables of pages");
    st->n_page_copies = get(r, 0, max_page_copies(l), "the number of copied pages");
    for (int32_t i = 0; i < st->n_page_updates && !r->bad; i++) {
        struct page_update *u = &st->page_updates[i];
        u->lane = get(r, 0, l->max_lanes - 1, "a lane");
        u->first = get(r, 0, l->max_blocks_per_lane, "a lane's pages");
        u->n = get(r, 0, l->max_blocks_per_lane - u->first, "a lane's pages");
        u->pages = get_ids(r, u->n, l->n_pages, "a page");
    }
    for (int32_t i = 0; i < st->n_page_copies && !r->bad; i++) {
        st->page_copies[i].from = get(r, 0, l->n_pages - 1, "a copied page");
        st->page_copies[i].to = get(r, 0, l->n_pages - 1, "a copied page");
    }
}

static void get_news(struct reader *r, struct step *st, struct tree_moves *moves)
{
    const struct scheduler_limits *l = r->sizes->limits;
    st->n_lanes = get(r, 0, 2 * (int64_t)l->max_lanes, "the number of lanes");
    st->n_copies = get(r, 0, l->max_lanes, "the number of copies");
    st->n_state_copies = get(r, 0, max_state_copies(l), "the number of copied states");
    for (int32_t i = 0; i < st->n_lanes && !r->bad; i++) {
        get_lane(r, &st->lanes[i]);
    }
    for (int32_t i = 0; i < st->n_copies && !r->bad; i++) {
        st->copies[i].from = get(r, 0, l->n_blocks - 1, "a copied block");
        st->copies[i].to = get(r, 0, l->n_blocks - 1, "a copied block");
    }
    for (int32_t i = 0; i < st->n_state_copies && !r->bad; i++) {
        get_state_copy(r, &st->state_copies[i]);
    }
    get_pages(r, st);
    get_moves(r, moves);
    st->moves = moves;
}

static void get_level(struct reader *r, struct step *st)
{
    const struct scheduler_limits *l = r->sizes->limits;
    struct draft_pass *d = &st->level;
    check(r, r->sizes->n_draft_passes > 0, true, true, "a draft model's pass");
    if (!r->bad) {
        get_pass(r, &d->pass,
                 &(struct pass_room){.rows = d->rows,
                                     .seqs = d->seqs,
                                     .out_rows = d->out_rows,
                                     .draws = d->draws,
                                     .max_rows = l->max_rows,
                                     .max_seqs = l->max_lanes,
                                     .max_out = l->max_out,
                                     .max_draws = l->max_out,
                                     .max_masks = r->sizes->max_masks,
                                     .max_model = r->sizes->n_feeding_passes - 1});
    }
}

static void get_passes(struct reader *r, struct step *st)
{
    const struct scheduler_limits *l = r->sizes->limits;
    int32_t want = get(r, 0, 3, "the requested outputs");
    st->want = (struct model_outputs){.logits = want & 1, .pooled = want >> 1};
    st->n_draft_passes = get(r, 0, r->sizes->n_draft_passes, "the number of draft passes");
    for (int32_t i = 0; i < st->n_draft_passes && !r->bad; i++) {
        struct draft_pass *d = &st->draft[i];
        get_pass(r, &d->pass,
                 &(struct pass_room){.rows = d->rows,
                                     .seqs = d->seqs,
                                     .out_rows = d->out_rows,
                                     .draws = d->draws,
                                     .max_rows = i < r->sizes->n_feeding_passes ? l->max_rows
                                                                                : l->max_lanes,
                                     .max_seqs = l->max_lanes,
                                     .max_out = l->max_lanes,
                                     .max_draws = l->max_lanes,
                                     .max_model = r->sizes->n_feeding_passes - 1});
    }
    get_pass(r, &st->pass,
             &(struct pass_room){st->rows, st->seqs, st->groups, st->out_rows, st->draws, st->pools,
                                 st->keeps, l->max_rows, l->max_lanes, l->max_lanes, l->max_out,
                                 l->max_draws, (int32_t)max_pools(l), r->sizes->max_masks,
                                 max_keeps(l), 0});
}

/* The parts of a step that were not sent with its levels. */
static void get_rest(struct reader *r, struct step *st)
{
    get_masks(r, &st->pass);
    get_tree(r, &st->pass);
}

/* A message is used only if it was read to the end without an error. */
enum status step_decode(struct step *st, struct tree_moves *moves, enum step_frame *frame,
                        const struct step_sizes *sizes, const void *bytes, size_t n_bytes,
                        struct err *err)
{
    struct reader r = {.sizes = sizes, .at = bytes, .left = n_bytes};
    get(&r, st->slot, st->slot, "the slot");
    *frame = (enum step_frame)get(&r, STEP_WHOLE, STEP_DRAWS, "its kind");
    if (st->lacks_masks != (*frame == STEP_DRAWS)) {
        refuse(&r, "its kind");
    }
    bool begun = *frame == STEP_DRAWS ? st->begun : get(&r, 0, 1, "its kind");
    if (begun && !st->begun) {
        refuse(&r, "its beginning");
    }
    st->begun = begun;
    if (!begun && *frame != STEP_DRAWS) {
        get_news(&r, st, moves);
    }
    if (*frame == STEP_DRAWS) {
        get_rest(&r, st);
    } else if (*frame == STEP_LEVEL) {
        get_level(&r, st);
    } else {
        get_passes(&r, st);
    }
    if (!r.bad && r.left > 0) {
        refuse(&r, "its end");
    }
    if (r.bad) {
        return err_set(err, ERR_FORMAT, "a step from node 0 is out of bounds: %s", r.bad);
    }
    st->lacks_masks = *frame == STEP_WHOLE && st->pass.draws_wait;
    return OK;
}
