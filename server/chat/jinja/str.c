// SPDX-License-Identifier: Apache-2.0
/* Strings and their builder: text that tracks for each byte whether it came from the request. */
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "server/chat/jinja/rt.h"

#include <string.h>

/* Shorter concatenations are copied immediately; longer ones stay lazy until they are read, so that
 * appending to a long string in a loop does not take quadratic time. */
enum { ROPE_MIN_BYTES = 512 };

struct jstr *js_new(struct jrt *rt, const char *s, size_t n_bytes, enum jprov prov)
{
    struct jstr *out = jrt_alloc(rt, 1, sizeof *out);
    if (out) {
        *out = (struct jstr){.s = s, .n_bytes = n_bytes, .n_chars = SIZE_MAX, .prov = prov};
    }
    return out;
}

struct jstr *js_copy(struct jrt *rt, const char *s, size_t n_bytes, enum jprov prov)
{
    char *copy = jrt_alloc(rt, n_bytes + 1, 1);
    if (!copy) {
        return NULL;
    }
    if (n_bytes > 0) {
        memcpy(copy, s, n_bytes);
    }
    return js_new(rt, copy, n_bytes, prov);
}

struct jstr *js_lit(struct jrt *rt, const char *s)
{
    return js_new(rt, s, strlen(s), PROV_TEMPLATE);
}

bool js_flat(struct jrt *rt, struct jstr *s)
{
    if (s->s) {
        return true;
    }
    char *data = jrt_alloc(rt, s->n_bytes + 1, 1);
    if (!data) {
        return false;
    }
    /* Only a left operand may itself be a concatenation (js_concat ensures that), so this follows a
     * single chain, from the end of the text to its beginning. */
    size_t n_runs = 0;
    size_t end = s->n_bytes;
    for (struct jstr *p = s;; p = p->left) {
        const struct jstr *leaf = p->s ? p : p->right;
        end -= leaf->n_bytes;
        if (leaf->n_bytes > 0) {
            memcpy(data + end, leaf->s, leaf->n_bytes);
        }
        n_runs += leaf->prov == PROV_MIXED ? leaf->n_runs : 1;
        if (p->s) {
            break;
        }
    }
    if (s->prov == PROV_MIXED) {
        struct jrun *runs = jrt_alloc(rt, n_runs, sizeof *runs);
        if (!runs) {
            return false;
        }
        size_t at = n_runs, base = s->n_bytes; // filled from the end
        for (struct jstr *p = s;; p = p->left) {
            const struct jstr *leaf = p->s ? p : p->right;
            base -= leaf->n_bytes;
            size_t n = leaf->prov == PROV_MIXED ? leaf->n_runs : 1;
            for (size_t i = n; i-- > 0;) {
                bool mixed = leaf->prov == PROV_MIXED;
                runs[--at] =
                    (struct jrun){.end = base + (mixed ? leaf->runs[i].end : leaf->n_bytes),
                                  .input = mixed ? leaf->runs[i].input : leaf->prov == PROV_INPUT};
            }
            if (p->s) {
                break;
            }
        }
        s->runs = runs;
        s->n_runs = n_runs;
    }
    s->s = data;
    s->left = s->right = NULL;
    return true;
}

/* Counts the bytes that begin a character. */
static size_t count_chars(const char *s, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        n += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    return n;
}

/* Caches the count in the string, if the string belongs to this render. */
size_t js_chars(struct jstr *s)
{
    if (s->n_chars != SIZE_MAX) {
        return s->n_chars; // the characters of constants are counted at compile time, so renders
                           // never write to them
    }
    s->n_chars = count_chars(s->s, s->n_bytes);
    return s->n_chars;
}

/* In ASCII strings (equal numbers of bytes and characters) no search is needed. */
size_t js_offset(struct jstr *s, size_t at_char)
{
    if (js_chars(s) == s->n_bytes) {
        return lesser(at_char, s->n_bytes);
    }
    size_t i = 0;
    for (size_t n = 0; i < s->n_bytes; i++) {
        if (((unsigned char)s->s[i] & 0xC0) != 0x80 && n++ == at_char) {
            break;
        }
    }
    return i;
}

/* The first run that ends after `at`. */
static size_t find_run(const struct jstr *s, size_t at)
{
    size_t low = 0, high = s->n_runs;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (s->runs[mid].end > at) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

bool js_input_at(const struct jstr *s, size_t at)
{
    if (s->prov != PROV_MIXED) {
        return s->prov == PROV_INPUT;
    }
    size_t r = find_run(s, at);
    return r < s->n_runs && s->runs[r].input;
}

/* A part of s that shares its bytes. It gets the runs of that part, or no runs if it lies within
 * one. */
struct jstr *js_sub(struct jrt *rt, struct jstr *s, size_t at, size_t n_bytes)
{
    if (!js_flat(rt, s)) {
        return NULL;
    }
    if (at == 0 && n_bytes == s->n_bytes) {
        return s;
    }
    struct jstr *out = js_new(rt, s->s + at, n_bytes, s->prov);
    if (!out || s->prov != PROV_MIXED) {
        return out;
    }
    size_t first = find_run(s, at), last = first;
    while (last + 1 < s->n_runs && s->runs[last].end < at + n_bytes) {
        last++;
    }
    if (n_bytes == 0 || first >= s->n_runs || first == last) {
        if (n_bytes > 0 && first < s->n_runs && s->runs[first].input) {
            out->prov = PROV_INPUT;
        } else {
            out->prov = PROV_TEMPLATE;
        }
        return out;
    }
    struct jrun *runs = jrt_alloc(rt, last - first + 1, sizeof *runs);
    if (!runs) {
        return NULL;
    }
    for (size_t i = first; i <= last; i++) {
        size_t end = s->runs[i].end - at;
        runs[i - first] = (struct jrun){.end = lesser(end, n_bytes), .input = s->runs[i].input};
    }
    out->runs = runs;
    out->n_runs = last - first + 1;
    return out;
}

/* Joins by reference or by copying. A long left operand becomes a node with two children, so that a
 * loop that appends to a string (`ns.s = ns.s + x`) takes linear time: js_flat writes the text
 * once. Short operands are copied, since a node would cost more. b is always flat, so only left
 * operands are nodes. */
struct jstr *js_concat(struct jrt *rt, struct jstr *a, struct jstr *b)
{
    if (b->n_bytes == 0) {
        return a;
    }
    if (a->n_bytes == 0) {
        return b;
    }
    size_t n = a->n_bytes + b->n_bytes;
    if (n > JINJA_MAX_OUTPUT) {
        jrt_limit(rt, "a string is too long");
        return NULL;
    }
    if (!js_flat(rt, b)) {
        return NULL;
    }
    if (n >= ROPE_MIN_BYTES && a->n_bytes >= b->n_bytes) {
        struct jstr *out = js_new(rt, NULL, n, PROV_MIXED);
        if (out) {
            out->left = a;
            out->right = b;
            out->prov = a->prov == b->prov ? a->prov : PROV_MIXED;
        }
        return out;
    }
    struct jsb sb;
    jsb_init(&sb, rt);
    jsb_put_str(&sb, a);
    jsb_put_str(&sb, b);
    return jsb_done(&sb);
}

bool js_is(const struct jstr *s, const char *text)
{
    size_t n = strlen(text);
    return s->n_bytes == n && memcmp(s->s, text, n) == 0;
}

void jsb_init(struct jsb *b, struct jrt *rt)
{
    *b = (struct jsb){.rt = rt};
}

/* Grows by doubling, within the limit for the text of a render. Old blocks stay in the arena, which
 * at most doubles the memory. */
static bool reserve(struct jsb *b, size_t more)
{
    if (b->failed) {
        return false;
    }
    if (more > JINJA_MAX_OUTPUT - b->n_bytes) {
        b->failed = true;
        return jrt_limit(b->rt, "a text is too long");
    }
    if (b->n_bytes + more <= b->cap) {
        return true;
    }
    size_t cap = b->cap ? b->cap * 2 : 128;
    cap = greater(cap, b->n_bytes + more);
    char *s = jrt_alloc(b->rt, cap, 1);
    if (!s) {
        b->failed = true;
        return false;
    }
    if (b->n_bytes > 0) {
        memcpy(s, b->s, b->n_bytes);
    }
    b->s = s;
    b->cap = cap;
    return true;
}

/* Extends the last run if the provenance is the same. */
static bool add_run(struct jsb *b, size_t end, bool input)
{
    if (b->n_runs > 0 && b->runs[b->n_runs - 1].input == input) {
        b->runs[b->n_runs - 1].end = end;
        return true;
    }
    if (b->n_runs == b->cap_runs) {
        size_t cap = b->cap_runs ? b->cap_runs * 2 : 4;
        struct jrun *runs = jrt_alloc(b->rt, cap, sizeof *runs);
        if (!runs) {
            b->failed = true;
            return false;
        }
        if (b->n_runs > 0) {
            memcpy(runs, b->runs, b->n_runs * sizeof *runs);
        }
        b->runs = runs;
        b->cap_runs = cap;
    }
    b->runs[b->n_runs++] = (struct jrun){.end = end, .input = input};
    return true;
}

void jsb_put(struct jsb *b, const char *s, size_t n_bytes, bool input)
{
    if (n_bytes == 0 || !reserve(b, n_bytes) || !add_run(b, b->n_bytes + n_bytes, input)) {
        return;
    }
    memcpy(b->s + b->n_bytes, s, n_bytes);
    b->n_bytes += n_bytes;
}

void jsb_puts(struct jsb *b, const char *s)
{
    jsb_put(b, s, strlen(s), false);
}

void jsb_putc(struct jsb *b, char c, bool input)
{
    jsb_put(b, &c, 1, input);
}

void jsb_put_cp(struct jsb *b, uint32_t cp, bool input)
{
    char c[4];
    jsb_put(b, c, utf8_encode(cp, c), input);
}

void jsb_put_range(struct jsb *b, struct jstr *s, size_t at, size_t n_bytes)
{
    if (s->prov != PROV_MIXED) {
        jsb_put(b, s->s + at, n_bytes, s->prov == PROV_INPUT);
        return;
    }
    size_t end = at + n_bytes;
    for (size_t r = find_run(s, at); r < s->n_runs && at < end; r++) {
        size_t to = lesser(s->runs[r].end, end);
        jsb_put(b, s->s + at, to - at, s->runs[r].input);
        at = to;
    }
}

void jsb_put_str(struct jsb *b, struct jstr *s)
{
    if (!js_flat(b->rt, s)) {
        b->failed = true;
        return;
    }
    jsb_put_range(b, s, 0, s->n_bytes);
}

/* Appends s `times` times. */
void jsb_fill(struct jsb *b, struct jstr *s, size_t times)
{
    if (s->n_bytes > 0 && times > JINJA_MAX_OUTPUT / s->n_bytes) {
        b->failed = true;
        jrt_limit(b->rt, "a string is too long");
        return;
    }
    if (s->n_bytes == 0 || times == 0 || !reserve(b, s->n_bytes * times)) {
        return;
    }
    for (size_t i = 0; i < times && !b->failed; i++) {
        jsb_put_str(b, s);
    }
}

struct jstr *jsb_done(struct jsb *b)
{
    if (b->failed) {
        return NULL;
    }
    struct jstr *out = js_new(b->rt, b->n_bytes > 0 ? b->s : "", b->n_bytes, PROV_TEMPLATE);
    if (out && b->n_runs == 1) {
        out->prov = b->runs[0].input ? PROV_INPUT : PROV_TEMPLATE;
    } else if (out && b->n_runs > 1) {
        out->prov = PROV_MIXED;
        out->runs = b->runs;
        out->n_runs = b->n_runs;
    }
    return out;
}
