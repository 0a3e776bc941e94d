// SPDX-License-Identifier: Apache-2.0
/* The command of this folder.
 * Thread: main. */
#ifndef SLUICE_BENCH_OPS_COMMAND_H
#define SLUICE_BENCH_OPS_COMMAND_H

/* Gets its own arguments (argv[0] is its name) and returns the exit code. */
int cmd_bench_ops(int argc, char **argv);

#endif
