// SPDX-License-Identifier: Apache-2.0
/* The client side of HTTP, for commands that talk to a server: its address, and one blocking
 * request. Plain HTTP/1.1 over TCP or a Unix socket; no TLS.
 * Thread: one owner; calls block. */
#ifndef SLUICE_SERVER_CLIENT_CLIENT_H
#define SLUICE_SERVER_CLIENT_CLIENT_H

#include "engine/base/status.h"

#include <signal.h>
#include <stddef.h>

struct client_peer {
    char host[256], port[8];
    char path[512];      // prefix of every target, without a trailing '/'
    char unix_path[108]; // if not "", this socket is used instead of host and port
};

/* http://HOST[:PORT][/PATH], HOST also as [v6 address]. */
enum status client_url_parse(const char *url, struct client_peer *peer, struct err *err);

/* The same for an API's base URL: a trailing "/v1" is dropped, because both forms are common. */
enum status client_url_parse_base(const char *url, struct client_peer *peer, struct err *err);

struct client_request {
    const char *method, *path;         // path: appended to the peer's
    const char *key;                   // a bearer token; NULL: none
    const char *body;                  // JSON text; NULL: no body
    int timeout_s;                     // limit for connecting and for each wait; 0: none
    const volatile sig_atomic_t *stop; // if set, the call ends soon after *stop becomes nonzero
};

/* Sends the request and passes on the answer's body as it arrives; *status is set before its first
 * byte. ERR_TIMEOUT; ERR_CANCELLED: stopped; ERR_IO: no connection, or it broke; ERR_FORMAT: the
 * answer is not HTTP. */
enum status client_call(const struct client_peer *peer, const struct client_request *request,
                        void (*on_body)(void *arg, const char *bytes, size_t n_bytes), void *arg,
                        int *status, struct err *err);

#endif
