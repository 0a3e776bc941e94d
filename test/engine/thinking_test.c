// SPDX-License-Identifier: Apache-2.0
/* Where reasoning begins, ends, and is cut. Tokens 0 to 255 are bytes; 256 is the marker that opens
 * it, 257 the one that closes it. */
#include "engine/thinking.h"
#include "test/check.h"

#include <string.h>

enum { OPEN = 256, CLOSE, WORD, N_TOKENS };

static struct grammar_vocab *vocab;

static void open_vocab(void)
{
    static char bytes[256];
    static const int32_t end = 0;
    struct grammar_token tokens[N_TOKENS] = {{NULL, 0, false}};
    for (int32_t i = 1; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, false};
    }
    tokens[WORD] = (struct grammar_token){"x</t", 4, false};
    struct err err;
    REQUIRE(vocab || grammar_vocab_make(tokens, N_TOKENS, &end, 1, &vocab, &err) == OK);
}

static struct thinking_limit limit(int32_t most, bool opened)
{
    static const int32_t end[] = {'.', CLOSE};
    open_vocab();
    return (struct thinking_limit){.most = most,
                                   .opened = opened,
                                   .n_opens = 2,
                                   .n_closes = 1,
                                   .opens = {{"<t>", OPEN}, {"Here:", -1}},
                                   .closes = {{"</t>", CLOSE}},
                                   .end = {end, 2},
                                   .vocab = vocab};
}

/* Feeds bytes; returns the index of the first token that must be forced, -1: none. */
static int32_t first_forced(const struct thinking_limit *l, const char *text)
{
    struct thinking t = thinking_start(l);
    for (int32_t i = 0; text[i]; i++) {
        if (thinking_forced(l, &t) >= 0) {
            return i;
        }
        thinking_take(l, &t, text[i] == '\1' ? OPEN : (unsigned char)text[i]);
    }
    return thinking_forced(l, &t) >= 0 ? (int32_t)strlen(text) : -1;
}

TEST(tokens_of_reasoning_are_counted)
{
    const struct {
        int32_t most;
        bool opened;
        const char *text;
        int32_t at;
    } cases[] = {
        {3, true, "abcdef", 3},
        {0, true, "abc", 0},
        {3, true, "ab", -1},
        {3, false, "\1abcdef", 4},
        {3, false, "<t>abcdef", 6},
        {3, false, " \n<t>abcdef", 8},
        {0, false, "\1", 1},
        {0, false, "Here:", 5},
        {2, false, "Here:abc", 7},
        {2, false, "Hex:abc", -1},
        {2, false, "a<t>bcdefgh", -1},
        {2, false, "< t>bcdefgh", -1},
        {9, true, "ab</t>cdefghi", -1},
        {6, true, "ab</t>cdefghi", -1},
        {5, true, "ab</t>cdefghi", 5},
        {9, true, "a</</t>cdefghijk", -1},
        {4, true, "\1\1\1\1\1", 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct thinking_limit l = limit(cases[i].most, cases[i].opened);
        CHECK_EQ(first_forced(&l, cases[i].text), cases[i].at);
    }
}

TEST(the_end_is_forced_once)
{
    struct thinking_limit l = limit(2, true);
    struct thinking t = thinking_start(&l);
    const int32_t answer[] = {'a', 'b', '.', CLOSE, 'c', OPEN, 'd', 'e', 'f'};
    const int32_t forced[] = {-1, -1, '.', CLOSE, -1, -1, -1, -1, -1};
    for (size_t i = 0; i < sizeof answer / sizeof answer[0]; i++) {
        CHECK_EQ(thinking_forced(&l, &t), forced[i]);
        thinking_take(&l, &t, answer[i]);
        CHECK_EQ(t.n_seen, (int32_t)i + 1);
    }
    CHECK_EQ((int)t.phase, THINKING_OVER);
}

TEST(a_marker_may_end_inside_a_token)
{
    struct thinking_limit l = limit(4, true);
    struct thinking t = thinking_start(&l);
    thinking_take(&l, &t, WORD);
    thinking_take(&l, &t, '>');
    CHECK_EQ((int)t.phase, THINKING_OVER);
    t = thinking_start(&l);
    thinking_take(&l, &t, CLOSE);
    CHECK_EQ((int)t.phase, THINKING_OVER);
}

/* Harmony's markers: C a M opens reasoning, E S ends it, E S C f M is the last end. */
static struct thinking_limit channel_limit(int32_t most, bool opened)
{
    static const int32_t opens[] = {'C', 'a', 'M'}, end[] = {'E', 'S'};
    static const int32_t last[] = {'E', 'S', 'C', 'f', 'M'};
    struct thinking_limit l = limit(most, opened);
    l.n_opens = 0;
    l.channel = (struct token_marker){opens, 3};
    l.closes[0] = (struct text_marker){"E", 'E'};
    l.end = (struct token_marker){end, 2};
    l.last_end = (struct token_marker){last, 5};
    return l;
}

/* The answer of a model that would write this text, with what is forced in its place. */
static const char *limited(const struct thinking_limit *l, const char *text, char out[64])
{
    struct thinking t = thinking_start(l);
    size_t n = 0;
    while (n < 63 && (thinking_forced(l, &t) >= 0 || *text)) {
        int32_t forced = thinking_forced(l, &t);
        out[n] = forced >= 0 ? (char)forced : *text++;
        thinking_take(l, &t, (unsigned char)out[n++]);
    }
    out[n] = '\0';
    return out;
}

TEST(reasoning_in_channels_may_begin_again)
{
    const struct {
        int32_t most;
        bool opened;
        const char *text, *want;
    } cases[] = {
        {3, false, "CaMxyzCfMok", "CaMxyzESCfMok"},
        {3, true, "xyzCfMok", "xyzESCfMok"},
        {5, false, "CaMxyESCaMzwvuCfMok", "CaMxyESCaMzwvESuCfMok"},
        {2, false, "CaMxyCaMCaMok", "CaMxyESCaMESCfMCaMESCfMok"},
        {0, false, "CaMok", "CaMESok"},
        {0, false, "CfMok", "CfMok"},
        {1, false, "CCaMxok", "CCaMxESok"},
        {9, false, "CaMxyECaMzECfMok", "CaMxyECaMzECfMok"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct thinking_limit l = channel_limit(cases[i].most, cases[i].opened);
        CHECK_STR(limited(&l, cases[i].text, out), cases[i].want);
    }
}

/* No token that is said to be free may turn out to be forced, whatever comes before it. */
TEST(what_is_free_is_never_forced)
{
    uint32_t seed = 1;
    for (int32_t round = 0; round < 20000; round++) {
        bool channels = round % 2;
        struct thinking_limit l =
            (channels ? channel_limit : limit)((int32_t)(seed >> 8) % 7, seed >> 5 & 1);
        struct thinking t = thinking_start(&l);
        int32_t free_until = 0;
        for (int32_t i = 0; i < 12; i++) {
            for (int32_t n = 1; n < 6; n++) {
                if (thinking_is_free(&l, &t, n) && i + n > free_until) {
                    free_until = i + n;
                }
            }
            int32_t forced = thinking_forced(&l, &t);
            CHECK(forced < 0 || i >= free_until);
            seed = seed * 1664525u + 1013904223u;
            static const int32_t some[] = {OPEN, 'a', 'a', ' ', '<', 't', '>', WORD};
            static const int32_t parts[] = {'C', 'a', 'M', 'C', 'E', 'x', 'a', 'M'};
            int32_t any = (channels ? parts : some)[seed >> 20 & 7];
            thinking_take(&l, &t, forced >= 0 ? forced : any);
        }
    }
}

int main(int argc, char **argv)
{
    int rc = check_main(argc, argv);
    grammar_vocab_free(vocab);
    return rc;
}
