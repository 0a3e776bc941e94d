// SPDX-License-Identifier: Apache-2.0
/* `sluice bench-engine`: tokens per second of the engine without a server. The caller knows how to
 * open an engine from command-line arguments; the benchmark knows what to run on it.
 * Thread: main. */
#ifndef SLUICE_BENCH_ENGINE_BENCH_ENGINE_H
#define SLUICE_BENCH_ENGINE_BENCH_ENGINE_H

#include "engine/options.h"

struct engine_opener {
    /* Fills in the options for engine_open from the arguments that the benchmark does not know
     * (argv[0] is the command's name). Memory that the options point to stays valid until
     * `release`, which is always called, even after an error here. */
    enum status (*configure)(int argc, char **argv, struct engine_options *out, void *arg,
                             struct err *err);
    void (*release)(struct engine_options *options, void *arg);
    void *arg;
};

/* Returns the exit code: 0 when every figure was measured, 1 on an error, 2 for bad options. */
int bench_engine(int argc, char **argv, const struct engine_opener *opener);

#endif
