// SPDX-License-Identifier: Apache-2.0
/* Mistral: [TOOL_CALLS] followed by an array of objects (up to Nemo), or once per call by
 * name[ARGS]{...} or name[CALL_ID]id[ARGS]{...} (later models). */
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, HEAD, NAME, ID, ARGUMENTS, ARRAY, OBJECT };

/* The character after the marker tells the generation: '[' or '{' for JSON, a letter for a
 * name. */
static bool head(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == '[' || c == '{') {
        p->scan += c == '[';
        json_call_reset(&p->call, false, true);
        p->state = c == '[' ? ARRAY : OBJECT;
        return true;
    }
    buf_clear(&p->name);
    buf_clear(&p->id);
    p->state = NAME;
    return true;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == '/';
}

/* In the formats that begin with a name, arguments are streamed. */
static bool begin_arguments(struct tool_parse *p)
{
    tool_begin(p, p->name.data, or_empty(p->id.data));
    tool_commit(p);
    tool_object_begin(p);
    p->state = ARGUMENTS;
    return true;
}

/* Reads a name up to [ARGS], [CALL_ID] or '{', or an id up to [ARGS]. */
static bool word(struct tool_parse *p, bool final)
{
    static const char args[] = "[ARGS]", call_id[] = "[CALL_ID]";
    struct buf *into = p->state == NAME ? &p->name : &p->id;
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        if (is_name(c)) {
            buf_putc(into, c);
            p->scan++;
            if (into->failed) {
                return tool_abandon(p, TEXT);
            }
            continue;
        }
        if (into->n_bytes == 0) {
            return tool_abandon(p, TEXT);
        }
        if (c == '{') {
            return begin_arguments(p);
        }
        enum tool_match a = tool_match(p, args, final);
        enum tool_match i = p->state == NAME ? tool_match(p, call_id, final) : MATCH_NO;
        if (a == MATCH_YES) {
            p->scan += sizeof args - 1;
            return begin_arguments(p);
        }
        if (i == MATCH_YES) {
            p->scan += sizeof call_id - 1;
            p->state = ID;
            return true;
        }
        if (a == MATCH_MAYBE || i == MATCH_MAYBE) {
            return false;
        }
        return tool_abandon(p, TEXT);
    }
    return false;
}

/* The call ends with the object; the next marker begins another call. */
static bool arguments(struct tool_parse *p)
{
    if (!tool_object(p)) {
        return false;
    }
    tool_end(p);
    p->state = TEXT;
    return true;
}

/* Between the objects of a list: expects a comma or the end. */
static bool array(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == '{') {
        json_call_reset(&p->call, false, true);
        p->state = OBJECT;
        return true;
    }
    if (c != ',' && c != ']') {
        return tool_abandon(p, TEXT);
    }
    p->scan++;
    if (c == ']') {
        tool_commit(p);
        p->state = TEXT;
    }
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {"[TOOL_CALLS]", NULL};
    enum json_call_result r;
    int which;
    switch (p->state) {
    case TEXT:
        if (!tool_find(p, words, true, final, &which)) {
            return false;
        }
        p->state = HEAD;
        return true;
    case HEAD: return head(p);
    case NAME:
    case ID: return word(p, final);
    case ARGUMENTS: return arguments(p);
    case ARRAY: return array(p);
    default:
        r = json_call_step(&p->call, p);
        if (r == CALL_DONE) {
            tool_commit(p);
            p->state = ARRAY;
        }
        if (r == CALL_BAD) {
            return tool_abandon(p, TEXT);
        }
        return r == CALL_DONE;
    }
}

static const char *const markers[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", NULL};
static const struct tool_writing list = {
    .open = "[TOOL_CALLS][",
    .call = "{\"name\": \"",
    .name_end = "\", \"arguments\": ",
    .call_end = "}",
    .between = ", ",
    .close = "]",
    .trigger = "[TOOL_CALLS]",
};
static const struct tool_writing writing = {
    .call = "[TOOL_CALLS]",
    .name_end = "[ARGS]",
    .trigger = "[TOOL_CALLS]",
    .needs = "[ARGS]",
    .otherwise = &list,
};
const struct tool_parser tool_parser_mistral = {
    .name = "mistral",
    .step = step,
    .markers = markers,
    .writing = &writing,
};
