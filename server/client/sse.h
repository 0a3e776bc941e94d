// SPDX-License-Identifier: Apache-2.0
/* Parses server-sent events as bytes arrive: the data of each event is passed on; comments and
 * other fields are skipped. An event's data must be a single line, as in every OpenAI-compatible
 * stream.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CLIENT_SSE_H
#define SLUICE_SERVER_CLIENT_SSE_H

#include "engine/base/buf.h"

struct sse {
    struct buf line; // the incomplete current line; `failed` is set once a line was too long
    /* One event's data. A byte that is not a digit (line end or NUL) follows it, so a number can be
     * parsed safely at its end. */
    void (*on_data)(void *arg, const char *data, size_t n_bytes);
    void *arg;
};

void sse_init(struct sse *s, void (*on_data)(void *, const char *, size_t), void *arg);
void sse_deinit(struct sse *s);
void sse_reset(struct sse *s); // before the next stream
void sse_feed(struct sse *s, const char *bytes, size_t n_bytes);

#endif
