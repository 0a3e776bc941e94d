// SPDX-License-Identifier: Apache-2.0
/* Calls in tags that carry names: <function=NAME><parameter=KEY>VALUE</parameter>...</function>,
 * each, or all of them, within an outer pair of tags that may be missing. Values are bare text.
 */
#include "server/chat/tools/xml.h"

#include <string.h>

enum state { TEXT, RECIPIENT, OPENED, NAME, NAME_TAIL, BODY, KEY, VALUE, AFTER };

static const struct xml_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

/* The name of a call or parameter is complete: n_end bytes that end it are at `scan`. */
static void take_name(struct tool_parse *p, size_t n_end, enum tool_value type)
{
    p->scan += n_end;
    tool_commit(p);
    if (p->state == NAME) {
        tool_begin(p, p->name.data, "");
        p->state = form_of(p)->name_tail ? NAME_TAIL : BODY;
    } else {
        p->value_type = type;
        p->state = VALUE;
    }
}

/* Reads a name up to the text that ends it. Control characters are rejected, because a NUL would
 * truncate it. */
static bool name(struct tool_parse *p, struct buf *into, const struct key_end *ends, bool final)
{
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        if (c == ends[0].text[0]) {
            enum tool_match m = MATCH_NO;
            for (const struct key_end *e = ends; into->n_bytes > 0 && e->text; e++) {
                enum tool_match one = tool_match(p, e->text, final);
                if (one == MATCH_YES) {
                    take_name(p, strlen(e->text), e->type);
                    return true;
                }
                if (one == MATCH_MAYBE) {
                    m = one;
                }
            }
            if (m == MATCH_MAYBE) {
                return false;
            }
            return tool_abandon_parameters(p, TEXT);
        }
        if ((c >= '\0' && c < ' ') || c == '<' || into->failed) {
            return tool_abandon_parameters(p, TEXT);
        }
        buf_putc(into, c);
        p->scan++;
    }
    return false;
}

/* Skips attributes after the name in a call's tag. */
static bool name_tail(struct tool_parse *p)
{
    const char *tail = form_of(p)->name_tail;
    const char *found = memmem(tool_held(p), tool_n_held(p), tail, strlen(tail));
    if (!found) {
        return false;
    }
    p->scan = (size_t)(found - p->held.data) + strlen(tail);
    tool_commit(p);
    p->state = BODY;
    return true;
}

static bool starts(const char *s, size_t n, const char *word)
{
    size_t n_word = strlen(word);
    return n >= n_word && memcmp(s, word, n_word) == 0;
}

static const char cdata[] = "<![CDATA[";

/* The text that ends the value at `at`. */
static const char *value_end(const struct tool_parse *p)
{
    const struct xml_form *f = form_of(p);
    bool quoted = f->cdata_end && starts(p->held.data + p->at, p->held.n_bytes - p->at, cdata);
    return quoted ? f->cdata_end : f->value_end;
}

/* Reports the text between the tags of a parameter. */
static void report_value(struct tool_parse *p, const char *text, size_t n)
{
    if (form_of(p)->lines && starts(text, n, "\n")) {
        text++;
        n--;
    }
    if (form_of(p)->lines && n > 0 && text[n - 1] == '\n') {
        n--;
    }
    if (form_of(p)->cdata_end && starts(text, n, cdata)) {
        text += sizeof cdata - 1;
        n -= sizeof cdata - 1;
    }
    tool_parameter(p, text, n, p->value_type);
}

/* Reports a value when it is complete, because its type may depend on the whole text. Text that was
 * searched once is not searched again. */
static bool value(struct tool_parse *p)
{
    const char *end = value_end(p);
    size_t n_end = strlen(end), n = tool_n_held(p);
    const char *found = memmem(tool_held(p), n, end, n_end);
    if (!found) {
        if (n > n_end) {
            p->scan += n - n_end; // this text was searched; `at` stays
        }
        return false;
    }
    const char *text = p->held.data + p->at;
    report_value(p, text, (size_t)(found - text));
    p->scan = (size_t)(found - p->held.data) + n_end;
    tool_commit(p);
    p->state = BODY;
    return true;
}

/* Between parameters: expects the next one, or the call's end. */
static bool body(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match key = tool_match(p, f->key, final), end = tool_match(p, f->call_end, final);
    if (key == MATCH_YES) {
        p->scan += strlen(f->key);
        buf_clear(&p->id);
        p->state = KEY;
        return true;
    }
    if (end == MATCH_YES) {
        p->scan += strlen(f->call_end);
        tool_commit(p);
        tool_end_parameters(p);
        p->state = AFTER;
        return true;
    }
    if (key == MATCH_MAYBE || end == MATCH_MAYBE) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

/* After a call: drops the tags that close the outer pairs. */
static bool after(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, f->call, final);
    bool closed = false;
    for (const char *const *close = f->closes; m == MATCH_NO && *close; close++) {
        m = tool_match(p, *close, final);
        closed = m == MATCH_YES;
        if (closed) {
            p->scan += strlen(*close);
        }
    }
    if (m == MATCH_MAYBE) {
        return false;
    }
    tool_commit(p);
    p->state = closed ? AFTER : TEXT;
    return true;
}

/* After the tag that opens the outer pair, or another word before a call. */
static bool opened(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    tool_skip_space(p);
    enum tool_match m = tool_match(p, f->call, final);
    if (m == MATCH_YES) {
        p->scan += strlen(f->call);
        buf_clear(&p->name);
        p->state = NAME;
        return true;
    }
    for (const char *const *inner = f->inner; m == MATCH_NO && *inner; inner++) {
        m = tool_match(p, *inner, final);
        if (m == MATCH_YES) {
            p->scan += strlen(*inner);
            return true;
        }
    }
    if (m == MATCH_MAYBE || tool_n_held(p) == 0) {
        return false;
    }
    return tool_abandon_parameters(p, TEXT);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* The name of a tool in the head of a message. */
static bool recipient(struct tool_parse *p, bool final)
{
    while (tool_n_held(p) > 0 && is_name(*tool_held(p))) {
        p->scan++;
    }
    enum tool_match m = tool_match(p, form_of(p)->recipient_end, final);
    if (tool_n_held(p) == 0 || m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_NO) {
        return tool_abandon_parameters(p, TEXT);
    }
    p->scan += strlen(form_of(p)->recipient_end);
    p->state = OPENED;
    return true;
}

/* Outside of calls: text is reported as soon as it can no longer be the beginning of a call. */
static bool text(struct tool_parse *p, bool final)
{
    const struct xml_form *f = form_of(p);
    const char *words[XML_MAX_WORDS + 1] = {f->call};
    int which;
    for (int i = 0; f->opens[i]; i++) {
        words[i + 1] = f->opens[i];
    }
    if (!tool_find(p, words, f->trim, final, &which)) {
        return false;
    }
    buf_clear(&p->name);
    p->state = which == 0 ? NAME : OPENED;
    if (f->recipient_end && p->held.data[p->scan - 1] == '=') {
        p->state = RECIPIENT;
    }
    return true;
}

/* One transition of the state machine; called until it needs more text to continue. */
bool tool_xml_step(struct tool_parse *p, bool final)
{
    const struct key_end name_ends[] = {{form_of(p)->name_end, TOOL_VALUE_BY_SCHEMA}, {NULL, 0}};
    bool more = false;
    switch (p->state) {
    case TEXT: return text(p, final);
    case RECIPIENT: more = recipient(p, final); break;
    case OPENED: more = opened(p, final); break;
    case NAME: more = name(p, &p->name, name_ends, final); break;
    case NAME_TAIL: more = name_tail(p); break;
    case BODY: more = body(p, final); break;
    case KEY: more = name(p, &p->id, form_of(p)->key_ends, final); break;
    case VALUE: more = value(p); break;
    default: return after(p, final);
    }
    return more || (final && tool_cut_parameters(p, TEXT));
}
