// SPDX-License-Identifier: Apache-2.0
/* How requests end when the device, a node or a grammar fails. */
#include "engine/engine_state.h"

#include "engine/base/log.h"

#include <time.h>

static void fail_all(struct engine *e, enum status st, const char *text)
{
    if (e->failed == OK) {
        log_error("the engine has failed: %s", text);
        e->failed = st;
        engine_note_failure(e, text);
        ranks_abort(&e->ranks);
        if (e->options.nodes) {
            nodes_fail(e->options.nodes, text);
        }
    }
    struct engine_request *r;
    while ((r = requests_any(e)) != NULL) {
        requests_fail(e, r, st, text);
    }
}

/* Waits a moment for the cause of a device failure. When a node is lost, the connections that carry
 * tensors can break just before the set of nodes notices. */
static bool await_cause(struct engine *e, struct err *why)
{
    bool lost = engine_set_lost(e, why);
    for (int32_t i = 0; i < 20 && !lost && e->options.nodes; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        lost = engine_set_lost(e, why);
    }
    return lost;
}

void engine_fail(struct engine *e, enum status st, const char *text)
{
    struct err why;
    bool lost = await_cause(e, &why);
    fail_all(e, lost ? ERR_DEVICE : st, lost ? why.text : text);
}

void engine_fail_constrained(struct engine *e, struct sequence *seq)
{
    if (seq->state != SEQ_RETIRING) {
        requests_fail(e, seq->request, ERR_LIMIT, constraint_failure(&e->constraints[seq->index]));
    }
}
