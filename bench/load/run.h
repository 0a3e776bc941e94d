// SPDX-License-Identifier: Apache-2.0
/* The run: connections, arrivals and clocks. One thread and one epoll set drive all connections;
 * measurements are stored in a table with one row per request.
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_RUN_H
#define SLUICE_BENCH_LOAD_RUN_H

#include "bench/load/load.h"

enum outcome {
    OUTCOME_NONE, // not sent when the run ended
    OUTCOME_OK,
    OUTCOME_CONNECT,    // no connection
    OUTCOME_HTTP,       // a status other than 200
    OUTCOME_CLOSED,     // the connection ended before the answer did
    OUTCOME_PROTOCOL,   // not valid HTTP/1.1
    OUTCOME_STREAM,     // an error event in the stream
    OUTCOME_INCOMPLETE, // the answer ended without [DONE]
    OUTCOME_TIMEOUT,
    OUTCOME_INTERRUPTED, // Ctrl-C
    N_OUTCOMES
};

extern const char *const outcome_names[N_OUTCOMES];

/* Times are nanoseconds since the start of the run; 0: has not happened. */
struct bench_record {
    int64_t due, first, last, end;
    int32_t prompt_tokens, cached_tokens; // -1: not reported
    int32_t output_tokens; // as reported; if not reported, the number of events with text
    int32_t n_events;
    int16_t http_status;
    uint8_t outcome;
};

struct bench_results {
    struct bench_record *records; // [n_records]
    // The turns of a unit are adjacent; n_turns is the most turns of any unit.
    int64_t n_records, n_turns;
    float *itl_ms; // the gaps between events with text, of successful and failed requests
    size_t n_itl, cap_itl;
    int64_t n_events, n_reconnects, max_in_flight;
    double wall_s;
    char example[400]; // the error of the first failed request
};

enum status bench_run(const struct bench_options *o, const struct bench_load *load,
                      struct bench_results *r, struct err *err);
void bench_results_deinit(struct bench_results *r);

/* One blocking GET; the body (at most 1 MiB) is appended. */
enum status bench_get(const struct bench_options *o, const char *path, struct buf *body,
                      struct err *err);

#endif
