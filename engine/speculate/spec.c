// SPDX-License-Identifier: Apache-2.0
/* Speculation as the engine sees it: the options, the proposer, and how many tokens to draft for
 * each sequence now, given what was measured and learnt. */
#include "engine/speculate/spec.h"
#include "engine/base/optional.h"

#include "engine/base/json.h"
#include "engine/base/minmax.h"
#include "engine/base/rng.h"

#include <stdio.h>
#include <string.h>

static const struct proposer *const proposers[] = {&proposer_ngram, &proposer_draft_model,
                                                   &proposer_tree, &proposer_mtp, &proposer_eagle3};

/* ---- opening ------------------------------------------------------------------------------ */

/* Methods have more than one name in vLLM. */
static bool is_called(const struct proposer *p, const char *name)
{
    bool is = strcmp(p->name, name) == 0;
    for (const char *const *other = p->others; other && *other; other++) {
        is = is || strcmp(*other, name) == 0;
    }
    return is;
}

static bool shapes_trees(const struct json *j)
{
    return json_get(j, "expansion") || json_get(j, "tree_width") || json_get(j, "tree_nodes");
}

/* If an option that only trees have is given, the proposer with trees is chosen. */
static const struct proposer *find_proposer(const char *name, const struct json *j)
{
    for (size_t i = 0; name && i < sizeof proposers / sizeof proposers[0]; i++) {
        const struct proposer *p = proposers[i];
        if (is_called(p, name)) {
            if (p->with_trees && shapes_trees(j)) {
                return p->with_trees;
            }
            return p;
        }
    }
    return NULL;
}

/* The message lists the existing methods. */
static enum status refuse_method(const char *name, struct err *err)
{
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof proposers / sizeof proposers[0] && used < sizeof known; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", text_if(i > 0, ", "),
                                 proposers[i]->name);
    }
    return err_set(err, ERR_UNSUPPORTED, "speculative-config: the method '%.40s' is not one of %s",
                   or_text(name, "(missing)"), known);
}

/* A model without a method is a draft model, as in vLLM. */
static enum status read_config(struct spec *sp, const struct json *j, struct err *err)
{
    TRY(spec_options_check(j, err));
    const char *name = json_get_string(j, "method");
    if (!name && json_get_string(j, "model")) {
        name = proposer_draft_model.name;
    }
    sp->proposer = find_proposer(name, j);
    if (!sp->proposer) {
        return refuse_method(name, err);
    }
    TRY(spec_options_read(&sp->options, j, err));
    if (sp->proposer->read) {
        TRY(sp->proposer->read(&sp->options, j, err));
    }
    return spec_options_read_rejection(&sp->options, j, sp->proposer->trees, err);
}

/* Without a config there is no proposer, and speculation costs nothing. */
enum status spec_init(struct spec *sp, const char *config, struct err *err)
{
    *sp = (struct spec){0};
    spec_learnt_init(&sp->learnt);
    if (!config) {
        return OK;
    }
    struct json *j;
    enum status st = json_parse(config, strlen(config), NULL, &j, err);
    if (st != OK) {
        return err_prefix(err, st, "speculative-config");
    }
    st = read_config(sp, j, err);
    json_free(j);
    return st;
}

void spec_open(struct spec *sp, int32_t max_len)
{
    if (sp->proposer && sp->proposer->open) {
        sp->proposer->open(sp, max_len);
    }
}

void spec_close(struct spec *sp)
{
    if (sp->proposer && sp->proposer->close) {
        sp->proposer->close(sp);
    }
}

/* ---- sizes -------------------------------------------------------------------------------- */

bool spec_has_trees(const struct spec *sp)
{
    return sp->proposer && sp->proposer->trees;
}

/* Upper bounds for the arrays of a step. */
int32_t spec_max_drafts(const struct spec *sp, int32_t n_sequences)
{
    const struct spec_options *o = &sp->options;
    int32_t n = lesser(n_sequences, o->max_batch);
    int32_t chains = o->k * n;
    if (spec_has_trees(sp) && 2 * o->budget > chains) {
        return 2 * o->budget;
    }
    return chains;
}

int32_t spec_max_passes(const struct spec *sp)
{
    return sp->options.n_models > 0 ? sp->options.k : 0;
}

/* The number of distributions (laws) is limited, because each takes a row as long as the
 * vocabulary. */
int32_t spec_max_laws(const struct spec *sp, int32_t max_lanes)
{
    const int32_t most = 256; // of trees; chosen: 130 MB with a large vocabulary
    const struct spec_options *o = &sp->options;
    int32_t n = lesser(o->max_batch, max_lanes);
    int32_t each = draft_laws(o, o->k), all = n > 0 ? n * each : 0;
    if (o->rejection != REJECT_PROBABILISTIC) {
        return 0;
    }
    if (o->n_expansion == 0 || all <= most) {
        return all;
    }
    return greater(most, each);
}

/* ---- depth -------------------------------------------------------------------------------- */

/* The number of drafts that gives the most tokens per second to one of n sequences, if each draft
 * is accepted with this probability. 0: drafts are not worth their cost. */
static int32_t best_depth(const struct spec *sp, int32_t n, float acceptance, int32_t most)
{
    const struct spec_costs *costs = &sp->costs;
    if (sp->options.fixed || !spec_costs_known(costs)) {
        return most;
    }
    float best_rate = 1.0f / spec_cost(costs->target, n), tokens = 1.0f, power = 1.0f;
    int32_t best = 0;
    for (int32_t k = 1; k <= most; k++) {
        power *= acceptance;
        tokens += power;
        float time = spec_cost(costs->target, n * (k + 1));
        if (sp->options.n_models > 0) {
            time += (float)k * spec_cost(costs->draft, n);
        }
        if (tokens / time > best_rate) {
            best_rate = tokens / time;
            best = k;
        }
    }
    return best;
}

/* The maximum number of drafts of the sequence in the next step, regardless of cost. */
static int32_t allowed(const struct spec *sp, const struct spec_view *v, const struct sequence *seq)
{
    int32_t k = sp->options.k, asked = seq->request->params.num_speculative_tokens;
    int32_t left = seq->max_tokens - sequence_generated(seq) - 1;
    int32_t draft_len = sp->options.draft_max_len;
    int32_t longest = lesser(v->max_len, draft_len);
    int32_t room = longest - seq->n_known - 1;
    if (asked >= 0 && asked < k) {
        k = asked;
    }
    k = lesser(left, k);
    k = lesser(room, k);
    return greater(k, 0);
}

enum { PAUSE = 32 }; // tokens; chosen: trying again costs 3 % at worst

/* Drafts that were not worth their cost are tried again after a while. */
static void pause(struct spec_trust *trust, bool busy)
{
    if (trust->pause > 0) {
        trust->pause--;
    } else {
        trust->pause = busy ? 0 : PAUSE;
    }
    trust->doubt *= trust->pause == 1 ? 0.7f : 1.0f;
}

/* Chooses the depth of drafts whose expected gain pays for its rows. */
static void consider(const struct spec *sp, const struct spec_view *v, struct spec_candidate *c)
{
    c->most = sp->busy ? 0 : allowed(sp, v, c->seq);
    int32_t k = c->trust->pause > 0 ? 0 : c->most;
    float doubt = spec_doubt_of(&sp->learnt, c->trust);
    if (k > 0) {
        c->depth = best_depth(sp, v->n_running, 1.0f - doubt, k);
    } else {
        c->depth = 0;
    }
    c->trust->doubt = doubt;
    c->proposal->n_drafts = 0;
    c->proposal->waits_for_token = c->depth > 0;
    if (c->depth == 0) {
        pause(c->trust, sp->busy);
    }
}

void spec_consider(struct spec *sp, struct spec_view *v)
{
    sp->busy = v->n_running > sp->options.max_batch;
    for (int32_t i = 0; i < v->n; i++) {
        consider(sp, v, &v->seqs[i]);
    }
}

/* ---- calling the proposer ----------------------------------------------------------------- */

void spec_propose(struct spec *sp, const struct spec_view *v)
{
    if (!sp->busy) {
        sp->proposer->propose(sp, v);
    }
}

enum spec_passes spec_passes(const struct spec *sp)
{
    bool any = sp->proposer && sp->proposer->passes && !sp->busy;
    if (any) {
        return sp->proposer->passes(sp);
    }
    return SPEC_NO_PASSES;
}

/* A draft is accepted if the target drew the same token; with synthetic acceptance a random number
 * decides. */
bool spec_stands(const struct spec *sp, const struct sequence *seq, int32_t draft, int32_t drawn)
{
    if (sp->options.rejection != REJECT_SYNTHETIC) {
        return draft == drawn;
    }
    uint64_t seed = seq->request->params.seed + (uint64_t)seq->sample;
    double u = rng_uniform(rng_bits(seed, seq->n_known, RNG_ACCEPT, 0));
    return u < (double)sp->options.synthetic_rate;
}

void spec_observe(struct spec *sp, const struct spec_trial *t)
{
    spec_count(&sp->learnt, t->n_drafts, t->n_right);
    if (!t->seq->proposal.forced) { // forced drafts say nothing about the proposer
        sp->proposer->observe(sp, t);
    }
}
