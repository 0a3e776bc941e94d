// SPDX-License-Identifier: Apache-2.0
/* Shared by str methods and filters: case mapping, stripping, splitting, searching. Each character
 * keeps its provenance. */
#include "engine/base/hash.h"
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/unicode.h"

#include <string.h>

/* The character at s[i] of a flat string, and its length. */
static uint32_t char_at(const struct jstr *s, size_t i, size_t *n)
{
    uint32_t cp = (unsigned char)s->s[i];
    *n = 1;
    if (cp >= 0x80) {
        *n = utf8_decode(s->s + i, s->n_bytes - i, &cp);
        if (*n <= 0) {
            *n = 1;
        }
    }
    return cp;
}

/* Start of the character that ends at `end`. */
static size_t char_before(const struct jstr *s, size_t end)
{
    do {
        end--;
    } while (end > 0 && ((unsigned char)s->s[end] & 0xC0) == 0x80);
    return end;
}

/* Case mapping of one character; up to three characters result from one (the German sharp
 * s becomes SS). ASCII needs no table. */
static void put_mapped(struct jsb *b, uint32_t cp, int how, bool input)
{
    uint32_t to[3];
    if (cp < 0x80) {
        char c = (char)cp;
        if (how == UNI_TO_LOWER || how == UNI_TO_FOLD) {
            if (c >= 'A' && c <= 'Z') {
                c = (char)(c + 32);
            }
        } else {
            if (c >= 'a' && c <= 'z') {
                c = (char)(c - 32);
            }
        }
        jsb_putc(b, c, input);
        return;
    }
    int n = uni_map(cp, (enum uni_case)how, to);
    for (int i = 0; i < n; i++) {
        jsb_put_cp(b, to[i], input);
    }
}

enum { SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2 };

/* True if the capital sigma at `at` becomes a final sigma: after a letter and not before one
 * (skipping caseless characters such as apostrophes). */
static bool is_final_sigma(const struct jstr *s, size_t at)
{
    size_t n, i = at;
    bool before = false;
    while (i > 0) {
        i = char_before(s, i);
        unsigned bits = uni_class(char_at(s, i, &n));
        if (!(bits & UNI_CASE_IGNORABLE)) {
            before = bits & UNI_CASED;
            break;
        }
    }
    if (!before) {
        return false;
    }
    char_at(s, at, &n);
    for (i = at + n; i < s->n_bytes; i += n) {
        unsigned bits = uni_class(char_at(s, i, &n));
        if (!(bits & UNI_CASE_IGNORABLE)) {
            return !(bits & UNI_CASED);
        }
    }
    return true;
}

/* A sigma at the end of a word has a form of its own. */
static void put_lower(struct jsb *b, const struct jstr *s, size_t at, uint32_t cp, bool input)
{
    if (cp == SIGMA && is_final_sigma(s, at)) {
        jsb_put_cp(b, FINAL_SIGMA, input);
    } else {
        put_mapped(b, cp, UNI_TO_LOWER, input);
    }
}

/* Like str.upper(), lower() and casefold(). The result of a character keeps its provenance. */
struct jstr *jt_map_case(struct jrt *rt, struct jstr *s, int how)
{
    struct jsb b;
    jsb_init(&b, rt);
    size_t n;
    for (size_t i = 0; i < s->n_bytes && !b.failed; i += n) {
        uint32_t cp = char_at(s, i, &n);
        bool input = js_input_at(s, i);
        if (how == UNI_TO_LOWER) {
            put_lower(&b, s, i, cp, input);
        } else {
            put_mapped(&b, cp, how, input);
        }
    }
    return jsb_done(&b);
}

/* Lower-cases all letters except the first, or the first after each caseless character. */
static struct jstr *raise_first(struct jrt *rt, struct jstr *s, bool each_word)
{
    struct jsb b;
    jsb_init(&b, rt);
    size_t n;
    bool first = true;
    for (size_t i = 0; i < s->n_bytes && !b.failed; i += n) {
        uint32_t cp = char_at(s, i, &n);
        bool input = js_input_at(s, i);
        if (first) {
            put_mapped(&b, cp, cp < 0x80 ? UNI_TO_UPPER : UNI_TO_TITLE, input);
        } else {
            put_lower(&b, s, i, cp, input);
        }
        first = each_word && !(uni_class(cp) & (UNI_LOWER | UNI_UPPER | UNI_TITLE));
    }
    return jsb_done(&b);
}

struct jstr *jt_capitalize(struct jrt *rt, struct jstr *s)
{
    return raise_first(rt, s, false);
}

struct jstr *jt_title(struct jrt *rt, struct jstr *s)
{
    return raise_first(rt, s, true);
}

/* Characters without case stay unchanged. */
struct jstr *jt_swapcase(struct jrt *rt, struct jstr *s)
{
    struct jsb b;
    jsb_init(&b, rt);
    size_t n;
    for (size_t i = 0; i < s->n_bytes && !b.failed; i += n) {
        uint32_t cp = char_at(s, i, &n);
        unsigned bits = uni_class(cp);
        bool input = js_input_at(s, i);
        if (bits & UNI_UPPER) {
            put_lower(&b, s, i, cp, input);
        } else if (bits & UNI_LOWER) {
            put_mapped(&b, cp, UNI_TO_UPPER, input);
        } else {
            jsb_put_range(&b, s, i, n);
        }
    }
    return jsb_done(&b);
}

/* chars NULL: Python's white space. */
static bool in_set(const struct jstr *chars, uint32_t cp)
{
    if (!chars) {
        return uni_is_space(cp);
    }
    size_t n;
    for (size_t i = 0; i < chars->n_bytes; i += n) {
        if (char_at(chars, i, &n) == cp) {
            return true;
        }
    }
    return false;
}

/* sides: 1 for the left end, 2 for the right one, 3 for both. */
struct jstr *jt_strip(struct jrt *rt, struct jstr *s, struct jstr *chars, int sides)
{
    size_t from = 0, to = s->n_bytes, n;
    while ((sides & 1) && from < to && in_set(chars, char_at(s, from, &n))) {
        from += n;
    }
    while ((sides & 2) && to > from) {
        size_t at = char_before(s, to);
        if (!in_set(chars, char_at(s, at, &n))) {
            break;
        }
        to = at;
    }
    return js_sub(rt, s, from, to - from);
}

/* The position in bytes; SIZE_MAX: not found. */
size_t jt_find(const struct jstr *s, const struct jstr *part, size_t from, size_t to)
{
    if (from > to || part->n_bytes > to - from) {
        return SIZE_MAX;
    }
    if (part->n_bytes == 0) {
        return from;
    }
    const char *p = memmem(s->s + from, to - from, part->s, part->n_bytes);
    return p ? (size_t)(p - s->s) : SIZE_MAX;
}

/* a * b modulo the prime 2^61 - 1, for a polynomial hash with an unpredictable base. */
static uint64_t times(uint64_t a, uint64_t b)
{
    const uint64_t prime = (1ULL << 61) - 1;
    __extension__ unsigned __int128 p = (unsigned __int128)a * b;
    uint64_t r = (uint64_t)(p & prime) + (uint64_t)(p >> 61);
    return r >= prime ? r - prime : r;
}

/* The last occurrence, in linear time for any text: a window slides from the end, and its bytes are
 * compared only if its hash matches. */
size_t jt_rfind(const struct jstr *s, const struct jstr *part, size_t from, size_t to)
{
    const uint64_t prime = (1ULL << 61) - 1, base = (hash_process_key() | 257) % prime;
    size_t m = part->n_bytes;
    if (from > to || m > to - from) {
        return SIZE_MAX;
    }
    uint64_t want = 0, have = 0, top = 1; // the first byte of a window has the lowest power
    for (size_t i = 0; i < m; i++) {
        want = (times(want, base) + (unsigned char)part->s[m - 1 - i]) % prime;
        have = (times(have, base) + (unsigned char)s->s[to - 1 - i]) % prime;
        if (i > 0) {
            top = times(top, base);
        }
    }
    for (size_t at = to - m;; at--) {
        if (have == want && (m == 0 || memcmp(s->s + at, part->s, m) == 0)) {
            return at;
        }
        if (at == from) {
            return SIZE_MAX;
        }
        uint64_t last = times(top, (unsigned char)s->s[at + m - 1]);
        have = (have + prime - last) % prime;
        have = (times(have, base) + (unsigned char)s->s[at - 1]) % prime;
    }
}

static bool push_part(struct jrt *rt, struct jlist *l, struct jstr *s, size_t from, size_t to)
{
    struct jstr *part = js_sub(rt, s, from, to - from);
    return part && jlist_push(rt, l, jv_str(part));
}

/* Like str.split() without a separator: runs of white space separate parts, and no part is empty.
 * max < 0: no limit. */
static bool split_spaces(struct jrt *rt, struct jstr *s, int64_t max, struct jlist *l)
{
    size_t i = 0, n;
    for (;;) {
        while (i < s->n_bytes && uni_is_space(char_at(s, i, &n))) {
            i += n;
        }
        if (i >= s->n_bytes) {
            return true;
        }
        size_t from = i;
        if (max >= 0 && (int64_t)l->n >= max) {
            // the rest, including trailing white space
            return push_part(rt, l, s, from, s->n_bytes);
        }
        while (i < s->n_bytes && !uni_is_space(char_at(s, i, &n))) {
            i += n;
        }
        if (!push_part(rt, l, s, from, i)) {
            return false;
        }
    }
}

/* Like str.rsplit(). Parts are collected from the right; the caller reverses them. */
static bool split_spaces_right(struct jrt *rt, struct jstr *s, int64_t max, struct jlist *l)
{
    size_t i = s->n_bytes, n;
    for (;;) {
        while (i > 0 && uni_is_space(char_at(s, char_before(s, i), &n))) {
            i = char_before(s, i);
        }
        if (i == 0) {
            return true;
        }
        size_t to = i;
        if (max >= 0 && (int64_t)l->n >= max) {
            return push_part(rt, l, s, 0, to);
        }
        while (i > 0 && !uni_is_space(char_at(s, char_before(s, i), &n))) {
            i = char_before(s, i);
        }
        if (!push_part(rt, l, s, i, to)) {
            return false;
        }
    }
}

/* `max` is the number of cuts, not of parts. */
static bool split_at(struct jrt *rt, struct jstr *s, struct jstr *sep, int64_t max, struct jlist *l)
{
    size_t from = 0, at;
    while ((max < 0 || (int64_t)l->n < max) &&
           (at = jt_find(s, sep, from, s->n_bytes)) != SIZE_MAX) {
        if (!push_part(rt, l, s, from, at)) {
            return false;
        }
        from = at + sep->n_bytes;
    }
    return push_part(rt, l, s, from, s->n_bytes);
}

/* Splits from the right; the parts are in reverse order. */
static bool split_at_right(struct jrt *rt, struct jstr *s, struct jstr *sep, int64_t max,
                           struct jlist *l)
{
    size_t to = s->n_bytes, at;
    while ((max < 0 || (int64_t)l->n < max) && (at = jt_rfind(s, sep, 0, to)) != SIZE_MAX) {
        if (!push_part(rt, l, s, at + sep->n_bytes, to)) {
            return false;
        }
        to = at;
    }
    return push_part(rt, l, s, 0, to);
}

static void reverse_items(struct jlist *l)
{
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jv t = l->items[i];
        l->items[i] = l->items[l->n - 1 - i];
        l->items[l->n - 1 - i] = t;
    }
}

/* Splits with or without a separator, from either side. */
bool jt_split(struct jrt *rt, struct jstr *s, struct jstr *sep, int64_t max, bool from_right,
              struct jlist **out)
{
    struct jlist *l = jlist_new(rt, 0);
    *out = l;
    if (!l || !jrt_charge(rt, s->n_bytes >> 8)) {
        return false;
    }
    if (!from_right) {
        if (sep) {
            return split_at(rt, s, sep, max, l);
        }
        return split_spaces(rt, s, max, l);
    }
    bool ok;
    if (sep) {
        ok = split_at_right(rt, s, sep, max, l);
    } else {
        ok = split_spaces_right(rt, s, max, l);
    }
    reverse_items(l);
    return ok;
}

/* A line end counts once, and none is added after the last one. */
bool jt_splitlines(struct jrt *rt, struct jstr *s, bool keep_ends, struct jlist **out)
{
    struct jlist *l = jlist_new(rt, 0);
    *out = l;
    if (!l) {
        return false;
    }
    size_t from = 0, n;
    for (size_t i = 0; i < s->n_bytes;) {
        uint32_t cp = char_at(s, i, &n);
        size_t end = i;
        i += n;
        if (!(uni_class(cp) & UNI_LINE_BREAK)) {
            continue;
        }
        i += cp == '\r' && i < s->n_bytes && s->s[i] == '\n';
        if (!push_part(rt, l, s, from, keep_ends ? i : end)) {
            return false;
        }
        from = i;
    }
    return from >= s->n_bytes || push_part(rt, l, s, from, s->n_bytes);
}

/* An empty `old` matches before every character and at the end. */
static struct jstr *interleave(struct jrt *rt, struct jstr *s, struct jstr *with, int64_t max)
{
    struct jsb b;
    jsb_init(&b, rt);
    size_t n;
    for (size_t i = 0; i < s->n_bytes && !b.failed; i += n) {
        if (max != 0) {
            jsb_put_str(&b, with);
            max--;
        }
        char_at(s, i, &n);
        jsb_put_range(&b, s, i, n);
    }
    if (max != 0) {
        jsb_put_str(&b, with);
    }
    return jsb_done(&b);
}

/* An empty pattern stands between all characters. */
struct jstr *jt_replace(struct jrt *rt, struct jstr *s, struct jstr *old, struct jstr *new_,
                        int64_t max)
{
    if (!jrt_charge(rt, s->n_bytes >> 8)) {
        return NULL;
    }
    if (old->n_bytes == 0) {
        return interleave(rt, s, new_, max);
    }
    size_t at = max == 0 ? SIZE_MAX : jt_find(s, old, 0, s->n_bytes);
    if (at == SIZE_MAX) {
        return s;
    }
    struct jsb b;
    jsb_init(&b, rt);
    size_t from = 0;
    for (; at != SIZE_MAX && max != 0 && !b.failed && jrt_step(rt); max--) {
        jsb_put_range(&b, s, from, at - from);
        jsb_put_str(&b, new_);
        from = at + old->n_bytes;
        at = jt_find(s, old, from, s->n_bytes);
    }
    jsb_put_range(&b, s, from, s->n_bytes - from);
    return jsb_done(&b);
}

struct jstr *jt_join(struct jrt *rt, struct jstr *sep, const struct jlist *parts)
{
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t i = 0; i < parts->n && !b.failed; i++) {
        if (i > 0) {
            jsb_put_str(&b, sep);
        }
        jsb_put_str(&b, parts->items[i].u.s);
    }
    return jsb_done(&b);
}

struct jstr *jt_pad(struct jrt *rt, struct jstr *s, size_t left, size_t right, struct jstr *fill)
{
    struct jsb b;
    jsb_init(&b, rt);
    jsb_fill(&b, fill, left);
    jsb_put_str(&b, s);
    jsb_fill(&b, fill, right);
    return jsb_done(&b);
}

struct jstr *jt_reverse(struct jrt *rt, struct jstr *s)
{
    struct jsb b;
    jsb_init(&b, rt);
    for (size_t end = s->n_bytes; end > 0 && !b.failed;) {
        size_t at = char_before(s, end);
        jsb_put_range(&b, s, at, end - at);
        end = at;
    }
    return jsb_done(&b);
}

/* Offsets are in characters; in ASCII strings they need no search. */
struct jstr *jt_chars(struct jrt *rt, struct jstr *s, size_t from, size_t to)
{
    size_t n = js_chars(s);
    to = lesser(to, n);
    if (from >= to) {
        return js_sub(rt, s, 0, 0);
    }
    size_t a = js_offset(s, from);
    if (n == s->n_bytes) {
        return js_sub(rt, s, a, to - from);
    }
    size_t b = a;
    for (size_t k = 0; b < s->n_bytes; b++) {
        if (((unsigned char)s->s[b] & 0xC0) != 0x80 && k++ == to - from) {
            break;
        }
    }
    return js_sub(rt, s, a, b - a);
}
