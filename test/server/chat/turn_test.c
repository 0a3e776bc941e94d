// SPDX-License-Identifier: Apache-2.0
/* Texts written by the grammar of a turn are parsed as intended: random walks through the grammar
 * of each format of calls, with and without reasoning, go through the output parsers. Each call
 * must name a tool and have arguments that match its schema. */
#include "test/server/chat/fold.h"

#include "engine/grammar/grammar.h"
#include "server/chat/turn.h"

enum { N_WALKS = 60, TEXT_MAX = 3000 };

/* ---- grammars and walks -----------------------------------------------------------------------
 */

/* A vocabulary of bytes. For parsers that recognise markers only as tokens, markers have the ids
 * from 256 on. */
static struct grammar_vocab *vocab_of(const struct tool_parser *parser)
{
    static char bytes[256];
    struct grammar_token tokens[256 + 8] = {{NULL, 0, false}};
    struct grammar_vocab *v = NULL;
    struct err err;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = (struct grammar_token){&bytes[i], 1, false};
    }
    for (int i = 0; parser->markers[i]; i++) {
        tokens[256 + i] =
            (struct grammar_token){parser->markers[i], strlen(parser->markers[i]), true};
    }
    CHECK_EQ(grammar_vocab_make(tokens, 264, NULL, 0, &v, &err), OK);
    return v;
}

static struct grammar *compile(enum grammar_kind kind, const char *text, size_t n,
                               const struct grammar_vocab *vocab)
{
    struct grammar_source source = {.kind = kind, .text = text, .n_bytes = n};
    struct grammar *g = NULL;
    struct err err = {""};
    if (grammar_compile(&source, NULL, vocab, &g, &err) != OK) {
        CHECK_FAIL("%.200s...: %s", text, err.text);
    }
    return g;
}

static bool allowed(struct grammar *g, struct grammar_state s, uint8_t byte)
{
    char c = (char)byte;
    return grammar_advance(g, &s, &c, 1) == OK;
}

/* A random allowed byte, preferably one that ends an item. */
static int next_byte(struct grammar *g, struct grammar_state s)
{
    static const char ends[] = "\"<}])\n{[|", some[] = "abz 019<>\"\\{}[](),:\n|=e-t\xc3\xa9";
    for (int i = 0; i < 24; i++) {
        const char *from = below(3) == 0 ? ends : some;
        uint8_t byte = (uint8_t)from[below(strlen(from))];
        if (byte && allowed(g, s, byte)) {
            return byte;
        }
    }
    for (size_t i = 0, first = below(256); i < 256; i++) {
        uint8_t byte = (uint8_t)(first + i);
        if (byte < TOOL_MARK && allowed(g, s, byte)) {
            return byte;
        }
    }
    return -1;
}

/* A random marker that the grammar allows here, by its token. */
static int next_mark(struct grammar *g, struct grammar_state *s)
{
    for (size_t i = 0, first = below(8); i < 8; i++) {
        int mark = (int)((first + i) & 7);
        if (grammar_advance_token(g, s, 256 + mark) == OK) {
            return mark;
        }
    }
    return -1;
}

/* The markers of a format as whole words, because random letters would hardly ever spell one. */
struct words {
    const char *v[64];
    size_t n;
};

static void add_word(struct words *w, const char *word)
{
    if (word && *word) {
        w->v[w->n++] = word;
    }
}

static void add_words(struct words *w, const char *const *list)
{
    for (; *list; list++) {
        add_word(w, *list);
    }
}

/* Ends of arguments are words of the walk, so that it reaches them. */
static void words_of(const struct turn *t, struct words *w)
{
    static const char *const ends[] = {"\n</parameter>\n",
                                       "</parameter>\n",
                                       "</arg_value>\n",
                                       "</param>",
                                       "<|\"|>",
                                       "<escape>",
                                       "<|close|>argument<|sep|>",
                                       "</\xEF\xBD\x9C"
                                       "DSML\xEF\xBD\x9Cparameter>\n",
                                       "</\xEF\xBD\x9CGCML\xEF\xBD\x9Cparameter>\n",
                                       "</steptml:parameter>",
                                       "</atem:parameter>\n",
                                       "<|tool_arg:end|>\n",
                                       "<|end|><|start|>assistant",
                                       "<|channel|>final<|message|>",
                                       "]<]minimax[>[</",
                                       NULL};
    const struct reasoning_marks *m = reasoning_marks(t->reasoning);
    add_words(w, ends);
    add_words(w, m->opens);
    add_words(w, m->closes);
    add_words(w, m->answer_opens);
    add_words(w, m->answer_closes);
    if (t->calls) {
        add_word(w, t->calls->writing->open);
        add_word(w, t->calls->writing->call);
        add_word(w, t->calls->writing->call_end);
        add_word(w, t->calls->writing->close);
    }
}

/* A random text; false if it has become too long. */
static bool walk(struct grammar *g, const struct words *words, struct buf *out)
{
    struct grammar_state s = grammar_start(g);
    buf_clear(out);
    while (out->n_bytes < TEXT_MAX) {
        if (grammar_may_end(g, s) && below(4) == 0) {
            buf_putc(out, '\0');
            return true;
        }
        const char *word = words->v[below(words->n)];
        if (below(2) == 0 && grammar_advance(g, &s, word, strlen(word)) == OK) {
            buf_puts(out, word);
            continue;
        }
        int byte = below(3) > 0 ? next_byte(g, s) : -1;
        int mark = byte < 0 && grammar_vocabulary(g) ? next_mark(g, &s) : -1;
        if (mark >= 0) {
            buf_putc(out, (char)(TOOL_MARK + mark));
            continue;
        }
        if (byte < 0) {
            byte = next_byte(g, s);
        }
        if (byte < 0) {
            CHECK(grammar_may_end(g, s)); // each allowed beginning can be ended
            buf_putc(out, '\0');
            return true;
        }
        char c = (char)byte;
        CHECK_EQ(grammar_advance(g, &s, &c, 1), OK);
        buf_putc(out, c);
    }
    return false;
}

/* ---- tools ------------------------------------------------------------------------------------
 */

#define TEXT_FORMAT "{\"type\":\"regex\",\"pattern\":\"[ab\\\"\\\\\\\\é]{0,5}\"}"

/* Types whose arguments are written in different ways. */
static const struct tool_to_write tools[] = {
    {.name = "f",
     .schema = "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":"
               "\"integer\"},\"x\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
               "\"maxItems\":2},\"o\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":"
               "\"boolean\"},\"l\":{\"type\":[\"null\",\"number\"]}},\"required\":[\"k\"]}},"
               "\"required\":[\"s\"]}"},
    {.name = "get",
     .schema = "{\"$defs\":{\"P\":{\"type\":\"object\",\"properties\":{\"q\":{\"const\":\"v\"}},"
               "\"required\":[\"q\"]}},\"properties\":{\"p\":{\"$ref\":\"#/$defs/P\"}},"
               "\"required\":[\"p\"]}"},
    {.name = "get_a",
     .schema =
         "{\"type\":\"object\",\"properties\":{\"e\":{\"enum\":[\"a\",\"b\\\"\",null]},\"u\":{"
         "\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}},\"required\":[\"e\"],"
         "\"additionalProperties\":false}"},
    {.name = "none", .schema = "{\"type\":\"object\",\"additionalProperties\":false}"},
    {.name = "run", .text = TEXT_FORMAT},
};
enum { N_TOOLS = sizeof tools / sizeof tools[0] };

/* The tools in the form that parsers get, and a grammar for the arguments of each. */
static struct json *list;
static struct grammar *arguments[N_TOOLS];

/* The list of tools as a template gets it. */
static void open_tools(struct tool_to_write *to)
{
    struct buf b;
    buf_init(&b, 1 << 16);
    buf_putc(&b, '[');
    for (size_t i = 0; i < N_TOOLS; i++) {
        static const char in[] =
            "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},"
            "\"required\":[\"input\"]}";
        const char *schema = tools[i].schema ? tools[i].schema : in;
        to[i] = tools[i];
        to[i].schema_bytes = strlen(schema);
        buf_printf(&b, "%s{\"type\":\"function\",\"function\":{\"name\":\"%s\",\"parameters\":%s}}",
                   i ? "," : "", tools[i].name, schema);
        static const char text[] =
            "{\"type\":\"text_argument\",\"name\":\"input\",\"content\":" TEXT_FORMAT "}";
        if (tools[i].text) {
            arguments[i] = compile(GRAMMAR_TAGS, text, sizeof text - 1, NULL);
        } else {
            arguments[i] = compile(GRAMMAR_SCHEMA, schema, strlen(schema), NULL);
        }
    }
    buf_putc(&b, ']');
    CHECK_EQ(json_parse(b.data, b.n_bytes, NULL, &list, NULL), OK);
    buf_deinit(&b);
}

static void close_tools(void)
{
    for (size_t i = 0; i < N_TOOLS; i++) {
        grammar_free(arguments[i]);
    }
    json_free(list);
}

/* The arguments must be in the language of the tool's schema, which is compiled
 * independently of the turn's grammar. */
static void check_call(const char *name, size_t n_name, const char *text, size_t n, const char *all)
{
    size_t i = 0;
    while (i < N_TOOLS &&
           (strlen(tools[i].name) != n_name || memcmp(tools[i].name, name, n_name) != 0)) {
        i++;
    }
    struct grammar_state s;
    bool good = i < N_TOOLS && grammar_fold(arguments[i], text, n, &s) == OK &&
                grammar_may_end(arguments[i], s);
    if (!good) {
        CHECK_FAIL("%.*s(%.*s) is no call of a tool, in\n%s", (int)n_name, name, (int)n, text, all);
    }
}

/* The fold has "|name#id:arguments" for each call. What follows a '|' tells whether it belongs to
 * the arguments. */
static int check_calls(const struct fold *f, const char *all)
{
    const char *at = f->calls.data;
    int n = 0;
    while (*at == '|') {
        const char *name = at + 1, *hash = strchr(name, '#');
        const char *colon = strstr(hash, ":{"), *next = colon + 1; // an id may have a colon
        int depth = 0;
        bool in_string = false;
        for (; *next && (next == colon + 1 || depth > 0); next++) {
            if (in_string && *next == '\\') {
                next++;
            } else if (in_string) {
                in_string = *next != '"';
            } else {
                in_string = *next == '"';
                depth += (*next == '{') - (*next == '}');
            }
        }
        check_call(name, (size_t)(hash - name), colon + 1, (size_t)(next - colon - 1), all);
        at = next;
        n++;
    }
    CHECK(*at == '\0');
    return n;
}

/* ---- turns ------------------------------------------------------------------------------------
 */

struct form {
    const char *parser;
    enum reasoning_kind reasoning;
};

/* A turn of calls that is cut off, anywhere behind the first call's name, has no content: markup
 * that is incomplete is not reported. */
static void check_cut_off(const struct form *form, const struct output_options *opt,
                          const char *text)
{
    struct fold f;
    struct tool_sink sink = SINK;
    struct output o;
    size_t n = below(strlen(text));
    fold_init(&f);
    sink.arg = &f;
    output_init(&o, opt, &sink);
    output_text(&o, text, n);
    o.cut = true;
    output_finish(&o);
    if (f.n_calls > 0 && f.content.n_bytes > 0) {
        CHECK_FAIL("%s: the content is \"%s\" in\n%.*s", form->parser, f.content.data, (int)n,
                   text);
    }
    output_deinit(&o);
    fold_deinit(&f);
}

/* Writes N_WALKS random texts of the turn's grammar and parses each. If a call is required, there
 * must be one and no other text. If the answer has a format, it must consist of that format's
 * characters. */
static void check_turn(const struct form *form, const struct turn *t, const char *answer)
{
    const struct tool_parser *parser = tool_parser_find(form->parser);
    struct output_options opt = {.parser = t->calls ? parser : NULL,
                                 .tools = list,
                                 .reasoning = form->reasoning,
                                 .starts_in_reasoning = t->opened};
    struct buf tags, text;
    buf_init(&tags, 1 << 20);
    buf_init(&text, 1 << 20);
    turn_put(&tags, t);
    struct grammar_vocab *vocab = parser->exact ? vocab_of(parser) : NULL;
    struct grammar *g = compile(GRAMMAR_TAGS, tags.data, tags.n_bytes, vocab);
    int n_whole = 0;
    // Harmony has a channel for text before a call
    const bool may_tell = form->reasoning == REASONING_HARMONY;
    struct words words = {.n = 0};
    words_of(t, &words);
    for (int i = 0; g && i < N_WALKS; i++) {
        if (!walk(g, &words, &text)) {
            continue;
        }
        struct fold f;
        run(&opt, text.data, strlen(text.data), 5, 0, &f);
        int n = check_calls(&f, text.data);
        bool said_more = f.content.n_bytes > 0 && !may_tell;
        if (t->must_call && (n < 1 || (t->calls->one && n > 1) || said_more)) {
            CHECK_FAIL("%s: %d calls and \"%s\" in\n%s", form->parser, n, f.content.data,
                       text.data);
        }
        if (t->must_call && !may_tell) {
            check_cut_off(form, &opt, text.data);
        }
        bool said = t->answer && n == 0;
        if (said && strspn(f.content.data, answer) != f.content.n_bytes) {
            CHECK_FAIL("%s: the answer is \"%s\" in\n%s", form->parser, f.content.data, text.data);
        }
        n_whole++;
        fold_deinit(&f);
    }
    if (n_whole == 0) {
        CHECK_FAIL("%s: %d of %d texts end: %.600s", form->parser, n_whole, N_WALKS, tags.data);
    }
    grammar_free(g);
    grammar_vocab_free(vocab);
    buf_deinit(&tags);
    buf_deinit(&text);
}

/* All combinations for a format: calls required or optional, one or several, with and
 * without an answer's grammar, and reasoning open, closed or absent. A format may have a
 * second spelling (`otherwise`), which is tested as well. */
static void check_form(const struct form *form)
{
    const struct tool_parser *parser = tool_parser_find(form->parser);
    struct tool_to_write own[N_TOOLS];
    static const char digits[] = "{\"type\":\"regex\",\"pattern\":\"[0-9]{3,6}\"}";
    CHECK(parser && parser->writing);
    open_tools(own);
    const struct tool_writing *w = parser->writing;
    for (; w; w = w->otherwise) {
        struct tool_calls calls = {.writing = w, .tools = own, .n_tools = N_TOOLS};
        struct turn t = {.reasoning = form->reasoning,
                         .calls = &calls,
                         .enders = parser->ends_reasoning,
                         .must_call = true};
        check_turn(form, &t, "");
        calls.one = true;
        check_turn(form, &t, "");
        t.must_call = false;
        check_turn(form, &t, "");
        t.answer = digits;
        t.answer_bytes = sizeof digits - 1;
        check_turn(form, &t, "0123456789");
        if (!reasoning_marks(form->reasoning)->opens[0]) {
            continue;
        }
        for (int opened = 0; opened < 2; opened++) {
            t.opened = opened;
            t.may_think = !opened;
            t.must_call = false;
            t.calls = NULL;
            check_turn(form, &t, "0123456789");
            t.calls = &calls;
            t.must_call = true;
            check_turn(form, &t, "");
        }
    }
    close_tools();
}

/* A parser added to the table is tested without a change here; it must have a `writing`
 * for tool_choice "required". */
TEST(every_form_of_calls)
{
    for (size_t i = 0; tool_parser_name(i); i++) {
        const char *name = tool_parser_name(i);
        bool harmony = tool_parser_find(name) == &tool_parser_harmony;
        struct form form = {name, harmony ? REASONING_HARMONY : REASONING_NONE};
        check_form(&form);
    }
}

/* Harmony's markers are special tokens, so it is not judged by text. */
TEST(names_of_tools_that_a_format_can_write)
{
    static const char *const names[] = {"f", "get_weather", "a-b.c", "x1"};
    char longest[301] = "";
    memset(longest, 'a', 300);
    for (size_t i = 0; tool_parser_name(i); i++) {
        const struct tool_parser *parser = tool_parser_find(tool_parser_name(i));
        const bool judged = parser != &tool_parser_harmony;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            CHECK(turn_can_call(parser, parser->writing, names[k]));
        }
        CHECK_EQ(turn_can_call(parser, parser->writing, longest), !judged);
        CHECK_EQ(turn_can_call(parser, parser->writing, "a\nb"), !judged);
    }
    CHECK(turn_can_call(&tool_parser_hermes, tool_parser_hermes.writing, "a/b: c"));
    CHECK(!turn_can_call(&tool_parser_glm45, tool_parser_glm45.writing, "a/b: c"));
    CHECK(!turn_can_call(&tool_parser_functionary_v32, tool_parser_functionary_v32.writing, "all"));
}

/* Formats with the reasoning of the families that use them: the grammar of calls must
 * begin only after reasoning ends. */
TEST(calls_and_answers_after_reasoning)
{
    static const struct form forms[] = {
        {"hermes", REASONING_THINK},
        {"qwen3_coder", REASONING_THINK},
        {"seed_oss", REASONING_SEED_OSS},
        {"mistral", REASONING_MISTRAL},
        {"hunyuan_a13b", REASONING_ANSWER},
        {"ernie45", REASONING_RESPONSE},
        {"cohere_command3", REASONING_COHERE},
        {"gemma4", REASONING_GEMMA4},
        {"granite", REASONING_GRANITE},
        {"kimi_k3", REASONING_KIMI_K3},
        {"minimax_m2", REASONING_THINK},
        {"deepseek_v4", REASONING_THINK},
        {"apertus", REASONING_APERTUS},
        {"solar_open", REASONING_SOLAR_OPEN},
        {"functionary_v32", REASONING_FUNCTIONARY},
        {"step3", REASONING_THINK},
        {"muse", REASONING_MUSE},
        {"inkling", REASONING_INKLING},
        {"solar_open2", REASONING_SOLAR_OPEN2},
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        check_form(&forms[i]);
    }
}

/* A text for everybody may be an object: "all" is no tool. */
TEST(functionary_answers_may_begin_with_a_brace)
{
    struct tool_to_write own[N_TOOLS];
    struct buf tags;
    buf_init(&tags, 1 << 20);
    open_tools(own);
    const struct tool_calls calls = {
        .writing = tool_parser_functionary_v32.writing, .tools = own, .n_tools = N_TOOLS};
    const struct turn t = {.reasoning = REASONING_FUNCTIONARY, .calls = &calls};
    turn_put(&tags, &t);
    struct grammar *g = compile(GRAMMAR_TAGS, tags.data, tags.n_bytes, NULL);
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"all\n{1}", true}, {"get_a\n{\"e\":\"a\"}", true},
        {"call\n{", false}, {"a\n{", false},
        {"al\n{", false},   {"alt\n{", false},
        {"ally\n{", false}, {"all\n", true},
        {"all.\n{", false}, {"Well, all\n{", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct grammar_state s;
        const char *text = cases[i].text;
        CHECK_EQ(grammar_fold(g, text, strlen(text), &s) == OK, cases[i].good);
    }
    grammar_free(g);
    close_tools();
    buf_deinit(&tags);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
