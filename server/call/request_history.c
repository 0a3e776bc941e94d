// SPDX-License-Identifier: Apache-2.0
/* Earlier items from the store: those of previous responses (previous_response_id), or of a
 * conversation. */
#include "server/call/readers.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 64 << 20, MAX_RESPONSES = 4096 /* arbitrary */ };

static bool missing(struct request *r, const char *id)
{
    return call_error_set(&r->error, 404, "not_found", "previous_response_id",
                          "Response with id '%.80s' not found.", id);
}

/* Inserts the response's items before those collected so far. */
static bool put_before(struct request *r, struct buf *items, const struct stored_response *s)
{
    struct buf all;
    buf_init(&all, MAX_BYTES);
    buf_put(&all, s->input.data, s->input.n_bytes);
    if (all.n_bytes > 0 && s->output.n_bytes > 0) {
        buf_puts(&all, ",");
    }
    buf_put(&all, s->output.data, s->output.n_bytes);
    if (all.n_bytes > 0 && items->n_bytes > 0) {
        buf_puts(&all, ",");
    }
    buf_put(&all, items->data, items->n_bytes);
    buf_deinit(items);
    *items = all;
    return !all.failed || request_too_large(r);
}

/* Collects the items of all responses, from the latest to the first: each names its predecessor. */
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
            if (st == OK) {
                return missing(r, next);
            }
            return call_error_set(&r->error, 500, "internal_error", NULL,
                                  "The server could not read a stored response.");
        }
        bool good =
            !s.runs || call_error_set(&r->error, 400, "invalid_value", "previous_response_id",
                                      "The response %.80s has not ended yet.", next);
        good = good && put_before(r, items, &s);
        memcpy(next, s.previous, sizeof next);
        stored_response_deinit(&s);
        if (!good) {
            return false;
        }
    }
    return true;
}

/* The items, as an array, precede the input. Takes ownership of them. */
static bool keep_history(struct request *r, struct buf *items)
{
    struct buf array;
    buf_init(&array, MAX_BYTES);
    buf_putc(&array, '[');
    buf_put(&array, items->data, items->n_bytes);
    buf_putc(&array, ']');
    if (array.failed || items->failed) {
        r->history = NULL;
    } else {
        r->history = arena_strndup(&r->arena, array.data, array.n_bytes);
    }
    r->history_bytes = array.n_bytes;
    buf_deinit(&array);
    return r->history || request_too_large(r);
}

/* Follows the chain of responses back to its beginning. */
bool read_previous(struct request *r)
{
    const char *id = NULL;
    if (!body_string(&r->body, "previous_response_id", &id)) {
        return r->error.status == 0;
    }
    if (!r->store) {
        return missing(r, id);
    }
    struct buf items;
    buf_init(&items, MAX_BYTES);
    bool good = collect(r, id, &items);
    if (good) {
        r->previous = id;
        good = keep_history(r, &items);
    }
    buf_deinit(&items);
    return good;
}

/* A conversation by id, alone or in an object. */
static bool conversation_id(struct request *r, const char **id)
{
    const struct body_member *m = body_get(&r->body, "conversation");
    if (!m) {
        return false;
    }
    if (json_is(m->node, JSON_OBJECT)) {
        *id = json_get_string(m->node, "id");
    } else {
        *id = json_string(m->node);
    }
    return *id != NULL ||
           body_wrong_type(&r->error, "conversation", "an id, or an object with one", m->node);
}

/* Items of a conversation come before the input. */
bool read_conversation(struct request *r)
{
    const char *id = NULL;
    struct err err = {""};
    enum status st = OK;
    if (!conversation_id(r, &id)) {
        return r->error.status == 0;
    }
    if (r->previous) {
        return call_error_set(
            &r->error, 400, "invalid_value", "conversation",
            "Only one of 'previous_response_id' and 'conversation' may be given.");
    }
    struct buf items;
    buf_init(&items, MAX_BYTES);
    bool found = r->store && store_conversation_read(r->store, r->owner, id, &items, &st, &err);
    bool good = found;
    if (found) {
        r->conversation = id;
        good = keep_history(r, &items);
    } else if (st == OK) {
        call_error_set(&r->error, 404, "not_found", "conversation",
                       "No such Conversation object: %.80s", id);
    } else {
        call_error_set(&r->error, 500, "internal_error", NULL,
                       "The server could not read a stored conversation.");
    }
    buf_deinit(&items);
    return good;
}
