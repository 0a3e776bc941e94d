/* Third parties' schemas, expressions and grammars with texts, and masks of them: read from the shared folder. */
#include "engine/base/clock.h"
#include "test/engine/grammar/rows.h"

struct tally {
    int rows, refused, wrong, must_refused;
};
static struct tally tally;

struct judge {
    struct grammar *g;
    bool expected;
    int wrong;
    const char *id;
    size_t n_id;
};

static void judge_text(void *arg, const char *s, size_t n)
{
    struct judge *j = arg;
    enum status st;
    bool is = accepts(j->g, s, n, &st);
    if (is != j->expected || (st != OK && st != ERR_INVALID)) {
        j->wrong++;
        CHECK_FAIL("%.*s: %s %.*s%s", (int)j->n_id, j->id, j->expected ? "refuses" : "accepts", (int)(n < 200 ? n : 200), s,
                   st == OK || st == ERR_INVALID ? "" : " (over a limit)");
    }
}

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
            CHECK_FAIL("%.*s: %s", (int)(name.n < 100 ? name.n : 100), name.s, err.text);
        } else if (getenv("VERBOSE")) {
            printf("refused %.*s: %s\n", (int)(name.n < 100 ? name.n : 100), name.s, err.text);
        }
        return;
    }
    struct judge j = {g, true, 0, name.s, name.n < 100 ? name.n : 100};
    row_each(row_get(line, "valid"), judge_text, &j);
    j.expected = false;
    row_each(row_get(line, "invalid"), judge_text, &j);
    tally.wrong += j.wrong > 0;
    grammar_free(g);
}

static void report(const char *what)
{
    printf("%s: %d rows, %d refused (%d of them must not be), %d judged wrong\n", what, tally.rows, tally.refused,
           tally.must_refused, tally.wrong);
    tally = (struct tally){0};
}

static void text_row(struct slice line, const char *member, enum grammar_kind kind)
{
    struct buf text;
    buf_init(&text, 1 << 24);
    row_text(row_get(line, member), &text);
    struct grammar_source source = {.kind = kind, .text = text.data ? text.data : "", .n_bytes = text.n_bytes};
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

TEST(regexes_are_judged_right)
{
    if (!rows_each("structured/regex.jsonl", regex_row)) {
        SKIP("no shared data");
    }
    report("regexes");
}

TEST(grammars_are_judged_right)
{
    if (!rows_each("structured/grammars.jsonl", grammar_row)) {
        SKIP("no shared data");
    }
    report("grammars");
}

TEST(schemas_are_judged_right)
{
    if (!rows_each("structured/schemas.jsonl", schema_row)) {
        SKIP("no shared data");
    }
    report("schemas");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
