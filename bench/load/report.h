// SPDX-License-Identifier: Apache-2.0
/* The results of a run, as a table and as JSON.
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_REPORT_H
#define SLUICE_BENCH_LOAD_REPORT_H

#include "bench/load/run.h"

struct summary {
    size_t n;
    double mean, p50, p90, p99, max;
};

/* A range of conversation turns, counted from 1. Later turns have longer prompts, and more of their
 * tokens are cached. */
struct turn_range {
    int64_t first, last, prompt_tokens, cached_tokens;
    struct summary ttft;
};
enum { MAX_TURN_RANGES = 12 };

struct bench_report {
    struct turn_range ranges[MAX_TURN_RANGES];
    int n_ranges;                        // 0: units have a single request
    struct summary ttft, itl, tpot, e2e; // ms, over successful requests; itl over all requests
    int64_t outcomes[N_OUTCOMES];
    int64_t n_sent, prompt_tokens, cached_tokens, output_tokens, n_good;
    bool tokens_reported; // every successful answer had a usage block
};

/* Sorts r->itl_ms. */
void bench_report_make(const struct bench_options *o, struct bench_results *r,
                       struct bench_report *rep);
void bench_report_print(const struct bench_options *o, const struct bench_results *r,
                        const struct bench_report *rep);
enum status bench_report_json(const struct bench_options *o, const char *model,
                              const struct bench_results *r, const struct bench_report *rep,
                              struct err *err);

#endif
