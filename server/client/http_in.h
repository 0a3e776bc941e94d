// SPDX-License-Identifier: Apache-2.0
/* The receiving side of HTTP/1.1: parses responses as bytes arrive and passes on the body in
 * pieces. Lengths of lines, headers and chunks are bounded.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CLIENT_HTTP_IN_H
#define SLUICE_SERVER_CLIENT_HTTP_IN_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum http_in_result { HTTP_IN_MORE, HTTP_IN_DONE, HTTP_IN_BAD };

struct http_in {
    int state;
    int status;      // valid once the status line was read
    bool keep_alive; // the connection can carry another request
    bool chunked;
    bool until_close;  // the end of the connection ends the body
    uint64_t left;     // bytes left of the body or chunk
    size_t head_bytes; // total size of the header lines so far, bounded
    struct buf line;   // the incomplete current line
    void (*on_body)(void *arg, const char *bytes, size_t n_bytes);
    void *arg;
};

void http_in_init(struct http_in *in, void (*on_body)(void *, const char *, size_t), void *arg);
void http_in_deinit(struct http_in *in);
void http_in_reset(struct http_in *in); // before the next response

/* Consumes bytes up to the end of the response. Bytes after that are a protocol error (BAD),
 * because requests are not pipelined. */
enum http_in_result http_in_feed(struct http_in *in, const char *bytes, size_t n_bytes);

/* Call it when the connection has ended. Returns DONE if the body ends with the connection. */
enum http_in_result http_in_eof(const struct http_in *in);

#endif
