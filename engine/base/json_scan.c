// SPDX-License-Identifier: Apache-2.0
/* A state machine: `state` says what may come next, and one bit per level says whether that level
 * is an object. */
#include "engine/base/json_scan.h"
#include "engine/base/optional.h"

#include "engine/base/assert.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* What may come next. */
enum state { WANT_VALUE, WANT_FIRST_VALUE, WANT_FIRST_KEY, WANT_KEY, AFTER_VALUE, DONE, FAILED };

void json_scan_init(struct json_scan *sc, const char *s, size_t n_bytes, int max_depth)
{
    ASSERT(max_depth > 0 && max_depth <= JSON_SCAN_MAX_DEPTH);
    *sc =
        (struct json_scan){.s = s, .n_bytes = n_bytes, .max_depth = max_depth, .state = WANT_VALUE};
}

static enum json_token fail(struct json_scan *sc, const char *why)
{
    sc->why = why;
    sc->state = FAILED;
    return JSON_TOKEN_ERROR;
}

static void skip_space(struct json_scan *sc)
{
    while (sc->at < sc->n_bytes) {
        char c = sc->s[sc->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') {
            return;
        }
        sc->at++;
    }
}

static bool in_object(const struct json_scan *sc)
{
    int d = sc->depth - 1;
    return d >= 0 && (sc->in_object[d / 64] >> (d % 64) & 1);
}

/* The bit of the new level says which bracket must close it. */
static enum json_token open_container(struct json_scan *sc, bool object)
{
    if (sc->depth == sc->max_depth) {
        return fail(sc, "nested too deeply");
    }
    uint64_t bit = 1ULL << (sc->depth % 64);
    uint64_t *word = &sc->in_object[sc->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    sc->depth++;
    sc->at++;
    sc->state = object ? WANT_FIRST_KEY : WANT_FIRST_VALUE;
    return object ? JSON_TOKEN_OBJECT : JSON_TOKEN_ARRAY;
}

/* After the outermost value only white space may follow. */
static enum json_token close_container(struct json_scan *sc, bool object)
{
    sc->depth--;
    sc->at++;
    sc->state = sc->depth == 0 ? DONE : AFTER_VALUE;
    if (object) {
        return JSON_TOKEN_OBJECT_END;
    }
    return JSON_TOKEN_ARRAY_END;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The number of leading bytes that need no check: printable ASCII without quotes and
 * backslashes. */
static size_t plain_run(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)p[i] >= 0x20 && (unsigned char)p[i] < 0x80 && p[i] != '"' &&
           p[i] != '\\') {
        i++;
    }
    return i;
}

/* Called at an opening quote. Sets `text`; returns false after fail(). */
static bool scan_string(struct json_scan *sc)
{
    size_t i = sc->at + 1;
    sc->escaped = false;
    sc->text = sc->s + i;
    for (;;) {
        i += plain_run(sc->s + i, sc->n_bytes - i);
        if (i >= sc->n_bytes) {
            sc->at = i;
            return fail(sc, "an unterminated string"), false;
        }
        unsigned char c = (unsigned char)sc->s[i];
        if (c == '"') {
            break;
        }
        if (c < 0x20) {
            sc->at = i;
            return fail(sc, "a control character in a string must be escaped"), false;
        }
        if (c != '\\') {
            size_t n = utf8_valid_length(sc->s + i, sc->n_bytes - i);
            if (n == 0) {
                sc->at = i;
                return fail(sc, "invalid UTF-8"), false;
            }
            i += n;
            continue;
        }
        sc->escaped = true;
        char e = i + 1 < sc->n_bytes ? sc->s[i + 1] : '\0';
        bool good = e != '\0' && strchr("\"\\/bfnrt", e) != NULL;
        if (e == 'u' && sc->n_bytes - i >= 6) {
            good = is_hex(sc->s[i + 2]) && is_hex(sc->s[i + 3]) && is_hex(sc->s[i + 4]) &&
                   is_hex(sc->s[i + 5]);
        }
        if (!good) {
            sc->at = i;
            return fail(sc, "an invalid escape in a string"), false;
        }
        i += e == 'u' ? 6 : 2;
    }
    sc->text_bytes = (size_t)(sc->s + i - sc->text);
    sc->at = i + 1;
    return true;
}

static size_t digits(const struct json_scan *sc, size_t i)
{
    size_t start = i;
    while (i < sc->n_bytes && sc->s[i] >= '0' && sc->s[i] <= '9') {
        i++;
    }
    return i - start;
}

/* RFC 8259: no leading zeros; at least one digit on each side of the point and in the exponent. */
static bool scan_number(struct json_scan *sc)
{
    size_t i = sc->at;
    if (sc->s[i] == '-') {
        i++;
    }
    size_t n = digits(sc, i);
    if (n == 0 || (n > 1 && sc->s[i] == '0')) {
        return fail(sc, "an invalid number"), false;
    }
    i += n;
    if (i < sc->n_bytes && sc->s[i] == '.') {
        n = digits(sc, i + 1);
        if (n == 0) {
            return fail(sc, "an invalid number"), false;
        }
        i += n + 1;
    }
    if (i < sc->n_bytes && (sc->s[i] == 'e' || sc->s[i] == 'E')) {
        i++;
        if (i < sc->n_bytes && (sc->s[i] == '+' || sc->s[i] == '-')) {
            i++;
        }
        n = digits(sc, i);
        if (n == 0) {
            return fail(sc, "an invalid number"), false;
        }
        i += n;
    }
    sc->text = sc->s + sc->at;
    sc->text_bytes = i - sc->at;
    sc->escaped = false;
    sc->at = i;
    return true;
}

static bool scan_word(struct json_scan *sc, const char *word)
{
    size_t n = strlen(word);
    if (sc->n_bytes - sc->at < n || memcmp(sc->s + sc->at, word, n) != 0) {
        return false;
    }
    sc->at += n;
    return true;
}

static enum json_token scalar(struct json_scan *sc, enum json_token token)
{
    sc->state = sc->depth == 0 ? DONE : AFTER_VALUE;
    return token;
}

/* The text of a scalar is only located; it is converted when a caller needs it. */
static enum json_token scan_value(struct json_scan *sc)
{
    char c = sc->s[sc->at];
    if (c == '{' || c == '[') {
        return open_container(sc, c == '{');
    }
    if (c == '"') {
        if (scan_string(sc)) {
            return scalar(sc, JSON_TOKEN_STRING);
        }
        return JSON_TOKEN_ERROR;
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        if (scan_number(sc)) {
            return scalar(sc, JSON_TOKEN_NUMBER);
        }
        return JSON_TOKEN_ERROR;
    }
    if (scan_word(sc, "true")) {
        return scalar(sc, JSON_TOKEN_TRUE);
    }
    if (scan_word(sc, "false")) {
        return scalar(sc, JSON_TOKEN_FALSE);
    }
    if (scan_word(sc, "null")) {
        return scalar(sc, JSON_TOKEN_NULL);
    }
    return fail(sc, "a value was expected");
}

static enum json_token scan_key(struct json_scan *sc)
{
    if (sc->s[sc->at] != '"') {
        return fail(sc, "a key was expected");
    }
    if (!scan_string(sc)) {
        return JSON_TOKEN_ERROR;
    }
    skip_space(sc);
    if (sc->at >= sc->n_bytes || sc->s[sc->at] != ':') {
        return fail(sc, "':' was expected");
    }
    sc->at++;
    sc->state = WANT_VALUE;
    return JSON_TOKEN_KEY;
}

/* One token. Errors are final: the state is FAILED from then on. */
enum json_token json_scan_next(struct json_scan *sc)
{
    if (sc->state == FAILED) {
        return JSON_TOKEN_ERROR;
    }
    skip_space(sc);
    if (sc->at >= sc->n_bytes) {
        if (sc->state == DONE) {
            return JSON_TOKEN_END;
        }
        return fail(sc, "the text ends too early");
    }
    char c = sc->s[sc->at];
    if (sc->state == DONE) {
        return fail(sc, "there is text after the value");
    }
    if (sc->state == AFTER_VALUE) {
        bool object = in_object(sc);
        if (c == (object ? '}' : ']')) {
            return close_container(sc, object);
        }
        if (c != ',') {
            return fail(sc, object ? "',' or '}' was expected" : "',' or ']' was expected");
        }
        sc->at++;
        sc->state = object ? WANT_KEY : WANT_VALUE;
        return json_scan_next(sc);
    }
    if (sc->state == WANT_FIRST_KEY && c == '}') {
        return close_container(sc, true);
    }
    if (sc->state == WANT_FIRST_VALUE && c == ']') {
        return close_container(sc, false);
    }
    if (sc->state == WANT_FIRST_KEY || sc->state == WANT_KEY) {
        return scan_key(sc);
    }
    return scan_value(sc);
}

/* The rest of the value whose first token was just read, or the next value. */
bool json_scan_skip(struct json_scan *sc)
{
    bool inside = sc->state == WANT_FIRST_KEY || sc->state == WANT_FIRST_VALUE;
    int floor = inside ? sc->depth - 1 : sc->depth;
    do {
        enum json_token t = json_scan_next(sc);
        if (t == JSON_TOKEN_ERROR || t == JSON_TOKEN_END) {
            return false;
        }
    } while (sc->depth > floor);
    return true;
}

bool json_scan_is(const struct json_scan *sc, const char *word)
{
    return !sc->escaped && strlen(word) == sc->text_bytes &&
           memcmp(word, sc->text, sc->text_bytes) == 0;
}

static uint32_t hex4(const char *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return v;
}

static bool is_low(uint32_t unit)
{
    return unit >= 0xDC00 && unit < 0xE000;
}

const char *json_scan_unpaired(const struct json_scan *sc)
{
    const char *p = sc->text, *end = p + sc->text_bytes;
    while (sc->escaped && (p = memchr(p, '\\', (size_t)(end - p))) != NULL) {
        if (p[1] != 'u') {
            p += 2;
            continue;
        }
        const uint32_t unit = hex4(p + 2);
        const bool high = unit >= 0xD800 && unit < 0xDC00;
        const bool paired =
            high && end - p >= 12 && p[6] == '\\' && p[7] == 'u' && is_low(hex4(p + 8));
        if (is_low(unit) || (high && !paired)) {
            return p;
        }
        p += paired ? 12 : 6;
    }
    return NULL;
}

/* The character that a backslash and `c` stand for. */
static char unescaped(char c)
{
    switch (c) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return c;
    }
}

/* Called at "\u"; returns the number of bytes consumed. */
static size_t unescape_unicode(const char *p, size_t n_bytes, struct buf *out)
{
    uint32_t cp = hex4(p + 2);
    size_t used = 6;
    if (cp >= 0xD800 && cp < 0xDC00 && n_bytes >= 12 && p[6] == '\\' && p[7] == 'u') {
        uint32_t low = hex4(p + 8);
        if (is_low(low)) {
            cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
            used = 12;
        }
    }
    if (cp >= 0xD800 && cp < 0xE000) {
        cp = 0xFFFD;
    }
    char utf8[4];
    buf_put(out, utf8, utf8_encode(cp, utf8));
    return used;
}

/* The scan has checked all escapes, so they are not checked again. */
void json_scan_unescape(const struct json_scan *sc, struct buf *out)
{
    const char *p = sc->text;
    size_t n = sc->text_bytes, i = 0;
    while (i < n) {
        const char *slash = memchr(p + i, '\\', n - i);
        size_t run = slash ? (size_t)(slash - (p + i)) : n - i;
        buf_put(out, p + i, run);
        i += run;
        if (i >= n) {
            break;
        }
        char e = p[i + 1];
        if (e == 'u') {
            i += unescape_unicode(p + i, n - i, out);
            continue;
        }
        buf_putc(out, unescaped(e));
        i += 2;
    }
}

/* Exact for the whole range, unlike a conversion by way of double. A number with a point or an
 * exponent is not an integer. */
bool json_scan_int64(const struct json_scan *sc, int64_t *v)
{
    size_t i = 0;
    bool negative = sc->text[0] == '-';
    int64_t r = 0;
    for (i = negative; i < sc->text_bytes; i++) {
        char c = sc->text[i];
        if (c < '0' || c > '9' || __builtin_mul_overflow(r, 10, &r) ||
            __builtin_sub_overflow(r, c - '0', &r)) {
            return false;
        }
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, r, &r)) {
        return false;
    }
    *v = r;
    return true;
}

/* strtod needs a NUL, so the text is copied. */
double json_scan_double(const struct json_scan *sc)
{
    char text[64];
    if (sc->text_bytes < sizeof text) {
        memcpy(text, sc->text, sc->text_bytes);
        text[sc->text_bytes] = '\0';
        return strtod(text, NULL);
    }
    char *copy = malloc(sc->text_bytes + 1);
    if (!copy) {
        return 0.0;
    }
    memcpy(copy, sc->text, sc->text_bytes);
    copy[sc->text_bytes] = '\0';
    double v = strtod(copy, NULL);
    free(copy);
    return v;
}

enum status json_scan_error(const struct json_scan *sc, struct err *err)
{
    bool deep = sc->why && strcmp(sc->why, "nested too deeply") == 0;
    return err_set(err, deep ? ERR_LIMIT : ERR_FORMAT, "%s at byte %zu",
                   or_text(sc->why, "not JSON"), sc->at);
}
