#include "server/api/api.h"

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "server/api/keys.h"
#include "server/api/log_request.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define INFER(path, handler) {"POST", path, handler, SCOPE_INFERENCE, 0, HTTP_ROUTE_JSON}
#define PROBE(path, handler) {"GET", path, handler, 0, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET}

const struct http_route api_routes[] = {
    INFER("/v1/chat/completions", api_chat),
    INFER("/v1/completions", api_completions),
    INFER("/v1/responses", api_responses),
    INFER("/v1/responses/input_tokens", api_responses_input_tokens),
    {"GET", "/v1/responses/{id}/input_items", api_responses_get, SCOPE_INFERENCE, 0, 0},
    {"POST", "/v1/responses/{id}/cancel", api_responses_get, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/responses/{id}", api_responses_get, SCOPE_INFERENCE, 0, 0},
    {"DELETE", "/v1/responses/{id}", api_responses_get, SCOPE_INFERENCE, 0, 0},
    INFER("/v1/embeddings", api_embeddings),
    {"GET", "/v1/models", api_models, SCOPE_INFERENCE, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {"GET", "/v1/models/{id}", api_model_one, SCOPE_INFERENCE, 0, HTTP_ROUTE_QUIET},
    INFER("/tokenize", api_tokenize),
    INFER("/v1/tokenize", api_tokenize),
    INFER("/detokenize", api_detokenize),
    INFER("/v1/detokenize", api_detokenize),
    {"GET", "/tokenizer_info", api_tokenizer_info, SCOPE_INFERENCE, 0, 0},
    PROBE("/health", api_get_health),
    PROBE("/v1/health", api_get_health),
    PROBE("/ping", api_get_health),
    PROBE("/health/live", api_get_live),
    PROBE("/health/ready", api_get_ready),
    PROBE("/load", api_get_load),
    PROBE("/version", api_get_version),
    {"GET", "/metrics", api_get_metrics, SCOPE_METRICS, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {"GET", "/server_info", api_get_server_info, SCOPE_ADMIN, 0, 0},
    {"GET", "/requests", api_get_requests, SCOPE_ADMIN, 0, 0},
    {"POST", "/reset_prefix_cache", api_reset_prefix_cache, SCOPE_ADMIN, 0, 0},
    {"POST", "/drain", api_drain, SCOPE_ADMIN, 0, 0},
    {"GET", "/", api_status_page, 0, 0, HTTP_ROUTE_QUIET},
    {"GET", "/status.json", api_status_data, SCOPE_METRICS, 0,
     HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {NULL, NULL, NULL, 0, 0, 0},
};

const char *const api_health_names[] = {"ok", "loading", "draining", "stalled", "dead"};

void api_init(struct api *a, const struct config *config, const char *config_text)
{
    *a = (struct api){.config = config, .config_text = config_text, .health = HEALTH_LOADING};
    a->started_ns = clock_now_ns();
    a->next_seed = hash_process_key() ^ (uint64_t)config->seed;
    buf_init(&a->scratch, (size_t)1 << 30);
}

void api_set_ready(struct api *a)
{
    a->ready = true;
    a->ready_ns = clock_now_ns();
    a->seen_step_ns = a->ready_ns;
    a->health = HEALTH_OK;
}

void api_deinit(struct api *a)
{
    buf_deinit(&a->scratch);
    keys_close(a->keys);
    a->keys = NULL;
}

/* ---- keys ------------------------------------------------------------------------------------- */

static bool unauthorized(struct http_request *req, bool missing)
{
    struct api_error e = {0};
    http_reply_header(req, "www-authenticate", "Bearer");
    if (missing) {
        api_error_set(&e, 401, "missing_api_key", NULL,
                      "You didn't provide an API key. You need to provide your API key in an "
                      "Authorization header using Bearer auth (i.e. Authorization: Bearer "
                      "YOUR_KEY).");
    } else {
        api_error_set(&e, 401, "invalid_api_key", NULL, "Incorrect API key provided.");
    }
    reply_api_error(req, &e);
    return false;
}

/* Without keys whoever reaches the port may do all, but the pages that a browser shows on the same
 * machine are not meant by that: they can send a POST anywhere. */
static bool check_origin(struct http_request *req, const struct http_route *route)
{
    if (route->scope != SCOPE_ADMIN || strcmp(route->method, "POST") != 0 ||
        http_origin_is_good(req)) {
        return true;
    }
    struct api_error e = {0};
    api_error_set(&e, 403, "origin_not_allowed", NULL,
                  "A web page may not do this on a server without API keys, unless its origin is "
                  "one of --allowed-origins.");
    reply_api_error(req, &e);
    return false;
}

/* An Authorization header of another scheme is a proxy's or a browser's own. */
static const char *given_key(const struct http_request *req)
{
    const char *key = http_header(req, "authorization");
    if (!key || strncasecmp(key, "bearer ", 7) != 0) {
        return http_header(req, "x-api-key");
    }
    return key + 7 + strspn(key + 7, " ");
}

bool api_authorize(struct http_request *req, const struct http_route *route, void *arg)
{
    struct api *a = arg;
    unsigned needed = route->scope;
    if (needed == SCOPE_METRICS && a->config->open_metrics) {
        needed = 0;
    }
    if (!a->keys) {
        return check_origin(req, route);
    }
    if (needed == 0) {
        return true;
    }
    const char *key = given_key(req), *name = NULL;
    if (!key || !*key) {
        return unauthorized(req, true);
    }
    unsigned scopes = keys_find(a->keys, key, &name);
    if (scopes == 0) {
        return unauthorized(req, false);
    }
    snprintf(http_log(req)->key_name, sizeof http_log(req)->key_name, "%s", name);
    if ((scopes & needed) == 0) {
        struct api_error e = {0};
        api_error_set(&e, 403, "insufficient_permissions", NULL,
                      "This API key does not have the permission that this endpoint needs.");
        reply_api_error(req, &e);
        return false;
    }
    return true;
}

void api_on_reload(void *arg)
{
    struct api *a = arg;
    struct err err = {""};
    if (!a->keys) {
        return;
    }
    if (keys_reload(a->keys, &err) == OK) {
        log_info("API keys were read again");
    } else {
        log_error("the old API keys stay: %s", err.text);
    }
}

/* ---- the end ---------------------------------------------------------------------------------- */

void api_on_drain(void *arg)
{
    struct api *a = arg;
    a->draining = true;
    log_info("draining: %lld requests in flight", (long long)a->n_calls);
}

void api_on_drain_deadline(void *arg)
{
    struct api *a = arg;
    struct api_error e = {.type = "server_error", .retry_after_s = 1};
    api_error_set(&e, 503, "server_draining", NULL, "The server is shutting down.");
    a->metrics.aborted[ABORT_SHUTDOWN] += (uint64_t)a->n_calls;
    api_abort_all(a, &e);
}

void api_on_done(const struct request_log *log, void *arg)
{
    struct api *a = arg;
    metrics_http(&a->metrics, log);
    if (log->end_ns > log->arrived_ns) {
        metrics_observe(&a->metrics, HIST_HTTP, (double)(log->end_ns - log->arrived_ns) * 1e-9);
    }
    if (log->status == 413) {
        a->metrics.rejected[REJECT_TOO_LARGE]++;
    }
    // The front end refuses these before a handler is asked; a call that is ended has a `finish`.
    if (log->status == 503 && !log->finish && http_server_state(a->http) >= HTTP_CLOSING) {
        a->metrics.rejected[REJECT_DRAINING]++;
    }
}

/* ---- the watchdog ----------------------------------------------------------------------------- */

/* Stalled: work waits, and no step has ended for longer than any step may take. Idle is never
 * stalled, and a long step only if it is much longer than the longest so far. */
enum api_health api_check_health(struct api *a, int64_t now_ns)
{
    if (!a->ready) {
        return a->health = a->load_failed ? HEALTH_DEAD : HEALTH_LOADING;
    }
    struct engine_stats s;
    engine_stats(a->engine, &s);
    bool idle = s.n_running + s.n_waiting == 0;
    int64_t age = now_ns - a->seen_step_ns;
    if (s.n_steps != a->seen_steps || idle) {
        if (s.n_steps == a->seen_steps + 1 && age > a->longest_step_ns && !a->was_idle) {
            a->longest_step_ns = age;
        }
        if (s.n_steps > a->seen_steps) {
            metrics_observe(&a->metrics, HIST_ITERATION_TOKENS,
                            (double)(s.n_rows - a->metrics.last_rows) /
                                (double)(s.n_steps - a->seen_steps));
            a->metrics.last_rows = s.n_rows;
        }
        a->seen_steps = s.n_steps;
        a->seen_step_ns = now_ns;
        age = 0;
    }
    a->was_idle = idle;
    int64_t stall = (int64_t)(a->config->stall_timeout * 1e9);
    stall = 3 * a->longest_step_ns > stall ? 3 * a->longest_step_ns : stall;
    int64_t dead = stall + (int64_t)(a->config->dead_timeout * 1e9);
    enum api_health h = s.state == ENGINE_FAILED || age > dead ? HEALTH_DEAD
                        : age > stall                          ? HEALTH_STALLED
                        : a->draining                          ? HEALTH_DRAINING
                                                               : HEALTH_OK;
    if (h != a->health) {
        log_line(h == HEALTH_STALLED || h == HEALTH_DEAD ? LOG_ERROR : LOG_INFO,
                 "engine: %s", h == HEALTH_DEAD      ? "dead"
                               : h == HEALTH_STALLED ? "stalled: work waits and no step ends"
                               : h == HEALTH_OK      ? "ok"
                                                     : "draining");
    }
    return a->health = h;
}

static void on_tick(struct http_timer *timer, void *arg)
{
    struct api *a = arg;
    enum { PERIOD_MS = 500, EXIT_DELAY_MS = 10000 };
    bool dead = api_check_health(a, clock_now_ns()) == HEALTH_DEAD;
    if (dead && !a->load_failed) {
        struct api_error e = {.type = "server_error"};
        api_error_set(&e, 503, "engine_dead", NULL, "The engine has failed.");
        api_abort_all(a, &e);
        a->dead_ms += PERIOD_MS;
        if (a->dead_ms == EXIT_DELAY_MS) { // long enough for a probe to see it
            http_server_stop(a->http);
        }
    }
    http_timer_start(a->http, timer, PERIOD_MS, on_tick, a);
}

void api_watch(struct api *a)
{
    http_timer_start(a->http, &a->tick, 100, on_tick, a);
}
