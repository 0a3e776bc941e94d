// SPDX-License-Identifier: Apache-2.0
/* Matrix products: y = x W^T (+ bias) (+ y). Implementations: cuBLASLt (with plans cached by
 * shape); this project's kernels for few rows (gemm/small.cu, wide.cu, batch.cu; head.cu for the
 * output head); a family of tiled kernels whose result for a row does not depend on the number of
 * rows (gemm/tile.cu), for deterministic mode, odd shapes and experts; and gemm_coded for weights
 * that stay quantised. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_H
#define SLUICE_CUDA_GEMM_H

#include "cuda/coded.h"
#include "cuda/layout.h"
#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A product left as n partial sums over ranges of K. Each is [n_rows, width], and they are `stride`
 * elements apart. The product is their sum plus bias (which may be NULL). n 0: there is none. */
struct sum_parts {
    const float *first, *bias;
    int64_t stride;
    int32_t width, n;
};

/* The best logit of a row within a band of columns, which a greedy draw reads instead of the row.
 * id INT32_MAX: no logit in the band is above -infinity. */
struct best_pair {
    float value;
    int32_t id;
};
enum { MAX_BEST_ROWS = 256, MIN_BEST_BAND = 216 }; // limits of gemm/head.cu
struct row_bests {
    struct best_pair *pairs; // [rows, stride]; n_bands of a row's pairs are used
    int32_t stride, n_bands; // n_bands 0: there are no pairs
};

/* The scales of a product of E4M3 codes. If they are per row: x [n_rows], weight [n_out]. If they
 * are per block: x [n_in / 128, n_rows], weight [n_out / 128, n_blocks]. */
struct product_scales {
    const float *w, *x;
    int32_t n_blocks; // 0: scales are per row
};

/* An RMS norm of a product's input, a single row: of x plus its delta, if it has one, which is then
 * stored in x. */
struct input_norm {
    const float *weight; // [n_in]
    const void *delta;   // [n_in], or NULL
    uint32_t *readers; // with a delta: INPUT_NORM_READERS zeros, which the product leaves as zeros
    float eps, offset, delta_scale, x_scale;
};
enum { INPUT_NORM_READERS = 16 };

struct gemm_args {
    const void *x;                        // [n_rows, n_in], rows x_stride apart
    const void *weight;                   // [n_out, n_in]; NULL: use `coded`
    const struct coded_matrix *coded;     // a weight that stays quantised, or NULL
    const struct product_scales *scales;  // x and weight hold codes with these scales; NULL: they
                                          // do not
    const struct input_rule *inputs;      // how x is rounded to E4M3 before the product; NULL: not
                                          // at all
    bool is_rounded;                      // the producer of x has rounded it already, see
                                          // cuda_gemm_codes
    bool is_after_codes;                  // with is_rounded: the producer of x itself multiplied
                                          // codes, so the codes of x are in the second area
    bool x_is_gated;                      // x has rows of gates and factors, [n_rows, 2 n_in]; the
                                          // product's input is silu(gate) * factor. See
                                          // cuda_gemm_takes_gates
    void *y;                              // [n_rows, n_out], rows y_stride apart
    const float *bias;                    // [n_out], or NULL
    const void *bias_act;                 // a copy in the dtype of x, or NULL
    enum dtype x_dtype, w_dtype, y_dtype; // y: the dtype of x, or DT_F32
    int32_t n_rows, n_out, n_in;
    int32_t x_stride, y_stride; // in elements
    int32_t w_stride; // distance between rows of the weight in elements; 0: dense. Not all
                      // kernels support other values
    bool accumulate;  // y += instead of y =
    bool is_fresh;    // the preceding kernel writes the weight, so it must not be prefetched
    bool may_split;   // y may be left as partial sums; see cuda_gemm
    int32_t n_parts;  // gemm_small and gemm_fixed sum K in this many equal parts, which are then
                      // added in order (gemm_parts_ok); 0: K is not divided
    const struct round_args *y_codes; // a gated product's results are rounded to these codes
                                      // instead of being stored in y; NULL: they are not
    bool gated; // y = silu(gate) * up, computed from the two halves of n_out; so y is half as wide.
                // Only this project's kernels support it
    /* n_batch products of equal shape, and the distances between their operands in elements. 1: a
     * single product. */
    int32_t n_batch;
    int64_t x_batch, w_batch, y_batch;
    const struct input_norm *norm; // of x, computed with the product by gemm_single; NULL: none
};

/* gemm/small.cu. gemm_small_takes: true if it supports this product (few rows, aligned, 16 bits or
 * codes). It reads the weight before the preceding kernels are done. */
bool gemm_small_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_small(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);
/* gemm/single.cu: one row, and a weight of few features; gated only with a norm. */
bool gemm_single_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_single(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

/* gemm/wide.cu: aligned 16-bit products with 33 to 128 rows. With n_splits 1 (above 64 rows only if
 * gated) it writes y. Otherwise it leaves n_splits partial sums at sums->first (dense rows,
 * sums->stride apart), which the op that reads the product adds up. gemm_join adds them to y, for
 * benchmarks and tests. */
struct wide_plan {
    int32_t band;     // number of features per block: 128, 192 (only for fp32 or partial sums), 112
                      // (only otherwise), 224 (if gated and above 64 rows), 64 or 96 (for partial
                      // sums, or up to 64 rows), 48 (up to 64 rows)
    int32_t n_splits; // number of ranges of K
};
/* True if it supports this product; *plan is then the plan. sums_bytes: size of the memory for
 * partial sums. */
bool gemm_wide_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms, size_t sums_bytes,
                     struct wide_plan *plan);
cudaError_t gemm_wide(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                      const struct wide_plan *plan, const struct sum_parts *sums);
cudaError_t gemm_join(cudaStream_t stream, const struct gemm_args *a, const struct sum_parts *sums);

/* The plan for n_splits, which must be above 1 if the product is not gated, and 1 if it is. */
struct wide_plan gemm_wide_plan(const struct gemm_args *a, int32_t n_sms, int32_t n_splits);

/* gemm/fixed.cu: products that are not gated, with any number of rows, aligned 16-bit operands and
 * an even number of features. K is summed in a->n_parts parts. With may_split these may be left as
 * partial sums if sums_bytes suffices (sums->n is then n_parts, otherwise 0; the caller sets the
 * other fields). */
cudaError_t gemm_fixed(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                       size_t sums_bytes, struct sum_parts *sums);
/* Each part must consist of whole stages of both kernels. */
static inline bool gemm_parts_ok(int32_t n_in, int32_t n_parts)
{
    enum { STAGE = 4 * 64 };
    return n_in > 0 && n_in % (n_parts * STAGE) == 0;
}

/* gemm/batch.cu: gated products of aligned 16-bit operands, with at least 209 rows, that fill most
 * of the kernel's tiles. */
bool gemm_batch_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_batch(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

/* gemm/head.cu: the output head's logits in fp32, for up to 256 rows, and the best logits of each
 * row. With `pass`, it does not write rows that no draw reads, or that only greedy draws read. It
 * reads the weight and the pass's draws before the preceding kernels are done. */
bool gemm_head_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
int32_t gemm_head_bands(const struct gemm_args *a);
cudaError_t gemm_head(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                      const struct row_bests *bests, const struct pass_view *pass);

/* gemm/inputs.cu: rounds rows of x (16 bits, aligned to 16 bytes) to E4M3. They are written as
 * codes with scales, or as dequantised values in the dtype of x. */
struct round_args {
    const void *x; // [n_rows, n_in], rows x_stride apart
    enum dtype x_dtype;
    int64_t x_stride;
    int32_t n_rows, n_in;
    int32_t group;     // number of inputs that share a scale: 128, or 0 for the whole row
    bool power_of_two; // round the scales up to powers of two
    float scale;       // a single scale for all rows; 0: scales are computed from the rows
    float limit;       // scales are as for inputs of at most this; 0: no limit
    void *numbers;     // [n_rows, n_in], dequantised values; written if codes is NULL
    uint8_t *codes;
    int64_t code_stride;
    float *scales; // [groups per row, n_rows], scales of the codes
};
cudaError_t round_inputs(cudaStream_t stream, const struct round_args *a);

/* gemm/four.cu: 4-bit weights with up to 256 rows. With memory for partial sums (sums_bytes at
 * sums->first; the caller sets sums->width and ->stride), y may be left as sums->n of them;
 * otherwise sums->n becomes 0. It reads the weight before the preceding kernels are done. */
bool gemm_four_takes(const struct coded_matrix *m, const struct coded_args *a, int32_t sm);
cudaError_t gemm_four(cudaStream_t stream, const struct coded_matrix *m, const struct coded_args *a,
                      int32_t n_sms, size_t sums_bytes, struct sum_parts *sums);

/* gemm/four_head.cu: output heads among the products that gemm_four takes, for up to 8 rows. bests
 * and pass as for gemm_head, with n_sms bands; bests NULL: none are stored, and all logits are. It
 * reads the weight and the pass's draws before the preceding kernels are done. */
bool gemm_four_head_takes(const struct coded_matrix *m, const struct coded_args *a, int32_t n_sms);
cudaError_t gemm_four_head(cudaStream_t stream, const struct coded_matrix *m,
                           const struct coded_args *a, int32_t n_sms, const struct row_bests *bests,
                           const struct pass_view *pass);

/* gemm/eight.cu: products of E4M3 codes with codes (a->scales), 1 to 64 rows, ungated. With
 * may_split and memory for partial sums (as for gemm_four) y may be left as sums->n of them. It
 * reads the weight before the preceding kernels are done. raw: the kernel rounds x itself as this
 * says, and a->x and a->scales->x are not read; NULL: x is already rounded. is_gated: raw->x has
 * rows of gates and factors, [n_rows, 2 n_in], and x = silu(gate) * factor. */
bool gemm_eight_takes(const struct gemm_args *a, int32_t sm);
bool gemm_eight_rounds(const struct gemm_args *a, int32_t n_sms, size_t sums_bytes, bool is_gated);
cudaError_t gemm_eight(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                       const struct round_args *raw, bool is_gated, size_t sums_bytes,
                       struct sum_parts *sums);

/* gemm/eight_many.cu: products of E4M3 codes with codes (a->scales), also gated, for up to 128
 * rows; gemm_eight_many_takes: true if it is the fastest. y is bf16 or, if not gated, fp32. With
 * may_split and memory for partial sums (as for gemm_four) y may be left as sums->n of them. It
 * reads the weight before the preceding kernels are done. */
bool gemm_eight_many_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_eight_many(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                            size_t sums_bytes, struct sum_parts *sums);

/* gemm/eight_rows.cu: products of E4M3 codes with codes and scales of rows (a->scales) that fill
 * most of the kernel's tiles of 256 rows. */
bool gemm_eight_rows_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms);
cudaError_t gemm_eight_rows(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms);

/* gemm/tile.cu: any shape, and any of the dtypes. */
cudaError_t gemm_tile(cudaStream_t stream, const struct gemm_args *a);

#ifdef __cplusplus
}
#endif
#endif
