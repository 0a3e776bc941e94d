// SPDX-License-Identifier: Apache-2.0
/* The interface between the engine and a device. A backend is one rank: one stream of work, in
 * order. The engine describes each step with plain host data (`struct pass`). The layout of KV
 * pages, the packing of weights, how metadata reaches the device and when graphs are replayed are
 * private to the backend. cpu/ and cuda/ implement this table, and so does the fake of the
 * simulation tests.
 *
 * Memory is allocated at startup (ops.h has the order). From the first step on nothing here
 * allocates, and only step_wait waits. Functions that can fail return a status; ERR_DEVICE is
 * sticky.
 * Thread: the thread that owns the rank. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_BACKEND_H
#define SLUICE_ENGINE_DEVICE_BACKEND_H

#include "engine/base/status.h"
#include "engine/device/backend_options.h"
#include "engine/device/codec.h"
#include "engine/device/kv_format.h"
#include "engine/device/params.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of the backend; only the backend may dereference it. */
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
    WEIGHT_VECTOR,  // norm weights, sinks, ...: one row, kept in fp32
    WEIGHT_EMBED,   // [vocab, hidden], for lookup of rows; also the head (WEIGHT_LINEAR) when tied
    WEIGHT_LINEAR,  // [out, in]: parts stacked by rows (q, k, v; gate, up)
    WEIGHT_EXPERTS, // n_experts matrices; the parts are expert 0's stack, then expert 1's, ...
    WEIGHT_HEADS,   // n_experts = heads small matrices, one per head (MLA's absorbed products)
    WEIGHT_ADAPTER, // n_experts = adapters narrow matrices, one per adapter (struct adapter_pair)
};

struct weight_desc {
    const char *name; // for messages
    enum weight_kind kind;
    enum dtype dtype;                // dtype to store: DT_F32, DT_BF16 or DT_F16
    int64_t n_out, n_in;             // of one matrix; VECTOR: n_out 1, n_in the width
    int32_t n_experts;               // for EXPERTS, HEADS and ADAPTER; otherwise 1
    int32_t n_parts;                 // in total
    const struct weight_part *parts; // each with its own codec (codec.h)
    const struct weight_part
        *bias; // [n_out] (EXPERTS: [n_experts, n_out] as n_experts parts); NULL: none
    /* K is divided into this many equal segments (a power of two), whose sums are added up as a
     * balanced tree. Tensor-parallel ranks hold whole subtrees, so several ranks give the same bits
     * as one. */
    int32_t k_segments;
    uint64_t dummy_seed;
    float dummy_scale;
};

struct weight; // defined by the backend

/* ---- the KV cache ------------------------------------------------------------------------- */

/* One layer's geometry: n_heads query heads read n_kv_heads heads of K and V. With v_in_k (MLA) the
 * value is the first head_dim_v elements of the key, and no V is stored. */
struct kv_layer {
    int32_t n_heads, n_kv_heads, head_dim_k, head_dim_v;
    bool v_in_k;
    bool windowed;      // its pages are named by the lanes' tables of window pages
    bool index;         // no layer of attention, but the keys that index_pick compares with; v_in_k
    int32_t pick_block; // of an index: index_pick_args.block
    float k_scale, v_scale; // KV_FP8: the layer's scales of all K and V; 0: one scale per token and
                            // head
};

enum { MAX_KV_SETS = 4 }; // the target's, and one per draft model that may feed a tree

/* Layers that see only a window need pages for the last positions of a sequence alone. If the
 * engine gives them pages of their own (backend_limits.n_window_pages), each lane has a second
 * table: where a windowed layer stores and reads its keys and values. Entries for positions that no
 * row of a pass sees may name any page, whose content does not matter. Only set 0 has such layers.
 */

/* The KV cache of one model. All sets share block ids: set 0 is the target's, further sets are the
 * drafts'. */
struct kv_set_desc {
    int32_t n_layers;
    const struct kv_layer *layers;
    enum dtype dtype; // of unquantised elements; also the precision of scales
    enum kv_format format;
};

/* ---- recurrent state ----------------------------------------------------------------------
 *
 * A recurrent layer is attention over one block of positions plus a summary of all earlier ones.
 * Its memory for a sequence is a slot of its set: slot i < max_lanes is the live slot of lane i;
 * the slots after those are snapshots, which the engine owns.
 *
 * Boundaries are the multiples of `block`; block b covers positions [b, b + block). A record is
 * what a layer needs to continue from a boundary: the state S there, and the last inputs of its
 * convolution before it. A snapshot holds one record per layer. A live slot holds the record of
 * the last boundary, and that of the one before it if rows may be rejected; and, indexed by
 * slot_pos, the raw rows (keys, corrected values, decays, convolution inputs) of the block being
 * filled and of any rows ahead of it.
 *
 * - The record from which a row continues depends on its position only. Rows of block 0 read
 *   none, so a new sequence needs no initialisation of its slot.
 * - A pass may cross any number of boundaries. A record is written by the pass that has the row
 *   before its boundary. Rows of rejected drafts leave no trace: they are rewritten when their
 *   positions come again, and so is the record. Up to max_ahead rows of a chain may be rejected,
 *   which is less than a block.
 * - All rows of a tree lie in the root's block, and only the root may be at its last position.
 *   When its path is moved to other slots (move_slots), the raw rows move along.
 * - A row's bits do not depend on how the rows before it were divided into passes, nor on
 *   copies. */

enum state_kind {
    STATE_CONV,  // a short convolution only, without S
    STATE_DELTA, // gated delta rule: what S already predicts for a key is subtracted from the value
    STATE_DECAY, // values are added unchanged (Mamba-2)
};

/* One layer's geometry: S is [n_heads][key_dim][value_dim] in fp32; head h uses key head h /
 * (n_heads / n_key_heads). */
struct state_layer {
    enum state_kind kind;
    int32_t n_heads, n_key_heads, key_dim, value_dim; // 0 for STATE_CONV
    bool per_channel;                // one decay per element of a key; otherwise one per head
    int32_t conv_width, conv_kernel; // channels, and inputs per output
};

/* State of one model; sets are numbered like KV sets. */
struct state_set_desc {
    int32_t n_layers;
    const struct state_layer *layers;
    enum dtype dtype; // of raw rows
    int32_t block;    // a multiple of 16 and of block_tokens
    /* The maximum number of rows that a lane may have past its last known token: drafts, or nodes
     * of a tree. */
    int32_t max_ahead;
};

/* Bytes of one slot, over all layers. */
struct state_sizes {
    size_t lane, snapshot;
};

/* Makes slot `to` hold the state at `pos`, which is above 0:
 *   snapshot to lane   pos is the snapshot's boundary: the lane continues from there
 *   lane to snapshot   pos is the last boundary that the lane's known tokens have reached
 *   lane to lane       everything, whatever pos is */
struct state_copy {
    int32_t from, to, pos;
};

/* When the rows of a pass have completed the block that ends at `pos`, that boundary's record is
 * also written to snapshot `slot`. This serves boundaries that the pass itself crosses, which a
 * copy after the pass could no longer reach. */
struct state_keep {
    int32_t lane, pos, slot;
};

/* ---- hidden states by slot ----------------------------------------------------------------
 *
 * The input of draft heads: one row of values per slot of the pages, addressed by the blocks of the
 * lanes' tables. A pass of the target stores a row of values for each of its rows, and a pass of a
 * head stores one for each of its out rows. Each row of a head reads the values of the row before
 * it on its path. What was computed for a shared prefix therefore serves every sequence that shares
 * it, and a head may be fed at any later time. Copies and moves of set 0 also copy and move these
 * rows. If several heads follow one another, a slot's row holds the inputs of all of them side by
 * side. */

static inline size_t hidden_block_bytes(int32_t width, enum dtype dtype, int32_t block_tokens)
{
    return (size_t)block_tokens * (size_t)width * dtype_bytes(dtype);
}

/* ---- facts and limits --------------------------------------------------------------------- */

struct backend_facts {
    const char *name;    // "cpu" or "cuda"
    char device[96];     // description for people
    enum dtype act;      // of activations between ops
    enum dtype residual; // of the residual stream
    size_t free_bytes;   // device memory free now
    int32_t preferred_block_tokens;
    int32_t full_rows;  // a pass of a dense model with fewer leaves units idle; 0: unknown
    bool async;         // step_end returns before the work is done
    bool rounds_inputs; // rounds the inputs of a product if the quantised weight requires that
                        // (codec.h)
    bool pooled_keys;   // index_store and index_pick take a pool
    bool plain_experts; // supports experts without a gate, whose first product is one matrix
    bool exact_ranks;   // several ranks give the same bits as one: every sum over ranks is reduced
                        // before it is combined with another
};

struct backend_limits {
    int32_t max_rows;     // per pass
    int32_t max_out_rows; // rows with logits per pass
    int32_t max_lanes;    // sequences that hold state at the same time
    int32_t max_len;      // tokens per sequence
    int32_t max_blocks_per_lane;
    int32_t n_blocks, block_tokens;
    int32_t n_window_pages; // of block_tokens tokens, for windowed layers; 0: there are none
    int32_t vocab;          // rows of the output head
    bool headless;          // no pass has logits or draws: out rows are only pooled
    int32_t hidden;
    int32_t n_steps;    // staging slots (2)
    int32_t max_passes; // per step
    int32_t max_laws; // number of draft distributions that a step keeps (struct pass_draw); 0: none
    int32_t max_masks;      // number of masks for the draws of one pass; 0: none
    int32_t max_tree_nodes; // number of tree nodes of a pass in KV set 0, not counting the roots;
                            // 0: no trees
};

/* ---- one pass ----------------------------------------------------------------------------- */

/* A new row: token `token` of the sequence in `lane` at position `pos`. Token -1 means the token in
 * the lane's history at slot_pos, which is how a decode row reads what the previous step drew; a
 * given token is written to the history at slot_pos. KV goes to the slot of `slot_pos`, which
 * differs from pos only in a token tree (position by depth, slot by node). */
struct pass_row {
    int32_t lane, token, pos, slot_pos;
};

/* The rows of one sequence, contiguous. Row r attends to the lane's slots [0, n_past) (subject to
 * the layer's window), and among the new rows to 0..r, or in a tree to those whose bit is set in
 * tree_mask[(first_row + r) * TREE_MASK_WORDS...], or in a bidirectional pass to all. */
struct pass_seq {
    int32_t lane, first_row, n_rows, n_past;
    bool tree;
    int32_t adapter; // 1 + the index of the low-rank adapter of its rows; 0: none
    int32_t second;  // position of the first row of the second text of a pair; 0: there is no pair
};

enum { MAX_TREE_NODES = 128, TREE_MASK_WORDS = MAX_TREE_NODES / 64, MAX_TREE_PATH = 16 };

/* The maximum number of blocks that a path of up to MAX_TREE_PATH new rows can touch. A backend
 * that copies paths reserves this many per node (backend_limits.max_tree_nodes). */
static inline int32_t tree_path_blocks(int32_t block_tokens)
{
    return (MAX_TREE_PATH + block_tokens - 2) / block_tokens + 1;
}

/* Sequences first_seq .. +n_seqs share their first n_blocks blocks. This lets attention read those
 * blocks once. Groups do not overlap. */
struct pass_group {
    int32_t first_seq, n_seqs, n_blocks;
};

enum draw_kind {
    DRAW_SAMPLE, // a token from the target's distribution: written to history[lane][pos + 1] if
                 // `keep`
    DRAW_DRAFT,  // a draft model's token: arg-max, or with `noise` the target's own noise; also
                 // kept
    DRAW_SCORE,  // no draw: log-probabilities of the known token history[lane][pos + 1]
};

/* Words of a mask over a vocabulary. */
static inline int32_t mask_words(int32_t vocab)
{
    return (vocab + 31) / 32;
}

/* One draw from the logits of out row `out_row`, with the parameters of `lane`. That is not always
 * the row's own lane: n > 1 draws several lanes' first tokens from one row. Results are in the
 * order of the draws. */
struct pass_draw {
    int32_t out_row, lane;
    int32_t pos;      // of the row; the drawn token's position is pos + 1
    int32_t n_prompt; // leading tokens of the history that count as the prompt, for penalties
    uint8_t kind;     // enum draw_kind
    bool keep;        // write the token to the history (plain decoding, drafts)
    bool noise;       // DRAW_DRAFT: with Gumbel noise at the lane's temperature
    bool logprobs;    // fill in logprob and the top_n most likely tokens
    int32_t top_n;    // 0 to MAX_TOP_LOGPROBS
    int32_t tree_row; // the row (index in the pass) whose tree ancestors follow the history; -1:
                      // not a tree
    /* DRAW_DRAFT: `more` further ids, each drawn as if the earlier ones did not exist. They are
     * top_ids[0 .. more) of the result, padded with the first draw if nothing is left. With `keep`
     * and a nonzero more_slot they also go to history[lane][more_slot ..]. Not together with
     * logprobs. */
    int32_t more, more_slot;
    /* 1 + the index of a draft distribution ("law"); 0: none. DRAW_DRAFT: the distribution that the
     * draft was drawn from is kept there. DRAW_SAMPLE: the drafts to test, which were drawn from it
     * without replacement. In a tree they are the children of the row, in a chain there is one,
     * history[lane][pos + 1]. They are tested in row order: each is accepted with probability
     * min(1, p / q); otherwise p becomes the excess of p over q, and q loses the draft. If none is
     * accepted, the token is drawn from the remaining p. */
    int32_t law;
    /* 1 + the index of its mask in pass.masks; 0: none. Ids outside the mask are never drawn. If
     * the mask excludes every id, the token is arbitrary and its reader must reject it. */
    int32_t mask;
    /* 1 + the index of its row in pass_results.logits; 0: none. The raw logits of the whole
     * vocabulary are then returned, too. Only with `logprobs`, and only in a step's last pass. */
    int32_t logits;
};

enum { MAX_SIBLINGS = 16 }; // drafts of one law

/* Layers whose hidden states (the residual stream after them) are an output of the out rows. */
enum { MAX_HIDDEN_LAYERS = 4 };
struct hidden_layers {
    int32_t n;                      // 0: none
    int32_t ids[MAX_HIDDEN_LAYERS]; // ascending; layer 0 is the first
};

struct pass {
    int32_t model; // index of the model to run (0: target)
    int32_t kv_set;
    bool bidirectional; // rows attend to later rows, too; there are no trees and no past rows then
    int32_t n_rows;
    const struct pass_row *rows;
    int32_t n_seqs;
    const struct pass_seq *seqs; // in row order, groups contiguous
    int32_t n_groups;
    const struct pass_group *groups;
    const uint64_t *tree_mask; // [n_rows, TREE_MASK_WORDS] or NULL when no sequence is a tree
    int32_t n_out;
    const int32_t *out_rows; // rows whose hidden state goes to the output head, ascending
    int32_t n_draws;
    const struct pass_draw *draws;
    int32_t n_masks;
    const uint32_t *masks; // [n_masks, mask_words(vocab)]: bit i set: id i is allowed
    /* The masks are filled in while the forward pass runs, and its draws are issued after
     * pass_draws. */
    bool draws_wait;
    int32_t n_logits; // draws that return their whole row of logits
    int32_t n_pool;
    const struct pass_pool *pool;
    struct hidden_layers hidden; // requested hidden states: see model_forward
    /* The states to keep from state set kv_set. Only sequences with rows in several blocks have
     * any. Those of one lane are in position order, and no two have the same slot. */
    int32_t n_keeps;
    const struct state_keep *keeps;
};

/* True if some sequence has an adapter. The products of such a pass differ from those of others. */
static inline bool pass_is_adapted(const struct pass *p)
{
    bool adapted = false;
    for (int32_t i = 0; i < p->n_seqs; i++) {
        adapted = adapted || p->seqs[i].adapter > 0;
    }
    return adapted;
}

/* Adds out rows first_out .. +n_out of the final normed hidden states to the lane's pooled vector.
 * `start` zeroes the vector first; `finish` returns it in the results at this index. */
struct pass_pool {
    int32_t lane, first_out, n_out;
    bool start, finish;
};

/* Shape with which to issue the forward pass. Counts may be padded up to a bucket, never beyond the
 * limits. */
struct pass_shape {
    int32_t n_rows, n_out, n_draws;
    bool issue; // false: a captured graph will be replayed, so do not issue the ops
};

/* Host memory of the backend; valid from step_wait until the slot's next step_begin. */
struct draw_result {
    int32_t token;
    float logprob;
    float log_total; // with logprobs: a logit minus this is its log-probability
    /* The row's logits contain NaN or infinity, or nothing above -infinity; the token is then some
     * id of the vocabulary without meaning. Logits that cannot be drawn (masked or banned) need not
     * be checked. */
    bool broken;
    int32_t n_top;
    int32_t top_ids[MAX_TOP_LOGPROBS];
    float top_logprobs[MAX_TOP_LOGPROBS];
};

struct pass_results {
    int32_t n_draws;
    const struct draw_result *draws; // [n_draws]
    const float *pooled;             // [n_pool, hidden]; only entries with `finish` are valid
    const float *logits;             // [n_logits, vocab], of the draws with `logits`
};

struct block_copy {
    int32_t from, to; // block ids
};

struct slot_move {
    int32_t lane, from, to; // slot positions of the lane (tree commit), ascending by `to`
};

struct comm;

/* The position of a process's ranks among all ranks, from which a communicator is created. Nodes
 * are processes, each with n_ranks / n_nodes consecutive ranks. */
struct comm_place {
    int32_t n_ranks, n_nodes, node;
    const char *leader; // address of node 0
    const char *bind;   // the one address on which node 0 may listen; NULL: all interfaces
    /* Broadcasts node 0's bytes to all nodes (collective); unused with one node. */
    enum status (*share)(void *bytes, size_t n_bytes, void *arg, struct err *err);
    /* True, with the reason, if a node is lost, so that nobody waits for it; NULL: none ever is. */
    bool (*is_lost)(void *arg, struct err *why);
    void *share_arg; // the argument of both
};

struct backend;
struct backend_ops;

/* The first member of every backend's struct. */
struct backend {
    const struct backend_ops *ops;
    int32_t rank, n_ranks;
};

#ifdef __cplusplus
}
#endif
#endif
