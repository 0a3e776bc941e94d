// SPDX-License-Identifier: Apache-2.0
/* The engine: token ids in, token ids out. A thread of its own runs the scheduler and rank 0's
 * backend. The engine never sees text, a request's JSON, or a socket.
 *
 * The caller creates a request, the engine owns it from engine_submit until its terminal event has
 * been drained, and the caller frees it afterwards. Output arrays are the caller's memory, sized
 * for max_tokens when the request is created. The engine appends and publishes a length, so a slow
 * reader never blocks the engine.
 * Thread: engine_submit, engine_cancel, engine_stop, engine_stats, engine_reset_prefix_cache,
 * engine_set_adapter from any thread, but calls for one request must come from one thread or be
 * ordered by the caller; engine_drain on one thread (the event loop); engine_check any;
 * engine_open, engine_follow, engine_stop_all and engine_close with no concurrent calls. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include "engine/schedule/request.h"

struct engine;
struct engine_info;    // engine/info.h
struct engine_options; // engine/options.h

enum engine_state { ENGINE_READY, ENGINE_FAILED, ENGINE_CLOSING };

enum { N_STEP_SIZES = 14 };

/* The upper bound of bucket i of the histogram of step sizes; 0 for the last bucket, which has
 * none. The size of a step counts its generated tokens and its prompt tokens, whether computed or
 * found in the cache. */
static inline int32_t engine_step_bound(int32_t i)
{
    if (i == N_STEP_SIZES - 1) {
        return 0;
    }
    return i == 0 ? 1 : 4 << i;
}

/* A snapshot at the end of the engine's last turn, except for the counts of requests submitted
 * since. */
struct engine_stats {
    enum engine_state state;
    int32_t n_running, n_waiting; // sequences
    /* Submitted but not yet running or waiting, with their prompt tokens; always exact. */
    int32_t n_submitted;
    int64_t submitted_tokens;
    int32_t n_blocks, n_blocks_held, n_blocks_idle; // idle: cached without a holder; rest: free
    int32_t n_blocks_kept;                          // kept because of hints
    int32_t n_pages, n_pages_reserved;              // of windows, if they have pages of their own
    int64_t n_steps, n_rows;
    int64_t step_tokens, step_seqs;   // tokens and sequences, summed over all steps
    int64_t step_sizes[N_STEP_SIZES]; // steps by size class, see engine_step_bound
    int64_t prompt_tokens, generated_tokens, preemptions;
    int64_t prefix_queries, prefix_hits; // tokens
    int64_t
        prefix_recomputed; // tokens found in the cache without the state or the window after them
    int32_t n_snapshots_taken;
    int64_t n_finished[N_FINISH_REASONS];
    int64_t n_corrupted; // requests ended because of NaN or infinite logits
    int64_t spec_drafts, spec_draft_tokens, spec_accepted_tokens;
    int64_t spec_accepted_per_pos[MAX_DRAFTS];
    int64_t waiting_tokens; // prompt tokens of the n_waiting sequences
    /* Adapters of sequences, a bit each: 0 for adapter 1. */
    uint64_t adapters_running, adapters_waiting;
    int32_t n_nodes_alive;
    char failure[160]; // why the state is ENGINE_FAILED, if known
};

/* The share of the KV cache that sequences hold: of blocks or of pages of windows, whichever is
 * scarcer. */
static inline double engine_stats_usage(const struct engine_stats *s)
{
    const double blocks = s->n_blocks > 0 ? (double)s->n_blocks_held / s->n_blocks : 0.0;
    const double pages = s->n_pages > 0 ? (double)s->n_pages_reserved / s->n_pages : 0.0;
    return blocks > pages ? blocks : pages;
}

/* Everything that is not running, whether or not the engine has seen it. */
static inline int32_t engine_stats_queued(const struct engine_stats *s)
{
    return s->n_waiting + s->n_submitted;
}

/* Checks the options before anything is loaded: reads config.json and lists the weight files. */
enum status engine_check(const struct engine_options *options, struct err *err);

/* Loads the model and starts the thread. Blocks; `err` gets one sentence. */
enum status engine_open(const struct engine_options *options, struct engine **out, struct err *err);
const struct engine_info *engine_info(const struct engine *e);

/* Adds an end-of-text id; call it before the first request. It exists for the tokenizer's id, which
 * the config of many fine-tuned models omits. -1, known ids, and ids after the first MAX_EOS are
 * ignored. */
void engine_add_eos(struct engine *e, int32_t id);

/* For every node except 0, which takes no requests: executes the steps that node 0 sends until node
 * 0 says goodbye (OK), or until the set of nodes or a device is lost. */
enum status engine_follow(struct engine *e, struct err *err);

/* Takes ownership of the request. ERR_BUSY: the queue is full. ERR_INVALID with `err` set: it can
 * never run (too long for the model or the KV cache, more samples than the engine supports,
 * parameters out of range, tokens from a model without a head). On failure the caller keeps it. */
enum status engine_submit(struct engine *e, struct engine_request *r, struct err *err);

/* Asynchronous. Harmless if the request or sample has already ended, but must not be called once
 * its terminal event has been drained. engine_stop ends one sample with FINISH_STOP. */
void engine_cancel(struct engine *e, struct engine_request *r);
void engine_stop(struct engine *e, struct engine_request *r, int32_t sample);

/* Calls on_event once for each request with news: new tokens, ended samples, or done. After a call
 * that shows r->done, the caller owns the request. */
void engine_drain(struct engine *e, void (*on_event)(struct engine_request *r, void *arg),
                  void *arg);
/* The same for up to `max` requests, those that have waited longest. True: more requests have news,
 * and there will be no wake for these. */
bool engine_drain_some(struct engine *e, int max,
                       void (*on_event)(struct engine_request *r, void *arg), void *arg);

void engine_stats(struct engine *e, struct engine_stats *out);
void engine_reset_prefix_cache(struct engine *e); // drops idle cached blocks

/* Puts the adapter in this folder, which PEFT wrote, in the place of adapter `adapter` (as in
 * engine_request), or of none (options.spare_adapters). Until this returns, no request may have
 * that number. Blocks until the steps in flight have ended; from any thread. `name` is for
 * messages. */
enum status engine_set_adapter(struct engine *e, int32_t adapter, const char *name, const char *dir,
                               struct err *err);

/* Ends all requests with FINISH_CANCELLED and joins the thread. Drain once more afterwards, for the
 * terminal events. */
void engine_stop_all(struct engine *e);
/* After engine_stop_all and the last drain. Accepts NULL. */
void engine_close(struct engine *e);

#endif
