#include "engine/speculate/tree.h"

#include "engine/schedule/holdings.h"

#include "engine/base/mem.h"
#include "engine/base/rng.h"

#include <stdlib.h>
#include <string.h>

/* ---- n-gram lookup ------------------------------------------------------------------------ */

int32_t spec_ngram(const int32_t *known, int32_t n, int32_t min_n, int32_t max_n, int32_t k,
                   int32_t *drafts)
{
    int32_t best = 0, best_end = -1, last = n > 0 ? known[n - 1] : -1;
    for (int32_t end = n - 2; end >= 0 && best < max_n; end--) {
        if (known[end] != last) {
            continue;
        }
        int32_t length = 1;
        while (length < max_n && length <= end && known[end - length] == known[n - 1 - length]) {
            length++;
        }
        if (length > best) {
            best = length;
            best_end = end;
        }
    }
    if (best < min_n) {
        return 0;
    }
    int32_t count = n - 1 - best_end < k ? n - 1 - best_end : k;
    memcpy(drafts, known + best_end + 1, (size_t)count * sizeof *drafts);
    return count;
}

/* ---- how deep ----------------------------------------------------------------------------- */

float spec_cost(const float *cost, int32_t n)
{
    int32_t i = 0;
    while (i + 1 < SPEC_COST_POINTS && (2 << i) <= n) {
        i++;
    }
    int32_t low = 1 << i;
    if (i + 1 == SPEC_COST_POINTS) {
        return cost[i] * (float)n / (float)low;
    }
    return cost[i] + (cost[i + 1] - cost[i]) * (float)(n - low) / (float)low;
}

/* The number of drafts with the most tokens per second for one of n sequences whose drafts are
 * accepted with this probability each; 0: not worth it. */
static int32_t best_depth(const struct spec *sp, int32_t n, float acceptance, int32_t most)
{
    if (sp->fixed || sp->target_cost[0] <= 0.0f) {
        return most;
    }
    float best_rate = 1.0f / spec_cost(sp->target_cost, n), tokens = 1.0f, power = 1.0f;
    int32_t best = 0;
    for (int32_t k = 1; k <= most; k++) {
        power *= acceptance;
        tokens += power;
        float time = spec_cost(sp->target_cost, n * (k + 1));
        time += sp->method == SPEC_NGRAM ? 0.0f : (float)k * spec_cost(sp->draft_cost, n);
        if (tokens / time > best_rate) {
            best_rate = tokens / time;
            best = k;
        }
    }
    return best;
}

/* Laws that one sequence's drafts keep. */
static int32_t laws_of(const struct spec *sp, int32_t depth)
{
    int32_t nodes = 1, level = 1; // those that have children
    for (int32_t d = 0; sp->n_expansion > 0 && d + 1 < depth; d++) {
        level *= sp->expansion[d];
        level = level < MAX_TREE_NODES ? level : MAX_TREE_NODES;
        nodes += level;
    }
    nodes = sp->n_expansion > 0 ? nodes : depth;
    return nodes < MAX_TREE_NODES ? nodes : MAX_TREE_NODES;
}

int32_t spec_max_laws(const struct spec *sp, int32_t max_lanes)
{
    const int32_t most = 256; // of trees; chosen: 130 MB with a large vocabulary
    int32_t n = sp->max_batch < max_lanes ? sp->max_batch : max_lanes;
    int32_t each = laws_of(sp, sp->k), all = n > 0 ? n * each : 0;
    if (sp->rejection != REJECT_PROBABILISTIC) {
        return 0;
    }
    return sp->n_expansion == 0 || all <= most ? all : most > each ? most : each;
}

/* Drafts that the sequence may have in the next step, whatever they cost. */
static int32_t allowed(const struct spec *sp, const struct scheduler *s, const struct sequence *seq)
{
    int32_t k = sp->k, asked = seq->request->params.num_speculative_tokens;
    int32_t left = seq->max_tokens - sequence_generated(seq) - 1;
    int32_t longest = s->limits.max_len < sp->draft_max_len ? s->limits.max_len : sp->draft_max_len;
    int32_t room = longest - seq->n_known - 1;
    k = asked >= 0 && asked < k ? asked : k;
    k = left < k ? left : k;
    k = room < k ? room : k;
    return k > 0 ? k : 0;
}

int32_t spec_max_drafts(const struct spec *sp, int32_t n_sequences)
{
    int32_t n = n_sequences < sp->max_batch ? n_sequences : sp->max_batch;
    int32_t chains = sp->k * n;
    return sp->method == SPEC_TREE && 2 * sp->budget > chains ? 2 * sp->budget : chains;
}

void spec_open(struct spec *sp, int32_t max_len)
{
    sp->known = xcalloc((size_t)max_len, sizeof *sp->known);
}

void spec_close(struct spec *sp)
{
    free(sp->known);
    sp->known = NULL;
}

const int32_t *spec_known_tokens(struct spec *sp, const struct sequence *seq)
{
    memcpy(sp->known, seq->request->prompt, (size_t)seq->n_prompt * sizeof *sp->known);
    memcpy(sp->known + seq->n_prompt, seq->output->tokens,
           (size_t)sequence_generated(seq) * sizeof *sp->known);
    return sp->known;
}

/* ---- proposals ---------------------------------------------------------------------------- */

enum { PAUSE = 32, LONG_LAG = 64 }; // tokens; chosen: a probe costs 3 % at worst

static void propose_ngram(struct spec *sp, struct sequence *seq, int32_t k)
{
    seq->n_drafts = spec_ngram(spec_known_tokens(sp, seq), seq->n_known, sp->min_n, sp->max_n, k,
                               seq->drafts);
    seq->drafts_on_device = false;
    if (sp->rejection == REJECT_SYNTHETIC && seq->n_drafts == 0) { // anything will do
        for (seq->n_drafts = 0; seq->n_drafts < k; seq->n_drafts++) {
            seq->drafts[seq->n_drafts] = sequence_token(seq, seq->n_known - 1);
        }
    }
    if (seq->n_drafts == 0) {
        seq->spec_pause = 2; // nothing to copy from here: look again soon
    }
}

/* Only a draft model that has nearly caught up can draft in the same step; `rows` is what the
 * step's first draft pass has to feed already. */
static int32_t propose_model(struct spec *sp, struct scheduler *s, struct sequence *seq, int32_t k,
                             int32_t rows)
{
    int32_t lag = seq->n_known - seq->draft_computed;
    int32_t can = holdings_draft_rows(&s->holdings, seq, seq->n_known);
    lag = seq->n_known - seq->draft_computed;
    if (can < lag || lag > LONG_LAG || rows + lag > s->limits.max_rows) {
        return 0;
    }
    bool judged = sp->rejection == REJECT_PROBABILISTIC && seq->request->params.temperature > 0.0f;
    int32_t n_laws = judged ? laws_of(sp, k) : 0;
    if (sp->n_laws + n_laws > sp->max_laws) {
        return 0;
    }
    seq->n_drafts = sp->method == SPEC_TREE && sp->grows_now ? spec_tree_most(sp, k, s->n_running)
                                                             : k + seq->n_beside;
    seq->draft_depth = k;
    seq->drafts_on_device = true;
    seq->law = judged ? 1 + sp->n_laws : 0;
    sp->n_laws += n_laws;
    return lag;
}

/* What others' drafts were worth speaks for those of a new sequence, but never against trying. */
static float doubt_of(const struct spec *sp, const struct sequence *seq)
{
    float first = sp->doubt < SPEC_START_DOUBT ? sp->doubt : SPEC_START_DOUBT;
    return seq->spec_doubt < 0.0f ? first : seq->spec_doubt;
}

static bool decodes(const struct sequence *seq)
{
    return seq->state == SEQ_RUNNING && seq->n_computed >= seq->n_prompt - 1;
}

static int32_t depth_of(const struct spec *sp, const struct scheduler *s, const struct sequence *seq)
{
    int32_t k = seq->spec_pause > 0 ? 0 : allowed(sp, s, seq);
    return k > 0 ? best_depth(sp, s->n_running, 1.0f - doubt_of(sp, seq), k) : 0;
}

/* What the user has said of the shape: 1: the host grows trees, 0: it does not. -1: it is measured. */
static int32_t told_to_grow(const struct spec *sp)
{
    bool chain = sp->n_expansion > 0 && sp->n_models == 1 && !sp->lookup;
    for (int32_t d = 0; d < sp->n_expansion; d++) {
        chain = chain && sp->expansion[d] == 1;
    }
    if (chain) {
        return 0;
    }
    if (sp->n_expansion > 0 || sp->lookup || sp->n_models > 1) {
        return 1;
    }
    // What is judged must not have been chosen by what it is: then the tree is laid out before.
    bool judged = sp->rejection == REJECT_PROBABILISTIC;
    return judged ? 0 : sp->fixed || sp->target_cost[0] <= 0.0f ? 1 : -1;
}

/* A comb for every sequence that decodes, within the budget; and whether grown trees are better. */
static void plan_trees(struct spec *sp, struct scheduler *s)
{
    struct spec_plan all = {0};
    int32_t nodes = 0, rows = 0, deepest = 0, told = told_to_grow(sp);
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        int32_t k = decodes(seq) ? depth_of(sp, s, seq) : 0;
        seq->n_beside = 0;
        if (k == 0) {
            rows += decodes(seq);
            all.tokens += (float)decodes(seq);
            continue;
        }
        int32_t share = sp->budget / (s->n_running > 0 ? s->n_running : 1);
        int32_t left = sp->budget - nodes < share ? sp->budget - nodes : share;
        int32_t most = sp->n_expansion > 0 || left < k ? 0 : left - k;
        struct spec_plan p = spec_plan_comb(sp, s->n_running, 1.0f - doubt_of(sp, seq), k, most);
        seq->n_beside = p.beside;
        nodes += p.beside > 0 ? k + p.beside : 0;
        rows += 1 + k + p.beside;
        deepest = k > deepest ? k : deepest;
        all.tokens += p.tokens;
        all.ends += p.ends;
    }
    sp->plan_seconds = all.seconds = (float)deepest * spec_cost(sp->draft_cost, s->n_running) +
                                     spec_cost(sp->target_cost, rows > 0 ? rows : 1);
    sp->grows_now = told >= 0 ? told : deepest > 0 && spec_worth_growing(sp, &all);
    if (told < 0 && deepest > 0 && !sp->grows_now) {
        spec_forget(sp);
    }
}

void spec_propose(struct spec *sp, struct scheduler *s)
{
    if (sp->method == SPEC_NONE) {
        return;
    }
    bool busy = s->n_running > sp->max_batch;
    sp->drafts_now = sp->n_models > 0 && !busy;
    if (sp->method == SPEC_TREE && !busy) {
        plan_trees(sp, s);
    }
    int32_t rows = 0;
    sp->n_laws = 0; // steps run in order: one's are done with before the next one's are written
    for (struct sequence *seq = s->order.next; seq != &s->order; seq = seq->next) {
        if (!decodes(seq)) {
            continue;
        }
        seq->n_drafts = 0;
        int32_t k = busy ? 0 : depth_of(sp, s, seq);
        seq->spec_doubt = doubt_of(sp, seq);
        if (k == 0) { // look again after a while, if it was not worth it
            seq->spec_pause = seq->spec_pause > 0 ? seq->spec_pause - 1 : busy ? 0 : PAUSE;
            seq->spec_doubt *= seq->spec_pause == 1 ? 0.7f : 1.0f;
            seq->waits_for_token = false;
            continue;
        }
        seq->waits_for_token = true;
        if (seq->n_inflight > 0 || seq->n_computed != seq->n_known - 1) {
            continue;
        }
        if (sp->method == SPEC_NGRAM) {
            propose_ngram(sp, seq, k);
        } else {
            rows += propose_model(sp, s, seq, k, rows);
        }
    }
}

bool spec_stands(const struct spec *sp, const struct sequence *seq, int32_t draft, int32_t drawn)
{
    if (sp->rejection != REJECT_SYNTHETIC) {
        return draft == drawn;
    }
    uint64_t seed = seq->request->params.seed + (uint64_t)seq->sample;
    return rng_uniform(rng_bits(seed, seq->n_known, RNG_ACCEPT, 0)) < (double)sp->synthetic_rate;
}

void spec_count(struct spec *sp, int32_t n_drafts, int32_t n_accepted)
{
    sp->n_drafts += n_drafts > 0;
    sp->n_draft_tokens += n_drafts;
    sp->n_accepted += n_accepted;
    for (int32_t i = 0; i < n_accepted; i++) {
        sp->accepted_per_pos[i]++;
    }
}

void spec_learn(struct spec *sp, struct sequence *seq, int32_t n, int32_t right)
{
    // Each right draft, and the first wrong one, is a trial of the acceptance.
    for (int32_t i = 0; i < n && i <= right; i++) {
        float wrong = i < right ? 0.0f : 1.0f;
        seq->spec_doubt += 0.1f * (wrong - seq->spec_doubt);
        sp->doubt += 0.02f * (wrong - sp->doubt);
    }
}
