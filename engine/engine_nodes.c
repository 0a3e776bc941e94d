// SPDX-License-Identifier: Apache-2.0
/* The engine on several nodes: node 0 sends its steps, and the code here executes them on the other
 * nodes. Any failure that ends one node ends all of them. */
#include "engine/cluster/step_run.h"
#include "engine/cluster/step_wire.h"
#include "engine/engine_state.h"

#include "engine/base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

int32_t engine_nodes_alive(const struct engine *e)
{
    if (e->options.nodes) {
        return nodes_alive(e->options.nodes);
    }
    return 1;
}

void engine_note_failure(struct engine *e, const char *why)
{
    int32_t alive = engine_nodes_alive(e);
    pthread_mutex_lock(&e->stats_lock);
    if (e->stats.failure[0] == '\0') {
        snprintf(e->stats.failure, sizeof e->stats.failure, "%s", why);
    }
    e->stats.n_nodes_alive = alive;
    pthread_mutex_unlock(&e->stats_lock);
    int32_t ready = ENGINE_READY;
    atomic_compare_exchange_strong(&e->state, &ready, ENGINE_FAILED);
}

/* Runs on a thread of the nodes module, because the engine thread may be blocked in a collective
 * that never ends by itself. */
static void on_lost(void *arg)
{
    struct engine *e = arg;
    struct err why;
    engine_note_failure(e, engine_set_lost(e, &why) ? why.text : "a node is lost");
    ranks_abort(&e->ranks);
    if (e->options.on_lost) {
        e->options.on_lost(e->options.callback_arg);
    }
    queue_wake(&e->inbox);
}

void engine_watch_nodes(struct engine *e)
{
    if (e->options.nodes) {
        nodes_watch(e->options.nodes, on_lost, e);
    }
}

/* Also tells the other nodes that no more steps will come. */
void engine_unwatch_nodes(struct engine *e)
{
    if (e->options.nodes) {
        nodes_goodbye(e->options.nodes);
        nodes_watch(e->options.nodes, NULL, NULL);
    }
}

bool engine_set_lost(struct engine *e, struct err *why)
{
    return e->options.nodes && nodes_lost(e->options.nodes, why);
}

enum status engine_agree(struct engine *e, int64_t *least, struct err *err)
{
    if (e->options.nodes) {
        return nodes_least(e->options.nodes, least, err);
    }
    return OK;
}

static enum status send_wire(struct engine *e)
{
    if (e->wire.failed) {
        return ERR_LIMIT;
    }
    return nodes_send_step(e->options.nodes, e->wire.data, e->wire.n_bytes);
}

enum status engine_send_step(struct engine *e, const struct step *st, const struct pass *level)
{
    if (!e->options.nodes) {
        return OK;
    }
    buf_clear(&e->wire);
    step_encode(st, level, &e->wire);
    return send_wire(e);
}

enum status engine_send_draws(struct engine *e, const struct step *st)
{
    if (!e->options.nodes) {
        return OK;
    }
    buf_clear(&e->wire);
    step_encode_draws(st, &e->wire);
    return send_wire(e);
}

enum status engine_send_level(const struct step *st, const struct pass *level, void *arg)
{
    return engine_send_step(arg, st, level);
}

/* ---- another node -------------------------------------------------------------------------- */

static enum status wait_slot(struct rank *r, void *arg)
{
    const struct step *st = arg;
    struct pass_results unused[MAX_DRAFTS + 1];
    return r->be->ops->step_wait(r->be, st->slot, unused, MAX_DRAFTS + 1);
}

struct follow {
    const struct engine *e;
    const struct step *step;
};

static enum status follow_rank(struct rank *r, void *arg)
{
    const struct follow *f = arg;
    return step_execute(f->step, r, f->e->n_vocab_used);
}

static enum status follow_draws(struct rank *r, void *arg)
{
    const struct follow *f = arg;
    return step_execute_draws(r, f->e->n_vocab_used);
}

/* Executes one frame: a pass of the draft models, a step, or the draws that were missing from a
 * step. *number counts steps. */
static enum status follow_frame(struct engine *e, int64_t *number, const void *bytes,
                                size_t n_bytes, struct err *err)
{
    struct step *step = &e->steps[*number % N_STEPS].step;
    struct follow f = {e, step};
    enum step_frame frame;
    bool first = !step->begun && !step->lacks_masks;
    TRY(step_decode(step, &e->moves, &frame, &e->sizes, bytes, n_bytes, err));
    enum status st = first && *number >= N_STEPS ? ranks_run(&e->ranks, wait_slot, step) : OK;
    if (st == OK && frame == STEP_LEVEL) {
        st = step_run_ahead(step, &step->level, 1, &e->ranks, e->n_vocab_used, NULL);
    } else if (st == OK) {
        bool rest = frame == STEP_DRAWS;
        st = ranks_run(&e->ranks, rest ? follow_draws : follow_rank, &f);
    }
    if (st == OK && frame != STEP_LEVEL && !step->lacks_masks) { // the step is complete
        step->begun = false;
        e->n_steps = ++*number;
    }
    if (st != OK) {
        return err_set(err, st, "a device failed in step %lld", (long long)*number);
    }
    return OK;
}

/* Called when no step has arrived for a while. A step would reveal a failed device; without one,
 * this checks the devices. If the whole set of nodes is lost, the next request for a step reports
 * that. */
static enum status follow_silence(struct engine *e, struct err *err)
{
    ranks_check(&e->ranks);
    if (atomic_load(&e->ranks.aborted) && !engine_set_lost(e, NULL)) {
        return err_set(err, ERR_DEVICE, "a device is lost");
    }
    return OK;
}

static enum status follow_steps(struct engine *e, struct err *err)
{
    for (int64_t number = 0;;) {
        const void *bytes = NULL;
        size_t n_bytes = 0;
        enum status st = nodes_next_step(e->options.nodes, &bytes, &n_bytes);
        if (st != OK) {
            struct err why = {"a step is missing"};
            engine_set_lost(e, &why);
            if (st != ERR_CANCELLED) {
                return err_set(err, st, "%s", why.text);
            }
            return OK;
        }
        TRY(bytes ? follow_frame(e, &number, bytes, n_bytes, err) : follow_silence(e, err));
    }
}

enum status engine_follow(struct engine *e, struct err *err)
{
    enum status st = follow_steps(e, err);
    if (st != OK) {
        nodes_fail(e->options.nodes, err->text);
    }
    return st;
}

/* Returns the error of the first rank that failed. If a node was lost, that is reported instead. */
enum status engine_on_ranks(struct engine *e, enum status (*work)(struct rank *r, void *arg),
                            struct err *err)
{
    enum status st = ranks_run(&e->ranks, work, e);
    struct err why;
    if (st != OK && engine_set_lost(e, &why)) {
        return err_set(err, st, "%s", why.text);
    }
    for (int32_t i = 0; i < e->ranks.n && st != OK; i++) {
        if (e->ranks.rank[i].st != OK) {
            const char *text = e->ranks.rank[i].err.text;
            return err_set(err, st, "%s", text[0] ? text : status_name(st));
        }
    }
    return st;
}
