// SPDX-License-Identifier: Apache-2.0
/* The other end of HTTP, for commands that speak to a server: where it is, and one request that
 * waits for its answer. Plain HTTP/1.1 over TCP or a Unix socket; no TLS. Thread: one owner; calls
 * block. */
#ifndef SLUICE_SERVER_CLIENT_CLIENT_H
#define SLUICE_SERVER_CLIENT_CLIENT_H

#include "engine/base/status.h"

#include <signal.h>
#include <stddef.h>

struct client_peer {
    char host[256], port[8];
    char path[512];      // what every target begins with, without a '/' at its end
    char unix_path[108]; // if not "", the socket that is used instead of host and port
};

/* http://HOST[:PORT][/PATH], HOST also as [v6 address]. */
enum status client_url_parse(const char *url, struct client_peer *peer, struct err *err);

/* The same for the base of an API: "/v1" at its end is dropped, since both forms are common. */
enum status client_url_parse_base(const char *url, struct client_peer *peer, struct err *err);

struct client_request {
    const char *method, *path;         // the path follows the peer's
    const char *key;                   // a bearer token; NULL: none
    const char *body;                  // JSON; NULL: none
    int timeout_s;                     // for the connection and for each wait for bytes; 0: none
    const volatile sig_atomic_t *stop; // if set, ends the call soon after it is not 0
};

/* Sends the request and hands on the answer's body as it comes; *status is set before the first
 * byte of it. ERR_TIMEOUT; ERR_CANCELLED: stopped; ERR_IO: no connection, or one that broke;
 * ERR_FORMAT: the answer is not HTTP. */
enum status client_call(const struct client_peer *peer, const struct client_request *request,
                        void (*on_body)(void *arg, const char *bytes, size_t n_bytes), void *arg,
                        int *status, struct err *err);

#endif
