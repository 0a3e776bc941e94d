// SPDX-License-Identifier: Apache-2.0
/* Parses {"name": ..., "arguments": {...}}, which several formats share, byte by byte, so that
 * arguments can be streamed while they are generated. */
#include "server/chat/tools/parser.h"

#include "engine/base/json_scan.h"
#include "engine/base/optional.h"

#include <string.h>

enum state { BEFORE, KEY_OR_END, KEY, IN_KEY, COLON, VALUE, IN_VALUE, AFTER };
enum field { FIELD_OTHER, FIELD_NAME, FIELD_ID, FIELD_ARGUMENTS };
enum value { VALUE_STRING, VALUE_NESTED, VALUE_SCALAR };

enum { ARGUMENTS_MAX_BYTES = 64 << 20 };

/* needs_both: report the call only when its arguments have begun, too. whole: report it only when
 * it is complete. */
void json_call_reset(struct json_call *c, bool needs_both, bool whole)
{
    json_call_deinit(c);
    *c = (struct json_call){.needs_both = needs_both, .whole = whole};
    buf_init(&c->key, TOOL_NAME_MAX_BYTES);
    buf_init(&c->name, TOOL_NAME_MAX_BYTES);
    buf_init(&c->id, TOOL_NAME_MAX_BYTES);
    buf_init(&c->arguments, ARGUMENTS_MAX_BYTES);
}

void json_call_deinit(struct json_call *c)
{
    buf_deinit(&c->key);
    buf_deinit(&c->name);
    buf_deinit(&c->id);
    buf_deinit(&c->arguments);
}

static bool is_space(char b)
{
    return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

/* Converts `raw`, a JSON string with its quotes, to its text. False if it is not one. */
static bool unescape(struct buf *raw)
{
    struct json_scan sc;
    json_scan_init(&sc, or_empty(raw->data), raw->n_bytes, 8);
    if (json_scan_next(&sc) != JSON_TOKEN_STRING) {
        return false;
    }
    struct buf text;
    buf_init(&text, raw->max_bytes);
    json_scan_unescape(&sc, &text);
    buf_deinit(raw);
    *raw = text;
    return !text.failed;
}

static void begin(struct json_call *c, struct tool_parse *p)
{
    tool_begin(p, c->name.data, or_empty(c->id.data));
    c->begun = true;
    tool_arguments(p, c->arguments.data, c->arguments.n_bytes);
    buf_clear(&c->arguments);
}

/* Names are used as C strings. */
static bool is_whole_name(const struct buf *name)
{
    return name->n_bytes > 0 && strlen(name->data) == name->n_bytes;
}

/* Objects {NAME: ARGUMENTS}: the first key is the name. False if it cannot be one. */
static bool take_name(struct json_call *c)
{
    if (c->key.n_bytes + 1 >= c->key.max_bytes) {
        return false;
    }
    buf_putc(&c->name, '"');
    buf_put(&c->name, c->key.data, c->key.n_bytes);
    buf_putc(&c->name, '"');
    c->has_name = unescape(&c->name) && is_whole_name(&c->name);
    return c->has_name;
}

/* The members that the formats use for name, id and arguments; unknown ones are skipped. */
static enum field field_of(const struct json_call *c)
{
    static const struct {
        const char *key;
        enum field field;
    } keys[] = {
        {"name", FIELD_NAME},       {"tool_name", FIELD_NAME},      {"id", FIELD_ID},
        {"tool_call_id", FIELD_ID}, {"arguments", FIELD_ARGUMENTS}, {"parameters", FIELD_ARGUMENTS},
        {"args", FIELD_ARGUMENTS},
    };
    for (size_t i = 0; c->key.data && i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(c->key.data, keys[i].key) == 0) {
            return keys[i].field;
        }
    }
    return FIELD_OTHER;
}

/* Checks that the value suits its member: for example, a name is a string and occurs once. */
static void value_begins(struct json_call *c, char b)
{
    const bool is_name = c->by_key && !c->has_name, named = is_name && take_name(c);
    if (c->by_key) {
        c->field = named ? FIELD_ARGUMENTS : FIELD_OTHER;
    } else {
        c->field = (unsigned char)field_of(c);
    }
    if (b == '"') {
        c->value = VALUE_STRING;
    } else {
        c->value = b == '{' || b == '[' ? VALUE_NESTED : VALUE_SCALAR;
    }
    c->depth = 0;
    c->in_string = c->escape = false;
    c->state = IN_VALUE;
    bool text = c->field == FIELD_NAME || c->field == FIELD_ID;
    c->bad = (is_name && !named) ||
             (c->field == FIELD_NAME && c->value != VALUE_STRING) || // a name must be a string
             (c->field == FIELD_NAME && c->has_name) ||
             (c->field == FIELD_ARGUMENTS && c->has_arguments);
    if (text && c->value != VALUE_STRING) {
        c->field = FIELD_OTHER;
    }
}

/* Once the call was reported, arguments that are an object pass through; everything else is
 * collected. */
static void keep(struct json_call *c, struct tool_parse *p, char b)
{
    if (c->field == FIELD_NAME) {
        buf_putc(&c->name, b);
        c->bad = c->name.failed;
    } else if (c->field == FIELD_ID) {
        buf_putc(&c->id, b);
        c->bad = c->id.failed;
    } else if (c->field == FIELD_ARGUMENTS) {
        if (c->begun && c->value == VALUE_NESTED) {
            tool_arguments(p, &b, 1);
        } else {
            buf_putc(&c->arguments, b);
            c->bad = c->arguments.failed;
        }
    }
}

/* A value is complete. Arguments given as a string contain JSON, which is unescaped. */
static void value_ends(struct json_call *c, struct tool_parse *p)
{
    c->state = AFTER;
    if (c->field == FIELD_NAME) {
        c->bad = !unescape(&c->name) || !is_whole_name(&c->name) ||
                 (c->only_known && !tool_function(p->tools, c->name.data));
        c->has_name = !c->bad;
    } else if (c->field == FIELD_ID) {
        c->bad = !unescape(&c->id);
    } else if (c->field == FIELD_ARGUMENTS) {
        c->has_arguments = true;
        if (c->value == VALUE_STRING) { // arguments given as a string that contains JSON
            c->bad = !unescape(&c->arguments);
        } else if (c->value == VALUE_SCALAR) {
            buf_clear(&c->arguments); // null: no arguments
        }
        if (!c->bad && c->begun && c->value == VALUE_STRING) {
            tool_arguments(p, c->arguments.data, c->arguments.n_bytes);
            buf_clear(&c->arguments);
        }
    }
}

/* True if the byte belongs to the value; false: the value ended before it. */
static bool in_value(struct json_call *c, struct tool_parse *p, char b)
{
    if (c->value == VALUE_SCALAR && (b == ',' || b == '}' || is_space(b))) {
        value_ends(c, p);
        return false;
    }
    keep(c, p, b);
    bool ended = false;
    if (c->in_string) {
        if (c->escape) {
            c->escape = false;
        } else if (b == '\\') {
            c->escape = true;
        } else if (b == '"') {
            c->in_string = false;
            ended = c->value == VALUE_STRING;
        }
    } else if (b == '"') {
        c->in_string = true;
    } else if (b == '{' || b == '[') {
        c->depth++;
    } else if (b == '}' || b == ']') {
        c->depth--;
        ended = c->value == VALUE_NESTED && c->depth == 0;
    }
    if (ended) {
        value_ends(c, p);
    }
    return true;
}

/* Keeps only the beginning of a long key, which suffices to see that it is not a known one. */
static void in_key(struct json_call *c, char b)
{
    if (!c->escape && b == '"') {
        c->state = COLON;
        return;
    }
    c->escape = !c->escape && b == '\\';
    if (c->key.n_bytes + 1 < c->key.max_bytes) { // longer keys are not known ones
        buf_putc(&c->key, b);
    }
}

/* The object is complete. */
static enum json_call_result end_of_object(struct json_call *c, struct tool_parse *p)
{
    if (!c->has_name || (c->needs_both && !c->has_arguments)) {
        return CALL_BAD;
    }
    if (!c->begun) {
        begin(c, p);
    }
    tool_end(p);
    return CALL_DONE;
}

/* Processes one byte of the object. CALL_BAD: it is not a call, and the caller must report the text
 * as content. */
static enum json_call_result take(struct json_call *c, struct tool_parse *p, char b)
{
    if (c->state == IN_KEY) {
        in_key(c, b);
        return CALL_MORE;
    }
    if (c->state == IN_VALUE && in_value(c, p, b)) {
        return c->bad ? CALL_BAD : CALL_MORE;
    }
    if (c->bad) {
        return CALL_BAD;
    }
    if (is_space(b)) {
        return CALL_MORE;
    }
    switch (c->state) {
    case BEFORE: c->state = KEY_OR_END; return b == '{' ? CALL_MORE : CALL_BAD;
    case KEY_OR_END:
    case KEY:
        if (b == '}' && c->state == KEY_OR_END) {
            return end_of_object(c, p);
        }
        buf_clear(&c->key);
        c->escape = false;
        c->state = IN_KEY;
        return b == '"' ? CALL_MORE : CALL_BAD;
    case COLON: c->state = VALUE; return b == ':' ? CALL_MORE : CALL_BAD;
    case VALUE:
        value_begins(c, b);
        if (!c->bad) {
            in_value(c, p, b);
        }
        return c->bad ? CALL_BAD : CALL_MORE;
    default:
        c->state = KEY;
        if (b == '}') {
            return end_of_object(c, p);
        }
        return b == ',' ? CALL_MORE : CALL_BAD;
    }
}

void json_call_drop(struct tool_parse *p)
{
    if (p->in_call) {
        tool_end(p);
    } else {
        tool_give_up(p);
    }
}

/* Consumes held text up to the object's end, reporting the call as soon as the form
 * allows. */
enum json_call_result json_call_step(struct json_call *c, struct tool_parse *p)
{
    while (p->scan < p->held.n_bytes) {
        enum json_call_result r = take(c, p, p->held.data[p->scan]);
        if (r != CALL_BAD) {
            p->scan++;
        }
        bool args = c->has_arguments || (c->state == IN_VALUE && c->field == FIELD_ARGUMENTS &&
                                         c->value == VALUE_NESTED);
        if (r == CALL_MORE && !c->begun && !c->whole && c->has_name && (args || !c->needs_both)) {
            begin(c, p);
        }
        if (c->begun) {
            tool_commit(p);
        }
        if (r != CALL_MORE) {
            return r;
        }
    }
    return CALL_MORE;
}
