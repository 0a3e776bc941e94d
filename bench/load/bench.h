// SPDX-License-Identifier: Apache-2.0
/* `sluice bench`: a load generator for any server that speaks the OpenAI API. It knows nothing of
 * our server: it sees HTTP and event streams only.
 * Thread: main; one per process (it takes SIGINT for its run). */
#ifndef SLUICE_BENCH_LOAD_BENCH_H
#define SLUICE_BENCH_LOAD_BENCH_H

/* Returns 0 when every request was answered, 1 when some failed, 2 for bad options. */
int cmd_bench(int argc, char **argv);

#endif
