// SPDX-License-Identifier: Apache-2.0
/* Python calls in a list: [f(a=1, b="x"), g()], as the whole answer (Llama 3.2, 4), or between
 * <|tool_call_start|> and <|tool_call_end|> after any text (LFM2). OLMo 3 only writes them between
 * tags, one per line and without brackets. Values are Python or JSON literals. A call is reported
 * when it is complete. */
#include "engine/base/optional.h"
#include "server/chat/tools/parser.h"

#include <ctype.h>
#include <string.h>

enum state { START, CALLS, LISTED, NAME, CALL, AFTER, TEXT };

enum { MAX_DEPTH = 64 };

struct pythonic_form {
    const char *opens[3], *closes[3]; // NULL-terminated
    bool lines;                       // calls are one per line, and only between the tags
};

static const struct pythonic_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

static bool is_name(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '.' || c == '-'));
}

static bool give_up(struct tool_parse *p)
{
    tool_give_up(p);
    p->state = TEXT;
    return true;
}

/* ---- literals -------------------------------------------------------------------------------- */

/* Converts the arguments in a call's text to JSON. */
struct reader {
    const char *s, *end;
    struct buf *out;
    int depth;
};

static void skip_space(struct reader *r)
{
    while (r->s < r->end && strchr(" \n\t\r", *r->s)) {
        r->s++;
    }
}

/* Consumes the character if it comes next, after white space. */
static bool take(struct reader *r, char c)
{
    skip_space(r);
    if (r->s < r->end && *r->s == c) {
        r->s++;
        return true;
    }
    return false;
}

/* Reads n hexadecimal digits; -1 if there are fewer. */
static int64_t hex_digits(struct reader *r, int n)
{
    int64_t v = 0;
    for (int i = 0; i < n; i++, r->s++) {
        static const char digits[] = "0123456789abcdef";
        const char *d = NULL;
        if (r->s < r->end && isxdigit((unsigned char)*r->s)) {
            d = strchr(digits, *r->s | 0x20);
        }
        if (!d) {
            return -1;
        }
        v = v * 16 + (int)(d - digits);
    }
    return v;
}

/* Writes a code point as UTF-8; the caller has handled surrogates. */
static void put_utf8(struct buf *out, int cp)
{
    char u[4];
    int n = 0;
    if (cp < 0x80) {
        u[n++] = (char)cp;
    } else if (cp < 0x800) {
        u[n++] = (char)(0xC0 | cp >> 6);
        u[n++] = (char)(0x80 | (cp & 0x3F));
    } else if (cp < 0x10000) {
        u[n++] = (char)(0xE0 | cp >> 12);
        u[n++] = (char)(0x80 | (cp >> 6 & 0x3F));
        u[n++] = (char)(0x80 | (cp & 0x3F));
    } else {
        u[n++] = (char)(0xF0 | cp >> 18);
        u[n++] = (char)(0x80 | (cp >> 12 & 0x3F));
        u[n++] = (char)(0x80 | (cp >> 6 & 0x3F));
        u[n++] = (char)(0x80 | (cp & 0x3F));
    }
    buf_put(out, u, (size_t)n);
}

/* The number of hexadecimal digits that follow the letter of an escape. */
static int n_escape_digits(char c)
{
    switch (c) {
    case 'x': return 2;
    case 'u': return 4;
    case 'U': return 8;
    default: return 0;
    }
}

/* Reads Python's escapes, and JSON's surrogate pairs, which models write as well. */
static bool escape(struct reader *r, struct buf *text)
{
    char c = *r->s++;
    static const char from[] = "nrtbf0'\"\\/av", to[] = "\n\r\t\b\f\0'\"\\/\a\v";
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        buf_putc(text, to[at - from]);
        return true;
    }
    int n = n_escape_digits(c);
    if (n == 0) { // Python keeps unknown escapes
        buf_putc(text, '\\');
        buf_putc(text, c);
        return true;
    }
    int64_t cp = hex_digits(r, n);
    if (cp >= 0xD800 && cp < 0xDC00 && r->end - r->s >= 6 && r->s[0] == '\\' && r->s[1] == 'u') {
        r->s += 2; // a surrogate pair as in JSON
        const int64_t low = hex_digits(r, 4);
        if (low >= 0xDC00 && low < 0xE000) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
        } else {
            cp = -1;
        }
    }
    if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) {
        return false;
    }
    put_utf8(text, (int)cp);
    return true;
}

/* Converts a Python string, in single or double quotes, to a JSON string. */
static bool string(struct reader *r)
{
    char quote = *r->s++;
    struct buf text;
    buf_init(&text, 64 << 20);
    bool good = false;
    while (r->s < r->end) {
        char c = *r->s++;
        if (c == quote) {
            good = true;
            break;
        }
        if (c == '\\') {
            if (r->s == r->end || !escape(r, &text)) {
                break;
            }
        } else {
            buf_putc(&text, c);
        }
    }
    if (good) {
        buf_put_json(r->out, or_empty(text.data), text.n_bytes);
    }
    buf_deinit(&text);
    return good;
}

/* Converts Python's and JSON's words, unless a longer name begins with them. */
static bool word(struct reader *r)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i][0]);
        if ((size_t)(r->end - r->s) >= n && memcmp(r->s, words[i][0], n) == 0) {
            r->s += n;
            buf_puts(r->out, words[i][1]);
            return r->s == r->end || !is_name(*r->s, false);
        }
    }
    return false;
}

/* Python allows "_" between digits. */
static size_t digits(struct reader *r)
{
    const char *start = r->s;
    while (r->s < r->end && ((*r->s >= '0' && *r->s <= '9') || (*r->s == '_' && r->s > start))) {
        if (*r->s != '_') {
            buf_putc(r->out, *r->s);
        }
        r->s++;
    }
    return (size_t)(r->s - start);
}

/* Converts Python's numbers to JSON's, which have no leading zeros and need digits on both sides of
 * the point. */
static bool number(struct reader *r)
{
    if (*r->s == '-' || *r->s == '+') {
        if (*r->s == '-') {
            buf_putc(r->out, '-');
        }
        r->s++;
    }
    while (r->end - r->s > 1 && r->s[0] == '0' &&
           ((r->s[1] >= '0' && r->s[1] <= '9') || r->s[1] == '_')) {
        r->s += r->s[1] == '_' ? 2 : 1; // JSON forbids leading zeros
    }
    size_t n = digits(r);
    if (n == 0) {
        buf_putc(r->out, '0'); // .5
    }
    if (r->s < r->end && *r->s == '.') {
        r->s++;
        buf_putc(r->out, '.');
        size_t fraction = digits(r);
        if (fraction == 0) {
            buf_putc(r->out, '0'); // 5.
        }
        n += fraction;
    }
    if (n > 0 && r->s < r->end && (*r->s == 'e' || *r->s == 'E')) {
        r->s++;
        buf_putc(r->out, 'e');
        if (r->s < r->end && (*r->s == '-' || *r->s == '+')) {
            buf_putc(r->out, *r->s++);
        }
        n = digits(r);
    }
    return n > 0;
}

static bool value(struct reader *r);

/* Converts items up to `close`. `keys`: they are "key": value pairs. */
static bool items(struct reader *r, char close, bool keys)
{
    r->s++;
    if (++r->depth > MAX_DEPTH) {
        return false;
    }
    if (keys) {
        buf_putc(r->out, '{');
    } else {
        buf_putc(r->out, '[');
    }
    for (int i = 0;; i++) {
        if (take(r, close)) {
            break;
        }
        if (i > 0 && !take(r, ',')) {
            return false;
        }
        if (i > 0 && take(r, close)) { // a trailing comma
            break;
        }
        if (i > 0) {
            buf_puts(r->out, ", ");
        }
        if (keys) {
            skip_space(r);
            if (r->s == r->end || (*r->s != '"' && *r->s != '\'') || !string(r) || !take(r, ':')) {
                return false;
            }
            buf_puts(r->out, ": ");
        }
        if (!value(r)) {
            return false;
        }
    }
    r->depth--;
    if (keys) {
        buf_putc(r->out, '}');
    } else {
        buf_putc(r->out, ']');
    }
    return true;
}

/* Converts literals of Python and of JSON, since models mix them. */
static bool value(struct reader *r)
{
    skip_space(r);
    if (r->s == r->end) {
        return false;
    }
    switch (*r->s) {
    case '"':
    case '\'': return string(r);
    case '[': return items(r, ']', false);
    case '(': return items(r, ')', false);
    case '{': return items(r, '}', true);
    default: return is_name(*r->s, true) ? word(r) : number(r);
    }
}

bool tool_literal(const char *s, size_t n, struct buf *out)
{
    struct reader r = {s, s + n, out, 0};
    bool good = value(&r);
    skip_space(&r);
    return good && r.s == r.end && !out->failed;
}

/* Converts name=value pairs to a JSON object. */
static bool keywords(struct reader *r)
{
    buf_putc(r->out, '{');
    for (int i = 0;; i++) {
        skip_space(r);
        if (r->s == r->end) {
            break;
        }
        if (i > 0 && !take(r, ',')) {
            return false;
        }
        skip_space(r);
        if (r->s == r->end) {
            break;
        }
        const char *start = r->s;
        while (r->s < r->end && is_name(*r->s, r->s == start)) {
            r->s++;
        }
        if (r->s == start) {
            return false;
        }
        if (i > 0) {
            buf_puts(r->out, ", ");
        }
        buf_put_json(r->out, start, (size_t)(r->s - start));
        buf_puts(r->out, ": ");
        if (!take(r, '=') || !value(r)) {
            return false;
        }
    }
    buf_putc(r->out, '}');
    return !r->out->failed;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Reads a name up to "(". A character that cannot be in a name means that this is text. */
static bool name(struct tool_parse *p)
{
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        if (c == '(' && p->name.n_bytes > 0) {
            p->scan++;
            p->depth = 1;
            p->quote = 0;
            p->escape = false;
            buf_clear(&p->id); // this format has no ids
            p->state = CALL;
            return true;
        }
        if (!is_name(c, p->name.n_bytes == 0)) {
            return give_up(p);
        }
        buf_putc(&p->name, c);
        if (p->name.failed) {
            return give_up(p);
        }
        p->scan++;
    }
    return false;
}

/* Parses the complete call as Python, and reports it with its arguments as JSON. */
static bool report_call(struct tool_parse *p)
{
    struct buf json;
    buf_init(&json, 64 << 20);
    /* [at, scan) is "  name(....)", possibly preceded by what opened the list. */
    const char *start = p->held.data + p->at, *close = p->held.data + p->scan - 1;
    const char *open = memchr(start, '(', (size_t)(close - start));
    struct reader r = {open + 1, close, &json, 0};
    bool good = open && keywords(&r);
    if (good) {
        tool_begin(p, p->name.data, "");
        tool_arguments(p, json.data, json.n_bytes);
        tool_end(p);
        tool_commit(p);
    }
    buf_deinit(&json);
    p->state = AFTER;
    return good || give_up(p);
}

/* Looks for the call's end: counts brackets outside of quotes. */
static bool call(struct tool_parse *p)
{
    while (tool_n_held(p) > 0) {
        char c = *tool_held(p);
        p->scan++;
        if (p->quote) {
            bool ends = !p->escape && c == p->quote;
            p->escape = !p->escape && c == '\\';
            if (ends) {
                p->quote = 0;
            }
        } else if (c == '"' || c == '\'') {
            p->quote = c;
        } else if (strchr("([{", c)) {
            p->depth++;
        } else if (strchr(")]}", c) && --p->depth == 0) {
            return report_call(p);
        }
    }
    return false;
}

/* After a call: expects a comma, the end of the list, or between tags the closing tag. */
static bool after(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    char c = *tool_held(p);
    if (c == ',') {
        p->scan++;
        p->state = CALLS;
        return true;
    }
    if (c == ']') {
        p->scan++;
        tool_commit(p);
        return true;
    }
    for (const char *const *close = form_of(p)->closes; *close; close++) {
        enum tool_match m = tool_match(p, *close, final);
        if (m == MATCH_MAYBE) {
            return false;
        }
        if (m == MATCH_YES) {
            p->scan += strlen(*close);
            tool_commit(p);
            p->state = TEXT;
            return true;
        }
    }
    if (form_of(p)->lines && is_name(c, true)) {
        buf_clear(&p->name);
        p->state = NAME;
        return true;
    }
    p->scan = p->at;
    p->state = TEXT;
    return true;
}

/* Before a call: after the opening of the list, or after a comma. */
static bool calls(struct tool_parse *p)
{
    tool_skip_space(p);
    if (p->state == CALLS && tool_n_held(p) > 0 && *tool_held(p) == '[') {
        p->scan++;
        p->state = LISTED; // only one bracket opens the list, however the text was divided
        tool_skip_space(p);
    }
    if (tool_n_held(p) == 0) {
        return false;
    }
    buf_clear(&p->name);
    p->state = NAME;
    return true;
}

/* A list at the very beginning of an answer consists of calls. */
static bool start(struct tool_parse *p)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    if (*tool_held(p) == '[' && !form_of(p)->lines) {
        p->state = CALLS;
    } else {
        p->state = TEXT;
    }
    if (p->state == TEXT) {
        p->scan = p->at;
    }
    return true;
}

/* True if the list was truncated after a call, so that the rest of it is not content. */
static bool is_cut(const struct tool_parse *p)
{
    return p->n_calls > 0 && p->state != START && p->state != AFTER && p->state != TEXT;
}

/* The states: START before anything; TEXT outside of calls; CALLS after "["; LISTED after
 * a comma; NAME and CALL within a call; AFTER when a call has ended. */
static bool step(struct tool_parse *p, bool final)
{
    int which;
    if (final && is_cut(p)) {
        p->scan = p->held.n_bytes;
        tool_commit(p);
        p->state = TEXT;
        return false;
    }
    switch (p->state) {
    case START: return start(p);
    case CALLS:
    case LISTED: return calls(p);
    case NAME: return name(p);
    case CALL: return call(p);
    case AFTER: return after(p, final);
    default:
        if (!tool_find(p, form_of(p)->opens, true, final, &which)) {
            return false;
        }
        p->state = CALLS;
        return true;
    }
}

static const char *const markers[] = {"<|tool_call_start|>", "<|tool_call_end|>",
                                      "<|python_start|>", "<|python_end|>", NULL};
static const struct pythonic_form pythonic = {
    .opens = {"<|tool_call_start|>", "<|python_start|>"},
    .closes = {"<|tool_call_end|>", "<|python_end|>"},
};
#define PYTHON_CALLS .call = "", .name_end = "(", .call_end = ")", .style = "python"

/* Llama's form, without tags. */
static const struct tool_writing bare_writing = {
    PYTHON_CALLS,
    .open = "[",
    .between = ", ",
    .close = "]",
    .open_after = "<|python_start|>[",
    .close_after = "]<|python_end|>",
    .starts = "\\s*\\[\\s*[A-Za-z_][A-Za-z0-9_.-]*\\(",
    .bars = {"<|python_start|>"},
};
#define TAGGED_CALLS                                                                               \
    PYTHON_CALLS, .open = "<|tool_call_start|>[", .between = ", ", .close = "]<|tool_call_end|>",  \
        .trigger = "<|tool_call_start|>"
static const struct tool_writing pythonic_writing = {
    TAGGED_CALLS,
    .needs = "<|tool_call_start|>",
    .otherwise = &bare_writing,
};
const struct tool_parser tool_parser_pythonic = {
    .name = "pythonic",
    .step = step,
    .form = &pythonic,
    .markers = markers,
    .writing = &pythonic_writing,
};

/* LFM2 writes the tags, although its templates do not contain them. */
static const struct tool_writing lfm2_writing = {TAGGED_CALLS};
const struct tool_parser tool_parser_lfm2 = {
    .name = "lfm2",
    .step = step,
    .form = &pythonic,
    .markers = markers,
    .writing = &lfm2_writing,
};

static const char *const olmo3_markers[] = {"<function_calls>", "</function_calls>", NULL};
static const struct pythonic_form olmo3 = {
    .opens = {"<function_calls>"},
    .closes = {"</function_calls>"},
    .lines = true,
};
static const struct tool_writing olmo3_writing = {
    PYTHON_CALLS,
    .open = "<function_calls>",
    .between = "\n",
    .close = "</function_calls>",
    .trigger = "<function_calls>",
};
const struct tool_parser tool_parser_olmo3 = {
    .name = "olmo3",
    .step = step,
    .form = &olmo3,
    .markers = olmo3_markers,
    .writing = &olmo3_writing,
};
