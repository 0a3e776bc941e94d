// SPDX-License-Identifier: Apache-2.0
/* A forward pass on its way through the layers: what they hand on, and the steps that all kinds of
 * sub-layers take. For the files of the decoder (decoder*.c) alone.
 * Shapes: T rows, D hidden, H query heads, K key/value heads, d head size, F feed-forward width (of
 * this rank). x is the residual stream; a sub-layer's output `delta` joins it in the next norm.
 * Thread: one for each model. */
#ifndef SLUICE_ENGINE_MODEL_DECODER_H
#define SLUICE_ENGINE_MODEL_DECODER_H

#include "engine/device/ops_default.h"
#include "engine/model/model.h"

/* What the layers hand on: the residual stream, and the output that has yet to join it. */
struct flow {
    struct model *m;
    const struct backend_ops *ops;
    struct backend *be;
    int32_t n_rows, n_out;
    struct tensor x, h, attn;    // the model's, or from `narrow` on those of the out rows
    struct tensor out_x;         // what `narrow` makes x
    struct hidden_layers hidden; // whose states are asked for
    struct tensor first_input;   // of a head: what layer 0 reads, not its norm of x
    int32_t n_unfed;     // times that the drafter is yet to be fed: all rows are needed until then
    struct tensor input; // of all layers' inputs; from `narrow` on the last layer's alone
    bool pending;        // delta waits to be added to x
    float delta_scale;   // times this
    float x_scale;       // what x is multiplied by then; 0: nothing
    bool partial;        // and, before that, to be reduced
    struct product_sums delta_sums; // what delta is left as, where its product is
    struct reduce_args reduce;
    struct moe_ffn_args moe; // what reduce.moe points to
    bool norm_waits;         // the next op, which alone reads what it makes, takes it along
    struct norm_args norm;
};

static const struct tensor no_tensor = {{NULL}, DT_F32, 0};

/* x += pending delta; out = norm(x). Without weights only the addition, and the input is x. `once`:
 * one product alone reads the input, so that both may be one op. */
enum status flow_join_norm(struct flow *f, const struct weight *weight, const struct weight *bias,
                           bool once, struct tensor *input);

/* out = norm(in) of a sub-layer's own. */
enum status flow_own_norm(struct flow *f, struct tensor in, const struct weight *weight,
                          struct tensor out);

/* Ranks' partial sums of delta become whole (unless they are: reduce NULL), and a norm of the
 * sub-layer's own follows; without one the sum is left to the next norm, which may be one op with
 * it. */
enum status flow_finish_delta(struct flow *f, const struct reduce_args *reduce,
                              const struct weight *post_norm);

/* Where the product that makes delta may leave it as sums: with the flow_join_norm that is to come,
 * where no norm of the sub-layer's own reads it before. NULL: it may not. */
struct product_sums *flow_sums_for_norm(struct flow *f, const struct weight *post_norm);

/* sums: where y may be left as sums, NULL: it may not. */
enum status flow_linear(struct flow *f, const struct weight *w, struct tensor x, struct tensor y,
                        struct product_sums *sums);

/* The pass ends with this layer's keys and values: no row is asked of, and what comes behind only
 * reads. */
bool flow_stores_only(const struct flow *f, int32_t layer);

/* decoder_attention.c: what a layer's rows take from those before them, from `in` into f->attn,
 * with heads of their own or with one that all share (MLA). */
enum status decoder_attention(struct flow *f, int32_t layer, struct tensor in);
enum status decoder_mla(struct flow *f, int32_t layer, struct tensor in);

/* decoder_ffn.c: an MLP, experts, or both, from `in` into delta. */
enum status decoder_ffn(struct flow *f, int32_t layer, struct tensor in);

#endif
