// SPDX-License-Identifier: Apache-2.0
/* The lines of a stream of server-sent events, as bytes arrive: the data of each event is handed
 * on, comments and other fields are skipped. An event's data is taken to be one line, as it is in
 * every OpenAI-compatible stream. Thread: one owner. */
#ifndef SLUICE_SERVER_CLIENT_SSE_H
#define SLUICE_SERVER_CLIENT_SSE_H

#include "engine/base/buf.h"

struct sse {
    struct buf line; // the part of a line that has come; `failed` once one was too long
    /* One event's data. A character stands behind the last byte (the line's end, or NUL), so what
     * reads a number from its end stops there. */
    void (*on_data)(void *arg, const char *data, size_t n_bytes);
    void *arg;
};

void sse_init(struct sse *s, void (*on_data)(void *, const char *, size_t), void *arg);
void sse_deinit(struct sse *s);
void sse_reset(struct sse *s); // before the next stream
void sse_feed(struct sse *s, const char *bytes, size_t n_bytes);

#endif
