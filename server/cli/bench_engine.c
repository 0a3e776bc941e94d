// SPDX-License-Identifier: Apache-2.0
/* `sluice bench-engine MODEL`: runs bench/engine on an engine opened as `sluice serve` would. */
#include "bench/engine/bench_engine.h"

#include "server/cli/commands.h"
#include "server/cli/config_load.h"
#include "server/cli/devices.h"
#include "server/cli/engine_config.h"
#include "server/cli/model_choice.h"

extern char **environ;

static enum status configure(int argc, char **argv, struct engine_options *out, void *arg,
                             struct err *err)
{
    struct config *c = arg;
    TRY(config_load(c, argc, argv, environ, err));
    TRY(model_choose(c, false, err));
    TRY(model_find(c, err));
    return engine_config(c, out, err);
}

static void release(struct engine_options *options, void *arg)
{
    devices_release(options);
    config_deinit(arg);
}

int cmd_bench_engine(int argc, char **argv)
{
    struct config config = {0};
    const struct engine_opener opener = {
        .configure = configure, .release = release, .arg = &config};
    return bench_engine(argc, argv, &opener);
}
