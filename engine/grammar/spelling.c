// SPDX-License-Identifier: Apache-2.0
/* Converts a text of a grammar to bytes. Names of special tokens in it become the marks of those
 * tokens. */
#include "engine/grammar/spelling.h"

#include "engine/base/optional.h"
#include "engine/grammar/vocab.h"

enum { SPELL_MAX_BYTES = 1 << 20 };

/* A token that ends the text must not be named, because it is allowed exactly where the text may
 * end. */
enum status spell(const struct compile *c, const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        size_t n_name = 0;
        bool ends = false;
        int32_t id = -1;
        if (c->vocab) {
            id = vocab_special(c->vocab, s + i, n - i, &n_name, &ends);
        }
        if (id >= 0 && ends) {
            return err_set(c->err, ERR_INVALID,
                           "\"%.*s\" is a token that ends the text: it must not be named",
                           (int)n_name, s + i);
        }
        if (id >= 0) {
            char mark[VOCAB_MARK_BYTES];
            vocab_mark(id, mark);
            buf_put(out, mark, sizeof mark);
            i += n_name;
        } else {
            buf_putc(out, s[i++]);
        }
    }
    if (out->failed) {
        return err_set(c->err, ERR_LIMIT, "a text is too long");
    }
    return OK;
}

enum status spell_expr(const struct compile *c, const char *s, size_t n, uint32_t *e)
{
    struct buf bytes;
    buf_init(&bytes, SPELL_MAX_BYTES);
    enum status st = spell(c, s, n, &bytes);
    if (st == OK) {
        *e = expr_literal(c->x, or_empty(bytes.data), bytes.n_bytes);
    }
    buf_deinit(&bytes);
    return st;
}
