// SPDX-License-Identifier: Apache-2.0
/* Decides which weights stay quantised on the device, and packs them.
 * Thread: the rank's owner, except coded_fill_*: any. */
#ifndef SLUICE_CUDA_CODED_PACK_H
#define SLUICE_CUDA_CODED_PACK_H

#include "cuda/coded.h"
#include "engine/device/ops.h"

#include <stdatomic.h>

/* A weight's parts, stacked into one tall matrix. */
struct coded_source {
    struct coded_matrix matrix; // what the matrix will be; its memory is not allocated yet
    const struct weight_part *parts;
    int64_t *first_rows; // n_parts + 1 entries: the first row of each part
    int32_t n_parts;
    bool has_zeros;
    uint64_t dummy_seed; // for dummy weights
    float dummy_scale;
    atomic_bool has_nan; // set by coded_fill_tiles when it meets a NaN code
};

/* Returns false if the weight must be stored in floating point. Experts stay quantised only if both
 * halves of gate_up start at a tile boundary. */
bool coded_source_init(struct coded_source *s, const struct weight_desc *d);
void coded_source_deinit(struct coded_source *s);

/* True if the scales are those of blocks of 128 x 128, and parts consist of whole blocks, except
 * that the last one may end inside a block. */
bool coded_has_blocks(const struct coded_source *s);

/* The scales of 128 x 128 blocks for cuBLASLt (coded_matrix.product_scales), which the caller
 * frees. NULL: the weight has no such blocks. */
float *coded_product_scales(const struct coded_source *s, int32_t *n_blocks, size_t *n);

/* upload_fill callback: packs one tile row (tile rows are numbered through all experts). */
void coded_fill_tiles(const void *source, int64_t tile, char *to);
void coded_fill_scales(const void *source, int64_t tile, char *to);
void coded_fill_zeros(const void *source, int64_t tile, char *to);

#endif
