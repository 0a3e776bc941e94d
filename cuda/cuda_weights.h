// SPDX-License-Identifier: Apache-2.0
/* Weights and rope tables on the device. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_WEIGHTS_H
#define SLUICE_CUDA_CUDA_WEIGHTS_H

#include "cuda/coded.h"
#include "cuda/cuda_device.h"
#include "cuda/kernels/kernels.h"

struct weight {
    enum weight_kind kind;
    enum dtype dtype;
    int64_t n_out, n_in;
    int32_t n_experts;
    void *data; // [n_experts, n_out, n_in]; NULL: the weight stays quantised, see `coded`
    struct coded_matrix coded; // valid if coded.tiles is not NULL
    bool has_blocks;           // the scales of `coded` are those of blocks of 128 x 128
    struct input_rule inputs;  // its member `numbers` is INPUT_E4M3 or INPUT_AS_IT_IS
    float *input_scales;       // EXPERTS with stored scales of their inputs: [n_experts]; or NULL
    float *bias;               // [n_experts, n_out] or NULL
    void *bias_act;            // for LINEAR: a copy in the weight's dtype, if that has 16 bits
    struct weight *next;
};

/* NULL: the weight is stored in floating point. */
static inline const struct coded_matrix *weight_coded(const struct weight *w)
{
    return w->coded.tiles ? &w->coded : NULL;
}

/* NULL: the inputs are not rounded. */
static inline const struct input_rule *weight_inputs(const struct weight *w)
{
    if (w->inputs.numbers == INPUT_E4M3) {
        return &w->inputs;
    }
    return NULL;
}

struct rope_table {
    struct rope_view view;
    struct rope_table *next;
};

enum status cuda_weight_open(struct backend *base, const struct weight_desc *desc,
                             struct weight **out, struct err *err);
size_t cuda_weight_bytes(const struct weight *w);
enum status cuda_weight_adapter_set(struct backend *base, const struct weight *w, int32_t index,
                                    const float *values);
enum status cuda_rope_open(struct backend *base, const struct rope_desc *desc,
                           struct rope_table **out);

#endif
