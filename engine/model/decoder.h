// SPDX-License-Identifier: Apache-2.0
/* A forward pass on its way through the layers: the values passed between layers, and the steps
 * common to all kinds of sub-layers. Private to the decoder's files (decoder*.c). Shapes: T rows, D
 * hidden, H query heads, K key/value heads, d head size, F feed-forward width (of this rank). x is
 * the residual stream; a sub-layer's output `delta` is added to it by the next norm.
 * Thread: one per model. */
#ifndef SLUICE_ENGINE_MODEL_DECODER_H
#define SLUICE_ENGINE_MODEL_DECODER_H

#include "engine/device/ops_default.h"
#include "engine/model/model.h"

enum { FLOW_NORMS = 4 }; // that may wait for one flow_join_norm, before and after its own

/* The values passed between layers: the residual stream, and an output that has not been added to
 * it yet. */
struct flow {
    struct model *m;
    const struct backend_ops *ops;
    struct backend *be;
    int32_t n_rows, n_out;
    bool adapted;                // some sequence of the pass has an adapter
    bool narrowed;               // the rows are the out rows
    struct tensor x, h, attn;    // all rows; from `narrow` on, only the out rows
    struct tensor out_x;         // the buffer that becomes x in `narrow`
    struct tensor streams;       // all rows, then the out rows; if there are several
    struct hidden_layers hidden; // the layers whose hidden states are requested
    struct tensor first_input;   // for a draft head: the input of layer 0, used instead of the
                                 // layer's norm of x
    int32_t n_unfed; // number of layers that still have to feed the draft head; all rows are needed
                     // until it is 0
    // per-layer inputs of all layers; from `narrow` on, only those of the last layer
    struct tensor input;
    bool pending;                   // delta must still be added to x
    float delta_scale;              // factor of delta
    float x_scale;                  // factor of x after delta is added; 0: none
    bool partial;                   // delta must first be reduced over the ranks
    struct product_sums delta_sums; // delta as partial sums, if its product left it in that form
    struct reduce_args reduce;
    struct moe_ffn_args moe; // the struct that reduce.moe points to
    // Norms of sub-layers' results, and of x, which the next flow_join_norm issues before and after
    // its own, all as one op.
    struct norm_args before[FLOW_NORMS], after[FLOW_NORMS];
    int32_t n_before, n_after;
    bool norm_waits; // the norm has not been issued; the next op, its only reader, will include it
    struct norm_args norm;
    bool attention_waits; // attention has not been issued; the only reader of its out, a product,
                          // will include it
    struct rope_store_args store;
    struct attention_args attention;
    struct key_picks picks; // of the last layer with an indexer
    /* Hyper-connections: the residual is in `streams`, and x is only what a sub-layer reads of it,
     * where that is stored at all. From `narrow` on there are only the out rows. */
    struct tensor gates;               // of the streams
    const struct hyper_weights *hyper; // of the next sub-layer, or of the end
    bool begins;                       // the streams must still be set, to x
};

static const struct tensor no_tensor = {{NULL}, DT_F32, 0};

/* x += pending delta; out = norm(x). If `weight` is NULL, it only adds, and *input is x. `once`:
 * only one product or one mixture reads the input, so that the norm may be a part of that op. */
enum status flow_join_norm(struct flow *f, const struct weight *weight, const struct weight *bias,
                           bool once, struct tensor *input);

/* The same, with the gate of the norm if it has one. */
enum status flow_join_gated_norm(struct flow *f, const struct weight *weight,
                                 const struct weight *bias, const struct norm_gate *gate, bool once,
                                 struct tensor *input);

/* decoder_hyper.c: what the functions of the residual do for models with hyper-connections.
 * flow_join_streams: flow_join_norm, with a mixture of f->hyper in place of x. */
void flow_start_streams(struct flow *f);
enum status flow_join_streams(struct flow *f, const struct weight *norm, struct tensor *input);
enum status flow_narrow_streams(struct flow *f);

/* out = norm(in), for a norm inside a sub-layer. */
enum status flow_own_norm(struct flow *f, struct tensor in, const struct weight *weight,
                          struct tensor out);
struct norm_args flow_own_norm_args(const struct flow *f, struct tensor in,
                                    const struct weight *weight, struct tensor out);

/* Leaves norms to the next flow_join_norm: of what is added to x, and of x after that. */
void flow_norm_before(struct flow *f, const struct norm_args *a);
void flow_norm_after(struct flow *f, const struct weight *weight, const struct weight *bias,
                     struct tensor out);

/* Reduces the ranks' partial sums of delta (reduce NULL: not needed), then applies the sub-layer's
 * own norm. Without such a norm the reduction is left to the next flow_join_norm, which may fuse
 * the two. */
enum status flow_finish_delta(struct flow *f, const struct reduce_args *reduce,
                              const struct weight *post_norm);

/* The place where the product that computes delta may leave it as partial sums, to be added up by
 * the next flow_join_norm. NULL: delta must be complete, for instance because a norm of the
 * sub-layer reads it first. */
struct product_sums *flow_sums_for_norm(struct flow *f, const struct weight *post_norm);

/* Issues attention that waits for a product, because something else comes first. */
enum status flow_attend(struct flow *f);

/* The args of a product, with the weight's adapters if the pass needs them. sums: the place where y
 * may be left as partial sums; NULL: y must be complete. */
struct linear_args flow_product(const struct flow *f, const struct weight *w, struct tensor x,
                                struct tensor y, struct product_sums *sums);
enum status flow_linear(struct flow *f, const struct weight *w, struct tensor x, struct tensor y,
                        struct product_sums *sums);

/* True if the pass ends once this layer's keys and values are stored, because no row needs logits
 * and no later layer stores anything. */
bool flow_stores_only(const struct flow *f, int32_t layer);

/* x becomes `out`, its out rows. */
enum status flow_gather(struct flow *f, struct tensor *x, struct tensor out, int32_t width);

/* decoder_streams.c: several residual streams. None of these does anything if there is one. x is
 * the active stream while it passes through a layer. flow_streams_begin: before the embedding,
 * which it makes the first stream; flow_streams_open: computes the others from it. before and after
 * the sub-layers; `spread`, at the end of a layer, adds the pending delta to the other streams and,
 * after the last layer, joins all of them to x. flow_streams_narrow: keeps only the out rows. */
void flow_streams_begin(struct flow *f);
enum status flow_streams_open(struct flow *f);
enum status flow_streams_before(struct flow *f, int32_t layer);
enum status flow_streams_after(struct flow *f, int32_t layer);
enum status flow_streams_spread(struct flow *f, int32_t layer);
enum status flow_streams_narrow(struct flow *f);

/* Adds `in` and a low-rank product of it to the pending delta of attention, if the layer has such a
 * branch. */
enum status decoder_branch(struct flow *f, int32_t layer, struct tensor in);

/* Issues the norms that wait, then n more, and drops the delta. */
enum status flow_take_delta(struct flow *f, const struct norm_args *then, int32_t n);

/* decoder_attention.c: attention from `in` into f->attn. decoder_attention has keys per head;
 * decoder_mla has one key head shared by all. */
enum status decoder_attention(struct flow *f, int32_t layer, struct tensor in);
enum status decoder_mla(struct flow *f, int32_t layer, struct tensor in);

/* decoder_ffn.c: an MLP, experts, or both, from `in` into delta. */
enum status decoder_ffn(struct flow *f, int32_t layer, struct tensor in);
/* True if the op that reads its input may include the norm before it. */
bool decoder_ffn_is_one_op(const struct flow *f, int32_t layer);

#endif
