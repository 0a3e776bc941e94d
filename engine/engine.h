// SPDX-License-Identifier: Apache-2.0
/* The engine: token ids in, token ids out. One thread of its own runs the scheduler and rank 0's
 * backend; it never sees text, JSON of a request, or a socket.
 *
 * A request is made by the caller, owned by the engine from engine_submit until its terminal event
 * has been drained, and freed by the caller afterwards. Output arrays are the caller's memory,
 * sized for max_tokens when the request is made; the engine appends and publishes a length, so a
 * slow reader never holds the engine up.
 * Thread: engine_submit, engine_cancel, engine_stop, engine_stats, engine_reset_prefix_cache from
 * any thread, but for one request always the same one, or ordered by the caller; engine_drain on
 * one thread (the loop); engine_check from any; engine_open, engine_follow, engine_stop_all and
 * engine_close with no other call beside them. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include "engine/device/backend.h"
#include "engine/device/params.h"
#include "engine/schedule/request.h"

struct engine;
struct nodes; // engine/cluster/nodes.h

/* The operator's options have the names and the meanings that they have on the command line; which
 * values may come from there is in the option table (server/cli/config_table.c). 0 and NULL: chosen
 * at start, as each says. */
#define ENGINE_QUANTIZATIONS "fp8|int4" // what weights may become: as enum requantise_kind

struct engine_options {
    const char *model;         // folder with config.json
    const char *hf_overrides;  // JSON object over config.json's members, or NULL
    const char *load_format;   // "dummy": config alone, random weights made in place
    const char *check_weights; // "off", "sampled", "full": what of the checkpoint is looked at
    const char *dtype; // of weights and KV, as config.json writes it; "auto": the checkpoint's
    const char *quantization;   // NULL: none; "fp8" or "int4": of weights that are not quantised
    const char *kv_cache_dtype; // of KV alone: kv_choice_find; "auto": as the checkpoint asks
    const char *activation_quantization; // "none": inputs of quantised weights are not rounded
    int32_t max_model_len;               // 0: the model's own, as far as memory allows
    int32_t max_num_seqs;                // lanes; 0: 256 (CPU: 64)
    int32_t max_num_batched_tokens;      // rows of a step; 0: 8192 (CPU: 2048)
    int32_t block_size;                  // tokens of a KV block; 0: the backend's preference
    int32_t num_gpu_blocks_override;     // KV blocks; 0: from memory
    int64_t kv_cache_memory_bytes;       // 0: from gpu_memory_utilization
    double gpu_memory_utilization;       // of free device memory for everything; 0: 0.9 (CPU: 0.4)
    /* Of models with recurrent state: snapshots of it in the prefix cache, 0: from memory, below 0:
     * none; the same by vLLM's word ("none", or another); tokens from one to the next, 0: 512. */
    int32_t state_snapshots;
    const char *mamba_cache_mode;
    int32_t mamba_block_size;
    bool enable_prefix_caching, enable_chunked_prefill;
    bool disable_cascade_attn; // each sequence reads a prefix that it shares for itself
    /* A request whose prefix is cached may go before earlier ones, each of which is overtaken by at
     * most so many computed prompt tokens. 0: none is; below 0: what 10 s of prompts compute. */
    int64_t prefix_overtake_tokens;
    const char *speculative_config; // JSON, vLLM's shape; NULL: none
    int32_t tensor_parallel_size;   // ranks, over all nodes; 0: 1
    struct backend_options backend; // device and the operator's; dtype and ranks are set here

    /* What the opener sets. */
    int32_t max_waiting; // sequences in the queue; 0: 4096
    bool synthetic;      // it knows that a synthetic acceptance makes up text
    /* Opens rank `rank`'s backend; called once per rank. */
    enum status (*open_backend)(const struct backend_options *options, struct backend **out,
                                struct err *err, void *arg);
    void *open_arg;
    struct nodes *nodes; // the processes that share the ranks; NULL: this one alone
    /* Ends the ranks' collectives (those of backend.comm) with an error, from any thread. NULL: the
     * ranks share nothing. */
    void (*abort_ranks)(struct comm *comm);
    void (*on_lost)(void *arg); // callback_arg; any thread: another node is lost; may be NULL
    void (*on_progress)(double share, const char *what, void *arg); // while loading; may be NULL
    void (*wake)(void *arg); // called by the engine thread when the outbox stops being empty
    void *callback_arg;
    bool no_thread;      // tests: the caller takes the turns itself (engine_state.h)
    int32_t state_block; // tests: positions from one boundary of state to the next; 0: STATE_BLOCK
};

/* What the loaded model is: constant after engine_open, but for engine_add_eos. */
struct engine_info {
    char model_type[32];
    enum dtype dtype;
    int32_t vocab, hidden, max_model_len, block_tokens, n_blocks, max_num_seqs, max_rows;
    int32_t max_sequences; // samples that wait or run at once, of all requests together
    int32_t n_eos;
    int32_t eos[MAX_EOS]; // of generation_config.json, config.json and the tokenizer together
    struct sampling_params defaults; // of generation_config.json
    char device[96];
    int64_t n_parameters;
    size_t weight_bytes, kv_bytes;
    int32_t
        n_snapshots; // of recurrent state; state_bytes: with that of all lanes, 0: there is none
    size_t state_bytes;
    const char *kv_cache_dtype; // how keys and values are stored, as operators call it
    int32_t n_ranks, n_nodes;
    bool headless;         // the checkpoint has no head: requests with a pool alone
    int32_t n_spec_tokens; // drafts at a sequence's positions per step at most; 0: no speculation
};

enum engine_state { ENGINE_READY, ENGINE_FAILED, ENGINE_CLOSING };

enum { N_STEP_SIZES = 14 };

/* Steps are counted by their rows: class i has those of at most so many, and of more than the class
 * before; the last has all that are larger, and no bound (0). */
static inline int32_t engine_step_bound(int32_t i)
{
    if (i == N_STEP_SIZES - 1) {
        return 0;
    }
    return i == 0 ? 1 : 4 << i;
}

/* As they were when the engine's last turn ended, but for those that were submitted since. */
struct engine_stats {
    enum engine_state state;
    int32_t n_running, n_waiting; // sequences
    /* Submitted and in none of the two yet, with their prompts' tokens: always exact. */
    int32_t n_submitted;
    int64_t submitted_tokens;
    int32_t n_blocks, n_blocks_held, n_blocks_idle; // idle: cached, without a holder; rest: free
    int32_t n_blocks_kept;                          // those that hints ask to keep
    int64_t n_steps, n_rows;
    int64_t step_sizes[N_STEP_SIZES]; // steps, by engine_step_bound
    int64_t prompt_tokens, generated_tokens, preemptions;
    int64_t prefix_queries, prefix_hits; // tokens
    int64_t prefix_recomputed; // tokens that were found but for the recurrent state behind them
    int32_t n_snapshots_taken;
    int64_t n_finished[N_FINISH_REASONS];
    int64_t n_corrupted; // requests that ended because logits were not numbers
    int64_t spec_drafts, spec_draft_tokens, spec_accepted_tokens;
    int64_t spec_accepted_per_pos[MAX_DRAFTS];
    int64_t waiting_tokens; // prompt tokens of the n_waiting
    int32_t n_nodes_alive;
    char failure[160]; // why the state is ENGINE_FAILED, if that is known
};

/* All that does not run, whether the engine has seen it or not. */
static inline int32_t engine_stats_queued(const struct engine_stats *s)
{
    return s->n_waiting + s->n_submitted;
}

/* What can be said against the options before anything is loaded: reads config.json, and looks
 * which files of weights there are. */
enum status engine_check(const struct engine_options *options, struct err *err);

/* Loads the model and starts the thread. Blocking; `err` gets one sentence. */
enum status engine_open(const struct engine_options *options, struct engine **out, struct err *err);
const struct engine_info *engine_info(const struct engine *e);

/* One more id that ends a text, before the first request: the tokenizer's, which the config of many
 * a fine-tuned model does not name. -1, and what is known or too much, is passed over. */
void engine_add_eos(struct engine *e, int32_t id);

/* On every node but 0, instead of requests: executes node 0's steps until it says goodbye (OK) or
 * the set or a device is lost. */
enum status engine_follow(struct engine *e, struct err *err);

/* Takes the request. ERR_BUSY: the queue is full. ERR_INVALID with `err` set: it can never run
 * (too long for the model or the pool, more samples than the engine holds, params out of range,
 * tokens of a model without a head).
 * On failure it stays the caller's. */
enum status engine_submit(struct engine *e, struct engine_request *r, struct err *err);

/* Messages; harmless when the request or sample has ended meanwhile, but not after its terminal
 * event was drained. engine_stop ends one sample as FINISH_STOP. */
void engine_cancel(struct engine *e, struct engine_request *r);
void engine_stop(struct engine *e, struct engine_request *r, int32_t sample);

/* Calls on_event once for each request with news: new tokens, ended samples, or done. After a call
 * that shows r->done, the request is the caller's. */
void engine_drain(struct engine *e, void (*on_event)(struct engine_request *r, void *arg),
                  void *arg);

void engine_stats(struct engine *e, struct engine_stats *out);
void engine_reset_prefix_cache(struct engine *e); // idle cached blocks are forgotten

/* Ends what runs (FINISH_CANCELLED; drain once more for the terminal events), joins the thread. */
void engine_stop_all(struct engine *e);
/* After engine_stop_all and the last drain. Accepts NULL. */
void engine_close(struct engine *e);

#endif
