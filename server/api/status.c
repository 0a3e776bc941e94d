// SPDX-License-Identifier: Apache-2.0
#include "server/api/status.h"
#include "engine/base/optional.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"
#include "engine/engine.h"
#include "server/api/api.h"
#include "server/jobs/batches.h"

#include <inttypes.h>
#include <string.h>

/* The columns, which are also members of /status.json. Counters start at server start; for a rate,
 * subtract two samples. */
enum column {
    UPTIME, // s
    RUNNING,
    WAITING,
    KV_USAGE, // 0 to 1
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    DRAFT_TOKENS,
    ACCEPTED_TOKENS,
    PREEMPTIONS,
    FINISHED,
    TTFT_COUNT,
    TTFT_SUM, // s
};

static const char *const columns[N_STATUS_COLUMNS] = {
    [UPTIME] = "uptime",
    [RUNNING] = "running",
    [WAITING] = "waiting",
    [KV_USAGE] = "kv_usage",
    [PROMPT_TOKENS] = "prompt_tokens",
    [GENERATED_TOKENS] = "generated_tokens",
    [PREFIX_QUERIES] = "prefix_queries",
    [PREFIX_HITS] = "prefix_hits",
    [DRAFT_TOKENS] = "draft_tokens",
    [ACCEPTED_TOKENS] = "accepted_tokens",
    [PREEMPTIONS] = "preemptions",
    [FINISHED] = "finished",
    [TTFT_COUNT] = "ttft_count",
    [TTFT_SUM] = "ttft_sum",
};

/* Counters since the start, from whose differences readers compute rates. */
static void take_sample(struct api *a, struct status_sample *out)
{
    const struct metric_series *ttft = &a->metrics.hist[MEASURE_TTFT];
    struct engine_stats s;
    double n_ttft = 0, n_finished = 0;
    api_put_stats(a, &s);
    for (int i = 0; i <= METRIC_MAX_BUCKETS; i++) {
        n_ttft += (double)ttft->n[i];
    }
    for (int i = FINISH_NONE + 1; i < N_FINISH_REASONS; i++) {
        n_finished += (double)a->calls.counts.finished[i];
    }
    *out = (struct status_sample){{
        [UPTIME] = (double)(clock_now_ns() - a->started_ns) * 1e-9,
        [RUNNING] = s.n_running,
        [WAITING] = engine_stats_queued(&s),
        [KV_USAGE] = api_kv_usage(&s),
        [PROMPT_TOKENS] = (double)s.prompt_tokens,
        [GENERATED_TOKENS] = (double)s.generated_tokens,
        [PREFIX_QUERIES] = (double)s.prefix_queries,
        [PREFIX_HITS] = (double)s.prefix_hits,
        [DRAFT_TOKENS] = (double)s.spec_draft_tokens,
        [ACCEPTED_TOKENS] = (double)s.spec_accepted_tokens,
        [PREEMPTIONS] = (double)s.preemptions,
        [FINISHED] = n_finished,
        [TTFT_COUNT] = n_ttft,
        [TTFT_SUM] = ttft->sum,
    }};
}

/* ---- history ------------------------------------------------------------------------------------
 */

static void on_second(struct http_timer *timer, void *arg)
{
    struct api *a = arg;
    struct status_history *h = &a->history;
    take_sample(a, &h->samples[h->n_taken++ % STATUS_SECONDS]);
    http_timer_start(a->http, timer, 1000, on_second, a);
}

void status_watch(struct api *a)
{
    http_timer_start(a->http, &a->history.timer, 1000, on_second, a);
}

static void put_row(struct buf *b, const struct status_sample *sample)
{
    for (int i = 0; i < N_STATUS_COLUMNS; i++) {
        if (i) {
            buf_putc(b, ',');
        } else {
            buf_putc(b, '[');
        }
        buf_put_double(b, sample->value[i]);
    }
    buf_putc(b, ']');
}

/* Writes the column names, then rows, oldest first. Rows
 * without names take a third of the space of objects. */
static void put_history(struct buf *b, const struct status_history *h)
{
    const size_t n = lesser(h->n_taken, STATUS_SECONDS);
    buf_puts(b, ",\"history\":{\"columns\":[");
    for (int i = 0; i < N_STATUS_COLUMNS; i++) {
        buf_printf(b, "%s\"%s\"", text_if(i, ","), columns[i]);
    }
    buf_puts(b, "],\"rows\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) {
            buf_puts(b, ",");
        }
        put_row(b, &h->samples[(h->n_taken - n + i) % STATUS_SECONDS]);
    }
    buf_puts(b, "]}");
}

/* The running batch, for its progress bar. */
static void put_job(struct api *a, struct buf *b)
{
    struct batches_counts c = {0};
    if (a->batches) {
        batches_count(a->batches, &c);
    }
    if (c.id[0]) {
        buf_printf(b, ",\"batch\":{\"id\":\"%s\",\"total\":%" PRId64 ",\"done\":%" PRId64 "}", c.id,
                   c.n_total, c.n_done);
    }
}

/* ---- the endpoint -------------------------------------------------------------------------------
 */

/* /status.json: the current values; with ?history=1 also the last minutes. */
void api_status_data(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct status_sample now;
    struct buf b;
    const char *name = a->ready ? a->calls.model.names[0] : "";
    const char *device = a->ready ? a->calls.model.info->device : "";
    const char *history = http_query(req, "history");
    buf_init(&b, 1 << 20);
    buf_printf(&b, "{\"state\":\"%s\",\"version\":\"%s\",\"model\":",
               api_health_names[api_check_health(a, clock_now_ns())], SLUICE_VERSION);
    buf_put_json(&b, name, strlen(name));
    buf_puts(&b, ",\"device\":");
    buf_put_json(&b, device, strlen(device));
    buf_printf(&b, ",\"chat\":%s", bool_word(a->ready && a->calls.model.template));
    take_sample(a, &now);
    for (int i = 0; i < N_STATUS_COLUMNS; i++) {
        buf_printf(&b, ",\"%s\":", columns[i]);
        buf_put_double(&b, now.value[i]);
    }
    put_job(a, &b);
    if (history && strcmp(history, "1") == 0) {
        put_history(&b, &a->history);
    }
    buf_putc(&b, '}');
    http_reply_header(req, "cache-control", "no-store");
    reply_json(req, 200, &b);
}
