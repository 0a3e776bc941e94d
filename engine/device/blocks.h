// SPDX-License-Identifier: Apache-2.0
/* Weights stored in blocks that hold elements and scales together, as in GGUF files: a row of a
 * tensor is a sequence of blocks. One table row per format.
 *
 * Element i of a block is
 *
 *     (value of its code - zero) * (unit * steps) + offset_unit * offset_steps
 *
 * in fp32, with the scale of the (i / shared)-th part of the block. Products of units and steps are
 * exact: a 16-bit float times an 8-bit integer.
 * Thread: any; constant data. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_BLOCKS_H
#define SLUICE_ENGINE_DEVICE_BLOCKS_H

#include "engine/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MAX_BLOCK_NUMBERS = 256 };

/* The scale of a part is unit * steps. In blocks with one level of scales, steps is 1. */
struct block_scale {
    float unit, offset_unit; // offset_unit is 0 if there is no offset
    int32_t steps, offset_steps;
};

struct block_format {
    const char *name; // GGUF's name
    enum dtype code;  // type of a code
    int32_t n, n_bytes;
    int32_t shared; // elements that share a scale
    int32_t zero;
    bool has_offset, has_steps;
    enum dtype unit; // F16 or E8M0: a type that holds every unit exactly
    /* Unpacks the codes of a whole block at any address, one byte each. */
    void (*codes)(const unsigned char *block, uint8_t *out);
    struct block_scale (*scale)(const unsigned char *block, int32_t part);
};

const struct block_format *block_format_find(const char *name); // NULL if there is none

static inline float block_scale_value(struct block_scale s)
{
    return s.unit * (float)s.steps;
}

static inline float block_offset_value(struct block_scale s)
{
    return s.offset_unit * (float)s.offset_steps;
}

#ifdef __cplusplus
}
#endif
#endif
