// SPDX-License-Identifier: Apache-2.0
/* Matrix products: y = x W^T (+ bias) (+ y). Makers: cuBLASLt (plans cached by shape), own kernels
 * for few rows (gemm_small.cu, gemm_wide.cu, gemm_batch.cu; gemm_head.cu: the output head), and one
 * family of tiled kernels whose result for a row does not depend on the number of rows
 * (gemm_tile.cu), which deterministic mode, odd shapes and the experts use. Weights that stay
 * quantised: gemm_coded.
 * Compiles as C11 and C++17. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_H
#define SLUICE_CUDA_GEMM_H

#include "cuda/coded.h"
#include "cuda/layout.h"
#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A product left as sums over n runs of K, [n_rows, width] each, stride elements apart; plus
 * bias, which may be NULL, it is the product. n 0: there is none. */
struct sum_parts {
    const float *first, *bias;
    int64_t stride;
    int32_t width, n;
};

/* The best of each row of logits in each band of columns: what a greedy draw reads instead of the
 * row. id INT32_MAX: the band has nothing above -infinity. */
struct best_pair {
    float value;
    int32_t id;
};
enum { MAX_BEST_ROWS = 256, MIN_BEST_BAND = 216 }; // of gemm_head.cu
struct row_bests {
    struct best_pair *pairs; // [rows, stride], of which a row has n_bands
    int32_t stride, n_bands; // n_bands 0: there are none
};

/* Scales of a product of E4M3 codes. Of rows: of x [n_rows], of the weight [n_out]. Of blocks: of x
 * [n_in / 128, n_rows], of the weight [n_out / 128, n_blocks]. */
struct product_scales {
    const float *w, *x;
    int32_t n_blocks; // 0: of rows
};

struct gemm_args {
    const void *x;                        // [n_rows, n_in], rows x_stride apart
    const void *weight;                   // [n_out, n_in]; NULL:
    const struct coded_matrix *coded;     // what stays quantised, or NULL
    const struct product_scales *scales;  // of codes in x and weight, or NULL
    const struct input_rule *inputs;      // how x is rounded before, to E4M3; NULL: not at all
    bool is_rounded;                      // it is, where cuda_gemm_codes said
    void *y;                              // [n_rows, n_out], rows y_stride apart
    const float *bias;                    // [n_out], or NULL
    const void *bias_act;                 // the same in the dtype of x, or NULL
    enum dtype x_dtype, w_dtype, y_dtype; // y: that of x, or DT_F32
    int32_t n_rows, n_out, n_in;
    int32_t x_stride, y_stride; // in elements
    int32_t w_stride;           // the same of the weight; 0: dense. Others: cuBLASLt alone
    bool accumulate;            // y += instead of y =
    bool is_fresh;              // the kernel before made the weight: none may read it early
    bool may_split;             // it may be left as sums: see cuda_gemm
    bool gated; // y = silu(gate) * up, half as wide, of n_out's two halves: own kernels alone
    /* A batch of n_batch equal products: strides of one to the next, in elements. 1: plain. */
    int32_t n_batch;
    int64_t x_batch, w_batch, y_batch;
};

/* gemm_small.cu: whether it takes this product (few rows, aligned, of 16 bits or codes), and the
 * launch. It reads the weight before the kernels ahead are done. */
bool gemm_small_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_small(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

/* gemm_wide.cu: 33 to 128 rows of aligned 16-bit products. With n_splits of 1, which more than 64
 * rows have only where gated, it makes y; else it leaves that many sums at sums->first (rows dense,
 * sums->stride from one to the next), for the op that reads the product to add; gemm_join makes y
 * of them, which only benchmarks and tests want. */
struct wide_plan {
    int32_t band;     // features of a block: 128, or 192 of fp32 and sums, 112 of others; gated
                      // above 64 rows 224
    int32_t n_splits; // of K
};
/* Whether it takes this product, and how; sums_bytes: the room for sums. */
bool gemm_wide_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms, size_t sums_bytes,
                     struct wide_plan *plan);
cudaError_t gemm_wide(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                      const struct wide_plan *plan, const struct sum_parts *sums);
cudaError_t gemm_join(cudaStream_t stream, const struct gemm_args *a, const struct sum_parts *sums);

/* gemm_batch.cu: gated products of 209 rows and more, aligned and of 16 bits, that fill its tiles.
 */
bool gemm_batch_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_batch(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

/* gemm_head.cu: the output head's logits, fp32, of up to 256 rows, and the bests of each row. With
 * `pass`, rows that its greedy draws alone read, or none, are left as they were. It reads the
 * weight, and the pass's draws, before the kernels ahead are done. */
bool gemm_head_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
int32_t gemm_head_bands(const struct gemm_args *a);
cudaError_t gemm_head(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                      const struct row_bests *bests, const struct pass_view *pass);

/* inputs.cu: rows of x (16 bits, 16 bytes at a time) rounded to E4M3, as codes with their scales or
 * as numbers of their dtype. */
struct round_args {
    const void *x; // [n_rows, n_in], rows x_stride apart
    enum dtype x_dtype;
    int64_t x_stride;
    int32_t n_rows, n_in;
    int32_t group;     // inputs that share a scale: 128; 0: the row's
    bool power_of_two; // scales are rounded up to one
    float scale;       // of all rows; 0: found from them
    void *numbers;     // [n_rows, n_in], where codes is NULL
    uint8_t *codes;
    int64_t code_stride;
    float *scales; // of codes: [groups of a row, n_rows]
};
cudaError_t round_inputs(cudaStream_t stream, const struct round_args *a);

/* four.cu: a weight of 4-bit codes with 9 to 256 rows. With room for sums (sums_bytes at
 * sums->first, sums->width and ->stride as they would be) y may be left as sums->n of them; else
 * sums->n becomes 0. It reads the weight before the kernels ahead are done. */
bool gemm_four_takes(const struct coded_matrix *m, const struct coded_args *a, int32_t sm);
cudaError_t gemm_four(cudaStream_t stream, const struct coded_matrix *m, const struct coded_args *a,
                      int32_t n_sms, size_t sums_bytes, struct sum_parts *sums);

/* gemm_tile.cu: any shape, any of the dtypes. */
cudaError_t gemm_tile(cudaStream_t stream, const struct gemm_args *a);

#ifdef __cplusplus
}
#endif
#endif
