// SPDX-License-Identifier: Apache-2.0
/* The request target: decoding, the query, and the table of routes. */
#include "engine/base/optional.h"
#include "server/http/private.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c |= 0x20;
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return -1;
}

/* Decodes n bytes into *out, which advances past the NUL. False for an invalid escape and for
 * control characters, encoded or not. */
static bool decode(const char *from, size_t n_bytes, bool plus_is_space, char **out)
{
    char *to = *out;
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)from[i];
        if (c == '%') {
            int high = i + 2 < n_bytes ? hex_value(from[i + 1]) : -1;
            int low = high >= 0 ? hex_value(from[i + 2]) : -1;
            if (low < 0) {
                return false;
            }
            c = (unsigned char)(high << 4 | low);
            i += 2;
        } else if (c == '+' && plus_is_space) {
            c = ' ';
        }
        if (c < 0x20 || c == 0x7f) {
            return false;
        }
        *to++ = (char)c;
    }
    *to++ = '\0';
    *out = to;
    return true;
}

/* Keys and values become strings one after the other, from req->query to req->query_end. */
static bool decode_query(struct http_request *req, const char *q, size_t n_bytes, char **out)
{
    req->query = *out;
    while (n_bytes > 0) {
        const char *end = memchr(q, '&', n_bytes);
        size_t n = end ? (size_t)(end - q) : n_bytes;
        const char *eq = memchr(q, '=', n);
        size_t n_key = eq ? (size_t)(eq - q) : n;
        if (n > 0) {
            if (!decode(q, n_key, true, out) ||
                !decode(eq ? eq + 1 : "", eq ? n - n_key - 1 : 0, true, out)) {
                return false;
            }
        }
        if (end) {
            n += 1;
        }
        q += n;
        n_bytes -= n;
    }
    req->query_end = *out;
    return true;
}

/* Skips what precedes the path in the absolute form that proxies may send. */
static const char *skip_authority(const char *raw)
{
    size_t n = strncasecmp(raw, "https://", 8) == 0 ? 8 : 0;
    if (strncasecmp(raw, "http://", 7) == 0) {
        n = 7;
    }
    if (n == 0) {
        return raw;
    }
    raw += n;
    n = strcspn(raw, "/?");
    return raw[n] == '/' ? raw + n : "/";
}

bool http_split_uri(struct http_request *req, const char *raw)
{
    for (const char *p = raw; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= ' ' || c == 0x7f || c == '#') {
            return false;
        }
    }
    if (raw[0] == '\0') { // "GET  HTTP/1.1", as parsed by libmicrohttpd 1.0.1
        return false;
    }
    raw = skip_authority(raw);
    size_t n = strlen(raw);
    req->text = xcalloc(1, 2 * n + 8); // room for the decoded parts and for the {id}s
    char *out = req->text;
    req->path = out;
    const char *q = strchr(raw, '?');
    size_t n_path = q ? (size_t)(q - raw) : n;
    if (!decode(raw, n_path, false, &out)) {
        return false;
    }
    req->query = req->query_end = out;
    if (q && !decode_query(req, q + 1, n - n_path - 1, &out)) {
        return false;
    }
    const char *root = req->server->root_path;
    size_t n_root = length_or_0(root);
    if (n_root > 0 && strncmp(req->path, root, n_root) == 0 &&
        (req->path[n_root] == '/' || req->path[n_root] == '\0')) {
        req->path += n_root;
    }
    if (req->path[0] == '\0') {
        req->path = "/";
    }
    while (req->path[0] == '/' && req->path[1] == '/') { // the client's base URL ends with a slash
        req->path++;
    }
    return req->path[0] == '/' || strcmp(req->path, "*") == 0;
}

struct part {
    const char *at;
    size_t n;
};

/* Matches a path with a pattern, and stores the parts that its {id}s match. */
static bool matches(const char *pattern, const char *path, size_t n_path, struct part parts[2])
{
    const char *end = path + n_path;
    for (int i = 0;; i++) {
        const char *brace = strchr(pattern, '{');
        size_t n_before = brace ? (size_t)(brace - pattern) : strlen(pattern);
        if ((size_t)(end - path) < n_before || memcmp(path, pattern, n_before) != 0) {
            return false;
        }
        path += n_before;
        if (!brace || i == 2) {
            return !brace && path == end;
        }
        pattern = strchr(brace, '}') + 1;
        const char *slash = NULL;
        if (*pattern) {
            slash = memchr(path, '/', (size_t)(end - path));
        }
        parts[i] = (struct part){path, (size_t)((slash ? slash : end) - path)};
        if (parts[i].n == 0) {
            return false;
        }
        path += parts[i].n;
    }
}

/* http_split_uri reserved memory for these copies. */
static const char *copy_part(char **to, struct part part)
{
    char *copy = *to;
    if (!part.at) {
        return NULL;
    }
    memcpy(copy, part.at, part.n);
    copy[part.n] = '\0';
    *to = copy + part.n + 1;
    return copy;
}

static bool method_fits(const struct http_request *req, const struct http_route *r)
{
    return strcmp(r->method, req->method) == 0 || (req->is_head && strcmp(r->method, "GET") == 0);
}

/* The longest pattern that matches, or NULL. The longest, because a shorter one may take further
 * parts of the path for a part of an id. */
static const char *find_pattern(const struct http_request *req, size_t n_path, struct part parts[2])
{
    const char *best = NULL;
    for (const struct http_route *r = req->server->options.routes; r && r->method; r++) {
        struct part these[2] = {{NULL, 0}, {NULL, 0}};
        bool longer = !best || strlen(r->path) > strlen(best);
        if (longer && matches(r->path, req->path, n_path, these)) {
            best = r->path;
            memcpy(parts, these, sizeof these);
        }
    }
    return best;
}

/* The route, or NULL: then `allow` lists the methods of that path (empty: no such path). */
const struct http_route *http_route_find(struct http_request *req, struct buf *allow)
{
    struct part parts[2] = {{NULL, 0}, {NULL, 0}};
    size_t n_path = strlen(req->path);
    while (n_path > 1 && req->path[n_path - 1] == '/') {
        n_path--;
    }
    const char *pattern = find_pattern(req, n_path, parts);
    for (const struct http_route *r = req->server->options.routes; pattern && r->method; r++) {
        if (strcmp(r->path, pattern) != 0) {
            continue;
        }
        if (method_fits(req, r)) {
            char *room = req->query_end;
            req->param = copy_part(&room, parts[0]);
            req->second_param = copy_part(&room, parts[1]);
            return r;
        }
        buf_printf(allow, "%s%s%s", text_if(allow->n_bytes > 0, ", "), r->method,
                   text_if(strcmp(r->method, "GET") == 0, ", HEAD"));
    }
    return NULL;
}

const struct http_route *http_route_of_path(struct http_request *req, const char *method)
{
    size_t n_path = strlen(req->path);
    while (n_path > 1 && req->path[n_path - 1] == '/') {
        n_path--;
    }
    const struct http_route *any = NULL;
    for (const struct http_route *r = req->server->options.routes; r && r->method; r++) {
        struct part parts[2];
        if (matches(r->path, req->path, n_path, parts)) {
            if (!any) {
                any = r;
            }
            if (strcmp(r->method, method) == 0) {
                return r;
            }
        }
    }
    return any;
}

const char *http_query(const struct http_request *req, const char *name)
{
    for (const char *p = req->query; p && p < req->query_end;) {
        const char *value = p + strlen(p) + 1;
        if (strcmp(p, name) == 0) {
            return value;
        }
        p = value + strlen(value) + 1;
    }
    return NULL;
}
