// SPDX-License-Identifier: Apache-2.0
/* Lanes, passes and results: what the engine sets before the ops, and what it reads after them. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* Makes one allocation for the histories and block tables of all lanes. */
static enum status carve_lanes(struct cpu_backend *cpu)
{
    const struct backend_limits *l = &cpu->limits;
    const size_t tables = l->n_window_pages > 0 ? 2 : 1;
    size_t per_lane = (size_t)cpu->history_len + tables * (size_t)l->max_blocks_per_lane;
    size_t n_ints = per_lane * (size_t)l->max_lanes + 3 * ((size_t)l->max_rows + 1);
    cpu->ints = cpu_memory(cpu, n_ints * sizeof *cpu->ints);
    cpu->lane_floats = cpu_memory(cpu, (size_t)l->max_lanes * (size_t)l->hidden * sizeof(float));
    cpu->lanes = mem_try_calloc((size_t)l->max_lanes, sizeof *cpu->lanes);
    const size_t words = (size_t)mask_words(l->vocab);
    struct lane_lists *lists = cpu_memory(cpu, (size_t)l->max_lanes * sizeof *lists);
    uint32_t *allowed = cpu_memory(cpu, (size_t)l->max_lanes * words * sizeof *allowed);
    if (!cpu->ints || !cpu->lane_floats || !cpu->lanes || !lists || !allowed) {
        return ERR_NOMEM;
    }
    int32_t *at = cpu->ints;
    for (int32_t i = 0; i < l->max_lanes; i++) {
        cpu->lanes[i] = (struct lane){
            .history = at,
            .blocks = at + cpu->history_len,
            .pages = tables > 1 ? at + cpu->history_len + l->max_blocks_per_lane : NULL,
            .params = sampling_params_default(),
            .lists = lists + i,
            .allowed = allowed + (size_t)i * words,
            .pooled = cpu->lane_floats + (size_t)i * (size_t)l->hidden,
        };
        at += per_lane;
    }
    if (l->max_laws > 0) {
        cpu->laws = cpu_memory(cpu, (size_t)l->max_laws * (size_t)l->vocab * sizeof *cpu->laws);
        cpu->law_totals = cpu_memory(cpu, (size_t)l->max_laws * sizeof *cpu->law_totals);
        if (!cpu->laws || !cpu->law_totals) {
            return ERR_NOMEM;
        }
    }
    cpu->row_tokens = at;
    cpu->row_seq = at + l->max_rows;
    cpu->seq_items = at + 2 * (size_t)l->max_rows;
    return OK;
}

/* Allocates the results of each step slot. The engine may read the results of one step while
 * another is computed. */
static enum status carve_slots(struct cpu_backend *cpu)
{
    const struct backend_limits *l = &cpu->limits;
    cpu->slots = mem_try_calloc((size_t)l->n_steps, sizeof *cpu->slots);
    if (!cpu->slots) {
        return ERR_NOMEM;
    }
    for (int32_t i = 0; i < l->n_steps; i++) {
        struct slot_results *s = &cpu->slots[i];
        const size_t rows = (size_t)l->max_out_rows + (size_t)l->max_lanes;
        s->passes = mem_try_calloc((size_t)l->max_passes, sizeof *s->passes);
        s->draws = cpu_memory(cpu, (size_t)cpu->max_draws * sizeof *s->draws);
        s->pooled = cpu_memory(cpu, rows * (size_t)l->hidden * sizeof(float));
        if (!s->passes || !s->draws || !s->pooled) {
            return ERR_NOMEM;
        }
    }
    return OK;
}

/* Sizes are multiplied with overflow checks, because they come from options. */
enum status cpu_setup(struct backend *be, const struct backend_limits *limits, struct err *err)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct backend_limits *l = limits;
    ASSERT(!cpu->is_set_up);
    if (l->max_rows < 1 || l->max_out_rows < 1 || l->max_lanes < 1 || l->max_len < 1 ||
        l->max_blocks_per_lane < 1 || l->n_blocks < 1 || l->block_tokens < 1 || l->vocab < 1 ||
        l->hidden < 1 || l->n_steps < 1 || l->max_passes < 1 || l->max_laws < 0 ||
        l->n_window_pages < 0 || l->max_masks < 0) {
        return err_set(err, ERR_INVALID, "a limit of the backend is not positive");
    }
    int64_t slots = (int64_t)l->max_blocks_per_lane * l->block_tokens;
    int64_t history = greater(slots, l->max_len) + 1 + MAX_TREE_NODES;
    int64_t draws = ((int64_t)l->max_out_rows + l->max_lanes) * l->max_passes;
    if (history > INT32_MAX || draws > INT32_MAX) {
        return err_set(err, ERR_INVALID, "the backend's limits are too large");
    }
    cpu->limits = *l;
    cpu->history_len = (int32_t)history;
    cpu->max_draws = (int32_t)draws;
    cpu->attn_parts = cpu_memory(cpu, ATTN_PARTS_BYTES);
    enum status st = cpu->attn_parts ? OK : ERR_NOMEM;
    /* For sampling: the scores, selection keys and counts of one draw. */
    if (st == OK) {
        st = cpu_need_scratch(cpu, (size_t)l->vocab * 12 + 65536);
    }
    if (st == OK) {
        st = carve_lanes(cpu);
    }
    if (st == OK) {
        st = carve_slots(cpu);
    }
    if (st == OK) {
        st = cpu_need_rows(cpu);
    }
    if (st == OK) {
        st = cpu_need_moe(cpu);
    }
    if (st != OK) {
        return err_set(err, st, "not enough memory for %d sequences of %d tokens", l->max_lanes,
                       l->max_len);
    }
    cpu->is_set_up = true;
    return OK;
}

/* Results of the slot's previous step are overwritten. */
enum status cpu_step_begin(struct backend *be, int32_t slot)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->is_set_up && slot >= 0 && slot < cpu->limits.n_steps);
    struct slot_results *s = &cpu->slots[slot];
    s->n_passes = s->n_draws_used = s->n_pooled_used = 0;
    s->ended = false;
    cpu->slot = slot;
    return cpu->failed ? ERR_DEVICE : OK;
}

static struct lane *lane_of(struct cpu_backend *cpu, int32_t lane)
{
    ASSERT(lane >= 0 && lane < cpu->limits.max_lanes);
    return &cpu->lanes[lane];
}

/* Stores tokens that the host knows: prompts, earlier output of a restored sequence, and accepted
 * paths of trees. */
enum status cpu_lane_tokens(struct backend *be, int32_t lane, int32_t first_pos, int32_t n,
                            const int32_t *tokens)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct lane *l = lane_of(cpu, lane);
    ASSERT(first_pos >= 0 && n >= 0 && n <= cpu->history_len - first_pos);
    memcpy(l->history + first_pos, tokens, (size_t)n * sizeof *tokens);
    return OK;
}

static enum status put(struct cpu_backend *cpu, int32_t *table, int32_t first, int32_t n,
                       const int32_t *ids)
{
    ASSERT(first >= 0 && n >= 0 && n <= cpu->limits.max_blocks_per_lane - first);
    memcpy(table + first, ids, (size_t)n * sizeof *ids);
    return OK;
}

enum status cpu_lane_blocks(struct backend *be, int32_t lane, int32_t first, int32_t n,
                            const int32_t *blocks)
{
    return put(cpu_of(be), lane_of(cpu_of(be), lane)->blocks, first, n, blocks);
}

enum status cpu_lane_pages(struct backend *be, int32_t lane, int32_t first, int32_t n,
                           const int32_t *pages)
{
    ASSERT(cpu_of(be)->limits.n_window_pages > 0);
    return put(cpu_of(be), lane_of(cpu_of(be), lane)->pages, first, n, pages);
}

/* The total number of ids in all bad words. The engine has checked the lists. */
static int32_t bad_tokens(const struct sampling_params *p)
{
    int32_t n = 0;
    ASSERT(p->n_bad_words >= 0 && p->n_bad_words <= MAX_BAD_WORDS);
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        ASSERT(p->bad_word_lengths[i] > 0 && p->bad_word_lengths[i] <= MAX_BAD_TOKENS - n);
        n += p->bad_word_lengths[i];
    }
    return n;
}

static void *copy_list(void *to, const void *list, int32_t n, size_t size)
{
    if (n > 0) {
        memcpy(to, list, (size_t)n * size);
    }
    return to;
}

/* Ids as bits take a 32nd of the memory of a list as long as the vocabulary. */
static void copy_allowed(uint32_t *to, const struct sampling_params *p, int32_t vocab)
{
    memset(to, 0, (size_t)mask_words(vocab) * sizeof *to);
    for (int32_t i = 0; i < p->n_allowed; i++) {
        ASSERT(p->allowed[i] >= 0 && p->allowed[i] < vocab);
        to[p->allowed[i] / 32] |= 1u << (p->allowed[i] % 32);
    }
}

/* Copies the lists as well: draws of all later steps read them, but on nodes other than node 0 they
 * are in the message of this step. */
enum status cpu_lane_params(struct backend *be, int32_t lane, const struct sampling_params *params)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct lane *l = lane_of(cpu, lane);
    struct lane_lists *own = l->lists;
    struct sampling_params p = *params;
    int32_t n_bad = bad_tokens(&p);
    ASSERT(p.n_stop_ids >= 0 && p.n_stop_ids <= MAX_STOP_IDS);
    ASSERT(p.n_bias >= 0 && p.n_bias <= MAX_BIAS);
    p.stop_ids = copy_list(own->stop_ids, p.stop_ids, p.n_stop_ids, sizeof *p.stop_ids);
    p.bias = copy_list(own->bias, p.bias, p.n_bias, sizeof *p.bias);
    p.bad_word_lengths = copy_list(own->bad_word_lengths, p.bad_word_lengths, p.n_bad_words,
                                   sizeof *p.bad_word_lengths);
    p.bad_word_tokens =
        copy_list(own->bad_word_tokens, p.bad_word_tokens, n_bad, sizeof *p.bad_word_tokens);
    if (p.n_allowed > 0) {
        copy_allowed(l->allowed, &p, cpu->limits.vocab);
    }
    p.allowed = p.logprob_ids = NULL;
    l->params = p;
    return OK;
}

/* Checks what the engine guarantees about rows, because attention relies on it. */
static void check_seqs(const struct cpu_backend *cpu, const struct pass *pass)
{
    int32_t row = 0;
    for (int32_t i = 0; i < pass->n_seqs; i++) {
        const struct pass_seq *s = &pass->seqs[i];
        ASSERT(s->first_row == row && s->n_rows >= 1 && s->n_past >= 0);
        ASSERT(!s->tree || (s->n_rows <= MAX_TREE_NODES && pass->tree_mask));
        ASSERT(!pass->bidirectional || (!s->tree && s->n_past == 0));
        for (int32_t r = 0; r < s->n_rows; r++, row++) {
            const struct pass_row *p = &pass->rows[row];
            ASSERT(p->lane == s->lane && p->slot_pos == s->n_past + r);
            ASSERT(s->tree || p->pos == p->slot_pos);
            ASSERT(p->slot_pos / cpu->limits.block_tokens < cpu->limits.max_blocks_per_lane);
            ASSERT(p->pos >= 0 && p->pos < cpu->history_len);
            cpu->row_seq[row] = i;
        }
    }
    ASSERT(row == pass->n_rows);
}

/* Whole rows of logits are rare, so no memory is taken before the first. */
static enum status need_logits(const struct cpu_backend *cpu, struct slot_results *s, int32_t n)
{
    if (n <= s->max_logits) {
        return OK;
    }
    free(s->logits);
    s->max_logits = 0;
    s->logits = mem_try_calloc((size_t)n, (size_t)cpu->limits.vocab * sizeof *s->logits);
    if (!s->logits) {
        return ERR_NOMEM;
    }
    s->max_logits = n;
    return OK;
}

/* The CPU has no graphs, so a pass is always issued, and nothing is padded. */
enum status cpu_pass_begin(struct backend *be, const struct pass *pass, struct pass_shape *shape)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct slot_results *s = &cpu->slots[cpu->slot];
    ASSERT(!cpu->pass && pass->n_rows >= 0 && pass->n_rows <= cpu->limits.max_rows);
    ASSERT(pass->n_out >= 0 && pass->n_out <= cpu->limits.max_out_rows);
    ASSERT(pass->kv_set >= 0 && pass->kv_set < MAX_KV_SETS);
    ASSERT(s->n_passes < cpu->limits.max_passes);
    const int32_t most_rows = cpu->limits.max_out_rows + cpu->limits.max_lanes;
    if (pass->n_draws > cpu->max_draws - s->n_draws_used ||
        pass->n_pool > most_rows - s->n_pooled_used || pass->n_logits > most_rows) {
        return ERR_LIMIT;
    }
    TRY(need_logits(cpu, s, pass->n_logits));
    check_seqs(cpu, pass);
    for (int32_t i = 0; i < pass->n_rows; i++) {
        const struct pass_row *p = &pass->rows[i];
        struct lane *l = lane_of(cpu, p->lane);
        if (p->token >= 0) {
            l->history[p->slot_pos] = p->token;
        }
        cpu->row_tokens[i] = p->token >= 0 ? p->token : l->history[p->slot_pos];
    }
    cpu->pass = pass;
    s->passes[s->n_passes] = (struct pass_results){
        .n_draws = pass->n_draws,
        .draws = s->draws + s->n_draws_used,
        .pooled = s->pooled + (size_t)s->n_pooled_used * (size_t)cpu->limits.hidden,
        .logits = s->logits,
    };
    *shape = (struct pass_shape){pass->n_rows, pass->n_out, pass->n_draws, true};
    return OK;
}

/* Advances in the slot's arrays of results, so that the next pass does not overwrite them. */
enum status cpu_pass_end(struct backend *be)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct slot_results *s = &cpu->slots[cpu->slot];
    ASSERT(cpu->pass);
    s->n_draws_used += cpu->pass->n_draws;
    s->n_pooled_used += cpu->pass->n_pool;
    s->n_passes++;
    cpu->pass = NULL;
    return OK;
}

enum status cpu_step_end(struct backend *be)
{
    struct cpu_backend *cpu = cpu_of(be);
    cpu->slots[cpu->slot].ended = true;
    return cpu->failed ? ERR_DEVICE : OK;
}

/* Passes are synchronous here, so there is nothing to wait for. */
enum status cpu_step_wait(struct backend *be, int32_t slot, struct pass_results *results,
                          int32_t max_passes)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(slot >= 0 && slot < cpu->limits.n_steps && cpu->slots[slot].ended);
    const struct slot_results *s = &cpu->slots[slot];
    for (int32_t i = 0; i < s->n_passes && i < max_passes; i++) {
        results[i] = s->passes[i];
    }
    return cpu->failed ? ERR_DEVICE : OK;
}

bool cpu_step_done(struct backend *be, int32_t slot)
{
    return cpu_of(be)->slots[slot].ended;
}
