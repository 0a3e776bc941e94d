// SPDX-License-Identifier: Apache-2.0
/* See buf.h. A failed append sets `failed`; n_lost counts the thread's failed allocations. */
#include "engine/base/buf.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max_bytes)
{
    *b = (struct buf){.max_bytes = max_bytes};
}

void buf_deinit(struct buf *b)
{
    free(b->data);
    b->data = NULL;
    b->n_bytes = b->cap = 0;
}

void buf_clear(struct buf *b)
{
    b->n_bytes = 0;
    b->failed = false;
    if (b->data) {
        b->data[0] = '\0';
    }
}

static _Thread_local uint64_t n_lost;

uint64_t buf_n_lost(void)
{
    return n_lost;
}

/* Always leaves room for one more byte, the NUL. Growing by half makes an append cost O(1) on
 * average. */
bool buf_reserve(struct buf *b, size_t more_bytes)
{
    if (b->failed || more_bytes > b->max_bytes - b->n_bytes) {
        b->failed = true;
        return false;
    }
    size_t need = b->n_bytes + more_bytes + 1;
    if (need <= b->cap) {
        return true;
    }
    size_t cap = b->cap ? b->cap : 64;
    while (cap < need) {
        cap += cap / 2 + 64;
    }
    char *data = realloc(b->data, cap);
    if (!data) {
        n_lost++;
        b->failed = true;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

/* Nothing is appended unless all of it fits. */
void buf_put(struct buf *b, const void *bytes, size_t n_bytes)
{
    if (!buf_reserve(b, n_bytes)) {
        return;
    }
    if (n_bytes > 0) {
        memcpy(b->data + b->n_bytes, bytes, n_bytes);
    }
    b->n_bytes += n_bytes;
    b->data[b->n_bytes] = '\0';
}

void buf_move(struct buf *b, struct buf *from)
{
    buf_put(b, from->data, from->n_bytes);
    b->failed |= from->failed;
    buf_clear(from);
}

void buf_puts(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_put(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0 && buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->n_bytes, (size_t)n + 1, fmt, again);
        b->n_bytes += (size_t)n;
    }
    va_end(again);
}

/* Writes the digits from last to first. The number is negated as unsigned because INT64_MIN has no
 * positive counterpart. */
void buf_put_int(struct buf *b, int64_t v)
{
    char digits[24];
    char *p = digits + sizeof digits;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do {
        *--p = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (v < 0) {
        *--p = '-';
    }
    buf_put(b, p, (size_t)(digits + sizeof digits - p));
}

/* Escapes a character that JSON does not allow unescaped, by its short form if it has one. */
static void put_escaped(struct buf *b, unsigned char c)
{
    switch (c) {
    case '"': buf_put(b, "\\\"", 2); break;
    case '\\': buf_put(b, "\\\\", 2); break;
    case '\n': buf_put(b, "\\n", 2); break;
    case '\r': buf_put(b, "\\r", 2); break;
    case '\t': buf_put(b, "\\t", 2); break;
    default: buf_printf(b, "\\u%04x", c); break;
    }
}

/* Non-ASCII characters that some readers treat as line ends (Python's splitlines, and HTTP clients
 * built on it), which would split a one-line answer or an event. Returns the length of such a
 * character at s, or 0. */
static int other_line_end(const char *s, size_t n_bytes)
{
    if (n_bytes == 2) {
        return memcmp(s, "\xC2\x85", 2) == 0 ? 0x85 : 0;
    }
    if (n_bytes == 3 && memcmp(s, "\xE2\x80", 2) == 0 && (s[2] & 0xFE) == 0xA8) {
        return 0x2000 | (s[2] & 0x3F);
    }
    return 0;
}

/* Runs without special bytes are copied whole. Line ends that JavaScript knows besides \n
 * are escaped, so that a line of JSON stays one line everywhere. */
void buf_put_json(struct buf *b, const char *s, size_t n_bytes)
{
    buf_putc(b, '"');
    size_t start = 0, i = 0;
    while (i < n_bytes) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        size_t n = c < 0x80 ? 0 : utf8_valid_length(s + i, n_bytes - i);
        int line_end = n > 0 ? other_line_end(s + i, n) : 0;
        if (n > 0 && !line_end) {
            i += n;
            continue;
        }
        buf_put(b, s + start, i - start);
        if (line_end) {
            buf_printf(b, "\\u%04x", line_end);
            i += n;
        } else if (c < 0x80) {
            put_escaped(b, c);
            i++;
        } else {
            buf_put(b, "\xEF\xBF\xBD", 3);
            i += utf8_maximal_subpart(s + i, n_bytes - i);
        }
        start = i;
    }
    buf_put(b, s + start, i - start);
    buf_putc(b, '"');
}

/* The shortest of 15 to 17 digits that reads back as the same number; JSON has no infinity
 * or NaN. */
void buf_put_double(struct buf *b, double v)
{
    if (!isfinite(v)) {
        buf_puts(b, "null");
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) {
            break;
        }
    }
    buf_puts(b, text);
}

void buf_consume(struct buf *b, size_t n_bytes)
{
    size_t n = lesser(n_bytes, b->n_bytes);
    if (n > 0) {
        memmove(b->data, b->data + n, b->n_bytes - n + 1);
        b->n_bytes -= n;
    }
}
