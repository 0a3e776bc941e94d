// SPDX-License-Identifier: Apache-2.0
/* The launchers of the kernels in this folder, grouped by file. They do not repeat the checks of
 * the ops that call them; they launch on `stream` and return the launch's error. Compiles as C11
 * and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_KERNELS_H
#define SLUICE_CUDA_KERNELS_H

#include "cuda/all_reduce.h"
#include "cuda/attention.h"
#include "cuda/gemm.h"
#include "cuda/layout.h"
#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- step.cu: a lane's state, and what a pass needs before its first op */

/* One update from the host: words to write at an address in a lane's state. */
struct patch {
    void *to;     // in device memory
    int32_t from; // index of its first word in the data sent along
    int32_t n_words;
};
cudaError_t k_patch(cudaStream_t stream, const struct patch *patches, const uint32_t *data,
                    int32_t n);
/* Determines pass->tokens, and writes given tokens to the history. */
cudaError_t k_pass_begin(cudaStream_t stream, const struct pass_view *pass);

struct kv_region { // one layer of one set
    void *base;
    int64_t page_bytes;
    struct kv_view view;
};
cudaError_t k_copy_blocks(cudaStream_t stream, const struct kv_region *regions, int32_t n_regions,
                          const struct block_copy *copies, int32_t n);
cudaError_t k_move_slots(cudaStream_t stream, const struct kv_region *regions, int32_t n_regions,
                         const struct slot_move *moves, int32_t n, const struct pass_view *pass);
cudaError_t k_poison_blocks(cudaStream_t stream, const struct kv_region *regions, int32_t n_regions,
                            const int32_t *blocks, int32_t n);

/* ---- embed.cu, norm.cu, rope.cu, elementwise.cu */
struct lookup_view {
    const void *data; // [n_rows, hidden]; NULL: none
    int64_t n_rows;
    int32_t first; // added to each index
};
struct embed_tables {
    struct lookup_view tokens, positions, types;
};
cudaError_t k_embed(cudaStream_t stream, const struct embed_args *a,
                    const struct embed_tables *tables, enum dtype dtype, int32_t hidden,
                    const struct pass_view *pass);
/* sums: partial sums of delta, read instead of its memory; NULL: none. codes: written instead of
 * `out`; NULL: none. */
bool k_norm_takes_sums(const struct norm_args *a);
bool k_norm_makes_codes(const struct norm_args *a);
cudaError_t k_norm(cudaStream_t stream, const struct norm_args *a, const float *weight,
                   const float *bias, const struct sum_parts *sums, const struct round_args *codes);

/* Several norms of the same rows, one after the other, in one kernel. weights: one per norm, each
 * of which may be NULL. */
enum { NORM_LIST = 9 };
bool k_norms_take(const struct norm_args *a, int32_t n);
cudaError_t k_norms(cudaStream_t stream, const struct norm_args *a, const float *const *weights,
                    int32_t n);

/* ---- all_reduce.cu: rows of at most 64 KiB; all memory in 16-byte vectors. `a` NULL: y becomes
 * the sum (+ sum_bias). Otherwise the norm op is computed with the sum as its delta, and y stays
 * unchanged. */
cudaError_t k_peer_clear(cudaStream_t stream, void *areas, uint64_t n_bytes);
cudaError_t k_peer_reduce(cudaStream_t stream, enum peer_way way, const struct peer_view *peers,
                          const struct tensor *y, const float *sum_bias, const struct norm_args *a,
                          const float *weight, const float *bias, int32_t n_rows, int32_t width,
                          int32_t max_blocks);
/* Gathers the ranks' shards [n_out, width] side by side in every rank's out: [n_out, n_ranks *
 * width]. */
cudaError_t k_join_peers(cudaStream_t stream, const struct peer_view *peers, const float *local,
                         float *out, int32_t out_stride, int32_t n_out, int32_t width,
                         int32_t max_blocks);

struct rope_view {
    const float *cos_sin; // [max_pos, n_pairs, 2]; NULL: no rotation
    int32_t n_pairs, max_pos;
    bool interleaved;
};
cudaError_t k_rope_table(cudaStream_t stream, float *cos_sin, const float *inv_freq,
                         const struct rope_view *rope, float attention_factor);
/* sums: partial sums of qkv, read instead of its memory; NULL: none. */
bool k_rope_takes_sums(const struct rope_store_args *a, const struct rope_view *rope,
                       int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv);
cudaError_t k_rope_store(cudaStream_t stream, const struct rope_store_args *a,
                         const struct rope_view *rope, const float *q_norm, int32_t q_norm_n,
                         const float *k_norm, int32_t k_norm_n, const struct kv_view *kv,
                         const struct pass_view *pass, const struct sum_parts *sums);
/* attention/few.cu: rope_store and attention in one kernel, for passes in which each row is a
 * separate sequence, without a soft cap. Only the kernel for a few rows of plain pages supports
 * windows and sinks (may_be_few in cuda_ops_attention.c). sums: partial sums of qkv, read instead
 * of its memory; n 0 or NULL: none. */
bool k_attention_few_takes(const struct rope_store_args *a, const struct rope_view *rope,
                           int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv,
                           const struct attention_limits *limits);
cudaError_t k_attention_few(cudaStream_t stream, const struct rope_store_args *r,
                            const struct rope_view *rope, const float *q_norm, const float *k_norm,
                            const struct attention_launch *a, const struct sum_parts *sums,
                            const struct round_args *codes);
/* True if it can write its result as codes with a scale per head, instead of to a->out. */
bool k_attention_few_makes_codes(const struct rope_store_args *r, const struct sum_parts *sums,
                                 const struct attention_limits *limits);
cudaError_t k_mla_store(cudaStream_t stream, const struct mla_store_args *a,
                        const struct rope_view *rope, const float *kv_norm,
                        const struct head_factors *growth, const struct kv_view *kv,
                        const struct pass_view *pass);
/* attention/mla_few.cu: mla_store, the absorbed product, attention and the expansion in one kernel,
 * for passes in which each row is a separate sequence. out: [n_rows, n_heads, out_head]; only the
 * first v_dim elements of each head are written. */
struct mla_few {
    const struct mla_store_args *store;
    const void *absorb, *expand; // the weights, in the dtype of q
    struct tensor out;
    int32_t v_dim, out_head;
    float scale;
    const struct rope_view *rope;
    const float *kv_norm;
    const struct kv_view *pages;
    const struct pass_view *pass;
    const struct attention_limits *limits;
};
bool k_mla_few_takes(const struct mla_few *m);
cudaError_t k_mla_few(cudaStream_t stream, const struct mla_few *m);
cudaError_t k_activation(cudaStream_t stream, const struct activation_args *a);
/* Gated activations, written as codes instead of to `out`. k_activation_makes_codes: true if there
 * is a kernel for it. */
bool k_activation_makes_codes(const struct activation_args *a);
cudaError_t k_activation_codes(cudaStream_t stream, const struct activation_args *a,
                               const struct round_args *codes);
cudaError_t k_row_gate(cudaStream_t stream, const struct row_gate_args *a, const float *weight);
cudaError_t k_add_bias(cudaStream_t stream, struct tensor y, int32_t n_rows, int32_t width,
                       const float *bias);
cudaError_t k_gather(cudaStream_t stream, const struct gather_args *a,
                     const struct pass_view *pass);
cudaError_t k_scale_logits(cudaStream_t stream, const struct logits_args *a);
cudaError_t k_spread_logits(cudaStream_t stream, const struct logits_args *a);
/* Gathers shards [n_ranks, n_out, width] side by side: [n_out, n_ranks * width]. */
cudaError_t k_join_shards(cudaStream_t stream, const float *shards, float *out, int32_t out_stride,
                          int32_t n_ranks, int32_t n_out, int32_t width);
cudaError_t k_pool(cudaStream_t stream, const struct pool_args *a, const struct pass_view *pass,
                   int32_t n_pool, float *results);

/* ---- streams.cu */
cudaError_t k_streams(cudaStream_t stream, const struct streams_args *a, const float *router,
                      const float *coefs, const float *scale);
cudaError_t k_rms_match(cudaStream_t stream, const struct rms_match_args *a);
cudaError_t k_cutoff(cudaStream_t stream, const struct cutoff_args *a);

/* ---- state/hidden.cu. rows: [slot][width], as K of one head */
cudaError_t k_hidden_store(cudaStream_t stream, const struct hidden_args *a,
                           const struct kv_view *rows, const struct pass_view *pass);
cudaError_t k_hidden_load(cudaStream_t stream, const struct hidden_args *a,
                          const struct kv_view *rows, const struct pass_view *pass);

/* ---- weights.cu */
/* Fills in n normally distributed values with standard deviation `scale`. Element i depends only on
 * (seed, i). */
cudaError_t k_fill_normal(cudaStream_t stream, void *to, enum dtype dtype, int64_t n, uint64_t seed,
                          float scale);
cudaError_t k_convert(cudaStream_t stream, void *to, enum dtype to_dtype, const void *from,
                      enum dtype from_dtype, int64_t n);

/* ---- moe/route.cu, moe.cu, sm90.cu, coded_many.cu */
enum { MOE_MAX_K = MAX_PICKS, MOE_MAX_EXPERTS = MAX_EXPERTS };

/* Scratch memory for n_rows * k picks per call. */
struct moe_scratch {
    int32_t *sorted;                   // [picks]: picks (row * k + j), sorted by (expert, pick)
    int32_t *first;                    // [n_experts + 1]: index of an expert's first pick in sorted
    int32_t *tile_expert, *tile_first; // [picks]: the work list of the grouped products
    int32_t *n_tiles;
    void *act;  // [picks, ffn] in the activation dtype, as in `sorted` (plain kernels: by pick)
    float *out; // [picks, hidden], by pick
};
struct moe_weights {
    const void *gate_up, *down;
    // set if the experts stay quantised; if NULL, gate_up and down hold them
    const struct coded_matrix *gate_up_coded, *down_coded;
    const float *gate_up_bias, *down_bias; // [n_experts, n_out] or NULL
    enum dtype dtype;
    int32_t hidden;
};
/* moe/scores.cu: the scores of many rows. A row's bits differ from those of k_moe_route. */
bool k_moe_scores_takes(const struct moe_route_args *a, enum dtype router_dtype, int32_t hidden);
cudaError_t k_moe_scores(cudaStream_t stream, const struct moe_route_args *a, const float *router,
                         const float *bias, int32_t hidden, float *logits);
/* The same for any number of rows. A row's bits do not depend on that number. */
bool k_moe_scores_fixed_takes(const struct moe_route_args *a, enum dtype router_dtype,
                              int32_t hidden);
cudaError_t k_moe_scores_fixed(cudaStream_t stream, const struct moe_route_args *a,
                               const float *router, const float *bias, int32_t hidden,
                               float *logits);
/* logits: scratch for [n_rows, n_experts]. has_scores: another function has filled it in. */
cudaError_t k_moe_route(cudaStream_t stream, const struct moe_route_args *a, const void *router,
                        enum dtype router_dtype, const float *bias, const float *correction,
                        const float *expert_scale, int32_t hidden, float *logits, bool has_scores);
/* Only the scores. */
cudaError_t k_moe_route_scores(cudaStream_t stream, const struct moe_route_args *a,
                               const void *router, enum dtype router_dtype, const float *bias,
                               int32_t hidden, float *logits);
/* `real` (in device memory; NULL: all are real) is the number of real rows; this call computes
 * those from row_offset on. Padding rows are not routed. */
cudaError_t k_moe_ffn(cudaStream_t stream, const struct moe_ffn_args *a,
                      const struct moe_weights *w, const struct moe_scratch *scratch,
                      const int32_t *real, int32_t row_offset);
/* k_moe_ffn_of_scores: the same for up to MOE_PLAN_ROWS rows, but it first picks the experts from
 * the scores and stores the picks. Only if k_moe_ffn_picks returns true. */
enum { MOE_PLAN_ROWS = 8 };
struct moe_picks {
    const struct moe_route_args *route;
    const float *logits, *correction, *expert_scale;
};
bool k_moe_ffn_picks(const struct moe_ffn_args *a, const struct moe_weights *w);
cudaError_t k_moe_ffn_of_scores(cudaStream_t stream, const struct moe_ffn_args *a,
                                const struct moe_weights *w, const struct moe_scratch *scratch,
                                const int32_t *real, const struct moe_picks *picks);
/* moe/sm90.cu: the same on Hopper, for experts that are not quantised and have many rows each. `sm`
 * and `n_sms` describe the device. A row's bits are those of k_moe_ffn. k_moe_sm90_scratch:
 * the bytes that a call with n_rows rows needs. gate: the gate's weight, if y holds the result of
 * a shared expert that the call must still multiply by its gate; NULL: no gate. */
bool k_moe_sm90_takes(const struct moe_ffn_args *a, const struct moe_weights *w, int32_t sm,
                      int32_t n_sms);
size_t k_moe_sm90_scratch(const struct moe_ffn_args *a, int32_t hidden, int32_t n_rows);
cudaError_t k_moe_ffn_sm90(cudaStream_t stream, const struct moe_ffn_args *a,
                           const struct moe_weights *w, const float *gate, void *scratch,
                           const int32_t *real, int32_t row_offset, int32_t n_sms);
/* moe/coded_many.cu: the same for 4-bit experts, from one row per expert on (on average), with the
 * scratch memory of moe/sm90.cu. A row's bits are not those of k_moe_ffn. */
bool k_moe_coded_many_takes(const struct moe_ffn_args *a, const struct moe_weights *w, int32_t sm);
cudaError_t k_moe_ffn_coded_many(cudaStream_t stream, const struct moe_ffn_args *a,
                                 const struct moe_weights *w, const float *gate, void *scratch,
                                 const int32_t *real, int32_t row_offset, int32_t n_sms);
/* moe/identity.cu */
cudaError_t k_moe_identity(cudaStream_t stream, const struct moe_identity_args *a);
/* moe/few.cu: the router, the experts and the shared expert beside them, for few rows. y is
 * overwritten with the sum of the experts and the shared expert. */
struct moe_few {
    const struct norm_args *norm; // of x, before everything else; NULL: none
    const float *norm_weight;
    const struct moe_route_args *route;
    const struct moe_ffn_args *ffn;
    struct moe_weights weights;
    const float *router, *router_bias, *correction, *expert_scale;
    const void *shared_gate_up, *shared_down;
    const float *shared_gate; // NULL: the shared expert has no gate
    int32_t shared_ffn;       // 0: no shared expert
    const void *own_x;   // the input and output of an MLP in its place, for a single row; NULL: the
    void *own_y;         // shared expert reads the experts' x, and is added to their y
    const int32_t *real; // as for k_moe_ffn
    int32_t n_sms;       // multiprocessors of the device
};
bool k_moe_few_takes(const struct moe_few *m);
bool k_moe_few_takes_norm(const struct moe_few *m, const struct norm_args *norm);
size_t k_moe_few_scratch(const struct moe_few *m);
cudaError_t k_moe_few(cudaStream_t stream, const struct moe_few *m, void *scratch);
cudaError_t k_moe_bias(cudaStream_t stream, struct tensor y, int32_t n_rows, int32_t width,
                       const struct moe_ffn_args *moe, const float *down_bias);

/* ---- sample/sample.cu */
struct sample_scratch {
    void *memory; // zeroed at startup; sample_scratch_bytes bytes
    int32_t max_draws, vocab;
};
size_t sample_scratch_bytes(int32_t max_draws, int32_t vocab);
cudaError_t k_sample(cudaStream_t stream, const struct sample_args *a, const struct pass_view *pass,
                     const struct sample_scratch *scratch, const struct row_bests *bests,
                     struct draw_result *results);

#ifdef __cplusplus
}
#endif
#endif
