// SPDX-License-Identifier: Apache-2.0
/* The law of a draft (the distribution that it was drawn from), and the test that accepts or
 * rejects the draft. */
#include "cpu/cpu_sample.h"
#include "engine/base/exact.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Writes the shares of the tokens that are kept, and returns the sum of their masses. */
uint64_t cpu_make_law(const struct cpu_backend *cpu, const float *s, int32_t n, float max,
                      float *shares)
{
    uint64_t total = 0;
    cpu->kernels->exp_exact(s, n, max, shares);
    for (int32_t i = 0; i < n; i++) {
        if (!(s[i] > -INFINITY)) {
            shares[i] = 0.0f;
        }
        total += mass_of(shares[i]);
    }
    return total;
}

/* The acceptance test of drafts, with p and q at each stage. Stage s + 1 is the distribution that
 * is left after draft s was refused. */
struct trial {
    const float *p, *q; // shares at stage 0
    int32_t n;          // number of drafts refused so far, which is the current stage
    double p_total[MAX_SIBLINGS + 1], q_total[MAX_SIBLINGS + 1];
    int32_t refused[MAX_SIBLINGS];
};

static double q_mass(const struct trial *t, int32_t stage, int32_t id)
{
    for (int32_t s = 0; s < stage; s++) {
        if (t->refused[s] == id) {
            return 0.0;
        }
    }
    return (double)mass_of(t->q[id]);
}

/* The excess of p over q after stage s, if the mass of p there is `p`. */
static double above(const struct trial *t, int32_t s, double p, int32_t id)
{
    return p / t->p_total[s] - q_mass(t, s, id) / t->q_total[s];
}

static double p_mass(const struct trial *t, int32_t id)
{
    double m = (double)mass_of(t->p[id]);
    for (int32_t s = 0; s < t->n && m > 0.0; s++) {
        double w = above(t, s, m, id);
        m = w > 0.0 ? (double)(uint64_t)(w * 4503599627370496.0) : 0.0;
    }
    return m;
}

/* Moves to the next stage. Returns false, and changes nothing, if p exceeds q nowhere. */
static bool refuse(struct trial *t, int32_t draft, int32_t n_vocab)
{
    uint64_t total = 0;
    t->refused[t->n++] = draft;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (t->p[i] > 0.0f) {
            total += (uint64_t)p_mass(t, i);
        }
    }
    if (total == 0) {
        t->n--;
        return false;
    }
    t->p_total[t->n] = (double)total;
    t->q_total[t->n] = t->q_total[t->n - 1] - q_mass(t, t->n - 1, draft);
    return true;
}

/* The arg-max of log p + noise, or of log(p - q) + noise; -1 if nothing is left. */
static int32_t draw_left(const struct trial *t, bool above_q, int32_t n, uint64_t seed,
                         int32_t position)
{
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        double m = t->p[i] > 0.0f ? p_mass(t, i) : 0.0;
        float w = (float)(m > 0.0 && above_q ? above(t, t->n, m, i) : m);
        if (w < FLT_MIN) {
            continue;
        }
        float value =
            exact_log(w) + gumbel_noise(rng_bits(seed, position, RNG_RESIDUAL, (uint32_t)i));
        if (value > most) {
            most = value;
            best = i;
        }
    }
    return best;
}

/* The drafts that follow the draw's row. In a chain there is one, in the history; in a tree they
 * are the children of the row. */
static int32_t find_drafts(const struct cpu_backend *cpu, const struct pass_draw *d,
                           int32_t *drafts)
{
    if (d->tree_row < 0) {
        drafts[0] = cpu->lanes[d->lane].history[d->pos + 1];
        return 1;
    }
    const struct pass *pass = cpu->pass;
    const struct pass_seq *seq = &pass->seqs[cpu->row_seq[d->tree_row]];
    const uint64_t *own = pass->tree_mask + (int64_t)d->tree_row * TREE_MASK_WORDS;
    int32_t n = 0;
    for (int32_t i = d->tree_row - seq->first_row + 1; i < seq->n_rows && n < MAX_SIBLINGS; i++) {
        uint64_t mask[TREE_MASK_WORDS];
        memcpy(mask, pass->tree_mask + (int64_t)(seq->first_row + i) * TREE_MASK_WORDS,
               sizeof mask);
        mask[i / 64] &= ~((uint64_t)1 << (i % 64));
        if (memcmp(mask, own, sizeof mask) == 0) {
            drafts[n++] = cpu->row_tokens[seq->first_row + i];
        }
    }
    return n;
}

/* Returns the accepted draft, or another token. The scores are those after top-k, top-p and
 * min-p. */
int32_t cpu_test_drafts(const struct cpu_backend *cpu, const struct pass_draw *d, int32_t n,
                        float max, const struct scratchpad *pad)
{
    const uint64_t seed = cpu->lanes[d->lane].params.seed;
    int32_t drafts[MAX_SIBLINGS], n_drafts = find_drafts(cpu, d, drafts), last = -1;
    struct trial t = {.p = pad->shares, .q = cpu->laws + (int64_t)(d->law - 1) * cpu->limits.vocab};
    t.p_total[0] = (double)cpu_make_law(cpu, pad->scores, n, max, pad->shares);
    t.q_total[0] = (double)cpu->law_totals[d->law - 1];
    for (int32_t i = 0; i < n_drafts; i++) {
        int32_t draft = drafts[i];
        double q = draft >= 0 && draft < n ? q_mass(&t, t.n, draft) : 0.0;
        if (last == draft || q == 0.0) {
            continue;
        }
        if (last >= 0 && !refuse(&t, last, n)) {
            last = -1;
            break;
        }
        q = q_mass(&t, t.n, draft);
        double u = rng_uniform(rng_bits(seed, d->pos + 1, RNG_ACCEPT, (uint32_t)i));
        if (p_mass(&t, draft) * t.q_total[t.n] > u * q * t.p_total[t.n]) {
            return draft;
        }
        last = draft;
    }
    int32_t id = last >= 0 ? draw_left(&t, true, n, seed, d->pos + 1) : -1;
    return id >= 0 ? id : draw_left(&t, false, n, seed, d->pos + 1);
}
