// SPDX-License-Identifier: Apache-2.0
/* Requests from browsers to a server without keys: pages of other origins must not use it,
 * or any web page could reach a local server. */
#include "server/api/origin.h"

#include <string.h>
#include <strings.h>

/* The length of the host in "host:port" or "[::1]:port". */
static size_t host_bytes(const char *host)
{
    if (host[0] == '[') {
        size_t n = strcspn(host, "]");
        return n + (host[n] == ']');
    }
    return strcspn(host, ":");
}

static bool is_host(const char *host, size_t n, const char *known)
{
    return strlen(known) == n && strncasecmp(host, known, n) == 0;
}

/* True if all listeners have loopback addresses. */
static bool listens_on_loopback(const struct api *a)
{
    const char *address;
    bool some = false;
    for (size_t i = 0; (address = http_server_address(a->http, i)) != NULL; i++) {
        if (!http_is_loopback(address)) {
            return false;
        }
        some = true;
    }
    return some;
}

static bool host_is_good(const struct api *a, const char *host)
{
    const struct string_list *allowed = &a->config->allowed_hosts;
    if (!host || http_is_loopback(host)) { // HTTP/1.0 allows this, and browsers do not use it
        return true;
    }
    for (size_t i = 0; i < allowed->n; i++) {
        if (strcmp(allowed->items[i], "*") == 0 ||
            is_host(host, host_bytes(host), allowed->items[i])) {
            return true;
        }
    }
    return false;
}

/* The request comes from one of our own pages, such as the status page. The Host header was checked
 * before. */
static bool is_own_page(const struct http_request *req)
{
    const char *site = http_header(req, "sec-fetch-site"), *origin = http_header(req, "origin");
    const char *host = http_header(req, "host");
    if (site) {
        return strcasecmp(site, "same-origin") == 0 || strcasecmp(site, "none") == 0;
    }
    const char *authority = origin ? strstr(origin, "://") : NULL;
    return authority && host && strcasecmp(authority + 3, host) == 0;
}

/* The user follows a link. The page with the link does not learn what is answered. */
static bool is_link(const struct http_request *req, const struct http_route *route)
{
    const char *mode = http_header(req, "sec-fetch-mode");
    return strcmp(route->method, "GET") == 0 && mode && strcasecmp(mode, "navigate") == 0;
}

bool origin_check(struct api *a, const struct http_request *req, const struct http_route *route,
                  struct call_error *e)
{
    bool acts = strcmp(route->method, "GET") != 0, local = listens_on_loopback(a);
    const char *host = http_header(req, "host");
    if (route->scope == 0) {
        return true;
    }
    if (local && !host_is_good(a, host)) {
        return call_error_set(e, 403, "host_not_allowed", NULL,
                              "This server listens on a loopback address without API keys and does "
                              "not answer to the name '%.100s' unless it is in --allowed-hosts.",
                              host);
    }
    bool guarded = local ? !is_link(req, route) : acts && route->scope == SCOPE_ADMIN;
    if (guarded && !http_origin_is_good(req) && !(local && is_own_page(req))) {
        return call_error_set(e, 403, "origin_not_allowed", NULL,
                              "Web pages may not use a server without API keys unless their origin "
                              "is in --allowed-origins.");
    }
    return true;
}
