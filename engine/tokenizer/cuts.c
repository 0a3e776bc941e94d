// SPDX-License-Identifier: Apache-2.0
/* Where a long piece may be cut before merging.
 *
 * A merge of l and r can join neighbouring characters A and B only if l ends with A (or its last
 * bytes) and r begins with B (or its first bytes). So each merge forbids some cuts, and a cut
 * between characters that no merge joins changes nothing. SentencePiece text can be cut at its ▁,
 * and Chinese between most characters, so the parts are short, and frequent enough for the cache.
 * The forbidden pairs are stored in a filter that may have false positives; these only cost
 * cuts. */
#include "engine/tokenizer/impl.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

struct cuts {
    uint64_t ascii[128][2]; // [A]: set of the B that may not be cut from A
    uint64_t filter[1 << 13];
    // Few merges contain only a part of a character's bytes. These bit sets say where to look for
    // such merges.
    uint64_t before_part[64]; // whole characters A before a partial B
    uint64_t after_part[64];  // whole characters B after a partial A
    uint64_t two_parts[4];    // first bytes of B where both are partial
    bool forms[4][4];         // which forms occur: 0 whole, k: the last or first k bytes
};

/* The key of a character. A whole character's key is its code point; that of a part contains its
 * bytes and is larger than all code points. */
static uint64_t part(const char *s, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        v = v << 8 | (unsigned char)s[i];
    }
    return v | (uint64_t)(n + 1) << 32;
}

static uint64_t whole(const char *s)
{
    uint32_t cp;
    unicode_next(s, &cp);
    return cp;
}

static uint64_t bit_of(uint64_t a, uint64_t b)
{
    return (a * 0x9E3779B97F4A7C15ULL ^ b * 0xC2B2AE3D27D4EB4FULL) * 0xD6E8FEB86659FD93ULL >> 45;
}

static void set_bit(uint64_t *bits, uint64_t bit)
{
    bits[bit / 64] |= 1ULL << (bit % 64);
}

static bool has_bit(const uint64_t *bits, uint64_t bit)
{
    return bits[bit / 64] >> (bit % 64) & 1;
}

static uint64_t small_bit(uint64_t cp)
{
    return cp * 0x9E3779B97F4A7C15ULL >> 52;
}

static bool is_tail(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* How l spells its last character. *at, *bytes: what to compare; *form: 0 for a whole character,
 * otherwise the number of its bytes. False if l does not end at a character border. */
static bool last_of(const char *s, size_t n, const char **at, size_t *bytes, size_t *form)
{
    size_t i = n;
    while (i > 0 && n - i < 4 && is_tail(s[i - 1])) {
        i--;
    }
    size_t tails = n - i;
    if (i == 0 || tails == 4) { // there are only continuation bytes
        *at = s + i;
        *bytes = *form = tails;
        return tails > 0 && tails < 4;
    }
    *at = s + i - 1;
    *bytes = tails + 1;
    *form = 0;
    return unicode_lead_length((unsigned char)s[i - 1]) == *bytes;
}

static bool first_of(const char *s, size_t n, size_t *bytes, size_t *form)
{
    if (n == 0 || is_tail(s[0])) {
        return false;
    }
    size_t whole = unicode_lead_length((unsigned char)s[0]);
    *bytes = lesser(n, whole);
    *form = n < whole ? n : 0;
    return true;
}

/* Records which characters a merge may join. Between any other neighbours a text can be cut without
 * changing its tokens. */
static void note_merge(struct cuts *c, const char *l, size_t n_l, const char *r, size_t n_r)
{
    const char *a;
    size_t a_bytes, a_form, b_bytes, b_form;
    if (!last_of(l, n_l, &a, &a_bytes, &a_form) || !first_of(r, n_r, &b_bytes, &b_form)) {
        return;
    }
    if (a_form == 0 && b_form == 0 && a_bytes == 1 && b_bytes == 1) {
        unsigned char b = (unsigned char)r[0] & 127;
        c->ascii[(unsigned char)a[0] & 127][b / 64] |= 1ULL << (b % 64);
        return;
    }
    uint64_t a_name = a_form ? part(a, a_bytes) : whole(a);
    uint64_t b_name = b_form ? part(r, b_bytes) : whole(r);
    c->forms[a_form][b_form] = true;
    set_bit(c->filter, bit_of(a_name, b_name));
    if (a_form == 0 && b_form > 0) {
        set_bit(c->before_part, small_bit(a_name));
    } else if (a_form > 0 && b_form == 0) {
        set_bit(c->after_part, small_bit(b_name));
    } else if (a_form > 0) {
        set_bit(c->two_parts, (unsigned char)r[0]);
    }
}

/* Cuts are safe only if every character has symbols: an unknown token may be fused with its
 * neighbour, and a dropped character makes its neighbours adjacent. */
static bool may_cut(const struct tokenizer *tok)
{
    const struct bpe *bpe = &tok->bpe;
    if (bpe->has_affixes || (!tok->byte_level && !bpe->byte_fallback)) {
        return false;
    }
    const int32_t *all = tok->byte_level ? bpe->byte_symbol : bpe->byte_token;
    for (int b = 0; b < 256; b++) {
        if (all[b] < 0) {
            return false;
        }
    }
    return true;
}

static bool is_byte_token(const struct tokenizer *tok, int32_t id)
{
    size_t n;
    const char *s = strings_get(&tok->texts, id, &n);
    return !tok->byte_level && s && n == 6 && memcmp(s, "<0x", 3) == 0;
}

/* Returns NULL if this tokenizer's pieces cannot be cut safely. */
struct cuts *cuts_make(const struct tokenizer *tok)
{
    const struct merge_table *merges = &tok->bpe.merges.table;
    const struct strings *keys = tok->byte_level ? &tok->keys : &tok->texts;
    if (!may_cut(tok)) {
        return NULL;
    }
    struct cuts *c = xcalloc(1, sizeof *c);
    for (size_t i = 0; i < (size_t)1 << (64 - merges->shift); i++) {
        if (merges->slots[i].pair == UINT64_MAX) {
            continue;
        }
        int32_t left = (int32_t)(merges->slots[i].pair >> 32);
        int32_t right = (int32_t)merges->slots[i].pair;
        size_t n_l, n_r;
        const char *l = strings_get(keys, left, &n_l), *r = strings_get(keys, right, &n_r);
        if (is_byte_token(tok, left) || is_byte_token(tok, right)) {
            // Fallback bytes take part in merges, although they are not spelled like the text.
            cuts_free(c);
            return NULL;
        }
        if (l && r) {
            note_merge(c, l, n_l, r, n_r);
        }
    }
    return c;
}

void cuts_free(struct cuts *cuts)
{
    free(cuts);
}

static bool joined_by_parts(const struct cuts *c, const char *a, size_t n_a, const char *b,
                            size_t n_b)
{
    for (size_t i = 0; i < 4 && i < n_a; i++) {
        uint64_t last = i == 0 ? whole(a) : part(a + n_a - i, i);
        for (size_t j = 0; j < 4 && j < n_b; j++) {
            if (i + j > 0 && c->forms[i][j] &&
                has_bit(c->filter, bit_of(last, j == 0 ? whole(b) : part(b, j)))) {
                return true;
            }
        }
    }
    return false;
}

/* The next place after `from` at which cutting changes nothing; n if there is none. */
size_t cuts_next(const struct cuts *cuts, const char *s, size_t n, size_t from)
{
    uint32_t a, b;
    size_t n_a = unicode_next(s + from, &a), at = from + n_a;
    while (at < n) {
        size_t n_b = unicode_next(s + at, &b);
        if (a < 128 && b < 128) {
            if (!(cuts->ascii[a][b / 64] >> (b % 64) & 1)) {
                return at;
            }
        } else if (!has_bit(cuts->filter, bit_of(a, b))) {
            bool parts = has_bit(cuts->two_parts, (unsigned char)s[at]) ||
                         has_bit(cuts->before_part, small_bit(a)) ||
                         has_bit(cuts->after_part, small_bit(b));
            if (!parts || !joined_by_parts(cuts, s + at - n_a, n_a, s + at, n_b)) {
                return at;
            }
        }
        a = b;
        n_a = n_b;
        at += n_b;
    }
    return n;
}
