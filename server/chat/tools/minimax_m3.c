// SPDX-License-Identifier: Apache-2.0
/* MiniMax-M3: nested elements, each tag preceded by a marker:
 *     <tool_call><invoke name="NAME"><KEY>VALUE</KEY>...</invoke></tool_call>
 * A value is bare text, or elements: <item>s form a list, others an object. A parameter is reported
 * when it is complete. */
#include "server/chat/tools/parser.h"

#include <string.h>

enum state { TEXT, OPENED, NAME, BODY, ELEMENT, AFTER };

enum { MAX_DEPTH = 64, VALUE_MAX_BYTES = 64 << 20 };

#define MARK "]<]minimax[>["
static const char mark[] = MARK;
static const char open[] = MARK "<tool_call>", close[] = MARK "</tool_call>";
static const char call_open[] = MARK "<invoke name=\"", call_close[] = MARK "</invoke>";
static const size_t n_mark = sizeof mark - 1;

/* ---- one element as JSON ---- */

/* Converts the text of a complete parameter to JSON. */
struct reader {
    const char *s, *end;
    struct buf *out;
    const struct json *root; // root of the tool's schema, to which references are relative
};

static bool at_tag(const struct reader *r, const char *tag)
{
    size_t n = strlen(tag), left = (size_t)(r->end - r->s);
    return left >= n_mark + n && memcmp(r->s, mark, n_mark) == 0 &&
           memcmp(r->s + n_mark, tag, n) == 0;
}

/* Reads the name in a tag that starts with `open_tag`, and moves past the tag. */
static bool tag_name(struct reader *r, const char *open_tag, const char **name, size_t *n)
{
    if (!at_tag(r, open_tag)) {
        return false;
    }
    *name = r->s + n_mark + strlen(open_tag);
    const char *last = memchr(*name, '>', (size_t)(r->end - *name));
    if (!last || last == *name) {
        return false;
    }
    *n = (size_t)(last - *name);
    r->s = last + 1;
    return true;
}

/* The subschema for the key, in the schema or one of its alternatives. */
static const struct json *find_in(const struct json *root, const struct json *schema,
                                  const char *key, int depth)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    schema = tool_resolve(root, schema);
    const struct json *found = json_get(schema, key);
    for (size_t i = 0; !found && i < 3 && depth < 8; i++) {
        const struct json *one = json_first(json_get(schema, lists[i]));
        for (; !found && one; one = json_next(one)) {
            found = find_in(root, one, key, depth + 1);
        }
    }
    return found;
}

static const struct json *property(const struct json *root, const struct json *schema,
                                   const char *name, size_t n)
{
    const struct json *p = json_first(find_in(root, schema, "properties", 0));
    while (p && (strlen(json_key(p)) != n || memcmp(json_key(p), name, n) != 0)) {
        p = json_next(p);
    }
    return p;
}

static bool element(struct reader *r, const struct json *schema, int depth);

/* Converts elements up to the closing tag of their parent. */
static bool elements(struct reader *r, const struct json *schema, int depth)
{
    struct reader first = *r;
    const char *name;
    size_t n;
    bool list = tag_name(&first, "<", &name, &n) && n == 4 && memcmp(name, "item", 4) == 0 &&
                !property(r->root, schema, name, n);
    if (list) {
        buf_putc(r->out, '[');
    } else {
        buf_putc(r->out, '{');
    }
    for (int i = 0; !at_tag(r, "</"); i++) {
        struct reader tag = *r;
        if (!tag_name(&tag, "<", &name, &n)) {
            return false;
        }
        if (i) {
            buf_puts(r->out, ", ");
        }
        if (!list) {
            buf_put_json(r->out, name, n);
            buf_puts(r->out, ": ");
        }
        const struct json *its;
        if (list) {
            its = find_in(r->root, schema, "items", 0);
        } else {
            its = property(r->root, schema, name, n);
        }
        if (!element(r, its, depth + 1)) {
            return false;
        }
        while (r->s < r->end && strchr(" \n\t\r", *r->s)) {
            r->s++;
        }
    }
    if (list) {
        buf_putc(r->out, ']');
    } else {
        buf_putc(r->out, '}');
    }
    return true;
}

/* Converts one element: text or nested elements, up to the closing tag of the same name. */
static bool element(struct reader *r, const struct json *schema, int depth)
{
    const char *name, *end_name;
    size_t n, n_end;
    if (depth > MAX_DEPTH || !tag_name(r, "<", &name, &n)) {
        return false;
    }
    const char *text = r->s, *tag = memmem(text, (size_t)(r->end - text), mark, n_mark);
    if (!tag) {
        return false;
    }
    r->s = tag;
    if (at_tag(r, "</")) {
        tool_put_value(r->root, schema, text, (size_t)(tag - text), r->out);
    } else if (!elements(r, schema, depth)) {
        return false;
    }
    return tag_name(r, "</", &end_name, &n_end) && n_end == n && memcmp(name, end_name, n) == 0;
}

/* Reports the parameter [at, scan). */
static bool report(struct tool_parse *p)
{
    struct buf json;
    struct reader r = {p->held.data + p->at, p->held.data + p->scan, &json, tool_root(p)};
    struct reader tag = r;
    const char *name;
    size_t n;
    buf_init(&json, VALUE_MAX_BYTES);
    buf_clear(&p->id);
    bool good = tag_name(&tag, "<", &name, &n);
    if (good) {
        buf_put(&p->id, name, n);
        good = !p->id.failed && element(&r, tool_schema(p), 0);
    }
    if (good) {
        tool_parameter(p, json.data, json.n_bytes, TOOL_VALUE_JSON);
        tool_commit(p);
    }
    buf_deinit(&json);
    p->state = BODY;
    return good || tool_abandon_parameters(p, TEXT);
}

/* ---- the call ---- */

/* Reads a name. It is followed by two characters, and complete when both have arrived. */
static bool name(struct tool_parse *p, bool final)
{
    for (; tool_n_held(p) > 0; p->scan++) {
        char c = *tool_held(p);
        if (c == '"' && p->name.n_bytes > 0) {
            enum tool_match m = tool_match(p, "\">", final);
            if (m == MATCH_MAYBE) {
                return false;
            }
            if (m == MATCH_NO) {
                return tool_abandon_parameters(p, TEXT);
            }
            p->scan += 2;
            tool_commit(p);
            tool_begin(p, p->name.data, "");
            p->state = BODY;
            return true;
        }
        if ((c >= '\0' && c < ' ') || c == '"' || c == '<' || p->name.failed) {
            return tool_abandon_parameters(p, TEXT);
        }
        buf_putc(&p->name, c);
    }
    return false;
}

/* In a call: expects a parameter or the end of the call. Any other text ends the call early. */
static bool body(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    tool_commit(p);
    enum tool_match end = tool_match(p, call_close, final), tag = tool_match(p, MARK "<", final);
    if (end == MATCH_YES) {
        p->scan += sizeof call_close - 1;
        tool_commit(p);
        tool_end_parameters(p);
        p->state = AFTER;
        return true;
    }
    if (end == MATCH_MAYBE || tag == MATCH_MAYBE) {
        return false;
    }
    p->depth = 0;
    p->state = ELEMENT;
    return tag == MATCH_YES || tool_abandon_parameters(p, TEXT);
}

/* Finds the tag that closes the element starting at `at`, or the first one that is none. */
static bool find_element_end(struct tool_parse *p)
{
    while (tool_n_held(p) > 0) {
        const char *s = tool_held(p), *tag = memmem(s, tool_n_held(p), mark, n_mark);
        if (!tag) {
            if (tool_n_held(p) >= n_mark) {
                p->scan += tool_n_held(p) - (n_mark - 1);
            }
            return false;
        }
        const char *end = p->held.data + p->held.n_bytes;
        const char *last = memchr(tag + n_mark, '>', (size_t)(end - tag) - n_mark);
        p->scan = (size_t)(tag - p->held.data);
        if (!last) {
            return false;
        }
        bool is_tag = tag[n_mark] == '<', closes = is_tag && tag[n_mark + 1] == '/';
        p->scan = (size_t)(last + 1 - p->held.data);
        p->depth += closes ? -1 : 1;
        if (!is_tag || p->depth <= 0) {
            return true;
        }
    }
    return false;
}

/* After a call: expects another one, the closing marker, or content. */
static bool after(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match next = tool_match(p, call_open, final), end = tool_match(p, close, final);
    if (next == MATCH_YES) {
        p->state = OPENED;
        return true;
    }
    if (next == MATCH_MAYBE || end == MATCH_MAYBE) {
        return false;
    }
    p->scan = end == MATCH_YES ? p->scan + sizeof close - 1 : p->at;
    tool_commit(p);
    p->state = TEXT;
    return true;
}

static bool opened(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, call_open, final);
    if (m != MATCH_YES) {
        return m == MATCH_NO && tool_abandon_parameters(p, TEXT);
    }
    p->scan += sizeof call_open - 1;
    buf_clear(&p->name);
    p->state = NAME;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {open, NULL};
    int which;
    bool more = false;
    switch (p->state) {
    case TEXT:
        if (tool_find(p, words, true, final, &which)) {
            p->state = OPENED;
            return true;
        }
        return false;
    case OPENED: more = opened(p, final); break;
    case NAME: more = name(p, final); break;
    case BODY: more = body(p, final); break;
    case ELEMENT: more = find_element_end(p) && report(p); break;
    default: return after(p, final);
    }
    return more || (final && tool_cut_parameters(p, TEXT));
}

static const char *const markers[] = {mark, NULL};
static const char *const ends_reasoning[] = {open, NULL};
static const struct tool_writing writing = {
    .open = MARK "<tool_call>\n",
    .call = MARK "<invoke name=\"",
    .name_end = "\">",
    .call_end = MARK "</invoke>\n",
    .style = "minimax_m3",
    .close = MARK "</tool_call>",
    .trigger = MARK "<tool_call>",
    .by_schema = true,
};
const struct tool_parser tool_parser_minimax_m3 = {
    .name = "minimax_m3",
    .step = step,
    .markers = markers,
    .ends_reasoning = ends_reasoning,
    .writing = &writing,
};
