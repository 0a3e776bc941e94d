// SPDX-License-Identifier: Apache-2.0
/* The seam between the engine and a device. A backend is one rank: one stream of work, in order.
 * The engine describes each step with plain host data (`struct pass`); what lies in a KV page, how
 * a weight is packed, how metadata reaches the device and when a graph is replayed are the
 * backend's secrets. cpu/ and cuda/ implement this table; so does the simulation's fake.
 *
 * Memory is taken at the start (the order is in ops.h); from the first step on nothing here
 * allocates, and only step_wait waits. What can fail returns a status; ERR_DEVICE is sticky.
 * Thread: the thread that owns the rank. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_BACKEND_H
#define SLUICE_ENGINE_DEVICE_BACKEND_H

#include "engine/base/status.h"
#include "engine/device/codec.h"
#include "engine/device/kv_format.h"
#include "engine/device/params.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of the backend. Not to be dereferenced outside of it. */
struct dmem {
    void *p;
};

/* A row-major matrix of activations: rows `stride` elements apart. */
struct tensor {
    struct dmem mem;
    enum dtype dtype;
    int32_t stride;
};

/* ---- weights ------------------------------------------------------------------------------ */

enum weight_kind {
    WEIGHT_VECTOR,  // norm weights, sinks...: one row; kept in fp32
    WEIGHT_EMBED,   // [vocab, hidden], rows looked up; also used by WEIGHT_LINEAR when tied
    WEIGHT_LINEAR,  // [out, in]: parts stacked along the rows (q, k, v; gate, up)
    WEIGHT_EXPERTS, // n_experts matrices; parts are expert 0's stack, then expert 1's, ...
    WEIGHT_HEADS,   // n_experts = heads small matrices, one per head (MLA's absorbed products)
};

struct weight_desc {
    const char *name; // for messages
    enum weight_kind kind;
    enum dtype dtype;                // to be stored as: DT_F32, DT_BF16 or DT_F16
    int64_t n_out, n_in;             // of one matrix; VECTOR: n_out 1, n_in the width
    int32_t n_experts;               // EXPERTS and HEADS; else 1
    int32_t n_parts;                 // in all
    const struct weight_part *parts; // each with a codec of its own (codec.h)
    const struct weight_part
        *bias; // [n_out] (EXPERTS: [n_experts, n_out] as n_experts parts); NULL
    /* K is summed in this many equal segments, joined as a balanced tree, so that tensor
     * parallel ranks, which hold whole subtrees, give the same bits as one. A power of two. */
    int32_t k_segments;
    uint64_t dummy_seed;
    float dummy_scale;
};

struct weight; // the backend's

/* ---- the KV cache ------------------------------------------------------------------------- */

/* One layer's geometry; n_heads query heads read it. With v_in_k (MLA) the value is the first
 * head_dim_v of the key and no V is stored. */
struct kv_layer {
    int32_t n_heads, n_kv_heads, head_dim_k, head_dim_v;
    bool v_in_k;
    float k_scale, v_scale; // of KV_FP8, all of a layer's K and V; 0: each token's head has its own
};

enum { MAX_KV_SETS = 4 }; // the target's, and one for each draft model that may feed a tree

/* KV of one model under the common block ids: set 0 is the target's, further sets are drafts'. */
struct kv_set_desc {
    int32_t n_layers;
    const struct kv_layer *layers;
    enum dtype dtype; // of numbers that are stored as they are, and what others are scaled in
    enum kv_format format;
};

/* ---- recurrent state ----------------------------------------------------------------------
 *
 * A recurrent layer is attention over one block of positions with a summary of all before it. What
 * it keeps of a sequence lies in a slot of its set: slot i below max_lanes is lane i's, the live
 * one; behind them come snapshots, which the engine owns.
 *
 * Boundaries are the multiples of `block` (one block has the positions [b, b + block)). A record is
 * what a layer needs to go on from a boundary: the state S there, and the last inputs of its
 * convolution before it. A snapshot is one record of each layer. A live slot has that of the last
 * boundary, and of the one before it where rows may be taken back; and, by slot_pos, the raw rows
 * (keys, corrected values, decays, inputs of convolutions) of the block that is being filled and
 * of what lies ahead of it.
 *
 * - Which record a row goes on from is told by its position alone; rows of block 0 read none, so a
 *   sequence that begins needs nothing done to its slot.
 * - A pass may cross any number of boundaries. A record is written by the pass that has the row
 *   before its boundary. Rows that are taken back (refused drafts) leave nothing: they are written
 *   again when their positions come again, and so is the record. A chain may be taken back by up to
 *   max_ahead rows, which are less than a block.
 * - In a tree all rows lie in the root's block, and none but the root at its last position. Slots
 *   that its path is moved to (move_slots) take their raw rows along.
 * - Bits of a row do not depend on how the rows before it were cut into passes, nor on copies. */

enum state_kind {
    STATE_CONV,  // a short convolution alone: there is no S
    STATE_DELTA, // gated delta rule: what S already says of a key is taken from the value
    STATE_DECAY, // values are added as they are (Mamba-2)
};

/* One layer's geometry: S is [n_heads][key_dim][value_dim] in fp32; head h has key head
 * h / (n_heads / n_key_heads). */
struct state_layer {
    enum state_kind kind;
    int32_t n_heads, n_key_heads, key_dim, value_dim; // 0 with STATE_CONV
    bool per_channel;                // a decay for each element of a key; else one for each head
    int32_t conv_width, conv_kernel; // channels, and how many inputs of each an output reads
};

/* State of one model; sets have the numbers of KV sets. */
struct state_set_desc {
    int32_t n_layers;
    const struct state_layer *layers;
    enum dtype dtype; // of raw rows
    int32_t block;    // a multiple of 16 and of block_tokens
    /* Rows of a lane behind its last known token, at most: drafts, or nodes of a tree. */
    int32_t max_ahead;
};

/* Bytes of one slot, all layers together. */
struct state_sizes {
    size_t lane, snapshot;
};

/* Makes slot `to` a state at `pos`, which is above 0:
 *   snapshot to lane   pos is the snapshot's boundary: the lane goes on from there
 *   lane to snapshot   pos is the last boundary that the lane's known tokens have reached
 *   lane to lane       all of it, whatever pos is */
struct state_copy {
    int32_t from, to, pos;
};

/* When the rows of a pass have completed the block that ends at `pos`, the record of that boundary
 * is written to snapshot `slot`, too: for boundaries that the pass goes past, which no copy can
 * reach any more. */
struct state_keep {
    int32_t lane, pos, slot;
};

/* ---- hidden states by slot ----------------------------------------------------------------
 *
 * What a draft head reads: a row of numbers for each slot of the pages, under the blocks of the
 * lanes' tables. A pass of the target stores one for each of its rows, a pass of the head one for
 * each of its out rows, and the head's row takes that of the row before it on its path. So what was
 * computed for a prefix serves all who share it, copies and moves of set 0 take the rows along,
 * and a head may be fed any time later. */

/* Bytes of one block. */
static inline size_t hidden_block_bytes(int32_t width, enum dtype dtype, int32_t block_tokens)
{
    return (size_t)block_tokens * (size_t)width * dtype_bytes(dtype);
}

/* ---- facts and limits --------------------------------------------------------------------- */

struct backend_facts {
    const char *name;    // "cpu" or "cuda"
    char device[96];     // for people
    enum dtype act;      // of activations between ops
    enum dtype residual; // of the residual stream
    size_t free_bytes;   // of device memory now
    int32_t preferred_block_tokens;
    bool async;         // step_end returns before the work is done
    bool rounds_inputs; // as a quantised weight asks for it (codec.h)
    bool plain_experts; // experts' first product may be one matrix, without a gate
    bool exact_ranks;   // several ranks give the bits of one: each sum over ranks is reduced
                        // on its own, before it meets another
};

struct backend_limits {
    int32_t max_rows;     // of one pass
    int32_t max_out_rows; // rows with logits of one pass
    int32_t max_lanes;    // sequences that hold state at once
    int32_t max_len;      // tokens of a sequence
    int32_t max_blocks_per_lane;
    int32_t n_blocks, block_tokens;
    int32_t vocab; // rows of the head
    int32_t hidden;
    int32_t n_steps;        // staging slots (2)
    int32_t max_passes;     // of one step
    int32_t max_laws;       // laws of drafts that a step keeps (struct pass_draw); 0: none
    int32_t max_masks;      // masks of one pass's draws; 0: none
    int32_t max_tree_nodes; // nodes of a pass's trees in KV set 0, roots aside; 0: no trees
};

/* ---- one pass ----------------------------------------------------------------------------- */

/* A new row: token `token` of the sequence in `lane` at position `pos`; token -1 means "what the
 * lane's history has at slot_pos", which is how a decode row reads what the step before drew. A
 * given token is written to the history at slot_pos. KV goes to the slot of `slot_pos`, which
 * differs from pos only in a token tree (position by depth, slot by node). */
struct pass_row {
    int32_t lane, token, pos, slot_pos;
};

/* The rows of one sequence, contiguous. Row r of it attends to the lane's slots
 * [0, n_past) (subject to the layer's window), and among the new rows to 0..r, or, in a tree, to
 * those with their bit set in tree_mask[(first_row + r) * TREE_MASK_WORDS...]. */
struct pass_seq {
    int32_t lane, first_row, n_rows, n_past;
    bool tree;
};

enum { MAX_TREE_NODES = 128, TREE_MASK_WORDS = MAX_TREE_NODES / 64, MAX_TREE_PATH = 16 };

/* Blocks that a path of up to MAX_TREE_PATH new rows may lie in, wherever it begins: what a backend
 * that has to lay paths out anew takes for each node (backend_limits.max_tree_nodes). */
static inline int32_t tree_path_blocks(int32_t block_tokens)
{
    return (MAX_TREE_PATH + block_tokens - 2) / block_tokens + 1;
}

/* Sequences first_seq .. +n_seqs have their first n_blocks blocks in common: a hint that lets
 * attention read them once. Groups do not overlap. */
struct pass_group {
    int32_t first_seq, n_seqs, n_blocks;
};

enum draw_kind {
    DRAW_SAMPLE, // a token of the target's law: written to history[lane][pos + 1] if `keep`
    DRAW_DRAFT,  // a draft model's: arg-max, or with `noise` the target's own noise; also kept
    DRAW_SCORE,  // no draw: log-probabilities for known token history[lane][pos + 1]
};

/* Words of a mask over a vocabulary. */
static inline int32_t mask_words(int32_t vocab)
{
    return (vocab + 31) / 32;
}

/* One draw from the logits of out row `out_row`, with the parameters of `lane` (not always the
 * row's own lane: n > 1 draws several lanes' first tokens from one row). The result lands at the
 * draw's own index. */
struct pass_draw {
    int32_t out_row, lane;
    int32_t pos;      // of the row; the drawn token's position is pos + 1
    int32_t n_prompt; // tokens of history that count as prompt (penalties)
    uint8_t kind;     // enum draw_kind
    bool keep;        // write to the history (plain decode, drafts)
    bool noise;       // DRAW_DRAFT: with Gumbel noise at the lane's temperature
    bool logprobs;    // fill logprob and the top_n most likely
    int32_t top_n;    // 0 to MAX_TOP_LOGPROBS
    int32_t tree_row; // the row (pass index) whose ancestors follow the history; -1: a chain
    /* DRAW_DRAFT: so many further ids, each drawn as if those before it were not there. They are
     * top_ids[0 .. more) of the result, the first draw again where nothing is left; with `keep`
     * they go to history[lane][more_slot ..], if that is not 0. Not together with logprobs. */
    int32_t more, more_slot;
    /* 1 + the place of a draft's law, 0: none. DRAW_DRAFT: the law it was drawn from is kept there.
     * DRAW_SAMPLE: the row's children in the tree, or history[lane][pos + 1] in a chain, are drafts
     * of that law, drawn without replacement. They are tried in order of their rows: one is
     * accepted with probability min(1, p / q), else p becomes what it has above q, and q loses the
     * draft. Where none is accepted, the token is drawn from the p that is left. */
    int32_t law;
    /* 1 + the place of its mask in pass.masks, 0: none. What the mask lacks is never drawn; where
     * that is everything the token is any, and its reader has to refuse it. */
    int32_t mask;
};

enum { MAX_SIBLINGS = 16 }; // drafts of one law

enum pool_kind { POOL_NONE, POOL_LAST, POOL_MEAN };

/* Layers whose hidden states, the residual stream behind them, are an output of the out rows. */
enum { MAX_HIDDEN_LAYERS = 4 };
struct hidden_layers {
    int32_t n;                      // 0: none
    int32_t ids[MAX_HIDDEN_LAYERS]; // ascending; layer 0 is the first
};

struct pass {
    int32_t model; // index of the model whose forward this is (0: target)
    int32_t kv_set;
    int32_t n_rows;
    const struct pass_row *rows;
    int32_t n_seqs;
    const struct pass_seq *seqs; // in order of rows, groups contiguous
    int32_t n_groups;
    const struct pass_group *groups;
    const uint64_t *tree_mask; // [n_rows, TREE_MASK_WORDS] or NULL when no sequence is a tree
    int32_t n_out;
    const int32_t *out_rows; // rows whose hidden state goes to the head, ascending
    int32_t n_draws;
    const struct pass_draw *draws;
    int32_t n_masks;
    const uint32_t *masks; // [n_masks, mask_words(vocab)]: bit i of a row: id i is allowed
    /* The masks are filled while the forward pass runs: its draws are issued behind pass_draws. A
     * draw that nobody wants any more has then become a DRAW_SCORE, for its lane's parameters may
     * point to what is gone. A backend that has taken the draws at pass_begin need not look. */
    bool draws_wait;
    int32_t n_pool;
    const struct pass_pool *pool;
    struct hidden_layers hidden; // what the model is asked for: see model_forward
    /* Of the state set kv_set: of sequences with rows in several blocks alone, a lane's in order of
     * positions. No two have one slot. */
    int32_t n_keeps;
    const struct state_keep *keeps;
};

/* Adds out rows first_out .. +n_out of the final normed hidden states to the lane's pooled vector;
 * `start` zeroes it first; `finish` delivers it in the results at this index. */
struct pass_pool {
    int32_t lane, first_out, n_out;
    bool start, finish;
};

/* What the forward pass must be issued with. Counts may be padded up to a bucket, never beyond the
 * limits. */
struct pass_shape {
    int32_t n_rows, n_out, n_draws;
    bool issue; // false: a captured graph is replayed; do not issue the ops
};

/* Host memory of the backend; valid from step_wait until the slot's next step_begin. */
struct draw_result {
    int32_t token;
    float logprob;
    /* The row's logits hold NaN or infinity, or nothing above -infinity: the token is some id of
     * the vocabulary and means nothing. A backend that does not look for it leaves false. */
    bool broken;
    int32_t n_top;
    int32_t top_ids[MAX_TOP_LOGPROBS];
    float top_logprobs[MAX_TOP_LOGPROBS];
};

struct pass_results {
    int32_t n_draws;
    const struct draw_result *draws; // [n_draws]
    const float *pooled;             // [n_pool, hidden], those with `finish`
};

struct block_copy {
    int32_t from, to; // block ids
};

struct slot_move {
    int32_t lane, from, to; // slot positions of the lane (tree commit); ascending `to`
};

struct comm;

/* Where a process's ranks are among all: what a backend's common ground is made for. Nodes are the
 * processes; each has n_ranks / n_nodes ranks, in order. */
struct comm_place {
    int32_t n_ranks, n_nodes, node;
    const char *leader; // address of node 0
    /* Node 0's bytes go to all nodes (collective); unused with one node. */
    enum status (*share)(void *bytes, size_t n_bytes, void *arg, struct err *err);
    void *share_arg;
};

/* What every backend is opened with: cpu_open (cpu/cpu.h), cuda_open (cuda/cuda.h). */
struct backend_options {
    int32_t device; // GPU index; unused by the CPU
    int32_t rank, n_ranks;
    struct comm *comm;  // the ranks' common ground, made by the backend's folder; NULL alone
    enum dtype dtype;   // of weights and KV: DT_BF16 (or F16), or DT_F32 for exact work, where
                        // activations are fp32 and nothing is rounded on the way
    bool deterministic; // a row has the same bits whatever is in its batch, and whatever drafts,
                        // chunks and the cache do; the CPU always has that
    bool enforce_eager; // every pass is issued, none captured and replayed; the CPU has none
    int32_t threads;    // CPU: 0 means all
};

struct backend;
struct backend_ops;

/* Every backend's struct begins with this. */
struct backend {
    const struct backend_ops *ops;
    int32_t rank, n_ranks;
};

#ifdef __cplusplus
}
#endif
#endif
