// SPDX-License-Identifier: Apache-2.0
/* Vocabularies for masks: a trie over the bytes of all tokens, stored in pre-order, so that a
 * subtree is a range. */
#include "engine/grammar/vocab.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/grammar/expr.h"
#include "engine/grammar/vocab_groups.h"
#include "engine/grammar/vocab_text.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKEN_MAX = 60000,
    WIDE_MIN = 16, // chosen: children of a wide node
};

/* A token while the trie is built. */
struct sorted {
    const char *s;
    uint32_t n;
    int32_t id;
};

/* Orders tokens as in the trie, and equal tokens by id, so that the ids of a node are
 * neighbours. */
static int by_bytes(const void *p, const void *q)
{
    const struct sorted *a = p, *b = q;
    int c = memcmp(a->s, b->s, lesser(a->n, b->n));
    if (c == 0 && a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    return c != 0 ? c : (a->id > b->id) - (a->id < b->id);
}

/* `n` is the number of tokens at earlier nodes. */
static void put_node(struct grammar_vocab *v, struct vocab_node node, uint32_t n, uint32_t *cap,
                     uint32_t *cap_first)
{
    GROW(v->v, v->n, *cap);
    GROW(v->first, v->n, *cap_first);
    v->v[v->n] = node;
    v->first[v->n++] = n;
}

/* Adds nodes for those bytes of a token that it does not share with the previous token. `open` is
 * the path to the last node. */
static void add_nodes(struct grammar_vocab *v, const struct sorted *list, uint32_t n)
{
    uint32_t *open = xcalloc(v->max_depth + 1, sizeof *open), depth = 0, cap = 0;
    uint32_t cap_first = 0;
    put_node(v, (struct vocab_node){0}, 0, &cap, &cap_first);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t common = 0;
        while (common < depth && common < list[i].n &&
               v->v[open[common + 1]].byte == (uint8_t)list[i].s[common]) {
            common++;
        }
        for (; depth > common; depth--) {
            v->v[open[depth]].end = v->n;
        }
        for (; depth < list[i].n; depth++) {
            open[depth + 1] = v->n;
            put_node(v,
                     (struct vocab_node){.depth = (uint16_t)(depth + 1),
                                         .byte = (uint8_t)list[i].s[depth]},
                     i, &cap, &cap_first);
        }
        v->order[i] = list[i].id;
    }
    for (; depth > 0; depth--) {
        v->v[open[depth]].end = v->n;
    }
    v->v[0].end = v->n;
    put_node(v, (struct vocab_node){0}, n, &cap, &cap_first);
    v->n--; // not a node, only the end of the last range
    free(open);
}

/* Lists the children of nodes that have many. */
static void list_kids(struct grammar_vocab *v)
{
    uint32_t n = 0, cap = 0;
    v->kids_at = xcalloc(v->n + 1, sizeof *v->kids_at);
    for (uint32_t i = 0; i < v->n; i++) {
        uint32_t from = n;
        for (uint32_t kid = i + 1; kid < v->v[i].end; kid = v->v[kid].end) {
            GROW(v->kids, n, cap);
            v->kids[n++] = (struct vocab_kid){kid, v->v[kid].byte, v->v[kid].end == kid + 1};
        }
        v->v[i].wide = n - from >= WIDE_MIN;
        if (v->v[i].wide) {
            GROW(v->kids, n, cap);
            v->kids[n++] = (struct vocab_kid){0};
            v->kids_at[i] = from;
        } else {
            n = from;
        }
    }
}

/* ---- special tokens ---- */

void vocab_mark(int32_t id, char bytes[VOCAB_MARK_BYTES])
{
    bytes[0] = (char)VOCAB_MARK;
    for (int i = 1; i < VOCAB_MARK_BYTES; i++) {
        bytes[i] = (char)(0x80 | (id >> 6 * (VOCAB_MARK_BYTES - 1 - i) & 0x3f));
    }
}

static bool is_end_id(const struct grammar_vocab *v, int32_t id)
{
    for (size_t i = 0; i < v->n_end_ids; i++) {
        if (v->end_ids[i] == id) {
            return true;
        }
    }
    return false;
}

static void keep_name(struct grammar_vocab *v, int32_t id, const struct grammar_token *token)
{
    char *name = xmalloc(token->n_bytes + 1);
    memcpy(name, token->bytes, token->n_bytes);
    name[token->n_bytes] = 0;
    v->special[v->n_special] = id;
    v->names[v->n_special++] = name;
}

/* The special token with the longest name at this place; -1 if there is none. */
int32_t vocab_special(const struct grammar_vocab *v, const char *s, size_t n, size_t *n_name,
                      bool *is_end)
{
    int32_t found = -1;
    *n_name = 0;
    for (uint32_t i = 0; i < v->n_special; i++) {
        size_t length = strlen(v->names[i]);
        if (length > *n_name && length <= n && memcmp(v->names[i], s, length) == 0) {
            found = v->special[i];
            *n_name = length;
        }
    }
    *is_end = found >= 0 && is_end_id(v, found);
    return found;
}

/* ---- all of them ---- */

/* Checks the limits that later code relies on, such as lengths that fit their types. */
static enum status check_sizes(struct grammar_vocab *v, const struct grammar_token *tokens,
                               const int32_t *end_ids, size_t *total, struct err *err)
{
    *total = 0;
    v->max_depth = VOCAB_MARK_BYTES;
    for (int32_t i = 0; i < v->n_ids; i++) {
        size_t n = tokens[i].n_bytes;
        if (n > TOKEN_MAX) {
            return err_set(err, ERR_LIMIT, "token %d has more than %d bytes", i, TOKEN_MAX);
        }
        *total += greater(n, VOCAB_MARK_BYTES);
        if (n > v->max_depth) {
            v->max_depth = (uint32_t)n;
        }
    }
    if (*total > UINT32_MAX / 2 || v->n_ids >= 1 << 6 * (VOCAB_MARK_BYTES - 1)) {
        return err_set(err, ERR_LIMIT, "the vocabulary is too large");
    }
    for (size_t i = 0; i < v->n_end_ids; i++) {
        if (end_ids[i] < 0 || end_ids[i] >= v->n_ids) {
            return err_set(err, ERR_INVALID, "end id %d is not in the vocabulary", end_ids[i]);
        }
        v->end_ids[i] = end_ids[i];
    }
    return OK;
}

/* Collects the tokens that have text, and marks for the special ones. */
static enum status fill(struct grammar_vocab *v, const struct grammar_token *tokens,
                        const int32_t *end_ids, struct err *err)
{
    size_t total;
    TRY(check_sizes(v, tokens, end_ids, &total, err));
    v->text = xmalloc(total + 1);
    struct sorted *list = xcalloc((size_t)v->n_ids + 1, sizeof *list);
    uint32_t n = 0, at = 0;
    for (int32_t i = 0; i < v->n_ids; i++) {
        const struct grammar_token *t = &tokens[i];
        v->text_at[i] = at;
        if (t->special && t->n_bytes > 0) {
            keep_name(v, i, t);
        }
        bool no_text = !t->special && t->n_bytes > 0 && memchr(t->bytes, VOCAB_MARK, t->n_bytes);
        if (t->n_bytes == 0 || no_text || is_end_id(v, i)) {
            continue;
        }
        if (t->special) {
            v->text_n[i] = VOCAB_MARK_BYTES;
        } else {
            v->text_n[i] = (uint32_t)t->n_bytes;
        }
        if (t->special) {
            vocab_mark(i, v->text + at);
        } else {
            memcpy(v->text + at, t->bytes, t->n_bytes);
        }
        list[n++] = (struct sorted){v->text + at, v->text_n[i], i};
        at += v->text_n[i];
    }
    qsort(list, n, sizeof *list, by_bytes);
    add_nodes(v, list, n);
    free(list);
    return OK;
}

/* Everything is immutable afterwards, so threads may share it. */
enum status grammar_vocab_make(const struct grammar_token *tokens, int32_t n_ids,
                               const int32_t *end_ids, size_t n_end_ids, struct grammar_vocab **out,
                               struct err *err)
{
    *out = NULL;
    if (n_ids < 0) {
        return err_set(err, ERR_INVALID, "a vocabulary of %d ids", n_ids);
    }
    struct grammar_vocab *v = xcalloc(1, sizeof *v);
    v->n_ids = n_ids;
    v->n_words = ((size_t)n_ids + 31) / 32;
    v->order = xcalloc((size_t)n_ids + 1, sizeof *v->order);
    v->text_at = xcalloc((size_t)n_ids + 1, sizeof *v->text_at);
    v->text_n = xcalloc((size_t)n_ids + 1, sizeof *v->text_n);
    v->end_ids = xcalloc(n_end_ids + 1, sizeof *v->end_ids);
    uint32_t n_special = 1;
    for (int32_t i = 0; i < n_ids; i++) {
        n_special += tokens[i].special;
    }
    v->special = xcalloc(n_special, sizeof *v->special);
    v->names = xcalloc(n_special, sizeof *v->names);
    v->n_end_ids = n_end_ids;
    enum status st = fill(v, tokens, end_ids, err);
    if (st != OK) {
        grammar_vocab_free(v);
        return st;
    }
    list_kids(v);
    v->below = vocab_groups_below(v);
    v->in_string = vocab_text_make(v);
    *out = v;
    return OK;
}

/* The tokenizer gives the bytes of each token. Ids beyond its vocabulary have none. */
enum status grammar_vocab_open(const struct tokenizer *tok, int32_t n_ids, const int32_t *end_ids,
                               size_t n_end_ids, struct grammar_vocab **out, struct err *err)
{
    *out = NULL;
    struct grammar_token *tokens = mem_try_calloc((size_t)greater(n_ids, 0) + 1, sizeof *tokens);
    if (!tokens) {
        return err_set(err, ERR_NOMEM, "a vocabulary of %d ids", n_ids);
    }
    for (int32_t i = 0; i < n_ids && i < tokenizer_vocab_size(tok); i++) {
        tokens[i].special = tokenizer_is_special(tok, i);
        if (tokens[i].special) {
            tokens[i].bytes = tokenizer_token_text(tok, i, &tokens[i].n_bytes);
        } else {
            tokens[i].bytes = tokenizer_piece(tok, i, &tokens[i].n_bytes);
        }
    }
    enum status st = grammar_vocab_make(tokens, n_ids, end_ids, n_end_ids, out, err);
    free(tokens);
    if (st == OK) {
        (*out)->tok = tok;
    }
    return st;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v) {
        return;
    }
    vocab_text_free(v->in_string);
    free(v->v);
    free(v->order);
    free(v->below);
    free(v->first);
    free(v->kids);
    free(v->kids_at);
    free(v->text_at);
    free(v->text_n);
    free(v->text);
    free(v->end_ids);
    for (uint32_t i = 0; i < v->n_special; i++) {
        free(v->names[i]);
    }
    free(v->names);
    free(v->special);
    free(v);
}

size_t grammar_mask_words(const struct grammar_vocab *v)
{
    return v->n_words;
}
