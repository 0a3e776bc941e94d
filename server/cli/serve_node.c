// SPDX-License-Identifier: Apache-2.0
/* `sluice serve` on every node except 0: no HTTP; loads its part of the model and executes the
 * steps that node 0 sends, until node 0 ends. */
#include "server/cli/serve_node.h"

#include "engine/base/log.h"
#include "engine/base/write.h"
#include "engine/cluster/nodes.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "server/cli/devices.h"
#include "server/cli/engine_config.h"
#include "server/cli/last_resort.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { LAST_RESORT_S = 15 }; // longer than ranks_run waits for a hanging thread (RANK_PATIENCE_S)

static volatile sig_atomic_t follows;

/* A launcher signals all processes at the same time, but node 0 still needs the others to finish
 * its requests. So the first signal is ignored: this node ends with node 0. A second signal ends it
 * alone. */
static void on_signal(int number)
{
    if (!follows) {
        _exit(128 + number);
    }
    follows = 0;
    write_last("sluice: this node ends with node 0; a second signal ends it now\n");
}

/* Another node or a device was lost. Exits soon, even if a device hangs, so that the supervisor can
 * restart all nodes. */
static void on_lost(void *arg)
{
    (void)arg;
    last_resort_begin(LAST_RESORT_S);
}

static enum status follow(const struct config *c, struct engine_options *options,
                          struct engine **engine, struct err *err)
{
    TRY(engine_config(c, options, err));
    options->on_lost = on_lost;
    TRY(engine_open(options, engine, err));
    const struct engine_info *i = engine_info(*engine);
    log_info("node %d of %d is ready: %s on %s", nodes_rank(options->nodes),
             nodes_count(options->nodes), i->model_type, i->device);
    follows = 1;
    return engine_follow(*engine, err);
}

int serve_node(const struct config *c)
{
    struct engine_options options = {0};
    struct engine *engine = NULL;
    struct err err = {""};
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    enum status st = follow(c, &options, &engine, &err);
    if (st != OK) {
        log_error("%s", err.text);
        if (options.nodes) {
            nodes_fail(options.nodes, err.text);
        }
        last_resort_begin(LAST_RESORT_S);
    } else {
        log_info("node 0 has ended");
    }
    engine_close(engine);
    devices_release(&options);
    if (st == OK) {
        return 0;
    }
    return engine ? EXIT_DEAD : 1;
}
