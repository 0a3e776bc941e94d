// SPDX-License-Identifier: Apache-2.0
/* How handlers read a request, and defer its reply. */
#include "engine/base/words.h"
#include "server/http/private.h"

#include <stdlib.h>
#include <string.h>

const char *http_param(const struct http_request *req)
{
    return req->param;
}

const char *http_second_param(const struct http_request *req)
{
    return req->second_param;
}

const char *http_header(const struct http_request *req, const char *name)
{
    if (req->completed || !req->conn->mhd) {
        return NULL;
    }
    return MHD_lookup_connection_value(req->conn->mhd, MHD_HEADER_KIND, name);
}

const char *http_peer(const struct http_request *req)
{
    return req->conn->peer;
}

const char *http_request_id(const struct http_request *req)
{
    return req->id;
}

void http_set_request_id(struct http_request *req, const char *id)
{
    size_t n_bytes = strlen(id);
    if (!req->id_is_given && !req->stream.started && !req->terminal && words_is_id(id, n_bytes)) {
        memcpy(req->id, id, n_bytes + 1);
    }
}

int64_t http_arrived_ns(const struct http_request *req)
{
    return req->record.arrived_ns;
}

char *http_body(struct http_request *req, size_t *n_bytes)
{
    *n_bytes = req->n_body;
    return req->body;
}

void http_body_free(struct http_request *req)
{
    req->server->stats.held_body_bytes -= req->body_cap;
    free(req->body);
    req->body = NULL;
    req->n_body = req->body_cap = 0;
}

void *http_room(struct http_request *req)
{
    return req->room;
}

void http_defer(struct http_request *req, const struct http_events *events, void *arg)
{
    ASSERT(!req->terminal);
    req->deferred = true;
    req->events = events;
    req->events_arg = arg;
}

bool http_is_gone(const struct http_request *req)
{
    return req->gone != 0;
}
