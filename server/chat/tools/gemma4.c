// SPDX-License-Identifier: Apache-2.0
/* Gemma 4: <|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>. Keys are bare, strings are enclosed in
 * two <|"|> tokens without escapes, and objects, lists, numbers and words are as in JSON. The text
 * is converted to JSON item by item. FunctionGemma has other tokens. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, HEAD, NAME, KEY, VALUE, AFTER_VALUE, AFTER };

enum { MAX_DEPTH = 60 }; // `nest` has 64 bits

struct gemma_form {
    const char *opens[2]; // NULL-terminated
    const char *close, *quote;
};

static const struct gemma_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

static const char head_word[] = "call:";

/* After the opening marker: expects "call:". */
static bool head(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, head_word, final);
    if (m != MATCH_YES) {
        return m == MATCH_NO && tool_abandon(p, TEXT);
    }
    p->scan += sizeof head_word - 1;
    buf_clear(&p->name);
    p->state = NAME;
    return true;
}

/* ---- nesting: a bit for each level, set for an object ---- */

static bool in_object(const struct tool_parse *p)
{
    return p->nest >> p->depth & 1;
}

static void put(struct tool_parse *p, const char *text)
{
    tool_arguments(p, text, strlen(text));
}

/* Enters an object or list. */
static bool push(struct tool_parse *p, char c)
{
    if (p->depth == MAX_DEPTH) {
        return tool_abandon(p, TEXT);
    }
    p->scan++;
    p->depth++;
    p->nest &= ~((uint64_t)1 << p->depth);
    p->nest |= (uint64_t)(c == '{') << p->depth;
    p->is_first = true;
    tool_commit(p);
    put(p, c == '{' ? "{" : "[");
    p->state = c == '{' ? KEY : VALUE;
    return true;
}

/* Leaves an object or list. The end of the outermost one ends the call. */
static bool pop(struct tool_parse *p)
{
    put(p, in_object(p) ? "}" : "]");
    p->scan++;
    p->depth--;
    p->is_first = false;
    tool_commit(p);
    p->state = AFTER_VALUE;
    if (p->depth == 0) {
        tool_end(p);
        p->state = AFTER;
    }
    return true;
}

/* Starts an item of the list or object: writes a comma unless it is the first. */
static void separate(struct tool_parse *p)
{
    if (!p->is_first) {
        put(p, ", ");
    }
    p->is_first = false;
}

static void put_string(struct tool_parse *p, const char *text, size_t n)
{
    struct buf json;
    buf_init(&json, 64 << 20);
    buf_put_json(&json, text, n);
    tool_arguments(p, json.data, json.n_bytes);
    buf_deinit(&json);
}

/* ---- the parts ---- */

/* Reads the name up to '{', and then reports the call. */
static bool name(struct tool_parse *p)
{
    for (; tool_n_held(p) > 0; p->scan++) {
        char c = *tool_held(p);
        if (c == '{' && p->name.n_bytes > 0) {
            tool_begin(p, p->name.data, "");
            p->depth = 0;
            return push(p, c);
        }
        if ((c >= '\0' && c <= ' ') || c == '<' || c == '{' || p->name.failed) {
            return tool_abandon(p, TEXT);
        }
        buf_putc(&p->name, c);
    }
    return false;
}

/* Reads a string at `scan`, which moves past it. */
static enum tool_match quoted(struct tool_parse *p, bool final, const char **text, size_t *n)
{
    const char *quote = form_of(p)->quote;
    const size_t n_quote = strlen(quote);
    enum tool_match m = tool_match(p, quote, final);
    if (m != MATCH_YES) {
        return m;
    }
    *text = tool_held(p) + n_quote;
    const char *from = *text, *held_end = p->held.data + p->held.n_bytes;
    if (p->held.data + p->at + p->n_seen > from + n_quote) {
        from = p->held.data + p->at + p->n_seen - n_quote; // the end marker may have begun in text
                                                           // seen earlier
    }
    const char *end = memmem(from, (size_t)(held_end - from), quote, n_quote);
    if (!end) {
        p->n_seen = p->held.n_bytes - p->at;
        return MATCH_MAYBE;
    }
    *n = (size_t)(end - *text);
    p->scan = (size_t)(end - p->held.data) + n_quote;
    return MATCH_YES;
}

/* Reads bare text at `scan`, which moves to the first of the stops. Trailing white space is not
 * part of the text. */
static enum tool_match bare(struct tool_parse *p, const char *stops, const char **text, size_t *n)
{
    *text = tool_held(p);
    for (size_t i = 0; i < tool_n_held(p); i++) {
        char c = (*text)[i];
        if (c && strchr(stops, c)) {
            for (*n = i; *n > 0 && (*text)[*n - 1] == ' '; (*n)--) {
            }
            p->scan += i;
            return MATCH_YES;
        }
    }
    return MATCH_MAYBE;
}

/* Reads a key, bare or quoted, together with the ':' after it: only then is it a key. */
static bool key(struct tool_parse *p, bool final)
{
    const char *text;
    size_t n = 0;
    tool_skip_space(p);
    if (tool_n_held(p) > 0 && *tool_held(p) == '}') {
        return pop(p);
    }
    enum tool_match m = quoted(p, final, &text, &n);
    if (m == MATCH_NO) {
        m = bare(p, ":{}[],", &text, &n);
    }
    if (m == MATCH_YES) {
        tool_skip_space(p);
    }
    if (m == MATCH_MAYBE || tool_n_held(p) == 0) {
        p->scan = p->at; // try again when more text has arrived
        return false;
    }
    if (*tool_held(p) != ':') {
        return tool_abandon(p, TEXT);
    }
    separate(p);
    put_string(p, text, n);
    put(p, ": ");
    p->scan++;
    tool_commit(p);
    p->state = VALUE;
    return true;
}

/* Writes a JSON number or word unchanged; other bare text becomes a string. */
static void put_bare(struct tool_parse *p, const char *text, size_t n)
{
    struct json *root = NULL;
    if (json_parse(text, n, NULL, &root, NULL) == OK) {
        tool_arguments(p, text, n);
        json_free(root);
    } else {
        put_string(p, text, n);
    }
}

/* Reads a value: a string, an object or list, or a bare word, which put_bare converts. */
static bool value(struct tool_parse *p, bool final)
{
    const char *text;
    size_t n = 0;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == ']' && !in_object(p)) {
        return pop(p);
    }
    enum tool_match m = quoted(p, final, &text, &n);
    bool is_bare = m == MATCH_NO && c != '{' && c != '[';
    if (is_bare) {
        m = bare(p, ",}]", &text, &n);
    }
    if (m == MATCH_MAYBE) {
        p->scan = p->at; // try again when more text has arrived
        return false;
    }
    if (!in_object(p)) {
        separate(p);
    }
    if (m == MATCH_NO) {
        return push(p, c);
    }
    if (is_bare) {
        put_bare(p, text, n);
    } else {
        put_string(p, text, n);
    }
    tool_commit(p);
    p->state = AFTER_VALUE;
    return true;
}

/* After a value: expects a comma or the end of the object or list. */
static bool after_value(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == (in_object(p) ? '}' : ']')) {
        return pop(p);
    }
    if (c != ',') {
        return tool_abandon(p, TEXT);
    }
    p->scan++;
    tool_commit(p);
    p->state = in_object(p) ? KEY : VALUE;
    return true;
}

/* The closing marker after a call is optional. */
static bool after(struct tool_parse *p, bool final)
{
    const char *close = form_of(p)->close;
    tool_skip_space(p);
    enum tool_match m = tool_match(p, close, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_YES) {
        p->scan += strlen(close);
    }
    tool_commit(p);
    p->state = TEXT;
    return true;
}

/* One transition of the states above; true if another may follow. */
static bool step(struct tool_parse *p, bool final)
{
    int which;
    switch (p->state) {
    case TEXT:
        if (!tool_find(p, form_of(p)->opens, true, final, &which)) {
            return false;
        }
        p->state = HEAD;
        return true;
    case HEAD: return head(p, final);
    case NAME: return name(p);
    case KEY: return key(p, final);
    case VALUE: return value(p, final);
    case AFTER_VALUE: return after_value(p);
    default: return after(p, final);
    }
}

#define GEMMA(its_name, its_open, its_close, its_quote)                                            \
    static const char *const its_name##_markers[] = {its_open, its_close, its_quote, NULL};        \
    static const struct gemma_form its_name = {                                                    \
        .opens = {its_open}, .close = its_close, .quote = its_quote};                              \
    static const struct tool_writing its_name##_writing = {                                        \
        .call = its_open "call:",                                                                  \
        .name_end = "",                                                                            \
        .call_end = its_close,                                                                     \
        .style = #its_name,                                                                        \
        .trigger = its_open,                                                                       \
    };                                                                                             \
    const struct tool_parser tool_parser_##its_name = {                                            \
        .name = #its_name,                                                                         \
        .step = step,                                                                              \
        .form = &its_name,                                                                         \
        .markers = its_name##_markers,                                                             \
        .writing = &its_name##_writing,                                                            \
    }

GEMMA(gemma4, "<|tool_call>", "<tool_call|>", "<|\"|>");
GEMMA(functiongemma, "<start_function_call>", "<end_function_call>", "<escape>");
