// SPDX-License-Identifier: Apache-2.0
/* There are few groups, so a set of them fits in one word. The character classes of patterns rarely
 * divide a group. */
#include "engine/grammar/vocab_groups.h"

#include "engine/base/mem.h"

#include <stdlib.h>

#define BIT(group) (1ull << (group))

const struct vocab_group vocab_groups[VOCAB_N_GROUPS] = {
    {'a', 'f'},   {'g', 'z'},   {'A', 'F'},   {'G', 'Z'},   {'0', '9'},   {' ', ' '},
    {'!', '!'},   {'"', '"'},   {'#', '#'},   {'$', '$'},   {'%', '%'},   {'&', '&'},
    {'\'', '\''}, {'(', '('},   {')', ')'},   {'*', '*'},   {'+', '+'},   {',', ','},
    {'-', '-'},   {'.', '.'},   {'/', '/'},   {':', ':'},   {';', ';'},   {'<', '<'},
    {'=', '='},   {'>', '>'},   {'?', '?'},   {'@', '@'},   {'[', '['},   {'\\', '\\'},
    {']', ']'},   {'^', '^'},   {'_', '_'},   {'`', '`'},   {'{', '{'},   {'|', '|'},
    {'}', '}'},   {'~', '~'},   {'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}, {0x00, 0x08},
    {0x0b, 0x0c}, {0x0e, 0x1f}, {0x7f, 0x7f}, {0xc2, 0xc3}, {0xc4, 0xcf}, {0xd0, 0xdf},
    {0xe0, 0xe0}, {0xe1, 0xe1}, {0xe2, 0xe2}, {0xe3, 0xe3}, {0xe4, 0xec}, {0xed, 0xed},
    {0xee, 0xef}, {0xf0, 0xf0}, {0xf1, 0xf3}, {0xf4, 0xf4},
};

/* Table 3-7 of the Unicode standard. */
struct utf8_lead vocab_lead(uint8_t byte)
{
    if (byte < 0xc2 || byte > 0xf4) {
        return (struct utf8_lead){0, 0, 0};
    }
    struct utf8_lead lead = {2, 0x80, 0xbf};
    lead.n = (uint8_t)(2 + (byte >= 0xe0) + (byte >= 0xf0));
    if (byte == 0xe0) {
        lead.lo = 0xa0;
    } else if (byte == 0xf0) {
        lead.lo = 0x90;
    } else if (byte == 0xed) {
        lead.hi = 0x9f;
    } else if (byte == 0xf4) {
        lead.hi = 0x8f;
    }
    return lead;
}

/* ---- characters in the trie ---- */

/* The position of a path in a character: `left` bytes are missing, the next one from lo to hi. */
struct place {
    uint8_t left, lo, hi;
    uint32_t first; // the node of the character's first byte
};

static struct place next_place(const struct vocab_node *nodes, uint32_t at, struct place before)
{
    uint8_t byte = nodes[at].byte;
    if (before.left > 0 && byte >= before.lo && byte <= before.hi) {
        return (struct place){before.left - 1, 0x80, 0xbf, before.first};
    }
    struct utf8_lead lead = vocab_lead(byte);
    return (struct place){lead.n > 0 ? lead.n - 1 : 0, lead.lo, lead.hi, at};
}

/* By node: the bit of its group; BIT(GROUP_INNER) if it continues a character. A character with
 * wrong bytes after its first one is broken as a whole. */
static uint64_t *own_groups(const struct grammar_vocab *v)
{
    uint64_t of_byte[256];
    for (int b = 0; b < 256; b++) {
        of_byte[b] = BIT(GROUP_BROKEN);
    }
    for (int g = 0; g < VOCAB_N_GROUPS; g++) {
        for (int b = vocab_groups[g].lo; b <= vocab_groups[g].hi; b++) {
            of_byte[b] = BIT(g);
        }
    }
    uint64_t *own = xcalloc(v->n + 1, sizeof *own);
    struct place *path = xcalloc(v->max_depth + 1, sizeof *path);
    for (uint32_t i = 1; i < v->n; i++) {
        const struct vocab_node *node = &v->v[i];
        struct place before = path[node->depth - 1], now = next_place(v->v, i, before);
        path[node->depth] = now;
        if (now.first != i) {
            own[i] = BIT(GROUP_INNER);
        } else {
            own[i] = of_byte[node->byte];
        }
        if (now.first == i && before.left > 0) {
            own[before.first] = BIT(GROUP_BROKEN);
        }
    }
    free(path);
    return own;
}

/* Goes from the leaves up. Nodes above the first byte of a character ignore its other bytes. */
uint64_t *vocab_groups_below(const struct grammar_vocab *v)
{
    uint64_t *own = own_groups(v);
    uint64_t *below = xcalloc(v->n + 1, sizeof *below);
    uint32_t *open = xcalloc(v->max_depth + 1, sizeof *open);
    uint32_t depth = 0;
    for (uint32_t i = 1; i <= v->n; i++) {
        uint32_t to = i < v->n ? v->v[i].depth : 0;
        for (; depth > 0 && depth >= to; depth--) { // the nodes that end here
            uint32_t child = open[depth];
            uint64_t more = below[child];
            if (own[child] != BIT(GROUP_INNER)) {
                more &= ~BIT(GROUP_INNER);
            }
            below[open[depth - 1]] |= more | own[child];
        }
        open[to] = i;
        depth = to;
    }
    free(open);
    free(own);
    return below;
}
