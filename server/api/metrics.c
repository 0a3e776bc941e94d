// SPDX-License-Identifier: Apache-2.0
/* Counts and histograms in Prometheus' text format, under vLLM's names if it has them. Only the
 * loop thread uses them, so there is no lock. */
#include "server/api/metrics.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/engine.h"
#include "server/call/adapters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define LATENCY                                                                                    \
    {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
#define TOKENS                                                                                     \
    {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,                        \
     2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000}
#define PER_TOKEN                                                                                  \
    {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}

static const struct {
    const char *name, *help, *alias;   // alias: an older name, under which it is also written
    double bounds[METRIC_MAX_BUCKETS]; // ends at the first 0
    int32_t (*bound)(int32_t i);       // used instead of `bounds` if set
} histograms[N_HISTOGRAMS] = {
    [MEASURE_TTFT] = {"vllm:time_to_first_token_seconds",
                      "Time to first token.",
                      NULL,
                      {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}},
    [MEASURE_ITL] = {"vllm:inter_token_latency_seconds", "Time between tokens of a stream.", NULL,
                     PER_TOKEN},
    [MEASURE_TPOT] = {"vllm:request_time_per_output_token_seconds", "Mean time per output token.",
                      "vllm:time_per_output_token_seconds", PER_TOKEN},
    [MEASURE_E2E] = {"vllm:e2e_request_latency_seconds", "Whole requests.", NULL, LATENCY},
    [MEASURE_QUEUE] = {"vllm:request_queue_time_seconds", "Time in the queue.", NULL, LATENCY},
    [MEASURE_INFERENCE] = {"vllm:request_inference_time_seconds",
                           "Time from leaving the queue to the end.", NULL, LATENCY},
    [MEASURE_PREFILL] = {"vllm:request_prefill_time_seconds",
                         "Time from leaving the queue to the first token.", NULL, LATENCY},
    [MEASURE_DECODE] = {"vllm:request_decode_time_seconds",
                        "Time from the first token to the last.", NULL, LATENCY},
    [MEASURE_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Prompt tokens of a request.", NULL,
                               TOKENS},
    [MEASURE_GENERATION_TOKENS] = {"vllm:request_generation_tokens",
                                   "Generated tokens of a request.", NULL, TOKENS},
    [MEASURE_MAX_GENERATION_TOKENS] = {"vllm:request_max_num_generation_tokens",
                                       "Tokens of a request's longest sample.", NULL, TOKENS},
    [MEASURE_MAX_TOKENS] = {"vllm:request_params_max_tokens", "max_tokens of a request.", NULL,
                            TOKENS},
    [MEASURE_N] = {"vllm:request_params_n", "n of a request.", NULL, {1, 2, 5, 10, 20}},
    [MEASURE_PREFILL_COMPUTED] = {"vllm:request_prefill_kv_computed_tokens",
                                  "Prompt tokens of a request that were not cached.", NULL, TOKENS},
    /* The first bucket is for requests that were never preempted; its bound is not 0, since 0 ends
     * the list. */
    [MEASURE_PREEMPTIONS] = {"vllm:request_num_preemptions",
                             "Preemptions of a request's samples.",
                             NULL,
                             {.5, 1, 2, 5, 10, 20, 50, 100}},
    [HIST_ITERATION_TOKENS] = {"vllm:iteration_tokens_total",
                               "Tokens of a step, both of prompts and generated.",
                               .bound = engine_step_bound},
    [HIST_HTTP] = {"http_request_duration_seconds",
                   "HTTP requests.",
                   NULL,
                   {.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 600}},
};

_Static_assert(N_STEP_SIZES - 1 <= METRIC_MAX_BUCKETS, "buckets for all step sizes");

/* The upper bound of bucket i; 0 past the last one. */
static double bound_of(int h, int i)
{
    if (histograms[h].bound) {
        return histograms[h].bound(i);
    }
    return i < METRIC_MAX_BUCKETS ? histograms[h].bounds[i] : 0;
}

/* The bucket with the smallest bound that is not below v; the last bucket is for values above all
 * bounds. */
void metrics_observe(struct metrics *m, int h, double v)
{
    int i = 0;
    while (bound_of(h, i) > 0 && v > bound_of(h, i)) {
        i++;
    }
    m->hist[h].n[bound_of(h, i) > 0 ? i : METRIC_MAX_BUCKETS]++;
    m->hist[h].sum += v;
}

/* The engine counts step sizes itself, in buckets with the same bounds. */
void metrics_take_steps(struct metrics *m, const struct engine_stats *s)
{
    struct metric_series *steps = &m->hist[HIST_ITERATION_TOKENS];
    for (int i = 0; i < N_STEP_SIZES - 1; i++) {
        steps->n[i] = (uint64_t)s->step_sizes[i];
    }
    steps->n[METRIC_MAX_BUCKETS] = (uint64_t)s->step_sizes[N_STEP_SIZES - 1];
    steps->sum = (double)s->step_tokens;
}

static const char *known_method(const char *method)
{
    static const char *const methods[] = {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(methods[i], method) == 0) {
            return methods[i];
        }
    }
    return "";
}

/* A series for each route, method and status. Routes come from the table and methods from a list,
 * so clients cannot create series, and there is room for all. */
void metrics_http(struct metrics *m, const struct http_record *record)
{
    const char *route = or_text(record->route, "none");
    const char *method = record->method && record->route ? known_method(record->method) : "";
    for (size_t i = 0; i < m->n_http; i++) {
        struct metric_http *h = &m->http[i];
        if (h->status == record->status && strcmp(h->route, route) == 0 &&
            strcmp(h->method, method) == 0) {
            h->n++;
            return;
        }
    }
    m->http = xrealloc(m->http, (m->n_http + 1) * sizeof *m->http);
    m->http[m->n_http++] = (struct metric_http){method, route, record->status, 1};
}

void metrics_deinit(struct metrics *m)
{
    free(m->http);
    m->http = NULL;
    m->n_http = 0;
}

static void head(struct buf *b, const char *name, const char *type, const char *help)
{
    buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* A label's value, or a part of it. */
static void label_text(struct buf *b, const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') {
            buf_putc(b, '\\');
        }
        if (*p == '\n') {
            buf_putc(b, ' ');
        } else {
            buf_putc(b, *p);
        }
    }
}

/* model_name="x",engine="0" */
static void labels(struct buf *b, const struct metrics_source *s)
{
    buf_puts(b, "model_name=\"");
    label_text(b, s->model_name);
    buf_puts(b, "\",engine=\"0\"");
}

/* One line of a metric, with the labels that all lines have. */
static void sample(struct buf *b, const struct metrics_source *s, const char *name,
                   const char *more, double v)
{
    buf_printf(b, "%s{", name);
    labels(b, s);
    buf_printf(b, "%s%s} ", text_if(*more, ","), more);
    buf_put_double(b, v);
    buf_putc(b, '\n');
}

static void one(struct buf *b, const struct metrics_source *s, const char *name, const char *type,
                const char *help, double v)
{
    head(b, name, type, help);
    sample(b, s, name, "", v);
}

/* Buckets are cumulative in this format. Integer bounds are written as by Prometheus' own client
 * ("1.0"). */
static void print_histogram(const struct metrics *m, int h, const char *name,
                            const struct metrics_source *s, struct buf *b)
{
    const struct metric_series *series = &m->hist[h];
    char full[96], le[48];
    uint64_t n = 0;
    head(b, name, "histogram", histograms[h].help);
    snprintf(full, sizeof full, "%s_bucket", name);
    for (int i = 0; bound_of(h, i) > 0; i++) {
        n += series->n[i];
        double bound = bound_of(h, i);
        if (bound >= 1e5) {
            snprintf(le, sizeof le, "le=\"%.0f.0\"", bound);
        } else if (bound == (int)bound) {
            snprintf(le, sizeof le, "le=\"%.1f\"", bound);
        } else {
            snprintf(le, sizeof le, "le=\"%g\"", bound);
        }
        sample(b, s, full, le, (double)n);
    }
    n += series->n[METRIC_MAX_BUCKETS];
    sample(b, s, full, "le=\"+Inf\"", (double)n);
    snprintf(full, sizeof full, "%s_sum", name);
    sample(b, s, full, "", series->sum);
    snprintf(full, sizeof full, "%s_count", name);
    sample(b, s, full, "", (double)n);
}

/* Writes the engine's statistics. */
static void print_engine(const struct metrics_source *s, struct buf *b)
{
    const struct engine_stats *e = s->stats;
    const double used = engine_stats_usage(e);
    one(b, s, "vllm:num_requests_running", "gauge", "Running sequences.", e->n_running);
    one(b, s, "vllm:num_requests_waiting", "gauge", "Waiting sequences.", engine_stats_queued(e));
    head(b, "vllm:num_requests_waiting_by_reason", "gauge", "Waiting sequences, by reason.");
    sample(b, s, "vllm:num_requests_waiting_by_reason", "reason=\"capacity\"",
           engine_stats_queued(e));
    sample(b, s, "vllm:num_requests_waiting_by_reason", "reason=\"deferred\"", 0);
    one(b, s, "vllm:kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", used);
    one(b, s, "vllm:gpu_cache_usage_perc", "gauge", "Older name of kv_cache_usage_perc.", used);
    one(b, s, "sluice_kv_blocks_kept", "gauge", "KV blocks kept on behalf of kv_hints.",
        e->n_blocks_kept);
    one(b, s, "vllm:prompt_tokens_total", "counter", "Prompt tokens processed.",
        (double)e->prompt_tokens);
    one(b, s, "vllm:generation_tokens_total", "counter", "Tokens generated.",
        (double)e->generated_tokens);
    one(b, s, "vllm:num_preemptions_total", "counter", "Preemptions.", (double)e->preemptions);
    one(b, s, "vllm:corrupted_requests_total", "counter",
        "Requests that failed because logits or embeddings were NaN.", (double)e->n_corrupted);
    one(b, s, "vllm:prefix_cache_queries_total", "counter",
        "Prompt tokens looked up in the prefix cache.", (double)e->prefix_queries);
    one(b, s, "vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the prefix cache.",
        (double)e->prefix_hits);
    one(b, s, "vllm:gpu_prefix_cache_queries_total", "counter",
        "Older name of the metric without gpu_.", (double)e->prefix_queries);
    one(b, s, "vllm:gpu_prefix_cache_hits_total", "counter",
        "Older name of the metric without gpu_.", (double)e->prefix_hits);
    one(b, s, "vllm:prompt_tokens_cached_total", "counter", "Prompt tokens from the cache.",
        (double)e->prefix_hits);
    head(b, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source.");
    sample(b, s, "vllm:prompt_tokens_by_source_total", "source=\"local_compute\"",
           (double)(e->prompt_tokens - e->prefix_hits));
    sample(b, s, "vllm:prompt_tokens_by_source_total", "source=\"local_cache_hit\"",
           (double)e->prefix_hits);
    if (s->info->state_bytes > 0 || s->info->n_window_pages > 0) {
        one(b, s, "sluice_prefix_cache_recomputed_total", "counter",
            "Tokens found in the cache without the recurrent state or the window after them.",
            (double)e->prefix_recomputed);
    }
    if (s->info->n_window_pages > 0) {
        one(b, s, "sluice_window_pages", "gauge",
            "Blocks whose keys and values of layers with a window can be kept.", e->n_pages);
        one(b, s, "sluice_window_pages_reserved", "gauge", "Those reserved by running sequences.",
            e->n_pages_reserved);
    }
    if (s->info->state_bytes > 0) {
        one(b, s, "sluice_state_snapshots", "gauge",
            "Snapshots of recurrent state for which there is space.", s->info->n_snapshots);
        one(b, s, "sluice_state_snapshots_used", "gauge", "Snapshots of recurrent state in use.",
            e->n_snapshots_taken);
    }
    static const char *const absent[] = {"vllm:external_prefix_cache_queries_total",
                                         "vllm:external_prefix_cache_hits_total",
                                         "vllm:mm_cache_queries_total", "vllm:mm_cache_hits_total"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        one(b, s, absent[i], "counter", "Always 0: this server has no such cache.", 0);
    }
    one(b, s, "vllm:spec_decode_num_drafts_total", "counter", "Drafts.", (double)e->spec_drafts);
    one(b, s, "vllm:spec_decode_num_draft_tokens_total", "counter", "Draft tokens.",
        (double)e->spec_draft_tokens);
    one(b, s, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Accepted draft tokens.",
        (double)e->spec_accepted_tokens);
    head(b, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
         "Accepted draft tokens by position.");
    for (int i = 0; i < s->info->n_spec_tokens || i == 0; i++) { // also while they are 0, so that
                                                                 // rates can be computed from the
                                                                 // start
        char label[32];
        snprintf(label, sizeof label, "position=\"%d\"", i);
        sample(b, s, "vllm:spec_decode_num_accepted_tokens_per_pos_total", label,
               (double)e->spec_accepted_per_pos[i]);
    }
    one(b, s, "sluice_queued_tokens", "gauge", "Prompt tokens of waiting requests.",
        (double)(e->waiting_tokens + e->submitted_tokens));
    one(b, s, "sluice_engine_steps_total", "counter", "Steps of the engine.", (double)e->n_steps);
    one(b, s, "sluice_engine_rows_total", "counter", "Token rows computed in all steps.",
        (double)e->n_rows);
}

/* Writes constant facts as labels of a gauge that is 1. */
static void print_info(const struct metrics_source *s, struct buf *b)
{
    char label[384];
    const double tokens = (double)s->info->n_blocks * s->info->block_tokens;
    one(b, s, "sluice_ranks", "gauge", "Devices that share the model.", s->info->n_ranks);
    one(b, s, "sluice_nodes", "gauge", "Processes that share the model.", s->info->n_nodes);
    one(b, s, "sluice_nodes_alive", "gauge", "Of these processes, those still connected.",
        s->stats ? s->stats->n_nodes_alive : 0);
    head(b, "vllm:cache_config_info", "gauge", "Facts of the KV cache.");
    snprintf(label, sizeof label,
             "block_size=\"%d\",num_gpu_blocks=\"%d\",cache_dtype=\"%s\","
             "gpu_memory_utilization=\"%g\",enable_prefix_caching=\"%s\","
             "kv_cache_size_tokens=\"%.0f\",kv_cache_max_concurrency=\"%g\"",
             s->info->block_tokens, s->info->n_blocks, s->info->kv_cache_dtype,
             s->memory_utilization, s->prefix_caching ? "True" : "False", tokens,
             tokens / s->info->max_model_len);
    sample(b, s, "vllm:cache_config_info", label, 1);
    one(b, s, "sluice_kv_cache_tokens", "gauge", "Tokens whose keys and values fit into the cache.",
        tokens);
    head(b, "vllm:engine_sleep_state", "gauge",
         "Whether the engine sleeps; here it is always awake.");
    sample(b, s, "vllm:engine_sleep_state", "sleep_state=\"awake\"", 1);
    sample(b, s, "vllm:engine_sleep_state", "sleep_state=\"weights_offloaded\"", 0);
    sample(b, s, "vllm:engine_sleep_state", "sleep_state=\"discard_all\"", 0);
}

/* Labels, indexed by their enums. FINISH_NONE has no label and is not written; metrics_test fails
 * if another label is missing. */
static const char *const finished[N_FINISH_REASONS] = {
    [FINISH_STOP] = "stop",
    [FINISH_LENGTH] = "length",
    [FINISH_CANCELLED] = "abort",
    [FINISH_ERROR] = "error",
};
static const char *const rejects[N_REJECTS] = {
    [REJECT_QUEUE_FULL] = "queue_full",
    [REJECT_DEADLINE] = "deadline",
    [REJECT_DRAINING] = "draining",
    [REJECT_LOADING] = "loading",
    [REJECT_DEAD] = "dead",
    [REJECT_TOO_LARGE] = "too_large",
    [REJECT_RATE_LIMIT] = "rate_limit",
};
static const char *const overloads[N_OVERLOADS] = {
    [OVERLOAD_REQUESTS] = "max_num_queued_reqs",
    [OVERLOAD_TOKENS] = "max_num_queued_tokens",
};
static const char *const aborts[N_ABORTS] = {
    [ABORT_DISCONNECT] = "disconnect",
    [ABORT_DEADLINE] = "deadline",
    [ABORT_SLOW_READER] = "slow_reader",
    [ABORT_SHUTDOWN] = "shutdown",
};

/* A counter with one label. */
static void print_labelled(struct buf *b, const struct metrics_source *s, const char *name,
                           const char *key, const char *const *values, const uint64_t *counts,
                           int n, const char *help)
{
    char label[64];
    head(b, name, "counter", help);
    for (int i = 0; i < n; i++) {
        if (!values[i]) {
            continue;
        }
        snprintf(label, sizeof label, "%s=\"%s\"", key, values[i]);
        sample(b, s, name, label, (double)counts[i]);
    }
}

/* Requests by route, then connections and times of the front end. */
static void print_http(const struct metrics *m, const struct http_stats *h, struct buf *b)
{
    head(b, "http_requests_total", "counter", "Requests by method, status and route.");
    for (size_t i = 0; i < m->n_http; i++) {
        buf_printf(b,
                   "http_requests_total{method=\"%s\",status=\"%d\",handler=\"%s\"} %" PRIu64 "\n",
                   m->http[i].method, m->http[i].status, m->http[i].route, m->http[i].n);
    }
    if (!h) {
        return;
    }
    const struct {
        const char *name, *type;
        double v;
    } rows[] = {
        {"sluice_http_connections", "gauge", h->n_connections},
        {"sluice_http_streams", "gauge", h->n_streams},
        {"sluice_http_active", "gauge", h->n_active},
        {"sluice_http_accepted_total", "counter", (double)h->n_accepted},
        {"sluice_http_refused_total", "counter", (double)h->n_refused},
        {"sluice_http_bad_requests_total", "counter", (double)h->n_bad_requests},
        {"sluice_http_events_total", "counter", (double)h->n_events},
        {"sluice_http_short_sends_total", "counter", (double)h->n_short_sends},
        {"sluice_http_held_stream_bytes", "gauge", (double)h->held_stream_bytes},
        {"sluice_http_held_body_bytes", "gauge", (double)h->held_body_bytes},
        {"http_request_size_bytes_total", "counter", (double)h->body_bytes},
        {"http_response_stream_bytes_total", "counter", (double)h->sent_bytes},
        {"sluice_loop_lag_seconds", "gauge", (double)h->loop_lag_ns * 1e-9},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        buf_printf(b, "# TYPE %s %s\n%s ", rows[i].name, rows[i].type, rows[i].name);
        buf_put_double(b, rows[i].v);
        buf_putc(b, '\n');
    }
}

/* Batches by status, and the remaining work. */
/* The names of adapters that have a bit, joined by commas. */
static void put_adapters(struct buf *b, const char *label, const struct call_adapter *list,
                         int32_t n, uint64_t bits)
{
    bool first = true;
    buf_printf(b, ",%s=\"", label);
    for (int32_t i = 0; i < n; i++) {
        if (bits >> (list[i].place - 1) & 1) {
            buf_puts(b, first ? "" : ",");
            label_text(b, list[i].name);
            first = false;
        }
    }
    buf_putc(b, '"');
}

/* As in vLLM, the labels are the information, and the value is the time. */
static void print_adapters(const struct metrics_source *s, struct buf *b)
{
    struct call_adapter list[MAX_ADAPTERS];
    const int32_t n = call_adapters_list(s->adapters, list);
    head(b, "vllm:lora_requests_info", "gauge", "Adapters of running and waiting requests.");
    buf_printf(b, "vllm:lora_requests_info{max_lora=\"%d\"", call_adapters_places(s->adapters));
    put_adapters(b, "waiting_lora_adapters", list, n, s->stats->adapters_waiting);
    put_adapters(b, "running_lora_adapters", list, n, s->stats->adapters_running);
    buf_printf(b, "} %lld\n", (long long)clock_wall_sec());
}

static void print_batches(const struct metrics_source *s, struct buf *b)
{
    const struct batches_counts *c = s->batches;
    head(b, "sluice_batches", "gauge", "Stored batches, by status.");
    for (int i = 0; i < N_BATCH_STATUSES; i++) {
        char label[32];
        snprintf(label, sizeof label, "status=\"%s\"", batch_status_names[i]);
        sample(b, s, "sluice_batches", label, (double)c->usage.by_status[i]);
    }
    one(b, s, "sluice_store_files", "gauge", "Stored files.", (double)c->usage.n_files);
    one(b, s, "sluice_store_bytes", "gauge", "Bytes in the store.", (double)c->usage.bytes);
    one(b, s, "sluice_store_max_bytes", "gauge", "Size limit of the store.",
        (double)c->usage.max_bytes);
    one(b, s, "sluice_batch_lines_done_total", "counter", "Answered lines of batches.",
        (double)c->n_completed);
    one(b, s, "sluice_batch_lines_failed_total", "counter",
        "Lines of batches answered with an error.", (double)c->n_failed);
    one(b, s, "sluice_batch_prompt_tokens_total", "counter", "Prompt tokens of answered lines.",
        (double)c->prompt_tokens);
    one(b, s, "sluice_batch_computed_tokens_total", "counter",
        "Prompt tokens of answered lines that were not in the prefix cache.",
        (double)c->computed_tokens);
    one(b, s, "sluice_batch_output_tokens_total", "counter", "Generated tokens of answered lines.",
        (double)c->output_tokens);
}

/* Metrics of this process, under the names that Prometheus' client libraries use. */
static void print_process(struct buf *b)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0;
    if (f) {
        if (fscanf(f, "%ld %ld", &total, &resident) != 2) {
            resident = 0;
        }
        fclose(f);
    }
    long page = sysconf(_SC_PAGESIZE);
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    buf_printf(b,
               "# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes %ld\n"
               "# TYPE process_virtual_memory_bytes gauge\nprocess_virtual_memory_bytes %ld\n"
               "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %.2f\n",
               resident * page, total * page,
               (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
                   1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec));
}

/* Removes "_total" from "# TYPE name_total counter" and its HELP; histograms whose names end in
 * "_total" keep it. */
void metrics_to_openmetrics(const struct buf *text, struct buf *out)
{
    const char *p = text->data, *end = p + text->n_bytes;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        const char *next = newline ? newline + 1 : end;
        const char *total = memmem(p, (size_t)(next - p), "_total ", 7);
        bool histogram = strncmp(p + 7, "vllm:iteration_tokens_total", 27) == 0;
        if (p[0] == '#' && total && !histogram) {
            buf_put(out, p, (size_t)(total - p));
            p = total + 6;
        }
        buf_put(out, p, (size_t)(next - p));
        p = next;
    }
    buf_puts(out, "# EOF\n");
}

/* Writes all metrics. Sections without a source (no model yet, no store) are left out. */
void metrics_print(const struct metrics *m, const struct metrics_source *s, struct buf *out)
{
    if (s->stats) {
        print_engine(s, out);
        print_info(s, out);
        metrics_print_llama(m, s, out);
    }
    if (s->stats && s->adapters && call_adapters_places(s->adapters) > 0) {
        print_adapters(s, out);
    }
    print_labelled(out, s, "vllm:request_success_total", "finished_reason", finished,
                   s->counts->finished, N_FINISH_REASONS, "Finished samples.");
    print_labelled(out, s, "sluice_rejected_total", "reason", rejects, s->counts->rejected,
                   N_REJECTS, "Requests refused.");
    print_labelled(out, s, "vllm:admission_rejections_total", "reason", overloads,
                   s->counts->overloaded, N_OVERLOADS,
                   "Requests refused because the queue was full.");
    print_labelled(out, s, "sluice_aborted_total", "cause", aborts, s->counts->aborted, N_ABORTS,
                   "Requests that ended early.");
    for (int h = 0; h < N_HISTOGRAMS; h++) {
        print_histogram(m, h, histograms[h].name, s, out);
        if (histograms[h].alias) {
            print_histogram(m, h, histograms[h].alias, s, out);
        }
    }
    head(out, "sluice_engine_state", "gauge", "1 for the current state, 0 for the others.");
    for (int i = 0; i < N_HEALTHS; i++) {
        char label[32];
        snprintf(label, sizeof label, "state=\"%s\"", api_health_names[i]);
        sample(out, s, "sluice_engine_state", label, i == (int)s->health);
    }
    one(out, s, "sluice_engine_heartbeat_age_seconds", "gauge",
        "Time since the last step ended, while work is pending.", s->heartbeat_age_s);
    one(out, s, "sluice_client_retries_total", "counter", "Requests that were retries of an SDK.",
        (double)m->client_retries);
    one(out, s, "sluice_unknown_parameters_total", "counter",
        "Members of request bodies that no endpoint knows.", (double)s->counts->n_unknown_keys);
    one(out, s, "sluice_log_lost_lines_total", "counter",
        "Log lines lost because the reader was too slow or the disk full.", (double)log_lost());
    one(out, s, "sluice_load_seconds", "gauge", "Time from start to ready.", s->load_seconds);
    head(out, "sluice_build_info", "gauge", "The version.");
    buf_printf(out, "sluice_build_info{version=\"%s\"} 1\n", s->version);
    if (s->batches) {
        print_batches(s, out);
    }
    print_http(m, s->http, out);
    print_process(out);
}
