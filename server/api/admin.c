// SPDX-License-Identifier: Apache-2.0
/* Health, load, metrics, and actions of operators. Nothing here waits for the engine. */
#include "engine/base/optional.h"
#include "engine/engine.h"
#include "server/api/api.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static void put_failure(struct api *a, struct buf *b)
{
    struct engine_stats s;
    api_put_stats(a, &s);
    buf_puts(b, ",\"detail\":");
    const char *why = s.failure[0] ? s.failure : "the engine has failed";
    buf_put_json(b, why, strlen(why));
}

/* Writes the ranks and nodes, if there are several. */
static void put_nodes(struct api *a, struct buf *b)
{
    struct engine_stats s;
    api_put_stats(a, &s);
    if (a->ready && a->calls.model.info->n_ranks > 1) {
        buf_printf(b, ",\"ranks\":%d,\"nodes\":%d,\"nodes_alive\":%d", a->calls.model.info->n_ranks,
                   a->calls.model.info->n_nodes, s.n_nodes_alive);
    }
}

/* Besides the status, the body has the progress of loading, or the time since the last step
 * ended. */
static void reply_health(struct api *a, struct http_request *req, bool good, enum api_health health)
{
    struct buf b;
    buf_init(&b, 1 << 12);
    buf_printf(&b, "{\"status\":\"%s\"", good ? "ok" : api_health_names[health]);
    if (health == HEALTH_LOADING) {
        int done = atomic_load(&a->load_permille);
        buf_printf(&b, ",\"phase\":\"weights\",\"progress\":%d.%03d", done / 1000, done % 1000);
    } else if (health == HEALTH_STALLED) {
        buf_printf(&b, ",\"detail\":\"work is pending and no step has ended for %" PRId64 " s\"",
                   (clock_now_ns() - a->seen_step_ns) / 1000000000);
    } else if (health == HEALTH_DEAD) {
        put_failure(a, &b);
    }
    put_nodes(a, &b);
    buf_putc(&b, '}');
    http_reply_header(req, "cache-control", "no-store");
    if (!good && health == HEALTH_LOADING) {
        http_reply_header(req, "retry-after", "2");
    }
    reply_json(req, good ? 200 : 503, &b);
}

void api_get_health(struct http_request *req, void *arg)
{
    struct api *a = arg;
    enum api_health h = api_check_health(a, clock_now_ns());
    reply_health(a, req, h == HEALTH_OK, h);
}

/* Liveness: a server that is busy, loading or draining is alive. */
void api_get_live(struct http_request *req, void *arg)
{
    struct api *a = arg;
    enum api_health h = api_check_health(a, clock_now_ns());
    reply_health(a, req, h != HEALTH_DEAD, h);
}

/* Readiness is for load balancers: it fails while the queue is full, although the server
 * is healthy. */
void api_get_ready(struct http_request *req, void *arg)
{
    struct api *a = arg;
    enum api_health h = api_check_health(a, clock_now_ns());
    struct engine_stats s;
    api_put_stats(a, &s);
    int64_t queued = a->ready ? call_queue_length(&a->calls, &s) : 0;
    bool room = queued < a->config->max_num_queued_reqs || queued == 0;
    if (h == HEALTH_OK && !room) {
        http_reply_header(req, "cache-control", "no-store");
        reply_text(req, 503, "{\"status\":\"overloaded\"}");
        return;
    }
    reply_health(a, req, h == HEALTH_OK, h);
}

/* For load balancers. All counts are 0 while the model is loading. */
void api_get_load(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct engine_stats s;
    struct buf b;
    api_put_stats(a, &s);
    buf_init(&b, 1 << 12);
    buf_printf(&b, "{\"server_load\":%" PRId64 ",\"running\":%d,\"waiting\":%d,\"kv_usage\":",
               a->calls.n_calls, s.n_running, engine_stats_queued(&s));
    buf_put_double(&b, api_kv_usage(&s));
    buf_printf(&b, ",\"queued_tokens\":%" PRId64 "}", s.waiting_tokens + s.submitted_tokens);
    reply_json(req, 200, &b);
}

void api_get_version(struct http_request *req, void *arg)
{
    (void)arg;
    reply_text(req, 200, "{\"version\":\"" SLUICE_VERSION "\"}");
}

/* llama.cpp's header, by which clients notice that counters were reset. */
static void put_start_time(const struct api *a, struct http_request *req, int64_t now_ns)
{
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%" PRId64,
             (int64_t)clock_wall_sec() - (now_ns - a->started_ns) / 1000000000);
    http_reply_header(req, "Process-Start-Time-Unix", seconds);
}

/* Prometheus text. Counts of the engine, connections and batches are read now, on the loop thread;
 * the others are counted as events happen. */
void api_get_metrics(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct engine_stats stats;
    struct http_stats http;
    struct batches_counts batches;
    struct buf out;
    int64_t now_ns = clock_now_ns();
    api_put_stats(a, &stats);
    if (a->batches) {
        batches_count(a->batches, &batches);
    }
    http_server_stats(a->http, &http);
    enum api_health h = api_check_health(a, now_ns);
    bool waits = stats.n_running + engine_stats_queued(&stats) > 0;
    struct metrics_source s = {
        .model_name = a->ready ? a->calls.model.names[0] : "",
        .version = SLUICE_VERSION,
        .stats = a->ready ? &stats : NULL,
        .info = a->ready ? a->calls.model.info : NULL,
        .http = &http,
        .counts = &a->calls.counts,
        .batches = a->batches ? &batches : NULL,
        .health = h,
        .heartbeat_age_s = waits ? (double)(now_ns - a->seen_step_ns) * 1e-9 : 0,
        .load_seconds = a->ready ? (double)(a->ready_ns - a->started_ns) * 1e-9 : 0,
        .memory_utilization = a->config->engine.gpu_memory_utilization,
        .prefix_caching = a->config->engine.enable_prefix_caching,
        .adapters = a->ready ? a->calls.model.adapters : NULL,
    };
    buf_init(&out, 4 << 20);
    metrics_take_steps(&a->metrics, &stats);
    metrics_print(&a->metrics, &s, &out);
    put_start_time(a, req, now_ns);
    const char *accept = http_header(req, "accept");
    if (accept && strstr(accept, "application/openmetrics-text")) {
        struct buf open;
        buf_init(&open, 4 << 20);
        metrics_to_openmetrics(&out, &open);
        buf_deinit(&out);
        http_reply_buf(req, 200, "application/openmetrics-text; version=1.0.0; charset=utf-8",
                       &open);
        return;
    }
    http_reply_buf(req, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
}

/* Replies with the effective configuration without secrets, and facts about the model once it is
 * loaded. */
void api_get_server_info(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct buf b;
    buf_init(&b, 2 << 20);
    buf_puts(&b, "{\"version\":\"" SLUICE_VERSION "\",\"config\":");
    buf_put_json(&b, a->config_text, strlen(a->config_text));
    if (a->ready) {
        const struct engine_info *i = a->calls.model.info;
        if (i->state_bytes > 0) {
            buf_printf(&b, ",\"state_bytes\":%zu,\"num_snapshots\":%d", i->state_bytes,
                       i->n_snapshots);
        }
        if (i->n_window_pages > 0) {
            buf_printf(&b, ",\"num_window_pages\":%d", i->n_window_pages);
        }
        buf_printf(&b, ",\"model_type\":\"%s\",\"device\":", i->model_type);
        buf_put_json(&b, i->device, strlen(i->device));
        buf_printf(&b,
                   ",\"vocab\":%d,\"hidden\":%d,\"max_model_len\":%d,\"block_size\":%d,"
                   "\"num_blocks\":%d,\"max_num_seqs\":%d,\"parameters\":%" PRId64
                   ",\"weight_bytes\":%zu,\"kv_bytes\":%zu,\"kv_cache_dtype\":\"%s\","
                   "\"tool_call_parser\":\"%s\"",
                   i->vocab, i->hidden, i->max_model_len, i->block_tokens, i->n_blocks,
                   i->max_num_seqs, i->n_parameters, i->weight_bytes, i->kv_bytes,
                   i->kv_cache_dtype, a->calls.model.parser ? a->calls.model.parser->name : "none");
    }
    buf_putc(&b, '}');
    reply_json(req, 200, &b);
}

static const char *phase_of(const struct call *c)
{
    if (c->preparing) {
        return "prepare";
    }
    if (c->answered) {
        return "ending";
    }
    return c->first_token ? "decode" : "waiting";
}

/* Writes a running call: ages and counts, never text. */
static void put_call(struct buf *b, const struct call *c, int64_t now_ns)
{
    int64_t taken = 0, prompt = 0;
    for (size_t i = 0; i < c->n_choices; i++) {
        taken += c->choices[i].n_taken;
    }
    for (size_t i = 0; i < c->n_requests; i++) {
        prompt += c->requests[i].n_prompt;
    }
    const char *peer = api_call_peer(c);
    buf_puts(b, "{\"id\":");
    buf_put_json(b, c->id, strlen(c->id));
    buf_printf(b,
               ",\"phase\":\"%s\",\"age_ms\":%" PRId64 ",\"prompt_tokens\":%" PRId64
               ",\"output_tokens\":%" PRId64 ",\"stream\":%s",
               phase_of(c), (now_ns - c->t_start_ns) / 1000000, prompt, taken,
               bool_word(c->request.stream && !c->preparing));
    if (peer) {
        buf_puts(b, ",\"client\":");
        buf_put_json(b, peer, strlen(peer));
    }
    buf_putc(b, '}');
}

void api_get_requests(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct buf b;
    int64_t now_ns = clock_now_ns();
    buf_init(&b, 64 << 20);
    buf_puts(&b, "{\"object\":\"list\",\"data\":[");
    for (const struct call *c = a->calls.calls; c; c = c->next) {
        if (c != a->calls.calls) {
            buf_puts(&b, ",");
        }
        put_call(&b, c, now_ns);
    }
    buf_puts(&b, "]}");
    reply_json(req, 200, &b);
}

/* SIGUSR1: writes a report to the log, which also works if HTTP does not. Long lists are
 * truncated. */
void api_on_report(void *arg)
{
    enum { MOST = 200 }; // lines about requests: more would be too much for a log
    struct api *a = arg;
    struct engine_stats s;
    struct buf b;
    int64_t now_ns = clock_now_ns();
    int n = 0;
    api_put_stats(a, &s);
    log_info("report: %s, %lld requests, %d running, %d waiting (%lld prompt tokens), %d of %d KV "
             "blocks held, %lld steps, %lld preemptions",
             api_health_names[api_check_health(a, now_ns)], (long long)a->calls.n_calls,
             s.n_running, engine_stats_queued(&s),
             (long long)(s.waiting_tokens + s.submitted_tokens), s.n_blocks_held, s.n_blocks,
             (long long)s.n_steps, (long long)s.preemptions);
    buf_init(&b, 1 << 12);
    for (const struct call *c = a->calls.calls; c && n < MOST; c = c->next, n++) {
        buf_clear(&b);
        put_call(&b, c, now_ns);
        log_info("report: %.*s", (int)b.n_bytes, b.data);
    }
    if (a->calls.n_calls > n) {
        log_info("report: and %lld more", (long long)a->calls.n_calls - n);
    }
    buf_deinit(&b);
}

/* Refused while sequences run, unless forced. */
void api_reset_prefix_cache(struct http_request *req, void *arg)
{
    struct api *a = arg;
    if (!a->ready) {
        reply_errorf(req, 503, "model_loading", NULL, "The model is still loading.");
        return;
    }
    /* Blocks that running sequences hold are not dropped, and later requests could still find them,
     * so the operator must force this. */
    struct engine_stats s;
    struct buf b;
    const char *force = http_query(req, "reset_running_requests");
    bool forced = force && (strcasecmp(force, "true") == 0 || strcmp(force, "1") == 0);
    engine_stats(a->calls.engine, &s);
    if (s.n_running > 0 && !forced) {
        http_reply_header(req, "x-should-retry", "false");
        reply_errorf(
            req, 409, "conflict", NULL,
            "Running requests hold cached blocks. Try again when they have ended, or with "
            "?reset_running_requests=true: then only blocks that no request holds are dropped.");
        return;
    }
    engine_reset_prefix_cache(a->calls.engine);
    buf_init(&b, 256);
    buf_printf(&b, "{\"freed_blocks\":%d}", s.n_blocks_idle);
    reply_json(req, 200, &b);
}

/* Replies first, because a drain refuses later requests. */
void api_drain(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct buf b;
    buf_init(&b, 256);
    buf_printf(&b, "{\"in_flight\":%" PRId64 "}", a->calls.n_calls);
    reply_json(req, 200, &b);
    http_server_drain(a->http);
}
