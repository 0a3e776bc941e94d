// SPDX-License-Identifier: Apache-2.0
/* SentencePiece's compiled normalisation rules: a double-array trie over UTF-8 whose values are
 * offsets of replacement strings. Layout: u32 size of the trie in bytes, the trie's u32 units, then
 * the replacements, each NUL-terminated. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *text;
    size_t n_text;
};

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;
    return p ? (int)(p - digits) : -1;
}

/* `out` has room for 3 / 4 of n bytes. Stops at the first "=". */
static bool base64_decode(const char *s, size_t n, unsigned char *out, size_t *n_out)
{
    uint32_t acc = 0;
    int bits = 0;
    size_t k = 0;
    for (size_t i = 0; i < n && s[i] != '='; i++) {
        int v = base64_value(s[i]);
        if (v < 0) {
            return false;
        }
        acc = acc << 6 | (uint32_t)v;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[k++] = (unsigned char)(acc >> bits);
        }
    }
    *n_out = k;
    return true;
}

static uint32_t read_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Returns NULL if the data is malformed. Offsets are checked again whenever they are used. */
struct charsmap *charsmap_load(const char *base64, size_t n_bytes)
{
    unsigned char *raw = xmalloc(n_bytes + 4);
    size_t n = 0;
    struct charsmap *map = NULL;
    if (!base64_decode(base64, n_bytes, raw, &n) || n < 4) {
        goto done;
    }
    size_t trie_bytes = read_u32(raw);
    if (trie_bytes > n - 4 || trie_bytes % 4 != 0 || trie_bytes == 0) {
        goto done;
    }
    map = xcalloc(1, sizeof *map);
    map->n_units = trie_bytes / 4;
    map->units = xmalloc(trie_bytes);
    for (size_t i = 0; i < map->n_units; i++) {
        map->units[i] = read_u32(raw + 4 + 4 * i);
    }
    map->n_text = n - 4 - trie_bytes;
    map->text = xmalloc(map->n_text + 1);
    memcpy(map->text, raw + 4 + trie_bytes, map->n_text);
    map->text[map->n_text] = '\0';
done:
    free(raw);
    return map;
}

void charsmap_free(struct charsmap *map)
{
    if (map) {
        free(map->units);
        free(map->text);
        free(map);
    }
}

/* Layout of a unit: bit 8 says that the node has a value; bits 10 and up are the offset of the
 * children (times 256 if bit 9 is set); bits 0 to 7 and 31 are the label. */
static size_t children_of(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 512u) >> 6);
}

/* The replacement of the shortest rule that is a prefix of s, as the library chooses; NULL: no rule
 * matches. */
static const char *lookup(const struct charsmap *map, const char *s, size_t n)
{
    size_t at = children_of(map->units[0]);
    for (size_t i = 0; i < n && s[i] != '\0'; i++) {
        at ^= (unsigned char)s[i];
        if (at >= map->n_units) {
            return NULL;
        }
        uint32_t unit = map->units[at];
        if ((unit & 0x800000FFu) != (unsigned char)s[i]) {
            return NULL;
        }
        at ^= children_of(unit);
        if (unit & 256u) {
            if (at >= map->n_units) {
                return NULL;
            }
            size_t offset = map->units[at] & 0x7FFFFFFFu;
            const char *by = offset < map->n_text ? map->text + offset : NULL;
            // A malformed file must not produce malformed text: all later code relies on valid
            // UTF-8.
            if (by && utf8_check(by, strlen(by)) == strlen(by)) {
                return by;
            }
            return NULL;
        }
    }
    return NULL;
}

/* The length in bytes of the grapheme cluster at s. */
static size_t grapheme(const char *s, size_t n)
{
    uint32_t a, b;
    utf8proc_int32_t state = 0;
    size_t i = unicode_next(s, &a);
    while (i < n) {
        size_t width = unicode_next(s + i, &b);
        if (utf8proc_grapheme_break_stateful((int32_t)a, (int32_t)b, &state)) {
            break;
        }
        i += width;
        a = b;
    }
    return i;
}

/* As in SentencePiece, a whole grapheme is replaced if there is a rule for it, and otherwise each
 * of its characters for which there is one. */
void charsmap_apply(const struct charsmap *map, const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        size_t cluster = grapheme(s + i, n - i);
        const char *by = cluster < 6 ? lookup(map, s + i, cluster) : NULL;
        if (by) {
            buf_puts(out, by);
            i += cluster;
            continue;
        }
        for (size_t end = i + cluster; i < end;) {
            size_t width = unicode_lead_length((unsigned char)s[i]);
            by = lookup(map, s + i, width);
            if (by) {
                buf_puts(out, by);
            } else {
                buf_put(out, s + i, width);
            }
            i += width;
        }
    }
}
