// SPDX-License-Identifier: Apache-2.0
/* What must hold for any source of a grammar: it is refused with a message, or it compiles; then
 * tokens that a mask allows can be written one after another, forced text is the only possible one,
 * and a state is a function of the bytes.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_GRAMMAR_FUZZ_H
#define SLUICE_TEST_GRAMMAR_FUZZ_H

#include "engine/base/assert.h"
#include "engine/grammar/grammar.h"
#include "test/fuzz/fuzz.h"

enum { GRAMMAR_FUZZ_STEPS = 8, GRAMMAR_FUZZ_IDS = 280 };

/* Every byte as a token, and some longer ones that cross boundaries of JSON. */
static const struct grammar_vocab *grammar_fuzz_vocab(void)
{
    static struct grammar_vocab *v;
    static char bytes[256];
    static const char *const longer[] = {"\": ", "\", \"", "{\"",      "}}", "\n  ",  "ab",
                                         "a\"",  "tru",    "\xc3\xa9", "12", "abc\","};
    if (!v) {
        struct grammar_token tokens[GRAMMAR_FUZZ_IDS] = {{NULL, 0, false}};
        const int32_t end = 256;
        for (int i = 0; i < 256; i++) {
            bytes[i] = (char)i;
            tokens[i] = (struct grammar_token){&bytes[i], 1, false};
        }
        for (size_t i = 0; i < sizeof longer / sizeof *longer; i++) {
            tokens[257 + i] = (struct grammar_token){longer[i], strlen(longer[i]), false};
        }
        tokens[278] = (struct grammar_token){"<s>", 3, true};
        tokens[279] = (struct grammar_token){"</s>", 4, true};
        ASSERT(grammar_vocab_make(tokens, GRAMMAR_FUZZ_IDS, &end, 1, &v, NULL) == OK);
    }
    return v;
}

/* Returns a token that the mask allows, or -1. Checks that testing each token alone agrees with the
 * mask. */
static int32_t grammar_fuzz_draw(struct grammar *g, struct grammar_state s, const uint32_t *words,
                                 bool *end)
{
    int32_t allowed[GRAMMAR_FUZZ_IDS];
    size_t n = 0;
    for (int32_t id = 0; id < GRAMMAR_FUZZ_IDS; id++) {
        bool in = words[id >> 5] >> (id & 31) & 1, alone;
        enum status st = grammar_allows(g, s, id, &alone);
        if (st != OK) {
            *end = true; // a limit was exceeded
            return -1;
        }
        ASSERT(in == alone);
        if (in && id != 256) {
            allowed[n++] = id;
        }
    }
    *end = words[8] & 1;
    ASSERT(*end == grammar_may_end(g, s));
    if (n > 0) {
        return allowed[fuzz_below(n)];
    }
    return -1;
}

/* Writes a random text that the masks allow, and checks the state at each step. */
static void grammar_fuzz_walk(struct grammar *g)
{
    const struct grammar_vocab *v = grammar_fuzz_vocab();
    struct grammar_state s = grammar_start(g), folded;
    char text[GRAMMAR_FUZZ_STEPS], forced[8];
    size_t n = 0;
    for (int step = 0; step < GRAMMAR_FUZZ_STEPS; step++) {
        uint32_t words[(GRAMMAR_FUZZ_IDS + 31) / 32];
        bool end;
        ASSERT(grammar_mask_words(v) == sizeof words / 4);
        if (grammar_mask(g, s, words) != OK) {
            return;
        }
        size_t n_forced = grammar_forced(g, s, forced, sizeof forced);
        int32_t id = grammar_fuzz_draw(g, s, words, &end);
        if (id < 0) {
            ASSERT(end); // every state can reach an end
            return;
        }
        struct grammar_state next = s;
        if (n_forced > 0) {
            ASSERT(grammar_advance(g, &next, forced, n_forced) != ERR_INVALID);
        }
        enum status st = grammar_advance_token(g, &s, id);
        if (st != OK) {
            ASSERT(st != ERR_INVALID);
            return;
        }
        if (id >= 256) {
            return; // a token is not a single byte: the text is no longer known
        }
        text[n++] = (char)id;
        st = grammar_fold(g, text, n, &folded);
        ASSERT(st != ERR_INVALID && (st != OK || folded.epoch != s.epoch || folded.id == s.id));
    }
}

/* Small limits, so that no input takes long. */
static void grammar_fuzz(enum grammar_kind kind, const uint8_t *data, size_t size)
{
    const struct grammar_limits limits = {.max_compile_work = 200000,
                                          .max_step_work = 100000,
                                          .max_table_bytes = 4 << 20,
                                          .max_mask_bytes = 100000};
    struct grammar_source source = {.kind = kind, .text = (const char *)data, .n_bytes = size};
    struct grammar *g;
    struct err err = {{0}};
    if (grammar_compile(&source, &limits, grammar_fuzz_vocab(), &g, &err) != OK) {
        ASSERT(err.text[0] && !g);
        return;
    }
    grammar_fuzz_walk(g);
    grammar_free(g);
}

#endif
