// SPDX-License-Identifier: Apache-2.0
/* Shared by the parsers: inspecting held text, deciding whether it is content, and reporting calls.
 * Independent of any parser. */
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <string.h>

const char *tool_held(const struct tool_parse *p)
{
    return p->held.data ? p->held.data + p->scan : "";
}

size_t tool_n_held(const struct tool_parse *p)
{
    return p->held.n_bytes - p->scan;
}

/* Compares the word with held text. MAYBE: the text is a beginning of the word, and more may
 * come. */
enum tool_match tool_match(const struct tool_parse *p, const char *word, bool final)
{
    size_t n = strlen(word), held = tool_n_held(p);
    if (held >= n) {
        if (memcmp(tool_held(p), word, n) == 0) {
            return MATCH_YES;
        }
        return MATCH_NO;
    }
    if (!final && memcmp(tool_held(p), word, held) == 0) {
        return MATCH_MAYBE;
    }
    return MATCH_NO;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

void tool_skip_space(struct tool_parse *p)
{
    while (p->scan < p->held.n_bytes && is_space(p->held.data[p->scan])) {
        p->scan++;
    }
}

void tool_commit(struct tool_parse *p)
{
    p->at = p->scan;
    p->n_seen = 0;
}

void tool_give_up(struct tool_parse *p)
{
    if (p->scan > p->at && !p->drops) {
        p->sink.on_text(p->sink.arg, p->held.data + p->at, p->scan - p->at);
    }
    tool_commit(p);
}

/* Reports text before `end` as content. White space after a call is held back, since it is dropped
 * if another call follows. */
void tool_report(struct tool_parse *p, size_t end)
{
    if (p->n_calls > 0) {
        size_t i = p->at + p->n_seen;
        while (i < end && is_space(p->held.data[i])) {
            i++;
        }
        if (i >= end) {
            return;
        }
        p->n_calls = 0;
    }
    p->scan = end;
    tool_give_up(p);
}

/* Finds the first of the words in held text; *which is its index. trim: white space before a word
 * is not content. False: no word yet; all text that cannot be part of a word was reported. */
bool tool_find(struct tool_parse *p, const char *const *words, bool trim, bool final, int *which)
{
    const char *s = or_empty(p->held.data);
    size_t n = p->held.n_bytes, i = p->at + p->n_seen;
    size_t end = trim ? p->at : i; // end of the text that is certainly content
    for (; i < n; i++) {
        bool maybe = false;
        for (int w = 0; words[w]; w++) {
            size_t len = strlen(words[w]), left = n - i;
            if (memcmp(s + i, words[w], lesser(len, left)) != 0) {
                continue;
            }
            if (left >= len) {
                tool_report(p, end);
                p->scan = i + len; // white space before the word is content only if the word is
                p->n_seen = 0;
                *which = w;
                return true;
            }
            maybe = true;
        }
        if (maybe && !final) {
            break;
        }
        if (!trim || !is_space(s[i])) {
            end = i + 1;
        }
    }
    tool_report(p, final ? n : end);
    p->scan = p->at;
    p->n_seen = i - p->at;
    return false;
}

void tool_begin(struct tool_parse *p, const char *name, const char *id)
{
    p->sink.on_call(p->sink.arg, name, id);
    p->in_call = true;
    p->n_calls++;
    p->n_parameters = 0;
}

void tool_arguments(struct tool_parse *p, const char *text, size_t n_bytes)
{
    if (n_bytes > 0) {
        p->sink.on_arguments(p->sink.arg, text, n_bytes);
        p->n_parameters++;
    }
}

void tool_end(struct tool_parse *p)
{
    if (p->n_parameters == 0 && !p->cut) {
        p->sink.on_arguments(p->sink.arg, "{}", 2);
    }
    p->in_call = false;
}

bool tool_abandon(struct tool_parse *p, int state)
{
    if (p->in_call) {
        tool_end(p);
    } else {
        tool_give_up(p);
    }
    p->state = state;
    return true;
}

/* Follows JSON's nesting by one byte. True when the value that began at depth 0 is complete.
 * Brackets in strings and escaped quotes do not count. */
bool tool_closes(struct tool_parse *p, char c)
{
    if (p->quote) {
        bool ends = !p->escape && c == '"';
        p->escape = !p->escape && c == '\\';
        if (ends) {
            p->quote = 0;
        }
    } else if (c == '"') {
        p->quote = c;
    } else if (c == '{' || c == '[') {
        p->depth++;
    } else if (c == '}' || c == ']') {
        p->depth--;
    }
    return p->depth == 0;
}

void tool_object_begin(struct tool_parse *p)
{
    p->depth = 0;
    p->quote = 0;
    p->escape = false;
}

/* Passes on a JSON object up to its end, as it arrives. True when it is complete, or if no object
 * begins here. */
bool tool_object(struct tool_parse *p)
{
    if (p->depth == 0) {
        tool_skip_space(p);
        tool_commit(p);
        if (tool_n_held(p) == 0) {
            return false;
        }
        if (*tool_held(p) != '{') {
            return true;
        }
    }
    bool over = false;
    while (!over && tool_n_held(p) > 0) {
        over = tool_closes(p, *tool_held(p));
        p->scan++;
    }
    tool_arguments(p, p->held.data + p->at, p->scan - p->at);
    tool_commit(p);
    return over;
}

/* The declaration of a tool in the request, which has the types of its parameters. */
const struct json *tool_function(const struct json *tools, const char *name)
{
    for (const struct json *t = json_first(tools); t; t = json_next(t)) {
        const struct json *function = json_get(t, "function");
        const char *its = json_get_string(function, "name");
        if (its && strcmp(its, name) == 0) {
            return function;
        }
    }
    return NULL;
}
