// SPDX-License-Identifier: Apache-2.0
/* Recurrent state without arithmetic; see the header. */
#include "test/engine/fake_state.h"

#include "engine/base/assert.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { TAIL = 3 }; // inputs of a convolution before a row's own

/* A row that a record does not cover yet, or an input of a convolution. */
struct raw {
    int32_t token, pos;
};

/* The state after all tokens before `pos`. */
struct record {
    int32_t pos; // 0: none
    uint64_t hash;
    int32_t tail[TAIL];
};

/* Places are those of a real backend: two records of a lane in turn if it runs ahead of
 * what is committed (one otherwise), pages for the open block and for rows ahead, and a
 * ring of inputs that is just long enough for the convolution and the rows ahead. */
struct fake_state {
    int32_t n_lanes, n_snapshots, block, n_records, n_pages, ring;
    struct record *records;   // [n_lanes, n_records]
    struct record *snapshots; // [n_snapshots]
    struct raw *rows;         // [n_lanes, n_pages * block], by slot
    struct raw *inputs;       // [n_lanes, ring], by slot
};

uint64_t fake_hash_step(uint64_t h, int32_t token)
{
    return hash_mix(h * 31 + (uint64_t)(uint32_t)token + 1);
}

struct fake_state *fake_state_open(const struct backend_limits *limits,
                                   const struct state_set_desc *desc, int32_t n_snapshots)
{
    struct fake_state *s = xcalloc(1, sizeof *s);
    size_t lanes = (size_t)limits->max_lanes;
    *s = (struct fake_state){.n_lanes = limits->max_lanes,
                             .n_snapshots = n_snapshots,
                             .block = desc->block,
                             .n_records = desc->max_ahead > 0 ? 2 : 1,
                             .n_pages = 1 + (desc->max_ahead + desc->block - 1) / desc->block,
                             .ring = TAIL + 1 + desc->max_ahead};
    ASSERT(desc->block % limits->block_tokens == 0);
    s->records = xcalloc(lanes * (size_t)s->n_records, sizeof *s->records);
    s->snapshots = xcalloc((size_t)n_snapshots, sizeof *s->snapshots);
    s->rows = xcalloc(lanes * (size_t)s->n_pages * (size_t)s->block, sizeof *s->rows);
    s->inputs = xcalloc(lanes * (size_t)s->ring, sizeof *s->inputs);
    return s;
}

void fake_state_close(struct fake_state *s)
{
    if (s) {
        free(s->records);
        free(s->snapshots);
        free(s->rows);
        free(s->inputs);
        free(s);
    }
}

/* ---- places ------------------------------------------------------------------------------- */

static struct record *record_at(struct fake_state *s, int32_t lane, int32_t boundary)
{
    return &s->records[lane * s->n_records + boundary / s->block % s->n_records];
}

static struct raw *row_at(struct fake_state *s, int32_t lane, int32_t slot)
{
    int32_t n = s->n_pages * s->block;
    return &s->rows[(int64_t)lane * n + slot % n];
}

static struct raw *input_at(struct fake_state *s, int32_t lane, int32_t slot)
{
    return &s->inputs[lane * s->ring + slot % s->ring];
}

/* ---- copies ------------------------------------------------------------------------------- */

/* A lane takes over another's complete state, as a sibling does when it forks. */
static void copy_lane(struct fake_state *s, int32_t from, int32_t to)
{
    size_t rows = (size_t)s->n_pages * (size_t)s->block, ring = (size_t)s->ring;
    size_t records = (size_t)s->n_records, f = (size_t)from, t = (size_t)to;
    memcpy(s->records + t * records, s->records + f * records, records * sizeof *s->records);
    memcpy(s->rows + t * rows, s->rows + f * rows, rows * sizeof *s->rows);
    memcpy(s->inputs + t * ring, s->inputs + f * ring, ring * sizeof *s->inputs);
}

/* From a snapshot a lane gets one record and the inputs before it. Everything else is
 * cleared, so that a row which reads more than a snapshot holds is noticed. */
static void restore(struct fake_state *s, const struct record *from, int32_t lane)
{
    memset(s->records + lane * s->n_records, 0, (size_t)s->n_records * sizeof *s->records);
    *record_at(s, lane, from->pos) = *from;
    for (int32_t i = 0; i < TAIL; i++) {
        int32_t pos = from->pos - TAIL + i;
        if (pos >= 0) {
            *input_at(s, lane, pos) = (struct raw){from->tail[i], pos};
        }
    }
}

/* Returns the number of copies whose source was the record of another position. */
int32_t fake_state_copy(struct fake_state *s, int32_t n, const struct state_copy *copies)
{
    int32_t n_wrong = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct state_copy *c = &copies[i];
        ASSERT(c->from >= 0 && c->from < s->n_lanes + s->n_snapshots && c->to >= 0 &&
               c->to < s->n_lanes + s->n_snapshots && c->pos > 0);
        bool from_lane = c->from < s->n_lanes, to_lane = c->to < s->n_lanes;
        ASSERT(from_lane || to_lane);
        ASSERT((from_lane && to_lane) || c->pos % s->block == 0);
        if (from_lane && to_lane) {
            copy_lane(s, c->from, c->to);
        } else if (from_lane) {
            const struct record *r = record_at(s, c->from, c->pos);
            n_wrong += r->pos != c->pos;
            s->snapshots[c->to - s->n_lanes] = *r;
        } else {
            n_wrong += s->snapshots[c->from - s->n_lanes].pos != c->pos;
            restore(s, &s->snapshots[c->from - s->n_lanes], c->to);
        }
    }
    return n_wrong;
}

/* Accepted rows of a tree move to the slots of their final positions. */
void fake_state_move(struct fake_state *s, int32_t n, const struct slot_move *moves)
{
    for (int32_t i = 0; s && i < n; i++) {
        const struct slot_move *m = &moves[i];
        *row_at(s, m->lane, m->to) = *row_at(s, m->lane, m->from);
        *input_at(s, m->lane, m->to) = *input_at(s, m->lane, m->from);
    }
}

/* ---- rows --------------------------------------------------------------------------------- */

/* A pass that is being computed. */
struct job {
    struct fake_state *s;
    const struct pass *pass;
    const int32_t *tokens;
    const struct fake_history *history;
};

/* The row at position `pos` on the path of `row`; -1: the position is before this pass. */
static int32_t path_row(const struct job *j, const struct pass_seq *q, int32_t row, int32_t pos)
{
    const uint64_t *mask = j->pass->tree_mask + (int64_t)row * TREE_MASK_WORDS;
    if (!q->tree) {
        int32_t r = q->first_row + pos - q->n_past;
        if (r >= q->first_row && r <= row) {
            return r;
        }
        return -1;
    }
    for (int32_t r = q->first_row; r <= row; r++) {
        int32_t node = r - q->first_row;
        bool sees = mask[node / 64] >> (node % 64) & 1;
        if (j->pass->rows[r].pos == pos && sees) {
            return r;
        }
    }
    return -1;
}

/* Collects the last inputs up to a position on a row's path. False if one belongs to another
 * text. */
static bool take_tail(const struct job *j, const struct pass_seq *q, int32_t row, int32_t end,
                      int32_t tail[TAIL])
{
    bool right = true;
    for (int32_t i = 0; i < TAIL; i++) {
        int32_t pos = end - TAIL + i, r = pos >= 0 ? path_row(j, q, row, pos) : -1;
        tail[i] = r >= 0 ? j->tokens[r] : -1;
        if (r < 0 && pos >= 0) {
            const struct raw *in = input_at(j->s, q->lane, pos);
            tail[i] = in->token;
            right = right && in->pos == pos &&
                    in->token == j->history->token(j->history->arg, q->lane, pos);
        }
    }
    return right;
}

/* The hash of a row's path as the state has it; 0 if the state is inconsistent. */
static uint64_t hash_row(const struct job *j, const struct pass_seq *q, int32_t row)
{
    struct fake_state *s = j->s;
    int32_t pos = j->pass->rows[row].pos, begin = pos / s->block * s->block, tail[TAIL];
    const struct record *record = record_at(s, q->lane, begin);
    uint64_t h = begin > 0 ? record->hash : FAKE_EMPTY;
    bool right = (begin == 0 || record->pos == begin) && take_tail(j, q, row, pos, tail);
    for (int32_t t = begin; t <= pos; t++) {
        int32_t r = path_row(j, q, row, t);
        const struct raw *raw = row_at(s, q->lane, r >= 0 ? j->pass->rows[r].slot_pos : t);
        right = right && raw->pos == t;
        h = fake_hash_step(h, raw->token);
    }
    return right ? h : 0;
}

/* A row that ends a block: its record goes to the lane, and to each snapshot that asked
 * for it in this pass. */
static void pass_boundary(const struct job *j, const struct pass_seq *q, int32_t row, uint64_t h)
{
    struct fake_state *s = j->s;
    int32_t boundary = j->pass->rows[row].pos + 1;
    struct record r = {.pos = boundary, .hash = h};
    take_tail(j, q, row, boundary, r.tail);
    *record_at(s, q->lane, boundary) = r;
    for (int32_t i = 0; i < j->pass->n_keeps; i++) {
        const struct state_keep *k = &j->pass->keeps[i];
        if (k->lane == q->lane && k->pos == boundary) {
            ASSERT(k->slot >= s->n_lanes && k->slot < s->n_lanes + s->n_snapshots && !q->tree);
            s->snapshots[k->slot - s->n_lanes] = r;
        }
    }
}

/* Checks the keeps of a pass: each lies within the rows of one of its sequences, and no snapshot is
 * written twice. */
static void check_keeps(const struct fake_state *s, const struct pass *p)
{
    for (int32_t i = 0; i < p->n_keeps; i++) {
        const struct state_keep *k = &p->keeps[i];
        bool found = false;
        for (int32_t q = 0; q < p->n_seqs; q++) {
            found |= p->seqs[q].lane == k->lane && k->pos > p->seqs[q].n_past &&
                     k->pos <= p->seqs[q].n_past + p->seqs[q].n_rows;
        }
        ASSERT(found && k->pos % s->block == 0);
        for (int32_t o = 0; o < i; o++) {
            ASSERT(p->keeps[o].slot != k->slot);
        }
    }
}

/* Trees must not extend over the end of a block: a record belongs to one path, so only the root may
 * pass a boundary. Inputs are written after all rows were hashed, because sibling nodes read the
 * same ones. */
static void run_sequence(const struct job *j, const struct pass_seq *q, uint64_t *hashes)
{
    struct fake_state *s = j->s;
    for (int32_t row = q->first_row; row < q->first_row + q->n_rows; row++) {
        const struct pass_row *r = &j->pass->rows[row];
        bool root = row == q->first_row;
        ASSERT(!q->tree || (r->pos / s->block == q->n_past / s->block));
        *row_at(s, q->lane, r->slot_pos) = (struct raw){j->tokens[row], r->pos};
        hashes[row] = hash_row(j, q, row);
        if ((r->pos + 1) % s->block == 0) {
            ASSERT(!q->tree || root);
            pass_boundary(j, q, row, hashes[row]);
        }
    }
    for (int32_t row = q->first_row; row < q->first_row + q->n_rows; row++) {
        const struct pass_row *r = &j->pass->rows[row];
        *input_at(s, q->lane, r->slot_pos) = (struct raw){j->tokens[row], r->pos};
    }
}

void fake_state_rows(struct fake_state *s, const struct pass *pass, const int32_t *tokens,
                     const struct fake_history *history, uint64_t *hashes)
{
    const struct job j = {s, pass, tokens, history};
    check_keeps(s, pass);
    for (int32_t i = 0; i < pass->n_seqs; i++) {
        run_sequence(&j, &pass->seqs[i], hashes);
    }
}
