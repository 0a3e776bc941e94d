// SPDX-License-Identifier: Apache-2.0
/* | A server's batches: files of requests that are run one after the other, alongside online
 * requests, and continue after a restart. The store (store.h) has their state; a job (job.h) runs
 * the current one.
 *
 *     created: VALIDATING -> its turn: every line is checked -> IN_PROGRESS -> its job
 *       -> all answers stored: FINALIZING -> output and error file -> COMPLETED, EXPIRED or
 * CANCELLED
 *
 * Thread: that of the calls. Disk access is done on the thread pool. */
#ifndef SLUICE_SERVER_JOBS_BATCHES_H
#define SLUICE_SERVER_JOBS_BATCHES_H

#include "server/call/call.h"
#include "server/store/store.h"

enum { BATCH_MAX_LINES = 50000 };

/* The purpose of a batch's input file, and the only completion window that a batch may have. */
#define BATCH_PURPOSE "batch"
#define BATCH_WINDOW "24h"

struct batches;

struct batches_options {
    struct store *store;
    struct call_server *calls; // its host has a thread pool
    size_t max_line_bytes;
    int64_t retention_s;     // how long files, and batches that have ended, are kept; 0: for ever
    void (*wake)(void *arg); // calls batches_turn soon, from a safe place (see job.h)
    void *arg;
};

struct batches_counts {
    struct store_usage usage; // as last read, at most a few seconds ago
    bool has_usage;
    int64_t n_completed, n_failed; // numbers of lines since startup
    int64_t prompt_tokens, computed_tokens, output_tokens;
    /* The running batch; id "": none. */
    char id[STORE_ID_BYTES];
    int64_t n_total, n_done;
};

struct batches *batches_open(const struct batches_options *options);
void batches_close(struct batches *b); // after the last call and the pool's last task; accepts NULL

/* The model has been loaded: continues the batches of an earlier process. */
void batches_start(struct batches *b);
/* The store has a new batch, or one has just become CANCELLING. */
void batches_add(struct batches *b, const char *id);
void batches_cancel(struct batches *b, const char *id);

void batches_turn(struct batches *b);              // call it after call_on_wake
void batches_tick(struct batches *b, int64_t now); // call it about every second
/* The server drains: nothing more is submitted, and lines without an answer are left for the next
 * start. */
void batches_stop(struct batches *b);

void batches_count(const struct batches *b, struct batches_counts *out);

#endif
