// SPDX-License-Identifier: Apache-2.0
/* The meaning of a weight's bytes in a checkpoint. A codec describes a whole tensor: how its
 * elements are packed, and the scales, zeros and input groups that belong to it. A part is a window
 * of a tensor: a rank's share, one expert, or one of several projections stored together.
 *
 * weight_part_get is the definition: a backend's packed form of a weight is tested against it.
 * Thread: any; plain data that points into the checkpoint. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_CODEC_H
#define SLUICE_ENGINE_DEVICE_CODEC_H

#include "engine/device/blocks.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How elements smaller than a word are packed (each is a row of the table in codec.c). */
enum packing {
    PACK_NONE,         // each element by itself
    PACK_BYTES,        // bytes of successive columns, the first in the lowest bits
    PACK_BYTES_BACK,   // bytes of two successive columns, the first in the highest bits
    PACK_WORDS_ACROSS, // 32-bit words of successive columns, the first in the lowest bits
    PACK_WORDS_DOWN,   // 32-bit words of successive rows, the first in the lowest bits
    PACK_WORDS_AWQ,    // 32-bit words of 8 successive rows, in AWQ's order
    PACK_BYTES_APART,  // bytes of rows that are `apart` rows apart, the first in the lowest bits
};

/* A matrix of stored elements: (row, col) is element row * row_stride + col * col_stride. For
 * packed elements, indices along the packed dimension count units (bytes or words), and this
 * locates the unit that holds the element. With a stride of 0 all elements along that dimension are
 * the same. */
struct number_grid {
    const void *data; // NULL: none; need not be aligned
    enum dtype dtype;
    enum packing packing;
    int64_t row_stride, col_stride;
    int64_t apart; // for PACK_BYTES_APART
};

/* How a whole-tensor scale is applied to the scales of blocks. */
enum tensor_scale { TENSOR_SCALE_NONE, TENSOR_SCALE_TIMES, TENSOR_SCALE_DIVIDES };

/* Scales that are quantised themselves, in blocks of `shared` in the order in which they are
 * stored: code i means values[code] * units[i / shared] + offset. */
struct scale_codes {
    const void *values; // f32, one for each code of 8 bits; NULL: the scales are not quantised
    const void *units;  // f32; neither need be aligned
    int64_t shared;
    float offset;
};

/* Weight (row, col), where row is the output and col the input, is in fp32
 *
 *     (values - zero) * scale
 *
 * with the zero and scale of block (row / block_rows, col / block_cols); blocks are cut off at the
 * tensor's edges. With `groups` the block's second index is groups[col] instead. A whole-tensor
 * scale is applied to the block's scale first, and the result is rounded. Without scales the values
 * are the weights: a plain tensor.
 *
 * With `blocks`, elements, scales and offsets are stored together instead (blocks.h): values.data
 * is the first block and values.row_stride the number of blocks per row. Of the other fields only
 * block_cols (the number of elements that share a scale) and zero are set. */
struct weight_codec {
    const char *format, *name;         // for messages; `name` is the tensor that holds the values
    const struct block_format *blocks; // NULL: the layout described first
    struct number_grid values;
    struct number_grid scales, zeros;
    struct scale_codes scale_codes;
    int64_t block_rows, block_cols; // at least 1 if there are scales
    const void *groups;             // int32 per column, need not be aligned; NULL: none
    int32_t zero;                   // added to each of `zeros`; if there are none, it is the zero
                                    // itself
    enum tensor_scale tensor_scale_use;
    float tensor_scale;
};

/* How a format rounds the inputs of a product, if it does: each x becomes (clamp(round(x / scale) +
 * zero) - zero) * scale in fp32. With from_row the scale is computed from each row, or from each
 * `group` of its inputs, counted from the tensor's first input:
 *
 *     E4M3  max|x| / 448, in groups at least 1e-10; with power_of_two rounded up to a power of two;
 *           with `limit` at most limit / 448
 *     I8    max|x| / 127; asymmetric: (max - min) / 255, and the zero is -128 - min / scale
 *     E2M1  `scale` times the E4M3 value nearest to max|x| / 6 / scale; with power_of_two the scale
 *           of MX formats, 2^(e - 2), where e is the exponent of max|x| rounded to one fraction bit
 */
enum input_numbers { INPUT_AS_IT_IS, INPUT_E4M3, INPUT_I8, INPUT_E2M1 };
struct input_rule {
    enum input_numbers numbers;
    bool from_row, power_of_two, asymmetric;
    int32_t group;     // 0: the whole row
    float limit;       // 0: none
    float scale, zero; // stored values; 0: none
    int64_t n_inputs;  // of the tensor
};

/* Columns that are stored in another order than the part has them, in runs of `size`: run g * each
 * + j, where g < groups, is stored as run j * groups + g. Size 0: they are in order. */
struct column_runs {
    int64_t size, each, groups;
};

/* Element (r, c) is the tensor's (first_row + r * row_step, first_col + c * col_step), or if
 * transposed (first_row + c * row_step, first_col + r * col_step). values.data == NULL means dummy
 * weights, which the backend generates from `dummy_seed` (normal, with standard deviation
 * dummy_scale). */
struct weight_part {
    struct weight_codec codec;
    int64_t n_rows, n_cols;
    int64_t first_row, first_col, row_step, col_step;
    bool transposed;
    struct column_runs runs; // of the tensor; then the part is not transposed and takes all columns
    struct input_rule inputs; // rule for the inputs of products with this weight
};

float number_get(const struct number_grid *g, int64_t row, int64_t col);

/* A whole plain tensor, row by row; row_stride in elements. data NULL: dummy weights. */
struct weight_part weight_part_plain(const void *data, enum dtype dtype, int64_t n_rows,
                                     int64_t n_cols, int64_t row_stride);

/* A tensor stored in blocks; a row has n_cols / format->n of them. */
struct weight_part weight_part_blocks(const void *data, const struct block_format *format,
                                      int64_t n_rows, int64_t n_cols);

/* Windows of a part. They may start and end anywhere, even inside a block. */
struct weight_part weight_part_slice(struct weight_part p, int64_t first_row, int64_t n_rows,
                                     int64_t first_col, int64_t n_cols);
/* n_rows rows from first_row on, `step` apart. */
struct weight_part weight_part_every(struct weight_part p, int64_t first_row, int64_t step,
                                     int64_t n_rows);
struct weight_part weight_part_transpose(struct weight_part p);

/* The weight at (row, col); 0 for dummy weights. */
float weight_part_get(const struct weight_part *p, int64_t row, int64_t col);
/* The weights at columns [first, first + n) of a row; faster than one by one. */
void weight_part_read(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                      float *out);
/* The components of weight_part_get, for backends that keep a weight quantised: the stored code,
 * its zero, and its block's scale, before the whole-tensor scale is applied. Not for dummy
 * weights. */
uint32_t weight_part_code(const struct weight_part *p, int64_t row, int64_t col);
float weight_part_zero(const struct weight_part *p, int64_t row, int64_t col);
float weight_part_scale(const struct weight_part *p, int64_t row, int64_t col);
float weight_codec_scale(const struct weight_codec *c, float block_scale);
/* Codes of up to 8 bits of columns [first, first + n) of a row, one byte each. */
void weight_part_codes(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                       uint8_t *out);
/* For parts in blocks: the two levels of the scale, and the offset. */
struct block_scale weight_part_block_scale(const struct weight_part *p, int64_t row, int64_t col);

/* The address of the row's weights in the checkpoint, if they are stored contiguously with this
 * dtype; otherwise NULL. The address need not be aligned. */
const void *weight_part_stored(const struct weight_part *p, enum dtype dtype, int64_t row);

bool weight_part_is_dummy(const struct weight_part *p);
/* True if the stored elements are the weights, without scales. */
bool weight_part_is_plain(const struct weight_part *p);

#ifdef __cplusplus
}
#endif
#endif
