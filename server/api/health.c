// SPDX-License-Identifier: Apache-2.0
/* The watchdog: checks that the engine completes steps, and refuses calls if it cannot. */
#include "engine/base/optional.h"
#include "engine/engine.h"
#include "server/api/api.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/minmax.h"
#include "server/api/reply.h"
#include "server/jobs/batches.h"

const char *const api_health_names[N_HEALTHS] = {
    [HEALTH_OK] = "ok",           [HEALTH_LOADING] = "loading", [HEALTH_DRAINING] = "draining",
    [HEALTH_STALLED] = "stalled", [HEALTH_DEAD] = "dead",
};

/* The engine is stalled if work is pending and no step has ended for longer than --stall-timeout
 * and three times the longest step so far. */
enum api_health api_check_health(struct api *a, int64_t now_ns)
{
    if (!a->ready) {
        a->health = a->load_failed ? HEALTH_DEAD : HEALTH_LOADING;
        return a->health;
    }
    struct engine_stats s;
    engine_stats(a->calls.engine, &s);
    bool idle = s.n_running + engine_stats_queued(&s) == 0;
    int64_t age = now_ns - a->seen_step_ns;
    if (s.n_steps != a->seen_steps || idle) {
        if (s.n_steps == a->seen_steps + 1 && age > a->longest_step_ns && !a->was_idle) {
            a->longest_step_ns = age;
        }
        a->seen_steps = s.n_steps;
        a->seen_step_ns = now_ns;
        age = 0;
    }
    a->was_idle = idle;
    int64_t stall = (int64_t)(a->config->stall_timeout * 1e9);
    stall = greater(3 * a->longest_step_ns, stall);
    int64_t dead = stall + (int64_t)(a->config->dead_timeout * 1e9);
    enum api_health h = a->draining ? HEALTH_DRAINING : HEALTH_OK;
    if (s.state == ENGINE_FAILED || age > dead) {
        h = HEALTH_DEAD;
    } else if (age > stall) {
        h = HEALTH_STALLED;
    }
    if (h != a->health) {
        log_line(h == HEALTH_STALLED || h == HEALTH_DEAD ? LOG_ERROR : LOG_INFO, "engine: %s%s",
                 api_health_names[h],
                 text_if(h == HEALTH_STALLED, ": work is pending and no step ends"));
    }
    return a->health = h;
}

/* True if calls must be rejected at the moment; *e says why. */
static bool refuse(struct api *a, struct call_error *e)
{
    e->type = "server_error";
    if (a->load_failed || a->health == HEALTH_DEAD) {
        a->calls.counts.rejected[REJECT_DEAD]++;
        call_error_set(e, 503, "engine_dead", NULL, "The engine has failed.");
        return true;
    }
    if (!a->ready) {
        a->calls.counts.rejected[REJECT_LOADING]++;
        e->retry_after_s = 2;
        call_error_set(e, 503, "model_loading", NULL, "The model is still loading.");
        return true;
    }
    return false;
}

bool api_refuses(struct api *a, struct http_request *req)
{
    struct call_error e = {0};
    const bool refused = refuse(a, &e);
    if (refused) {
        reply_error(req, &e);
    }
    return refused;
}

/* Called twice a second. If the engine is dead, all calls are ended, and after a while the process
 * exits, so that its supervisor restarts it. */
static void on_tick(struct http_timer *timer, void *arg)
{
    struct api *a = arg;
    enum { PERIOD_MS = 500, EXIT_DELAY_MS = 10000 };
    bool dead = api_check_health(a, clock_now_ns()) == HEALTH_DEAD;
    if (a->batches) {
        batches_tick(a->batches, clock_wall_sec());
    }
    if (dead && !a->load_failed) {
        struct call_error e = {.type = "server_error"};
        call_error_set(&e, 503, "engine_dead", NULL, "The engine has failed.");
        call_abort_all(&a->calls, &e);
        a->dead_ms += PERIOD_MS;
        if (a->dead_ms == EXIT_DELAY_MS) { // late enough for a probe to see it
            http_server_stop(a->http);
        }
    }
    http_timer_start(a->http, timer, PERIOD_MS, on_tick, a);
}

void api_watch(struct api *a)
{
    http_timer_start(a->http, &a->tick, 100, on_tick, a);
}
