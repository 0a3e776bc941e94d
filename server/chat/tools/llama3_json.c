// SPDX-License-Identifier: Apache-2.0
/* Llama 3.x: the whole answer is {"name": ..., "parameters": {...}}, possibly after <|python_tag|>,
 * possibly several joined by ';'. Plain JSON answers look the same, so only names of the request's
 * tools count, and both keys must be present. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { START, CALL, BETWEEN, TEXT };

static const char tag[] = "<|python_tag|>";

/* Outside of calls: an object may be a call; anything else is text. */
static bool open_brace(struct tool_parse *p)
{
    if (*tool_held(p) != '{') {
        p->scan = p->at;
        p->state = TEXT;
        return true;
    }
    json_call_reset(&p->call, true, false);
    p->state = CALL;
    return true;
}

/* A call may only be at the very beginning, or after the tag. */
static bool at_start(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, tag, final);
    if (m == MATCH_MAYBE || (tool_n_held(p) == 0 && !final)) {
        return false; // white space may turn out to be content
    }
    if (m == MATCH_YES) {
        p->scan += sizeof tag - 1;
        tool_skip_space(p);
        if (tool_n_held(p) == 0) {
            p->scan = p->at;
            return false;
        }
    }
    return open_brace(p);
}

/* An object whose name is not that of a tool in the request is an ordinary answer. */
static bool in_call(struct tool_parse *p)
{
    struct json_call *c = &p->call;
    /* needs_both delays the report until the arguments begin, so that the name can be checked
     * before. */
    enum json_call_result r = CALL_MORE;
    while (r == CALL_MORE && tool_n_held(p) > 0) {
        size_t n_bytes = p->held.n_bytes;
        p->held.n_bytes = p->scan + 1; // one byte at a time, to check the name in between
        r = json_call_step(c, p);
        p->held.n_bytes = n_bytes;
        if (c->has_name && !c->begun && !tool_function(p->tools, c->name.data)) {
            r = CALL_BAD;
        }
    }
    if (r == CALL_MORE) {
        return false;
    }
    if (r == CALL_BAD) {
        json_call_drop(p);
    }
    p->state = r == CALL_DONE ? BETWEEN : TEXT;
    return true;
}

/* Another object, with or without a separator, is another call; anything else is content. */
static bool between(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c != ';' && c != ',' && c != '{') {
        p->scan = p->at;
        p->state = TEXT;
        return true;
    }
    if (c != '{') {
        p->scan++;
        tool_skip_space(p);
        if (tool_n_held(p) == 0) {
            p->scan = p->at;
            return false;
        }
    }
    return open_brace(p);
}

/* The tag begins a call only if an object follows; otherwise both are text. */
static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {tag, NULL};
    int which;
    switch (p->state) {
    case START: return at_start(p, final);
    case CALL: return in_call(p);
    case BETWEEN: return between(p);
    default:
        if (!tool_find(p, words, true, final, &which)) {
            return false;
        }
        tool_skip_space(p);
        if (tool_n_held(p) == 0 && !final) {
            p->scan = p->at;
            return false;
        }
        if (tool_n_held(p) == 0 || *tool_held(p) != '{') {
            tool_give_up(p); // the tag and what follows are text
            return true;
        }
        json_call_reset(&p->call, true, false);
        p->state = CALL;
        return true;
    }
}

static const char *const markers[] = {tag, NULL};
static const struct tool_writing writing = {
    .call = "{\"name\": \"",
    .name_end = "\", \"parameters\": ",
    .call_end = "}",
    .between = "; ",
    .starts = "\\s*\\{", // any object: its keys may be in any order
    .bars = {tag},
};
const struct tool_parser tool_parser_llama3_json = {
    .name = "llama3_json",
    .step = step,
    .markers = markers,
    .writing = &writing,
};
