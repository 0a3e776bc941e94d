// SPDX-License-Identifier: Apache-2.0
/* Byte-pair encoding: what is prepared at load, and how a piece goes through the cache and is cut
 * into parts before the merges (bpe_merge.c). */
#include "engine/tokenizer/impl.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUT_BYTES = 12 }; // chosen: longer pieces are worth cutting; anything from 6 to 24 works

static int32_t find_byte_token(const struct tokenizer *tok, int byte)
{
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    return string_table_find(&tok->by_text, name, 6);
}

/* Looks up the symbols of single bytes once, so that the common case needs no search. */
enum status bpe_load(struct tokenizer *tok)
{
    struct bpe *bpe = &tok->bpe;
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        size_t n = utf8_encode(
            tok->byte_level ? unicode_byte_symbol((unsigned char)b) : (uint32_t)b, utf8);
        bool single = tok->byte_level || b < 128;
        if (single) {
            bpe->byte_symbol[b] = string_table_find(&tok->by_text, utf8, n);
        } else {
            bpe->byte_symbol[b] = -1;
        }
        bpe->byte_token[b] = find_byte_token(tok, b);
    }
    bpe->all_bytes = tok->byte_level && !bpe->prefix[0] && !bpe->suffix[0];
    for (int b = 0; b < 256; b++) {
        bpe->all_bytes = bpe->all_bytes && bpe->byte_symbol[b] >= 0;
    }
    bpe->has_affixes = bpe->prefix[0] != '\0' || bpe->suffix[0] != '\0';
    return OK;
}

/* Merges of two bytes have a separate table, because they are the first step of nearly every
 * piece. */
static enum status make_byte_pairs(const struct bpe *bpe, struct merge_rules *rules,
                                   struct err *err)
{
    rules->byte_pairs = malloc(65536 * sizeof *rules->byte_pairs);
    if (!rules->byte_pairs) {
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (int i = 0; i < 65536; i++) {
        const struct merge_slot *m =
            merge_table_find(&rules->table, bpe->byte_symbol[i >> 8], bpe->byte_symbol[i & 255]);
        rules->byte_pairs[i] =
            m ? (struct byte_pair){m->rank, m->id} : (struct byte_pair){UINT32_MAX, -1};
    }
    return OK;
}

/* A second set of rules, for user input, which must not yield special tokens; needed only if a
 * merge produces one. */
static enum status make_guarded(struct tokenizer *tok, struct err *err)
{
    struct bpe *bpe = &tok->bpe;
    size_t n_slots = (size_t)1 << (64 - bpe->merges.table.shift);
    for (size_t i = 0; i < n_slots; i++) {
        const struct merge_slot *m = &bpe->merges.table.slots[i];
        if (m->pair == UINT64_MAX || !tokenizer_is_special(tok, m->id)) {
            continue;
        }
        if (!bpe->has_guarded) {
            bpe->guarded.table = bpe->merges.table;
            bpe->guarded.table.slots = malloc(n_slots * sizeof *m);
            if (!bpe->guarded.table.slots) {
                return err_set(err, ERR_NOMEM, "out of memory");
            }
            memcpy(bpe->guarded.table.slots, bpe->merges.table.slots, n_slots * sizeof *m);
            bpe->has_guarded = true;
        }
        bpe->guarded.table.slots[i].rank = UINT32_MAX;
    }
    if (bpe->has_guarded && tok->byte_level) {
        return make_byte_pairs(bpe, &bpe->guarded, err);
    }
    return OK;
}

enum status bpe_finish(struct tokenizer *tok, struct err *err)
{
    TRY(make_guarded(tok, err));
    tok->bpe.cuts = cuts_make(tok);
    if (tok->byte_level) {
        return make_byte_pairs(&tok->bpe, &tok->bpe.merges, err);
    }
    return OK;
}

void bpe_deinit(struct bpe *bpe)
{
    free(bpe->merges.table.slots);
    free(bpe->merges.byte_pairs);
    free(bpe->guarded.table.slots);
    free(bpe->guarded.byte_pairs);
    free(bpe->prefix);
    free(bpe->suffix);
    cuts_free(bpe->cuts);
}

/* ---- the cache of pieces: direct-mapped, one line per entry, keyed hash, full comparison ---- */

enum { CACHE_BITS = 14, KEY_BYTES = 31, VALUE_IDS = 7 };

/* A piece and its ids. Both have fixed sizes, so reading a slot is one memory access. */
struct cache_slot {
    uint64_t key[4]; // the bytes, zero-padded; the last byte holds the length and a tag
    int32_t n;       // 0: empty
    int32_t id[VALUE_IDS];
};
/* One text can encode in several ways: as a whole piece; as a part of a piece, if ignore_merges
 * makes a difference; and as user input, which yields no special token. */
enum { TAG_PART = 0x80, TAG_INPUT = 0x40 };
struct piece_cache {
    struct cache_slot *slots; // 64-byte aligned
    uint64_t secret[2];
};

/* Each scratch has its own cache, so threads do not share it. Secret keys keep clients from
 * choosing texts that collide. */
static struct piece_cache *cache_new(void)
{
    struct piece_cache *c = xcalloc(1, sizeof *c);
    size_t bytes = sizeof(struct cache_slot) << CACHE_BITS;
    c->slots = aligned_alloc(64, bytes);
    if (!c->slots) {
        free(c);
        return NULL;
    }
    memset(c->slots, 0, bytes);
    c->secret[0] = hash_process_key() | 1;
    c->secret[1] = hash_mix(c->secret[0]) | 1;
    return c;
}

void piece_cache_free(struct piece_cache *cache)
{
    if (cache) {
        free(cache->slots);
        free(cache);
    }
}

static inline uint64_t load64(const char *s)
{
    uint64_t v;
    memcpy(&v, s, 8);
    return v;
}

/* Reads up to 8 bytes without reading past the end. */
static inline uint64_t load_tail(const char *s, size_t n)
{
    if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, s, 4);
        memcpy(&b, s + n - 4, 4);
        return (uint64_t)a | (uint64_t)b << (8 * (n - 4));
    }
    if (n == 0) {
        return 0;
    }
    return (uint64_t)(unsigned char)s[0] | (uint64_t)(unsigned char)s[n / 2] << (8 * (n / 2)) |
           (uint64_t)(unsigned char)s[n - 1] << (8 * (n - 1));
}

/* The tag separates users' text from the text of templates, whose merges may differ. */
static inline void make_key(const char *s, size_t n, unsigned tag, uint64_t key[4])
{
    size_t i = 0, left = n;
    key[0] = key[1] = key[2] = key[3] = 0;
    for (; left >= 8; i++, s += 8, left -= 8) {
        key[i] = load64(s);
    }
    key[i] |= load_tail(s, left);
    key[3] |= (uint64_t)(n | tag) << 56;
}

static inline struct cache_slot *slot_for(const struct piece_cache *c, const uint64_t key[4],
                                          size_t n)
{
    __uint128_t p = (__uint128_t)(key[0] ^ c->secret[0]) * (key[1] ^ key[3] ^ c->secret[1]);
    uint64_t h = (uint64_t)p ^ (uint64_t)(p >> 64);
    if (n >= 16) {
        p = (__uint128_t)(key[2] ^ h ^ c->secret[1]) * (key[3] ^ c->secret[0]);
        h = (uint64_t)p ^ (uint64_t)(p >> 64);
    }
    return &c->slots[h >> (64 - CACHE_BITS)];
}

static inline bool slot_has(const struct cache_slot *slot, const uint64_t key[4])
{
    return ((slot->key[0] ^ key[0]) | (slot->key[1] ^ key[1]) | (slot->key[2] ^ key[2]) |
            (slot->key[3] ^ key[3])) == 0 &&
           slot->n > 0;
}

static inline enum status emit_slot(struct scratch *sc, const struct cache_slot *slot)
{
    struct ids *out = sc->out;
    if (out->cap - out->n >= VALUE_IDS) {
        memcpy(out->v + out->n, slot->id, sizeof slot->id);
        out->n += (size_t)slot->n;
        return OK;
    }
    return emit_many(sc, slot->id, (size_t)slot->n);
}

/* Stores the ids appended since `before` in the cache. */
static void slot_fill(struct cache_slot *slot, const uint64_t key[4], const struct ids *out,
                      size_t before)
{
    size_t n = out->n - before;
    if (n > 0 && n <= VALUE_IDS) {
        memcpy(slot->key, key, sizeof slot->key);
        memcpy(slot->id, out->v + before, n * sizeof *out->v);
        slot->n = (int32_t)n;
    }
}

static unsigned input_tag(const struct tokenizer *tok, const struct scratch *sc)
{
    bool matters = tok->bpe.ignore_merges || tok->bpe.has_guarded;
    if (matters && sc->has_input) {
        return TAG_INPUT;
    }
    return 0;
}

/* Encodes a part of a piece, between two cuts. */
static enum status encode_part(const struct tokenizer *tok, struct scratch *sc, const char *s,
                               size_t n)
{
    if (n > KEY_BYTES) {
        return bpe_merge_piece(tok, sc, s, n);
    }
    uint64_t key[4];
    make_key(s, n, (tok->bpe.ignore_merges ? TAG_PART : 0) | input_tag(tok, sc), key);
    struct cache_slot *slot = slot_for(sc->cache, key, n);
    if (slot_has(slot, key)) {
        return emit_slot(sc, slot);
    }
    size_t before = sc->out->n;
    TRY(bpe_merge_piece(tok, sc, s, n));
    slot_fill(slot, key, sc->out, before);
    return OK;
}

static enum status encode_parts(const struct tokenizer *tok, struct scratch *sc, const char *s,
                                size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t end = cuts_next(tok->bpe.cuts, s, n, at);
        TRY(encode_part(tok, sc, s + at, end - at));
        at = end;
    }
    return OK;
}

/* Encodes a piece that is not in the cache. */
static enum status encode_new(const struct tokenizer *tok, struct scratch *sc, const char *s,
                              size_t n)
{
    if (tok->bpe.ignore_merges) {
        const struct string_table *t;
        if (tok->byte_level) {
            t = &tok->by_key;
        } else {
            t = &tok->by_text;
        }
        int32_t id = string_table_find(t, s, n);
        if (id >= 0 && !is_barred(tok, sc, id)) {
            return emit(sc, id);
        }
    }
    if (tok->bpe.cuts && n > CUT_BYTES) {
        return encode_parts(tok, sc, s, n);
    }
    return bpe_merge_piece(tok, sc, s, n);
}

/* Appends a piece's ids from the cache, or merges the piece and caches the result if it is short
 * enough. */
enum status bpe_encode(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n)
{
    if (!sc->cache && !(sc->cache = cache_new())) {
        return err_set(sc->err, ERR_NOMEM, "out of memory");
    }
    if (n > KEY_BYTES) {
        return encode_new(tok, sc, s, n);
    }
    uint64_t key[4];
    make_key(s, n, input_tag(tok, sc), key);
    struct cache_slot *slot = slot_for(sc->cache, key, n);
    if (slot_has(slot, key)) {
        return emit_slot(sc, slot);
    }
    size_t before = sc->out->n;
    TRY(encode_new(tok, sc, s, n));
    // A part of the piece may have taken the slot in the meantime; the whole piece is more useful
    // there.
    slot_fill(slot, key, sc->out, before);
    return OK;
}
