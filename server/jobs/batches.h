// SPDX-License-Identifier: Apache-2.0
/* The batches of a server: files of requests that are run, one after the other, beside everything
 * else, and go on after a restart. The store (store.h) has what they are; a job (job.h) runs the
 * one whose turn it is.
 *
 *     created: VALIDATING -> its turn: every line is checked -> IN_PROGRESS -> its job
 *       -> all answers kept: FINALIZING -> output and error file -> COMPLETED, EXPIRED or CANCELLED
 *
 * Thread: that of the calls. What waits for the disk is on the pool. */
#ifndef SLUICE_SERVER_JOBS_BATCHES_H
#define SLUICE_SERVER_JOBS_BATCHES_H

#include "server/call/call.h"
#include "server/store/store.h"

enum { BATCH_MAX_LINES = 50000 };

struct batches;

struct batches_options {
    struct store *store;
    struct call_server *calls; // its host has a pool
    size_t max_line_bytes;
    int64_t retention_s;     // of files, and of batches that have ended; 0: for ever
    void (*wake)(void *arg); // calls batches_turn soon, from where it is safe (see job.h)
    void *arg;
};

struct batches_counts {
    struct store_usage usage; // as of the last look
    bool has_usage;
    int64_t n_completed, n_failed; // lines, since the start
    int64_t prompt_tokens, computed_tokens, output_tokens;
    /* The batch that runs; id "": none. */
    char id[STORE_ID_BYTES];
    int64_t n_total, n_done;
};

struct batches *batches_open(const struct batches_options *options);
void batches_close(struct batches *b); // after the last call and the pool's last work; accepts NULL

/* The model is loaded: goes on with what an earlier process has left. */
void batches_start(struct batches *b);
/* The store has a new one; or one that has just become CANCELLING. */
void batches_add(struct batches *b, const char *id);
void batches_cancel(struct batches *b, const char *id);

void batches_turn(struct batches *b);              // after call_on_wake
void batches_tick(struct batches *b, int64_t now); // every second or so
/* The server drains: nothing more is submitted, and what has no answer is left for the next start.
 */
void batches_stop(struct batches *b);

void batches_count(const struct batches *b, struct batches_counts *out);

#endif
