// SPDX-License-Identifier: Apache-2.0
/* The groups of characters below each node of a vocabulary's trie, compared with those that the
 * texts of the tokens give, over random vocabularies that also contain broken characters. */
#include "engine/grammar/vocab_groups.h"

#include "test/check.h"
#include "test/engine/grammar/random.h"

#include <string.h>

enum { N_TOKENS = 150 };

static char token_text[N_TOKENS][32];

static struct grammar_vocab *random_vocab(void)
{
    static const char *const pieces[] = {"a",    "g",    "Z",        "0",    " ",
                                         "\"",   "\n",   "\x01",     "é",    "日",
                                         "\xc3", "\xa9", "\xe0\x80", "\xe6", "\xf0\x9f\x98\x80",
                                         "\xf0", "\x9f", "\xc0",     "b",    "а"};
    struct grammar_token tokens[N_TOKENS];
    struct grammar_vocab *v;
    struct err err;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        token_text[i][0] = 0;
        for (uint32_t k = 1 + draw(4); k > 0; k--) {
            strcat(token_text[i], pieces[draw(sizeof pieces / sizeof *pieces)]);
        }
        tokens[i] = (struct grammar_token){token_text[i], strlen(token_text[i]), false};
    }
    CHECK_EQ(grammar_vocab_make(tokens, N_TOKENS, NULL, 0, &v, &err), OK);
    return v;
}

/* The number of bytes of the character at `s` that are present and valid; *whole: none is invalid.
 */
static size_t char_bytes(const char *s, size_t n, bool *whole)
{
    struct utf8_lead lead = vocab_lead((uint8_t)s[0]);
    size_t k = 1;
    for (; k < lead.n && k < n; k++) {
        uint8_t b = (uint8_t)s[k], lo = k == 1 ? lead.lo : 0x80, hi = k == 1 ? lead.hi : 0xbf;
        if (b < lo || b > hi) {
            *whole = false;
            return k;
        }
    }
    *whole = true;
    return k;
}

/* Whether some token begins with these bytes and its character at `at` has an invalid byte. */
static bool is_broken(const char *s, size_t at)
{
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        bool whole = true;
        if (strncmp(token_text[i], s, at + 1) == 0) {
            char_bytes(token_text[i] + at, strlen(token_text[i] + at), &whole);
        }
        if (!whole) {
            return true;
        }
    }
    return false;
}

static uint64_t group_at(const char *s, size_t at)
{
    uint8_t b = (uint8_t)s[at];
    for (int g = 0; g < VOCAB_N_GROUPS && !is_broken(s, at); g++) {
        if (b >= vocab_groups[g].lo && b <= vocab_groups[g].hi) {
            return 1ull << g;
        }
    }
    return 1ull << GROUP_BROKEN;
}

/* The groups of the characters of a token that begin after its first n bytes; GROUP_INNER if those
 * bytes end within a character that goes on. */
static uint64_t groups_after(const char *s, size_t n)
{
    uint64_t groups = 0;
    for (size_t at = 0; s[at];) {
        bool whole;
        size_t bytes = char_bytes(s + at, strlen(s + at), &whole);
        if (at >= n) {
            groups |= group_at(s, at);
        } else if (at + bytes > n) {
            groups |= 1ull << GROUP_INNER;
        }
        at += bytes;
    }
    return groups;
}

/* Every node, with all tokens below it. */
TEST(groups_below_a_node_are_those_of_its_tokens)
{
    for (seed = first_seed(); seed < first_seed() + n_rounds() / 10; seed++) {
        draws = 0;
        struct grammar_vocab *v = random_vocab();
        for (uint32_t i = 0; i < v->n; i++) {
            uint64_t right = 0;
            for (uint32_t k = v->first[i]; k < v->first[v->v[i].end]; k++) {
                right |= groups_after(token_text[v->order[k]], v->v[i].depth);
            }
            CHECK_EQ((int64_t)v->below[i], (int64_t)right);
        }
        grammar_vocab_free(v);
    }
}

/* Each byte that can begin a character is in exactly one group, and a group holds characters of one
 * length. */
TEST(groups_divide_the_first_bytes_of_characters)
{
    for (int b = 0; b < 256; b++) {
        struct utf8_lead lead = vocab_lead((uint8_t)b);
        int n = 0;
        for (int g = 0; g < VOCAB_N_GROUPS; g++) {
            bool in = b >= vocab_groups[g].lo && b <= vocab_groups[g].hi;
            struct utf8_lead first = vocab_lead(vocab_groups[g].lo);
            n += in;
            CHECK(!in || memcmp(&lead, &first, sizeof lead) == 0);
        }
        CHECK_EQ(n, b < 0x80 || lead.n > 0);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
