// SPDX-License-Identifier: Apache-2.0
/* Drawing tokens: the definition that every backend follows (ops.h, sample_args). Arithmetic:
 *  - a score is one float; bias is added, then score > 0 ? score / r : score * r, then
 *    score -= frequency * count, then score -= presence; each step is rounded separately;
 *  - the temperature divides: score / temperature;
 *  - probabilities are exact_exp(score - max) as integers in units of 2^-40, so that their sums do
 *    not depend on the order in which they are added;
 *  - scores are compared by score_key, an integer; of equal scores the one with the lower id wins.
 */
#include "cpu/cpu_sample.h"
#include "engine/base/exact.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

struct draw_job {
    const struct cpu_backend *cpu;
    const struct sample_args *a;
    struct slot_results *slot;
};

enum { SELECT_BITS = 11, SELECT_BINS = 1 << SELECT_BITS };

/* ---- step 3: top-k, top-p, min-p ---------------------------------------------------------- */

/* Keys have the same order as the floats. NaN and -infinity have key 0 and are never kept. */
static uint32_t score_key(float x)
{
    if (!(x > -INFINITY)) {
        return 0;
    }
    uint32_t u = exact_to_bits(x + 0.0f); // -0 and 0 are equal
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Keeps the highest scores (of equal ones those with lower ids) until their weights reach `target`.
 * The weights are 1 (top-k) or the probabilities (top-p). A radix search, starting at the top bits
 * of the key, finds the score at which the target is reached. All other scores become -infinity. */
static void keep_top(float *s, int32_t n, uint64_t target, bool by_mass,
                     const struct scratchpad *pad)
{
    static const int shifts[] = {32 - SELECT_BITS, 32 - 2 * SELECT_BITS, 0};
    uint32_t prefix = 0, known = 0; // the bits of the threshold that are known, and their mask
    uint64_t left = target;
    for (int step = 0; step < 3; step++) {
        memset(pad->mass, 0, SELECT_BINS * sizeof *pad->mass);
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = score_key(s[i]);
            if (key != 0 && (key & known) == prefix) {
                uint32_t bin = (key & ~known) >> shifts[step];
                pad->mass[bin] += by_mass ? mass_of(pad->shares[i]) : 1;
            }
        }
        int32_t bin = SELECT_BINS - 1;
        while (bin > 0 && pad->mass[bin] < left) {
            left -= pad->mass[bin--];
        }
        prefix |= (uint32_t)bin << shifts[step];
        known = ~((1u << shifts[step]) - 1);
    }
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = score_key(s[i]);
        if (key == prefix && left > 0) {
            uint64_t w = by_mass ? mass_of(pad->shares[i]) : 1;
            left = w < left ? left - w : 0;
        } else if (key <= prefix) {
            s[i] = -INFINITY;
        }
    }
}

/* Applies top-k, top-p and min-p, in this order: scores that they exclude become -infinity. */
static void narrow(const struct cpu_backend *cpu, const struct sampling_params *p, float *s,
                   int32_t n, float max, const struct scratchpad *pad)
{
    if (p->top_p < 1.0f || p->min_p > 0.0f) {
        cpu->kernels->exp_exact(s, n, max, pad->shares);
    }
    if (p->top_k > 0 && p->top_k < n) {
        keep_top(s, n, (uint64_t)p->top_k, false, pad);
    }
    if (p->top_p < 1.0f) {
        uint64_t total = 0;
        for (int32_t i = 0; i < n; i++) {
            if (!(s[i] > -INFINITY)) { // top-k has dropped it
                pad->shares[i] = 0.0f;
            }
            total += mass_of(pad->shares[i]);
        }
        double target = ceil((double)p->top_p * (double)total);
        keep_top(s, n, target >= 1.0 ? (uint64_t)target : 1, true, pad);
    }
    for (int32_t i = 0; p->min_p > 0.0f && i < n; i++) {
        if (pad->shares[i] < p->min_p) {
            s[i] = -INFINITY;
        }
    }
}

/* ---- one draw ----------------------------------------------------------------------------- */

/* Draws further ids, each as if the earlier ones did not exist. */
static void draw_more(const struct cpu_backend *cpu, const struct pass_draw *d, bool noise,
                      int32_t n, struct draw_result *r, const struct scratchpad *pad)
{
    const uint64_t seed = cpu->lanes[d->lane].params.seed;
    int32_t last = r->token;
    for (r->n_top = 0; r->n_top < d->more && r->n_top < MAX_SIBLINGS; r->n_top++) {
        pad->scores[last] = -INFINITY;
        struct argmax best;
        if (noise) {
            best = cpu->kernels->argmax_gumbel(pad->scores, n, seed, d->pos + 1);
        } else {
            best = cpu->kernels->argmax(pad->scores, n);
        }
        last = best.id >= 0 && best.value > -INFINITY ? best.id : r->token;
        r->top_ids[r->n_top] = last;
    }
}

/* Makes one draw. Leaves the final scores in place, except for a plain greedy draw that needs
 * nothing more. */
static int32_t draw_token(const struct cpu_backend *cpu, const struct pass_draw *d,
                          const float *logits, int32_t n, const struct scratchpad *pad)
{
    const struct cpu_kernels *kernels = cpu->kernels;
    const struct lane *lane = &cpu->lanes[d->lane];
    const struct sampling_params *p = &lane->params;
    float temperature = d->kind == DRAW_DRAFT && !d->noise ? 0.0f : p->temperature;
    bool plain = cpu_is_plain(p, d);
    if (plain && temperature == 0.0f && d->more == 0) {
        return kernels->argmax(logits, n).id;
    }
    struct known known;
    cpu_find_known(cpu, d, &known);
    memset(pad->count, 0, (size_t)n * sizeof *pad->count);
    const uint32_t *mask = cpu_mask_of(cpu, d);
    cpu_make_scores(lane, d, &known, logits, n, mask, ALL_BANS, pad);
    struct argmax best = kernels->argmax(pad->scores, n);
    for (int bans = LASTING_BANS; !plain && !(best.value > -INFINITY) && bans >= NO_BANS; bans--) {
        cpu_make_scores(lane, d, &known, logits, n, mask, (enum bans)bans, pad);
        best = kernels->argmax(pad->scores, n);
    }
    if (temperature == 0.0f) {
        return best.id;
    }
    for (int32_t i = 0; temperature != 1.0f && i < n; i++) {
        pad->scores[i] = pad->scores[i] / temperature;
    }
    float max = best.value / temperature;
    narrow(cpu, p, pad->scores, n, max, pad);
    if (d->law > 0 && d->kind == DRAW_SAMPLE) {
        int32_t token = cpu_test_drafts(cpu, d, n, max, pad);
        return token >= 0 ? token : best.id;
    }
    if (d->law > 0) {
        float *law = cpu->laws + (int64_t)(d->law - 1) * cpu->limits.vocab;
        cpu->law_totals[d->law - 1] = cpu_make_law(cpu, pad->scores, n, max, law);
    }
    int32_t id = kernels->argmax_gumbel(pad->scores, n, p->seed, d->pos + 1).id;
    return id >= 0 ? id : best.id;
}

/* Computes the log-softmax of the raw logits at `token`, and the most likely ids. */
static void fill_logprobs(const struct cpu_kernels *kernels, const struct pass_draw *d,
                          const float *logits, int32_t n, struct draw_result *r)
{
    float max = kernels->argmax(logits, n).value;
    float log_total = max + (float)log(kernels->exp_total(logits, n, max));
    r->log_total = log_total;
    r->logprob = r->token >= 0 && r->token < n ? logits[r->token] - log_total : -INFINITY;
    int32_t wanted = lesser(d->top_n, MAX_TOP_LOGPROBS);
    wanted = lesser(wanted, n);
    r->n_top = 0;
    for (int32_t i = 0; i < n && wanted > 0; i++) {
        if (r->n_top == wanted && !(logits[i] > r->top_logprobs[wanted - 1])) {
            continue;
        }
        int32_t at = r->n_top < wanted ? r->n_top++ : wanted - 1;
        for (; at > 0 && logits[i] > r->top_logprobs[at - 1]; at--) {
            r->top_logprobs[at] = r->top_logprobs[at - 1];
            r->top_ids[at] = r->top_ids[at - 1];
        }
        r->top_logprobs[at] = logits[i];
        r->top_ids[at] = i;
    }
    for (int32_t i = 0; i < r->n_top; i++) {
        r->top_logprobs[i] -= log_total;
    }
}

/* Keeps the row for the engine; ids that are never drawn get -infinity. */
static void keep_logits(const struct draw_job *job, const struct pass_draw *d, const float *logits,
                        int32_t n)
{
    int32_t vocab = job->cpu->limits.vocab;
    float *row = job->slot->logits + (int64_t)(d->logits - 1) * vocab;
    memcpy(row, logits, (size_t)n * sizeof *row);
    for (int32_t i = n; i < vocab; i++) {
        row[i] = -INFINITY;
    }
}

/* True if a token can be drawn from these logits. */
static bool is_sound(const float *logits, int32_t n)
{
    enum { PIECE = 16 }; // compilers turn loops of this length into vector code
    int32_t bad = 0, live = 0, i = 0;
    for (; i + PIECE <= n; i += PIECE) {
        for (int32_t k = 0; k < PIECE; k++) {
            bad |= !(logits[i + k] < INFINITY);
            live |= logits[i + k] > -INFINITY;
        }
    }
    for (; i < n; i++) {
        bad |= !(logits[i] < INFINITY);
        live |= logits[i] > -INFINITY;
    }
    return !bad && live;
}

/* The result if no token can be drawn from the logits: ids that the next rows can be fed with, and
 * no law. */
static void draw_nothing(const struct cpu_backend *cpu, const struct pass_draw *d,
                         struct draw_result *r)
{
    r->broken = true;
    if (d->kind != DRAW_SCORE) {
        r->token = 0;
    }
    r->n_top = d->kind == DRAW_DRAFT ? d->more : 0;
    memset(r->top_ids, 0, sizeof r->top_ids);
    if (d->kind == DRAW_DRAFT && d->law > 0) {
        size_t bytes = (size_t)cpu->limits.vocab * sizeof *cpu->laws;
        memset(cpu->laws + (int64_t)(d->law - 1) * cpu->limits.vocab, 0, bytes);
        cpu->law_totals[d->law - 1] = 0;
    }
}

/* One draw: its token, its siblings, log-probabilities, and the row of logits, as far as they
 * are requested. */
static void draw_item(void *arg, int32_t item, int32_t thread)
{
    const struct draw_job *job = arg;
    const struct cpu_backend *cpu = job->cpu;
    const struct pass_draw *d = &cpu->pass->draws[item];
    int32_t n = job->a->n_vocab_used;
    ASSERT(d->lane >= 0 && d->lane < cpu->limits.max_lanes && d->out_row >= 0 &&
           d->out_row < job->a->n_out && d->pos >= 0 && d->pos + 1 < cpu->history_len &&
           d->law >= 0 && d->law <= cpu->limits.max_laws && d->more >= 0 &&
           d->more < MAX_SIBLINGS && d->more_slot >= 0 &&
           d->more_slot + d->more <= cpu->history_len && d->mask >= 0 &&
           d->mask <= cpu->pass->n_masks && d->logits >= 0 && d->logits <= cpu->pass->n_logits);
    char *scratch = cpu->scratch[thread].p;
    struct scratchpad pad = {
        .mass = (uint64_t *)scratch,
        .count = (uint32_t *)(scratch + SELECT_BINS * sizeof(uint64_t)),
    };
    pad.scores = (float *)(pad.count + cpu->limits.vocab);
    pad.shares = pad.scores + cpu->limits.vocab;
    const float *logits = tensor_row(&job->a->logits, d->out_row);
    struct draw_result *r = &job->slot->draws[job->slot->n_draws_used + item];
    r->n_top = 0;
    r->logprob = r->log_total = 0.0f;
    r->broken = false;
    if (d->kind == DRAW_SCORE) {
        r->token = cpu->lanes[d->lane].history[d->pos + 1];
    }
    if (!is_sound(logits, n)) {
        draw_nothing(cpu, d, r);
        return;
    }
    if (d->kind != DRAW_SCORE) {
        r->token = draw_token(cpu, d, logits, n, &pad);
        if (d->kind == DRAW_DRAFT && d->more > 0) {
            draw_more(cpu, d, d->noise && cpu->lanes[d->lane].params.temperature > 0.0f, n, r,
                      &pad);
        }
    }
    if (d->logprobs || d->kind == DRAW_SCORE) {
        fill_logprobs(cpu->kernels, d, logits, n, r);
    }
    if (d->logits > 0) {
        keep_logits(job, d, logits, n);
    }
}

enum status cpu_sample(struct backend *be, const struct sample_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->pass && a->n_draws <= cpu->pass->n_draws);
    ASSERT(a->n_vocab_used >= 1 && a->n_vocab_used <= cpu->limits.vocab);
    struct draw_job job = {.cpu = cpu, .a = a, .slot = &cpu->slots[cpu->slot]};
    pool_run(cpu->pool, a->n_draws, draw_item, &job);
    // Written after all draws, because a draw may read what another one writes.
    for (int32_t i = 0; i < a->n_draws; i++) {
        const struct pass_draw *d = &cpu->pass->draws[i];
        if (d->keep && d->kind != DRAW_SCORE) {
            const struct draw_result *r = &job.slot->draws[job.slot->n_draws_used + i];
            int32_t *history = cpu->lanes[d->lane].history;
            history[d->pos + 1] = r->token;
            for (int32_t k = 0; d->kind == DRAW_DRAFT && d->more_slot > 0 && k < d->more; k++) {
                history[d->more_slot + k] = r->top_ids[k];
            }
        }
    }
    return OK;
}
