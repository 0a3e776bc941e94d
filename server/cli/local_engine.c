// SPDX-License-Identifier: Apache-2.0
/* An engine in the program's own process, for commands without a server. Its thread wakes
 * the program by a byte in a pipe. */
#include "server/cli/local_engine.h"

#include "engine/base/log.h"
#include "engine/cluster/nodes.h"
#include "engine/engine.h"
#include "server/cli/config_load.h"
#include "server/cli/devices.h"
#include "server/cli/engine_config.h"
#include "server/cli/model_choice.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

static const struct call_host host = {0};

static void wake(void *arg)
{
    local_engine_wake(arg);
}

void local_engine_wake(struct local_engine *l)
{
    if (!atomic_exchange(&l->awake, true)) {
        ssize_t n = write(l->in, "", 1);
        (void)n; // a single byte always fits
    }
}

/* True if the engine has news. The flag is cleared after the byte was read, so that a wake
 * between the two is not lost. */
bool local_engine_wait(struct local_engine *l, int fd, int timeout_ms)
{
    struct pollfd fds[] = {{.fd = l->out, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    poll(fds, 2, timeout_ms);
    if (!fds[0].revents) {
        return false;
    }
    char byte;
    while (read(l->out, &byte, 1) < 0 && errno == EINTR) {
    }
    atomic_store(&l->awake, false); // news after this point causes another wake
    return true;
}

static enum status open_pipe(struct local_engine *l, struct err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return err_set(err, ERR_IO, "no pipe: %s", strerror(errno));
    }
    l->out = ends[0];
    l->in = ends[1];
    return OK;
}

/* Loads in the same order as `sluice serve`: model, options, engine, tokenizer and template. */
static enum status open_engine(struct local_engine *l, const struct local_command *command,
                               struct err *err)
{
    TRY(model_choose(&l->config, false, err));
    TRY(model_find(&l->config, err));
    TRY(engine_config(&l->config, &l->options, err));
    if (l->options.nodes && nodes_rank(l->options.nodes) > 0) {
        return err_set(err, ERR_INVALID,
                       "node-rank: 'sluice %s' must be node 0; the other nodes run 'sluice serve'",
                       command->name);
    }
    l->options.offline = command->offline;
    l->options.wake = wake;
    l->options.callback_arg = l;
    TRY(engine_open(&l->options, &l->calls.engine, err));
    TRY(command->open_model(&l->calls.model, &l->config, engine_info(l->calls.engine), err));
    if (l->calls.model.tok) {
        engine_add_eos(l->calls.engine, tokenizer_eos(l->calls.model.tok));
    }
    return OK;
}

/* Logs are limited to warnings, since standard error belongs to the command. */
enum status local_engine_open(struct local_engine *l, int argc, char **argv,
                              const struct local_command *command, struct err *err)
{
    *l = (struct local_engine){.out = -1, .in = -1};
    log_set_level(LOG_WARN);
    TRY(open_pipe(l, err));
    TRY(config_load(&l->config, argc, argv, environ, err));
    config_set_log_level(&l->config, true);
    call_server_init(&l->calls, &l->config, &host);
    enum status st = open_engine(l, command, err);
    if (st != OK && l->options.nodes) {
        nodes_fail(l->options.nodes, err->text);
    }
    return st;
}

/* If the engine has failed, the exit status says so, even if all answers were complete. */
int local_engine_close(struct local_engine *l, int rc)
{
    if (l->calls.engine) {
        struct engine_stats stats;
        engine_stats(l->calls.engine, &stats);
        if (stats.state == ENGINE_FAILED) {
            rc = 2;
        }
    }
    engine_close(l->calls.engine);
    devices_release(&l->options);
    call_model_close(&l->calls.model);
    call_server_deinit(&l->calls);
    config_deinit(&l->config);
    close(l->out);
    close(l->in);
    return rc;
}
