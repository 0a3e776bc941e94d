// SPDX-License-Identifier: Apache-2.0
/* Rejects requests that libmicrohttpd accepts and an HTTP server must not, above all ambiguous
 * framing. Older versions (0.9.75) ignore headers with invalid names, use the first of two lengths,
 * join folded lines wrongly and cut values at NUL; 1.0.1 is better; 1.0.5 and newer reject nearly
 * all of it themselves. A request rejected here is answered and its connection closed, so that what
 * follows on it is never parsed as a request. */
#include "engine/base/words.h"
#include "server/http/private.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct guard {
    struct http_request *req;
    const char *expected; // where the next header line must start (0.9.75 only, otherwise NULL)
    unsigned n_lengths, n_codings, n_hosts;
    int status;
    const char *why;
};

static enum MHD_Result refuse(struct guard *g, int status, const char *why)
{
    if (g->status == 0) {
        g->status = status;
        g->why = why;
    }
    return MHD_NO;
}

static bool is_token(const char *s, size_t n_bytes)
{
    static const char others[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n_bytes; i++) {
        char c = s[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && (c == '\0' || !strchr(others, c))) {
            return false;
        }
    }
    return n_bytes > 0;
}

static bool is_clean(const char *s, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            return false;
        }
    }
    return true;
}

/* 0.9.75 parses in place: "Name: value\r\n" becomes "Name\0 value\0\0", directly followed by the
 * next line. A folded line, a NUL in a value, or a bare LF break that sequence, and are not
 * detectable otherwise. */
static bool follows(struct guard *g, const char *name, size_t n_name, const char *value,
                    size_t n_value)
{
    if (!g->expected) {
        return true;
    }
    if (name != g->expected || !value || value <= name + n_name) {
        return false;
    }
    for (const char *p = name + n_name + 1; p < value; p++) {
        if (*p != ' ' && *p != '\t') {
            return false;
        }
    }
    g->expected = value + n_value + 2;
    return value[n_value] == '\0' && value[n_value + 1] == '\0';
}

/* Digits only, at most 18, which every parser understands in the same way. */
static bool parse_length(const char *s, size_t n_bytes, uint64_t *length)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (s[i] < '0' || s[i] > '9' || i >= 18) {
            return false;
        }
        v = v * 10 + (uint64_t)(s[i] - '0');
    }
    *length = v;
    return n_bytes > 0;
}

static bool is_all_digits(const char *s, size_t n_bytes)
{
    return n_bytes > 0 && strspn(s, "0123456789") == n_bytes;
}

static bool is(const char *name, size_t n_name, const char *known)
{
    return strlen(known) == n_name && strncasecmp(name, known, n_name) == 0;
}

static void keep_id(struct http_request *req, const char *value, size_t n_bytes)
{
    if (words_is_id(value, n_bytes)) {
        memcpy(req->id, value, n_bytes);
        req->id[n_bytes] = '\0';
        req->id_is_given = true;
    }
}

/* W3C trace context: "00-" 32 hex "-" 16 hex "-" 2 hex. The trace id is logged. */
static void keep_trace(struct http_request *req, const char *value, size_t n_bytes)
{
    static const char hex[] = "0123456789abcdef";
    char *id = req->record.trace_id;
    if (n_bytes < 55 || value[2] != '-' || value[35] != '-' || value[52] != '-') {
        return;
    }
    memcpy(id, value + 3, 32);
    id[32] = '\0';
    if (strspn(id, hex) != 32 || strspn(id, "0") == 32) {
        id[0] = '\0';
    }
}

static void keep_agent(struct http_request *req, const char *value, size_t n_bytes)
{
    size_t n;
    if (n_bytes < sizeof req->user_agent) {
        n = n_bytes;
    } else {
        n = sizeof req->user_agent - 1;
    }
    memcpy(req->user_agent, value, n);
    req->user_agent[n] = '\0';
}

static enum MHD_Result take_length(struct guard *g, const char *value, size_t n_value)
{
    if (++g->n_lengths > 1) {
        return refuse(g, 400, "More than one Content-Length.");
    }
    if (!parse_length(value, n_value, &g->req->content_length)) {
        if (is_all_digits(value, n_value)) {
            return refuse(g, 413, "The Content-Length is too large.");
        }
        return refuse(g, 400, "The Content-Length is not a number.");
    }
    g->req->has_body = g->req->has_body || g->req->content_length > 0;
    return MHD_YES;
}

static enum MHD_Result take_coding(struct guard *g, const char *value, size_t n_value)
{
    if (++g->n_codings > 1) {
        return refuse(g, 400, "More than one Transfer-Encoding.");
    }
    if (!is(value, n_value, "chunked")) {
        return refuse(g, 501, "The only supported Transfer-Encoding is chunked.");
    }
    if (g->req->http10) {
        return refuse(g, 400, "HTTP/1.0 has no Transfer-Encoding.");
    }
    g->req->has_body = true;
    /* Parsers disagree about chunk headers (extensions, bare LF, blanks), and libmicrohttpd does
     * not expose them, so the connection is not reused after a chunked body. Clients that send
     * those are rare. */
    g->req->must_close = true;
    return MHD_YES;
}

static enum MHD_Result take_host(struct guard *g, const char *value, size_t n_value)
{
    if (++g->n_hosts > 1) {
        return refuse(g, 400, "More than one Host.");
    }
    for (size_t i = 0; i < n_value; i++) {
        if (strchr(" \t,/?#@\\", value[i])) {
            return refuse(g, 400, "The Host header is not a valid host.");
        }
    }
    return MHD_YES;
}

/* Checks a header as it was received, and keeps the values that the front end needs. */
static enum MHD_Result on_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                 size_t n_name, const char *value, size_t n_value)
{
    struct guard *g = arg;
    struct http_request *req = g->req;
    (void)kind;
    if (!name || !is_token(name, n_name)) {
        return refuse(g, 400, "A header's name is malformed.");
    }
    if (!value) {
        value = "";
    }
    if (!is_clean(value, n_value) || !follows(g, name, n_name, value, n_value)) {
        return refuse(g, 400, "A header is malformed (folded, cut, or with control characters).");
    }
    while (n_value > 0 && (value[n_value - 1] == ' ' || value[n_value - 1] == '\t')) {
        n_value--;
    }
    switch (name[0] | 0x20) {
    case 'c':
        if (is(name, n_name, "content-length")) {
            return take_length(g, value, n_value);
        }
        if (is(name, n_name, "content-type")) {
            req->content_type = value;
        } else if (is(name, n_name, "content-encoding")) {
            req->content_encoding = value;
        }
        break;
    case 't':
        if (is(name, n_name, "transfer-encoding")) {
            return take_coding(g, value, n_value);
        }
        if (is(name, n_name, "traceparent")) {
            keep_trace(req, value, n_value);
        }
        break;
    case 'h':
        if (is(name, n_name, "host")) {
            return take_host(g, value, n_value);
        }
        break;
    case 'e':
        if (is(name, n_name, "expect")) {
            req->expects_continue = true;
            if (!is(value, n_value, "100-continue")) {
                return refuse(g, 417, "The only supported expectation is 100-continue.");
            }
        }
        break;
    case 'o':
        if (is(name, n_name, "origin")) {
            req->origin = value;
        }
        break;
    case 'u':
        if (is(name, n_name, "user-agent")) {
            keep_agent(req, value, n_value);
        }
        break;
    case 'x':
        if (is(name, n_name, "x-request-id")) {
            keep_id(req, value, n_value);
        }
        break;
    default: break;
    }
    return MHD_YES;
}

/* The lines must end exactly where the empty line begins. They do not if the last one ended with a
 * bare LF, which is a byte shorter than CR LF. */
static bool ends_head(const struct guard *g, const char *method)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(g->req->conn->mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    return g->expected[0] == '\0' && g->expected[1] == '\0' && info &&
           info->header_size == (size_t)(g->expected + 2 - method);
}

/* With 0.9.75, g.expected is where the next line has to begin in the received text. If
 * libmicrohttpd has folded or skipped anything, it begins elsewhere. */
int http_guard(struct http_request *req, const char *method, const char *version, const char **why)
{
    struct guard g = {.req = req};
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0) {
        *why = "Only HTTP/1.0 and HTTP/1.1 are supported.";
        return 505;
    }
    req->http10 = version[7] == '0';
    if (req->server->mhd_version < 0x01000000) {
        g.expected = version + 10; // after its CRLF
        if (version[8] != '\0' || version[9] != '\0' ||
            req->uri_seen != method + strlen(method) + 1 || !req->text ||
            version != req->uri_seen + req->n_uri + 1) {
            *why = "The request line is malformed.";
            return 400;
        }
    }
    if (!is_token(method, strlen(method)) || req->is_bad) {
        *why = "The request line is malformed.";
        return 400;
    }
    MHD_get_connection_values_n(req->conn->mhd, MHD_HEADER_KIND, on_header, &g);
    if (g.status == 0 && g.expected && !ends_head(&g, method)) {
        refuse(&g, 400, "The headers are malformed.");
    }
    if (g.status == 0 && g.n_lengths > 0 && g.n_codings > 0) {
        refuse(&g, 400, "Content-Length and Transfer-Encoding exclude each other.");
    }
    if (g.status == 0 && g.n_hosts == 0 && !req->http10) {
        refuse(&g, 400, "HTTP/1.1 needs a Host.");
    }
    *why = g.why;
    return g.status;
}
