// SPDX-License-Identifier: Apache-2.0
/* The run: connections, arrivals and clocks. One thread and one epoll set drive all connections;
 * what it measures stays in a table with one row for each request.
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_RUN_H
#define SLUICE_BENCH_LOAD_RUN_H

#include "bench/load/load.h"

enum outcome {
    OUTCOME_NONE, // not sent: the run ended before
    OUTCOME_OK,
    OUTCOME_CONNECT,    // no connection
    OUTCOME_HTTP,       // a status other than 200
    OUTCOME_CLOSED,     // the connection ended within the answer
    OUTCOME_PROTOCOL,   // not HTTP/1.1 as we know it
    OUTCOME_STREAM,     // an error event in the stream
    OUTCOME_INCOMPLETE, // the answer ended without [DONE]
    OUTCOME_TIMEOUT,
    OUTCOME_INTERRUPTED, // Ctrl-C
    N_OUTCOMES
};

extern const char *const outcome_names[N_OUTCOMES];

/* Times are nanoseconds since the run began; 0: did not happen. */
struct bench_record {
    int64_t due, first, last, end;
    int32_t prompt_tokens, cached_tokens; // -1: not told
    int32_t output_tokens;                // as told, else events with text
    int32_t n_events;
    int16_t http_status;
    uint8_t outcome;
};

struct bench_results {
    struct bench_record *records; // [n_records]
    int64_t n_records, n_turns;   // a unit's turns lie side by side, and no unit has more
    float *itl_ms; // every gap between events with text, of good and failed requests alike
    size_t n_itl, cap_itl;
    int64_t n_events, n_reconnects, max_in_flight;
    double wall_s;
    char example[400]; // what the first failed request was told
};

enum status bench_run(const struct bench_options *o, const struct bench_load *load,
                      struct bench_results *r, struct err *err);
void bench_results_deinit(struct bench_results *r);

/* One GET, waited for; the body (at most 1 MiB) is appended. */
enum status bench_get(const struct bench_options *o, const char *path, struct buf *body,
                      struct err *err);

#endif
