// SPDX-License-Identifier: Apache-2.0
/* The contract of grammar.h, which holds for every kind of grammar: states, masks, forced text,
 * limits. */
#include "test/engine/grammar/rows.h"

#include <string.h>
#include <sys/mman.h>

static struct grammar *compile(struct grammar_source source, const struct grammar_limits *limits,
                               const struct grammar_vocab *v)
{
    struct grammar *g;
    struct err err = {{0}};
    source.n_bytes = strlen(source.text);
    if (grammar_compile(&source, limits, v, &g, &err) != OK) {
        CHECK_FAIL("%s: %s", source.text, err.text);
    }
    return g;
}

static bool accepts_text(struct grammar *g, const char *s)
{
    enum status st;
    return accepts(g, s, strlen(s), &st);
}

/* Unbounded white space would let a model write blanks for ever. */
TEST(white_space_is_bounded_and_can_be_chosen)
{
    const char *schema = "{\"type\":\"array\",\"items\":{\"type\":\"null\"}}";
    char text[64] = "[";
    struct grammar *g = compile((struct grammar_source){.text = schema}, NULL, NULL);
    memset(text + 1, ' ', 24);
    strcpy(text + 25, "]");
    CHECK(accepts_text(g, text));
    strcpy(text + 25, " ]");
    CHECK(!accepts_text(g, text) && !accepts_text(g, " []") && !accepts_text(g, "[] "));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .disable_any_whitespace = true}, NULL,
                NULL);
    CHECK(accepts_text(g, "[null,null]") && !accepts_text(g, "[null, null]"));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .whitespace_pattern = "[ \\n]?"}, NULL,
                NULL);
    CHECK(accepts_text(g, "[null, null]") && !accepts_text(g, "[null,  null]"));
    grammar_free(g);
    struct grammar_source bad = {
        .text = schema, .n_bytes = strlen(schema), .whitespace_pattern = "x?"};
    struct err err;
    CHECK_EQ(grammar_compile(&bad, NULL, NULL, &g, &err), ERR_INVALID);
    CHECK(g == NULL);
}

/* Without additionalProperties objects are closed, unless open ones are asked for. */
TEST(objects_are_closed_or_open)
{
    const char *schema = "{\"type\":\"object\",\"properties\":{\"a\":true}}";
    struct grammar *g = compile((struct grammar_source){.text = schema}, NULL, NULL);
    CHECK(!accepts_text(g, "{\"b\":1}"));
    grammar_free(g);
    g = compile((struct grammar_source){.text = schema, .open_objects = true}, NULL, NULL);
    CHECK(accepts_text(g, "{\"b\":1}") && accepts_text(g, "{\"a\":1,\"b\":1}"));
    grammar_free(g);
}

/* Two tokens with the same text, a special one, and two that end a text. */
static struct grammar_vocab *small_vocab(void)
{
    // Ids 9 and 10 end a text; 8 is special and has no bytes; 5 and 6 are the same.
    static const struct grammar_token tokens[] = {
        {"{", 1, false}, {"\"a\"", 3, false}, {":", 1, false},   {"1", 1, false},  {"}", 1, false},
        {"x", 1, false}, {"x", 1, false},     {"\":", 2, false}, {NULL, 0, false}, {"}", 1, false},
        {"", 0, false},  {"\xc3", 1, false},  {"\xa9", 1, false}};
    const int32_t ends[] = {9, 10};
    struct grammar_vocab *v;
    struct err err;
    CHECK_EQ(grammar_vocab_make(tokens, 13, ends, 2, &v, &err), OK);
    return v;
}

/* Computes the mask in both ways that the interface has; they must agree. */
static uint32_t mask_of(struct grammar *g, struct grammar_state s)
{
    uint32_t words[1] = {0};
    CHECK_EQ(grammar_mask(g, s, words), OK);
    for (int32_t id = 0; id < 13; id++) {
        bool allowed;
        CHECK_EQ(grammar_allows(g, s, id, &allowed), OK);
        CHECK_EQ(allowed, words[0] >> id & 1);
    }
    return words[0];
}

/* Masks allow tokens that end within a character, and end tokens only where the text may end. */
TEST(masks_tokens_and_ends)
{
    struct grammar_vocab *v = small_vocab();
    struct grammar *g =
        compile((struct grammar_source){.kind = GRAMMAR_REGEX, .text = "xé|x\\}?"}, NULL, v);
    struct grammar_state s = grammar_start(g), before = s;
    CHECK_EQ(mask_of(g, s), 1 << 5 | 1 << 6);
    CHECK_EQ(grammar_advance_token(g, &s, 0), ERR_INVALID);
    CHECK(s.id == before.id);
    CHECK_EQ(grammar_advance_token(g, &s, 6), OK);
    CHECK(grammar_may_end(g, s));
    CHECK_EQ(mask_of(g, s), 1 << 4 | 1 << 9 | 1 << 10 | 1 << 11); // id 9 ends the text: its '}'
                                                                  // does not count
    CHECK_EQ(grammar_advance_token(g, &s, 11), OK);               // half a character
    CHECK(!grammar_may_end(g, s));
    CHECK_EQ(mask_of(g, s), 1 << 12);
    CHECK_EQ(grammar_advance_token(g, &s, 12), OK);
    CHECK_EQ(mask_of(g, s), 1 << 9 | 1 << 10);
    CHECK_EQ(grammar_advance_token(g, &s, 8), ERR_INVALID);
    CHECK_EQ(grammar_advance_token(g, &s, 13), ERR_INVALID);
    grammar_free(g);
    grammar_vocab_free(v);
}

/* Forced text can be written without the model, up to the first choice. */
TEST(forced_text_ends_where_there_is_a_choice)
{
    struct grammar *g = compile(
        (struct grammar_source){.kind = GRAMMAR_REGEX, .text = "begin(ning)? [ab]"}, NULL, NULL);
    char text[32];
    struct grammar_state s = grammar_start(g);
    CHECK_EQ(grammar_forced(g, s, text, sizeof text), 5);
    CHECK_MEM(text, "begin", 5);
    CHECK_EQ(grammar_forced(g, s, text, 3), 3);
    CHECK_EQ(grammar_advance(g, &s, "beginn", 6), OK);
    CHECK_EQ(grammar_forced(g, s, text, sizeof text), 4);
    CHECK_MEM(text, "ing ", 4);
    grammar_free(g);
}

/* Forced text after other text, tokenised as in the middle of a text. */
static void check_split(const char *model, const char *before, const char *forced)
{
    struct tokenizer *tok;
    struct grammar_vocab *v;
    struct err err;
    REQUIRE(tokenizer_load(model, &tok, &err) == OK);
    REQUIRE(grammar_vocab_open(tok, tokenizer_vocab_size(tok), NULL, 0, &v, &err) == OK);
    char source[200];
    snprintf(source, sizeof source, "%s%s", before, forced);
    struct grammar *g =
        compile((struct grammar_source){.kind = GRAMMAR_REGEX, .text = source}, NULL, v);
    struct grammar_state s = grammar_start(g);
    REQUIRE(grammar_advance(g, &s, before, strlen(before)) == OK);
    struct ids want;
    struct text_span span = {source, strlen(source), true};
    ids_init(&want, 200);
    REQUIRE(tokenizer_encode(tok, &span, 1, (struct tokenizer_flags){0}, &want, &err) == OK);
    int32_t ids[64];
    size_t n = grammar_forced_tokens(g, s, 4, ids, 64);
    CHECK(n > 0 && n < want.n);
    for (size_t i = 0; i < n && n <= want.n; i++) {
        CHECK_EQ(ids[i], want.v[want.n - n + i]);
    }
    CHECK_EQ(grammar_forced_tokens(g, s, 4, ids, 2), 2);
    CHECK_EQ(grammar_forced_tokens(g, s, 100, ids, 64), 0);
    ids_deinit(&want);
    grammar_free(g);
    grammar_vocab_free(v);
    tokenizer_free(tok);
}

/* Otherwise the model would see tokens that it has never seen after this text. */
TEST(forced_text_is_split_as_the_tokenizer_splits)
{
    static const char *const models[] = {"models/demo", "test/golden/llama-3",
                                         "test/golden/llama-2", "test/golden/gemma"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        check_split(models[i], "\"", "name\": \"the other\"");
        check_split(models[i], ":\"", "été\", and name");
    }
}

/* Cutting a text differently must lead to the same state, since tokens cut it anywhere. */
TEST(a_state_is_a_function_of_the_bytes)
{
    const char *text = "{\"k\": [{\"k\": [\"xyz\", 1.5e3]}]}";
    struct grammar *g =
        compile((struct grammar_source){.text = "{\"type\":\"object\"}"}, NULL, NULL);
    struct grammar_state whole = grammar_start(g), piece = whole;
    CHECK_EQ(grammar_advance(g, &whole, text, strlen(text)), OK);
    for (size_t i = 0; i < strlen(text); i++) {
        CHECK_EQ(grammar_advance(g, &piece, text + i, 1), OK);
    }
    CHECK(whole.id == piece.id && grammar_may_end(g, whole));
    grammar_free(g);
}

/* Tables of states are limited; when one is emptied, old states must be noticed and made again. */
TEST(full_tables_are_emptied_and_states_become_stale)
{
    struct grammar_limits limits = {.max_table_bytes = 60000};
    struct grammar *g = compile((struct grammar_source){.text = "{}"}, &limits, NULL);
    struct grammar_state s = grammar_start(g), first = s;
    char text[2000];
    enum status st = OK;
    memset(text, '[', sizeof text);
    size_t n = 0;
    while (n < sizeof text && (st = grammar_advance(g, &s, text + n, 1)) == OK) {
        n++;
    }
    CHECK_EQ(st, ERR_BUSY); // every bracket is a state of its own
    CHECK(n > 10);
    CHECK_EQ(grammar_advance(g, &first, "1", 1), ERR_BUSY); // the state is stale
    CHECK(!grammar_may_end(g, first));
    CHECK_EQ(grammar_fold(g, "[[1", 3, &s), OK); // the same text has a new state
    CHECK_EQ(grammar_advance(g, &s, "]]", 2), OK);
    CHECK(grammar_may_end(g, s));
    CHECK_EQ(grammar_fold(g, text, sizeof text, &s),
             ERR_LIMIT); // no table of this size can hold the state
    CHECK_EQ(grammar_fold(g, "x", 1, &s), ERR_INVALID);
    grammar_free(g);
}

/* One row for each limit. */
TEST(limits_are_enforced)
{
    static const struct {
        struct grammar_limits limits;
        enum grammar_kind kind;
        const char *text;
    } rows[] = {
        {{.max_text_bytes = 3}, GRAMMAR_REGEX, "abcd"},
        {{.max_depth = 2}, GRAMMAR_REGEX, "(((a)))"},
        {{.max_depth = 2}, GRAMMAR_GBNF, "root ::= (((\"a\")))"},
        {{.max_depth = 2}, GRAMMAR_LARK, "start: (((\"a\")))"},
        {{.max_depth = 2}, GRAMMAR_SCHEMA, "{\"items\":{\"items\":{\"items\":{}}}}"},
        {{.max_repeat = 5}, GRAMMAR_REGEX, "a{6}"},
        {{.max_nodes = 4}, GRAMMAR_SCHEMA, "{\"enum\":[1,2,3,4]}"},
        {{.max_compile_work = 100}, GRAMMAR_SCHEMA, "{\"type\":\"object\"}"},
        {{.max_compile_bytes = 1000}, GRAMMAR_SCHEMA, "{\"type\":\"object\"}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct grammar_source source = {
            .kind = rows[i].kind, .text = rows[i].text, .n_bytes = strlen(rows[i].text)};
        struct grammar *g;
        struct err err = {{0}};
        enum status st = grammar_compile(&source, &rows[i].limits, NULL, &g, &err);
        if (st != ERR_LIMIT || err.text[0] == 0) {
            CHECK_FAIL("%s: %s, %s", rows[i].text, status_name(st), err.text);
        }
        grammar_free(g);
    }
}

/* A text with unbounded ambiguity must get an error, before it uses up the server's memory. */
TEST(too_many_ways_to_read_a_text_are_an_error_of_that_text)
{
    struct grammar_limits limits = {.max_step_work = 20000};
    struct grammar *g = compile(
        (struct grammar_source){.kind = GRAMMAR_REGEX, .text = "(a{1,500}){1,500}"}, &limits, NULL);
    struct grammar_state s = grammar_start(g);
    char text[400];
    memset(text, 'a', sizeof text);
    CHECK_EQ(grammar_advance(g, &s, text, sizeof text), ERR_LIMIT);
    CHECK_EQ(grammar_advance(g, &s, "a", 1), OK); // the grammar is still usable
    grammar_free(g);
}

/* Sources need no NUL behind them: these end at a page that can't be read. */
TEST(no_source_is_read_beyond_its_end)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } rows[] = {
        {GRAMMAR_SCHEMA, "{\"enum\":[\"\\u00e9\"]}"},
        {GRAMMAR_SCHEMA, "{\"const\":1.5e1}"},
        {GRAMMAR_REGEX, "a\\u00e9"},
        {GRAMMAR_REGEX, "[\\x41-\\x5a]{2,3}"},
        {GRAMMAR_GBNF, "root ::= \"\\u00e9\""},
        {GRAMMAR_LARK, "start: /\\u00e9/"},
    };
    enum { PAGE = 65536 };
    char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED && mprotect(pages + PAGE, PAGE, PROT_NONE) == 0);
    memset(pages, 'x', PAGE);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rows[i].text);
        char *text = memcpy(pages + PAGE - n, rows[i].text, n);
        struct grammar_source source = {.kind = rows[i].kind, .text = text, .n_bytes = n};
        struct grammar *g = NULL;
        struct err err = {{0}};
        if (grammar_compile(&source, NULL, NULL, &g, &err) != OK) {
            CHECK_FAIL("%s: %s", rows[i].text, err.text);
        }
        grammar_free(g);
    }
    munmap(pages, 2 * PAGE);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
