// SPDX-License-Identifier: Apache-2.0
/* The engine's own state, shared by the files that open and run it. Private to this folder.
 * Thread: as stated per part. */
#ifndef SLUICE_ENGINE_ENGINE_STATE_H
#define SLUICE_ENGINE_ENGINE_STATE_H

#include "engine/base/buf.h"
#include "engine/cluster/nodes.h"
#include "engine/cluster/ranks.h"
#include "engine/constraint.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/logprobs.h"
#include "engine/options.h"
#include "engine/schedule/scheduler.h"
#include "engine/speculate/spec.h"
#include "engine/step_build.h"

enum { N_STEPS = 2 };

enum message_kind { MESSAGE_CANCEL, MESSAGE_STOP, MESSAGE_RESET_CACHE };

/* Holds values instead of pointers, because the request may have ended before the message is
 * read. */
struct message {
    enum message_kind kind;
    uint64_t order;
    int32_t sample;
};

/* For models with recurrent state: engine_states.c. */
struct engine_states {
    int32_t block, interval, n_snapshots; // block 0: the model has no state
    struct state_sizes sizes;             // bytes per rank
};

/* For models with layers that see only a window: engine_windows.c. */
struct engine_windows {
    int32_t window, chunk; // the largest ones; both 0: all layers keep all tokens
    int32_t n_pages;       // 0: these layers have no pages of their own
    size_t page_bytes;     // per rank
};

/* Memory as divided between blocks and window pages. */
struct engine_split {
    int64_t n_blocks, n_pages;
};

/* engine_broken.c: a row whose results are not numbers, until the log says so. */
struct broken_row {
    bool waits;       // the log has yet to say in which layer this began
    bool told, named; // told: the log has an entry; named: it names the layer
    bool repeatable;  // the row can be computed again
    /* Turns during which only one step is in flight, so that the next such row of a recurrent model
     * can be computed again. */
    int32_t careful_turns;
    int32_t layer; // valid if named; equal to the number of layers: after the last one
    struct pass_row row;
    int32_t adapter; // of its sequence
};

struct engine {
    struct engine_options options; // constant after open
    struct engine_info info;
    struct model_config config;
    struct checkpoint *checkpoint, *draft_checkpoint[MAX_DRAFT_MODELS];
    struct adapters *adapters;                           // NULL: none
    struct model_config *draft_config[MAX_DRAFT_MODELS]; // [spec.options.n_models]
    char model_dir[4096];

    /* Used by the engine thread only. */
    struct ranks ranks;
    struct scheduler scheduler;
    struct spec spec;
    struct spec_candidate *candidates; // [max_lanes]
    struct constraint *constraints;    // [max_sequences], by sequence.index
    struct logprobs_scratch scratch;
    struct planned_step steps[N_STEPS];
    struct step_sizes sizes; // sizes of the largest step
    struct tree_moves moves;
    int32_t n_inflight; // steps submitted but not committed
    int32_t next_slot;  // slot of the next step to plan
    // The step that has been submitted except for its draws; NULL: none.
    struct planned_step *draws_wait;
    int32_t n_vocab_used;
    struct engine_states states;   // constant after open
    struct engine_windows windows; // the same
    struct engine_request **live;  // hash table with open addressing, keyed by order
    uint32_t live_mask;
    const struct kv_choice *kv[MAX_KV_SETS]; // storage format of each KV set
    int64_t next_deadline_ns;
    int64_t generated_tokens, prompt_tokens, n_steps, n_rows, step_tokens, step_seqs;
    int64_t step_sizes[N_STEP_SIZES];
    uint32_t adapter_versions[MAX_ADAPTERS + 1]; // by a request's `adapter`: 0, or how many others
                                                 // have had its place
    int32_t n_accepted; // sequences taken from the inbox since the stats were last published
    int64_t accepted_tokens;
    int64_t last_commit_ns; // when the previous step was committed, if the device has been busy
                            // since then; otherwise 0
    double rows_per_s;      // measured on steps full of prompt rows; 0: none yet
    int64_t n_finished[N_FINISH_REASONS], n_corrupted;
    struct broken_row broken;
    enum status failed; // sticky
    bool has_news;      // the outbox has become non-empty, and nobody has been woken for that
    struct buf wire;    // the step in the form in which it is sent to the other nodes
    pthread_t thread;
    bool thread_runs;

    /* Used by any thread. */
    struct queue inbox, outbox;
    _Atomic int64_t n_reserved; // sequences submitted and not yet freed
    _Atomic uint64_t next_order;
    _Atomic int32_t state; // enum engine_state
    pthread_mutex_t message_lock;
    struct message *messages, *taking; // filled by senders; the engine thread swaps the two
    size_t n_messages, message_cap, taking_cap;
    struct adapter_change *adapter_change; // NULL: none; like the rest under message_lock
    pthread_cond_t adapter_changed;
    bool adapters_fixed; // the engine thread has ended
    pthread_mutex_t stats_lock;
    struct engine_stats stats; // written by the engine thread; submitters also write n_submitted
};

/* engine_open.c: everything before the thread starts and after it ends. */
enum status engine_load(struct engine *e, struct err *err);
void engine_unload(struct engine *e);

/* engine_models.c: reads configs, checkpoints and ranks before anything is loaded. engine_fit_draft
 * limits a draft model's positions to the length served; true if that changed its rope tables. */
enum status engine_read_models(struct engine *e, struct err *err);
bool engine_fit_draft(struct engine *e, int32_t draft);

/* engine_sizes.c, after the weights are loaded: fills in the sizes in e->info, then the limits of
 * the scheduler and the steps. */
enum status engine_choose_sizes(struct engine *e, struct err *err);
void engine_limits(const struct engine *e, struct scheduler_limits *out);
/* The rows that buffers hold. A device pads the rows of large passes (to a multiple of 16,
 * cuda_pass.c); the largest pass must not be the one without room for it. */
int32_t engine_buffer_rows(const struct engine *e);
/* The rows of the output head, for the sizes of buffers: encoders have none. */
int32_t engine_head_rows(const struct engine *e);
struct step_sizes engine_step_sizes(const struct engine *e);

/* The value of an option, or its default if it is 0. */
static inline int32_t engine_option(int32_t value, int32_t otherwise)
{
    return value > 0 ? value : otherwise;
}

/* engine_states.c; does nothing for models without recurrent state. In the order of the calls:
 * _begin, once weights and block size are known; _fit_lanes, _of_lanes and _choose, to choose the
 * numbers of sequences and snapshots; _limits; and _open, which allocates a rank's memory. */
enum status engine_states_begin(struct engine *e, struct err *err);
void engine_states_fit_lanes(struct engine *e, size_t memory);
size_t engine_states_of_lanes(const struct engine *e);
/* Chooses the number of snapshots, and subtracts their memory from *budget, the memory for KV
 * blocks of per_block bytes each. */
enum status engine_states_choose(struct engine *e, size_t *budget, size_t per_block,
                                 struct err *err);
void engine_states_limits(const struct engine *e, struct scheduler_limits *out);

/* engine_windows.c; does nothing for models without windows. In the order of the calls: _begin,
 * once weights are known; _choose, which divides the budget, given the bytes of a block of all
 * layers and the most blocks that are of use (n_pages 0: undivided); _mark, which describes the
 * layers to the backend; and _limits. */
void engine_windows_begin(struct engine *e);
enum status engine_windows_choose(struct engine *e, size_t budget, size_t per_block, int64_t most,
                                  struct engine_split *out, struct err *err);
void engine_windows_mark(const struct engine *e, const struct model *m, struct kv_layer *layers);
void engine_windows_limits(const struct engine *e, struct scheduler_limits *out);
enum status engine_states_open(const struct engine *e, const struct model *m, struct err *err);

/* engine_kv.c, after the models are loaded. engine_kv_choose: the format of each set.
 * engine_kv_set: the description of a model's set; the caller provides the array of layers. */
enum status engine_kv_choose(struct engine *e, struct err *err);
void engine_kv_set(const struct engine *e, const struct model *m, struct kv_layer *layers,
                   struct kv_set_desc *out);

/* engine_requests.c, for the engine thread. */
struct engine_request *requests_any(const struct engine *e); // some live request; NULL: none
// takes new requests, and messages about earlier ones
void requests_take(struct engine *e, int64_t timeout_ns);
void requests_expire(struct engine *e, int64_t now_ns);
/* Adds the request to the outbox, the list of requests with news. After `ended`, the request must
 * not be accessed. */
void requests_announce(struct engine *e, struct engine_request *r, bool ended);
/* Calls options.wake if the outbox has become non-empty since the last call. */
void requests_deliver(struct engine *e);
void requests_finish(struct engine *e, struct sequence *seq, enum finish_reason reason);
/* Ends the live sequences of a request; `sample` -1: all of them. */
void requests_end(struct engine *e, struct engine_request *r, int32_t sample,
                  enum finish_reason reason);
void requests_fail(struct engine *e, struct engine_request *r, enum status st, const char *text);
void requests_freed(struct engine *e); // the slot of a sequence is free again

/* engine_propose.c: chooses, before each plan, the drafts of each sequence. */
void engine_propose(struct engine *e);

/* engine_measure.c: times passes of the target and the draft models on all ranks before the first
 * request, and fits cost curves. */
enum status spec_measure(struct ranks *ranks, const struct scheduler_limits *limits,
                         const struct spec_options *options, int32_t n_vocab_used,
                         struct spec_costs *out);

/* engine_nodes.c. engine_on_ranks: runs work on all ranks of this node; err names the cause of a
 * failure. engine_send_step: sends a whole step or, while its trees are still growing, the draft
 * models' pass `level`; returns OK at once with a single node. */
enum status engine_on_ranks(struct engine *e, enum status (*work)(struct rank *r, void *arg),
                            struct err *err);
enum status engine_agree(struct engine *e, int64_t *least, struct err *err);
enum status engine_send_step(struct engine *e, const struct step *st, const struct pass *level);
// sends the masks of a step whose draws waited for them
enum status engine_send_draws(struct engine *e, const struct step *st);
/* engine_send_step for a level, as a callback of step_grow_trees; arg: the engine. */
enum status engine_send_level(const struct step *st, const struct pass *level, void *arg);
bool engine_set_lost(struct engine *e, struct err *why);
/* Any thread. Records the cause of ENGINE_FAILED; the first one is kept. */
void engine_note_failure(struct engine *e, const char *why);
int32_t engine_nodes_alive(const struct engine *e); // the number includes this node; any thread
void engine_watch_nodes(struct engine *e);
void engine_unwatch_nodes(struct engine *e);

/* engine_fail.c, for the engine thread. engine_fail ends everything. If a node is lost, the devices
 * fail as well; the lost node is then reported, since it is the cause. engine_fail_constrained: the
 * grammar allows no token, or cannot decide within its limits; a token that it does not allow must
 * not be drawn instead. */
void engine_fail(struct engine *e, enum status st, const char *text);
void engine_fail_constrained(struct engine *e, struct sequence *seq);

/* engine_broken.c, for the engine thread. engine_fail_broken: an out row's logits, or its hidden
 * states, contain NaN or infinity, so nothing drawn or pooled from them is a valid answer.
 * engine_explain_broken: logs, once, in which layer this began. It must come before the next plan,
 * which may give the row's lane to another sequence, and not while draws wait; if broken.waits, the
 * steps in flight must have been committed. engine_is_finite: true if n values are numbers. */
void engine_fail_broken(struct engine *e, struct sequence *seq, const struct planned_step *ps,
                        int32_t out_row);
void engine_explain_broken(struct engine *e);
bool engine_is_finite(const float *x, int32_t n);

/* engine_adapters.c, for the engine thread: replaces an adapter if a caller of engine_set_adapter
 * waits for that. engine_fix_adapters: the thread has ended, and no caller may wait any longer. */
void engine_change_adapter(struct engine *e);
void engine_fix_adapters(struct engine *e);

/* engine_commit.c: waits for the oldest step in flight and hands its results to the requests. */
void engine_commit_step(struct engine *e);

/* engine.c. One turn takes messages, submits a step, and commits the oldest step if two are in
 * flight. With options.no_thread the test calls engine_turn itself. */
void *engine_main(void *arg);
void engine_turn(struct engine *e);

#endif
