// SPDX-License-Identifier: Apache-2.0
/* Which weights stay quantised on the device, and their packing. Thread: the rank's owner, but for
 * coded_fill_*: any. */
#ifndef SLUICE_CUDA_CODED_PACK_H
#define SLUICE_CUDA_CODED_PACK_H

#include "cuda/coded.h"
#include "engine/device/ops.h"

#include <stdatomic.h>

/* A weight's parts as one tall matrix. */
struct coded_source {
    struct coded_matrix matrix; // as it will be, without its memory
    const struct weight_part *parts;
    int64_t *first_rows; // of each part; n_parts + 1
    int32_t n_parts;
    bool has_zeros;
    uint64_t dummy_seed; // of dummy weights
    float dummy_scale;
    atomic_bool has_nan; // set by coded_fill_tiles: a code that is no number
};

/* False: the weight is to be stored as numbers. Experts stay quantised where both halves of gate_up
 * would begin a tile. */
bool coded_source_init(struct coded_source *s, const struct weight_desc *d);
void coded_source_deinit(struct coded_source *s);

/* Scales of blocks of 128 x 128 for cuBLASLt (coded_matrix.product_scales), to be freed; NULL: the
 * weight has no such blocks. */
float *coded_product_scales(const struct coded_source *s, int32_t *n_blocks, size_t *n);

/* A tile row (of all experts') for cuda_upload_units. */
void coded_fill_tiles(const void *source, int64_t tile, char *to);
void coded_fill_scales(const void *source, int64_t tile, char *to);
void coded_fill_zeros(const void *source, int64_t tile, char *to);

#endif
