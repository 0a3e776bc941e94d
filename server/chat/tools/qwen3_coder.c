/* Qwen3-Coder, Qwen 3.5: <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>...
 * </function>\n</tool_call>; the outer tags may be missing. Values are bare text: the tool's schema
 * says whether it is a string or JSON. */
#include "server/chat/tools/parser.h"

#include <string.h>
#include <strings.h>

enum state { TEXT, OPENED, NAME, BODY, KEY, VALUE, AFTER };

static bool give_up(struct tool_parse *p)
{
    if (p->in_call) {
        if (p->n_parameters > 0) {
            tool_arguments(p, "}", 1);
        }
        tool_end(p);
    } else {
        tool_give_up(p);
    }
    p->state = TEXT;
    return true;
}

/* A name up to '>', without control characters: a NUL would cut it. */
static bool word(struct tool_parse *p, struct buf *into)
{
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        if ((c >= '\0' && c < ' ') || c == '<' || into->failed || (c == '>' && into->n_bytes == 0)) {
            return give_up(p);
        }
        p->scan++;
        if (c == '>') {
            tool_commit(p);
            if (p->state == NAME) {
                tool_begin(p, into->data, "");
            }
            p->state = p->state == NAME ? BODY : VALUE;
            return true;
        }
        buf_putc(into, c);
    }
    return false;
}

/* Whether the schema lets the value be of this type; *known if it says anything at all. */
static bool allows(const struct json *schema, const char *type, int depth, bool *known)
{
    const struct json *t = json_get(schema, "type");
    if (json_string(t)) {
        *known = true;
        return strcmp(json_string(t), type) == 0;
    }
    for (const struct json *one = json_first(t); one; one = json_next(one)) {
        *known = true;
        if (json_string(one) && strcmp(json_string(one), type) == 0) {
            return true;
        }
    }
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < 3 && depth < 8; i++) {
        const struct json *list = json_get(schema, lists[i]);
        for (const struct json *one = json_first(list); one; one = json_next(one)) {
            if (allows(one, type, depth + 1, known)) {
                return true;
            }
        }
    }
    const struct json *first = json_first(json_get(schema, "enum"));
    if (!t && first) {
        *known = true;
        return strcmp(json_type_name(json_type(first)), type) == 0;
    }
    return false;
}

/* The value as JSON text. */
static void put_value(struct tool_parse *p, const char *s, size_t n, struct buf *out)
{
    const struct json *function = tool_function(p->tools, p->name.data);
    const struct json *properties = json_get(json_get(function, "parameters"), "properties");
    const struct json *schema = json_get(properties, p->id.data);
    bool known = false;
    bool text = allows(schema, "string", 0, &known);
    bool null = n == 4 && strncasecmp(s, "null", 4) == 0 && allows(schema, "null", 0, &known);
    if (null) {
        buf_puts(out, "null");
        return;
    }
    if (!text && known) {
        struct json *root = NULL;
        if (json_parse(s, n, NULL, &root, NULL) == OK) {
            json_free(root);
            buf_put(out, s, n);
            return;
        }
        if (allows(schema, "boolean", 0, &known) &&
            ((n == 4 && strncasecmp(s, "true", 4) == 0) ||
             (n == 5 && strncasecmp(s, "false", 5) == 0))) {
            buf_puts(out, n == 4 ? "true" : "false");
            return;
        }
    }
    buf_put_json(out, s, n);
}

static bool value(struct tool_parse *p)
{
    static const char close[] = "</parameter>";
    const size_t n_close = sizeof close - 1;
    const char *s = tool_held(p);
    size_t n = tool_n_held(p);
    const char *found = memmem(s, n, close, n_close);
    if (!found) {
        p->scan += n > n_close ? n - n_close : 0; // looked at; `at` stays
        return false;
    }
    const char *text = p->held.data + p->at;
    size_t n_text = (size_t)(found - text);
    if (n_text > 0 && text[0] == '\n') {
        text++;
        n_text--;
    }
    if (n_text > 0 && text[n_text - 1] == '\n') {
        n_text--;
    }
    struct buf json;
    buf_init(&json, 64 << 20);
    buf_puts(&json, p->n_parameters == 0 ? "{" : ", ");
    buf_put_json(&json, p->id.data, p->id.n_bytes);
    buf_puts(&json, ": ");
    put_value(p, text, n_text, &json);
    tool_arguments(p, json.data, json.n_bytes);
    buf_deinit(&json);
    p->scan += (size_t)(found - s) + n_close;
    tool_commit(p);
    p->state = BODY;
    return true;
}

static bool body(struct tool_parse *p, bool final)
{
    static const char parameter[] = "<parameter=", end[] = "</function>";
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, parameter, final), e = tool_match(p, end, final);
    if (m == MATCH_YES) {
        p->scan += sizeof parameter - 1;
        buf_clear(&p->id);
        p->state = KEY;
        return true;
    }
    if (e == MATCH_YES) {
        p->scan += sizeof end - 1;
        tool_commit(p);
        give_up(p);
        p->state = AFTER;
        return true;
    }
    return m == MATCH_MAYBE || e == MATCH_MAYBE ? false : give_up(p);
}

static bool after(struct tool_parse *p, bool final)
{
    static const char close[] = "</tool_call>", open[] = "<function=";
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match c = tool_match(p, close, final), o = tool_match(p, open, final);
    if (c == MATCH_MAYBE || o == MATCH_MAYBE) {
        return false;
    }
    p->scan += c == MATCH_YES ? sizeof close - 1 : 0;
    tool_commit(p);
    p->state = TEXT;
    return true;
}

static bool opened(struct tool_parse *p, bool final)
{
    static const char open[] = "<function=";
    tool_skip_space(p);
    enum tool_match m = tool_match(p, open, final);
    if (m == MATCH_YES) {
        p->scan += sizeof open - 1;
        buf_clear(&p->name);
        p->state = NAME;
        return true;
    }
    return m == MATCH_MAYBE || tool_n_held(p) == 0 ? false : give_up(p);
}

/* Ends a call that was cut off: what parsed stays. */
static bool cut(struct tool_parse *p)
{
    p->scan = p->held.n_bytes;
    if (p->in_call) {
        tool_commit(p);
    }
    return give_up(p);
}

static bool step(struct tool_parse *p, bool final)
{
    static const char *const words[] = {"<tool_call>", "<function=", NULL};
    int which;
    bool more = false;
    switch (p->state) {
    case TEXT:
        if (tool_find(p, words, false, final, &which)) {
            buf_clear(&p->name);
            p->state = which == 0 ? OPENED : NAME;
            return true;
        }
        return false;
    case OPENED: more = opened(p, final); break;
    case NAME: more = word(p, &p->name); break;
    case BODY: more = body(p, final); break;
    case KEY: more = word(p, &p->id); break;
    case VALUE: more = value(p); break;
    default: return after(p, final);
    }
    return more || (final && cut(p));
}

static const char *const markers[] = {"<tool_call>", "</tool_call>", NULL};
const struct tool_parser tool_parser_qwen3_coder = {
    .name = "qwen3_coder",
    .step = step,
    .markers = markers,
};
