// SPDX-License-Identifier: Apache-2.0
/* What the bytes of a weight in a checkpoint mean. A codec describes a whole tensor: how its
 * numbers lie, and the scales, zeros and groups of inputs that go with them. A part is a window of
 * it: what a rank holds, one expert, one of several projections that were stored as one.
 *
 * weight_part_get is the definition: whatever a backend makes of a weight is tested against it.
 * Thread: any; plain data, whose bytes are the checkpoint's. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_CODEC_H
#define SLUICE_ENGINE_DEVICE_CODEC_H

#include "engine/device/blocks.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How numbers of less than a word share words (a row of the table in codec.c each). */
enum packing {
    PACK_NONE,         // each number by itself
    PACK_BYTES,        // a byte holds numbers of successive columns, the first in its lowest bits
    PACK_WORDS_ACROSS, // likewise 32-bit words
    PACK_WORDS_DOWN,   // 32-bit words of successive rows, the first in the lowest bits
    PACK_WORDS_AWQ,    // 32-bit words of 8 successive rows, in AWQ's order
};

/* A matrix of stored numbers: (row, col) lies row * row_stride + col * col_stride numbers from the
 * first; of packed ones the unit that holds it, both being counted in units along the way in which
 * they are packed. A stride of 0: all have the same. */
struct number_grid {
    const void *data; // NULL: there are none; may lie at any address
    enum dtype dtype;
    enum packing packing;
    int64_t row_stride, col_stride;
};

/* What the scale of a whole tensor does to those of its blocks. */
enum tensor_scale { TENSOR_SCALE_NONE, TENSOR_SCALE_TIMES, TENSOR_SCALE_DIVIDES };

/* Weight (row, col), row being the output and col the input, is, in fp32,
 *
 *     (values - zero) * scale
 *
 * zero and scale being those of the block (row / block_rows, col / block_cols), which is cut off at
 * the tensor's edges. With `groups` a column's second index is groups[col] instead. The scale of
 * the whole tensor is applied to the block's first, and rounded. Without scales the values
 * themselves are the weights: that is a plain tensor.
 *
 * With `blocks` numbers, scales and offsets lie together instead (blocks.h): values.data is the
 * first block, values.row_stride counts the blocks of a row, and of the rest only the size of what
 * shares a scale and the zero are set. */
struct weight_codec {
    const char *format;                // for messages
    const struct block_format *blocks; // NULL: as said first
    struct number_grid values;
    struct number_grid scales, zeros;
    int64_t block_rows, block_cols; // at least 1 where there are scales
    const void *groups;             // int32 of each column, at any address; NULL: none
    int32_t zero;                   // added to each of `zeros`; without them it is the zero
    enum tensor_scale tensor_scale_use;
    float tensor_scale;
};

/* What a format asks of a product's inputs, unless they are to be multiplied as they are: that each
 * becomes (round(x / scale) + zero, cut off to the numbers' range, - zero) * scale, in fp32. With
 * from_row the scale is found from each row, or from each `group` of its inputs, counted from the
 * tensor's first:
 *
 *     E4M3  max|x| / 448, of groups at least 1e-10; with power_of_two the next one that is not
 * below I8    max|x| / 127; asymmetric: (max - min) / 255, and the zero at -128 - min / scale E2M1
 * `scale` times the E4M3 number nearest to max|x| / 6 / scale; with power_of_two that of MX
 * formats: the exponent of max|x|, rounded to one bit behind the first, less 2 */
enum input_numbers { INPUT_AS_IT_IS, INPUT_E4M3, INPUT_I8, INPUT_E2M1 };
struct input_rule {
    enum input_numbers numbers;
    bool from_row, power_of_two, asymmetric;
    int32_t group;     // 0: the row
    float scale, zero; // stored ones; 0: none
    int64_t n_inputs;  // of the tensor
};

/* Element (r, c) is the tensor's (first_row + r * row_step, first_col + c * col_step), or, when
 * transposed, (first_row + c * row_step, first_col + r * col_step). values.data == NULL: dummy
 * weights, which the backend makes up in place from `dummy_seed`, (normal, standard deviation
 * dummy_scale). */
struct weight_part {
    struct weight_codec codec;
    int64_t n_rows, n_cols;
    int64_t first_row, first_col, row_step, col_step;
    bool transposed;
    struct input_rule inputs; // of products with it
};

float number_get(const struct number_grid *g, int64_t row, int64_t col);

/* A whole plain tensor, row by row; row_stride in elements. data NULL: dummy weights. */
struct weight_part weight_part_plain(const void *data, enum dtype dtype, int64_t n_rows,
                                     int64_t n_cols, int64_t row_stride);

/* One whose rows are blocks, n_cols / format->n of them. */
struct weight_part weight_part_blocks(const void *data, const struct block_format *format,
                                      int64_t n_rows, int64_t n_cols);

/* Windows of a part. A cut may lie anywhere, also inside a block. */
struct weight_part weight_part_slice(struct weight_part p, int64_t first_row, int64_t n_rows,
                                     int64_t first_col, int64_t n_cols);
/* n_rows rows from first_row on, `step` apart. */
struct weight_part weight_part_every(struct weight_part p, int64_t first_row, int64_t step,
                                     int64_t n_rows);
struct weight_part weight_part_transpose(struct weight_part p);

/* The weight at (row, col); 0 of dummy weights. */
float weight_part_get(const struct weight_part *p, int64_t row, int64_t col);
/* The same of columns [first, first + n) of a row, which is faster. */
void weight_part_read(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                      float *out);
/* What weight_part_get puts together, for backends that keep a weight quantised: the number as it
 * is stored, its zero, and its block's scale, to which that of the whole tensor is still to be
 * applied. Not of dummy weights. */
uint32_t weight_part_code(const struct weight_part *p, int64_t row, int64_t col);
float weight_part_zero(const struct weight_part *p, int64_t row, int64_t col);
float weight_part_scale(const struct weight_part *p, int64_t row, int64_t col);
float weight_codec_scale(const struct weight_codec *c, float block_scale);
/* Codes of 8 bits and less of columns [first, first + n) of a row, a byte each. */
void weight_part_codes(const struct weight_part *p, int64_t row, int64_t first, int64_t n,
                       uint8_t *out);
/* Of a part in blocks: the scale in its two steps, and the offset. */
struct block_scale weight_part_block_scale(const struct weight_part *p, int64_t row, int64_t col);

/* Where the row lies in the checkpoint as numbers of this type, one behind the other, that are the
 * weights; NULL: it does not. At any address. */
const void *weight_part_stored(const struct weight_part *p, enum dtype dtype, int64_t row);

bool weight_part_is_dummy(const struct weight_part *p);
/* Whether the weights are stored as such, without scales. */
bool weight_part_is_plain(const struct weight_part *p);

#ifdef __cplusplus
}
#endif
#endif
