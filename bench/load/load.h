// SPDX-License-Identifier: Apache-2.0
/* Workloads: the requests and their bodies. A body is a pure function of the options and the
 * request's number, so two runs send the same bytes (except later turns of a conversation, which
 * contain the server's answers).
 * Thread: one owner. */
#ifndef SLUICE_BENCH_LOAD_LOAD_H
#define SLUICE_BENCH_LOAD_LOAD_H

#include "bench/load/options.h"
#include "engine/base/buf.h"

struct sharegpt_item {
    char *prompt;
    int64_t output_len;
};

/* `model` and `o` belong to the caller and outlive the load. */
struct bench_load {
    const struct bench_options *o;
    const char *model; // one name, or several with commas between them
    struct sharegpt_item *items;
    size_t n_items;
    int64_t *shuffled; // [groups * members]: a random order of the requests of shared-prefix; NULL:
                       // the order is not random
};

/* Reads the dataset if there is one. `o` and `model` are borrowed. */
enum status bench_load_init(struct bench_load *load, const struct bench_options *o,
                            const char *model, struct err *err);
void bench_load_deinit(struct bench_load *load);

/* The number of turns of a unit, and how long its client waits before a turn (other than the
 * first). */
int64_t bench_load_turns(const struct bench_load *load, int64_t unit);
int64_t bench_load_think_ns(const struct bench_load *load, int64_t unit, int64_t turn);

/* Appends the body of turn `turn` of unit `unit`. `history` (conversations only) holds the messages
 * so far as JSON text without brackets; the question is appended to it. */
void bench_load_body(const struct bench_load *load, int64_t unit, int64_t turn, struct buf *history,
                     struct buf *body);

/* Writes all requests as a batch file, as accepted by `sluice run-batch` and /v1/batches; "-" is
 * standard output. */
enum status bench_load_write_batch(const struct bench_load *load, const char *path,
                                   struct err *err);

/* Adds the answer to the history. `raw` is text as it stands in the events, still escaped. */
void bench_load_answer(struct buf *history, const char *raw, size_t n_bytes);

/* Draw number `n` of `stream`, uniform in (0, 1). */
double bench_load_uniform(int64_t seed, uint32_t stream, int64_t n);

#endif
