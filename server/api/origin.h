// SPDX-License-Identifier: Apache-2.0
/* Access to a server without keys. Whoever can connect may use it, except for web pages shown by a
 * browser on the same machine: they can POST to any address, and can reach 127.0.0.1 under a domain
 * name of their own.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_ORIGIN_H
#define SLUICE_SERVER_API_ORIGIN_H

#include "server/api/api.h"

/* False: the request comes from a web page, and *e is the error. Routes that answer without a key,
 * such as probes, are exempt. */
bool origin_check(struct api *a, const struct http_request *req, const struct http_route *route,
                  struct call_error *e);

#endif
