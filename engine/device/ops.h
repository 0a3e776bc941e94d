// SPDX-License-Identifier: Apache-2.0
/* A backend's table of ops: memory, order, maths, collectives; op_args.h has what they take. cpu/
 * has every basic op in scalar C, which is the definition that other implementations are tested
 * against.
 * Thread: the rank's owner. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_OPS_H
#define SLUICE_ENGINE_DEVICE_OPS_H

#include "engine/device/op_args.h"

#ifdef __cplusplus
extern "C" {
#endif

struct backend_ops {
    /* ---- facts and memory, at startup only. Order: weights and ropes, kv_bytes, more ropes if
     * needed, setup, kv_open, alloc; a test may open weights after setup. */
    enum status (*facts)(struct backend *be, struct backend_facts *out);
    enum status (*alloc)(struct backend *be, size_t n_bytes, struct dmem *out); // zeroed
    enum status (*weight_open)(struct backend *be, const struct weight_desc *desc,
                               struct weight **out, struct err *err);
    size_t (*weight_bytes)(const struct weight *w); // what it takes on the device, without its bias
    enum status (*rope_open)(struct backend *be, const struct rope_desc *desc,
                             struct rope_table **out);
    /* Bytes of one block of block_tokens tokens of a set. */
    enum status (*kv_bytes)(struct backend *be, const struct kv_set_desc *desc,
                            int32_t block_tokens, size_t *out);
    enum status (*setup)(struct backend *be, const struct backend_limits *limits, struct err *err);
    enum status (*kv_open)(struct backend *be, int32_t set, const struct kv_set_desc *desc,
                           struct err *err);
    void (*close)(struct backend *be); // frees everything, even if half-open

    /* ---- a step: lane updates and copies, then passes, then step_end. */
    enum status (*step_begin)(struct backend *be, int32_t slot);
    enum status (*lane_tokens)(struct backend *be, int32_t lane, int32_t first_pos, int32_t n,
                               const int32_t *tokens);
    enum status (*lane_blocks)(struct backend *be, int32_t lane, int32_t first, int32_t n,
                               const int32_t *blocks);
    /* Copies the lists as well: they may be freed as soon as the call returns. */
    enum status (*lane_params)(struct backend *be, int32_t lane,
                               const struct sampling_params *params);
    /* In any order: no copy of the list writes a block that another reads or writes. */
    enum status (*copy_blocks)(struct backend *be, int32_t n, const struct block_copy *copies);
    enum status (*move_slots)(struct backend *be, int32_t n, const struct slot_move *moves,
                              int32_t kv_set);
    /* Tests only: fills the K and V of these blocks with NaN. */
    enum status (*poison_blocks)(struct backend *be, int32_t n, const int32_t *blocks);
    enum status (*pass_begin)(struct backend *be, const struct pass *pass,
                              struct pass_shape *shape);
    /* For a pass with draws_wait, called in this order. NULL: nothing to do. pass_pause: the whole
     * forward pass has been issued and may run. Between it and pass_draws only step_wait and
     * step_done of other steps may be called. pass_draws: the masks have been filled in; *shape
     * says how to issue the draws. */
    enum status (*pass_pause)(struct backend *be);
    enum status (*pass_draws)(struct backend *be, struct pass_shape *shape);
    enum status (*pass_end)(struct backend *be);
    enum status (*step_end)(struct backend *be);
    /* Waits until the slot's step is done. `results` has one entry per pass. */
    enum status (*step_wait)(struct backend *be, int32_t slot, struct pass_results *results,
                             int32_t max_passes);
    bool (*step_done)(struct backend *be, int32_t slot); // never waits

    /* ---- maths */
    enum status (*embed)(struct backend *be, const struct embed_args *a);
    enum status (*norm)(struct backend *be, const struct norm_args *a);
    enum status (*linear)(struct backend *be, const struct linear_args *a);
    enum status (*linear_heads)(struct backend *be, const struct linear_heads_args *a);
    enum status (*rope_store)(struct backend *be, const struct rope_store_args *a);
    enum status (*mla_store)(struct backend *be, const struct mla_store_args *a);
    enum status (*attention)(struct backend *be, const struct attention_args *a);
    enum status (*activation)(struct backend *be, const struct activation_args *a);
    enum status (*moe_route)(struct backend *be, const struct moe_route_args *a);
    enum status (*moe_ffn)(struct backend *be, const struct moe_ffn_args *a);
    enum status (*row_gate)(struct backend *be, const struct row_gate_args *a);
    enum status (*reduce)(struct backend *be, const struct reduce_args *a);
    enum status (*gather)(struct backend *be, const struct gather_args *a);
    enum status (*logits)(struct backend *be, const struct logits_args *a);
    enum status (*sample)(struct backend *be, const struct sample_args *a);
    enum status (*pool)(struct backend *be, const struct pool_args *a);

    /* ---- optional: NULL is composed from basic ops by engine/device/ops_default.h */
    /* n norms of as many rows and the same width, one after the other. */
    enum status (*norms)(struct backend *be, const struct norm_args *a, int32_t n);
    /* reduce, then norm with the reduced y as its delta; y itself may be left unreduced. */
    enum status (*reduce_norm)(struct backend *be, const struct reduce_args *reduce,
                               const struct norm_args *norm);
    /* linear, then the activation of its y; the product itself need not be stored. */
    enum status (*linear_act)(struct backend *be, const struct linear_args *linear,
                              const struct activation_args *act);
    /* linear_act, then the product `down` of its result; nothing else need be stored. */
    enum status (*mlp)(struct backend *be, const struct linear_args *up,
                       const struct activation_args *act, const struct linear_args *down);
    /* norm, then linear of the norm's out, or mlp of it if act and down are given (both or
     * neither). The norm's out need not be stored. */
    enum status (*norm_linear)(struct backend *be, const struct norm_args *norm,
                               const struct linear_args *linear, const struct activation_args *act,
                               const struct linear_args *down);

    /* A norm that only the following ops read (NULL: none), the shared expert (NULL: none),
     * moe_route, and moe_ffn, which adds to the shared expert's y unless its y is another tensor.
     * Of the intermediate values only the picks and the norm's x need be stored. */
    enum status (*moe)(struct backend *be, const struct norm_args *norm,
                       const struct shared_expert_args *shared, const struct moe_route_args *route,
                       const struct moe_ffn_args *ffn);

    /* Adds to y what adapter_pair says for each row of a sequence with an adapter, after linear
     * with the same args. A row's sums do not depend on the other rows. NULL: adapters are
     * unsupported. */
    enum status (*linear_adapter)(struct backend *be, const struct linear_args *a);
    /* Replaces matrix `index` of a weight of kind WEIGHT_ADAPTER by these numbers, row by row.
     * Called while no step is in flight. NULL: adapters are only loaded with the model. */
    enum status (*weight_adapter_set)(struct backend *be, const struct weight *w, int32_t index,
                                      const float *values);

    /* rope_store, then attention with its q, which may be left unrotated in memory; then, unless
     * NULL, a linear that is the only reader of attention's out, so that out need not be stored. */
    enum status (*rope_attention)(struct backend *be, const struct rope_store_args *rope,
                                  const struct attention_args *attention,
                                  const struct linear_args *linear);

    /* mla_store, the absorbed product of its q, attention, and the product of attention's out with
     * the values' weight. Of these only the key and the last product need be stored. */
    enum status (*mla)(struct backend *be, const struct mla_store_args *store,
                       const struct linear_heads_args *absorb,
                       const struct attention_args *attention,
                       const struct linear_heads_args *expand);

    /* ---- sparse attention: both or none (NULL: models with it are unsupported). */
    enum status (*index_store)(struct backend *be, const struct index_store_args *a);
    enum status (*index_pick)(struct backend *be, const struct index_pick_args *a);

    /* Optional: NULL if models with hyper-connections are unsupported. */
    enum status (*hyper)(struct backend *be, const struct hyper_args *a);

    /* Optional: true if the op, alone or fused, accepts a product left as partial sums in these
     * args and adds them itself. NULL: it never does, so products that it reads must be
     * complete. */
    bool (*norm_adds_sums)(struct backend *be, const struct norm_args *a);
    bool (*rope_store_adds_sums)(struct backend *be, const struct rope_store_args *a);

    /* ---- recurrent state: all of these or none (NULL: models with state are unsupported).
     * Order: state_bytes is called with kv_bytes, state_open with kv_open, copy_states with
     * copy_blocks. */
    enum status (*state_bytes)(struct backend *be, const struct state_set_desc *desc,
                               struct state_sizes *out);
    enum status (*state_open)(struct backend *be, int32_t set, const struct state_set_desc *desc,
                              int32_t n_snapshots, struct err *err);
    enum status (*copy_states)(struct backend *be, int32_t set, int32_t n,
                               const struct state_copy *copies);
    enum status (*short_conv)(struct backend *be, const struct short_conv_args *a);
    enum status (*recurrence)(struct backend *be, const struct recurrence_args *a);
    /* Optional: NULL if models with gated attention or state are unsupported. */
    enum status (*gate)(struct backend *be, const struct gate_args *a);
    /* Optional: short_conv, then the recurrence of its out, then the gate of that result (NULL:
     * none); the intermediate results need not be stored. */
    enum status (*recurrent)(struct backend *be, const struct short_conv_args *conv,
                             const struct recurrence_args *a, const struct gate_args *gate);

    /* Optional: gate, then short_conv of its out, then the gate of that result (NULL: none); the
     * intermediate results need not be stored. */
    enum status (*gated_conv)(struct backend *be, const struct gate_args *before,
                              const struct short_conv_args *conv, const struct gate_args *after);

    /* Optional: NULL if models with several streams (the first two), or with sparse activations,
     * are unsupported. */
    enum status (*streams)(struct backend *be, const struct streams_args *a);
    enum status (*rms_match)(struct backend *be, const struct rms_match_args *a);
    enum status (*cutoff)(struct backend *be, const struct cutoff_args *a);

    /* Optional: NULL if models with experts that return their input are unsupported. */
    enum status (*moe_identity)(struct backend *be, const struct moe_identity_args *a);

    /* ---- hidden states by slot: all of these or none (NULL: draft heads are unsupported).
     * hidden_open is called with kv_open. */
    enum status (*hidden_open)(struct backend *be, int32_t width, enum dtype dtype,
                               struct err *err);
    enum status (*hidden_store)(struct backend *be, const struct hidden_args *a);
    enum status (*hidden_load)(struct backend *be, const struct hidden_args *a);

    /* ---- pages of windowed layers: all of these or none (NULL: all layers keep all tokens). They
     * are to the second tables what lane_blocks, copy_blocks and poison_blocks are to the first. */
    enum status (*lane_pages)(struct backend *be, int32_t lane, int32_t first, int32_t n,
                              const int32_t *pages);
    enum status (*copy_pages)(struct backend *be, int32_t n, const struct block_copy *copies);
    enum status (*poison_pages)(struct backend *be, int32_t n, const int32_t *pages);

    /* Optional: ERR_DEVICE if the device is lost; never waits. */
    enum status (*alive)(struct backend *be);

    /* ---- tests: copies between device memory and the host, after all queued work */
    enum status (*write)(struct backend *be, struct dmem to, const void *from, size_t n_bytes);
    enum status (*read)(struct backend *be, void *to, struct dmem from, size_t n_bytes);
};

/* Rejects a table that lacks a basic op. */
enum status backend_check(const struct backend *be, struct err *err);

static inline struct dmem dmem_at(struct dmem m, size_t offset_bytes)
{
    struct dmem r = {(char *)m.p + offset_bytes};
    return r;
}

#ifdef __cplusplus
}
#endif
#endif
