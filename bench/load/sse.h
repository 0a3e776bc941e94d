/* The events of one streamed answer, read without a JSON parser: lines that begin with "data:",
 * whether an event carries text, the counts of the usage block, an error, and the end mark.
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_SSE_H
#define SLUICE_BENCH_LOAD_SSE_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stdint.h>

struct sse {
    struct buf line;        // the part of a line that has come
    struct buf *answer;     // if set, gets the text as it stands between the quotes
    int64_t n_events, n_text_events;
    int64_t prompt_tokens, completion_tokens, cached_tokens; // -1: not told
    bool done, error;
    void (*on_text)(void *arg); // an event with text has come
    void *arg;
};

void sse_init(struct sse *s, void (*on_text)(void *), void *arg);
void sse_deinit(struct sse *s);
void sse_reset(struct sse *s);
void sse_feed(struct sse *s, const char *bytes, size_t n_bytes);

#endif
