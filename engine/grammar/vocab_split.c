// SPDX-License-Identifier: Apache-2.0
/* Splits forced text into tokens as the tokenizer would, so that the drafts are those that the
 * model would write. */
#include "engine/grammar/vocab_split.h"
#include "engine/base/minmax.h"

#include <string.h>

enum { TEXT_MAX = 512 }; // number of bytes that are split per call

/* The longest token that is a prefix of the bytes; -1: none is. */
static int32_t longest(const struct grammar_vocab *v, const char *bytes, size_t n)
{
    int32_t found = -1;
    for (uint32_t at = 0, end = v->n, depth = 0; depth < n;) {
        uint32_t next = at + 1;
        while (next < end && v->v[next].byte != (uint8_t)bytes[depth]) {
            next = v->v[next].end;
        }
        if (next >= end) {
            break;
        }
        if (vocab_id_at(v, next) >= 0) {
            found = vocab_id_at(v, next);
        }
        at = next;
        end = v->v[next].end;
        depth++;
    }
    return found;
}

/* Takes the longest token at each place. Used for marks, without a tokenizer, and if the
 * tokenizer's split does not reproduce the text. */
static size_t split_longest(const struct grammar_vocab *v, const char *bytes, size_t n,
                            int32_t *ids, size_t max)
{
    size_t count = 0;
    for (size_t at = 0; at < n && count < max; count++) {
        ids[count] = longest(v, bytes + at, n - at);
        if (ids[count] < 0) {
            break;
        }
        at += v->text_n[ids[count]];
    }
    return count;
}

/* Takes the ids from the first one that starts exactly at the text. Earlier ids belong to the
 * newline before it, or were added by the tokenizer. */
static size_t take(const struct grammar_vocab *v, const struct ids *all, const char *bytes,
                   size_t n, int32_t *ids, size_t max)
{
    size_t tail = 0, first = all->n;
    while (first > 0 && tail < n) {
        int32_t id = all->v[--first];
        size_t size = id < v->n_ids ? v->text_n[id] : 0;
        if (size == 0 || size > n - tail ||
            memcmp(v->text + v->text_at[id], bytes + n - tail - size, size) != 0) {
            return 0;
        }
        tail += size;
    }
    size_t count = lesser(all->n - first, max);
    if (tail != n) {
        return 0;
    }
    memcpy(ids, all->v + first, count * sizeof *ids);
    return count;
}

/* Splits the text as if it were in the middle of another text: a newline is put before it, because
 * hardly any token combines a newline with the text after it. */
static size_t split_text(const struct grammar_vocab *v, const char *bytes, size_t n, int32_t *ids,
                         size_t max)
{
    char text[TEXT_MAX + 1] = "\n";
    struct text_span span = {.text = text, .n_bytes = n + 1, .is_input = true};
    struct ids all;
    struct err err;
    memcpy(text + 1, bytes, n);
    ids_init(&all, TEXT_MAX + 16);
    size_t count = 0;
    if (tokenizer_encode(v->tok, &span, 1, (struct tokenizer_flags){0}, &all, &err) == OK) {
        count = take(v, &all, bytes, n, ids, max);
    }
    ids_deinit(&all);
    return count;
}

/* The marks of special tokens separate texts, each of which is split separately. */
size_t vocab_split(const struct grammar_vocab *v, const char *bytes, size_t n, int32_t *ids,
                   size_t max)
{
    size_t count = 0;
    for (size_t at = 0; at < n && count < max;) {
        bool special = (uint8_t)bytes[at] == VOCAB_MARK;
        const char *mark = NULL;
        if (!special) {
            mark = memchr(bytes + at, VOCAB_MARK, n - at);
        }
        size_t size = mark ? (size_t)(mark - bytes) - at : n - at;
        if (special && size > VOCAB_MARK_BYTES) {
            size = (size_t)VOCAB_MARK_BYTES;
        }
        if (size >= TEXT_MAX) {
            size = (size_t)TEXT_MAX;
        }
        size_t more = 0;
        if (v->tok && !special) {
            more = split_text(v, bytes + at, size, ids + count, max - count);
        }
        if (more == 0) {
            more = split_longest(v, bytes + at, size, ids + count, max - count);
        }
        if (more == 0) {
            break;
        }
        count += more;
        at += size;
    }
    return count;
}
