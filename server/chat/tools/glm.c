// SPDX-License-Identifier: Apache-2.0
/* <tool_call>NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> per argument, with or
 * without line breaks in between, then </tool_call>. Values are bare text: the tool's schema
 * decides between string and JSON.
 *     glm45     GLM 4.5 and later, Laguna
 *     hy_v3     Hy 3: <tool_sep> after the name, and all calls between <tool_calls> and
 *               </tool_calls>
 */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, OPENED, NAME, BODY, KEY, KEY_END, VALUE, AFTER };

/* What differs between the formats. */
struct glm_form {
    const char *open, *close; // optional markers around all calls; NULL: the format has none
    const char *name_end;     // NULL: the name ends at the first argument or at the call's end
};

static const struct glm_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

static const char open[] = "<tool_call>", close[] = "</tool_call>";
static const char key_open[] = "<arg_key>", key_close[] = "</arg_key>";
static const char value_open[] = "<arg_value>", value_close[] = "</arg_value>";

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-./:", c) != NULL;
}

/* Finds what ends a name. The marker of an argument or of the call's end is not consumed. */
static enum tool_match name_end(struct tool_parse *p, bool final)
{
    const char *word = form_of(p)->name_end;
    if (word) {
        enum tool_match m = tool_match(p, word, final);
        if (m == MATCH_YES) {
            p->scan += strlen(word);
        }
        return m;
    }
    enum tool_match key = tool_match(p, key_open, final), over = tool_match(p, close, final);
    if (key == MATCH_YES || over == MATCH_YES) {
        return MATCH_YES;
    }
    if (key == MATCH_MAYBE || over == MATCH_MAYBE) {
        return MATCH_MAYBE;
    }
    return MATCH_NO;
}

/* Reads a name. If the name is not followed by what must come after it, the text is not a call. */
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
    enum tool_match m = name_end(p, final);
    if (p->name.n_bytes == 0 || p->name.failed || m == MATCH_NO) {
        return tool_abandon_parameters(p, TEXT);
    }
    if (m == MATCH_MAYBE) {
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
        return tool_abandon_parameters(p, form_of(p)->close ? AFTER : TEXT);
    }
    if (key == MATCH_MAYBE || over == MATCH_MAYBE) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

/* Reads the text from `at` to the marker `end`, and moves `scan` past the marker. False: the marker
 * has not arrived. */
static bool up_to(struct tool_parse *p, const char *end, const char **text, size_t *n)
{
    size_t n_end = strlen(end), held = tool_n_held(p);
    const char *found = memmem(tool_held(p), held, end, n_end);
    if (!found) {
        if (held > n_end) {
            p->scan += held - n_end; // this text was searched; `at` stays
        }
        return false;
    }
    *text = p->held.data + p->at;
    *n = (size_t)(found - *text);
    p->scan = (size_t)(found - p->held.data) + n_end;
    return true;
}

/* Reads a key. Names have at most TOOL_NAME_MAX_BYTES bytes and contain no NUL, since they become C
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

/* Reports a value when it is complete, because its type depends on all of its text. */
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

/* Outside of calls: looks for a call, or for the marker that opens all calls. */
static bool text(struct tool_parse *p, bool final)
{
    const char *const words[] = {open, form_of(p)->open, NULL};
    int which;
    if (!tool_find(p, words, true, final, &which)) {
        return false;
    }
    buf_clear(&p->name);
    p->state = which == 0 ? NAME : OPENED;
    return true;
}

/* After the marker that opens all calls. */
static bool opened(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, open, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_NO) {
        return tool_abandon_parameters(p, TEXT);
    }
    p->scan += sizeof open - 1;
    p->state = NAME;
    return true;
}

/* After a call: drops the marker that closes the section with all calls. Other text is processed as
 * usual. */
static bool after(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, form_of(p)->close, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_YES) {
        p->scan += strlen(form_of(p)->close);
        tool_commit(p);
    } else {
        p->scan = p->at;
    }
    p->state = TEXT;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    bool more = false;
    switch (p->state) {
    case TEXT: return text(p, final);
    case AFTER: return after(p, final);
    case OPENED: more = opened(p, final); break;
    case NAME: more = name(p, final); break;
    case BODY: more = body(p, final); break;
    case KEY: more = key(p); break;
    case KEY_END: more = key_end(p, final); break;
    default: more = value(p); break;
    }
    return more || (final && tool_cut_parameters(p, TEXT));
}

#define ARGUMENT_MARKERS key_open, key_close, value_open, value_close

static const char *const glm45_markers[] = {open, close, ARGUMENT_MARKERS, NULL};
static const char *const glm45_ends_reasoning[] = {open, NULL};
static const struct glm_form glm45 = {.open = NULL};
static const struct tool_writing glm45_writing = {
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
    .form = &glm45,
    .markers = glm45_markers,
    .ends_reasoning = glm45_ends_reasoning,
    .writing = &glm45_writing,
};

static const char *const hy_v3_markers[] = {"<tool_calls>", "</tool_calls>",  open, close,
                                            "<tool_sep>",   ARGUMENT_MARKERS, NULL};
static const struct glm_form hy_v3 = {
    .open = "<tool_calls>", .close = "</tool_calls>", .name_end = "<tool_sep>"};
static const char *const hy_v3_ends_reasoning[] = {"<tool_calls>", NULL};
static const struct tool_writing hy_v3_writing = {
    .open = "<tool_calls>\n",
    .call = open,
    .name_end = "<tool_sep>\n",
    .call_end = "</tool_call>\n",
    .style = "glm_xml",
    .close = "</tool_calls>",
    .trigger = "<tool_calls>",
    .bars = {open},
};
const struct tool_parser tool_parser_hy_v3 = {
    .name = "hy_v3",
    .step = step,
    .form = &hy_v3,
    .markers = hy_v3_markers,
    .ends_reasoning = hy_v3_ends_reasoning,
    .writing = &hy_v3_writing,
};
