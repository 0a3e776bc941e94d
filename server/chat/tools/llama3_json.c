// SPDX-License-Identifier: Apache-2.0
/* Objects without markers, as the whole answer:
 *     llama3_json    {"name": ..., "parameters": {...}}, possibly after <|python_tag|>, possibly
 *                    several joined by ';'
 *     xlam           [{"name": ..., "arguments": {...}}, ...], possibly in a fence (xLAM, Hammer)
 * Plain JSON answers look the same, so only names of the request's tools count, and both keys must
 * be present. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { START, OPENED, ITEM, CALL, BETWEEN, LISTED, TEXT };

enum { MAX_OPENS = 5, MAX_CLOSES = 3 };

struct bare_form {
    const char *opens[MAX_OPENS];   // markers after which calls may also begin; NULL-terminated
    const char *closes[MAX_CLOSES]; // markers that may follow a list
    bool lists;                     // calls are items of a list
};

static const struct bare_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

/* The held text is no call. */
static bool no_call(struct tool_parse *p)
{
    tool_give_up(p);
    p->state = TEXT;
    return true;
}

/* A marker is complete: in lists it may include the bracket. */
static void open_marked(struct tool_parse *p)
{
    bool bracketed = p->held.data[p->scan - 1] == '[';
    p->state = form_of(p)->lists && !bracketed ? OPENED : ITEM;
}

/* Calls may be at the very beginning, with or without a marker. */
static bool at_start(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false; // white space may turn out to be content
    }
    for (const char *const *open = form_of(p)->opens; *open; open++) {
        enum tool_match m = tool_match(p, *open, final);
        if (m == MATCH_MAYBE) {
            return false;
        }
        if (m == MATCH_YES) {
            p->scan += strlen(*open);
            open_marked(p);
            return true;
        }
    }
    p->state = form_of(p)->lists ? OPENED : ITEM;
    return true;
}

/* Expects the bracket that opens a list. */
static bool opened(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    if (*tool_held(p) != '[') {
        return no_call(p);
    }
    p->scan++;
    p->state = ITEM;
    return true;
}

/* Expects an object. */
static bool item(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    if (*tool_held(p) != '{') {
        return no_call(p);
    }
    json_call_reset(&p->call, true, false);
    p->call.only_known = true;
    p->state = CALL;
    return true;
}

/* An object whose name is not that of a tool in the request is an ordinary answer. */
static bool in_call(struct tool_parse *p)
{
    const enum json_call_result r = json_call_step(&p->call, p);
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
    const bool lists = form_of(p)->lists;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (lists && c == ']') {
        p->scan++;
        tool_commit(p);
        p->state = LISTED;
        return true;
    }
    if (c == ',' || (c == ';' && !lists)) {
        p->scan++;
        tool_skip_space(p);
        if (tool_n_held(p) == 0) {
            p->scan = p->at;
            return false;
        }
    }
    p->state = *tool_held(p) == '{' ? ITEM : TEXT;
    if (p->state == TEXT) {
        p->scan = p->at;
    }
    return true;
}

/* After a list: drops the marker that closes it. */
static bool listed(struct tool_parse *p, bool final)
{
    enum tool_match m = MATCH_NO;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    for (const char *const *close = form_of(p)->closes; m == MATCH_NO && *close; close++) {
        m = tool_match(p, *close, final);
        if (m == MATCH_YES) {
            p->scan += strlen(*close);
            tool_commit(p);
        }
    }
    if (m == MATCH_MAYBE) {
        return false;
    }
    p->scan = p->at;
    p->state = TEXT;
    return true;
}

/* A marker begins a call only if an object or a list follows; otherwise both are text. */
static bool step(struct tool_parse *p, bool final)
{
    int which;
    switch (p->state) {
    case START: return at_start(p, final);
    case OPENED: return opened(p);
    case ITEM: return item(p);
    case CALL: return in_call(p);
    case BETWEEN: return between(p);
    case LISTED: return listed(p, final);
    default:
        if (!tool_find(p, form_of(p)->opens, true, final, &which)) {
            return false;
        }
        open_marked(p);
        return true;
    }
}

static const char *const llama3_markers[] = {"<|python_tag|>", NULL};
static const struct bare_form llama3_json = {.opens = {"<|python_tag|>"}};
static const struct tool_writing llama3_writing = {
    .call = "{\"name\": \"",
    .name_end = "\", \"parameters\": ",
    .call_end = "}",
    .between = "; ",
    .open_after = "<|python_tag|>",
    .starts = "\\s*\\{", // any object: its keys may be in any order
    .bars = {"<|python_tag|>"},
};
const struct tool_parser tool_parser_llama3_json = {
    .name = "llama3_json",
    .step = step,
    .form = &llama3_json,
    .markers = llama3_markers,
    .writing = &llama3_writing,
};

#define FENCE "```\n["
#define JSON_FENCE "```json\n["
static const char *const xlam_markers[] = {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", NULL};
static const struct bare_form xlam = {
    .opens = {JSON_FENCE, FENCE, "<tool_call>", "[TOOL_CALLS]"},
    .closes = {"```", "</tool_call>"},
    .lists = true,
};
static const struct tool_writing xlam_writing = {
    .open = "[",
    .call = "{\"name\": \"",
    .name_end = "\", \"arguments\": ",
    .call_end = "}",
    .between = ", ",
    .close = "]",
    .open_after = "\n" JSON_FENCE,
    .close_after = "]\n```",
    .starts = "\\s*\\[\\s*\\{",
    .bars = {JSON_FENCE, FENCE, "<tool_call>", "[TOOL_CALLS]"},
};
const struct tool_parser tool_parser_xlam = {
    .name = "xlam",
    .step = step,
    .form = &xlam,
    .markers = xlam_markers,
    .writing = &xlam_writing,
};
