// SPDX-License-Identifier: Apache-2.0
/* Recurrent layers: their configuration, their tensors' names, and the share that a rank holds. All
 * layers with a state in a model are alike. Private to engine/model.
 * Thread: plain data, constant once filled in. */
#ifndef SLUICE_ENGINE_MODEL_RECURRENT_H
#define SLUICE_ENGINE_MODEL_RECURRENT_H

#include "engine/device/ops.h"

struct state_config {
    struct state_layer layer; // of all ranks together
    bool conv_bias, conv_silu, in_bias, out_bias;
    float q_scale, k_scale, v_scale;   // factors of the convolution's input channels; 0: none
    float decay_scale, gate_scale;     // factors of the inputs of decays and gates; 0: none
    float beta_scale;                  // of a delta's strengths; 0: none
    float decay_bound, dt_min, dt_max; // see struct recurrence_args
    /* A head has a fixed decay: the exponential of -2^(-8 (h + 1) / heads) times a factor that
     * falls from one layer to the next, from 1 to nearly 0. */
    bool fixed_decays;
    int32_t low_rank;        // rank of the products that compute decays and gates; 0: full rank
    enum gate_act gate;      // activation of the output gates
    bool normed, gate_first; // an RMS norm, after the gate or before it
    int32_t norm_group;      // number of values that are normed together
    bool norm_is_wide; // the norm has separate weights for every group, instead of one set shared
                       // by all groups
    float norm_eps;
    /* As GGUF files store them: decays as -e^a_log (sign -1) or e^a_log (1), instead of a_log (0);
     * value heads by their place among those of a key head, then by key head, instead of by key
     * head first. */
    int32_t decay_sign;
    bool heads_are_tiled;
};

/* Names that follow "model.layers.N.", without ".weight" if the tensor's name ends in it. The
 * layer's first product has one of these forms:
 *   in (STATE_DECAY)   z, values, keys, queries, strengths
 *   in (STATE_CONV)    gate before, gate after, values
 *   heads, z           by head: q, k, v; z in order; with fixed decays
 *   qkvz, ba           by key head: q, k, its v, its z; its b, its a
 *   qkv, z, b, a       each in order; or with q, k, v instead of qkv, or ba instead of b and a
 *   q, k, v, b         each in order, with f and g, or f_a, f_b, g_a, g_b of low_rank */
struct state_names {
    const char *in, *heads, *qkvz, *ba, *qkv, *q, *k, *v, *z, *b, *a;
    const char *f, *g, *f_a, *f_b, *g_a, *g_b;
    const char *conv, *conv_q, *conv_k, *conv_v; // one convolution, or three; none: of width 1,
                                                 // without weights
    const char *a_log, *dt_bias, *skip, *norm, *out;
    /* The norms before both halves of these layers, if the model's other layers have norms only
     * after them; NULL: all layers have the same. */
    const char *attn_norm, *ffn_norm;
    bool a_log_is_deep; // [1, 1, heads, 1]
};

struct state_weights {
    const struct weight *in, *f_b, *g_b, *conv, *conv_bias, *a_log, *dt_bias, *skip, *norm, *out;
};

/* A rank's heads, and the offsets of their values in a row of the layer's first product. The
 * convolution's channels are queries, keys and values; for STATE_CONV there are only values. */
struct state_shard {
    struct state_layer layer;
    int32_t first_head, first_key_head, first_channel;
    // The heads whose outputs this rank's output product reads, and their total width.
    int32_t first_o, n_o, o_width;
    int32_t q_at, k_at, v_at;
    int32_t gate_at, in_gate_at, beta_at, decay_at, low_at; // -1: absent
    int32_t width, out_width;
};

struct model_config;
/* False: the number of ranks does not divide the heads. */
bool state_shard_of(const struct model_config *c, int32_t rank, int32_t n_ranks,
                    struct state_shard *out);

#endif
