// SPDX-License-Identifier: Apache-2.0
/* GLM 4.5 and later, Laguna: <tool_call>NAME, then
 * <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> per argument, with or without line breaks in
 * between, then </tool_call>. Values are bare text: the tool's schema decides between string and
 * JSON. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, NAME, BODY, KEY, KEY_END, VALUE };

static const char open[] = "<tool_call>", close[] = "</tool_call>";
static const char key_open[] = "<arg_key>", key_close[] = "</arg_key>";
static const char value_open[] = "<arg_value>", value_close[] = "</arg_value>";

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-./:", c) != NULL;
}

/* The name is followed by an argument or the end; anything else in such tags is not a call. */
static bool name(struct tool_parse *p, bool final)
{
    if (p->name.n_bytes == 0) {
        tool_skip_space(p);
    }
    for (; tool_n_held(p) > 0 && *tool_held(p) && is_name(*tool_held(p)); p->scan++) {
        buf_putc(&p->name, *tool_held(p));
    }
    size_t end = p->scan;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        p->scan = end; // the name may continue
        return false;
    }
    enum tool_match key = tool_match(p, key_open, final), over = tool_match(p, close, final);
    if (p->name.n_bytes == 0 || p->name.failed || (key == MATCH_NO && over == MATCH_NO)) {
        return tool_abandon_parameters(p, TEXT);
    }
    if (key != MATCH_YES && over != MATCH_YES) {
        p->scan = end;
        return false;
    }
    tool_commit(p);
    tool_begin(p, p->name.data, "");
    p->state = BODY;
    return true;
}

/* Between arguments: another key, the end of the call, or an error. */
static bool body(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match key = tool_match(p, key_open, final), over = tool_match(p, close, final);
    if (key == MATCH_YES) {
        p->scan += sizeof key_open - 1;
        buf_clear(&p->id);
        tool_commit(p);
        p->state = KEY;
        return true;
    }
    if (over == MATCH_YES) {
        p->scan += sizeof close - 1;
        tool_commit(p);
        return tool_abandon_parameters(p, TEXT);
    }
    if (key == MATCH_MAYBE || over == MATCH_MAYBE) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

/* The text from `at` to `end`; `scan` moves past `end`. False: it has not arrived. */
static bool up_to(struct tool_parse *p, const char *end, const char **text, size_t *n)
{
    size_t n_end = strlen(end), held = tool_n_held(p);
    const char *found = memmem(tool_held(p), held, end, n_end);
    if (!found) {
        if (held > n_end) {
            p->scan += held - n_end;
        } // examined; `at` stays
        return false;
    }
    *text = p->held.data + p->at;
    *n = (size_t)(found - *text);
    p->scan = (size_t)(found - p->held.data) + n_end;
    return true;
}

/* Names are at most TOOL_NAME_MAX_BYTES long and contain no NUL, since they become C
 * strings. */
static bool key(struct tool_parse *p)
{
    const char *text;
    size_t n;
    if (!up_to(p, key_close, &text, &n)) {
        return false;
    }
    buf_put(&p->id, text, n);
    tool_commit(p);
    if (p->id.failed || n == 0 || memchr(p->id.data, '\0', n)) {
        return tool_abandon_parameters(p, TEXT);
    }
    p->state = KEY_END;
    return true;
}

static bool key_end(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, value_open, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_NO) {
        return tool_abandon_parameters(p, TEXT);
    }
    p->scan += sizeof value_open - 1;
    tool_commit(p);
    p->state = VALUE;
    return true;
}

/* The value is reported when it is complete, because its type depends on all of its text. */
static bool value(struct tool_parse *p)
{
    const char *text;
    size_t n;
    if (!up_to(p, value_close, &text, &n)) {
        return false;
    }
    tool_parameter(p, text, n, TOOL_VALUE_BY_SCHEMA);
    tool_commit(p);
    p->state = BODY;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {open, NULL};
    int which;
    bool more = false;
    switch (p->state) {
    case TEXT:
        if (!tool_find(p, words, true, final, &which)) {
            return false;
        }
        buf_clear(&p->name);
        p->state = NAME;
        return true;
    case NAME: more = name(p, final); break;
    case BODY: more = body(p, final); break;
    case KEY: more = key(p); break;
    case KEY_END: more = key_end(p, final); break;
    default: more = value(p); break;
    }
    return more || (final && tool_cut_parameters(p, TEXT));
}

static const char *const markers[] = {open,       close,       key_open, key_close,
                                      value_open, value_close, NULL};
static const char *const ends_reasoning[] = {open, NULL};
static const struct tool_writing writing = {
    .call = open,
    .name_end = "\n",
    .call_end = close,
    .style = "glm_xml",
    .between = "\n",
    .trigger = open,
};
const struct tool_parser tool_parser_glm45 = {
    .name = "glm45",
    .step = step,
    .markers = markers,
    .ends_reasoning = ends_reasoning,
    .writing = &writing,
};
