// SPDX-License-Identifier: Apache-2.0
/* Converts a stream of ids to text: bytes are held back until they form whole characters. */
#include "engine/tokenizer/detok.h"

#include "engine/base/utf8.h"

#include <string.h>

void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special)
{
    *d = (struct detok){.tok = tok, .skip_special = skip_special};
}

static void put_replacement(struct buf *out)
{
    buf_puts(out, "\xEF\xBF\xBD");
}

/* Completes the pending character with the bytes at s; returns how many were used. */
static size_t finish_pending(struct detok *d, const char *s, size_t n, struct buf *out)
{
    size_t used = 0;
    while (d->n_pending > 0 && used < n) {
        d->pending[d->n_pending++] = (unsigned char)s[used];
        const char *p = (const char *)d->pending;
        if (utf8_valid_length(p, d->n_pending) == d->n_pending) {
            buf_put(out, p, d->n_pending);
            d->n_pending = 0;
            used++;
        } else if (utf8_is_incomplete(p, d->n_pending)) {
            used++;
        } else {
            put_replacement(out); // the byte starts a new character
            d->n_pending = 0;
        }
    }
    return used;
}

/* At most three bytes are held back: the beginning of a character. */
void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    size_t n;
    const char *s = tokenizer_piece(d->tok, id, &n);
    if (!s || (d->skip_special && tokenizer_is_special(d->tok, id))) {
        return;
    }
    for (size_t i = finish_pending(d, s, n, out); i < n;) {
        size_t good = utf8_check(s + i, n - i);
        buf_put(out, s + i, good);
        i += good;
        if (i == n) {
            break;
        }
        if (utf8_is_incomplete(s + i, n - i)) {
            d->n_pending = (uint8_t)(n - i);
            memcpy(d->pending, s + i, n - i);
            break;
        }
        put_replacement(out);
        i += utf8_maximal_subpart(s + i, n - i);
    }
}

void detok_flush(struct detok *d, struct buf *out)
{
    if (d->n_pending > 0) {
        put_replacement(out);
        d->n_pending = 0;
    }
}
