// SPDX-License-Identifier: Apache-2.0
/* The engine: token ids in, token ids out. Its own thread runs the scheduler and rank 0's backend;
 * it never sees text, a request's JSON, or a socket.
 *
 * The caller creates a request, the engine owns it from engine_submit until its terminal event has
 * been drained, and the caller frees it afterwards. Output arrays are the caller's memory, sized
 * for max_tokens when the request is created. The engine appends and publishes a length, so a slow
 * reader never blocks the engine.
 * Thread: engine_submit, engine_cancel, engine_stop, engine_stats, engine_reset_prefix_cache from
 * any thread, but calls for one request must come from one thread or be ordered by the caller;
 * engine_drain on one thread (the event loop); engine_check any; engine_open, engine_follow,
 * engine_stop_all and engine_close with no concurrent calls. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include "engine/device/backend.h"
#include "engine/device/params.h"
#include "engine/schedule/request.h"

struct engine;
struct nodes; // engine/cluster/nodes.h

/* The operator's options, with the names and meanings of the command line. The option table
 * (server/cli/config_table.c) defines the accepted values. 0 and NULL: chosen at startup, as
 * described for each. */
#define ENGINE_QUANTIZATIONS "fp8|int4" // quantisation at load, see enum requantise_kind

struct engine_options {
    const char *model;         // folder with config.json
    const char *hf_overrides;  // JSON object merged over config.json, or NULL
    const char *load_format;   // "dummy": reads only config.json and generates random weights
    const char *check_weights; // "off", "sampled", "full": how much of the checkpoint is checked
    const char *dtype; // of weights and KV, as config.json writes it; "auto": the checkpoint's
    const char *quantization;   // NULL: none; "fp8" or "int4": quantise weights that are not
    const char *kv_cache_dtype; // of the KV cache: kv_choice_find; "auto": as the checkpoint says
    const char *activation_quantization; // "none": do not round inputs of quantised weights
    int32_t max_model_len;               // 0: the model's own limit, as far as memory allows
    int32_t max_num_seqs;                // lanes; 0: 256 (CPU: 64)
    int32_t max_num_batched_tokens;      // rows per step; 0: 8192 (CPU: 2048)
    int32_t block_size;                  // tokens of a KV block; 0: the backend's preference
    int32_t num_gpu_blocks_override;     // KV blocks; 0: from memory
    int64_t kv_cache_memory_bytes;       // 0: from gpu_memory_utilization
    double gpu_memory_utilization;       // share of free device memory for everything; 0: 0.9 (CPU:
                                         // 0.4)
    /* For models with recurrent state. state_snapshots: snapshots in the prefix cache; 0: from
     * memory, below 0: none. mamba_cache_mode: the same in vLLM's words ("none", or another).
     * mamba_block_size: tokens between snapshots; 0: 512. */
    int32_t state_snapshots;
    const char *mamba_cache_mode;
    int32_t mamba_block_size;
    bool enable_prefix_caching, enable_chunked_prefill;
    bool disable_cascade_attn; // read a shared prefix once per sequence
    /* A request whose prefix is cached may overtake earlier ones, each by at most this many
     * computed prompt tokens. 0: never; below 0: what 10 s of prompt processing compute. */
    int64_t prefix_overtake_tokens;
    const char *speculative_config; // JSON in vLLM's format; NULL: none
    int32_t tensor_parallel_size;   // ranks over all nodes; 0: 1
    struct backend_options backend; // device and operator options; the engine sets dtype and ranks

    /* Set by the caller of engine_open. */
    int32_t max_waiting; // sequences in the queue; 0: 4096
    bool synthetic;      // the caller knows that synthetic acceptance generates made-up text
    /* Opens the backend of rank `rank`; called once per rank. */
    enum status (*open_backend)(const struct backend_options *options, struct backend **out,
                                struct err *err, void *arg);
    void *open_arg;
    struct nodes *nodes; // the processes that share the ranks; NULL: only this one
    /* Ends the ranks' collectives (those of backend.comm) with an error, from any thread. NULL: the
     * ranks have none. */
    void (*abort_ranks)(struct comm *comm);
    void (*on_lost)(void *arg); // another node is lost; called with callback_arg on any thread; may
                                // be NULL
    void (*on_progress)(double share, const char *what, void *arg); // while loading; may be NULL
    void (*wake)(void *arg); // called by the engine thread when the outbox becomes non-empty
    void *callback_arg;
    bool no_thread;      // tests: the caller runs the turns (engine_state.h)
    int32_t state_block; // tests: positions between state boundaries; 0: STATE_BLOCK
};

/* The loaded model; constant after engine_open, except for engine_add_eos. */
struct engine_info {
    char model_type[32];
    enum dtype dtype;
    int32_t vocab, hidden, max_model_len, block_tokens, n_blocks, max_num_seqs, max_rows;
    int32_t max_sequences; // samples waiting or running at a time, over all requests
    int32_t n_eos;
    int32_t eos[MAX_EOS];            // from generation_config.json, config.json and the tokenizer
    struct sampling_params defaults; // from generation_config.json
    char device[96];
    int64_t n_parameters;
    size_t weight_bytes, kv_bytes;
    int32_t n_snapshots; // recurrent state; state_bytes includes all lanes, 0: there is none
    size_t state_bytes;
    const char *kv_cache_dtype; // the KV format by its name on the command line
    int32_t n_ranks, n_nodes;
    bool headless;         // the checkpoint has no output head: only requests with pooling
    int32_t n_spec_tokens; // most drafts per sequence and step; 0: no speculation
};

enum engine_state { ENGINE_READY, ENGINE_FAILED, ENGINE_CLOSING };

enum { N_STEP_SIZES = 14 };

/* Upper bound on the tokens of class i of the histogram of step sizes: prompt tokens computed or
 * found in the cache, and tokens generated in one step. The last class is unbounded (0). */
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
    int64_t n_steps, n_rows;
    int64_t step_tokens, step_seqs;   // tokens and sequences, summed over all steps
    int64_t step_sizes[N_STEP_SIZES]; // steps by size class, see engine_step_bound
    int64_t prompt_tokens, generated_tokens, preemptions;
    int64_t prefix_queries, prefix_hits; // tokens
    int64_t prefix_recomputed; // tokens found in the cache whose recurrent state was missing
    int32_t n_snapshots_taken;
    int64_t n_finished[N_FINISH_REASONS];
    int64_t n_corrupted; // requests ended because of NaN or infinite logits
    int64_t spec_drafts, spec_draft_tokens, spec_accepted_tokens;
    int64_t spec_accepted_per_pos[MAX_DRAFTS];
    int64_t waiting_tokens; // prompt tokens of the n_waiting sequences
    int32_t n_nodes_alive;
    char failure[160]; // why the state is ENGINE_FAILED, if known
};

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

/* Adds an end-of-text id, before the first request: the tokenizer's, which the config of many
 * fine-tuned models omits. -1, known ids, and ids beyond the maximum are ignored. */
void engine_add_eos(struct engine *e, int32_t id);

/* On every node except 0, instead of requests: executes node 0's steps until it says goodbye (OK),
 * or the set or a device is lost. */
enum status engine_follow(struct engine *e, struct err *err);

/* Takes ownership of the request. ERR_BUSY: the queue is full. ERR_INVALID with `err` set: it can
 * never run (too long for the model or the KV cache, more samples than the engine supports,
 * parameters out of range, tokens from a model without a head). On failure the caller keeps it. */
enum status engine_submit(struct engine *e, struct engine_request *r, struct err *err);

/* Asynchronous. Harmless if the request or sample has ended meanwhile, but not after its terminal
 * event was drained. engine_stop ends one sample with FINISH_STOP. */
void engine_cancel(struct engine *e, struct engine_request *r);
void engine_stop(struct engine *e, struct engine_request *r, int32_t sample);

/* Calls on_event once for each request with news: new tokens, ended samples, or done. After a call
 * that shows r->done, the caller owns the request. */
void engine_drain(struct engine *e, void (*on_event)(struct engine_request *r, void *arg),
                  void *arg);

void engine_stats(struct engine *e, struct engine_stats *out);
void engine_reset_prefix_cache(struct engine *e); // drops idle cached blocks

/* Ends everything that runs (FINISH_CANCELLED; drain once more for the terminal events), and joins
 * the thread. */
void engine_stop_all(struct engine *e);
/* After engine_stop_all and the last drain. Accepts NULL. */
void engine_close(struct engine *e);

#endif
