// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of cpu/: the backend, its weights, lanes, pages and scratch memory.
 * Thread: the rank's owner; items of a pool_run touch only what they are given. */
#ifndef SLUICE_CPU_INTERNAL_H
#define SLUICE_CPU_INTERNAL_H

#include "cpu/cpu.h"
#include "cpu/cpu_kernels.h"
#include "cpu/cpu_kv_codes.h"
#include "cpu/cpu_pool.h"
#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/device/ops.h"

/* The number of rows of activations that a product rounds and packs at a time. PACK_ROWS rows fit
 * into a cache. BLOCKS_PACK_ROWS is for products in blocks: with so many rows, weights are rarely
 * read from memory again. */
enum { PACK_ROWS = 512, BLOCKS_PACK_ROWS = 2048 };

/* The number of keys in one chunk of attention. The softmax of a chunk is computed separately and
 * then joined to the earlier ones, so chunks start at fixed positions whatever the batch. */
enum { ATTN_CHUNK = 512 };

/* The maximum number of query vectors (rows x heads) that one attention item computes together:
 * ATTN_TILE with vector code, UNIT_TILE on a matrix unit. */
enum { ATTN_TILE = 48, UNIT_TILE = 512, ATTN_MAX_TILE = UNIT_TILE };

/* Memory for attention chunks that are computed separately and joined later. It is not touched
 * before it is needed. */
enum { ATTN_PARTS_BYTES = 64 << 20 };

enum { MAX_HEAD_DIM = 4096 };

/* The quantised form of a weight (cpu_coded.c), or of consecutive tiles of one format.
 * `packed` holds the codes (struct code_run); scales, zeros and offsets are in separate arrays.
 * Scales of type I8 are multiples of an f16 unit, and several scales share a unit; the same holds
 * for their offsets. */
struct coded {
    enum code_kind kind;
    int64_t first_tile, n_tiles; // range of its tiles in each matrix
    int64_t at, tile_bytes;      // byte offset of its codes in a matrix
    // block: number of inputs that share a scale; blocks: number of blocks per segment
    int64_t block, blocks;
    int64_t unit, units; // as block and blocks, for the units of scales; 0: no units
    enum dtype scale_dtype;
    char *scales;  // [n_matrices][n_tiles][k_segments][blocks][outputs of a tile]
    char *offsets; // same shape as scales; NULL: none
    uint16_t *unit_scales, *unit_offsets; // same shape as scales, with [units] instead of [blocks]
    bool zeroed, has_offset;
    uint16_t *zeros; // bf16, same shape as scales; NULL: none
    enum tensor_scale whole_use;
    float *whole; // the whole-tensor scales: [n_matrices][n_tiles][outputs of a tile]
    float values[N_CODE_VALUES]; // values of codes of up to five bits
    int32_t middle;              // subtracted from six-bit codes
};

/* For rounding inputs: a scale, the range of some inputs, and the group that has been reached in a
 * row. */
struct input_scale {
    float scale, zero;
};
struct input_range {
    float low, high; // low is at most 0, high at least 0
};
struct input_group {
    int64_t at; // index of the group; -1: none yet
    struct input_scale scale;
};

struct weight {
    struct weight *next;
    enum weight_kind kind;
    enum dtype dtype;
    int64_t n_out, n_in;
    int32_t n_matrices;
    int32_t k_segments;
    int32_t panels;         // number of panels per tile
    bool tiled;             // see gemm_fn
    int64_t segment;        // number of inputs in a segment of K
    int64_t segment_padded; // the same, including the padding of packed segments
    int64_t n_tiles;
    size_t tile_bytes, matrix_bytes;
    // [n_coded], in the order of their tiles; NULL: `packed` holds dequantised weights
    struct coded *coded;
    int32_t n_coded;
    char *packed; // [n_matrices][n_tiles], each tile in the form that gemm_fn reads, or the codes
                  // of the tile
    size_t packed_bytes;
    struct input_rule inputs;          // how rows are rounded before they are packed (cpu_inputs.c)
    struct input_scale *input_scales;  // [n_matrices] stored scales
    int64_t first_input, input_groups; // index of the first input in the whole tensor; number of
                                       // groups in the whole tensor
    bool shared_ranges;                // the inputs of a group are divided among ranks
    float *vector;                     // VECTOR: [n_in]; ADAPTER: [n_matrices, n_out, n_in]
    float *bias;                       // [n_matrices, n_out] or NULL
};

struct rope_table {
    struct rope_table *next;
    int32_t n_pairs, max_pos;
    bool interleaved;
    float *cos, *sin; // [max_pos, n_pairs]
};

/* The layout of a layer's K and V in its pages: the planes of K and V for each KV head; with v_in_k
 * there is no V plane. */
struct kv_pages {
    char *base;
    struct kv_layer geometry;
    enum dtype dtype; // dtype of the set
    struct kv_plane k, v;
    int32_t v_stride; // head_dim_v rounded up to a multiple of PANEL
    size_t head_bytes, block_bytes;
    int32_t n_pages;
};

struct kv_set {
    int32_t n_layers;
    struct kv_pages *layers;
};

/* Hidden states by slot: rows of `width` values, contiguous in each block (cpu_hidden.c). */
struct hidden_rows {
    char *base; // NULL: there are none
    int32_t width;
    enum dtype dtype;
    size_t row_bytes;
};

/* A lane's own copy of the lists of its parameters. */
struct lane_lists {
    int32_t stop_ids[MAX_STOP_IDS];
    struct logit_bias bias[MAX_BIAS];
    int32_t bad_word_lengths[MAX_BAD_WORDS], bad_word_tokens[MAX_BAD_TOKENS];
};

struct lane {
    int32_t *history;              // [history_len]
    int32_t *blocks;               // [max_blocks_per_lane]
    int32_t *pages;                // [max_blocks_per_lane], of windowed layers; NULL: none
    struct sampling_params params; // without `allowed`; the other lists point into `lists`
    struct lane_lists *lists;
    uint32_t *allowed; // [mask_words(vocab)], the allowed ids as bits, if params.n_allowed > 0
    float *pooled;     // [hidden]
};

/* The results of the passes of a step in one staging slot. */
struct slot_results {
    int32_t n_passes;
    bool ended;
    int32_t n_draws_used, n_pooled_used; // number of entries used in the slot's arrays
    struct draw_result *draws;           // [max_draws]
    float *pooled;                       // [max_out_rows + max_lanes, hidden]
    float *logits;                       // [max_logits, vocab], from malloc: grows with use
    int32_t max_logits;
    struct pass_results *passes; // [max_passes]
};

/* Memory private to one thread. */
struct scratch {
    char *p;
    size_t n_bytes;
};

/* Memory of sparse attention (cpu_index.c). */
struct index_room {
    /* [max_rows, n_sets]: key_picks.p, the number of keys; 0: the row attends to all that it
     * sees. */
    int32_t *n_picked;
    uint64_t *bits; // [max_rows, n_sets, n_words]: the slots or blocks that others have picked
    float *scores;  // [n_scores, stride]: of some rows' keys, by slot, in each set
    int64_t stride, n_scores;
    /* The largest layout that fits, and that of the last index_pick. */
    int64_t most_words;
    int32_t most_sets, n_sets, n_words, block;
};

struct memory {
    struct memory *next;
    void *p;
    size_t n_bytes;
};

struct cpu_backend {
    struct backend base;
    struct backend_options options;
    const struct cpu_kernels *kernels;
    struct pool *pool;
    bool failed;

    struct memory *memories;
    struct weight *weights;
    struct rope_table *ropes;
    struct kv_set kv_sets[MAX_KV_SETS];
    struct state_set *states[MAX_KV_SETS]; // cpu_state.h; NULL: none
    struct hidden_rows hidden;
    int64_t max_k_bytes; // bytes of the widest packed row of activations
    int64_t max_moe_k, max_moe_n;
    int32_t max_moe_segments;
    float *ranges; // see cpu_share_ranges
    size_t n_range_floats;

    bool is_set_up;
    struct backend_limits limits;
    int32_t history_len, max_draws;
    int32_t *ints; // the memory of all lanes' histories and tables
    float *lane_floats;
    struct lane *lanes;
    float *laws; // [max_laws, vocab], as exact_exp(score - max): the distributions from which
                 // drafts were drawn
    uint64_t *law_totals; // [max_laws] sums of the masses of each law
    struct slot_results *slots;

    /* The current step and pass. */
    int32_t slot;
    const struct pass *pass;
    int32_t *row_tokens; // [max_rows]
    int32_t *row_seq;    // [max_rows], for each row the index of its pass_seq
    int32_t *seq_items;  // [max_rows + 1], for each sequence the index of its first attention item

    struct index_room index;
    float *attn_parts; // see cpu_attention.c
    char *packed_rows; // [cpu_pack_rows] packed activations; twice that for cpu_mlp
    size_t packed_rows_bytes;
    char *moe; // see cpu_moe.c
    size_t moe_bytes;
    float *adapter_room; // see cpu_adapter.c
    size_t adapter_room_bytes;
    struct scratch *scratch; // [n_threads]
    int32_t n_scratch;
};

static inline struct cpu_backend *cpu_of(struct backend *be)
{
    return (struct cpu_backend *)be;
}

static inline int32_t cpu_pack_rows(const struct cpu_backend *cpu)
{
    return cpu->kernels->blocks ? BLOCKS_PACK_ROWS : PACK_ROWS;
}

static inline int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* The offset within a tile, in elements, of the weight of input k (counted with padding) for output
 * j of the tile. */
static inline int64_t packed_at(const struct weight *w, int64_t k, int64_t j)
{
    int64_t panels = w->panels;
    if (w->tiled) {
        int64_t pair = (k / K_UNIT * panels + j / PANEL) * (K_UNIT / 2) + k % K_UNIT / 2;
        return (pair * PANEL + j % PANEL) * 2 + k % 2;
    }
    int64_t pair = w->dtype == DT_BF16 ? 2 : 1;
    return k / pair * pair * panels * PANEL + j * pair + k % pair;
}

/* A row of a tensor. In this backend activations are fp32. */
static inline float *tensor_row(const struct tensor *t, int64_t row)
{
    return (float *)t->mem.p + row * t->stride;
}

/* Rounds to bf16, to nearest even; NaN stays NaN. */
static inline uint16_t bf16_of(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    if (x != x) {
        return (uint16_t)(v.u >> 16 | 0x40);
    }
    return (uint16_t)((v.u + 0x7FFF + (v.u >> 16 & 1)) >> 16);
}

static inline float bf16_to_f32(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)b << 16};
    return v.f;
}

uint16_t f16_of(float x);
float f16_to_f32(uint16_t h);

/* cpu_open with kernels that the caller chooses, so that each instruction set can be tested. */
enum status cpu_open_with(const struct backend_options *options, const struct cpu_kernels *kernels,
                          struct backend **out, struct err *err);

/* Zeroed memory that lives until close, aligned to 64 bytes (2 MiB if it is large). NULL if there
 * is not enough memory. */
void *cpu_memory(struct cpu_backend *cpu, size_t n_bytes);
void cpu_memory_free(struct cpu_backend *cpu, void *p);

/* Memory that may still be allocated (cpu_room.h). Everything that is mapped counts as used. */
size_t cpu_free_bytes(void);

/* Called at startup: grows each thread's scratch to at least this size. */
enum status cpu_need_scratch(struct cpu_backend *cpu, size_t n_bytes);
enum status cpu_need_rows(struct cpu_backend *cpu);
enum status cpu_need_moe(struct cpu_backend *cpu);
enum status cpu_need_adapter(struct cpu_backend *cpu, int64_t most);

enum status cpu_weight_open(struct backend *be, const struct weight_desc *desc, struct weight **out,
                            struct err *err);
size_t cpu_weight_bytes(const struct weight *w);
void cpu_weights_close(struct cpu_backend *cpu);
/* Row `row` of matrix 0, as fp32. */
void cpu_weight_row(const struct cpu_backend *cpu, const struct weight *w, int64_t row, float *out);

/* Computes y[i][n0 + j] of one tile from packed rows. Segments are joined as a tree; or, with
 * split_stride, segment s is stored at y + s * split_stride. scratch: cpu_gemm_scratch bytes. */
struct gemm_tile {
    const struct weight *weight;
    int32_t matrix;
    int64_t tile;
    const char *rows;
    int64_t row_bytes;
    int32_t n_rows;
    float *y; // address of row 0 and output 0 of the matrix
    int64_t y_stride;
    const float *bias; // [n_out] or NULL
    bool accumulate;
    float *scratch;
    int64_t split_stride; // 0: segments are joined
};
void cpu_gemm_tile(const struct cpu_backend *cpu, const struct gemm_tile *t);
/* Weights that stay quantised (cpu_coded.c, with _open and _pack). cpu_coded_open is called before
 * `packed` is allocated, and sets w->coded if the weight qualifies. cpu_coded_pack_row: row `row`
 * of a part becomes output j of a tile; false if a value is NaN or infinite. */
enum status cpu_coded_open(struct cpu_backend *cpu, const struct weight_desc *d, struct weight *w);
bool cpu_coded_pack_row(const struct weight *w, const struct weight_part *p, int64_t row,
                        int64_t matrix, int64_t tile, int64_t j);
/* c = the sums of one segment. row_element: bytes per element of t->rows. */
void cpu_coded_sums(const struct cpu_backend *cpu, const struct gemm_tile *t, int32_t segment,
                    gemm_fn *gemm, int64_t row_element, float *c);
/* A row of such a weight, dequantised as for products. */
void cpu_coded_row(const struct cpu_backend *cpu, const struct weight *w, int64_t row, float *out);
/* Bytes of scratch for tiles of up to n_rows rows. */
size_t cpu_gemm_scratch(const struct weight *w, int32_t n_rows);
/* The number of buffers that the tree over a weight's segments needs at a time. */
int32_t cpu_tree_levels(const struct weight *w);
/* Products of many rows in blocks (cpu_linear_blocks.c). cpu_in_blocks: whether n_rows rows
 * qualify. cpu_linear_blocks: the product of up to cpu_pack_rows rows, starting at `first`. With
 * `norm`, the norm's output is the operand and is not stored. With `act`, act->out is stored and y
 * is undefined. With `down` as well, the activation's output is the operand of the product `down`,
 * and neither y nor act->out is stored. */
struct blocks_args {
    const struct norm_args *norm;
    const struct linear_args *linear;
    const struct activation_args *act;
    const struct linear_args *down;
};
bool cpu_in_blocks(const struct cpu_backend *cpu, const struct weight *w, int32_t n_rows);
void cpu_linear_blocks(struct cpu_backend *cpu, const struct blocks_args *a, int32_t first,
                       int32_t n_rows);
size_t cpu_blocks_scratch(const struct cpu_backend *cpu, const struct weight *w);
/* Adds delta to a row of x, and writes the norm of the sum to out unless that is NULL. */
void cpu_norm_row(const struct cpu_kernels *kernels, const struct norm_args *a, int32_t row,
                  float *out);
/* Up to this number of rows, a product processes more of K at a time (cpu_kernels.few_k). */
enum { FEW_ROWS = 64 };
/* True if rows are packed as bf16, otherwise as fp32. */
bool cpu_rows_are_bf16(const struct cpu_backend *cpu, const struct weight *w);
/* cpu_row_bytes: bytes of one packed row. cpu_pack_row: packs n_in floats. `ranges`: the ranges of
 * the row's groups, if ranks share them; NULL: they are computed here. */
int64_t cpu_row_bytes(const struct cpu_backend *cpu, const struct weight *w);
void cpu_pack_row(const struct cpu_backend *cpu, const struct weight *w, int32_t matrix,
                  const float *x, const struct input_range *ranges, char *out);

/* Input rounding that a format requires (cpu_inputs.c). */
enum status cpu_inputs_open(struct cpu_backend *cpu, const struct weight_desc *d, struct weight *w);
enum status cpu_need_ranges(struct cpu_backend *cpu, size_t n_floats);
/* Rounds the row's inputs from k on, at most `most` of them and none after the end of k's group.
 * Returns their number. */
int64_t cpu_round_inputs(const struct weight *w, int32_t matrix, const float *x,
                         const struct input_range *ranges, int64_t k, int64_t most, float *out,
                         struct input_group *group);
/* For weights with shared_ranges. Each rank first writes the ranges of its part of every row,
 * [input_groups], to cpu->ranges. Then all ranks call cpu_share_ranges, which returns the ranges of
 * the whole rows; NULL: a rank is gone. */
void cpu_input_ranges(const struct weight *w, const float *x, struct input_range *out);
struct input_range *cpu_share_ranges(struct cpu_backend *cpu, const struct weight *w,
                                     int32_t n_rows);

/* The page, and the token in it, where position `pos` of a lane is stored. */
struct kv_slot {
    char *block;
    int32_t token;
};
/* The lane's table for these pages. */
static inline const int32_t *cpu_kv_table(const struct cpu_backend *cpu,
                                          const struct kv_pages *pages, int32_t lane)
{
    const struct lane *l = &cpu->lanes[lane];
    return pages->geometry.windowed ? l->pages : l->blocks;
}

struct kv_slot cpu_kv_slot(const struct cpu_backend *cpu, const struct kv_pages *pages,
                           int32_t lane, int32_t pos);
/* Stores a head's key and value. _joined: for a key whose first elements are the value; the key is
 * changed if a page cannot hold all of them. */
void cpu_kv_store(const struct cpu_backend *cpu, const struct kv_pages *pages, struct kv_slot slot,
                  int32_t head, const float *k, const float *v);
void cpu_kv_store_joined(const struct cpu_backend *cpu, const struct kv_pages *pages,
                         struct kv_slot slot, int32_t head, float *key);
/* The same for a key without a value. */
void cpu_kv_store_key(const struct cpu_backend *cpu, const struct kv_pages *pages,
                      struct kv_slot slot, const float *key);
/* Bytes of scratch that one attention item over such pages needs; see cpu_attention.c. `sparse`:
 * rows may pick keys. */
size_t cpu_attention_scratch(const struct cpu_backend *cpu, const struct kv_pages *p, bool sparse);
const struct kv_pages *cpu_kv_layer(const struct cpu_backend *cpu, int32_t layer);

enum status cpu_rope_open(struct backend *be, const struct rope_desc *desc,
                          struct rope_table **out);
/* Rotates the first 2 n_pairs elements of a head; `r` may be NULL. */
void cpu_rotate(const struct cpu_backend *cpu, const struct rope_table *r, int32_t pos, float *x);
/* The factor of a head's query at a position, and the product with it. */
float cpu_head_growth(const struct head_growth *g, int32_t head, int32_t pos);
void cpu_grow(float *x, int32_t n, float by);
enum status cpu_kv_bytes(struct backend *be, const struct kv_set_desc *desc, int32_t block_tokens,
                         size_t *out);
enum status cpu_kv_open(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                        struct err *err);
enum status cpu_copy_blocks(struct backend *be, int32_t n, const struct block_copy *copies);
enum status cpu_move_slots(struct backend *be, int32_t n, const struct slot_move *moves,
                           int32_t kv_set);
enum status cpu_poison_blocks(struct backend *be, int32_t n, const int32_t *blocks);
enum status cpu_copy_pages(struct backend *be, int32_t n, const struct block_copy *copies);
enum status cpu_poison_pages(struct backend *be, int32_t n, const int32_t *pages);

/* cpu_hidden.c. The last three do for hidden states what copy_blocks, move_slots and poison_blocks
 * do for KV. */
enum status cpu_hidden_open(struct backend *be, int32_t width, enum dtype dtype, struct err *err);
enum status cpu_hidden_store(struct backend *be, const struct hidden_args *a);
enum status cpu_hidden_load(struct backend *be, const struct hidden_args *a);
void cpu_hidden_copy(struct cpu_backend *cpu, int32_t n, const struct block_copy *copies);
void cpu_hidden_move(struct cpu_backend *cpu, int32_t n, const struct slot_move *moves);
void cpu_hidden_poison(struct cpu_backend *cpu, int32_t n, const int32_t *blocks);

enum status cpu_setup(struct backend *be, const struct backend_limits *limits, struct err *err);
enum status cpu_step_begin(struct backend *be, int32_t slot);
enum status cpu_lane_tokens(struct backend *be, int32_t lane, int32_t first_pos, int32_t n,
                            const int32_t *tokens);
enum status cpu_lane_pages(struct backend *be, int32_t lane, int32_t first, int32_t n,
                           const int32_t *pages);
enum status cpu_lane_blocks(struct backend *be, int32_t lane, int32_t first, int32_t n,
                            const int32_t *blocks);
enum status cpu_lane_params(struct backend *be, int32_t lane, const struct sampling_params *params);
enum status cpu_pass_begin(struct backend *be, const struct pass *pass, struct pass_shape *shape);
enum status cpu_pass_end(struct backend *be);
enum status cpu_step_end(struct backend *be);
enum status cpu_step_wait(struct backend *be, int32_t slot, struct pass_results *results,
                          int32_t max_passes);
bool cpu_step_done(struct backend *be, int32_t slot);

enum status cpu_embed(struct backend *be, const struct embed_args *a);
enum status cpu_norm(struct backend *be, const struct norm_args *a);
enum status cpu_linear(struct backend *be, const struct linear_args *a);
enum status cpu_linear_adapter(struct backend *be, const struct linear_args *a);
enum status cpu_weight_adapter_set(struct backend *be, const struct weight *w, int32_t index,
                                   const float *values);
void cpu_adapter_round(enum dtype dtype, float *x, int64_t n);
enum status cpu_linear_act(struct backend *be, const struct linear_args *a,
                           const struct activation_args *act);
enum status cpu_mlp(struct backend *be, const struct linear_args *up,
                    const struct activation_args *act, const struct linear_args *down);
enum status cpu_norm_linear(struct backend *be, const struct norm_args *norm,
                            const struct linear_args *linear, const struct activation_args *act,
                            const struct linear_args *down);
enum status cpu_linear_heads(struct backend *be, const struct linear_heads_args *a);
enum status cpu_rope_store(struct backend *be, const struct rope_store_args *a);
enum status cpu_mla_store(struct backend *be, const struct mla_store_args *a);
enum status cpu_attention(struct backend *be, const struct attention_args *a);
enum status cpu_activation(struct backend *be, const struct activation_args *a);
enum status cpu_moe_route(struct backend *be, const struct moe_route_args *a);
enum status cpu_moe_ffn(struct backend *be, const struct moe_ffn_args *a);
enum status cpu_moe_identity(struct backend *be, const struct moe_identity_args *a);
enum status cpu_row_gate(struct backend *be, const struct row_gate_args *a);
enum status cpu_gate(struct backend *be, const struct gate_args *a);
enum status cpu_streams(struct backend *be, const struct streams_args *a);
enum status cpu_rms_match(struct backend *be, const struct rms_match_args *a);
enum status cpu_cutoff(struct backend *be, const struct cutoff_args *a);
enum status cpu_hyper(struct backend *be, const struct hyper_args *a);
enum status cpu_reduce(struct backend *be, const struct reduce_args *a);
enum status cpu_gather(struct backend *be, const struct gather_args *a);
enum status cpu_logits(struct backend *be, const struct logits_args *a);
enum status cpu_sample(struct backend *be, const struct sample_args *a);
enum status cpu_pool_rows(struct backend *be, const struct pool_args *a);

/* ---- ranks (cpu_comm.c): all ranks make the same calls in the same order */
/* Every rank's y becomes the sum over all ranks, added up as a tree. False: a rank is gone. */
bool cpu_comm_sum(struct cpu_backend *cpu, float *y, int64_t stride, int64_t n_rows, int64_t width);
/* out[row][rank * width + i] = that rank's in[row][i], on every rank. */
bool cpu_comm_gather(struct cpu_backend *cpu, const float *in, int64_t in_stride, float *out,
                     int64_t out_stride, int64_t n_rows, int64_t width);
void cpu_comm_leave(struct cpu_backend *cpu);

#endif
