#include "engine/speculate/tree.h"

#include "engine/base/assert.h"
#include "engine/base/exact.h"

#include <math.h>

/* ---- shape -------------------------------------------------------------------------------- */

int32_t spec_tree_children(const struct spec *sp, int32_t depth)
{
    return sp->n_expansion == 0 ? sp->width : depth < sp->n_expansion ? sp->expansion[depth] : 0;
}

int32_t spec_tree_top_n(const struct spec *sp, const struct sequence *seq)
{
    int32_t most = 1;
    for (int32_t d = 0; d < sp->k; d++) {
        most = spec_tree_children(sp, d) > most ? spec_tree_children(sp, d) : most;
    }
    bool noise = seq->request->params.temperature > 0.0f;
    return noise || most > MAX_TOP_LOGPROBS ? MAX_TOP_LOGPROBS : most;
}

int32_t spec_tree_most(const struct spec *sp, int32_t depth, int32_t n_sequences)
{
    int32_t nodes = 0, level = 1;
    for (int32_t d = 0; d < depth; d++) {
        level = level * spec_tree_children(sp, d);
        level = level < MAX_TREE_NODES ? level : MAX_TREE_NODES;
        nodes += level;
    }
    // One sequence may have twice its share of the budget: a sure one gains more than an unsure one.
    int32_t share = n_sequences > 1 ? 2 * sp->budget / n_sequences : sp->budget;
    share = share < sp->budget ? share : sp->budget;
    share = share > depth ? share : depth;
    nodes = nodes < share ? nodes : share;
    return nodes < MAX_TREE_NODES - 1 ? nodes : MAX_TREE_NODES - 1;
}

void tree_begin(struct spec_tree *t, struct sequence *seq, int32_t token)
{
    t->seq = seq;
    t->n_nodes = t->n_fed = t->n_rows = t->n_seen = 1;
    t->looked_up = -1;
    t->levels = 0;
    t->planned = false;
    t->nodes[0] = (struct tree_node){.token = token, .parent = -1};
    t->by_fed[0] = t->by_row[0] = 0;
}

int32_t tree_add(struct spec_tree *t, int32_t parent, int32_t token, float logp)
{
    for (int32_t i = parent + 1; i < t->n_nodes; i++) {
        struct tree_node *n = &t->nodes[i];
        if (n->parent == parent && n->token == token) {
            n->logp = logp > n->logp ? logp : n->logp;
            return i;
        }
    }
    if (t->n_nodes == MAX_TREE_CANDIDATES) {
        return -1;
    }
    t->nodes[t->n_nodes] = (struct tree_node){.token = token, .parent = parent,
                                              .depth = t->nodes[parent].depth + 1,
                                              .fed = -1, .row = -1, .logp = logp};
    return t->n_nodes++;
}

/* ---- children ----------------------------------------------------------------------------- */

enum { MAX_IDS = 1 + MAX_TOP_LOGPROBS };

/* Ids that may come next, with the probability that each does. */
struct guesses {
    int32_t n;
    int32_t token[MAX_IDS * MAX_DRAFT_MODELS];
    float p[MAX_IDS * MAX_DRAFT_MODELS];
};

static void guess(struct guesses *g, int32_t token, float p)
{
    for (int32_t i = 0; i < g->n; i++) {
        if (g->token[i] == token) {
            g->p[i] += p;
            return;
        }
    }
    g->token[g->n] = token;
    g->p[g->n++] = p;
}

/* What one draft model says of the position `pos`. The target draws with the noise of (seed, pos),
 * so the same noise on the draft's log-probabilities tells which of them it will be; the model's
 * own draw, for which all parameters count, comes first. */
static void guess_from(struct guesses *g, const struct draw_result *r,
                       const struct sequence *seq, int32_t pos, float share)
{
    float t = seq->request->params.temperature, score[MAX_IDS], best = -INFINITY, sum = 0.0f;
    uint64_t seed = seq->request->params.seed + (uint64_t)seq->sample;
    int32_t ids[MAX_IDS], n = 0;
    ids[n] = r->token;
    score[n++] = r->logprob;
    for (int32_t i = 0; i < r->n_top; i++) {
        if (r->top_ids[i] != r->token) {
            ids[n] = r->top_ids[i];
            score[n++] = r->top_logprobs[i];
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (t > 0.0f) {
            score[i] = score[i] / t + gumbel_noise(rng_bits(seed, pos, RNG_SAMPLE,
                                                            (uint32_t)ids[i]));
        }
        best = score[i] > best ? score[i] : best;
    }
    if (!(best > -INFINITY)) { // also of NaN: a draft model may say anything
        return;
    }
    score[0] = best;
    for (int32_t i = 0; i < n; i++) {
        sum += expf(score[i] - best);
    }
    // Without noise the rest of the vocabulary has its share too.
    float scale = t > 0.0f || sum * expf(best) > 1.0f ? 1.0f / sum : expf(best);
    for (int32_t i = 0; i < n; i++) {
        guess(g, ids[i], share * scale * expf(score[i] - best));
    }
}

void tree_expand(struct spec_tree *t, int32_t node, const struct draw_result *const *drawn,
                 int32_t n_drawn, int32_t k)
{
    struct guesses g = {0};
    int32_t pos = t->first + t->nodes[node].depth + 1;
    for (int32_t i = 0; i < n_drawn; i++) {
        guess_from(&g, drawn[i], t->seq, pos, 1.0f / (float)n_drawn);
    }
    for (; k > 0; k--) {
        int32_t best = -1;
        for (int32_t i = 0; i < g.n; i++) {
            if (g.p[i] > 0.0f && (best < 0 || g.p[i] > g.p[best])) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        float p = g.p[best] < 1.0f ? g.p[best] : 1.0f;
        tree_add(t, node, g.token[best], t->nodes[node].logp + logf(p));
        g.p[best] = 0.0f;
    }
}

void tree_expand_drawn(struct spec_tree *t, int32_t node, const struct draw_result *drawn)
{
    float logp = t->nodes[node].logp; // not by what was drawn: that must not decide what is tried
    tree_add(t, node, drawn->token, logp - 0.5f);
    for (int32_t i = 0; i < drawn->n_top; i++) {
        tree_add(t, node, drawn->top_ids[i], logp - 1.5f - (float)i);
    }
}

/* ---- combs -------------------------------------------------------------------------------- */

static int32_t lay_node(struct spec_tree *t, int32_t parent, bool spine)
{
    int32_t k = t->n_nodes++;
    t->nodes[k] = (struct tree_node){.token = -1, .parent = parent, .fed = -1, .row = t->n_rows,
                                     .depth = t->nodes[parent].depth + 1, .spine = spine};
    t->by_row[t->n_rows++] = k;
    return k;
}

void tree_lay_comb(struct spec_tree *t, int32_t depth)
{
    t->planned = true;
    t->depth = t->levels = depth;
    for (int32_t d = 0; d < depth; d++) {
        int32_t k = lay_node(t, d, true); // the spine's node of depth d is node d
        if (d + 1 < depth) {
            t->nodes[k].fed = t->n_fed;
            t->by_fed[t->n_fed++] = k;
        }
    }
    t->n_seen = t->n_fed;
    for (int32_t d = 0; d < depth; d++) {
        t->beside_row[d] = t->n_rows;
        for (int32_t i = 0; i < t->beside[d]; i++) {
            lay_node(t, d, false);
        }
    }
}

void tree_name_comb(struct spec_tree *t, int32_t d, const struct draw_result *drawn)
{
    t->nodes[d + 1].token = drawn->token;
    for (int32_t i = 0; i < t->beside[d]; i++) {
        t->nodes[t->by_row[t->beside_row[d] + i]].token = drawn->top_ids[i];
    }
}

/* ---- picks -------------------------------------------------------------------------------- */

static const struct tree_node *node_of(const struct tree_pick *p)
{
    return &p->tree->nodes[p->node];
}

/* Likelier first. A child is never likelier than its parent and has a higher index, so whatever is
 * cut off, parents are in. */
static bool goes_before(const struct tree_pick *a, const struct tree_pick *b)
{
    float x = node_of(a)->logp, y = node_of(b)->logp;
    return x != y ? x > y : a->tree != b->tree ? a->tree < b->tree : a->node < b->node;
}

/* Shell sort: no memory of its own. */
static void sort_picks(struct tree_pick *v, int32_t n)
{
    for (int32_t gap = n / 2; gap > 0; gap /= 2) {
        for (int32_t i = gap; i < n; i++) {
            struct tree_pick x = v[i];
            int32_t j = i;
            for (; j >= gap && goes_before(&x, &v[j - gap]); j -= gap) {
                v[j] = v[j - gap];
            }
            v[j] = x;
        }
    }
}

/* The share of nodes of this depth that were right, by what the drafts had said. */
static float gain_of(const struct spec *sp, const struct tree_node *n)
{
    float gain = expf(n->logp) * sp->tree_right[n->depth] / sp->tree_said[n->depth];
    return gain < 1.0f ? gain : 1.0f;
}

static bool counts_cost(const struct spec *sp)
{
    return !sp->fixed && sp->n_expansion == 0 && sp->target_cost[0] > 0.0f;
}

/* All candidates, and how many of them are worth their rows. */
static int32_t rank_nodes(const struct spec *sp, struct spec_grove *g, int32_t *n_all,
                          float *tokens, float *seconds)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_trees; i++) {
        for (int32_t k = 1; k < g->trees[i].n_nodes; k++) {
            g->picks[n++] = (struct tree_pick){&g->trees[i], k};
        }
    }
    *n_all = n;
    *tokens = (float)g->n_trees;
    if (sp->n_expansion > 0) {
        return n; // in order of levels already
    }
    sort_picks(g->picks, n);
    if (!counts_cost(sp)) {
        return n;
    }
    *seconds = g->spent + spec_cost(sp->target_cost, g->base_rows);
    float sum = *tokens;
    int32_t best = 0;
    for (int32_t i = 0; i < n && i < sp->budget; i++) {
        sum += gain_of(sp, node_of(&g->picks[i]));
        float time = g->spent + spec_cost(sp->target_cost, g->base_rows + i + 1);
        if (sum / time > *tokens / *seconds) {
            *tokens = sum;
            *seconds = time;
            best = i + 1;
        }
    }
    return best;
}

/* ---- growth ------------------------------------------------------------------------------- */

/* The best of a tree's nodes at this level, at most `most`, at the end of the picks. */
static int32_t add_level(struct spec_grove *g, int32_t n, struct spec_tree *t, int32_t level,
                         int32_t most)
{
    int32_t from = n;
    for (int32_t k = 1; k < t->n_nodes && t->depth > level; k++) {
        if (t->nodes[k].depth == level && t->nodes[k].fed < 0 &&
            t->nodes[t->nodes[k].parent].fed >= 0) {
            g->picks[n++] = (struct tree_pick){t, k};
        }
    }
    sort_picks(g->picks + from, n - from);
    return n - from < most ? n : from + most;
}

/* How many of the level's nodes to feed: each costs a row in a draft pass, and in the target's for
 * the child that it will have. */
static int32_t worth_feeding(const struct spec *sp, const struct spec_grove *g, int32_t n,
                             int32_t refed, float tokens, float seconds)
{
    float rate = tokens / seconds, sum = tokens;
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        const struct tree_pick *p = &g->picks[i];
        sum += gain_of(sp, node_of(p)) * (1.0f - p->tree->seq->spec_doubt);
        float row = spec_cost(sp->target_cost, g->base_rows + i + 1) -
                    spec_cost(sp->target_cost, g->base_rows);
        float time = seconds + row + spec_cost(sp->draft_cost, refed + i + 1) + sp->tell_cost +
                     sp->look_cost;
        if (sum / time > rate) {
            rate = sum / time;
            best = i + 1;
        }
    }
    return best;
}

int32_t tree_trunk(const struct spec_tree *t)
{
    int32_t trunk = 1;
    for (; trunk < t->n_seen; trunk++) {
        for (int32_t f = trunk; f < t->n_fed; f++) {
            // All that comes later hangs on this one, which hangs on the one before.
            int32_t parent = t->nodes[t->nodes[t->by_fed[f]].parent].fed;
            if (f == trunk ? parent != trunk - 1 : parent < trunk) {
                return trunk;
            }
        }
    }
    return trunk;
}

int32_t grove_frontier(const struct spec *sp, struct spec_grove *g, int32_t level)
{
    float tokens, seconds = 0.0f;
    int32_t all, n = 0, refed = 0;
    rank_nodes(sp, g, &all, &tokens, &seconds);
    for (int32_t i = 0; i < g->n_trees; i++) {
        struct spec_tree *t = &g->trees[i];
        int32_t room = t->most + 1 - t->n_fed, most = sp->n_expansion > 0 ? room : sp->width;
        n = add_level(g, n, t, level, most < room ? most : room);
        refed += t->n_fed - tree_trunk(t);
    }
    if (counts_cost(sp)) {
        sort_picks(g->picks, n);
        n = worth_feeding(sp, g, n, refed, tokens, seconds);
        g->spent += n > 0 ? spec_cost(sp->draft_cost, refed + n) + sp->tell_cost + sp->look_cost : 0.0f;
    }
    for (int32_t i = 0; i < n; i++) {
        struct spec_tree *t = g->picks[i].tree;
        t->by_fed[t->n_fed] = g->picks[i].node;
        t->nodes[g->picks[i].node].fed = t->n_fed++;
    }
    return n;
}

/* ---- the choice --------------------------------------------------------------------------- */

static void give_row(struct spec_tree *t, int32_t node)
{
    t->nodes[node].row = t->n_rows;
    t->by_row[t->n_rows++] = node;
    t->levels = t->nodes[node].depth > t->levels ? t->nodes[node].depth : t->levels;
}

/* The likeliest child of each node of the path; chosen nodes have row 0 until they get theirs. */
static void number_path(struct spec_tree *t)
{
    for (int32_t at = 0, next; at >= 0; at = next) {
        next = -1;
        for (int32_t k = at + 1; k < t->n_nodes; k++) {
            const struct tree_node *n = &t->nodes[k];
            if (n->parent == at && n->row == 0 && (next < 0 || n->logp > t->nodes[next].logp)) {
                next = k;
            }
        }
        if (next >= 0) {
            give_row(t, next);
        }
    }
}

void grove_choose(const struct spec *sp, struct spec_grove *g)
{
    float tokens, seconds = 0.0f;
    int32_t all, worth = rank_nodes(sp, g, &all, &tokens, &seconds), n_taken = 0;
    for (int32_t i = 0; i < worth && n_taken < sp->budget; i++) {
        struct spec_tree *t = g->picks[i].tree;
        if (t->most > 0) {
            t->most--;
            n_taken++;
            t->nodes[g->picks[i].node].row = 0;
        }
    }
    for (int32_t i = 0; i < g->n_trees; i++) {
        number_path(&g->trees[i]);
    }
    for (int32_t i = 0; i < worth; i++) { // parents first, as they were taken
        struct spec_tree *t = g->picks[i].tree;
        if (t->nodes[g->picks[i].node].row == 0) {
            give_row(t, g->picks[i].node);
        }
    }
}

int32_t tree_next(const struct spec_tree *t, int32_t row, int32_t token)
{
    for (int32_t r = row + 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        if (n->token == token && t->nodes[n->parent].row == row) {
            return r;
        }
    }
    return -1;
}

void spec_observe_tree(struct spec *sp, const struct spec_tree *t, const int32_t *path,
                       int32_t n_path, bool cut)
{
    float said[MAX_DRAFTS] = {0};
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *n = &t->nodes[t->by_row[r]];
        said[n->depth] += expf(n->logp);
    }
    for (int32_t d = 1; d <= (cut ? n_path : t->levels) && !t->planned; d++) { // the last hundred steps
        sp->tree_said[d] = 0.99f * sp->tree_said[d] + said[d];
        sp->tree_right[d] = 0.99f * sp->tree_right[d] + (d <= n_path ? 1.0f : 0.0f);
    }
    if (t->looked_up >= 0) {
        bool right = n_path > 0 && t->by_row[path[0]] == t->looked_up;
        sp->lookup_logp = logf(0.95f * expf(sp->lookup_logp) + (right ? 0.05f : 0.001f));
    }
    spec_learn_tree(sp, t, path, n_path, cut);
}
