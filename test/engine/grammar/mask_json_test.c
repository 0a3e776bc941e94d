// SPDX-License-Identifier: Apache-2.0
/* Masks inside JSON, over random vocabularies of its parts, compared with advancing by every token:
 * strings, numbers and counted repetitions have shortcuts. */
#include "test/engine/grammar/random.h"

#include "engine/grammar/grammar.h"
#include "test/check.h"

#include <string.h>

enum { N_JSON_TOKENS = 700 };

/* Tokens made of the parts of JSON: quotes, escapes, blanks, letters, and parts of characters. */
static struct grammar_vocab *json_vocab(void)
{
    static const char *const pieces[] = {
        "\"",   "\"",   "\\",  " ",     "\n",   "\t",    "{",    "}",  "[",    "]", ":",
        ",",    "a",    "b",   "e",     "n",    "u",     "0",    "00", "1",    "2", "-",
        ".",    "true", "é",   "\xc3",  "\xa9", "日",    "\xe6", "@",  "Z",    "q", "T",
        "name", "\":",  "\",", "\":\"", "x",    "abcde", "\x1f", "  ", "\\\"", "/", "_",
    };
    enum { N_PIECES = sizeof pieces / sizeof *pieces };
    static char text[N_JSON_TOKENS][64];
    struct grammar_token tokens[N_JSON_TOKENS + 1];
    const int32_t end = N_JSON_TOKENS;
    struct grammar_vocab *v;
    struct err err;
    for (uint32_t i = 0; i < N_JSON_TOKENS; i++) {
        text[i][0] = 0;
        for (uint32_t k = i < N_PIECES ? 1 : 1 + draw(5); k > 0; k--) {
            strcat(text[i], pieces[i < N_PIECES ? i : draw(N_PIECES)]);
        }
        tokens[i] = (struct grammar_token){text[i], strlen(text[i]), false};
    }
    tokens[N_JSON_TOKENS] = (struct grammar_token){"", 0, false};
    CHECK_EQ(grammar_vocab_make(tokens, N_JSON_TOKENS + 1, &end, 1, &v, &err), OK);
    return v;
}

/* Compares a mask with advancing by every token, twice: once when it is computed and once when it
 * is cached. Returns the tokens that are allowed, or -1. */
static int compare_mask(struct grammar *g, struct grammar_state s, int32_t *allowed)
{
    uint32_t words[N_JSON_TOKENS / 32 + 2];
    int n = 0, n_wrong = 0;
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(grammar_mask(g, s, words), OK);
        n = 0;
        for (int32_t id = 0; id <= N_JSON_TOKENS; id++) {
            bool in = words[id >> 5] >> (id & 31) & 1, alone;
            CHECK_EQ(grammar_allows(g, s, id, &alone), OK);
            n_wrong += in != alone;
            n_triples++;
            if (alone && id < N_JSON_TOKENS) {
                allowed[n++] = id;
            }
        }
    }
    return n_wrong > 0 ? -1 : n;
}

/* Writes random allowed tokens for 120 steps, and begins a new text whenever one has ended. */
static void check_walks(struct grammar *g, const char *source)
{
    static int32_t allowed[N_JSON_TOKENS + 1];
    for (int steps = 0; steps < 120;) {
        struct grammar_state s = grammar_start(g);
        for (int n = 1; n > 0 && steps < 120; steps++) {
            n = compare_mask(g, s, allowed);
            if (n < 0) {
                CHECK_FAIL("%s: tokens of a mask are wrong", source);
                return;
            }
            if (n > 0) {
                CHECK_EQ(grammar_advance_token(g, &s, allowed[draw((uint32_t)n)]), OK);
            }
        }
    }
}

/* Masks inside strings and numbers have shortcuts, which must give what advancing token by
 * token gives. */
TEST(masks_inside_json_agree_with_advancing)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } list[] = {
        {GRAMMAR_SCHEMA, "true"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"maxLength\":3}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":30}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"minLength\":40}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"a.*b\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^ab]*$\",\"maxLength\":9}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z0-9_.]+@[a-z]+$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\\w+\\\\s?.{2,4}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^(a|bb|\\\"|\\\\\\\\)*$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"format\":\"email\"}"},
        {GRAMMAR_SCHEMA, "{\"anyOf\":[{\"type\":\"string\",\"format\":\"date-time\"},{\"type\":"
                         "\"string\",\"maxLength\":20},{\"enum\":[\"ab\",\"name\",1,true]}]}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"integer\"},"
                         "\"n\":{\"type\":\"string\"}},\"additionalProperties\":true}"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"eq\":{\"type\":\"boolean\"},"
         "\"Z0\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":\"string\","
         "\"maxLength\":2}}"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},"
         "\"additionalProperties\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":[\"number\",\"string\"]}}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-z]{0,40}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^b]{9,30}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^\\\\w{1,12}[@.]?[a-z]{2,9}$\"}"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"string\",\"pattern\":\"^([ab]+ |\\\"é|\\n|\\u001f){2,12}e?$\"}"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"string\",\"pattern\":\"^(([a-z]{1,3},){2,9}\\\\d{0,8};?){1,9}$\"}"},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"string\",\"pattern\":"
         "\"^[a-z]{3,20}$\"},{\"type\":\"string\",\"pattern\":\"^[0-9a-f]{8}$\"}]}}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^b]{0,9}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[\\n\\t]{8,9}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[^b]{0,9}[\\n\\\"]$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^([ab]+e?){1,9}$\"}"},
        {GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^a?[a-e]{8,12}$\"}"},
        {GRAMMAR_REGEX, "([0-9]{8,9}q){1,40}"},
        {GRAMMAR_REGEX, "[0-9]{8}@{0,8}é{8}"},
        {GRAMMAR_REGEX, "([ab] ){2,40}e|[a-z]{20,}"},
        {GRAMMAR_REGEX, "[a-zé]{9,40}[a-z]{9}q"},
        {GRAMMAR_REGEX, "\"(é|日|[a-z\\x00-\\x1f]){0,30}\"(,\"[^\"]{0,9}\"){2,9}"},
        {GRAMMAR_GBNF, "root ::= (\"<\" item \">\"){1,9}\nitem ::= [a-z0-9_]{0,20} (\",\" root)?"},
        {GRAMMAR_REGEX, "[a-z ]*(\"[^\"]*\"|\\d+)"},
        {GRAMMAR_REGEX, ".*"},
        {GRAMMAR_REGEX, "[^\"\\\\]*\"x"},
        {GRAMMAR_REGEX, "[a-zé]{3,40}[.,]?"},
        {GRAMMAR_GBNF,
         "root ::= \"{\" item* \"}\"\nitem ::= [a-z]+ \" \" | \"\\\"\" [^\"]* \"\\\"\""},
        {GRAMMAR_LARK,
         "start: (WORD | STRING)*\nWORD: /[a-z]+/\nSTRING: /\"[^\"]*\"/\n%ignore / +/"},
    };
    int64_t before = n_triples;
    for (seed = first_seed(); seed < first_seed() + 2 + n_rounds() / 300; seed++) {
        draws = 0;
        struct grammar_vocab *v = json_vocab();
        for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
            struct grammar_source source = {
                .kind = list[i].kind, .text = list[i].text, .n_bytes = strlen(list[i].text)};
            // masks and heads are evicted all the time
            struct grammar_limits few = {.max_mask_bytes = 500};
            const struct grammar_limits *limits[] = {NULL, &few};
            struct grammar *g;
            struct err err = {{0}};
            if (grammar_compile(&source, limits[i % 2 ^ seed % 2], v, &g, &err) != OK) {
                CHECK_FAIL("%s: %s", list[i].text, err.text);
                continue;
            }
            check_walks(g, list[i].text);
            grammar_free(g);
        }
        grammar_vocab_free(v);
    }
    tell("grammar", before);
}

/* Each remaining count is a state of its own. Its mask creates no further states, because the
 * effect of each token was learnt at the first of them. */
static void check_counted(const char *pattern, uint32_t n)
{
    uint32_t words[N_JSON_TOKENS / 32 + 2];
    struct grammar_vocab *v = json_vocab();
    struct grammar_source source = {
        .kind = GRAMMAR_REGEX, .text = pattern, .n_bytes = strlen(pattern)};
    struct grammar_stats early = {0}, late;
    struct grammar *g;
    struct err err = {{0}};
    REQUIRE(grammar_compile(&source, NULL, v, &g, &err) == OK);
    struct grammar_state s = grammar_start(g);
    for (uint32_t i = 0; i < n; i++) {
        CHECK_EQ(grammar_mask(g, s, words), OK);
        if (i == n / 2) {
            grammar_stats(g, &early);
        }
        CHECK_EQ(grammar_advance(g, &s, "a", 1), OK);
    }
    grammar_stats(g, &late);
    CHECK_EQ(late.n_masks - early.n_masks, n - n / 2 - 1);
    if (late.n_states - early.n_states > n - n / 2) {
        CHECK_FAIL("%s: %zu states in %u steps", pattern, late.n_states - early.n_states,
                   n - n / 2);
    }
    grammar_free(g);
    grammar_vocab_free(v);
}

TEST(counted_repetitions_create_no_further_states)
{
    seed = first_seed();
    draws = 0;
    check_counted("[a-z]{0,400}", 300);
    check_counted("[^b]{40,400}\"", 300);
    check_counted("([a-f]|é){300,}\\n", 280);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
