/* Trees that are laid out before they are drafted: a spine, and beside each of its nodes some
 * siblings without children. All of it is drafted in the chain of passes that a chain has, each
 * draw giving its siblings too, so the host need not look in between; without siblings it is a
 * chain. How many pay, and whether the host had better grow a deeper tree level by level, is told
 * by what was measured. */
#include "engine/speculate/tree.h"

#include <string.h>

/* Of learning: about the last 30 trials count. Where nothing is tried, a tree grown by the host is
 * slowly taken to be worth a try again. */
#define LEARN 0.03f
#define FORGET 0.0005f
#define FIRST_GAIN 0.7f // tokens of a grown tree where a spine ends; chosen

void spec_shape_init(struct spec *sp)
{
    static const float first[] = {0.3f, 0.12f, 0.06f}; // chosen: of pairs that know each other
    for (int32_t i = 0; i < MAX_SIBLINGS; i++) {
        sp->rescue[i] = i < 3 ? first[i] : 0.03f;
    }
    sp->grow_gain = FIRST_GAIN;
}

/* ---- combs -------------------------------------------------------------------------------- */

/* The next sibling to lay out: where the spine ends most often, and the best left there. -1: no
 * room. value: the share of steps that it saves. */
static int32_t next_beside(const struct spec *sp, float acceptance, int32_t depth,
                           const uint8_t *beside, float *value)
{
    int32_t best = -1;
    float reach = 1.0f - acceptance;
    for (int32_t d = 0; d < depth; d++, reach *= acceptance) {
        float v = beside[d] < sp->width - 1 ? reach * sp->rescue[beside[d]] : -1.0f;
        if (v >= 0.0f && (best < 0 || v > *value)) {
            best = d;
            *value = v;
        }
    }
    return best;
}

void spec_lay_beside(const struct spec *sp, float acceptance, int32_t depth, int32_t n,
                     uint8_t *beside)
{
    float value = 0.0f;
    memset(beside, 0, MAX_DRAFTS * sizeof *beside);
    for (int32_t d; n > 0 && (d = next_beside(sp, acceptance, depth, beside, &value)) >= 0; n--) {
        beside[d]++;
    }
}

struct spec_plan spec_plan_comb(const struct spec *sp, int32_t n, float acceptance, int32_t depth,
                                int32_t most)
{
    struct spec_plan p = {.tokens = 1.0f};
    float reach = 1.0f, value = 0.0f;
    uint8_t beside[MAX_DRAFTS] = {0};
    for (int32_t d = 0; d < depth; d++) {
        reach *= acceptance;
        p.tokens += reach;
    }
    p.ends = 1.0f - reach;
    float passes = (float)depth * spec_cost(sp->draft_cost, n);
    p.seconds = passes + spec_cost(sp->target_cost, n * (1 + depth));
    bool costs = !sp->fixed && sp->target_cost[0] > 0.0f;
    float tokens = p.tokens;
    most = most < depth * (sp->width - 1) ? most : depth * (sp->width - 1);
    for (int32_t i = 1; i <= most; i++) {
        int32_t d = next_beside(sp, acceptance, depth, beside, &value);
        beside[d]++;
        tokens += value;
        float seconds = passes + spec_cost(sp->target_cost, n * (1 + depth + i));
        if (!costs || tokens / seconds > p.tokens / p.seconds) {
            p = (struct spec_plan){.beside = i, .tokens = tokens, .seconds = seconds,
                                   .ends = p.ends};
        }
    }
    return p;
}

/* ---- or grown trees ----------------------------------------------------------------------- */

bool spec_worth_growing(const struct spec *sp, const struct spec_plan *all)
{
    float grown = all->tokens + all->ends * sp->grow_gain;
    return grown / (all->seconds + sp->grow_seconds) > all->tokens / all->seconds;
}

/* ---- learning ----------------------------------------------------------------------------- */

static void drift(float *x, float to, float share)
{
    *x += share * (to - *x);
}

/* Rows of siblings of the spine's node at `depth`, and which of them is `row`; -1: none of them. */
static int32_t find_beside(const struct spec_tree *t, int32_t depth, int32_t row, int32_t *which)
{
    int32_t n = 0, parent = -1;
    *which = -1;
    for (int32_t r = 1; r < t->n_rows && parent < 0; r++) {
        const struct tree_node *node = &t->nodes[t->by_row[r]];
        parent = node->spine && node->depth == depth ? node->parent : -1;
    }
    for (int32_t r = 1; r < t->n_rows; r++) {
        const struct tree_node *node = &t->nodes[t->by_row[r]];
        if (node->parent == parent && !node->spine) {
            *which = r == row ? n : *which;
            n++;
        }
    }
    return n;
}

void spec_learn_tree(struct spec *sp, const struct spec_tree *t, const int32_t *path,
                     int32_t n_path, bool cut)
{
    int32_t spine = 0, right = 0, which;
    for (int32_t r = 1; r < t->n_rows; r++) {
        spine += t->nodes[t->by_row[r]].spine;
    }
    while (right < n_path && t->nodes[t->by_row[path[right]]].spine) {
        right++;
    }
    spec_learn(sp, t->seq, cut && right == n_path ? right : spine, right);
    if (right >= spine || (cut && right == n_path)) {
        return;
    }
    int32_t n = find_beside(t, right + 1, n_path > right ? path[right] : -1, &which);
    for (int32_t i = 0; i < n && i < MAX_SIBLINGS; i++) {
        drift(&sp->rescue[i], i == which ? 1.0f : 0.0f, LEARN);
    }
    if (!t->planned && !cut) { // against a comb with as many beside each node as would have been planned
        int32_t beside = (t->seq->n_beside + t->depth - 1) / (t->depth > 0 ? t->depth : 1);
        bool rescued = which >= 0 && which < beside;
        drift(&sp->grow_gain, (float)(n_path - right - rescued), LEARN);
    }
}

void spec_learn_seconds(struct spec *sp, float grown, float planned)
{
    drift(&sp->grow_seconds, grown - planned, LEARN);
}

void spec_forget(struct spec *sp)
{
    drift(&sp->grow_gain, FIRST_GAIN, FORGET);
}
