// SPDX-License-Identifier: Apache-2.0
/* The answers of the fake backend, and the op that draws them. */
#include "test/engine/fake_internal.h"
#include "test/engine/fake_state.h"

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/minmax.h"

#include <math.h>

/* The hash of a prefix is its identity: any other token or order changes it. */
static uint64_t prefix_hash(const int32_t *tokens, int32_t n)
{
    uint64_t h = FAKE_EMPTY;
    for (int32_t i = 0; i < n; i++) {
        h = fake_hash_step(h, tokens[i]);
    }
    return h;
}

/* Few different tokens, so that n-gram lookup sometimes finds something. */
static int32_t pick(uint64_t h, uint64_t seed, int32_t vocab)
{
    uint64_t n = vocab < 8 ? (uint64_t)vocab : 8;
    return (int32_t)(hash_mix(h ^ seed * 0x9e3779b97f4a7c15ULL) % n);
}

/* The answer under a mask: the first allowed id in an order that depends on the unmasked
 * answer. A mask of all ids changes nothing. */
int32_t fake_allowed(int32_t token, const uint32_t *mask, int32_t vocab)
{
    bool all = true;
    for (int32_t i = 0; i < vocab && all; i++) {
        all = mask[i / 32] >> (i % 32) & 1;
    }
    if (all) {
        return token;
    }
    for (int32_t i = 0; i < vocab; i++) {
        int32_t id = (token * 31 + i) % vocab;
        if (mask[id / 32] >> (id % 32) & 1) {
            return id;
        }
    }
    return token;
}

int32_t fake_next(const int32_t *tokens, int32_t n, uint64_t seed, int32_t vocab)
{
    return pick(prefix_hash(tokens, n), seed, vocab);
}

static float score(uint64_t h)
{
    return -(float)(h % 1000) / 100.0f;
}

float fake_logprob(const int32_t *tokens, int32_t n)
{
    return score(prefix_hash(tokens, n));
}

/* The hash of a row; if attention and recurrent layers disagree about it, the result is wrong. */
static uint64_t hash_of_row(struct fake *f, int32_t row)
{
    uint64_t h = f->row_hash[row];
    uint64_t other = f->state && f->pass->kv_set == 0 ? f->state_hash[row] : h;
    f->control->n_wrong += h != other;
    return h ^ (h ^ other) * 31;
}

/* Checks the history that penalties and bans read: in a tree the past, then the row's path. */
static void check_history(struct fake *f, const struct pass_draw *d, uint64_t want)
{
    int32_t n_history = d->pos + 1;
    const struct pass_seq *q = f->pass->seqs;
    while (d->tree_row >= q->first_row + q->n_rows) {
        q++;
    }
    if (d->tree_row >= 0) {
        n_history = q->n_past;
    }
    uint64_t h = prefix_hash(history_at(f, d->lane, 0), n_history);
    for (int32_t node = 0; d->tree_row >= 0 && node < q->n_rows; node++) {
        if (sees(f, d->tree_row, node)) {
            h = fake_hash_step(h, slot_at(f, d->lane, q->n_past + node)->token);
        }
    }
    f->control->n_wrong += h != want;
}

/* Ids for the children of a node of a tree: right ones, wrong ones, duplicates, in any order of
 * probability. */
static void fill_top(struct fake *f, struct draw_result *r, int32_t top_n, uint64_t h)
{
    r->logprob = f->control->garbage ? score(hash_mix(h)) : -0.2f;
    r->n_top = lesser(top_n, f->l.vocab);
    for (int32_t i = 0; i < r->n_top; i++) {
        uint64_t g = hash_mix(h + (uint64_t)i);
        if (f->control->garbage) {
            r->top_ids[i] = (int32_t)(g % 11);
        } else {
            r->top_ids[i] = (r->token + i) % f->l.vocab;
        }
        if (f->control->garbage) {
            r->top_logprobs[i] = score(g) + (g % 97 == 0 ? NAN : 0.0f);
        } else {
            r->top_logprobs[i] = -0.2f - 2.0f * (float)i;
        }
    }
}

/* Further drafts. The first is the token that the target draws, unless that is the draft itself. */
static void fill_more(struct fake *f, struct draw_result *r, const struct pass_draw *d, uint64_t h)
{
    int32_t right = pick(h, f->seeds[d->lane], f->l.vocab);
    for (r->n_top = 0; r->n_top < d->more; r->n_top++) {
        uint64_t g = hash_mix(h + (uint64_t)r->n_top);
        int32_t id;
        if (f->control->garbage) {
            id = (int32_t)(g % 11);
        } else {
            id = (right + r->n_top) % f->l.vocab;
        }
        r->top_ids[r->n_top] = id;
        if (d->keep && d->more_slot > 0) {
            *history_at(f, d->lane, d->more_slot + r->n_top) = id;
        }
    }
}

/* A row in which the draw's token is likely. */
static void fill_logits(struct fake *f, struct draw_result *r, const struct pass_draw *d,
                        uint64_t h)
{
    float *row = f->logits[f->slot_now] + (int64_t)(d->logits - 1) * f->l.vocab;
    double sum = 0;
    for (int32_t i = 0; i < f->l.vocab; i++) {
        row[i] = i == r->token ? 9.0f : (float)(hash_mix(h + (uint64_t)i) % 8);
        sum += exp((double)row[i]);
    }
    r->log_total = (float)log(sum);
    r->logprob = row[r->token] - r->log_total;
}

static bool is_broken(struct fake *f, const struct pass_draw *d)
{
    const struct pass_row *row = &f->pass->rows[f->pass->out_rows[d->out_row]];
    const int32_t token = row->token >= 0 ? row->token : *history_at(f, row->lane, row->slot_pos);
    return f->control->broken_after > 0 && token == f->control->broken_after;
}

/* The answer of each draw is a function of the row's hash, so it does not depend on the
 * batch. */
enum status fake_sample(struct backend *be, const struct sample_args *a)
{
    struct fake *f = fake_of(be);
    int64_t begin = f->control->timed ? clock_now_ns() : 0;
    ASSERT(f->pass->draws_wait == f->draws_came);
    f->draws_came = false;
    for (int32_t i = 0; i < a->n_draws; i++) {
        const struct pass_draw *d = &f->pass->draws[i];
        uint64_t h = hash_of_row(f, f->pass->out_rows[d->out_row]);
        struct draw_result *r = &f->results[f->slot_now][f->n_passes][i];
        int32_t *next = history_at(f, d->lane, d->pos + 1);
        *r = (struct draw_result){.broken = is_broken(f, d)};
        if (d->kind == DRAW_SCORE) {
            r->token = *next;
            r->logprob = score(fake_hash_step(h, *next));
            if (d->logits > 0) {
                fill_logits(f, r, d, h);
            }
            continue;
        }
        r->token = pick(h, f->seeds[d->lane], f->l.vocab);
        if (d->kind == DRAW_DRAFT && h % 3 == 0 && !f->control->perfect) {
            r->token = (r->token + 1) % f->l.vocab; // a draft model is not always right
        }
        if (d->mask > 0) {
            ASSERT(d->mask <= f->pass->n_masks && f->pass->n_masks <= f->l.max_masks);
            const int64_t words = mask_words(f->l.vocab);
            r->token = fake_allowed(r->token, f->pass->masks + (d->mask - 1) * words, f->l.vocab);
            f->control->n_masked++;
        }
        if (d->logits > 0) {
            ASSERT(d->logits <= f->pass->n_logits);
            fill_logits(f, r, d, h);
        }
        if (d->kind == DRAW_SAMPLE) {
            check_history(f, d, h);
        } else if (d->top_n > 0) {
            fill_top(f, r, d->top_n, h + (uint64_t)f->pass->model);
        }
        if (d->keep) {
            *next = r->token;
        }
        if (d->kind == DRAW_DRAFT && d->more > 0) {
            fill_more(f, r, d, h);
        }
    }
    if (f->control->timed) {
        f->control->busy_ns += clock_now_ns() - begin;
    }
    return OK;
}
