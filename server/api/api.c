// SPDX-License-Identifier: Apache-2.0
/* The server's state and the hooks of the HTTP front end: authorisation, wakes, reload,
 * drain, and the end of each request. All of it runs on the loop thread. */
#include "server/api/api.h"

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "server/api/keys.h"
#include "server/api/log_request.h"
#include "server/api/origin.h"
#include "server/api/resume.h"
#include "server/call/tenant.h"
#include "server/jobs/batches.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Without keys all requests share one tenant, so limits apply to all of them together. */
void api_init(struct api *a, const struct config *config, const char *config_text)
{
    *a = (struct api){.config = config, .config_text = config_text, .health = HEALTH_LOADING};
    a->started_ns = clock_now_ns();
    call_server_init(&a->calls, config, &api_call_host);
    const struct tenant_limits limits = tenant_limits_default(config);
    a->anyone = tenant_new(&limits);
}

static void wake(void *arg)
{
    http_wake(((struct api *)arg)->http);
}

/* Batches exist only with a store. */
void api_set_store(struct api *a, struct store *store)
{
    struct batches_options o = {.store = store,
                                .calls = &a->calls,
                                .wake = wake,
                                .arg = a,
                                .max_line_bytes = (size_t)a->config->max_body_bytes,
                                .retention_s = (int64_t)a->config->data_retention};
    a->store = a->calls.store = store;
    a->data_retention_s = o.retention_s;
    a->batches = batches_open(&o);
}

/* Called once loading has succeeded; only then do stored batches continue. */
void api_set_ready(struct api *a)
{
    a->ready = true;
    a->ready_ns = clock_now_ns();
    a->seen_step_ns = a->ready_ns;
    a->health = HEALTH_OK;
    if (a->batches) {
        batches_start(a->batches);
    }
}

/* Batches are closed first, because their calls need the server. */
void api_deinit(struct api *a)
{
    batches_close(a->batches);
    call_server_deinit(&a->calls);
    resume_close(a);
    keys_close(a->keys);
    a->keys = NULL;
    tenant_drop(a->anyone);
    metrics_deinit(&a->metrics);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Replies 401, with one of OpenAI's two messages. */
static bool unauthorized(struct http_request *req, bool missing)
{
    struct call_error e = {0};
    http_reply_header(req, "www-authenticate", "Bearer");
    if (missing) {
        call_error_set(&e, 401, "missing_api_key", NULL,
                       "You didn't provide an API key. You need to provide your API key in an "
                       "Authorization header using Bearer auth (i.e. Authorization: Bearer "
                       "YOUR_KEY).");
    } else {
        call_error_set(&e, 401, "invalid_api_key", NULL, "Incorrect API key provided.");
    }
    reply_error(req, &e);
    return false;
}

/* The owner id of a key's files and batches: stable across restarts, and when the key's name
 * changes. It consists of two hashes with fixed keys, so that collisions are negligible and the key
 * itself is not in the store. */
static void name_owner(char *out, size_t room, const char *key)
{
    size_t n = strlen(key);
    snprintf(out, room, "%016llx%016llx", (unsigned long long)hash_bytes(key, n, 1),
             (unsigned long long)hash_bytes(key, n, 2));
}

/* An Authorization header with another scheme is meant for a proxy, or sent by the browser. */
static const char *given_key(const struct http_request *req)
{
    const char *key = http_header(req, "authorization");
    if (!key || strncasecmp(key, "bearer ", 7) != 0) {
        return http_header(req, "x-api-key");
    }
    return key + 7 + strspn(key + 7, " ");
}

bool api_is_disabled(const struct api *a, struct http_request *req, const char *path, bool page)
{
    const struct string_list *list = &a->config->disable_routes;
    size_t i = 0;
    while (i < list->n && strcmp(list->items[i], path) != 0) {
        i++;
    }
    if (i == list->n) {
        return false;
    }
    if (page) {
        reply_errorf(req, 404, "unknown_url", NULL, "Unknown request URL: %s.", path);
    } else {
        reply_errorf(req, 501, "not_supported", NULL, "This server does not serve %s.", path);
    }
    return true;
}

bool api_authorize(struct http_request *req, const struct http_route *route, void *arg)
{
    struct api *a = arg;
    unsigned needed = route->scope;
    reply_note_route(req, route);
    if (api_is_disabled(a, req, route->path, false)) {
        return false;
    }
    if (needed == SCOPE_METRICS && a->config->open_metrics) {
        needed = 0;
    }
    struct api_log *log = api_log(req);
    if (!a->keys) {
        struct call_error e = {0};
        log->tenant = tenant_hold(a->anyone);
        bool may = origin_check(a, req, route, &e);
        if (!may) {
            reply_error(req, &e);
        }
        return may;
    }
    if (needed == 0) {
        return true;
    }
    const char *key = given_key(req), *name = NULL;
    if (!key || !*key) {
        return unauthorized(req, true);
    }
    struct tenant *tenant = NULL;
    unsigned scopes = keys_find(a->keys, key, &name, &tenant);
    if (scopes == 0) {
        return unauthorized(req, false);
    }
    log->tenant = tenant_hold(tenant);
    snprintf(log->key_name, sizeof log->key_name, "%s", name);
    name_owner(log->owner, sizeof log->owner, key);
    if ((scopes & needed) == 0) {
        struct call_error e = {0};
        call_error_set(&e, 403, "insufficient_permissions", NULL,
                       "This API key does not have the permission that this endpoint needs.");
        reply_error(req, &e);
        return false;
    }
    return true;
}

/* SIGHUP: reads the key file again. If it has a mistake, the old keys stay valid. */
void api_on_reload(void *arg)
{
    struct api *a = arg;
    struct err err = {""};
    if (!a->keys) {
        return;
    }
    if (keys_reload(a->keys, &err) == OK) {
        log_info("API keys were reloaded");
    } else {
        log_error("the old API keys remain valid: %s", err.text);
    }
}

/* ---- shutdown -------------------------------------------------------------------------------- */

void api_on_wake(void *arg)
{
    struct api *a = arg;
    bool stopped = http_server_state(a->http) == HTTP_STOPPED, more = call_on_wake(&a->calls);
    while (more && stopped) {
        more = call_on_wake(&a->calls);
    }
    if (more) { // the loop looks at its connections first
        http_wake(a->http);
    }
    if (a->batches && !stopped) { // once the loop has stopped there is no pool
        batches_turn(a->batches);
    }
}

/* Batches stop taking lines immediately; running lines may finish. */
void api_on_drain(void *arg)
{
    struct api *a = arg;
    a->draining = true;
    if (a->batches) {
        batches_stop(a->batches);
    }
    log_info("draining: %lld requests in flight", (long long)a->calls.n_calls);
}

/* At the drain's deadline all calls end with an error after which clients may retry. */
void api_on_drain_deadline(void *arg)
{
    struct api *a = arg;
    struct call_error e = {.type = "server_error", .retry_after_s = 1};
    call_error_set(&e, 503, "server_draining", NULL, "The server is shutting down.");
    a->calls.counts.aborted[ABORT_SHUTDOWN] += (uint64_t)a->calls.n_calls;
    call_abort_all(&a->calls, &e);
}

/* Called last for each request: updates the metrics and drops the reference to the tenant. */
void api_on_done(const struct http_record *record, const void *room, void *arg)
{
    struct api *a = arg;
    const struct api_log *log = room;
    tenant_drop(log->tenant);
    metrics_http(&a->metrics, record);
    if (record->end_ns > record->arrived_ns) {
        metrics_observe(&a->metrics, HIST_HTTP,
                        (double)(record->end_ns - record->arrived_ns) * 1e-9);
    }
    if (record->status == 413) {
        a->calls.counts.rejected[REJECT_TOO_LARGE]++;
    }
    // Requests rejected by the draining front end have no `finish`; calls that were ended have one.
    if (record->status == 503 && !log->call.finish && http_server_state(a->http) >= HTTP_CLOSING) {
        a->calls.counts.rejected[REJECT_DRAINING]++;
    }
}
