// SPDX-License-Identifier: Apache-2.0
#include "engine/base/utf8.h"

#include <string.h>

/* Expected length by first byte, and the allowed range of the second byte, which excludes overlong
 * forms, surrogates and code points above U+10FFFF. */
static size_t lead(unsigned char c, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (c < 0x80) {
        return 1;
    }
    if (c >= 0xC2 && c <= 0xDF) {
        return 2;
    }
    if (c >= 0xE0 && c <= 0xEF) {
        *low = c == 0xE0 ? 0xA0 : 0x80;
        *high = c == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        *low = c == 0xF0 ? 0x90 : 0x80;
        *high = c == 0xF4 ? 0x8F : 0xBF;
        return 4;
    }
    return 0;
}

/* The number of bytes at s that may begin a valid character. *want becomes the full length of that
 * character, or 0 if the first byte is bad. */
static size_t good_prefix(const char *s, size_t n_bytes, size_t *want)
{
    if (n_bytes == 0) {
        *want = 0;
        return 0;
    }
    const unsigned char *u = (const unsigned char *)s;
    unsigned char low, high;
    *want = lead(u[0], &low, &high);
    if (*want == 0) {
        return 0;
    }
    size_t n = 1;
    while (n < *want && n < n_bytes && u[n] >= low && u[n] <= high) {
        low = 0x80;
        high = 0xBF;
        n++;
    }
    return n;
}

size_t utf8_valid_length(const char *s, size_t n_bytes)
{
    size_t want;
    size_t n = good_prefix(s, n_bytes, &want);
    if (want > 0 && n == want) {
        return n;
    }
    return 0;
}

size_t utf8_maximal_subpart(const char *s, size_t n_bytes)
{
    size_t want;
    size_t n = good_prefix(s, n_bytes, &want);
    return n > 0 ? n : 1;
}

bool utf8_is_incomplete(const char *s, size_t n_bytes)
{
    size_t want;
    size_t n = good_prefix(s, n_bytes, &want);
    return n_bytes > 0 && n == n_bytes && n < want;
}

size_t utf8_decode(const char *s, size_t n_bytes, uint32_t *cp)
{
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    size_t n = utf8_valid_length(s, n_bytes);
    if (n == 0) {
        return 0;
    }
    uint32_t v = (unsigned char)s[0] & mask[n];
    for (size_t i = 1; i < n; i++) {
        v = v << 6 | ((unsigned char)s[i] & 0x3F);
    }
    *cp = v;
    return n;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

/* Skips eight ASCII bytes at a time; returns the offset of the first invalid byte. */
size_t utf8_check(const char *s, size_t n_bytes)
{
    size_t i = 0;
    while (i < n_bytes) {
        uint64_t word;
        while (i + 8 <= n_bytes && (memcpy(&word, s + i, 8), !(word & 0x8080808080808080ULL))) {
            i += 8;
        }
        if (i >= n_bytes) {
            break;
        }
        size_t n = utf8_valid_length(s + i, n_bytes - i);
        if (n == 0) {
            return i;
        }
        i += n;
    }
    return n_bytes;
}
