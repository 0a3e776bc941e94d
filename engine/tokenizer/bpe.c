/* Byte-pair encoding: lowest rank first, leftmost among equals, as the library's queue has it. */
#include "engine/tokenizer/impl.h"

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL = 48,     // symbols up to which scanning for the minimum beats a heap; 32 to 64 is flat
    CUT_BYTES = 12, // a piece above this is worth cutting; anything in 6 to 24 works
};

static int32_t find_byte_token(const struct tokenizer *tok, int byte)
{
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    return string_table_find(&tok->by_text, name, 6);
}

enum status bpe_load(struct tokenizer *tok)
{
    struct bpe *bpe = &tok->bpe;
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        size_t n = utf8_encode(tok->byte_level ? unicode_byte_symbol((unsigned char)b)
                                               : (uint32_t)b, utf8);
        bool single = tok->byte_level || b < 128;
        bpe->byte_symbol[b] = single ? string_table_find(&tok->by_text, utf8, n) : -1;
        bpe->byte_token[b] = find_byte_token(tok, b);
    }
    bpe->all_bytes = tok->byte_level && !bpe->prefix[0] && !bpe->suffix[0];
    for (int b = 0; b < 256; b++) {
        bpe->all_bytes = bpe->all_bytes && bpe->byte_symbol[b] >= 0;
    }
    bpe->has_affixes = bpe->prefix[0] != '\0' || bpe->suffix[0] != '\0';
    return OK;
}

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
        rules->byte_pairs[i] = m ? (struct byte_pair){m->rank, m->id}
                                 : (struct byte_pair){UINT32_MAX, -1};
    }
    return OK;
}

/* A second set of rules where a merge makes a special token, which the user's text must not. */
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
    return bpe->has_guarded && tok->byte_level ? make_byte_pairs(bpe, &bpe->guarded, err) : OK;
}

enum status bpe_finish(struct tokenizer *tok, struct err *err)
{
    TRY(make_guarded(tok, err));
    tok->bpe.cuts = cuts_make(tok);
    return tok->byte_level ? make_byte_pairs(&tok->bpe, &tok->bpe.merges, err) : OK;
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

static const struct merge_rules *rules_for(const struct tokenizer *tok, const struct scratch *sc)
{
    return sc->has_input && tok->bpe.has_guarded ? &tok->bpe.guarded : &tok->bpe.merges;
}

/* ---- symbols ---- */

struct symbol {
    int32_t id, merged; // merged: what this and the next become
    uint32_t rank;      // of that; UINT32_MAX: they do not merge
    uint32_t prev, next;
};

struct word {
    const struct tokenizer *tok;
    struct scratch *sc;
    size_t n;
    bool has_unk; // one is waiting: the library adds it before the next known symbol
    bool fails;   // an unknown character, and the unk_token is not in the vocabulary
};

static bool symbols_reserve(struct scratch *sc, size_t n)
{
    if (n <= sc->cap_symbols) {
        return true;
    }
    size_t cap = n < 1024 ? 1024 : n + n / 2;
    struct symbol *p = cap < UINT32_MAX ? realloc(sc->symbols, cap * sizeof *p) : NULL;
    if (p) {
        sc->symbols = p;
        sc->cap_symbols = cap;
    }
    return p != NULL;
}

static void word_put(struct word *w, int32_t id)
{
    w->sc->symbols[w->n++].id = id;
}

static void word_flush_unk(struct word *w)
{
    if (w->has_unk) {
        word_put(w, w->tok->bpe.unk);
        w->has_unk = false;
    }
}

/* A character that the vocabulary lacks: its bytes, or the unknown token, or nothing. */
static void word_put_unknown(struct word *w, const char *s, size_t n)
{
    const struct bpe *bpe = &w->tok->bpe;
    bool all = bpe->byte_fallback;
    for (size_t i = 0; all && i < n; i++) {
        all = bpe->byte_token[(unsigned char)s[i]] >= 0;
    }
    if (all) {
        for (size_t i = 0; i < n; i++) {
            word_put(w, bpe->byte_token[(unsigned char)s[i]]);
        }
    } else if (bpe->unk >= 0) {
        if (w->has_unk && !bpe->fuse_unk) {
            word_put(w, bpe->unk);
        }
        w->has_unk = true;
    } else {
        w->fails = w->fails || bpe->unk == UNK_MISSING;
    }
}

/* One character, spelled s in the vocabulary. */
static void word_put_char(struct word *w, const char *s, size_t n)
{
    int32_t id = string_table_find(&w->tok->by_text, s, n);
    if (id >= 0) {
        word_flush_unk(w);
        word_put(w, id);
    } else {
        word_put_unknown(w, s, n);
    }
}

/* With continuing_subword_prefix or end_of_word_suffix. */
static enum status word_put_affixed(struct word *w, const char *s, size_t n)
{
    const struct bpe *bpe = &w->tok->bpe;
    struct buf spelled;
    buf_init(&spelled, 4096);
    for (size_t i = 0; i < n;) {
        size_t width = w->tok->byte_level ? 1 : unicode_lead_length((unsigned char)s[i]);
        buf_clear(&spelled);
        buf_puts(&spelled, i > 0 ? bpe->prefix : "");
        if (w->tok->byte_level) {
            char utf8[4];
            buf_put(&spelled, utf8, utf8_encode(unicode_byte_symbol((unsigned char)s[i]), utf8));
        } else {
            buf_put(&spelled, s + i, width);
        }
        i += width;
        buf_puts(&spelled, i == n ? bpe->suffix : "");
        if (!spelled.failed && symbols_reserve(w->sc, w->n + spelled.n_bytes + 2)) {
            word_put_char(w, spelled.data, spelled.n_bytes);
        }
    }
    bool failed = spelled.failed;
    buf_deinit(&spelled);
    return failed ? ERR_LIMIT : OK;
}

static enum status word_fill(struct word *w, const char *s, size_t n)
{
    const struct bpe *bpe = &w->tok->bpe;
    // A byte becomes two fallback tokens at most (its symbol has two bytes), and one may wait.
    if (!symbols_reserve(w->sc, 2 * n + 2)) {
        return err_set(w->sc->err, ERR_NOMEM, "out of memory");
    }
    if (bpe->has_affixes) {
        TRY(word_put_affixed(w, s, n));
    } else {
        for (size_t i = 0; i < n;) {
            unsigned char c = (unsigned char)s[i];
            size_t width = w->tok->byte_level ? 1 : unicode_lead_length(c);
            int32_t id = bpe->byte_symbol[c];
            if (id >= 0) {
                word_flush_unk(w);
                word_put(w, id);
            } else if (w->tok->byte_level) {
                char utf8[4];
                word_put_unknown(w, utf8, utf8_encode(unicode_byte_symbol(c), utf8));
            } else {
                word_put_char(w, s + i, width);
            }
            i += width;
        }
    }
    word_flush_unk(w);
    return w->fails ? err_set(w->sc->err, ERR_INVALID, "the unk_token is not in the vocabulary") : OK;
}

static void look_up(const struct merge_rules *rules, struct symbol *a, const struct symbol *b)
{
    const struct merge_slot *m = merge_table_find(&rules->table, a->id, b->id);
    a->rank = m ? m->rank : UINT32_MAX;
    a->merged = m ? m->id : -1;
}

/* ---- few symbols: scan for the minimum ---- */

struct small {
    int32_t id[SMALL], merged[SMALL];
    uint32_t rank[SMALL]; // of symbols i and i + 1
    size_t n;
};

static inline void small_look_up(const struct merge_rules *rules, struct small *w, size_t i)
{
    const struct merge_slot *m = merge_table_find(&rules->table, w->id[i], w->id[i + 1]);
    w->rank[i] = m ? m->rank : UINT32_MAX;
    w->merged[i] = m ? m->id : -1;
}

static void small_merge(const struct merge_rules *rules, struct small *w)
{
    while (w->n > 1) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < w->n; i++) {
            if (w->rank[i] < best) {
                best = w->rank[i];
                at = i;
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        w->id[at] = w->merged[at];
        w->n--;
        for (size_t i = at + 1; i < w->n; i++) {
            w->id[i] = w->id[i + 1];
            w->rank[i] = w->rank[i + 1];
            w->merged[i] = w->merged[i + 1];
        }
        if (at + 1 < w->n) {
            small_look_up(rules, w, at);
        }
        if (at > 0) {
            small_look_up(rules, w, at - 1);
        }
    }
}

/* A short piece of bytes, all of which are in the vocabulary. */
static void small_fill_bytes(const struct bpe *bpe, const struct merge_rules *rules,
                             struct small *w, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    w->n = n;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct byte_pair *pair = &rules->byte_pairs[p[i] << 8 | p[i + 1]];
        w->id[i] = bpe->byte_symbol[p[i]];
        w->rank[i] = pair->rank;
        w->merged[i] = pair->id;
    }
    w->id[n - 1] = bpe->byte_symbol[p[n - 1]];
}

static void small_fill(const struct merge_rules *rules, struct small *w,
                       const struct symbol *symbols, size_t n)
{
    w->n = n;
    for (size_t i = 0; i < n; i++) {
        w->id[i] = symbols[i].id;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        small_look_up(rules, w, i);
    }
}

/* ---- many symbols: a heap of (rank, position) ---- */

static bool heap_push(struct scratch *sc, uint64_t key)
{
    if (sc->n_heap == sc->cap_heap) {
        size_t cap = sc->cap_heap ? 2 * sc->cap_heap : 1024;
        uint64_t *p = realloc(sc->heap, cap * sizeof *p);
        if (!p) {
            return false;
        }
        sc->heap = p;
        sc->cap_heap = cap;
    }
    size_t i = sc->n_heap++;
    while (i > 0 && sc->heap[(i - 1) / 4] > key) {
        sc->heap[i] = sc->heap[(i - 1) / 4];
        i = (i - 1) / 4;
    }
    sc->heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct scratch *sc)
{
    uint64_t *h = sc->heap, top = h[0], key = h[--sc->n_heap];
    size_t n = sc->n_heap, i = 0;
    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= n) {
            break;
        }
        size_t end = child + 4 < n ? child + 4 : n, least = child;
        for (size_t k = child + 1; k < end; k++) {
            least = h[k] < h[least] ? k : least;
        }
        if (h[least] >= key) {
            break;
        }
        h[i] = h[least];
        i = least;
    }
    h[i] = key;
    return top;
}

static bool offer(const struct merge_rules *rules, struct scratch *sc, uint32_t at)
{
    struct symbol *a = &sc->symbols[at];
    if (a->next == UINT32_MAX) {
        a->rank = UINT32_MAX;
        return true;
    }
    look_up(rules, a, &sc->symbols[a->next]);
    return a->rank == UINT32_MAX || heap_push(sc, (uint64_t)a->rank << 32 | at);
}

static bool merge_many(const struct merge_rules *rules, struct scratch *sc, size_t n)
{
    struct symbol *sym = sc->symbols;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = i > 0 ? (uint32_t)i - 1 : UINT32_MAX;
        sym[i].next = i + 1 < n ? (uint32_t)i + 1 : UINT32_MAX;
    }
    sc->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        if (!offer(rules, sc, (uint32_t)i)) {
            return false;
        }
    }
    while (sc->n_heap > 0) {
        uint64_t key = heap_pop(sc);
        uint32_t at = (uint32_t)key;
        struct symbol *a = &sym[at];
        // An entry is stale once the pair at its place has another rank. (A pair at one place only
        // ever grows, so an equal rank is the same pair.)
        if (a->id < 0 || a->rank != key >> 32) {
            continue;
        }
        struct symbol *b = &sym[a->next];
        a->id = a->merged;
        a->next = b->next;
        b->id = -1;
        if (a->next != UINT32_MAX) {
            sym[a->next].prev = at;
        }
        if (!offer(rules, sc, at) || (a->prev != UINT32_MAX && !offer(rules, sc, a->prev))) {
            return false;
        }
    }
    return true;
}

static enum status emit_many(struct scratch *sc, const int32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        TRY(emit(sc, id[i]));
    }
    return OK;
}

/* Merges one piece; nothing is remembered. */
static enum status merge_piece(const struct tokenizer *tok, struct scratch *sc, const char *s,
                               size_t n)
{
    const struct merge_rules *rules = rules_for(tok, sc);
    struct small small;
    if (n <= SMALL && tok->bpe.all_bytes && n > 0) {
        small_fill_bytes(&tok->bpe, rules, &small, s, n);
        small_merge(rules, &small);
        return emit_many(sc, small.id, small.n);
    }
    struct word w = {.tok = tok, .sc = sc};
    TRY(word_fill(&w, s, n));
    if (w.n <= SMALL) {
        small_fill(rules, &small, sc->symbols, w.n);
        small_merge(rules, &small);
        return emit_many(sc, small.id, small.n);
    }
    if (!merge_many(rules, sc, w.n)) {
        return err_set(sc->err, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < w.n; i++) {
        if (sc->symbols[i].id >= 0) {
            TRY(emit(sc, sc->symbols[i].id));
        }
    }
    return OK;
}

/* ---- the cache of pieces: direct-mapped, one line per entry, keyed hash, full comparison ---- */

enum { CACHE_BITS = 14, KEY_BYTES = 31, VALUE_IDS = 7 };

struct cache_slot {
    uint64_t key[4]; // the bytes, zero-padded; the last byte is length and a tag
    int32_t n;       // 0: empty
    int32_t id[VALUE_IDS];
};
/* One text can come out in several ways: whole or (with ignore_merges) as a part of a piece, and as
 * the user's, which makes no special token. */
enum { TAG_PART = 0x80, TAG_INPUT = 0x40 };
struct piece_cache {
    struct cache_slot *slots; // 64-byte aligned
    uint64_t secret[2];
};

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

/* Up to 8 bytes without reading past the end. */
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

static inline struct cache_slot *slot_for(const struct piece_cache *c, const uint64_t key[4], size_t n)
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
            (slot->key[3] ^ key[3])) == 0 && slot->n > 0;
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

/* Remembers what came out since `before`. */
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
    return matters && sc->has_input ? TAG_INPUT : 0;
}

/* A part of a piece, between two cuts. */
static enum status encode_part(const struct tokenizer *tok, struct scratch *sc, const char *s,
                               size_t n)
{
    if (n > KEY_BYTES) {
        return merge_piece(tok, sc, s, n);
    }
    uint64_t key[4];
    make_key(s, n, (tok->bpe.ignore_merges ? TAG_PART : 0) | input_tag(tok, sc), key);
    struct cache_slot *slot = slot_for(sc->cache, key, n);
    if (slot_has(slot, key)) {
        return emit_slot(sc, slot);
    }
    size_t before = sc->out->n;
    TRY(merge_piece(tok, sc, s, n));
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

/* A piece that the cache does not have. */
static enum status encode_new(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n)
{
    if (tok->bpe.ignore_merges) {
        const struct string_table *t = tok->byte_level ? &tok->by_key : &tok->by_text;
        int32_t id = string_table_find(t, s, n);
        if (id >= 0 && !is_barred(tok, sc, id)) {
            return emit(sc, id);
        }
    }
    if (tok->bpe.cuts && n > CUT_BYTES) {
        return encode_parts(tok, sc, s, n);
    }
    return merge_piece(tok, sc, s, n);
}

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
    // The parts may have taken the slot; the whole piece is worth more.
    slot_fill(slot, key, sc->out, before);
    return OK;
}
