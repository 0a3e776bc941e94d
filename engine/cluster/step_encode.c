// SPDX-License-Identifier: Apache-2.0
#include "engine/cluster/step_wire.h"

static void put_i32(struct buf *b, int32_t v)
{
    buf_put(b, &v, sizeof v);
}

/* The receiver uses lists of ids where they lie, so everything is a multiple of 4 bytes. */
static void put_ids(struct buf *b, const int32_t *ids, int32_t n)
{
    put_i32(b, n);
    buf_put(b, ids, (size_t)n * sizeof *ids);
}

/* get_params (step_decode.c) reads this order. */
static void put_params(struct buf *b, const struct sampling_params *p)
{
    const float reals[] = {
        p->temperature,       p->top_p,           p->min_p, p->repetition_penalty,
        p->frequency_penalty, p->presence_penalty};
    const int32_t ints[] = {p->top_k,
                            (int32_t)(p->seed & 0xFFFFFFFFu),
                            (int32_t)(p->seed >> 32),
                            p->max_tokens,
                            p->min_tokens,
                            p->ignore_eos | p->logprobs << 1 | p->prompt_logprobs << 2,
                            p->top_logprobs,
                            p->prompt_top_logprobs,
                            p->num_speculative_tokens};
    int32_t n_bad = 0;
    for (int32_t i = 0; i < p->n_bad_words; i++) {
        n_bad += p->bad_word_lengths[i];
    }
    buf_put(b, reals, sizeof reals);
    buf_put(b, ints, sizeof ints);
    put_ids(b, p->stop_ids, p->n_stop_ids);
    put_i32(b, p->n_bias);
    buf_put(b, p->bias, (size_t)p->n_bias * sizeof *p->bias);
    put_ids(b, p->allowed, p->n_allowed);
    put_ids(b, p->bad_word_lengths, p->n_bad_words);
    put_ids(b, p->bad_word_tokens, n_bad);
}

static void put_lane(struct buf *b, const struct lane_update *u)
{
    put_i32(b, u->lane);
    put_i32(b, u->first_block);
    put_i32(b, u->fresh);
    put_ids(b, u->blocks, u->n_blocks);
    if (u->fresh) {
        put_ids(b, u->prompt, u->n_prompt);
        put_ids(b, u->generated, u->n_generated);
        put_params(b, &u->params);
    }
}

static void put_draw(struct buf *b, const struct pass_draw *d)
{
    const int32_t v[] = {d->out_row,
                         d->lane,
                         d->pos,
                         d->n_prompt,
                         d->kind | d->keep << 8 | d->noise << 9 | d->logprobs << 10,
                         d->top_n,
                         d->tree_row,
                         d->more,
                         d->more_slot,
                         d->mask,
                         d->logits};
    buf_put(b, v, sizeof v);
}

static void put_masks(struct buf *b, const struct pass *p, int32_t vocab)
{
    buf_put(b, p->masks, (size_t)p->n_masks * (size_t)mask_words(vocab) * sizeof *p->masks);
}

static void put_tree(struct buf *b, const struct pass *p)
{
    if (p->tree_mask) {
        if (b->n_bytes % 8 != 0) {
            put_i32(b, 0); // padding: the receiver uses the words where they lie
        }
        buf_put(b, p->tree_mask, (size_t)p->n_rows * TREE_MASK_WORDS * sizeof *p->tree_mask);
    }
}

/* If the draws wait for masks, these are not known yet and are sent later (step_wire.h). */
static void put_pass(struct buf *b, const struct pass *p, int32_t vocab)
{
    const int32_t counts[] = {
        p->n_rows,       p->n_seqs, p->n_groups,          p->n_out, p->n_draws,  p->n_masks,
        p->draws_wait,   p->n_pool, p->tree_mask != NULL, p->model, p->hidden.n, p->n_logits,
        p->bidirectional};
    buf_put(b, counts, sizeof counts);
    buf_put(b, p->hidden.ids, (size_t)p->hidden.n * sizeof *p->hidden.ids);
    buf_put(b, p->rows, (size_t)p->n_rows * sizeof *p->rows);
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct pass_seq *s = &p->seqs[i];
        const int32_t v[] = {s->lane, s->first_row, s->n_rows, s->n_past,
                             s->tree, s->second,    s->adapter};
        buf_put(b, v, sizeof v);
    }
    buf_put(b, p->groups, (size_t)p->n_groups * sizeof *p->groups);
    buf_put(b, p->out_rows, (size_t)p->n_out * sizeof *p->out_rows);
    for (int32_t i = 0; i < p->n_draws; i++) {
        put_draw(b, &p->draws[i]);
    }
    if (!p->draws_wait) {
        put_masks(b, p, vocab);
    }
    for (int32_t i = 0; i < p->n_pool; i++) {
        const struct pass_pool *q = &p->pool[i];
        const int32_t v[] = {q->lane, q->first_out, q->n_out, q->start | q->finish << 1};
        buf_put(b, v, sizeof v);
    }
    put_i32(b, p->n_keeps);
    buf_put(b, p->keeps, (size_t)p->n_keeps * sizeof *p->keeps);
    put_tree(b, p);
}

static void put_moves(struct buf *b, const struct tree_moves *m)
{
    put_i32(b, m->n_paths);
    for (int32_t i = 0; i < m->n_paths; i++) {
        put_i32(b, m->paths[i].lane);
        put_i32(b, m->paths[i].first);
        put_ids(b, m->paths[i].tokens, m->paths[i].n);
    }
    for (int32_t set = 0; set <= MAX_DRAFT_MODELS; set++) {
        put_i32(b, m->n_moves[set]);
        buf_put(b, m->moves[set], (size_t)m->n_moves[set] * sizeof *m->moves[set]);
    }
}

static void put_news(struct buf *b, const struct step *st)
{
    put_i32(b, st->n_lanes);
    put_i32(b, st->n_copies);
    put_i32(b, st->n_state_copies);
    for (int32_t i = 0; i < st->n_lanes; i++) {
        put_lane(b, &st->lanes[i]);
    }
    buf_put(b, st->copies, (size_t)st->n_copies * sizeof *st->copies);
    buf_put(b, st->state_copies, (size_t)st->n_state_copies * sizeof *st->state_copies);
    put_i32(b, st->n_page_updates);
    put_i32(b, st->n_page_copies);
    for (int32_t i = 0; i < st->n_page_updates; i++) {
        const struct page_update *u = &st->page_updates[i];
        put_i32(b, u->lane);
        put_i32(b, u->first);
        put_ids(b, u->pages, u->n);
    }
    buf_put(b, st->page_copies, (size_t)st->n_page_copies * sizeof *st->page_copies);
    put_moves(b, st->moves);
}

void step_encode(const struct step *st, const struct pass *level, struct buf *out)
{
    put_i32(out, st->slot);
    put_i32(out, level ? STEP_LEVEL : STEP_WHOLE);
    put_i32(out, st->begun);
    if (!st->begun) {
        put_news(out, st);
    }
    if (level) {
        put_pass(out, level, st->vocab);
        return;
    }
    put_i32(out, st->want.logits | st->want.pooled << 1);
    put_i32(out, st->n_draft_passes);
    for (int32_t i = 0; i < st->n_draft_passes; i++) {
        put_pass(out, &st->draft[i].pass, st->vocab);
    }
    put_pass(out, &st->pass, st->vocab);
}

void step_encode_draws(const struct step *st, struct buf *out)
{
    put_i32(out, st->slot);
    put_i32(out, STEP_DRAWS);
    put_masks(out, &st->pass, st->vocab);
    put_tree(out, &st->pass);
}
