// SPDX-License-Identifier: Apache-2.0
/* previous_response_id: the items of the responses before, from the store. */
#include "server/call/readers.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20, MAX_RESPONSES = 4096 /* chosen */ };

static bool missing(struct request *r, const char *id)
{
    return call_error_set(&r->error, 404, "not_found", "previous_response_id",
                          "No such Response object: %.80s", id);
}

/* The response's items go before those that are there already. */
static bool put_before(struct request *r, struct buf *items, const struct stored_response *s)
{
    struct buf all;
    buf_init(&all, MAX_BYTES);
    buf_put(&all, s->input.data, s->input.n_bytes);
    buf_puts(&all, all.n_bytes > 0 && s->output.n_bytes > 0 ? "," : "");
    buf_put(&all, s->output.data, s->output.n_bytes);
    buf_puts(&all, all.n_bytes > 0 && items->n_bytes > 0 ? "," : "");
    buf_put(&all, items->data, items->n_bytes);
    buf_deinit(items);
    *items = all;
    return !all.failed || request_too_large(r);
}

/* From the latest to the first: each names the one before it. */
static bool collect(struct request *r, const char *id, struct buf *items)
{
    char next[STORE_RESPONSE_ID_BYTES];
    struct err err = {""};
    enum status st;
    if (strlen(id) >= sizeof next) {
        return missing(r, id);
    }
    memcpy(next, id, strlen(id) + 1);
    for (int i = 0; next[0]; i++) {
        struct stored_response s;
        if (i == MAX_RESPONSES) {
            return call_error_set(&r->error, 400, "invalid_value", "previous_response_id",
                                  "Invalid 'previous_response_id': more than %d responses are "
                                  "before this one.",
                                  MAX_RESPONSES);
        }
        if (!store_response_find(r->store, r->owner, next, &s, &st, &err)) {
            return st == OK ? missing(r, next)
                            : call_error_set(&r->error, 500, "internal_error", NULL,
                                             "The server could not read a stored response.");
        }
        bool good = put_before(r, items, &s);
        memcpy(next, s.previous, sizeof next);
        stored_response_deinit(&s);
        if (!good) {
            return false;
        }
    }
    return true;
}

bool read_previous(struct request *r)
{
    const char *id = NULL;
    if (!body_string(&r->body, "previous_response_id", &id)) {
        return r->error.status == 0;
    }
    if (!r->store) {
        return missing(r, id);
    }
    struct buf items, array;
    buf_init(&items, MAX_BYTES);
    buf_init(&array, MAX_BYTES);
    bool good = collect(r, id, &items);
    if (good) {
        buf_putc(&array, '[');
        buf_put(&array, items.data, items.n_bytes);
        buf_putc(&array, ']');
        r->previous = id;
        r->history = array.failed ? NULL : arena_strndup(&r->arena, array.data, array.n_bytes);
        r->history_bytes = array.n_bytes;
        good = r->history ? true : request_too_large(r);
    }
    buf_deinit(&items);
    buf_deinit(&array);
    return good;
}
