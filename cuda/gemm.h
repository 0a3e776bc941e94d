/* Matrix products: y = x W^T (+ bias) (+ y). Makers: cuBLASLt (plans cached by shape), own kernels
 * that stream the weights for few rows (gemm_small.cu, gemm_wide.cu), and one family of tiled kernels
 * whose result for a row does not depend on the number of rows (gemm_tile.cu), which deterministic
 * mode, odd shapes and the experts use.
 * Compiles as C11 and C++17. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_GEMM_H
#define SLUICE_CUDA_GEMM_H

#include "engine/backend.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gemm_args {
    const void *x;      // [n_rows, n_in], rows x_stride apart
    const void *weight; // [n_out, n_in], dense
    void *y;            // [n_rows, n_out], rows y_stride apart
    const float *bias;  // [n_out], or NULL
    const void *bias_act; // the same in the dtype of x, or NULL
    enum dtype x_dtype, w_dtype, y_dtype; // y: that of x, or DT_F32
    int32_t n_rows, n_out, n_in;
    int32_t x_stride, y_stride; // in elements
    bool accumulate;            // y += instead of y =
    /* A batch of n_batch equal products: strides of one to the next, in elements. 1: plain. */
    int32_t n_batch;
    int64_t x_batch, w_batch, y_batch;
};

/* gemm_small.cu: whether it takes this product (few rows, aligned, 16-bit), and the launch. It reads
 * the weight before the kernels ahead are done. */
bool gemm_small_takes(const struct gemm_args *a, int32_t sm);
cudaError_t gemm_small(cudaStream_t stream, const struct gemm_args *a);

/* gemm_wide.cu: 33 to 64 rows of matrices with many features. */
struct wide_plan {
    int32_t band;     // features of a block: 112 or 128
    int32_t n_splits; // runs of K. With more than one their sums, [n_splits, n_rows, n_out], are made
                      // instead of y
    int32_t cluster;  // blocks that share x: 1, 2 or 4
    int32_t n_blocks; // at most
};
/* Whether it takes this product, and how: then with one run of K and no clusters. */
bool gemm_wide_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms, struct wide_plan *plan);
cudaError_t gemm_wide(cudaStream_t stream, const struct gemm_args *a, const struct wide_plan *plan,
                      float *sums);

/* gemm_tile.cu: any shape, any of the dtypes. */
cudaError_t gemm_tile(cudaStream_t stream, const struct gemm_args *a);

#ifdef __cplusplus
}
#endif
#endif
