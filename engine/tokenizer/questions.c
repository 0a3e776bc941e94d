// SPDX-License-Identifier: Apache-2.0
/* Queries on a loaded tokenizer: its vocabulary, its added tokens, and the tokens that its files
 * name. They only read, so every other file may call them. */
#include "engine/tokenizer/impl.h"

#include <string.h>

int32_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->texts.n_ids;
}

const char *tokenizer_piece(const struct tokenizer *tok, int32_t id, size_t *n_bytes)
{
    return strings_get(&tok->pieces, id, n_bytes);
}

const char *tokenizer_token_text(const struct tokenizer *tok, int32_t id, size_t *n_bytes)
{
    return strings_get(&tok->texts, id, n_bytes);
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    int32_t at = string_table_find(&tok->added_table, text, n_bytes);
    if (at >= 0) {
        return tok->added[at].id;
    }
    return string_table_find(&tok->by_text, text, n_bytes);
}

static bool is_added(const struct tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->texts.n_ids && tok->added_of[id] >= 0;
}

bool tokenizer_is_special(const struct tokenizer *tok, int32_t id)
{
    return is_added(tok, id) && tok->added[tok->added_of[id]].special;
}

size_t tokenizer_n_added(const struct tokenizer *tok)
{
    return tok->n_added;
}

struct tokenizer_added tokenizer_added_at(const struct tokenizer *tok, size_t i)
{
    if (i >= tok->n_added) {
        return (struct tokenizer_added){.id = -1};
    }
    const struct added *a = &tok->added[i];
    return (struct tokenizer_added){a->text, a->n_bytes, a->id, a->special};
}

static int32_t named_id(const struct tokenizer *tok, const char *name)
{
    for (size_t i = 0; i < tok->n_named; i++) {
        if (strcmp(tok->named[i].name, name) == 0) {
            return tok->named[i].id;
        }
    }
    return -1;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return named_id(tok, "bos_token");
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return named_id(tok, "eos_token");
}

void tokenizer_n_around(const struct tokenizer *tok, size_t *n_before, size_t *n_after)
{
    *n_before = tok->n_prefix;
    *n_after = tok->n_suffix;
}

size_t tokenizer_longest_piece(const struct tokenizer *tok)
{
    return tok->longest_piece;
}
