// SPDX-License-Identifier: Apache-2.0
#include "server/jobs/prefix_groups.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A node of the tree. All prompts below it share their first `depth` tokens. */
struct node {
    int32_t depth, n_leaves;
    int32_t prompt;         // index of a leaf's prompt; -1: an inner node
    int32_t child, sibling; // nodes; -1: none
};

struct builder {
    const struct group_prompt *prompts;
    int32_t n, match_unit;
    int32_t *order;
    int32_t *shared; // [n] tokens, in whole units, that a prompt shares with the previous one
    struct node *nodes;
    int32_t n_nodes;
};

/* ---- sorting ------------------------------------------------------------------------------ */

/* The token at `depth`; a prompt that has ended sorts before all that continue. */
static int64_t token_at(const struct group_prompt *p, int32_t depth)
{
    return depth < p->n ? p->ids[depth] : -1;
}

/* The number of tokens that all of these prompts share; `depth` are known to be shared. */
static int32_t common_depth(const struct builder *b, const int32_t *at, int32_t n, int32_t depth)
{
    const struct group_prompt *a = &b->prompts[at[0]];
    int32_t end = a->n;
    for (int32_t i = 1; i < n && end > depth; i++) {
        const struct group_prompt *p = &b->prompts[at[i]];
        int32_t k = depth, most = lesser(p->n, end);
        while (k < most && p->ids[k] == a->ids[k]) {
            k++;
        }
        end = k;
    }
    return end;
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t t = *a;
    *a = *b;
    *b = t;
}

static int compare_places(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

struct range {
    int32_t first, n, depth;
};

/* Splits a range into prompts whose token at r.depth is less than, equal to, or greater than the
 * pivot's. */
static void split_range(const struct builder *b, struct range r, struct range parts[3])
{
    int32_t *at = b->order + r.first;
    int64_t pivot = token_at(&b->prompts[at[r.n / 2]], r.depth);
    int32_t less = 0, i = 0, more = r.n;
    while (i < more) {
        int64_t t = token_at(&b->prompts[at[i]], r.depth);
        if (t < pivot) {
            swap(&at[less++], &at[i++]);
        } else if (t > pivot) {
            swap(&at[i], &at[--more]);
        } else {
            i++;
        }
    }
    parts[0] = (struct range){r.first, less, r.depth};
    parts[1] = (struct range){r.first + less, more - less, r.depth + 1};
    parts[2] = (struct range){r.first + more, r.n - more, r.depth};
    if (pivot < 0) { // all prompts in the middle have ended: they are equal, and keep their order
        qsort(at + less, (size_t)(more - less), sizeof *at, compare_places);
        parts[1].n = 0;
    }
}

/* Three-way quicksort by one depth after the other. Tokens shared by a whole range are skipped at
 * once, so each token is compared about once. The largest part is handled by the loop, which bounds
 * the recursion by log n. */
static void sort_range(const struct builder *b, struct range r)
{
    while (r.n > 1) {
        struct range parts[3];
        r.depth = common_depth(b, b->order + r.first, r.n, r.depth);
        split_range(b, r, parts);
        int largest = 0;
        for (int k = 1; k < 3; k++) {
            if (parts[k].n > parts[largest].n) {
                largest = k;
            }
        }
        for (int k = 0; k < 3; k++) {
            if (k != largest) {
                sort_range(b, parts[k]);
            }
        }
        r = parts[largest];
    }
}

static int compare_spaces(const void *a, const void *b, void *arg)
{
    const struct group_prompt *prompts = arg;
    uint64_t x = prompts[*(const int32_t *)a].space, y = prompts[*(const int32_t *)b].space;
    if (x == y) {
        return compare_places(a, b);
    }
    return (x > y) - (x < y);
}

static void sort_prompts(struct builder *b)
{
    for (int32_t i = 0; i < b->n; i++) {
        b->order[i] = i;
    }
    qsort_r(b->order, (size_t)b->n, sizeof *b->order, compare_spaces, (void *)b->prompts);
    for (int32_t first = 0, end; first < b->n; first = end) {
        uint64_t space = b->prompts[b->order[first]].space;
        for (end = first + 1; end < b->n && b->prompts[b->order[end]].space == space; end++) {
        }
        sort_range(b, (struct range){first, end - first, 0});
    }
}

/* The number of tokens that two neighbours share. The last token of a prompt is never shared,
 * because it must be computed. */
static int32_t shared_tokens(const struct builder *b, const struct group_prompt *x,
                             const struct group_prompt *y)
{
    int32_t most = x->n < y->n ? x->n - 1 : y->n - 1, k = 0;
    if (x->space != y->space) {
        return 0;
    }
    while (k < most && x->ids[k] == y->ids[k]) {
        k++;
    }
    return k - k % b->match_unit;
}

/* ---- the tree ----------------------------------------------------------------------------- */

static int32_t add_node(struct builder *b, int32_t depth, int32_t prompt)
{
    b->nodes[b->n_nodes] = (struct node){.depth = depth,
                                         .n_leaves = prompt >= 0 ? 1 : 0,
                                         .prompt = prompt,
                                         .child = -1,
                                         .sibling = -1};
    return b->n_nodes++;
}

static void add_child(struct builder *b, int32_t parent, int32_t child)
{
    struct node *p = &b->nodes[parent];
    b->nodes[child].sibling = p->child; // in reverse order, which is corrected at the end
    p->child = child;
    p->n_leaves += b->nodes[child].n_leaves;
}

/* Builds the tree from the lengths that neighbours share, with a stack of open nodes: a node is
 * closed when the next prompt shares less than its depth. Returns the root. Children end up in
 * reverse order. */
static int32_t build_tree(struct builder *b)
{
    int32_t *open = xmalloc((size_t)(b->n + 1) * sizeof *open), n_open = 1;
    open[0] = add_node(b, 0, -1);
    for (int32_t i = 0; i < b->n; i++) {
        int32_t leaf = add_node(b, b->prompts[b->order[i]].n, b->order[i]);
        int32_t next = i + 1 < b->n ? b->shared[i + 1] : 0; // depth at which the next prompt
                                                            // branches off
        if (next > b->nodes[open[n_open - 1]].depth) {
            open[n_open++] = add_node(b, next, -1);
        }
        add_child(b, open[n_open - 1], leaf);
        while (b->nodes[open[n_open - 1]].depth > next) {
            int32_t at = open[--n_open];
            if (b->nodes[open[n_open - 1]].depth < next) {
                open[n_open++] = add_node(b, next, -1);
            }
            add_child(b, open[n_open - 1], at);
        }
    }
    int32_t root = open[0];
    free(open);
    return root;
}

static void turn_children(struct builder *b, int32_t v)
{
    int32_t turned = -1;
    for (int32_t c = b->nodes[v].child, next; c >= 0; c = next) {
        next = b->nodes[c].sibling;
        b->nodes[c].sibling = turned;
        turned = c;
    }
    b->nodes[v].child = turned;
}

/* Moves inner children of c, a child of v, up to the level of c where this saves tokens. A moved
 * child g becomes a group of its own: it recomputes the tokens between v and c once, and its
 * members share all of its tokens. Moved nodes follow c. */
static void lift_from(struct builder *b, int32_t v, int32_t c)
{
    struct node *nodes = b->nodes;
    const int64_t again = nodes[c].depth - nodes[v].depth;
    int32_t last = c;
    for (int32_t *link = &nodes[c].child; *link >= 0;) {
        int32_t g = *link;
        int64_t saved = (int64_t)(nodes[g].n_leaves - 1) * (nodes[g].depth - nodes[c].depth);
        if (nodes[g].prompt >= 0 || saved <= again) {
            link = &nodes[g].sibling;
            continue;
        }
        *link = nodes[g].sibling;
        nodes[c].n_leaves -= nodes[g].n_leaves;
        nodes[g].sibling = nodes[last].sibling;
        nodes[last].sibling = g;
        last = g;
    }
}

/* Removes children of v that are inner nodes with no child left, and replaces those with one child
 * by that child. */
static void drop_thin(struct builder *b, int32_t v)
{
    struct node *nodes = b->nodes;
    for (int32_t *link = &nodes[v].child; *link >= 0;) {
        struct node *c = &nodes[*link];
        if (c->prompt < 0 && c->child < 0) {
            *link = c->sibling;
        } else if (c->prompt < 0 && nodes[c->child].sibling < 0) {
            nodes[c->child].sibling = c->sibling;
            *link = c->child;
        } else {
            link = &c->sibling;
        }
    }
}

static void lift_children(struct builder *b, int32_t v)
{
    for (int32_t c = b->nodes[v].child; c >= 0;) {
        int32_t next = b->nodes[c].sibling;
        if (b->nodes[c].prompt < 0) {
            lift_from(b, v, c);
        }
        c = next;
    }
    drop_thin(b, v);
}

/* Processes every inner node after all nodes below it, without recursion, since the tree may be as
 * deep as it has prompts. */
static void enlarge(struct builder *b, int32_t root)
{
    int32_t *inner = xmalloc((size_t)b->n_nodes * sizeof *inner), n = 0;
    inner[n++] = root;
    for (int32_t i = 0; i < n; i++) { // parents before their children
        for (int32_t c = b->nodes[inner[i]].child; c >= 0; c = b->nodes[c].sibling) {
            if (b->nodes[c].prompt < 0) {
                inner[n++] = c;
            }
        }
    }
    while (n > 0) {
        lift_children(b, inner[--n]);
    }
    free(inner);
}

/* ---- groups ------------------------------------------------------------------------------- */

/* Appends the prompts below v to the order, without recursion (the tree may be as deep as it has
 * prompts). Returns their number. */
static int32_t list_leaves(const struct builder *b, int32_t v, int32_t *stack, int32_t *out)
{
    int32_t n = 0, n_stack = 0;
    stack[n_stack++] = v;
    while (n_stack > 0) {
        int32_t at = stack[--n_stack];
        if (at != v && b->nodes[at].sibling >= 0) {
            stack[n_stack++] = b->nodes[at].sibling;
        }
        if (b->nodes[at].prompt >= 0) {
            out[n++] = b->nodes[at].prompt;
        } else {
            stack[n_stack++] = b->nodes[at].child;
        }
    }
    return n;
}

static void measure_group(const struct builder *b, const int32_t *members, struct prefix_group *g,
                          int64_t *tokens)
{
    int64_t output = 0, computed = g->prefix_len;
    for (int32_t i = 0; i < g->n; i++) {
        output += b->prompts[members[i]].est_output;
        computed += b->prompts[members[i]].n - g->prefix_len;
    }
    g->ratio = (double)output / (double)(computed > 0 ? computed : 1);
    *tokens += computed;
}

static int compare_groups(const void *a, const void *b)
{
    const struct prefix_group *x = a, *y = b;
    if (x->ratio != y->ratio) {
        return x->ratio > y->ratio ? -1 : 1;
    }
    if (x->prefix_len != y->prefix_len) {
        return x->prefix_len > y->prefix_len ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

/* Sorts the groups by ratio, each with its members. */
static void order_by_ratio(struct prefix_groups *g)
{
    int32_t *members = xmalloc((size_t)g->n_prompts * sizeof *members), n = 0;
    memcpy(members, g->order, (size_t)g->n_prompts * sizeof *members);
    qsort(g->groups, (size_t)g->n_groups, sizeof *g->groups, compare_groups);
    for (int32_t i = 0; i < g->n_groups; i++) {
        struct prefix_group *group = &g->groups[i];
        memcpy(g->order + n, members + group->first, (size_t)group->n * sizeof *members);
        group->first = n;
        n += group->n;
    }
    free(members);
}

static void take_groups(const struct builder *b, int32_t root, struct prefix_groups *out)
{
    int32_t *stack = xmalloc((size_t)(2 * b->n + 2) * sizeof *stack), n = 0;
    for (int32_t c = b->nodes[root].child; c >= 0; c = b->nodes[c].sibling) {
        struct prefix_group *g = &out->groups[out->n_groups++];
        g->first = n;
        g->n = list_leaves(b, c, stack, out->order + n);
        if (b->nodes[c].prompt >= 0) {
            g->prefix_len = 0;
        } else {
            g->prefix_len = b->nodes[c].depth;
        }
        measure_group(b, out->order + n, g, &out->grouped_tokens);
        n += g->n;
    }
    free(stack);
}

void prefix_groups_make(const struct group_prompt *prompts, int32_t n, int32_t match_unit,
                        enum group_order order, struct prefix_groups *out)
{
    *out = (struct prefix_groups){.n_prompts = n};
    if (n == 0) {
        return;
    }
    struct builder b = {.prompts = prompts, .n = n, .match_unit = match_unit};
    b.order = xmalloc((size_t)n * sizeof *b.order);
    b.shared = xcalloc((size_t)n, sizeof *b.shared);
    b.nodes = xmalloc((size_t)(2 * n + 1) * sizeof *b.nodes);
    sort_prompts(&b);
    for (int32_t i = 0; i < n; i++) {
        out->logical_tokens += prompts[i].n;
        if (i > 0) {
            b.shared[i] = shared_tokens(&b, &prompts[b.order[i - 1]], &prompts[b.order[i]]);
            out->computed_tokens -= b.shared[i];
        }
    }
    out->computed_tokens += out->logical_tokens;
    int32_t root = build_tree(&b);
    for (int32_t v = 0; v < b.n_nodes; v++) {
        turn_children(&b, v);
    }
    enlarge(&b, root);
    out->order = b.order;
    out->groups = xcalloc((size_t)n, sizeof *out->groups);
    take_groups(&b, root, out);
    if (order == GROUP_ORDER_RATIO) {
        order_by_ratio(out);
    }
    free(b.shared);
    free(b.nodes);
}

void prefix_groups_free(struct prefix_groups *g)
{
    free(g->order);
    free(g->groups);
    *g = (struct prefix_groups){0};
}
