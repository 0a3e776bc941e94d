// SPDX-License-Identifier: Apache-2.0
/* Schemas, expressions and grammars of third parties with example texts, and masks of them, read
 * from the shared folder. */
#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/tokenizer/tokenizer.h"
#include "test/engine/grammar/order.h"
#include "test/engine/grammar/rows.h"
#include "test/sha256.h"

/* refused: does not compile; must_refused: of these, rows that are marked as having to compile;
 * by_policy: valid texts refused for the reasons of is_refused_by_policy. */
struct tally {
    int rows, refused, wrong, must_refused, by_policy, texts;
};
static struct tally tally;

struct judge {
    struct grammar *g, *open; // open: the same schema with open objects
    struct slice schema;      // the schema that `open` was compiled from
    bool expected;
    int wrong;
    const char *id;
    size_t n_id;
};

/* Whether a valid text is refused only because of our policy: the order of properties, and objects
 * that are closed by default. With its members in the schema's order and open objects it is
 * accepted. */
static bool is_refused_by_policy(struct judge *j, const char *s, size_t n)
{
    struct buf ordered;
    enum status st;
    buf_init(&ordered, 1 << 24);
    bool is = j->open && order_text(j->schema.s, j->schema.n, s, n, &ordered) &&
              accepts(j->open, ordered.data, ordered.n_bytes, &st);
    buf_deinit(&ordered);
    return is;
}

static void judge_text(void *arg, const char *s, size_t n)
{
    struct judge *j = arg;
    enum status st;
    bool is = accepts(j->g, s, n, &st);
    if (j->expected && !is && is_refused_by_policy(j, s, n)) {
        tally.by_policy++;
        return;
    }
    if (is != j->expected || (st != OK && st != ERR_INVALID)) {
        j->wrong++;
        CHECK_FAIL("%.*s: %s %.*s%s", (int)j->n_id, j->id, j->expected ? "refuses" : "accepts",
                   (int)lesser(n, 200), s, st == OK || st == ERR_INVALID ? "" : " (over a limit)");
    }
}

/* need: "must" (must compile), "must_refuse" (must not), or neither, in which case a
 * refusal is counted. */
static void judge_row(struct slice line, struct grammar_source source, struct slice name)
{
    struct grammar *g;
    struct err err = {{0}};
    tally.rows++;
    enum status st = grammar_compile(&source, NULL, NULL, &g, &err);
    if (row_is(line, "need", "must_refuse")) {
        if (st == OK) {
            CHECK_FAIL("%.*s compiles", (int)name.n, name.s);
        }
        grammar_free(g);
        return;
    }
    if (st != OK) {
        tally.refused++;
        if (row_is(line, "need", "must")) {
            tally.must_refused++;
            CHECK_FAIL("%.*s: %s", (int)lesser(name.n, 100), name.s, err.text);
        } else if (getenv("VERBOSE")) {
            printf("refused %.*s: %s\n", (int)lesser(name.n, 100), name.s, err.text);
        }
        return;
    }
    struct judge j = {.g = g,
                      .schema = {source.text, source.n_bytes},
                      .expected = true,
                      .id = name.s,
                      .n_id = lesser(name.n, 100)};
    source.open_objects = true;
    if (source.kind == GRAMMAR_SCHEMA) {
        CHECK(grammar_compile(&source, NULL, NULL, &j.open, &err) == OK);
    }
    row_each(row_get(line, "valid"), judge_text, &j);
    j.expected = false;
    row_each(row_get(line, "invalid"), judge_text, &j);
    tally.wrong += j.wrong > 0;
    grammar_free(g);
    grammar_free(j.open);
}

/* Prints a line for a file, and resets the counters. */
static void report(const char *what)
{
    printf("%s: %d rows, %d refused (%d of them must not be), %d judged wrong, %d texts refused by "
           "policy\n",
           what, tally.rows, tally.refused, tally.must_refused, tally.wrong, tally.by_policy);
    CHECK(tally.rows > 0); // an empty file proves nothing
    tally = (struct tally){0};
}

static void text_row(struct slice line, const char *member, enum grammar_kind kind)
{
    struct buf text;
    buf_init(&text, 1 << 24);
    row_text(row_get(line, member), &text);
    struct grammar_source source = {
        .kind = kind, .text = or_empty(text.data), .n_bytes = text.n_bytes};
    judge_row(line, source, row_get(line, member));
    buf_deinit(&text);
}

static void regex_row(struct slice line)
{
    text_row(line, "regex", GRAMMAR_REGEX);
}

static void grammar_row(struct slice line)
{
    text_row(line, "grammar", row_is(line, "kind", "gbnf") ? GRAMMAR_GBNF : GRAMMAR_LARK);
}

static void schema_row(struct slice line)
{
    struct slice schema = row_get(line, "schema");
    struct grammar_source source = {.kind = GRAMMAR_SCHEMA, .text = schema.s, .n_bytes = schema.n};
    judge_row(line, source, row_get(line, "id"));
}

/* Rows name texts inside and outside the language; a wrong judgement of either kind fails. */
TEST(regexes_accept_the_right_texts)
{
    if (!rows_each("structured/regex.jsonl", regex_row)) {
        SKIP("no shared data");
    }
    report("regexes");
}

TEST(grammars_accept_the_right_texts)
{
    if (!rows_each("structured/grammars.jsonl", grammar_row)) {
        SKIP("no shared data");
    }
    report("grammars");
}

TEST(schemas_accept_the_right_texts)
{
    if (!rows_each("structured/schemas.jsonl", schema_row)) {
        SKIP("no shared data");
    }
    report("schemas");
}

/* ---- the data folder ---- */

/* A text that the suite calls valid may be refused (order of names, closed objects, spelling of
 * numbers). A text that it calls invalid must not be accepted. */
static void suite_row(struct slice line)
{
    struct slice schema = row_get(line, "schema"), tests = row_get(line, "tests");
    struct grammar_source source = {.kind = GRAMMAR_SCHEMA, .text = schema.s, .n_bytes = schema.n};
    struct grammar *g;
    struct err err = {{0}};
    struct json_scan sc;
    tally.rows++;
    if (grammar_compile(&source, NULL, NULL, &g, &err) != OK) {
        tally.refused++;
        return;
    }
    json_scan_init(&sc, tests.s, tests.n, 400);
    json_scan_next(&sc);
    for (size_t from; json_scan_next(&sc) == JSON_TOKEN_OBJECT;) {
        for (from = sc.at - 1; tests.s[from] != '{'; from--) {
        }
        json_scan_skip(&sc);
        tally.texts++;
        struct slice test = {tests.s + from, sc.at - from}, data = row_get(test, "data");
        enum status st;
        bool valid = row_get(test, "valid").s[0] == 't', is = accepts(g, data.s, data.n, &st);
        tally.by_policy += valid && !is;
        if (is && !valid) {
            tally.wrong++;
            CHECK_FAIL("%.*s accepts %.*s", (int)schema.n, schema.s, (int)data.n, data.s);
        }
    }
    grammar_free(g);
}

/* The JSON Schema Test Suite, as far as its schemas compile. */
TEST(the_schema_suite_has_no_wrong_text_accepted)
{
    if (!rows_each("data/json_schema_suite.jsonl", suite_row)) {
        SKIP("no shared data");
    }
    CHECK(tally.texts > 500);
    report("schema suite");
}

/* Cases in which llama.cpp's tests are stricter than the schema: at most 16 digits in an integer,
 * an object for {}, an array if only its items are given. */
static bool is_narrower(struct slice line)
{
    return row_is(line, "name", "min 0") || row_is(line, "name", "min 2") ||
           row_is(line, "name", "empty schema (object)") || row_is(line, "name", "min+max items");
}

static void constrained_row(struct slice line)
{
    struct buf text;
    struct grammar *g;
    struct err err = {{0}};
    buf_init(&text, 1 << 24);
    bool gbnf = row_is(line, "kind", "gbnf");
    struct slice schema = row_get(line, "schema");
    struct grammar_source source = {.kind = GRAMMAR_SCHEMA, .text = schema.s, .n_bytes = schema.n};
    row_text(gbnf ? row_get(line, "gbnf") : schema, &text);
    if (text.n_bytes > 0) { // a row may have its schema as a JSON string
        source = (struct grammar_source){
            gbnf ? GRAMMAR_GBNF : GRAMMAR_SCHEMA, text.data, text.n_bytes, 0, 0, 0};
    }
    tally.rows++;
    enum status st = grammar_compile(&source, NULL, NULL, &g, &err);
    if (st != OK) {
        tally.refused++;
        printf("refused %.*s: %s\n", (int)row_get(line, "name").n, row_get(line, "name").s,
               err.text);
    } else {
        struct judge j = {.g = g,
                          .expected = true,
                          .id = row_get(line, "name").s,
                          .n_id = row_get(line, "name").n};
        row_each(row_get(line, "passing"), judge_text, &j);
        j.expected = false;
        if (!is_narrower(line)) {
            row_each(row_get(line, "failing"), judge_text, &j);
        }
        tally.wrong += j.wrong > 0;
    }
    grammar_free(g);
    buf_deinit(&text);
}

TEST(constrained_strings_accept_the_right_texts)
{
    if (!rows_each("data/constrained_strings.jsonl", constrained_row)) {
        SKIP("no shared data");
    }
    report("constrained strings");
}

/* ---- masks ---- */

static struct vocabulary {
    char name[64];
    struct tokenizer *tok;
    struct grammar_vocab *v;
    bool *added;
} vocabularies[4];

/* Loaded on first use: the masks of a file share at most four vocabularies. */
static struct vocabulary *vocabulary_of(const char *name)
{
    struct vocabulary *v = vocabularies;
    while (v->tok && strcmp(v->name, name) != 0) {
        v++;
    }
    if (!v->tok) {
        char path[4096];
        struct err err = {{0}};
        snprintf(path, sizeof path, "%s/data/%s", check_shared(), name);
        snprintf(v->name, sizeof v->name, "%s", name);
        if (tokenizer_load(path, &v->tok, &err) != OK) {
            CHECK_FAIL("%s", err.text);
            return NULL;
        }
        int32_t n = tokenizer_vocab_size(v->tok), end = tokenizer_eos(v->tok);
        CHECK(grammar_vocab_open(v->tok, n, &end, end >= 0, &v->v, &err) == OK);
        v->added = calloc((size_t)n, 1);
        for (size_t i = 0; i < tokenizer_n_added(v->tok); i++) {
            v->added[tokenizer_added_at(v->tok, i).id] = true;
        }
    }
    return v;
}

static size_t from_hex(const char *s, char *out)
{
    size_t n = 0;
    for (unsigned byte; sscanf(s + 2 * n, "%2x", &byte) == 1; n++) {
        out[n] = (char)byte;
    }
    return n;
}

/* The allowed ids, without added tokens, are printed as a list and hashed; the recorded
 * hash comes from an independent implementation. Each bit is also compared with the test
 * of a single token, which takes another path through the automaton. */
static void check_mask(struct slice line, struct grammar *g, const struct vocabulary *v,
                       const char *hex)
{
    char prefix[4096], *list = malloc((size_t)tokenizer_vocab_size(v->tok) * 8 + 1);
    struct grammar_state state = grammar_start(g);
    size_t n = from_hex(hex, prefix), len = 0;
    uint32_t *words = calloc(grammar_mask_words(v->v), 4);
    CHECK(grammar_advance(g, &state, prefix, n) == OK);
    CHECK(grammar_mask(g, state, words) == OK);
    list[0] = 0;
    for (int32_t id = 0; id < tokenizer_vocab_size(v->tok); id++) {
        bool in = words[id >> 5] >> (id & 31) & 1, alone;
        CHECK(grammar_allows(g, state, id, &alone) == OK && alone == in);
        if (in && !v->added[id]) {
            len += (size_t)sprintf(list + len, len ? ",%d" : "%d", id);
        }
    }
    char digest[65];
    struct sha256 sum;
    sha256_begin(&sum);
    sha256_add(&sum, list, len);
    sha256_end_hex(&sum, digest);
    bool may_end = row_get(line, "end_allowed").s[0] == 't';
    if (!row_is(line, "sha256", digest) || grammar_may_end(g, state) != may_end) {
        tally.wrong++;
        CHECK_FAIL("%.*s: mask %.300s", (int)line.n, line.s, list);
    }
    free(words);
    free(list);
}

static void mask_row(struct slice line)
{
    struct buf name, text, prefix;
    struct grammar *g;
    struct err err = {{0}};
    buf_init(&name, 1 << 20);
    buf_init(&text, 1 << 20);
    buf_init(&prefix, 1 << 20);
    row_text(row_get(line, "tokenizer"), &name);
    row_text(row_get(line, "text"), &text);
    row_text(row_get(line, "prefix_hex"), &prefix);
    tally.rows++;
    const struct vocabulary *v = vocabulary_of(name.data);
    enum grammar_kind kind = row_is(line, "kind", "gbnf") ? GRAMMAR_GBNF : GRAMMAR_REGEX;
    struct grammar_source source = {
        .kind = kind, .text = or_empty(text.data), .n_bytes = text.n_bytes};
    if (v && grammar_compile(&source, NULL, v->v, &g, &err) == OK) {
        check_mask(line, g, v, or_empty(prefix.data));
        grammar_free(g);
    } else {
        tally.must_refused++;
        CHECK_FAIL("%.200s: %s", line.s, err.text);
    }
    buf_deinit(&name);
    buf_deinit(&text);
    buf_deinit(&prefix);
}

TEST(masks_are_equal_to_the_bit)
{
    if (!rows_each("structured/masks.jsonl", mask_row)) {
        SKIP("no shared data");
    }
    report("masks");
    for (struct vocabulary *v = vocabularies; v->tok; v++) {
        grammar_vocab_free(v->v);
        tokenizer_free(v->tok);
        free(v->added);
    }
}

/* ---- hostile sources ---- */

static void add_piece(struct json_scan *sc, struct buf *out)
{
    struct buf one;
    buf_init(&one, 1 << 24);
    json_scan_next(sc);
    json_scan_unescape(sc, &one);
    int64_t times = 0;
    json_scan_next(sc);
    json_scan_int64(sc, &times);
    json_scan_next(sc);
    for (int64_t i = 0; i < times; i++) {
        buf_put(out, one.data, one.n_bytes);
    }
    buf_deinit(&one);
}

static void hostile_row(struct slice line)
{
    struct buf text;
    struct json_scan sc;
    struct slice recipe = row_get(line, "recipe"), name = row_get(line, "name");
    buf_init(&text, 1 << 24);
    json_scan_init(&sc, recipe.s, recipe.n, 400);
    json_scan_next(&sc);
    for (enum json_token t;
         (t = json_scan_next(&sc)) == JSON_TOKEN_STRING || t == JSON_TOKEN_ARRAY;) {
        if (t == JSON_TOKEN_ARRAY) {
            add_piece(&sc, &text);
        } else {
            json_scan_unescape(&sc, &text);
        }
    }
    if (strncmp(name.s, "\"gbnf invalid utf8", 18) == 0) { // JSON cannot hold this byte
        buf_clear(&text);
        buf_puts(&text, "root ::= \"\xff\"");
    }
    enum grammar_kind kind = GRAMMAR_SCHEMA;
    for (int k = 0; k < GRAMMAR_N_KINDS; k++) {
        if (row_is(line, "kind", grammar_kind_names[k])) {
            kind = (enum grammar_kind)k;
        }
    }
    struct grammar_source source = {
        .kind = kind, .text = or_empty(text.data), .n_bytes = text.n_bytes};
    struct grammar *g;
    struct err err = {{0}};
    int64_t t0 = clock_now_ns();
    enum status st = grammar_compile(&source, NULL, NULL, &g, &err);
    double ms = (double)(clock_now_ns() - t0) / 1e6;
    bool right =
        row_is(line, "expect", "ok_or_400") || row_is(line, "expect", st == OK ? "ok" : "400");
    struct grammar_stats stats = {0};
    if (st == OK) {
        grammar_stats(g, &stats);
    }
    if (!right || ms > 1000 || stats.bytes > 64 << 20 || (st != OK && !err.text[0]) ||
        getenv("VERBOSE")) {
        printf("%.*s: %s, %.1f ms, %zu bytes: %s\n", (int)name.n, name.s, status_name(st), ms,
               stats.bytes, err.text);
    }
    CHECK(right && ms < 1000 && stats.bytes < 64 << 20);
    grammar_free(g);
    tally.rows++;
    buf_deinit(&text);
}

TEST(hostile_sources_are_refused_or_compiled_in_time)
{
    if (!rows_each("structured/hostile.jsonl", hostile_row)) {
        SKIP("no shared data");
    }
    report("hostile");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
