// SPDX-License-Identifier: Apache-2.0
/* The grammar of an assistant's turn: reasoning, answer and tool calls in the model's own
 * format, as a structural tag. Used when an answer must have a form but the text around it
 * has markers. */
#include "server/chat/turn.h"

#include "engine/base/optional.h"

#include <string.h>

/* A parser may have several ways of writing calls. Returns the first one whose tokens are in the
 * vocabulary. */
const struct tool_writing *turn_writing(const struct tool_parser *parser,
                                        const struct tokenizer *tok)
{
    const struct tool_writing *w = parser->writing;
    while (w && w->needs && tokenizer_find(tok, w->needs, strlen(w->needs)) < 0) {
        w = w->otherwise;
    }
    return w;
}

/* ---- names of tools ---------------------------------------------------------------------------
 */

/* What a parser reports for one call. */
struct probe {
    const char *name;
    int n_calls, n_wrong; // n_wrong: other names, and texts
};

static void probe_text(void *arg, const char *text, size_t n_bytes)
{
    (void)text;
    ((struct probe *)arg)->n_wrong += n_bytes > 0;
}

static void probe_call(void *arg, const char *name, const char *id)
{
    struct probe *p = arg;
    (void)id;
    p->n_calls++;
    p->n_wrong += strcmp(name, p->name) != 0;
}

static void probe_arguments(void *arg, const char *text, size_t n_bytes)
{
    (void)arg;
    (void)text;
    (void)n_bytes;
}

/* A call without arguments, or whose arguments are written as {}. */
static void write_call(struct buf *out, const struct tool_writing *w, const char *name,
                       const char *arguments)
{
    const char *const parts[] = {w->open,     w->head,   w->head ? name : "", w->call, name,
                                 w->name_end, arguments, w->call_end,         w->close};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *part = or_empty(parts[i]), *number = part == name ? NULL : strstr(part, "%d");
        buf_put(out, part, number ? (size_t)(number - part) : strlen(part));
        buf_puts(out, number ? "0" : "");
        buf_puts(out, number ? number + 2 : "");
    }
}

static bool reads_call(const struct tool_parser *parser, const struct tool_writing *w,
                       const char *name, const char *arguments)
{
    struct buf text, list;
    struct json *tools = NULL;
    struct tool_parse parse;
    struct probe found = {.name = name};
    const struct tool_sink sink = {probe_text, probe_text, probe_call, probe_arguments, &found};
    buf_init(&text, 1 << 20);
    buf_init(&list, 1 << 20);
    write_call(&text, w, name, arguments);
    buf_puts(&list, "[{\"function\":{\"name\":");
    buf_put_json(&list, name, strlen(name));
    buf_puts(&list, "}}]");
    bool good = !text.failed && !list.failed &&
                json_parse(list.data, list.n_bytes, NULL, &tools, NULL) == OK;
    tool_parse_init(&parse, parser, tools, sink);
    if (good) {
        tool_parse_text(&parse, text.data, text.n_bytes);
        tool_parse_finish(&parse);
    }
    tool_parse_deinit(&parse);
    json_free(tools);
    buf_deinit(&text);
    buf_deinit(&list);
    return !good || (found.n_calls == 1 && found.n_wrong == 0); // no memory: not judged
}

static bool reads(const struct tool_parser *parser, const struct tool_writing *w, const char *name)
{
    return reads_call(parser, w, name, "{}") || reads_call(parser, w, name, "");
}

/* Formats for which such a call is not complete are not judged. */
bool turn_can_call(const struct tool_parser *parser, const struct tool_writing *w, const char *name)
{
    return reads(parser, w, name) || !reads(parser, w, "f");
}

#define TEXT "{\"type\":\"any_text\""
/* A limit may end reasoning within a character. */
#define REASONING TEXT ",\"any_bytes\":true"
#define NEWLINES "{\"type\":\"regex\",\"pattern\":\"\\\\n{0,4}\"}"
#define SEQUENCE "{\"type\":\"sequence\",\"elements\":["
#define OPTIONAL "{\"type\":\"optional\",\"content\":"
#define OR "{\"type\":\"or\",\"elements\":["
#define DEFINED(name) "{\"type\":\"defined\",\"name\":\"" name "\"}"

static void put_words(struct buf *out, const char *const *words, bool first)
{
    for (; words && *words; words++) {
        if (!first) {
            buf_puts(out, ",");
        }
        buf_put_json(out, *words, strlen(*words));
        first = false;
    }
}

/* True if the word is a token that ends the text. A grammar must not name it, because it is allowed
 * exactly where the text may end. */
static bool ends_text(const struct turn *t, const char *word)
{
    const int32_t id = t->tok ? tokenizer_find(t->tok, word, strlen(word)) : -1;
    bool ends = false;
    for (int32_t i = 0; id >= 0 && i < t->n_end_ids; i++) {
        ends = ends || t->end_ids[i] == id;
    }
    return ends;
}

/* Writes the format "one of these words". */
static void put_one_of(struct buf *out, const char *const *words)
{
    buf_puts(out, OR);
    for (int i = 0; words[i]; i++) {
        if (i) {
            buf_puts(out, ",");
        }
        tool_put_const(out, words[i]);
    }
    buf_puts(out, "]}");
}

/* Writes the rest of the format "text that contains none of the words". */
static void put_excludes(struct buf *out, const char *const *words, const char *const *more)
{
    buf_puts(out, ",\"excludes\":[");
    put_words(out, words, true);
    put_words(out, more, !words || !*words);
    buf_puts(out, "]}");
}

/* ---- the answer -------------------------------------------------------------------------------
 */

/* Writes the format of the answer: the request's grammar, or text that may contain calls. */
static void put_answer(struct buf *out, const struct turn *t)
{
    if (t->answer) {
        buf_put(out, t->answer, t->answer_bytes);
    } else if (t->calls) {
        tool_put_text_and_calls(out, t->calls);
    } else {
        buf_puts(out, TEXT "}");
    }
}

/* The words that may follow an answer without ending the text, and NULL. True if one was left out
 * because it ends the text. */
static bool closes_of(const struct turn *t, const struct reasoning_marks *m,
                      const char *closes[MOST_MARKS])
{
    int n = 0;
    bool may_end = false;
    for (int i = 0; m->answer_closes[i]; i++) {
        if (ends_text(t, m->answer_closes[i])) {
            may_end = true;
        } else {
            closes[n++] = m->answer_closes[i];
        }
    }
    closes[n] = NULL;
    return may_end;
}

/* The answer inside the markers that some kinds of reasoning have, followed by calls. */
static void put_marked(struct buf *out, const struct turn *t, const struct reasoning_marks *m)
{
    buf_puts(out, SEQUENCE);
    put_one_of(out, m->answer_opens);
    if (!m->answer_closes[0]) {
        buf_puts(out, "," DEFINED("answer") "]}");
        return;
    }
    const char *closes[MOST_MARKS];
    const bool may_end = closes_of(t, m, closes);
    buf_puts(out, "," NEWLINES ",");
    if (t->answer) {
        buf_puts(out, DEFINED("answer"));
    } else {
        buf_puts(out, TEXT);
        put_excludes(out, closes, NULL);
    }
    if (closes[0]) {
        buf_puts(out, may_end ? "," OPTIONAL SEQUENCE NEWLINES "," : "," NEWLINES ",");
        put_one_of(out, closes);
        buf_puts(out, may_end ? "]}}" : "");
    }
    if (t->calls) {
        buf_puts(out, "," OPTIONAL DEFINED("calls") "}");
    }
    buf_puts(out, "]}");
}

/* Calls, or an answer with or without its own markers. */
static void put_body(struct buf *out, const struct turn *t, const struct reasoning_marks *m)
{
    if (t->must_call) {
        buf_puts(out, DEFINED("calls"));
        return;
    }
    buf_puts(out, OR DEFINED("answer"));
    if (m->answer_opens[0] && (m->answer_closes[0] || t->answer)) {
        buf_putc(out, ',');
        put_marked(out, t, m);
    }
    if (t->calls && t->answer) {
        buf_puts(out, "," DEFINED("calls"));
    }
    buf_puts(out, "]}");
}

/* ---- before the answer ---------------------------------------------------------------------
 */

/* Reasoning up to its end, then the rest. If a call may end reasoning without a marker, the call
 * follows directly. */
static void put_reasoning(struct buf *out, const struct turn *t, const struct reasoning_marks *m)
{
    buf_puts(out, SEQUENCE REASONING);
    put_excludes(out, m->closes, t->calls ? t->enders : NULL);
    buf_puts(out, "," OR SEQUENCE);
    put_one_of(out, m->closes);
    buf_puts(out, "," NEWLINES "," DEFINED("body") "]}");
    if (t->must_call && t->enders) {
        buf_puts(out, "," DEFINED("calls"));
    }
    buf_puts(out, "]}]}");
}

/* The format's beginning depends on where the prompt ends: inside of reasoning, after it, or before
 * it. */
static void put_start(struct buf *out, const struct turn *t, const struct reasoning_marks *m)
{
    if (t->opened) {
        put_reasoning(out, t, m);
    } else if (t->after_reasoning) {
        buf_puts(out, SEQUENCE NEWLINES "," DEFINED("body") "]}");
    } else if (t->may_think) {
        buf_puts(out, OR DEFINED("body") "," SEQUENCE NEWLINES ",");
        put_one_of(out, m->opens);
        buf_putc(out, ',');
        put_reasoning(out, t, m);
        buf_puts(out, "]}]}");
    } else {
        buf_puts(out, DEFINED("body"));
    }
}

/* ---- Harmony ----------------------------------------------------------------------------------
 */

#define NEXT "{\"type\":\"const_string\",\"value\":\"<|end|><|start|>assistant\"}"
#define MESSAGE(channel, text)                                                                     \
    SEQUENCE "{\"type\":\"const_string\",\"value\":\"<|channel|>" channel "<|message|>\"}," text   \
             "}," NEXT "]}"

/* Messages with reasoning, and perhaps with text, before the message that ends the turn. */
static void put_before(struct buf *out, bool with_text)
{
    buf_puts(out, SEQUENCE "{\"type\":\"star\",\"content\":" OR MESSAGE("analysis", REASONING));
    if (with_text) {
        buf_puts(out, "," MESSAGE("commentary", TEXT));
    }
    buf_puts(out, "]}},");
}

/* A call, or the final message. Text before an answer of a given form would be part of its
 * content. */
static void put_harmony(struct buf *out, const struct turn *t)
{
    if (t->opened) {
        buf_puts(out, SEQUENCE REASONING "}," NEXT "," OR);
    } else {
        buf_puts(out, SEQUENCE OR);
    }
    if (t->calls) {
        put_before(out, true);
        buf_puts(out, DEFINED("calls") "]}");
    }
    if (!t->must_call) {
        if (t->calls) {
            buf_puts(out, ",");
        }
        put_before(out, t->calls && !t->answer);
        buf_puts(out,
                 "{\"type\":\"const_string\",\"value\":\"<|channel|>final\"},"
                 "{\"type\":\"optional\",\"content\":{\"type\":\"const_string\","
                 "\"value\":\" <|constrain|>json\"}},"
                 "{\"type\":\"const_string\",\"value\":\"<|message|>\"}," DEFINED("answer") "]}");
    }
    buf_puts(out, "]}]}");
}

/* Definitions first, then the format that refers to them. */
void turn_put(struct buf *out, const struct turn *t)
{
    const struct reasoning_marks *m = reasoning_marks(t->reasoning);
    bool harmony = t->reasoning == REASONING_HARMONY;
    buf_puts(out, "{\"type\":\"structural_tag\",\"definitions\":{");
    if (t->calls) {
        buf_puts(out, "\"calls\":");
        tool_put_calls(out, t->calls);
        buf_putc(out, ',');
    }
    buf_puts(out, "\"answer\":");
    if (harmony && !t->answer) {
        buf_puts(out, TEXT "}");
    } else {
        put_answer(out, t);
    }
    if (!harmony) {
        buf_puts(out, ",\"body\":");
        put_body(out, t, m);
    }
    buf_puts(out, "},\"format\":");
    if (harmony) {
        put_harmony(out, t);
    } else {
        put_start(out, t, m);
    }
    buf_putc(out, '}');
}
