// SPDX-License-Identifier: Apache-2.0
/* Adapters that are loaded while the engine runs. The caller's thread reads and checks the folder;
 * the engine thread then waits for the steps in flight, and every rank copies its part. */
#include "engine/engine_state.h"
#include "engine/model/adapter.h"

/* On the stack of a caller that waits for `done`. */
struct adapter_change {
    const struct adapters *adapters; // a list of one
    int32_t adapter;                 // as in engine_request
    enum status st;
    bool done;
};

static enum status set_on_rank(struct rank *r, void *arg)
{
    const struct adapter_change *c = arg;
    return model_set_adapter(&r->target, c->adapters, c->adapter - 1);
}

/* Blocks of the prefix cache belong to a version of a place, so those of the earlier adapter are
 * never found again. */
void engine_change_adapter(struct engine *e)
{
    pthread_mutex_lock(&e->message_lock);
    struct adapter_change *c = e->adapter_change;
    pthread_mutex_unlock(&e->message_lock);
    if (!c) {
        return;
    }
    while (e->n_inflight > 0) {
        engine_commit_step(e);
    }
    enum status st = e->failed;
    if (st == OK) {
        e->adapter_versions[c->adapter]++;
        st = ranks_run(&e->ranks, set_on_rank, c);
        if (st != OK) {
            engine_fail(e, st, "the device failed while an adapter was loaded");
        }
    }
    pthread_mutex_lock(&e->message_lock);
    c->st = st;
    c->done = true;
    e->adapter_change = NULL;
    pthread_cond_broadcast(&e->adapter_changed);
    pthread_mutex_unlock(&e->message_lock);
}

void engine_fix_adapters(struct engine *e)
{
    pthread_mutex_lock(&e->message_lock);
    e->adapters_fixed = true;
    if (e->adapter_change) {
        e->adapter_change->st = ERR_CANCELLED;
        e->adapter_change->done = true;
        e->adapter_change = NULL;
    }
    pthread_cond_broadcast(&e->adapter_changed);
    pthread_mutex_unlock(&e->message_lock);
}

/* Waits for the engine thread; several callers take turns. */
static enum status hand_over(struct engine *e, struct adapter_change *c)
{
    pthread_mutex_lock(&e->message_lock);
    while (e->adapter_change && !e->adapters_fixed) {
        pthread_cond_wait(&e->adapter_changed, &e->message_lock);
    }
    if (e->adapters_fixed) {
        c->st = ERR_CANCELLED;
        c->done = true;
    } else {
        e->adapter_change = c;
        queue_wake(&e->inbox);
    }
    while (!c->done) {
        pthread_cond_wait(&e->adapter_changed, &e->message_lock);
    }
    pthread_mutex_unlock(&e->message_lock);
    return c->st;
}

enum status engine_set_adapter(struct engine *e, int32_t adapter, const char *name, const char *dir,
                               struct err *err)
{
    struct adapters *adapters = NULL;
    if (adapter < 1 || adapter > e->info.n_adapters) {
        return err_set(err, ERR_INVALID, "there is no adapter %d", adapter);
    }
    enum status st = adapters_open(e->options.model, &name, &dir, 1, &adapters, err);
    if (st == OK) {
        st = model_check_adapter(&e->ranks.rank[0].target, adapters, err);
    }
    if (st == OK) {
        struct adapter_change change = {.adapters = adapters, .adapter = adapter};
        st = hand_over(e, &change);
        if (st != OK) {
            err_set(err, st, "the engine is not running");
        }
    }
    adapters_close(adapters);
    return st;
}
