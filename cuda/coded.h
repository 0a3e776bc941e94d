// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised on the device: their layout, which the host packs (coded_pack.c) and
 * kernels read (kernels/gemm/coded.cu).
 *
 * The matrix is cut into tiles of 16 outputs by a chunk of inputs that fills 1,024 bytes: 64 of 8
 * bits or 128 of 4. Of a tile each lane of a warp reads 16 bytes of output g and 16 of output g +
 * 8, where its lane is 4 g + t.
 *
 * - 8 bits: outputs lie one behind the other, padded to whole chunks with zeros, which is also what
 *   cuBLASLt reads. Word j of t's is, in an mma, inputs 32 (j / 2) + 8 t + 4 (j % 2) and the
 * next 3.
 * - 4 bits: a tile's bytes are contiguous, all lanes' first 16 first, and so are a tile row's
 *   chunks. Word j of t's is inputs 32 j + 8 i + 2 t in nibble i and the next one in nibble i + 4,
 *   for i of 0 to 3: what a thread has of the operand in registers of two mma or wgmma, of which
 *   the other operand lies in shared memory as it is.
 *
 * Scales and zeros of a tile lie in records of 16 outputs by the groups of a chunk, or, of groups
 * that span chunks, by one. Compiles as C11 and C++17. */
#ifndef SLUICE_CUDA_CODED_H
#define SLUICE_CUDA_CODED_H

#include "engine/device/dtype.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CODED_ROWS = 16, CODED_TILE_BYTES = 1024, CODED_WORDS = 4 }; // words: of a lane and output

/* Weight = (code - zero) * scale. */
struct coded_matrix {
    const uint8_t *tiles;  // [n_experts, n_tiles, n_chunks, CODED_TILE_BYTES] of 4 bits;
                           // [n_experts, n_tiles * CODED_ROWS, coded_row_bytes] of 8
    const uint8_t *scales; // [n_experts, n_tiles, n_records, CODED_ROWS, record_groups]
    const uint8_t *zeros;  // likewise, a byte each; NULL: all are `zero`
    enum dtype code;       // DT_E4M3, DT_U4 or DT_E2M1
    enum dtype scale;      // DT_F32; of DT_E2M1 DT_E8M0
    int32_t zero;          // of DT_U4 alone
    int32_t n_out, n_in, n_experts;
    int32_t n_tiles, n_chunks;
    int32_t n_records, record_groups; // of a tile row; groups in a record: 1, 2 or 4
    int32_t record_shift;             // 2^this chunks share a record
    int32_t record_bytes;             // of scales
    /* Of 8 bits, for cuBLASLt: a scale for each output, or, with product_blocks, for each block of
     * 128 x 128, [outputs / 128, product_blocks]. NULL: it has no such scales. */
    const float *product_scales;
    int32_t product_blocks;
};

static inline int32_t coded_chunk(enum dtype code)
{
    return code == DT_E4M3 ? 64 : 128;
}

static inline int64_t coded_row_bytes(const struct coded_matrix *m) // of 8 bits
{
    return (int64_t)m->n_chunks * 64;
}

static inline size_t coded_tiles_bytes(const struct coded_matrix *m) // of a tile row
{
    return (size_t)m->n_chunks * CODED_TILE_BYTES;
}

/* Rows that a block takes: int4 by 32 or 64, with more scales and zeros, leaves room for fewer. */
static inline int32_t coded_most_rows(const struct coded_matrix *m)
{
    return m->code == DT_U4 && m->record_groups > 1 ? 16 : 32;
}

/* What a product with such a weight reads and writes. */
struct coded_args {
    const void *x; // rows x_stride apart, at 16 bytes
    void *y;
    const float *bias;           // [n_experts, n_out], or NULL
    enum dtype x_dtype, y_dtype; // y: that of x, or DT_F32
    int32_t n_rows;
    int64_t x_stride, y_stride; // in elements
    bool accumulate;            // y += instead of y =
    bool gated; // y = act(gate) * up of the matrix's two halves; product and activation are one
                // rounding apart, as they are as two ops, unless there are places
    int32_t activation; // enum activation, of gated ones
    float limit, alpha; // struct act_shape
    /* Experts: rows by place in a work list (struct moe_scratch of kernels.h), n_places tiles of up
     * to tile_rows, which is no more than coded_most_rows. */
    const int32_t *sorted, *first, *tile_expert, *tile_first, *n_list;
    int32_t n_places, tile_rows, k;
    const float *weights; // of gated ones with places: by sorted[place], of both halves; or NULL
    bool x_is_sorted, y_is_sorted; // x row: sorted[place] / k; y row: sorted[place]
};

/* Whether the kernel can read x and make y. */
bool gemm_coded_takes(const struct coded_matrix *m, const struct coded_args *a);
cudaError_t gemm_coded(cudaStream_t stream, const struct coded_matrix *m,
                       const struct coded_args *a);
/* All of one matrix as numbers of dtype (16 bits) [n_rows, n_in], from output first_row on, which
 * begins a tile; each rounded once. */
cudaError_t coded_expand(cudaStream_t stream, const struct coded_matrix *m, int32_t first_row,
                         int32_t n_rows, void *to, enum dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
