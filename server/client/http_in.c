// SPDX-License-Identifier: Apache-2.0
/* A parser for replies of HTTP/1.1, fed with bytes as they come. The state says what the
 * next byte belongs to. */
#include "server/client/http_in.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { AT_STATUS, AT_HEADER, AT_BODY, AT_CHUNK_SIZE, AT_CHUNK, AT_CHUNK_END, AT_TRAILER, AT_END };
enum { MAX_LINE_BYTES = 16384, MAX_HEAD_BYTES = 65536 };

void http_in_init(struct http_in *in, void (*on_body)(void *, const char *, size_t), void *arg)
{
    memset(in, 0, sizeof *in);
    in->on_body = on_body;
    in->arg = arg;
    buf_init(&in->line, MAX_LINE_BYTES);
    http_in_reset(in);
}

void http_in_deinit(struct http_in *in)
{
    buf_deinit(&in->line);
}

/* Prepares for the next reply on the same connection. */
void http_in_reset(struct http_in *in)
{
    in->state = AT_STATUS;
    in->status = 0;
    in->keep_alive = true;
    in->chunked = false;
    in->until_close = true;
    in->left = 0;
    in->head_bytes = 0;
    buf_clear(&in->line);
}

/* Reads a length or a chunk's size, which an extension may follow. Numbers above 2^48 are refused,
 * so that sums cannot overflow. */
static bool take_number(const char *s, int base, uint64_t *v)
{
    char *end;
    if (strspn(s, base == 16 ? "0123456789abcdefABCDEF" : "0123456789") == 0) {
        return false;
    }
    *v = strtoull(s, &end, base);
    end += strspn(end, " \t");
    return (*end == '\0' || (base == 16 && *end == ';')) && *v < (uint64_t)1 << 48;
}

/* Reads only the fields that tell how long the body is and whether the connection stays open. */
static bool take_header(struct http_in *in, const char *line)
{
    const char *colon = strchr(line, ':');
    if (colon == NULL) {
        return false;
    }
    const size_t n = (size_t)(colon - line);
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    if (n == 14 && strncasecmp(line, "content-length", n) == 0) {
        in->until_close = false;
        return take_number(value, 10, &in->left);
    }
    if (n == 17 && strncasecmp(line, "transfer-encoding", n) == 0) {
        in->chunked = strcasecmp(value, "chunked") == 0;
        return in->chunked;
    }
    if (n == 10 && strncasecmp(line, "connection", n) == 0) {
        in->keep_alive = strcasestr(value, "close") == NULL;
    }
    return true;
}

/* Decides how the body ends. Interim replies are skipped, and some statuses never have a body. */
static void end_head(struct http_in *in)
{
    if (in->status < 200) { // after 100 Continue and the like, the real head follows
        http_in_reset(in);
    } else if (in->status == 204 || in->status == 304) {
        in->state = AT_END;
    } else if (in->chunked) {
        in->until_close = false;
        in->state = AT_CHUNK_SIZE;
    } else {
        in->keep_alive = in->keep_alive && !in->until_close;
        in->state = in->until_close || in->left > 0 ? AT_BODY : AT_END;
    }
}

/* Processes one complete line without its end. */
static bool take_line(struct http_in *in, const char *line)
{
    switch (in->state) {
    case AT_STATUS:
        if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12 || line[8] != ' ') {
            return false;
        }
        in->keep_alive = line[7] != '0';
        in->status = atoi(line + 9);
        in->state = AT_HEADER;
        return in->status >= 100 && in->status <= 599;
    case AT_HEADER:
        if (*line != '\0') {
            return take_header(in, line);
        }
        end_head(in);
        return true;
    case AT_CHUNK_SIZE:
        if (!take_number(line, 16, &in->left)) {
            return false;
        }
        in->state = in->left > 0 ? AT_CHUNK : AT_TRAILER;
        return true;
    case AT_CHUNK_END: in->state = AT_CHUNK_SIZE; return *line == '\0';
    default: // AT_TRAILER
        if (*line == '\0') {
            in->state = AT_END;
        }
        return true;
    }
}

/* A line may arrive in pieces; it is collected up to its end. */
static bool feed_line(struct http_in *in, const char **bytes, size_t *n_bytes)
{
    const char *nl = memchr(*bytes, '\n', *n_bytes);
    const size_t n = nl != NULL ? (size_t)(nl - *bytes) : *n_bytes;
    buf_put(&in->line, *bytes, n);
    const size_t taken = n + (nl != NULL);
    *bytes += taken;
    *n_bytes -= taken;
    if (in->state == AT_STATUS || in->state == AT_HEADER || in->state == AT_TRAILER) {
        in->head_bytes += taken;
    }
    if (in->line.failed || in->head_bytes > MAX_HEAD_BYTES) {
        return false;
    }
    if (nl == NULL) {
        return true;
    }
    if (in->line.n_bytes > 0 && in->line.data[in->line.n_bytes - 1] == '\r') {
        in->line.data[--in->line.n_bytes] = '\0';
    }
    const bool good = take_line(in, or_empty(in->line.data));
    buf_clear(&in->line);
    if (in->line.data != NULL) {
        in->line.data[0] = '\0';
    }
    return good;
}

/* Bodies are passed on without a copy. */
enum http_in_result http_in_feed(struct http_in *in, const char *bytes, size_t n_bytes)
{
    while (n_bytes > 0 && in->state != AT_END) {
        if (in->state != AT_BODY && in->state != AT_CHUNK) {
            if (!feed_line(in, &bytes, &n_bytes)) {
                return HTTP_IN_BAD;
            }
            continue;
        }
        size_t n = n_bytes;
        if (!in->until_close) {
            if (in->left < n) {
                n = (size_t)in->left;
            }
            in->left -= n;
        }
        in->on_body(in->arg, bytes, n);
        bytes += n;
        n_bytes -= n;
        if (!in->until_close && in->left == 0) {
            in->state = in->state == AT_CHUNK ? AT_CHUNK_END : AT_END;
        }
    }
    if (in->state != AT_END) {
        return HTTP_IN_MORE;
    }
    return n_bytes == 0 ? HTTP_IN_DONE : HTTP_IN_BAD;
}

enum http_in_result http_in_eof(const struct http_in *in)
{
    if (in->state == AT_BODY && in->until_close) {
        return HTTP_IN_DONE;
    }
    return HTTP_IN_BAD;
}
