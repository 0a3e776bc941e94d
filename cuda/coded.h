// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised on the device: the layout that the host packs (coded_pack.c) and the
 * kernels read (kernels/gemm/coded.cu).
 *
 * The matrix is divided into tiles of 16 outputs by one chunk of inputs. A chunk fills 1,024 bytes:
 * 64 inputs of 8 bits or 128 of 4. Lane 4 g + t of a warp reads 16 bytes of output g and 16 bytes
 * of output g + 8 of a tile.
 *
 * - 8 bits: outputs are stored contiguously, padded with zeros to whole chunks, which is also the
 *   layout that cuBLASLt reads. Word j of thread t feeds an mma with inputs 32 (j / 2) + 8 t + 4 (j
 *   % 2) and the three after it.
 * - 4 bits: the bytes of a tile are contiguous (the first 16 bytes of every lane, then the second
 *   16), and so are the chunks of a tile row. Word j of thread t has input 32 j + 8 i + 2 t in
 *   nibble i and the next input in nibble i + 4, for i from 0 to 3. This is a thread's part of the
 *   register operand of two mma or wgmma instructions; their other operand is used from shared
 *   memory unchanged.
 *
 * The scales and zeros of a tile are stored in records: 16 outputs by the groups of one chunk, or,
 * for 8 bits, by one group where a group spans several chunks. Compiles as C11 and C++17. */
#ifndef SLUICE_CUDA_CODED_H
#define SLUICE_CUDA_CODED_H

#include "engine/device/dtype.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CODED_WORDS: per lane and output. */
enum { CODED_ROWS = 16, CODED_TILE_BYTES = 1024, CODED_WORDS = 4 };

/* The codes that the kernels read. Each needs a row on the host (`formats` in coded_pack.c), a
 * struct code_of for the kernels (kernels/device/codes.cuh), and a case in the launchers and in
 * coded_bits. There is no default: the compiler warns if a case is missing. */
enum coded_code { CODED_E4M3, CODED_U4, CODED_E2M1 };

/* Weight = (code - zero) * scale. */
struct coded_matrix {
    const uint8_t *tiles;  // 4 bits: [n_experts, n_tiles, n_chunks, CODED_TILE_BYTES]; 8 bits:
                           // [n_experts, n_tiles * CODED_ROWS, coded_row_bytes]
    const uint8_t *scales; // [n_experts, n_tiles, n_records, CODED_ROWS, record_groups]
    const uint8_t *zeros;  // one byte each, same shape; NULL: all zero points equal `zero`
    enum coded_code code;
    enum dtype scale; // DT_F32 or DT_E8M0
    int32_t zero;     // for CODED_U4 only
    int32_t n_out, n_in, n_experts;
    int32_t n_tiles, n_chunks;
    int32_t n_records, record_groups; // records per tile row; groups per record (1, 2 or 4)
    int32_t record_shift;             // 2^record_shift chunks share a record; 0 for 4 bits
    int32_t record_bytes;             // bytes of the scales in one record
    /* 8-bit weights for cuBLASLt: one scale per output or, if product_blocks is not 0, one per
     * block of 128 x 128, [outputs / 128, product_blocks]. NULL: cuBLASLt cannot apply this
     * weight's scales. */
    const float *product_scales;
    int32_t product_blocks;
};

static inline int32_t coded_bits(enum coded_code code)
{
    switch (code) {
    case CODED_E4M3: return 8;
    case CODED_U4:
    case CODED_E2M1: return 4;
    }
    return 0;
}

static inline int32_t coded_chunk(enum coded_code code)
{
    return coded_bits(code) == 8 ? 64 : 128;
}

static inline int64_t coded_row_bytes(const struct coded_matrix *m) // for 8-bit codes only
{
    return (int64_t)m->n_chunks * 64;
}

static inline size_t coded_tiles_bytes(const struct coded_matrix *m) // bytes of one tile row
{
    return (size_t)m->n_chunks * CODED_TILE_BYTES;
}

/* The maximum number of rows of x that a block processes. int4 in groups of 32 or 64 has more
 * scales and zeros, which leave memory for fewer rows. */
static inline int32_t coded_most_rows(const struct coded_matrix *m)
{
    return m->code == CODED_U4 && m->record_groups > 1 ? 16 : 32;
}

/* Operands and results of a product with a quantised weight. */
struct coded_args {
    const void *x; // rows are x_stride apart and aligned to 16 bytes
    void *y;
    const float *bias;           // [n_experts, n_out], or NULL
    enum dtype x_dtype, y_dtype; // y: the dtype of x, or DT_F32
    int32_t n_rows;
    int64_t x_stride, y_stride; // in elements
    bool accumulate;            // y += instead of y =
    bool gated; // y = act(gate) * up, with the two halves of the matrix's outputs. Unless there is
                // a work list, the product is rounded before the activation, as in two separate ops
    int32_t activation; // enum activation, if gated
    float limit, alpha; // struct act_shape
    /* Experts: the rows are given by their places in a work list (struct moe_scratch in kernels.h),
     * as n_places tiles of up to tile_rows rows. tile_rows is at most coded_most_rows. */
    const int32_t *sorted, *first, *tile_expert, *tile_first, *n_list;
    int32_t n_places, tile_rows, k;
    const float *weights; // only if gated and with a work list: the weight of sorted[place], which
                          // multiplies both halves; or NULL
    bool x_is_sorted, y_is_sorted; // if set, x is read at row sorted[place] / k, and y written at
                                   // row sorted[place]; otherwise at row `place`
};

/* True if the kernel supports this layout of x and y. */
bool gemm_coded_takes(const struct coded_matrix *m, const struct coded_args *a);
cudaError_t gemm_coded(cudaStream_t stream, const struct coded_matrix *m,
                       const struct coded_args *a);
/* Dequantises n_rows outputs of the matrix to dtype (16 bits), [n_rows, n_in], starting with output
 * first_row, which must be the first of a tile. Each value is rounded once. */
cudaError_t coded_expand(cudaStream_t stream, const struct coded_matrix *m, int32_t first_row,
                         int32_t n_rows, void *to, enum dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
