// SPDX-License-Identifier: Apache-2.0
/* Drawing tokens: the definition that every backend follows (ops.h, sample_args). Arithmetic:
 *  - a score is one float; bias is added, then score > 0 ? score / r : score * r, then
 *    score -= frequency * count, then score -= presence, each rounded on its own;
 *  - the temperature divides: score / temperature;
 *  - probabilities are exact_exp(score - max) as integers in units of 2^-40, so that their sums do
 *    not depend on the order in which they are added;
 *  - scores compare by score_key, an integer, equal scores by the lower id. */
#include "cpu/cpu_internal.h"
#include "engine/base/exact.h"
#include "engine/base/minmax.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The inputs of one draw. */
struct draw_job {
    const struct cpu_backend *cpu;
    const struct sample_args *a;
    struct slot_results *slot;
};

/* The tokens known at a draw: the history, and in a tree the path to the row as well. */
struct known {
    const int32_t *history;
    int32_t n_history;
    int32_t n_path;
    int32_t path[MAX_TREE_NODES];
};

struct scratchpad {
    float *scores;   // [vocab]
    float *shares;   // [vocab] exact_exp(score - max)
    uint32_t *count; // [vocab] occurrences; all zero between uses
    uint64_t *mass;  // [SELECT_BINS]
};

enum { SELECT_BITS = 11, SELECT_BINS = 1 << SELECT_BITS };

static int32_t token_at(const struct known *k, int32_t i)
{
    return i < k->n_history ? k->history[i] : k->path[i - k->n_history];
}

static void find_known(const struct cpu_backend *cpu, const struct pass_draw *d, struct known *k)
{
    k->history = cpu->lanes[d->lane].history;
    k->n_history = d->pos + 1;
    k->n_path = 0;
    if (d->tree_row < 0) {
        return;
    }
    const struct pass *pass = cpu->pass;
    ASSERT(d->tree_row < pass->n_rows && pass->tree_mask);
    const struct pass_seq *seq = &pass->seqs[cpu->row_seq[d->tree_row]];
    const uint64_t *mask = pass->tree_mask + (int64_t)d->tree_row * TREE_MASK_WORDS;
    k->n_history = seq->n_past;
    for (int32_t i = 0; i < seq->n_rows; i++) {
        if (mask[i / 64] >> (i % 64) & 1) {
            k->path[k->n_path++] = cpu->row_tokens[seq->first_row + i];
        }
    }
}

/* ---- step 1: bias, penalties, bans -------------------------------------------------------- */

static void penalise(const struct sampling_params *p, const struct known *k, int32_t n_prompt,
                     int32_t n_vocab, const struct scratchpad *pad)
{
    int32_t n = k->n_history + k->n_path;
    bool repeats = p->repetition_penalty != 1.0f;
    bool counts = p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f;
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && pad->count[t] == 0) {
            pad->count[t] = 1;
            float s = pad->scores[t];
            pad->scores[t] = s > 0.0f ? s / p->repetition_penalty : s * p->repetition_penalty;
        }
    }
    for (int32_t i = 0; repeats && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            pad->count[t] = 0;
        }
    }
    for (int32_t i = n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab) {
            pad->count[t]++;
        }
    }
    for (int32_t i = n_prompt; counts && i < n; i++) {
        int32_t t = token_at(k, i);
        if (t >= 0 && t < n_vocab && pad->count[t] > 0) {
            float frequency = p->frequency_penalty * (float)pad->count[t];
            pad->scores[t] = pad->scores[t] - frequency;
            pad->scores[t] = pad->scores[t] - p->presence_penalty;
            pad->count[t] = 0;
        }
    }
}

static void ban(float *scores, int32_t token, int32_t n_vocab)
{
    if (token >= 0 && token < n_vocab) {
        scores[token] = -INFINITY;
    }
}

static void ban_words(const struct sampling_params *p, const struct known *k, float *scores,
                      int32_t n_vocab)
{
    int32_t n = k->n_history + k->n_path;
    const int32_t *word = p->bad_word_tokens;
    for (int32_t w = 0; w < p->n_bad_words; word += p->bad_word_lengths[w++]) {
        int32_t tail = p->bad_word_lengths[w] - 1, i = 0;
        while (i < tail && tail <= n && token_at(k, n - tail + i) == word[i]) {
            i++;
        }
        if (i == tail) {
            ban(scores, word[tail], n_vocab);
        }
    }
}

/* Clears what is not allowed. The allowed scores are saved in `count` meanwhile, because ids may
 * come in any order and more than once. */
static void keep_allowed(const struct sampling_params *p, int32_t n_vocab,
                         const struct scratchpad *pad)
{
    for (int32_t i = 0; i < p->n_allowed; i++) {
        if (p->allowed[i] >= 0 && p->allowed[i] < n_vocab) {
            pad->count[p->allowed[i]] = 1;
        }
    }
    for (int32_t t = 0; t < n_vocab; t++) {
        if (pad->count[t] == 0) {
            pad->scores[t] = -INFINITY;
        }
        pad->count[t] = 0;
    }
}

/* The draw's own mask: NULL if it has none. */
static const uint32_t *mask_of(const struct cpu_backend *cpu, const struct pass_draw *d)
{
    if (d->mask > 0) {
        return cpu->pass->masks + (int64_t)(d->mask - 1) * mask_words(cpu->limits.vocab);
    }
    return NULL;
}

static void keep_masked(const uint32_t *mask, float *scores, int32_t n_vocab)
{
    for (int32_t t = 0; mask && t < n_vocab; t++) {
        if (!(mask[t / 32] >> (t % 32) & 1)) {
            scores[t] = -INFINITY;
        }
    }
}

/* If they leave nothing to draw, the bans of min_tokens are dropped first, then all bans. */
enum bans { NO_BANS, LASTING_BANS, ALL_BANS };

static void make_scores(const struct sampling_params *p, const struct pass_draw *d,
                        const struct known *k, const float *logits, int32_t n_vocab,
                        const uint32_t *mask, enum bans bans, const struct scratchpad *pad)
{
    memcpy(pad->scores, logits, (size_t)n_vocab * sizeof *logits);
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= 0 && p->bias[i].token < n_vocab) {
            pad->scores[p->bias[i].token] += p->bias[i].bias;
        }
    }
    penalise(p, k, d->n_prompt, n_vocab, pad);
    keep_masked(mask, pad->scores, n_vocab); // not a ban: never dropped
    if (bans == NO_BANS) {
        return;
    }
    if (p->n_allowed > 0) {
        keep_allowed(p, n_vocab, pad);
    }
    ban_words(p, k, pad->scores, n_vocab);
    bool too_soon = bans == ALL_BANS && d->pos + 1 - d->n_prompt < p->min_tokens;
    for (int32_t i = 0; too_soon && i < p->n_stop_ids; i++) {
        ban(pad->scores, p->stop_ids[i], n_vocab);
    }
}

static bool is_plain(const struct sampling_params *p, const struct pass_draw *d)
{
    return p->n_bias == 0 && p->repetition_penalty == 1.0f && p->frequency_penalty == 0.0f &&
           p->presence_penalty == 0.0f && p->n_allowed == 0 && p->n_bad_words == 0 &&
           d->mask == 0 && (p->n_stop_ids == 0 || d->pos + 1 - d->n_prompt >= p->min_tokens);
}

/* ---- step 3: top-k, top-p, min-p ---------------------------------------------------------- */

/* Orders like the floats; NaN and -infinity have key 0 and are never kept. */
static uint32_t score_key(float x)
{
    if (!(x > -INFINITY)) {
        return 0;
    }
    uint32_t u = exact_to_bits(x + 0.0f); // -0 and 0 are equal
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static uint64_t mass_of(float share)
{
    return (uint64_t)(int64_t)(share * 1099511627776.0f);
}

/* Keeps the highest scores (ties by lower id) until their weights reach `target`: weights are 1
 * (top-k) or the probabilities (top-p). A radix search from the top bits of the key finds the score
 * at which the target is reached. The rest becomes -infinity. */
static void keep_top(float *s, int32_t n, uint64_t target, bool by_mass,
                     const struct scratchpad *pad)
{
    static const int shifts[] = {32 - SELECT_BITS, 32 - 2 * SELECT_BITS, 0};
    uint32_t prefix = 0, known = 0; // threshold bits found so far, and their mask
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
            if (!(s[i] > -INFINITY)) { // dropped by top-k
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

/* ---- the law of a draft, and its judgement ------------------------------------------------- */

/* Shares of what is kept, and the sum of their masses. */
static uint64_t make_law(const struct cpu_backend *cpu, const float *s, int32_t n, float max,
                         float *shares)
{
    uint64_t total = 0;
    cpu->kernels->exp_exact(s, n, max, shares);
    for (int32_t i = 0; i < n; i++) {
        shares[i] = s[i] > -INFINITY ? shares[i] : 0.0f;
        total += mass_of(shares[i]);
    }
    return total;
}

/* The acceptance test of drafts: p and q at each stage. Stage s + 1 is the distribution left after
 * draft s was refused. */
struct trial {
    const float *p, *q; // shares of stage 0
    int32_t n;          // drafts refused so far, which is the current stage
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

/* The excess of p over q after stage s, if p has mass `p` there. */
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

/* Moves to the next stage; false, without a change, if p exceeds q nowhere. */
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

/* arg-max of log p + noise, or of log(p - q) + noise; -1 if nothing is left. */
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

/* The drafts that follow the draw's row: a chain's is in the history, a tree's are the row's
 * children. */
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

/* The accepted draft, or another token; scores as left by narrow. */
static int32_t judge_drafts(const struct cpu_backend *cpu, const struct pass_draw *d, int32_t n,
                            float max, const struct scratchpad *pad)
{
    const uint64_t seed = cpu->lanes[d->lane].params.seed;
    int32_t drafts[MAX_SIBLINGS], n_drafts = find_drafts(cpu, d, drafts), last = -1;
    struct trial t = {.p = pad->shares, .q = cpu->laws + (int64_t)(d->law - 1) * cpu->limits.vocab};
    t.p_total[0] = (double)make_law(cpu, pad->scores, n, max, pad->shares);
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

/* One draw. Leaves the final scores in place, except for a plain greedy draw when nothing more is
 * needed. */
static int32_t draw_token(const struct cpu_backend *cpu, const struct pass_draw *d,
                          const float *logits, int32_t n, const struct scratchpad *pad)
{
    const struct cpu_kernels *kernels = cpu->kernels;
    const struct sampling_params *p = &cpu->lanes[d->lane].params;
    float temperature = d->kind == DRAW_DRAFT && !d->noise ? 0.0f : p->temperature;
    bool plain = is_plain(p, d);
    if (plain && temperature == 0.0f && d->more == 0) {
        return kernels->argmax(logits, n).id;
    }
    struct known known;
    find_known(cpu, d, &known);
    memset(pad->count, 0, (size_t)n * sizeof *pad->count);
    const uint32_t *mask = mask_of(cpu, d);
    make_scores(p, d, &known, logits, n, mask, ALL_BANS, pad);
    struct argmax best = kernels->argmax(pad->scores, n);
    for (int bans = LASTING_BANS; !plain && !(best.value > -INFINITY) && bans >= NO_BANS; bans--) {
        make_scores(p, d, &known, logits, n, mask, (enum bans)bans, pad);
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
        int32_t judged = judge_drafts(cpu, d, n, max, pad);
        return judged >= 0 ? judged : best.id;
    }
    if (d->law > 0) {
        float *law = cpu->laws + (int64_t)(d->law - 1) * cpu->limits.vocab;
        cpu->law_totals[d->law - 1] = make_law(cpu, pad->scores, n, max, law);
    }
    int32_t id = kernels->argmax_gumbel(pad->scores, n, p->seed, d->pos + 1).id;
    return id >= 0 ? id : best.id;
}

/* The raw log-softmax at `token`, and the most likely ids. */
static void fill_logprobs(const struct cpu_kernels *kernels, const struct pass_draw *d,
                          const float *logits, int32_t n, struct draw_result *r)
{
    float max = kernels->argmax(logits, n).value;
    float log_total = max + (float)log(kernels->exp_total(logits, n, max));
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

/* True if these logits can be drawn from. */
static bool is_sound(const float *logits, int32_t n)
{
    enum { PIECE = 16 }; // what the compiler turns into vectors
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

/* The result for logits that cannot be drawn from: ids that the next rows can be fed with, and no
 * law. */
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
           d->mask <= cpu->pass->n_masks);
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
    r->logprob = 0.0f;
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
}

enum status cpu_sample(struct backend *be, const struct sample_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    ASSERT(cpu->pass && a->n_draws <= cpu->pass->n_draws);
    ASSERT(a->n_vocab_used >= 1 && a->n_vocab_used <= cpu->limits.vocab);
    struct draw_job job = {.cpu = cpu, .a = a, .slot = &cpu->slots[cpu->slot]};
    pool_run(cpu->pool, a->n_draws, draw_item, &job);
    for (int32_t i = 0; i < a->n_draws; i++) { // after all draws, because a draw may read what
                                               // another keeps
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
