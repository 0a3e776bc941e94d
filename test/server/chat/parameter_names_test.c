// SPDX-License-Identifier: Apache-2.0
/* Names of parameters in each format of calls: the grammar of forced calls accepts a name if and
 * only if the parser reads a call that is written with it. A few parsers also read names with line
 * breaks or "<", which the grammars never write. */
#include "test/server/chat/fold.h"

#include "engine/grammar/grammar.h"
#include "engine/grammar/style.h"
#include "server/chat/turn.h"

/* ---- one name in one format ------------------------------------------------------------------
 */

/* The schema of one required integer. */
static void put_schema(struct buf *out, const char *name)
{
    buf_clear(out);
    buf_puts(out, "{\"type\":\"object\",\"properties\":{");
    buf_put_json(out, name, strlen(name));
    buf_puts(out, ":{\"type\":\"integer\"}},\"required\":[");
    buf_put_json(out, name, strlen(name));
    buf_puts(out, "],\"additionalProperties\":false}");
}

static const struct style *style_of(const struct tool_writing *w)
{
    const char *name = w->style ? w->style : "json";
    return style_find(name, strlen(name));
}

/* A call of f with the argument 5, as the rows of the format and its style say. */
static void put_call(struct buf *out, const struct tool_writing *w, const char *name)
{
    const struct style *s = style_of(w);
    const char *head[] = {w->open, w->head, w->head ? "f" : NULL, w->call, "f", w->name_end};
    const char *tail[] = {w->call_end, w->close};
    buf_clear(out);
    for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) {
        const char *part = head[i] ? head[i] : "", *number = strstr(part, "%d");
        buf_put(out, part, number ? (size_t)(number - part) : strlen(part));
        buf_puts(out, number ? "0" : "");
        buf_puts(out, number ? number + 2 : "");
    }
    if (s->has_outer) {
        buf_printf(out, "%s%s%s%s%s5%s", s->open, s->key, name, s->colon,
                   s->types[STYLE_NUMBER] ? s->types[STYLE_NUMBER] : "", s->value_end);
        if (s->elements) {
            buf_printf(out, "%s>", name);
        }
        buf_puts(out, s->close);
    } else {
        buf_putc(out, '{');
        buf_put_json(out, name, strlen(name));
        buf_puts(out, ": 5}");
    }
    for (size_t i = 0; i < sizeof tail / sizeof tail[0]; i++) {
        buf_puts(out, tail[i] ? tail[i] : "");
    }
}

/* Whether the parser finds the call of f with this argument, and nothing else. */
static bool reads(const struct tool_parser *parser, const char *text, const char *schema,
                  const char *name)
{
    struct buf b;
    struct json *list = NULL, *found = NULL;
    struct fold f;
    buf_init(&b, 1 << 16);
    buf_printf(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":%s}}]", schema);
    CHECK_EQ(json_parse(b.data, b.n_bytes, NULL, &list, NULL), OK);
    struct output_options opt = {.parser = parser, .tools = list};
    if (parser == &tool_parser_harmony) {
        opt.reasoning = REASONING_HARMONY;
    }
    run(&opt, text, strlen(text), (size_t)1 << 20, 0, &f);
    const char *arguments = strstr(f.calls.data, ":{");
    bool good = f.n_calls == 1 && f.content.n_bytes == 0 && arguments &&
                json_parse(arguments + 1, strlen(arguments + 1), NULL, &found, NULL) == OK;
    int64_t five = 0;
    good = good && json_count(found) == 1 && json_int64(json_get(found, name), &five) && five == 5;
    json_free(found);
    json_free(list);
    fold_deinit(&f);
    buf_deinit(&b);
    return good;
}

/* The grammar of a call of f, which is forced unless it may fail. NULL: a name was refused. */
static struct grammar *compile(const struct tool_writing *w, const char *schema, bool may_fail)
{
    const struct tool_to_write tool = {
        .name = "f", .schema = schema, .schema_bytes = strlen(schema), .may_fail = may_fail};
    const struct tool_calls calls = {.writing = w, .tools = &tool, .n_tools = 1, .one = true};
    struct buf tags;
    struct grammar *g = NULL;
    struct err err;
    buf_init(&tags, 1 << 16);
    if (may_fail) {
        tool_put_text_and_calls(&tags, &calls);
    } else {
        tool_put_calls(&tags, &calls);
    }
    const struct grammar_source source = {
        .kind = GRAMMAR_TAGS, .text = tags.data, .n_bytes = tags.n_bytes};
    if (grammar_compile(&source, NULL, NULL, &g, &err) != OK &&
        !strstr(err.text, "cannot be the name of a parameter")) {
        CHECK_FAIL("%s", err.text);
    }
    buf_deinit(&tags);
    return g;
}

/* Whether the grammar of a forced call compiles; if so, it must accept the text. */
static bool accepts(const struct tool_writing *w, const char *text, const char *schema)
{
    struct grammar *g = compile(w, schema, false);
    struct grammar_state s;
    if (g && (grammar_fold(g, text, strlen(text), &s) != OK || !grammar_may_end(g, s))) {
        CHECK_FAIL("the grammar does not accept\n%s", text);
    }
    grammar_free(g);
    return g != NULL;
}

static void check_name(const char *format, const struct tool_writing *w, const char *name)
{
    const struct tool_parser *parser = tool_parser_find(format);
    struct buf schema, text;
    buf_init(&schema, 1 << 16);
    buf_init(&text, 1 << 16);
    put_schema(&schema, name);
    put_call(&text, w, name);
    char *marked = parser->exact ? with_marks(parser, text.data) : NULL;
    const bool read = reads(parser, marked ? marked : text.data, schema.data, name);
    const bool accepted = accepts(w, text.data, schema.data);
    if (accepted != read && (accepted || !strpbrk(name, "<\n"))) {
        CHECK_FAIL("%s: \"%s\" is %s in\n%s", format, name, read ? "read" : "not read", text.data);
    }
    struct grammar *g = compile(w, schema.data, true);
    CHECK(g); // nothing forces the call
    grammar_free(g);
    free(marked);
    buf_deinit(&schema);
    buf_deinit(&text);
}

/* ---- all of them -----------------------------------------------------------------------------
 */

TEST(forced_calls_have_only_names_that_parsers_read)
{
    char longest[STYLE_NAME_MAX_BYTES + 2] = "";
    memset(longest, 'a', STYLE_NAME_MAX_BYTES);
    for (size_t i = 0; tool_parser_name(i); i++) {
        const char *format = tool_parser_name(i);
        for (const struct tool_writing *w = tool_parser_find(format)->writing; w;
             w = w->otherwise) {
            for (char c = ' '; c < 127; c++) {
                char name[4] = {'a', c, 'b', '\0'};
                check_name(format, w, name);
                name[0] = c;
                name[1] = 'b';
                name[2] = '\0';
                check_name(format, w, name);
            }
            check_name(format, w, "a\nb");
            check_name(format, w, "\xc3\xa9t\xc3\xa9");
            check_name(format, w, "a</parameter>b");
            check_name(format, w, longest);
        }
    }
}

/* Writes calls with these names. Those that the grammar accepts must be read with a number as
 * value, since the schema allows nothing else. */
static void check_others(const struct tool_parser *parser, const char *schema)
{
    static const char *const names[] = {"a", "_1", "1", "1a", "A_b2", "a-b", "a b", "\xc3\xa9", ""};
    enum { N_NAMES = sizeof names / sizeof names[0] };
    char longest[STYLE_NAME_MAX_BYTES + 2] = "";
    memset(longest, 'a', STYLE_NAME_MAX_BYTES + 1);
    struct grammar *g = compile(parser->writing, schema, false);
    for (size_t k = 0; g && k <= N_NAMES; k++) {
        const char *name = k < N_NAMES ? names[k] : longest;
        struct buf text;
        struct grammar_state s;
        buf_init(&text, 1 << 16);
        put_call(&text, parser->writing, name);
        const bool accepted = grammar_fold(g, text.data, text.n_bytes, &s) == OK;
        char *marked = with_marks(parser, text.data);
        if (accepted && !reads(parser, marked, schema, name)) {
            CHECK_FAIL("%s: \"%s\" is not read in\n%s", parser->name, name, text.data);
        }
        if (k == 0 && !accepted) {
            CHECK_FAIL("%s: no name is possible with %s", parser->name, schema);
        }
        free(marked);
        buf_deinit(&text);
    }
    grammar_free(g);
}

TEST(names_that_the_properties_do_not_list)
{
    for (size_t i = 0; tool_parser_name(i); i++) {
        const struct tool_parser *parser = tool_parser_find(tool_parser_name(i));
        if (!style_of(parser->writing)->elements) {
            check_others(parser, "{\"type\":\"object\",\"minProperties\":1,"
                                 "\"additionalProperties\":{\"type\":\"integer\"}}");
            check_others(parser, "{\"type\":\"object\",\"minProperties\":1,"
                                 "\"additionalProperties\":false,\"patternProperties\":{\"\":{"
                                 "\"type\":\"integer\"}}}");
        }
        check_others(parser, "{\"type\":\"object\",\"required\":[\"a\"],\"allOf\":[{\"$ref\":"
                             "\"#/$defs/P\"}],\"$defs\":{\"P\":{\"properties\":{\"a\":{\"type\":"
                             "\"integer\"}}}}}");
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
