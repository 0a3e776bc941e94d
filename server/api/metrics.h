// SPDX-License-Identifier: Apache-2.0
/* Counters and histograms in Prometheus' text form: vLLM's names and buckets, so that dashboards,
 * autoscalers and gateways that know vLLM work unchanged, and llama.cpp's; metrics without a name
 * there are called sluice_*.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_METRICS_H
#define SLUICE_SERVER_API_METRICS_H

#include "engine/base/buf.h"
#include "server/api/health.h"
#include "server/call/call.h"
#include "server/http/http.h"
#include "server/jobs/batches.h"

#include <stdint.h>

struct call_adapters;
struct engine_info;
struct engine_stats;

/* The histograms are those of enum call_measure, followed by these. */
enum metric_histogram { HIST_ITERATION_TOKENS = N_CALL_MEASURES, HIST_HTTP, N_HISTOGRAMS };

enum { METRIC_MAX_BUCKETS = 26 };

struct metric_series {
    uint64_t n[METRIC_MAX_BUCKETS + 1]; // the last one counts values above all bounds
    double sum;
};

struct metric_http {
    const char *method, *route; // method: static text; route: borrowed from the route table
    int status;
    uint64_t n;
};

struct metrics {
    struct metric_series hist[N_HISTOGRAMS];
    uint64_t client_retries;
    struct metric_http *http; // as many as the route table allows: it bounds methods and routes
    size_t n_http;
};

void metrics_deinit(struct metrics *m); // accepts a zeroed struct
/* `which`: enum call_measure or metric_histogram. */
void metrics_observe(struct metrics *m, int which, double v);
/* Copies the histogram of step sizes, which the engine counts itself with the same bounds. */
void metrics_take_steps(struct metrics *m, const struct engine_stats *s);
void metrics_http(struct metrics *m, const struct http_record *record);

/* Other sources of the text, besides struct metrics. */
struct metrics_source {
    const char *model_name, *version;
    const struct engine_stats *stats; // NULL while loading
    const struct engine_info *info;
    const struct http_stats *http;
    const struct call_counts *counts;
    const struct batches_counts *batches; // NULL: there is no store
    enum api_health health;
    double heartbeat_age_s, load_seconds, memory_utilization;
    bool prefix_caching;
    struct call_adapters *adapters; // NULL while loading
};
void metrics_print(const struct metrics *m, const struct metrics_source *s, struct buf *out);
/* Writes the metrics under llama.cpp's names (metrics_llama.c). Do not call it while the model is
 * loading. */
void metrics_print_llama(const struct metrics *m, const struct metrics_source *s, struct buf *out);

/* The same text in OpenMetrics' format: a counter's family is named without _total, and the end is
 * marked. */
void metrics_to_openmetrics(const struct buf *text, struct buf *out);

#endif
