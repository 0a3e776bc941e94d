// SPDX-License-Identifier: Apache-2.0
/* Shared by the files cuda_ops*.c: helpers, and the ops that the table in cuda_ops.c refers to. */
#ifndef SLUICE_CUDA_OPS_H
#define SLUICE_CUDA_OPS_H

#include "cuda/cuda_backend.h"
#include "cuda/cuda_weights.h"

/* True if the tensor exists and its rows have room for `width` elements. */
static inline bool fits(struct tensor t, int32_t width)
{
    return t.mem.p && t.stride >= width && width > 0;
}

/* The elements of a vector in fp32, and their number; NULL and 0 if the weight is NULL. */
static inline const float *vector(const struct weight *w)
{
    return w ? (const float *)w->data : NULL;
}

static inline int32_t vector_length(const struct weight *w)
{
    return w ? (int32_t)(w->n_out * w->n_in) : 0;
}

static inline struct head_factors head_factors(const struct head_growth *g)
{
    return (struct head_factors){vector(g->scale), vector(g->bias)};
}

/* True if there are no factors, or one of each kind for every head. */
static inline bool head_growth_ok(const struct head_growth *g, int32_t n_heads)
{
    const int32_t n = vector_length(g->scale);
    return n == vector_length(g->bias) && (!g->scale || n == n_heads);
}

/* Conversions between a product's partial sums and the value that the engine carries. */
static inline struct product_sums sums_out(const struct sum_parts *s)
{
    return (struct product_sums){.first = {(void *)(uintptr_t)s->first},
                                 .bias = {(void *)(uintptr_t)s->bias},
                                 .stride = s->stride,
                                 .width = s->width,
                                 .n = s->n};
}

static inline struct sum_parts sums_in(const struct product_sums *s)
{
    return (struct sum_parts){
        .first = s->first.p, .bias = s->bias.p, .stride = s->stride, .width = s->width, .n = s->n};
}

/* cuda_ops_linear.c */
enum status cuda_op_norm(struct backend *base, const struct norm_args *a);
enum status cuda_op_linear(struct backend *base, const struct linear_args *a);
enum status norm_ok(const struct norm_args *a); // vectors and dtypes fit
enum status cuda_op_norms(struct backend *base, const struct norm_args *a, int32_t n);
enum status cuda_op_linear_heads(struct backend *base, const struct linear_heads_args *a);
enum status cuda_op_activation(struct backend *base, const struct activation_args *a);
enum status cuda_op_row_gate(struct backend *base, const struct row_gate_args *a);
enum status cuda_op_reduce(struct backend *base, const struct reduce_args *a);
enum status cuda_op_reduce_norm(struct backend *base, const struct reduce_args *r,
                                const struct norm_args *n);
enum status cuda_op_linear_act(struct backend *base, const struct linear_args *l,
                               const struct activation_args *a);
enum status cuda_op_mlp(struct backend *base, const struct linear_args *up,
                        const struct activation_args *a, const struct linear_args *down);
enum status cuda_op_norm_linear(struct backend *base, const struct norm_args *n,
                                const struct linear_args *l, const struct activation_args *a,
                                const struct linear_args *down);
bool cuda_op_norm_adds_sums(struct backend *base, const struct norm_args *a);
/* True if the op before this product should write the codes of its x, as *codes says. The product
 * is then issued by linear_of_codes. */
bool linear_wants_codes(struct cuda_backend *be, const struct linear_args *a,
                        struct round_args *codes);
enum status linear_of_codes(struct cuda_backend *be, const struct linear_args *a);

/* cuda_ops_adapter.c */
enum status cuda_op_linear_adapter(struct backend *base, const struct linear_args *a);

/* cuda_ops_attention.c */
enum status cuda_op_rope_store(struct backend *base, const struct rope_store_args *a);
enum status cuda_op_mla_store(struct backend *base, const struct mla_store_args *a);
enum status cuda_op_attention(struct backend *base, const struct attention_args *a);
enum status cuda_op_rope_attention(struct backend *base, const struct rope_store_args *r,
                                   const struct attention_args *a, const struct linear_args *l);
enum status cuda_op_mla(struct backend *base, const struct mla_store_args *store,
                        const struct linear_heads_args *absorb, const struct attention_args *a,
                        const struct linear_heads_args *expand);
bool cuda_op_rope_store_adds_sums(struct backend *base, const struct rope_store_args *a);

/* cuda_ops_index.c */
enum status cuda_op_index_store(struct backend *base, const struct index_store_args *a);
enum status cuda_op_index_pick(struct backend *base, const struct index_pick_args *a);

/* cuda_ops_hyper.c */
enum status cuda_op_hyper(struct backend *base, const struct hyper_args *a);

/* cuda_ops_moe.c */
enum status cuda_op_moe_route(struct backend *base, const struct moe_route_args *a);
enum status cuda_op_moe_ffn(struct backend *base, const struct moe_ffn_args *a);
enum status cuda_op_moe_identity(struct backend *base, const struct moe_identity_args *a);
enum status cuda_op_moe(struct backend *base, const struct norm_args *norm,
                        const struct shared_expert_args *shared, const struct moe_route_args *route,
                        const struct moe_ffn_args *ffn);

/* cuda_ops_streams.c */
enum status cuda_op_streams(struct backend *base, const struct streams_args *a);
enum status cuda_op_rms_match(struct backend *base, const struct rms_match_args *a);
enum status cuda_op_cutoff(struct backend *base, const struct cutoff_args *a);

/* cuda_ops_state.c */
enum status cuda_op_short_conv(struct backend *base, const struct short_conv_args *a);
enum status cuda_op_gated_conv(struct backend *base, const struct gate_args *before,
                               const struct short_conv_args *conv, const struct gate_args *after);
enum status cuda_op_recurrence(struct backend *base, const struct recurrence_args *a);
enum status cuda_op_gate(struct backend *base, const struct gate_args *a);
enum status cuda_op_recurrent(struct backend *base, const struct short_conv_args *conv,
                              const struct recurrence_args *a, const struct gate_args *gate);

#endif
