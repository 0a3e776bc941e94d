// SPDX-License-Identifier: Apache-2.0
/* `sluice bench`: a load generator for any server with an OpenAI-compatible API. It shares no code
 * with our server beyond HTTP and event streams.
 * Thread: main; one per process (it handles SIGINT
 * while it runs). */
#ifndef SLUICE_BENCH_LOAD_BENCH_H
#define SLUICE_BENCH_LOAD_BENCH_H

/* Returns 0 when every request was answered, 1 when some failed, 2 for bad options. */
int cmd_bench(int argc, char **argv);

#endif
