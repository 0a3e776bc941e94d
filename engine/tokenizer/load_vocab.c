// SPDX-License-Identifier: Apache-2.0
/* The vocabulary of tokenizer.json. With the merges (merges.c) it is nearly all of the file. */
#include "engine/tokenizer/load.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum status loader_error(struct loader *l, const char *what)
{
    if (l->scan.why) {
        return json_scan_error(&l->scan, l->err);
    }
    return err_set(l->err, ERR_FORMAT, "%s (near byte %zu)", what, l->scan.at);
}

const char *loader_text(const struct json_scan *sc, struct buf *b, size_t *n)
{
    if (!sc->escaped) {
        *n = sc->text_bytes;
        return sc->text;
    }
    buf_clear(b);
    json_scan_unescape(sc, b);
    *n = b->n_bytes;
    return or_empty(b->data);
}

static enum status put_entry(struct loader *l, const char *text, size_t n, int64_t id)
{
    struct tokenizer *tok = l->tok;
    if (id < 0 || id > MAX_TOKEN_ID) {
        return err_set(l->err, ERR_LIMIT, "a token id below 0 or above %d", MAX_TOKEN_ID);
    }
    if (strings_get(&tok->texts, (int32_t)id, NULL)) {
        return err_set(l->err, ERR_UNSUPPORTED, "two tokens have the id %d", (int)id);
    }
    if (!strings_set(&tok->texts, (int32_t)id, text, n) ||
        !string_table_put(&tok->by_text, (int32_t)id)) {
        return err_set(l->err, ERR_NOMEM, "out of memory for the vocabulary");
    }
    return OK;
}

static enum status read_vocab_object(struct loader *l)
{
    enum json_token t;
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        size_t n;
        const char *text = loader_text(&l->scan, &l->a, &n);
        int64_t id;
        if (json_scan_next(&l->scan) != JSON_TOKEN_NUMBER || !json_scan_int64(&l->scan, &id)) {
            return loader_error(l, "a token's id is not an integer");
        }
        TRY(put_entry(l, text, n, id));
    }
    if (t != JSON_TOKEN_OBJECT_END) {
        return loader_error(l, "the vocabulary is malformed");
    }
    return OK;
}

static double power_of_ten(long exponent)
{
    static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                   1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                   1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    char text[32];
    if (exponent < (long)(sizeof exact / sizeof exact[0])) {
        return exact[exponent];
    }
    snprintf(text, sizeof text, "1e%ld", lesser(exponent, 308));
    return strtod(text, NULL);
}

/* Parses a score as the library's JSON reader does: 19 or 20 digits as an integer, then one
 * division by a power of ten. That may differ from the nearest double in the last bit, which breaks
 * ties between paths with otherwise equal sums. */
static double read_score(const char *s, size_t n)
{
    bool negative = n > 0 && s[0] == '-', after_point = false, full = false;
    uint64_t digits = 0;
    long exponent = 0;
    size_t i = negative;
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            after_point = true;
            continue;
        }
        unsigned digit = (unsigned)(s[i] - '0');
        full = full || digits > (UINT64_MAX - digit) / 10;
        if (!full) {
            digits = digits * 10 + digit;
        }
        exponent += full ? !after_point : -(long)after_point;
    }
    bool down = i + 1 < n && s[i + 1] == '-';
    long e = 0;
    for (i++; i < n; i++) {
        if (s[i] >= '0' && s[i] <= '9' && e < 100000) {
            e = e * 10 + (s[i] - '0');
        }
    }
    exponent += down ? -e : e;
    double v = (double)digits;
    for (; exponent < -308 && v != 0; exponent += 308) {
        v /= 1e308;
    }
    if (exponent > 308) {
        return digits > 0 ? (double)INFINITY : 0;
    }
    double scale = power_of_ten(exponent < 0 ? -exponent : exponent);
    v = exponent >= 0 ? v * scale : v / scale;
    return negative ? -v : v;
}

/* Reads [["piece", log probability], ...], the vocabulary of Unigram, or of SentencePiece's BPE,
 * which needs no trie. */
static enum status read_vocab_list(struct loader *l)
{
    struct unigram *u = &l->tok->unigram;
    size_t cap = 0, n_pieces = 0;
    bool is_bpe = strcmp(l->type, "BPE") == 0;
    enum json_token t;
    if (!trie_init(&u->trie)) {
        return err_set(l->err, ERR_NOMEM, "out of memory");
    }
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_ARRAY) {
        if (json_scan_next(&l->scan) != JSON_TOKEN_STRING) {
            return loader_error(l, "a piece of the vocabulary is not a string");
        }
        size_t n;
        const char *text = loader_text(&l->scan, &l->a, &n);
        TRY(put_entry(l, text, n, (int64_t)n_pieces));
        if (!is_bpe && !trie_put(&u->trie, text, n, (int32_t)n_pieces)) {
            return err_set(l->err, ERR_LIMIT, "the vocabulary is too large");
        }
        if (json_scan_next(&l->scan) != JSON_TOKEN_NUMBER) {
            return loader_error(l, "a piece's score is not a number");
        }
        if (n_pieces == cap) {
            cap = cap ? 2 * cap : 1024;
            u->score = xrealloc(u->score, cap * sizeof *u->score);
        }
        u->score[n_pieces] = read_score(l->scan.text, l->scan.text_bytes);
        if (!isfinite(u->score[n_pieces++])) {
            return loader_error(l, "a piece's score is out of range");
        }
        if (json_scan_next(&l->scan) != JSON_TOKEN_ARRAY_END) {
            return loader_error(l, "a piece has more than a text and a score");
        }
    }
    l->vocab_is_list = true;
    if (t != JSON_TOKEN_ARRAY_END) {
        return loader_error(l, "the vocabulary is malformed");
    }
    return OK;
}

/* The size of the table is estimated from the bytes that remain in the file, so that large
 * vocabularies are not rehashed. */
enum status load_vocab(struct loader *l)
{
    if (l->has_vocab) {
        return loader_error(l, "two vocabularies");
    }
    l->has_vocab = true;
    // Real files have 70 to 130 bytes per entry, merges included; the table grows if needed.
    if (!string_table_init(&l->tok->by_text, &l->tok->texts, l->scan.n_bytes / 96)) {
        return err_set(l->err, ERR_NOMEM, "out of memory");
    }
    enum json_token t = json_scan_next(&l->scan);
    if (t == JSON_TOKEN_OBJECT) {
        TRY(read_vocab_object(l));
    } else if (t == JSON_TOKEN_ARRAY) {
        TRY(read_vocab_list(l));
    } else {
        return loader_error(l, "the vocabulary is neither an object nor a list");
    }
    l->tok->n_model = (int32_t)l->tok->by_text.n;
    if (l->vocab_is_list) {
        l->tok->n_model = l->tok->texts.n_ids;
    }
    return OK;
}

enum status load_merges(struct loader *l)
{
    enum status st = merges_read(l->tok, &l->scan, l->err);
    if (st == OK || !l->scan.why) {
        return st;
    }
    return json_scan_error(&l->scan, l->err);
}
