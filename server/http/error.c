// SPDX-License-Identifier: Apache-2.0
/* Errors that this folder reports itself, because no handler runs or can report them. Code and
 * sentence are defined here; the caller formats the body (options.put_error). */
#include "server/http/private.h"

enum { MAX_ERROR_BYTES = 64 << 10, MAX_HEAD_BYTES = 2048 };

static const struct {
    int status;
    const char *text;
} status_texts[] = {
    {200, "OK"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
    {507, "Insufficient Storage"},
};

const char *http_status_text(int status)
{
    for (size_t i = 0; i < sizeof status_texts / sizeof status_texts[0]; i++) {
        if (status_texts[i].status == status) {
            return status_texts[i].text;
        }
    }
    return "Unknown";
}

const char *http_put_error(const struct http_server *s, struct buf *b, int status, const char *code,
                           const char *message)
{
    buf_init(b, MAX_ERROR_BYTES);
    if (!s->options.put_error) {
        return NULL;
    }
    return s->options.put_error(b, status, code, message ? message : http_status_text(status));
}

void http_refuse_raw(const struct http_server *s, int fd, int status, const char *code,
                     const char *message, int retry_after_s)
{
    struct buf body, head;
    buf_init(&head, MAX_HEAD_BYTES);
    const char *type = http_put_error(s, &body, status, code, message);
    buf_printf(&head, "HTTP/1.1 %d %s\r\nConnection: close\r\n", status, http_status_text(status));
    if (type) {
        buf_printf(&head, "Content-Type: %s\r\n", type);
    }
    buf_printf(&head, "Content-Length: %zu\r\n", body.n_bytes);
    if (retry_after_s > 0) {
        buf_printf(&head, "Retry-After: %d\r\n", retry_after_s);
    }
    buf_puts(&head, "\r\n");
    buf_put(&head, body.data, body.n_bytes);
    ssize_t n = send(fd, head.data, head.n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n; // if it fails the client gets no answer; the connection is closed in any case
    buf_deinit(&body);
    buf_deinit(&head);
}
