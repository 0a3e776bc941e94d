// SPDX-License-Identifier: Apache-2.0
/* Earlier items from the store: those of previous responses (previous_response_id), of a
 * conversation, or single ones that the input refers to. */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/items.h"
#include "server/call/readers.h"

#include <stdio.h>
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

/* ---- references to items -----------------------------------------------------------------------
 */

bool request_is_reference(const struct json *item)
{
    const struct json *type = json_get(item, "type");
    if (json_is(type, JSON_STRING)) {
        return strcmp(json_string(type), "item_reference") == 0;
    }
    return json_type(type) == JSON_NULL && json_get(item, "id") && !json_get(item, "role");
}

static bool no_item(struct request *r, const char *id)
{
    return call_error_set(&r->error, 404, "not_found", "input", "Item with id '%.80s' not found.",
                          id);
}

/* Appends the item with this id from a stored list. U+0000 is written as it was stored. */
static bool take_item(struct request *r, const struct buf *list, const char *id, struct buf *out)
{
    struct stand_in nul;
    struct json *items = items_parse(list->data, list->n_bytes, &nul);
    const struct json *item = json_first(items);
    while (item && strcmp(or_empty(json_get_string(item, "id")), id) != 0) {
        item = json_next(item);
    }
    const bool found = item != NULL;
    if (found) {
        struct buf text;
        buf_init(&text, MAX_BYTES);
        convert_node(&text, item);
        stand_in_put_back(&nul, &text);
        buf_put(out, text.data, text.n_bytes);
        out->failed |= text.failed;
        buf_deinit(&text);
    }
    json_free(items);
    return found || no_item(r, id);
}

/* Appends the item; *n_read counts the bytes that were read for the request's items. */
static bool find_item(struct request *r, const char *id, struct buf *out, size_t *n_read)
{
    struct err err = {""};
    enum status st = OK;
    struct buf list;
    bool good = false;
    buf_init(&list, MAX_BYTES);
    if (r->store && store_item_find(r->store, r->owner, id, &list, &st, &err)) {
        *n_read += list.n_bytes;
        good = list.failed || *n_read > MAX_BYTES ? request_too_large(r)
                                                  : take_item(r, &list, id, out);
    } else if (st == OK) {
        no_item(r, id);
    } else {
        call_error_set(&r->error, 500, "internal_error", NULL,
                       "The server could not read a stored item.");
    }
    buf_deinit(&list);
    return good;
}

/* The texts of all items that the input refers to, as an array. */
static bool find_items(struct request *r, const struct json *input, struct buf *out)
{
    size_t index = 0, n_read = 0;
    char place[48];
    buf_putc(out, '[');
    for (const struct json *item = json_first(input); item; item = json_next(item), index++) {
        const char *id = json_get_string(item, "id");
        if (!request_is_reference(item)) {
            continue;
        }
        snprintf(place, sizeof place, "input[%zu].id", index);
        if (!id) {
            return call_error_missing(&r->error, place);
        }
        buf_puts(out, out->n_bytes > 1 ? "," : "");
        if (!find_item(r, id, out, &n_read)) {
            return false;
        }
    }
    buf_putc(out, ']');
    return true;
}

bool request_find_references(struct request *r, const struct json *input, struct json **found)
{
    const struct json_limits limits = {.max_depth = 256};
    struct buf b;
    buf_init(&b, MAX_BYTES);
    bool good = find_items(r, input, &b);
    if (good && (b.failed || !body_hide_nuls(&r->body, r->text, r->n_bytes, b.data, b.n_bytes) ||
                 json_parse(b.data, b.n_bytes, &limits, found, NULL) != OK)) {
        good = request_too_large(r);
    }
    buf_deinit(&b);
    return good;
}

/* ---- responses and conversations ---------------------------------------------------------------
 */

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
