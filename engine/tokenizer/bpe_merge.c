// SPDX-License-Identifier: Apache-2.0
/* Merges one piece in the order of the library's queue: lowest rank first, and the leftmost among
 * equals. A piece becomes a list of symbols. A few symbols are scanned for the minimum, many are
 * kept in a heap; both ways give the same ids. */
#include "engine/tokenizer/impl.h"

#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Chosen: up to this many symbols, scanning beats a heap; 32 to 64 perform alike. */
enum { SMALL = 48 };

static const struct merge_rules *rules_for(const struct tokenizer *tok, const struct scratch *sc)
{
    if (sc->has_input && tok->bpe.has_guarded) {
        return &tok->bpe.guarded;
    }
    return &tok->bpe.merges;
}

/* ---- symbols ---- */

/* A list in an array, linked by indices. A merge unlinks the right one of its two symbols. */
struct symbol {
    // id: of this symbol; merged: the id that this symbol and the next one merge to
    int32_t id, merged;
    uint32_t rank; // rank of that merge; UINT32_MAX: they do not merge
    uint32_t prev, next;
};

struct word {
    const struct tokenizer *tok;
    struct scratch *sc;
    size_t n;
    bool has_unk; // an unknown token is pending; the library adds it before the next known symbol
    bool fails;   // there was an unknown character, and unk_token is not in the vocabulary
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

/* For a character that is not in the vocabulary: adds its fallback bytes, the unknown token, or
 * nothing. */
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

/* Adds one character, whose spelling in the vocabulary is s. */
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

/* For models with a continuing_subword_prefix or an end_of_word_suffix. */
static enum status word_put_affixed(struct word *w, const char *s, size_t n)
{
    const struct bpe *bpe = &w->tok->bpe;
    struct buf spelled;
    buf_init(&spelled, 4096);
    for (size_t i = 0; i < n;) {
        size_t width = 1;
        if (!w->tok->byte_level) {
            width = unicode_lead_length((unsigned char)s[i]);
        }
        buf_clear(&spelled);
        if (i > 0) {
            buf_puts(&spelled, bpe->prefix);
        }
        if (w->tok->byte_level) {
            char utf8[4];
            buf_put(&spelled, utf8, utf8_encode(unicode_byte_symbol((unsigned char)s[i]), utf8));
        } else {
            buf_put(&spelled, s + i, width);
        }
        i += width;
        if (i == n) {
            buf_puts(&spelled, bpe->suffix);
        }
        if (!spelled.failed && symbols_reserve(w->sc, w->n + spelled.n_bytes + 2)) {
            word_put_char(w, spelled.data, spelled.n_bytes);
        }
    }
    bool failed = spelled.failed;
    buf_deinit(&spelled);
    return failed ? ERR_LIMIT : OK;
}

/* Fills in the initial symbols of a word: its bytes, or its characters, with byte fallback or the
 * unknown token. */
static enum status word_fill(struct word *w, const char *s, size_t n)
{
    const struct bpe *bpe = &w->tok->bpe;
    // A byte becomes at most two fallback tokens (its symbol has two bytes), and one token may be
    // pending.
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
    if (w->fails) {
        return err_set(w->sc->err, ERR_INVALID, "the unk_token is not in the vocabulary");
    }
    return OK;
}

static void look_up(const struct merge_rules *rules, struct symbol *a, const struct symbol *b)
{
    const struct merge_slot *m = merge_table_find(&rules->table, a->id, b->id);
    a->rank = m ? m->rank : UINT32_MAX;
    a->merged = m ? m->id : -1;
}

/* ---- few symbols: scan for the minimum ---- */

/* A piece of a few symbols, in arrays that are scanned as a whole. */
struct small {
    int32_t id[SMALL], merged[SMALL];
    uint32_t rank[SMALL]; // rank of the merge of symbols i and i + 1
    size_t n;
};

static inline void small_look_up(const struct merge_rules *rules, struct small *w, size_t i)
{
    const struct merge_slot *m = merge_table_find(&rules->table, w->id[i], w->id[i + 1]);
    w->rank[i] = m ? m->rank : UINT32_MAX;
    w->merged[i] = m ? m->id : -1;
}

/* For short words, scanning for the best pair is faster than a heap. The rank and the result of
 * each pair are cached; a merge changes only two of them. */
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

/* Fills in a short piece whose bytes are all in the vocabulary. */
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

/* A heap with four children per node has fewer cache misses than one with two. Keys are ordered by
 * rank, then by position, so that equal ranks merge from the left. */
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

/* The heap must not be empty. */
static uint64_t heap_pop(struct scratch *sc)
{
    uint64_t *h = sc->heap, top = h[0], key = h[--sc->n_heap];
    size_t n = sc->n_heap, i = 0;
    for (;;) {
        size_t child = 4 * i + 1;
        if (child >= n) {
            break;
        }
        size_t end = lesser(child + 4, n), least = child;
        for (size_t k = child + 1; k < end; k++) {
            if (h[k] < h[least]) {
                least = k;
            }
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

/* Puts the merge of this symbol with its right neighbour, if there is one, into the heap. */
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

/* O(n log n), for long words. A stale entry stays in the heap and is skipped when it comes up. */
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
        // An entry is stale if the pair at its place has another rank now. (A pair at one place can
        // only be replaced by one that covers more text, so an equal rank means the same pair.)
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

/* ---- one piece ---- */

/* Three ways to the same ids: short pieces of bytes, other short pieces, and a heap. */
enum status bpe_merge_piece(const struct tokenizer *tok, struct scratch *sc, const char *s,
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
