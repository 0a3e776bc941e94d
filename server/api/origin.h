// SPDX-License-Identifier: Apache-2.0
/* Who may ask a server that has no keys. Whoever reaches its port may do all, but the pages that a
 * browser shows on the same machine are not meant by that: they can send a POST anywhere, and reach
 * 127.0.0.1 under a name of their own.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_ORIGIN_H
#define SLUICE_SERVER_API_ORIGIN_H

#include "server/api/api.h"

/* False: the request is a web page's, *e says so. What any route answers without a key, such as
 * probes, is left alone. */
bool origin_check(struct api *a, const struct http_request *req, const struct http_route *route,
                  struct call_error *e);

#endif
