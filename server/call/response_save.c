// SPDX-License-Identifier: Apache-2.0
/* Stores responses. */
#include "server/call/responses.h"

#include "engine/base/log.h"
#include "engine/base/optional.h"
#include "server/call/items.h"

#include <stdio.h>
#include <string.h>

/* A buffer that borrows the bytes; the store only reads them. */
static struct buf view(const char *bytes, size_t n_bytes)
{
    return (struct buf){.data = (char *)bytes, .n_bytes = n_bytes};
}

/* The parts of a response that are stored. The call owns their memory. */
static struct stored_response stored_of(struct call *c)
{
    const struct request *r = &c->request;
    const struct responses *s = response_state(c);
    const int64_t life = (int64_t)c->server->config->data_retention;
    struct stored_response stored = {
        .created_at = c->created,
        .expires_at = life > 0 ? c->created + life : 0,
        .input = view(r->items, r->items_bytes),
        .body = view(s->body.data, s->body.n_bytes),
        .background = r->detached,
    };
    snprintf(stored.id, sizeof stored.id, "%s", c->id);
    snprintf(stored.previous, sizeof stored.previous, "%s", or_empty(r->previous));
    return stored;
}

/* The items to add to the response's conversation: its input and output. */
static bool add_items(struct call *c, struct stored_item **items, size_t *n)
{
    const struct request *r = &c->request;
    const struct buf *output = &response_state(c)->items;
    bool good = items_take_text(r->items, r->items_bytes, items, n) &&
                items_take_text(output->data, output->n_bytes, items, n);
    if (!good) {
        log_warn("a response is not added to its conversation: it is too large");
    }
    return good;
}

void response_save(struct call *c)
{
    const struct responses *s = response_state(c);
    struct stored_response stored = stored_of(c);
    struct err err = {""};
    stored.output = view(s->items.data, s->items.n_bytes);
    stored.events = view(s->events.data, s->events.n_bytes);
    if (s->body.failed || s->items.failed) {
        return; // the client does not get this answer either
    }
    struct stored_item *items = NULL, *outputs = NULL;
    if (items_take_text(s->items.data, s->items.n_bytes, &outputs, &stored.n_outputs)) {
        stored.outputs = outputs;
    } else {
        stored_items_free(outputs, stored.n_outputs);
        outputs = NULL;
        stored.n_outputs = 0;
    }
    if (c->request.conversation && add_items(c, &items, &stored.n_items)) {
        snprintf(stored.conversation, sizeof stored.conversation, "%s", c->request.conversation);
        stored.items = items;
    }
    if (store_response_put(c->request.store, c->request.owner, &stored, &err) != OK) {
        log_warn("a response could not be stored: %s", err.text);
    }
    stored_items_free(items, stored.n_items);
    stored_items_free(outputs, stored.n_outputs);
}

enum status response_record(struct call *c, struct err *err)
{
    const struct responses *s = response_state(c);
    struct stored_response stored = stored_of(c);
    stored.lost = view(s->lost.data, s->lost.n_bytes);
    if (s->body.failed || s->lost.failed) {
        return err_set(err, ERR_NOMEM, "no memory");
    }
    return store_response_put(c->request.store, c->request.owner, &stored, err);
}
