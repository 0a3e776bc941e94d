// SPDX-License-Identifier: Apache-2.0
/* The ops of the fake backend, except draws (fake_draws.c). Each asserts what the interface
 * promises to a backend, so a test fails where a promise is broken, rather than where the
 * consequence is noticed. */
#include "test/engine/fake_internal.h"
#include "test/engine/fake_state.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

/* Small blocks, so that short tests cross their edges. */
static enum status fake_facts(struct backend *be, struct backend_facts *out)
{
    (void)be;
    *out = (struct backend_facts){.name = "cpu",
                                  .act = DT_F32,
                                  .residual = DT_F32,
                                  .free_bytes = (size_t)1 << 30,
                                  .preferred_block_tokens = 4};
    return OK;
}

static enum status fake_alloc(struct backend *be, size_t n_bytes, struct dmem *out)
{
    (void)n_bytes;
    out->p = &fake_of(be)->dummy;
    return OK;
}

static enum status fake_weight_open(struct backend *be, const struct weight_desc *desc,
                                    struct weight **out, struct err *err)
{
    if (fake_of(be)->control->no_memory) {
        return err_set(err, ERR_NOMEM, "weight %s: no memory is left", desc->name);
    }
    *out = (struct weight *)(void *)&fake_of(be)->dummy;
    return OK;
}

static size_t fake_weight_bytes(const struct weight *w)
{
    (void)w;
    return 1;
}

static enum status fake_rope_open(struct backend *be, const struct rope_desc *desc,
                                  struct rope_table **out)
{
    (void)desc;
    *out = (struct rope_table *)(void *)&fake_of(be)->dummy;
    return OK;
}

static enum status fake_kv_bytes(struct backend *be, const struct kv_set_desc *desc,
                                 int32_t block_tokens, size_t *out)
{
    (void)be;
    (void)desc;
    *out = (size_t)block_tokens;
    return OK;
}

/* All slots begin as poison, so a read before a write is seen. */
static enum status fake_setup(struct backend *be, const struct backend_limits *limits,
                              struct err *err)
{
    (void)err;
    struct fake *f = fake_of(be);
    f->l = *limits;
    size_t n = (size_t)limits->n_blocks * (size_t)limits->block_tokens;
    size_t lanes = (size_t)limits->max_lanes;
    for (int set = 0; set < SETS; set++) {
        f->slots[set] = xcalloc(n, sizeof *f->slots[set]);
        for (size_t i = 0; i < n; i++) {
            f->slots[set][i].token = -1;
        }
    }
    fake_windows_open(f);
    f->history = xcalloc(lanes * (size_t)limits->max_len, sizeof *f->history);
    f->tables = xcalloc(lanes * (size_t)limits->max_blocks_per_lane, sizeof *f->tables);
    f->seeds = xcalloc(lanes, sizeof *f->seeds);
    f->row_hash = xcalloc((size_t)limits->max_rows, sizeof *f->row_hash);
    f->state_hash = xcalloc((size_t)limits->max_rows, sizeof *f->state_hash);
    f->row_token = xcalloc((size_t)limits->max_rows, sizeof *f->row_token);
    f->pool_state = xcalloc(lanes, sizeof *f->pool_state);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < limits->max_passes; j++) {
            f->results[i][j] = xcalloc((size_t)limits->max_out_rows + (size_t)limits->max_lanes,
                                       sizeof *f->results[i][j]);
        }
        f->pooled[i] = xcalloc(((size_t)limits->max_out_rows + lanes) * (size_t)limits->hidden,
                               sizeof *f->pooled[i]);
        f->logits[i] = xcalloc(((size_t)limits->max_out_rows + lanes) * (size_t)limits->vocab,
                               sizeof *f->logits[i]);
    }
    return OK;
}

static enum status fake_kv_open(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                                struct err *err)
{
    (void)err;
    fake_windows_layers(fake_of(be), set, desc);
    return OK;
}

static enum status fake_state_bytes(struct backend *be, const struct state_set_desc *desc,
                                    struct state_sizes *out)
{
    size_t lane = fake_of(be)->control->lane_bytes;
    (void)desc;
    *out = (struct state_sizes){lane > 0 ? lane : 64, 32};
    return OK;
}

static enum status fake_state_set(struct backend *be, int32_t set,
                                  const struct state_set_desc *desc, int32_t n_snapshots,
                                  struct err *err)
{
    struct fake *f = fake_of(be);
    (void)err;
    ASSERT(set == 0);
    f->state = fake_state_open(&f->l, desc, n_snapshots);
    return OK;
}

/* Frees everything that setup and the ops allocated. */
static void fake_close(struct backend *be)
{
    struct fake *f = fake_of(be);
    for (int set = 0; set < SETS; set++) {
        free(f->slots[set]);
    }
    fake_windows_close(f);
    free(f->history);
    free(f->tables);
    free(f->seeds);
    free(f->row_hash);
    fake_state_close(f->state);
    free(f->state_hash);
    free(f->row_token);
    free(f->pool_state);
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < MAX_PASSES; j++) {
            free(f->results[i][j]);
        }
        free(f->pooled[i]);
        free(f->logits[i]);
    }
    free(f);
}

/* Fails at the step that the test has chosen. */
static enum status fake_step_begin(struct backend *be, int32_t slot)
{
    struct fake *f = fake_of(be);
    f->slot_now = slot;
    f->n_passes = 0;
    struct fake_control *c = f->control;
    c->n_steps++;
    if (c->n_steps == c->fail_at_step) {
        return ERR_DEVICE;
    }
    c->n_unread++;
    c->most_unread = greater(c->n_unread, c->most_unread);
    return OK;
}

static enum status fake_lane_tokens(struct backend *be, int32_t lane, int32_t first_pos, int32_t n,
                                    const int32_t *tokens)
{
    struct fake *f = fake_of(be);
    ASSERT(first_pos + n <= f->l.max_len);
    memcpy(f->history + (size_t)lane * (size_t)f->l.max_len + first_pos, tokens,
           (size_t)n * sizeof *tokens);
    return OK;
}

static enum status fake_lane_blocks(struct backend *be, int32_t lane, int32_t first, int32_t n,
                                    const int32_t *blocks)
{
    struct fake *f = fake_of(be);
    ASSERT(first + n <= f->l.max_blocks_per_lane);
    memcpy(f->tables + (size_t)lane * (size_t)f->l.max_blocks_per_lane + first, blocks,
           (size_t)n * sizeof *blocks);
    return OK;
}

static enum status fake_lane_params(struct backend *be, int32_t lane,
                                    const struct sampling_params *params)
{
    fake_of(be)->seeds[lane] = params->seed;
    return OK;
}

/* A backend may make the copies of a call in any order, so none may write what another reads. */
void fake_check_copies(const struct block_copy *copies, int32_t n)
{
    for (int32_t i = 0; i < n * n; i++) {
        const struct block_copy *a = &copies[i / n], *b = &copies[i % n];
        ASSERT(a->to != b->from && (a == b || a->to != b->to));
    }
}

/* All KV sets have the same block numbers, so each copy is made in every set. */
static enum status fake_copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies)
{
    struct fake *f = fake_of(be);
    size_t size = (size_t)f->l.block_tokens;
    fake_check_copies(copies, n);
    for (int32_t i = 0; i < SETS * n; i++) {
        struct slot *slots = f->slots[i % SETS];
        const struct block_copy *c = &copies[i / SETS];
        memcpy(slots + (size_t)c->to * size, slots + (size_t)c->from * size, size * sizeof *slots);
    }
    return OK;
}

/* A test may lose one copy, to see that the check of states notices. */
static enum status fake_copy_states(struct backend *be, int32_t set, int32_t n,
                                    const struct state_copy *copies)
{
    struct fake *f = fake_of(be);
    ASSERT(set == 0 && f->state);
    for (int32_t i = 0; i < n; i++) {
        if (++f->control->n_state_copies != f->control->lose_copy) {
            f->control->n_wrong += fake_state_copy(f->state, 1, &copies[i]);
        }
    }
    return OK;
}

/* Moves go downwards and in order, so none overwrites the source of a later one. */
static enum status fake_move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                                   int32_t kv_set)
{
    struct fake *f = fake_of(be);
    ASSERT(kv_set < SETS);
    for (int32_t i = 0; i < n; i++) {
        ASSERT(moves[i].from > moves[i].to);
        ASSERT(i == 0 || moves[i].lane != moves[i - 1].lane || moves[i].to > moves[i - 1].to);
        *slot_in(f, kv_set, moves[i].lane, moves[i].to) =
            *slot_in(f, kv_set, moves[i].lane, moves[i].from);
        if (kv_set == 0) {
            fake_windows_move(f, &moves[i]);
        }
    }
    if (kv_set == 0) {
        fake_state_move(f->state, n, moves);
    }
    f->control->n_moves += n;
    return OK;
}

/* Poisons blocks that were given back, so that reading them gives a wrong answer. */
static enum status fake_poison_blocks(struct backend *be, int32_t n, const int32_t *blocks)
{
    struct fake *f = fake_of(be);
    int32_t size = f->l.block_tokens;
    for (int32_t i = 0; i < n * size; i++) {
        for (int set = 0; set < SETS; set++) {
            f->slots[set][blocks[i / size] * size + i % size].token = -1;
        }
    }
    return OK;
}

/* The largest padding that a backend may use. */
static int32_t padded(int32_t n, int32_t limit)
{
    if (n == 0) {
        return 0;
    }
    return lesser(n + 7, limit);
}

/* Checks the limits of a pass, and returns its padded sizes. */
static enum status fake_pass_begin(struct backend *be, const struct pass *pass,
                                   struct pass_shape *shape)
{
    struct fake *f = fake_of(be);
    ASSERT(pass->n_rows <= f->l.max_rows && pass->n_out <= f->l.max_out_rows);
    ASSERT(pass->n_draws <= f->l.max_out_rows + f->l.max_lanes && pass->n_logits <= pass->n_draws);
    f->pass = pass;
    f->pass_number++;
    f->control->n_rows += pass->n_rows;
    f->control->n_keeps += pass->n_keeps;
    if (pass->n_rows > f->control->max_rows_seen) {
        f->control->max_rows_seen = pass->n_rows;
    }
    *shape = (struct pass_shape){padded(pass->n_rows, f->l.max_rows),
                                 padded(pass->n_out, f->l.max_out_rows), pass->n_draws, true};
    f->control->n_padded_rows += shape->n_rows;
    f->control->n_padded_out += shape->n_out;
    return OK;
}

static int32_t history_token(void *arg, int32_t lane, int32_t pos)
{
    return *history_at(arg, lane, pos);
}

/* A token of -1 is read from the lane's history, as a device reads a draft. */
static enum status fake_recurrence(struct backend *be, const struct recurrence_args *a)
{
    struct fake *f = fake_of(be);
    const struct fake_history history = {history_token, f};
    for (int32_t i = 0; i < f->pass->n_rows; i++) {
        const struct pass_row *r = &f->pass->rows[i];
        if (r->token >= 0) {
            f->row_token[i] = r->token;
        } else {
            f->row_token[i] = *history_at(f, r->lane, r->slot_pos);
        }
    }
    if (a->layer == 0) {
        fake_state_rows(f->state, f->pass, f->row_token, &history, f->state_hash);
    }
    return OK;
}

/* As on a device, the new keys of all sequences are stored before any row reads. */
static enum status fake_rope_store(struct backend *be, const struct rope_store_args *a)
{
    struct fake *f = fake_of(be);
    if (is_windowed(f, a->layer)) {
        fake_windows_store(f);
    }
    for (int32_t i = 0; i < f->pass->n_rows && is_whole(f, a->layer); i++) {
        const struct pass_row *r = &f->pass->rows[i];
        int32_t token = r->token >= 0 ? r->token : *history_at(f, r->lane, r->slot_pos);
        if (r->token >= 0) {
            *history_at(f, r->lane, r->slot_pos) = token;
        }
        struct slot *slot = slot_at(f, r->lane, r->slot_pos);
        f->control->n_wrong += slot->pass == f->pass_number; // two rows of a pass in one slot
        *slot = (struct slot){token, r->pos, f->pass_number};
    }
    return OK;
}

/* Checks that a group's shared prefix is the same for its members and computed before this pass. */
static void check_groups(const struct fake *f)
{
    int32_t stride = f->l.max_blocks_per_lane;
    for (int32_t g = 0; g < f->pass->n_groups; g++) {
        const struct pass_group *group = &f->pass->groups[g];
        const int32_t *first = f->tables + f->pass->seqs[group->first_seq].lane * stride;
        for (int32_t s = group->first_seq; s < group->first_seq + group->n_seqs; s++) {
            const struct pass_seq *q = &f->pass->seqs[s];
            ASSERT(group->n_blocks * f->l.block_tokens <= q->n_past);
            ASSERT(memcmp(f->tables + q->lane * stride, first,
                          (size_t)group->n_blocks * sizeof *first) == 0);
        }
    }
}

/* A row of a tree reads the past, then its ancestors and itself: a path of consecutive positions.
 */
static uint64_t hash_path(struct fake *f, const struct pass_seq *q, int32_t row, uint64_t h)
{
    int32_t pos = q->n_past;
    ASSERT(q->n_rows <= MAX_TREE_NODES && sees(f, row, row - q->first_row));
    for (int32_t node = 0; node < MAX_TREE_NODES; node++) {
        if (sees(f, row, node)) {
            ASSERT(node <= row - q->first_row);
            const struct slot *slot = slot_at(f, q->lane, q->n_past + node);
            f->control->n_wrong += slot->token < 0 || slot->pos != pos++;
            h = fake_hash_step(h, slot->token);
        }
    }
    f->control->n_wrong += pos != f->pass->rows[row].pos + 1;
    return h;
}

/* The first layer stands for all layers: it reads the slots of each row's history through the
 * lane's table and hashes them. Later layers would read the same. */
static enum status fake_attention(struct backend *be, const struct attention_args *a)
{
    struct fake *f = fake_of(be);
    if (is_windowed(f, a->layer)) {
        fake_windows_read(f, a);
    }
    if (!is_whole(f, a->layer)) {
        return OK;
    }
    int64_t begin = f->control->timed ? clock_now_ns() : 0;
    check_groups(f);
    for (int32_t s = 0; s < f->pass->n_seqs; s++) {
        const struct pass_seq *q = &f->pass->seqs[s];
        uint64_t h = FAKE_EMPTY;
        for (int32_t pos = 0; pos < q->n_past + (q->tree ? 0 : q->n_rows); pos++) {
            const struct slot *slot = slot_at(f, q->lane, pos);
            f->control->n_wrong += slot->token < 0 || slot->pos != pos;
            // A draft model that reads rejected tokens drafts badly, which no other check would
            // notice.
            f->control->n_wrong += pos < q->n_past && slot->token != *history_at(f, q->lane, pos);
            h = fake_hash_step(h, slot->token);
            if (pos >= q->n_past) {
                f->row_hash[q->first_row + pos - q->n_past] = h;
            }
        }
        for (int32_t r = q->first_row; q->tree && r < q->first_row + q->n_rows; r++) {
            f->row_hash[r] = hash_path(f, q, r, h);
        }
    }
    if (f->control->timed) {
        f->control->busy_ns += clock_now_ns() - begin;
    }
    return OK;
}

/* The sum over a lane's rows may come in several passes. */
static enum status fake_pool(struct backend *be, const struct pool_args *a)
{
    (void)a;
    struct fake *f = fake_of(be);
    for (int32_t i = 0; i < f->pass->n_pool; i++) {
        const struct pass_pool *p = &f->pass->pool[i];
        float *sum = &f->pool_state[p->lane];
        if (p->start) {
            *sum = 0.0f;
        }
        *sum += (float)p->n_out;
        for (int32_t k = 0; p->finish && k < f->l.hidden; k++) {
            f->pooled[f->slot_now][i * f->l.hidden + k] = *sum;
        }
    }
    return OK;
}

static enum status fake_pass_pause(struct backend *be)
{
    struct fake *f = fake_of(be);
    ASSERT(f->pass->draws_wait && !f->paused && !f->draws_came);
    f->paused = true;
    return OK;
}

/* Called once per pass that waits for its draws, after the pause. */
static enum status fake_pass_draws(struct backend *be, struct pass_shape *shape)
{
    struct fake *f = fake_of(be);
    ASSERT(f->pass->draws_wait && f->paused && !f->draws_came);
    f->paused = false;
    *shape = (struct pass_shape){f->pass->n_rows, f->pass->n_out, f->pass->n_draws, true};
    f->draws_came = true;
    f->control->n_waited++;
    return OK;
}

static enum status fake_pass_end(struct backend *be)
{
    struct fake *f = fake_of(be);
    f->n_draws[f->slot_now][f->n_passes++] = f->pass->n_draws;
    return OK;
}

static enum status fake_step_end(struct backend *be)
{
    (void)be;
    return OK;
}

/* Results were complete when the op ran; a wait only hands them over. */
static enum status fake_step_wait(struct backend *be, int32_t slot, struct pass_results *results,
                                  int32_t max_passes)
{
    struct fake *f = fake_of(be);
    f->control->n_unread--;
    for (int32_t i = 0; i < max_passes; i++) {
        results[i] = (struct pass_results){f->n_draws[slot][i], f->results[slot][i],
                                           f->pooled[slot], f->logits[slot]};
    }
    return OK;
}

static bool fake_step_done(struct backend *be, int32_t slot)
{
    (void)be;
    (void)slot;
    return true;
}

#define NOTHING(op)                                                                                \
    static enum status fake_##op(struct backend *be, const struct op##_args *a)                    \
    {                                                                                              \
        (void)be;                                                                                  \
        (void)a;                                                                                   \
        return OK;                                                                                 \
    }

static enum status fake_linear(struct backend *be, const struct linear_args *a)
{
    fake_of(be)->control->n_multiplied += a->n_rows;
    return OK;
}

NOTHING(embed)
NOTHING(norm)
NOTHING(linear_heads)
NOTHING(mla_store)
NOTHING(activation)
NOTHING(moe_route)
NOTHING(moe_ffn)
NOTHING(row_gate)
NOTHING(short_conv)
NOTHING(gate)
NOTHING(reduce)
NOTHING(gather)
NOTHING(logits)

static enum status fake_write(struct backend *be, struct dmem to, const void *from, size_t n_bytes)
{
    (void)be;
    (void)to;
    (void)from;
    (void)n_bytes;
    return OK;
}

static enum status fake_read(struct backend *be, void *to, struct dmem from, size_t n_bytes)
{
    (void)be;
    (void)to;
    (void)from;
    (void)n_bytes;
    return OK;
}

/* Ops whose results no test looks at only count their rows. */
static const struct backend_ops fake_ops = {
    .facts = fake_facts,
    .alloc = fake_alloc,
    .weight_open = fake_weight_open,
    .weight_bytes = fake_weight_bytes,
    .rope_open = fake_rope_open,
    .kv_bytes = fake_kv_bytes,
    .state_bytes = fake_state_bytes,
    .state_open = fake_state_set,
    .copy_states = fake_copy_states,
    .short_conv = fake_short_conv,
    .recurrence = fake_recurrence,
    .gate = fake_gate,
    .setup = fake_setup,
    .kv_open = fake_kv_open,
    .close = fake_close,
    .step_begin = fake_step_begin,
    .lane_tokens = fake_lane_tokens,
    .lane_blocks = fake_lane_blocks,
    .lane_params = fake_lane_params,
    .copy_blocks = fake_copy_blocks,
    .lane_pages = fake_lane_pages,
    .copy_pages = fake_copy_pages,
    .poison_pages = fake_poison_pages,
    .move_slots = fake_move_slots,
    .poison_blocks = fake_poison_blocks,
    .pass_begin = fake_pass_begin,
    .pass_pause = fake_pass_pause,
    .pass_draws = fake_pass_draws,
    .pass_end = fake_pass_end,
    .step_end = fake_step_end,
    .step_wait = fake_step_wait,
    .step_done = fake_step_done,
    .embed = fake_embed,
    .norm = fake_norm,
    .linear = fake_linear,
    .linear_heads = fake_linear_heads,
    .rope_store = fake_rope_store,
    .mla_store = fake_mla_store,
    .attention = fake_attention,
    .activation = fake_activation,
    .moe_route = fake_moe_route,
    .moe_ffn = fake_moe_ffn,
    .row_gate = fake_row_gate,
    .reduce = fake_reduce,
    .gather = fake_gather,
    .logits = fake_logits,
    .sample = fake_sample,
    .pool = fake_pool,
    .write = fake_write,
    .read = fake_read,
};

enum status fake_open(const struct backend_options *options, struct backend **out, struct err *err,
                      void *arg)
{
    (void)err;
    struct fake *f = xcalloc(1, sizeof *f);
    f->base = (struct backend){&fake_ops, options->rank, options->n_ranks};
    f->control = arg;
    *out = &f->base;
    return OK;
}
