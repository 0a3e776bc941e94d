/* Byte-pair encoding: lowest rank first, leftmost among equals, as the library's queue has it. */
#include "engine/tokenizer_impl.h"

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer_unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 48 }; // symbols up to which scanning for the minimum beats a heap; 32 to 64 is flat

bool merge_table_init(struct merge_table *t, size_t expected)
{
    unsigned bits = 4;
    while (((size_t)1 << bits) < 2 * expected) {
        bits++;
    }
    *t = (struct merge_table){.shift = 64 - bits};
    t->slots = malloc(((size_t)1 << bits) * sizeof *t->slots);
    if (t->slots) {
        memset(t->slots, 0xFF, ((size_t)1 << bits) * sizeof *t->slots);
    }
    return t->slots != NULL;
}

static bool merge_table_grow(struct merge_table *t)
{
    struct merge_table bigger;
    size_t n_slots = (size_t)1 << (64 - t->shift);
    if (!merge_table_init(&bigger, n_slots)) {
        return false;
    }
    for (size_t i = 0; i < n_slots; i++) {
        const struct merge_slot *m = &t->slots[i];
        if (m->pair != UINT64_MAX) {
            merge_table_put(&bigger, (int32_t)(m->pair >> 32), (int32_t)m->pair, m->rank, m->id);
        }
    }
    free(t->slots);
    *t = bigger;
    return true;
}

bool merge_table_put(struct merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    size_t n_slots = (size_t)1 << (64 - t->shift);
    if (t->n * 2 >= n_slots) {
        if (!merge_table_grow(t)) {
            return false;
        }
        n_slots *= 2;
    }
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)(pair * 0x9E3779B97F4A7C15ULL >> t->shift);
    while (t->slots[i].pair != UINT64_MAX && t->slots[i].pair != pair) {
        i = (i + 1) & (n_slots - 1);
    }
    t->n += t->slots[i].pair == UINT64_MAX;
    t->slots[i] = (struct merge_slot){pair, rank, id}; // the later of equal pairs wins
    return true;
}

static int32_t find_byte_token(const struct tokenizer *tok, int byte)
{
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte);
    return string_table_find(&tok->by_text, name, 6);
}

enum status bpe_load(const struct tokenizer *tok, struct err *err)
{
    struct bpe *bpe = (struct bpe *)&tok->bpe;
    (void)err;
    for (int b = 0; b < 256; b++) {
        char utf8[4];
        size_t n = utf8_encode(tok->byte_level ? unicode_byte_symbol((unsigned char)b)
                                               : (uint32_t)b, utf8);
        bool single = tok->byte_level || b < 128;
        bpe->byte_symbol[b] = single ? string_table_find(&tok->by_text, utf8, n) : -1;
        bpe->byte_token[b] = find_byte_token(tok, b);
    }
    bpe->has_affixes = bpe->prefix[0] != '\0' || bpe->suffix[0] != '\0';
    return OK;
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

static void look_up(const struct bpe *bpe, struct symbol *a, const struct symbol *b)
{
    const struct merge_slot *m = merge_table_find(&bpe->merges, a->id, b->id);
    a->rank = m ? m->rank : UINT32_MAX;
    a->merged = m ? m->id : -1;
}

/* ---- few symbols: scan for the minimum ---- */

static size_t merge_small(const struct bpe *bpe, const struct symbol *symbols, size_t n, int32_t *id)
{
    uint32_t rank[SMALL];
    int32_t merged[SMALL];
    const struct merge_slot *m;
    for (size_t i = 0; i < n; i++) {
        id[i] = symbols[i].id;
    }
    for (size_t i = 0; i + 1 < n; i++) {
        m = merge_table_find(&bpe->merges, id[i], id[i + 1]);
        rank[i] = m ? m->rank : UINT32_MAX;
        merged[i] = m ? m->id : -1;
    }
    while (n > 1) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        id[at] = merged[at];
        n--;
        size_t rest = n - at - 1;
        memmove(id + at + 1, id + at + 2, rest * sizeof *id);
        if (rest > 0) {
            memmove(rank + at + 1, rank + at + 2, (rest - 1) * sizeof *rank);
            memmove(merged + at + 1, merged + at + 2, (rest - 1) * sizeof *merged);
            m = merge_table_find(&bpe->merges, id[at], id[at + 1]);
            rank[at] = m ? m->rank : UINT32_MAX;
            merged[at] = m ? m->id : -1;
        }
        if (at > 0) {
            m = merge_table_find(&bpe->merges, id[at - 1], id[at]);
            rank[at - 1] = m ? m->rank : UINT32_MAX;
            merged[at - 1] = m ? m->id : -1;
        }
    }
    return n;
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

static bool offer(const struct bpe *bpe, struct scratch *sc, uint32_t at)
{
    struct symbol *a = &sc->symbols[at];
    if (a->next == UINT32_MAX) {
        a->rank = UINT32_MAX;
        return true;
    }
    look_up(bpe, a, &sc->symbols[a->next]);
    return a->rank == UINT32_MAX || heap_push(sc, (uint64_t)a->rank << 32 | at);
}

static bool merge_many(const struct bpe *bpe, struct scratch *sc, size_t n)
{
    struct symbol *sym = sc->symbols;
    for (size_t i = 0; i < n; i++) {
        sym[i].prev = i > 0 ? (uint32_t)i - 1 : UINT32_MAX;
        sym[i].next = i + 1 < n ? (uint32_t)i + 1 : UINT32_MAX;
    }
    sc->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        if (!offer(bpe, sc, (uint32_t)i)) {
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
        if (!offer(bpe, sc, at) || (a->prev != UINT32_MAX && !offer(bpe, sc, a->prev))) {
            return false;
        }
    }
    return true;
}

static enum status emit_word(const struct tokenizer *tok, struct scratch *sc, size_t n)
{
    if (n <= SMALL) {
        int32_t id[SMALL];
        n = merge_small(&tok->bpe, sc->symbols, n, id);
        for (size_t i = 0; i < n; i++) {
            TRY(emit(sc, id[i]));
        }
        return OK;
    }
    if (!merge_many(&tok->bpe, sc, n)) {
        return err_set(sc->err, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        if (sc->symbols[i].id >= 0) {
            TRY(emit(sc, sc->symbols[i].id));
        }
    }
    return OK;
}

enum status bpe_encode(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n)
{
    if (tok->bpe.ignore_merges) {
        const struct string_table *t = tok->byte_level ? &tok->by_key : &tok->by_text;
        int32_t id = string_table_find(t, s, n);
        if (id >= 0) {
            return emit(sc, id);
        }
    }
    struct word w = {.tok = tok, .sc = sc};
    TRY(word_fill(&w, s, n));
    return emit_word(tok, sc, w.n);
}
