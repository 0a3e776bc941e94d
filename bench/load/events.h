// SPDX-License-Identifier: Apache-2.0
/* Reads the events of a streamed answer without a JSON parser: whether an event has text, the usage
 * counts, an error, and the end mark.
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_EVENTS_H
#define SLUICE_BENCH_LOAD_EVENTS_H

#include "engine/base/buf.h"
#include "server/client/sse.h"

#include <stdbool.h>
#include <stdint.h>

struct events {
    struct sse lines;
    struct buf *answer; // if set, receives the raw text between the quotes
    int64_t n_events, n_text_events;
    int64_t prompt_tokens, completion_tokens, cached_tokens; // -1: not reported
    bool done, error;
    void (*on_text)(void *arg); // called for an event with text
    void *arg;
};

void events_init(struct events *s, void (*on_text)(void *), void *arg);
void events_deinit(struct events *s);
void events_reset(struct events *s);
void events_feed(struct events *s, const char *bytes, size_t n_bytes);

#endif
