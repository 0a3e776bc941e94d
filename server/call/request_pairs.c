// SPDX-License-Identifier: Apache-2.0
/* Two texts as one prompt, for models that read them together: their ids, with the tokens around
 * and between them, and how they are truncated. */
#include "engine/base/minmax.h"
#include "server/call/readers.h"

#include <string.h>

/* How many tokens of each text remain if only `room` fit: the longer one loses the most. */
static void longest_first(size_t room, size_t *first, size_t *second)
{
    const bool swapped = *first > *second;
    size_t less = swapped ? *second : *first, more;
    more = less > room ? less : greater(less, room - less);
    if (less + more > room) {
        less = room / 2;
        more = less + room % 2;
    }
    *first = swapped ? more : less;
    *second = swapped ? less : more;
}

/* Removes ids [at, at + n) of the last prompt of the list. */
static void drop(struct ids *ids, size_t at, size_t n)
{
    memmove(ids->v + at, ids->v + at + n, (ids->n - at - n) * sizeof *ids->v);
    ids->n -= n;
}

/* Shortens the pair whose ids begin at `from`, if the request allows it. */
static void shorten(struct request *r, size_t from, struct tokenizer_pair *parts)
{
    const int64_t context = r->model->info->max_model_len;
    const size_t most = (size_t)(r->truncate > 0 ? r->truncate : context);
    const size_t fixed = parts->before + parts->between + parts->after;
    size_t first = parts->first, second = parts->second;
    if (r->truncate == 0 || r->ids.n - from <= most || fixed > most) {
        return;
    }
    longest_first(most - fixed, &first, &second);
    const size_t less = parts->first - first, of_second = parts->second - second;
    const size_t at = from + parts->before + (r->truncate_right ? first : 0);
    drop(&r->ids, at, less);
    const size_t start = from + parts->before + first + parts->between;
    drop(&r->ids, start + (r->truncate_right ? second : 0), of_second);
    parts->type_at -= parts->type_at > 0 ? less : 0;
}

bool request_encode_pair(struct request *r, struct request_prompt *p)
{
    struct err err = {""};
    struct tokenizer_pair parts;
    const size_t from = r->ids.n;
    const struct text_span texts[2] = {{p->text, p->text_bytes, true},
                                       {p->second, p->second_bytes, true}}; // no control tokens
    const enum status st =
        tokenizer_encode_pair(r->model->tok, texts, r->parse_special, &r->ids, &parts, &err);
    if (st == ERR_UNSUPPORTED) {
        return call_error_set(&r->error, 400, "unsupported_model", "model", "This model: %s.",
                              err.text);
    }
    if (st == ERR_NOMEM) {
        return call_error_no_memory(&r->error);
    }
    if (st != OK) {
        return request_too_large(r);
    }
    shorten(r, from, &parts);
    p->second_at = (int32_t)parts.type_at;
    return true;
}
