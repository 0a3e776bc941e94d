// SPDX-License-Identifier: Apache-2.0
/* Inkling: messages <|message_model|>NAME<|content_invoke_tool_json|>{"name": ..., "args": {...}}
 * <|end_message|>, where the name before the object may be missing. The prompt ends with the first
 * <|message_model|>. Other messages have <|content_text|> instead, and are content. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { HEAD, NAME, TEXT, CALL, AFTER };

static const char message[] = "<|message_model|>", call_open[] = "<|content_invoke_tool_json|>";
static const char text_open[] = "<|content_text|>", end[] = "<|end_message|>";

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static bool begin_call(struct tool_parse *p)
{
    json_call_reset(&p->call, false, false);
    p->state = CALL;
    return true;
}

/* What precedes was no head of a call. */
static bool give_up(struct tool_parse *p)
{
    tool_give_up(p);
    p->state = TEXT;
    return true;
}

/* At the start of a message: a call, with or without a name, or text. */
static bool head(struct tool_parse *p, bool final)
{
    if (is_name(*tool_held(p))) {
        p->state = NAME;
        return true;
    }
    enum tool_match m = tool_match(p, call_open, final);
    if (m == MATCH_YES) {
        p->scan += sizeof call_open - 1;
        return begin_call(p);
    }
    if (m == MATCH_NO) {
        m = tool_match(p, text_open, final);
    }
    if (m == MATCH_YES) {
        p->scan += sizeof text_open - 1;
        tool_commit(p);
    }
    return m != MATCH_MAYBE && give_up(p);
}

/* Within or after the name before a call. */
static bool name(struct tool_parse *p, bool final)
{
    while (tool_n_held(p) > 0 && is_name(*tool_held(p))) {
        p->scan++;
    }
    const enum tool_match m = tool_match(p, call_open, final);
    if (m == MATCH_YES) {
        p->scan += sizeof call_open - 1;
        return begin_call(p);
    }
    return m != MATCH_MAYBE && give_up(p);
}

static bool text(struct tool_parse *p, bool final)
{
    static const char *const words[] = {call_open, message, end, NULL};
    int which;
    if (!tool_find(p, words, true, final, &which)) {
        return false;
    }
    if (which == 0) {
        return begin_call(p);
    }
    if (which == 1) {
        p->state = HEAD;
    } else {
        tool_commit(p);
    }
    return true;
}

static bool call(struct tool_parse *p)
{
    const enum json_call_result r = json_call_step(&p->call, p);
    if (r == CALL_BAD) {
        json_call_drop(p);
    }
    if (r != CALL_MORE) {
        p->state = r == CALL_DONE ? AFTER : TEXT;
    }
    return r != CALL_MORE;
}

static bool after(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    enum tool_match m = tool_match(p, end, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    p->scan = m == MATCH_YES ? p->scan + sizeof end - 1 : p->at;
    tool_commit(p);
    p->state = TEXT;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    switch (p->state) {
    case HEAD: return tool_n_held(p) > 0 && head(p, final);
    case NAME: return name(p, final);
    case TEXT: return text(p, final);
    case CALL: return call(p);
    default: return after(p, final);
    }
}

static const char *const markers[] = {message, call_open, text_open, end, NULL};
static const char *const ends_reasoning[] = {call_open, NULL};
static const struct tool_writing writing = {
    .head = "",
    .call = "<|content_invoke_tool_json|>{\"name\":\"",
    .name_end = "\",\"args\":",
    .call_end = "}<|end_message|>",
    .between = "<|message_model|>",
    .starts = "[A-Za-z0-9_.-]*<\\|",
    .bars = {call_open, message, end},
};
const struct tool_parser tool_parser_inkling = {
    .name = "inkling",
    .step = step,
    .markers = markers,
    .ends_reasoning = ends_reasoning,
    .writing = &writing,
};
