// SPDX-License-Identifier: Apache-2.0
/* Unigram (the most likely path), WordPiece and WordLevel. */
#include "engine/tokenizer/impl.h"

#include "engine/tokenizer/unicode.h"

#include <stdlib.h>
#include <string.h>

/* A place between two bytes of the text. */
struct unigram_node {
    double score;   // score of the best path that ends here
    uint32_t start; // where the path's last piece starts; UINT32_MAX: no path ends here
    int32_t id;
};

static void relax(struct unigram_node *node, double score, size_t start, int32_t id)
{
    if (node->start == UINT32_MAX || score > node->score) {
        *node = (struct unigram_node){score, (uint32_t)start, id};
    }
}

/* Returns false if a character is unknown and the model has no unknown token. */
static bool forward(const struct tokenizer *tok, const struct scratch *sc, const char *s, size_t n)
{
    const struct unigram *u = &tok->unigram;
    struct unigram_node *nodes = sc->nodes;
    for (size_t at = 0; at < n;) {
        double so_far = nodes[at].score;
        size_t width = unicode_lead_length((unsigned char)s[at]);
        bool has_single = false;
        uint32_t trie_node = 0;
        for (size_t i = at; i < n; i++) {
            trie_node = trie_step(&u->trie, trie_node, (unsigned char)s[i]);
            if (trie_node == 0) {
                break;
            }
            int32_t id = u->trie.value[trie_node];
            if (id >= 0 && (id == u->unk || !is_barred(tok, sc, id))) {
                relax(&nodes[i + 1], u->score[id] + so_far, at, id);
                has_single = has_single || i + 1 - at == width;
            }
        }
        if (!has_single) {
            if (u->unk < 0) {
                return false;
            }
            relax(&nodes[at + width], u->unk_score + so_far, at, u->unk);
        }
        at += width;
    }
    return true;
}

/* A run of unknown characters becomes one unknown token, or its bytes if byte tokens exist. */
static enum status emit_unknown(const struct tokenizer *tok, struct scratch *sc, const char *s,
                                size_t n)
{
    const struct unigram *u = &tok->unigram;
    int32_t id = string_table_find(&tok->by_text, s, n);
    bool bytes = id < 0 && u->byte_fallback;
    for (size_t i = 0; bytes && i < n; i++) {
        bytes = u->byte_token[(unsigned char)s[i]] >= 0;
    }
    if (!bytes) {
        return emit(sc, id >= 0 ? id : u->unk);
    }
    for (size_t i = 0; i < n; i++) {
        TRY(emit(sc, u->byte_token[(unsigned char)s[i]]));
    }
    return OK;
}

/* Reverses the chain of starts. Afterwards nodes[start].start is the end of the piece that begins
 * at start. */
static void turn_round(struct unigram_node *nodes, size_t n)
{
    size_t end = n;
    uint32_t after = UINT32_MAX;
    int32_t id_after = -1;
    for (;;) {
        uint32_t start = nodes[end].start;
        int32_t id = nodes[end].id;
        nodes[end].start = after;
        nodes[end].id = id_after;
        if (end == 0) {
            return;
        }
        after = (uint32_t)end;
        id_after = id;
        end = start;
    }
}

/* Viterbi: from left to right, finds for each place the best path that ends there; then goes back
 * from the end. */
enum status unigram_encode(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n)
{
    const struct unigram *u = &tok->unigram;
    if (n + 1 > sc->cap_nodes) {
        size_t cap = n + n / 2 + 256;
        struct unigram_node *p = cap < UINT32_MAX ? realloc(sc->nodes, cap * sizeof *p) : NULL;
        if (!p) {
            return err_set(sc->err, ERR_NOMEM, "out of memory");
        }
        sc->nodes = p;
        sc->cap_nodes = cap;
    }
    struct unigram_node *nodes = sc->nodes;
    for (size_t i = 0; i <= n; i++) {
        nodes[i] = (struct unigram_node){0, UINT32_MAX, -1};
    }
    if (!forward(tok, sc, s, n)) {
        return err_set(sc->err, ERR_INVALID, "a character is unknown and the model has no unk_id");
    }
    turn_round(nodes, n);
    for (size_t at = 0; at < n;) {
        size_t end = nodes[at].start;
        int32_t id = nodes[at].id;
        if (id != u->unk) {
            TRY(emit(sc, id));
            at = end;
            continue;
        }
        while (end < n && nodes[end].id == u->unk) {
            end = nodes[end].start;
        }
        TRY(emit_unknown(tok, sc, s + at, end - at));
        at = end;
    }
    return OK;
}

/* Repeatedly takes the longest known prefix. A word with an unknown part is unknown as a whole. */
static enum status wordpiece(const struct tokenizer *tok, struct scratch *sc, const char *s,
                             size_t n)
{
    const struct wordpiece *wp = &tok->wordpiece;
    size_t chars = 0, first = sc->out->n;
    for (size_t i = 0; i < n; i++) {
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    }
    bool known = chars <= wp->max_chars;
    for (size_t at = 0; known && at < n;) {
        size_t end = n;
        int32_t id = -1;
        for (; end > at; end--) {
            if (end < n && ((unsigned char)s[end] & 0xC0) == 0x80) {
                continue;
            }
            struct buf *b = &sc->word;
            buf_clear(b);
            if (at > 0) {
                buf_puts(b, wp->prefix);
            }
            buf_put(b, s + at, end - at);
            id = string_table_find(&tok->by_text, b->data, b->n_bytes);
            if (id >= 0 && !is_barred(tok, sc, id)) {
                break;
            }
            id = -1;
        }
        known = id >= 0;
        if (known) {
            TRY(emit(sc, id));
        }
        at = end;
    }
    if (known) {
        return OK;
    }
    sc->out->n = first;
    if (wp->unk < 0) {
        return err_set(sc->err, ERR_INVALID, "a word is unknown and there is no unk_token");
    }
    return emit(sc, wp->unk);
}

/* WordPiece and WordLevel differ only in whether words may be cut into pieces. */
enum status wordpiece_encode(const struct tokenizer *tok, struct scratch *sc, const char *s,
                             size_t n)
{
    if (tok->model == MODEL_WORDPIECE) {
        return wordpiece(tok, sc, s, n);
    }
    int32_t id = string_table_find(&tok->by_text, s, n);
    if (!(id >= 0 && !is_barred(tok, sc, id))) {
        id = tok->wordpiece.unk;
    }
    if (id < 0) {
        return err_set(sc->err, ERR_INVALID, "a word is unknown and there is no unk_token");
    }
    return emit(sc, id);
}
