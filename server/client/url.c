// SPDX-License-Identifier: Apache-2.0
#include "engine/base/optional.h"
#include "server/client/client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parses a host in brackets, or up to a ':' or '/'. Returns the rest; NULL if it is invalid. */
static const char *take_host(const char *s, struct client_peer *peer)
{
    const char *begin = s + (*s == '[');
    const size_t n = strcspn(begin, *s == '[' ? "]" : ":/");
    if (n == 0 || n >= sizeof peer->host || (*s == '[' && begin[n] != ']')) {
        return NULL;
    }
    snprintf(peer->host, sizeof peer->host, "%.*s", (int)n, begin);
    return begin + n + (*s == '[');
}

static const char *take_port(const char *s, struct client_peer *peer)
{
    snprintf(peer->port, sizeof peer->port, "80");
    if (*s != ':') {
        return s;
    }
    const size_t n = strspn(++s, "0123456789");
    if (n == 0 || n > 5 || atoi(s) > 65535) {
        return NULL;
    }
    snprintf(peer->port, sizeof peer->port, "%.*s", (int)n, s);
    return s + n;
}

enum status client_url_parse(const char *url, struct client_peer *peer, struct err *err)
{
    memset(peer, 0, sizeof *peer);
    if (strncmp(url, "http://", 7) != 0) {
        return err_set(err, ERR_INVALID, "'%.200s' does not begin with http://%s", url,
                       text_if(strncmp(url, "https:", 6) == 0, " (TLS is not supported)"));
    }
    const char *s = take_host(url + 7, peer);
    s = s != NULL ? take_port(s, peer) : NULL;
    if (s == NULL || (*s != '\0' && *s != '/')) {
        return err_set(err, ERR_INVALID, "'%.200s' is not http://HOST:PORT", url);
    }
    size_t n = strlen(s);
    while (n > 0 && s[n - 1] == '/') {
        n--;
    }
    if (n >= sizeof peer->path || strpbrk(url, " \r\n\t") != NULL) {
        return err_set(err, ERR_INVALID, "'%.200s' has a path that cannot be used", url);
    }
    snprintf(peer->path, sizeof peer->path, "%.*s", (int)n, s);
    return OK;
}

enum status client_url_parse_base(const char *url, struct client_peer *peer, struct err *err)
{
    TRY(client_url_parse(url, peer, err));
    const size_t n = strlen(peer->path);
    if (n >= 3 && strcmp(peer->path + n - 3, "/v1") == 0) {
        peer->path[n - 3] = '\0';
    }
    return OK;
}
