// SPDX-License-Identifier: Apache-2.0
/* The merges of a BPE model: read from tokenizer.json, and the table that holds them.
 *
 * Each merge looks up three strings in a vocabulary larger than the caches, in random order. So
 * merges are batched, and each step over a batch prefetches the memory that the next step reads. */
#include "engine/tokenizer/impl.h"

#include "engine/base/json_scan.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

static bool table_init(struct merge_table *t, size_t expected)
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

static bool table_put(struct merge_table *t, int32_t left, int32_t right, uint32_t rank,
                      int32_t id);

/* Rehashes into twice as many slots. */
static bool table_grow(struct merge_table *t)
{
    struct merge_table bigger;
    size_t n_slots = (size_t)1 << (64 - t->shift);
    if (!table_init(&bigger, n_slots)) {
        return false;
    }
    for (size_t i = 0; i < n_slots; i++) {
        const struct merge_slot *m = &t->slots[i];
        if (m->pair != UINT64_MAX) {
            table_put(&bigger, (int32_t)(m->pair >> 32), (int32_t)m->pair, m->rank, m->id);
        }
    }
    free(t->slots);
    *t = bigger;
    return true;
}

static bool table_put(struct merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    size_t n_slots = (size_t)1 << (64 - t->shift);
    if (t->n * 3 >= n_slots * 2) {
        if (!table_grow(t)) {
            return false;
        }
        n_slots *= 2;
    }
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)(merge_table_home(t, left, right) - t->slots);
    while (t->slots[i].pair != UINT64_MAX && t->slots[i].pair != pair) {
        i = (i + 1) & (n_slots - 1);
    }
    t->n += t->slots[i].pair == UINT64_MAX;
    t->slots[i] = (struct merge_slot){pair, rank, id}; // of several equal pairs the last one wins
    return true;
}

/* ---- reading ---- */

enum { BATCH = 64, LEFT = 0, RIGHT = 1, JOINED = 2 };

/* A merge while it is in the batch: first its strings, then their hashes, then their ids. */
struct merge_text {
    size_t at[3], n[3]; // left, right, and the result: offsets in the reader's bytes
    uint64_t hash[3];
    int32_t id[3];
};

struct reader {
    struct tokenizer *tok;
    struct json_scan *scan;
    struct err *err;
    struct buf bytes, one; // bytes: all strings of the batch; one: a string that is being unescaped
    struct merge_text batch[BATCH];
    size_t n;
    uint32_t rank; // rank of the batch's first merge
    size_t prefix_bytes;
};

static enum status broken(struct reader *r, const char *what)
{
    return err_set(r->err, ERR_FORMAT, "%s (near byte %zu)", what, r->scan->at);
}

/* The parts and the result of a merge must be in the vocabulary. The error names the merge by its
 * rank. */
static enum status check_parts(struct reader *r, size_t k)
{
    const struct merge_text *m = &r->batch[k];
    uint32_t rank = r->rank + (uint32_t)k;
    if (m->id[LEFT] < 0 || m->id[RIGHT] < 0 || m->n[RIGHT] < r->prefix_bytes) {
        return err_set(r->err, ERR_FORMAT, "merge %u has a part that the vocabulary lacks", rank);
    }
    if (m->id[JOINED] < 0) {
        return err_set(r->err, ERR_FORMAT, "merge %u makes a token that the vocabulary lacks",
                       rank);
    }
    return OK;
}

/* Looks up the merges of the batch and inserts them. */
static enum status flush(struct reader *r)
{
    const struct string_table *t = &r->tok->by_text;
    struct merge_table *merges = &r->tok->bpe.merges.table;
    if (r->bytes.failed) {
        return err_set(r->err, ERR_LIMIT, "the merges are too long");
    }
    for (size_t k = 0; k < 3 * r->n; k++) {
        struct merge_text *m = &r->batch[k / 3];
        m->hash[k % 3] = string_table_hash(t, r->bytes.data + m->at[k % 3], m->n[k % 3]);
        string_table_prefetch(t, m->hash[k % 3]);
    }
    for (size_t k = 0; k < 3 * r->n; k++) {
        string_table_prefetch_text(t, r->batch[k / 3].hash[k % 3]);
    }
    for (size_t k = 0; k < 3 * r->n; k++) {
        struct merge_text *m = &r->batch[k / 3];
        m->id[k % 3] =
            string_table_find_hashed(t, r->bytes.data + m->at[k % 3], m->n[k % 3], m->hash[k % 3]);
    }
    for (size_t k = 0; k < r->n; k++) {
        TRY(check_parts(r, k));
        __builtin_prefetch(merge_table_home(merges, r->batch[k].id[LEFT], r->batch[k].id[RIGHT]));
    }
    for (size_t k = 0; k < r->n; k++) {
        const struct merge_text *m = &r->batch[k];
        if (!table_put(merges, m->id[LEFT], m->id[RIGHT], r->rank + (uint32_t)k, m->id[JOINED])) {
            return err_set(r->err, ERR_NOMEM, "out of memory for the merges");
        }
    }
    r->rank += (uint32_t)r->n;
    r->n = 0;
    buf_clear(&r->bytes);
    return OK;
}

/* Appends the string that was read last. */
static void put_string(struct reader *r)
{
    if (r->scan->escaped) {
        json_scan_unescape(r->scan, &r->bytes);
    } else {
        buf_put(&r->bytes, r->scan->text, r->scan->text_bytes);
    }
}

/* Adds a merge whose two parts are adjacent, starting at `at`. */
static enum status put_merge(struct reader *r, size_t at, size_t n_left)
{
    size_t n_right = r->bytes.n_bytes - at - n_left, skip = r->prefix_bytes;
    struct merge_text *m = &r->batch[r->n++];
    *m = (struct merge_text){.at = {at, at + n_left, at}, .n = {n_left, n_right, n_left + n_right}};
    if (skip > 0 && n_right >= skip) { // a part that continues a word loses its prefix
        m->at[JOINED] = r->bytes.n_bytes;
        m->n[JOINED] -= skip;
        // Source and destination are in the same buffer.
        if (!buf_reserve(&r->bytes, n_left + n_right)) {
            return err_set(r->err, ERR_LIMIT, "the merges are too long");
        }
        buf_put(&r->bytes, r->bytes.data + at, n_left);
        buf_put(&r->bytes, r->bytes.data + at + n_left + skip, n_right - skip);
    }
    if (r->n == BATCH) {
        return flush(r);
    }
    return OK;
}

/* Reads "left right". */
static enum status read_string(struct reader *r)
{
    const char *s = r->scan->text;
    size_t n = r->scan->text_bytes;
    if (r->scan->escaped) {
        buf_clear(&r->one);
        json_scan_unescape(r->scan, &r->one);
        s = r->one.data;
        n = r->one.n_bytes;
    }
    if (n >= 8 && memcmp(s, "#version", 8) == 0) {
        return OK;
    }
    const char *space = n > 0 ? memchr(s, ' ', n) : NULL;
    size_t n_left = space ? (size_t)(space - s) : n;
    if (!space || memchr(space + 1, ' ', n - n_left - 1)) {
        return err_set(r->err, ERR_FORMAT, "merge %u is not two parts", r->rank + (uint32_t)r->n);
    }
    size_t at = r->bytes.n_bytes;
    buf_put(&r->bytes, s, n_left);
    buf_put(&r->bytes, space + 1, n - n_left - 1);
    return put_merge(r, at, n_left);
}

/* Reads ["left", "right"]. */
static enum status read_pair(struct reader *r)
{
    size_t at = r->bytes.n_bytes;
    if (json_scan_next(r->scan) != JSON_TOKEN_STRING) {
        return broken(r, "a merge is not two strings");
    }
    put_string(r);
    size_t n_left = r->bytes.n_bytes - at;
    if (json_scan_next(r->scan) != JSON_TOKEN_STRING) {
        return broken(r, "a merge is not two strings");
    }
    put_string(r);
    if (json_scan_next(r->scan) != JSON_TOKEN_ARRAY_END) {
        return broken(r, "a merge is not two strings");
    }
    return put_merge(r, at, n_left);
}

static enum status read_all(struct reader *r)
{
    for (;;) {
        enum json_token t = json_scan_next(r->scan);
        if (t == JSON_TOKEN_ARRAY_END) {
            return flush(r);
        }
        if (t == JSON_TOKEN_STRING) {
            TRY(read_string(r));
        } else if (t == JSON_TOKEN_ARRAY) {
            TRY(read_pair(r));
        } else {
            return broken(r, "a merge is neither a string nor a pair");
        }
    }
}

/* The list may hold strings ("a b") or pairs. */
enum status merges_read(struct tokenizer *tok, struct json_scan *scan, struct err *err)
{
    if (json_scan_next(scan) != JSON_TOKEN_ARRAY) {
        return err_set(err, ERR_FORMAT, "merges are not a list");
    }
    free(tok->bpe.merges.table.slots); // a duplicate key may have left a table
    if (!table_init(&tok->bpe.merges.table, (size_t)tok->n_model)) {
        return err_set(err, ERR_NOMEM, "out of memory for the merges");
    }
    struct reader *r = xcalloc(1, sizeof *r);
    r->tok = tok;
    r->scan = scan;
    r->err = err;
    r->prefix_bytes = length_or_0(tok->bpe.prefix);
    buf_init(&r->bytes, MAX_FILE_BYTES);
    buf_init(&r->one, MAX_FILE_BYTES);
    enum status st = read_all(r);
    buf_deinit(&r->bytes);
    buf_deinit(&r->one);
    free(r);
    return st;
}

/* ---- from scores ---- */

struct scored {
    double score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) {
        return x->score > y->score ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

/* Adds all pairs of pieces that concatenate to this piece, split at any of its characters. */
static bool put_splits(struct tokenizer *tok, int32_t id, uint32_t rank)
{
    enum { LONGEST = 1024 }; // chosen: longer pieces are markers, which take part in no merge
    struct merge_table *table = &tok->bpe.merges.table;
    size_t n;
    const char *text = strings_get(&tok->texts, id, &n);
    bool good = true;
    if (!text || n > LONGEST || string_table_find(&tok->by_text, text, n) != id) {
        return true;
    }
    for (size_t at = 1; at < n && good; at++) {
        if (((unsigned char)text[at] & 0xC0) == 0x80) {
            continue;
        }
        int32_t left = string_table_find(&tok->by_text, text, at);
        int32_t right;
        if (left < 0) {
            right = -1;
        } else {
            right = string_table_find(&tok->by_text, text + at, n - at);
        }
        good = right < 0 || table_put(table, left, right, rank, id);
    }
    return good;
}

/* The pair whose result has the better score merges first; among equals, the left one. So pairs
 * whose results are the same, or have equal scores, have the same rank. */
enum status merges_of_scores(struct tokenizer *tok, const double *scores, struct err *err)
{
    size_t n = (size_t)tok->texts.n_ids;
    struct scored *order = xcalloc(n + 1, sizeof *order);
    for (size_t i = 0; i < n; i++) {
        order[i] = (struct scored){scores[i], (int32_t)i};
    }
    qsort(order, n, sizeof *order, by_score);
    bool good = table_init(&tok->bpe.merges.table, n);
    uint32_t rank = 0;
    for (size_t i = 0; i < n && good; i++) {
        rank += i > 0 && order[i].score != order[i - 1].score;
        good = put_splits(tok, order[i].id, rank);
    }
    free(order);
    if (!good) {
        return err_set(err, ERR_NOMEM, "out of memory for the merges");
    }
    return OK;
}
