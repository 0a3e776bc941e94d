// SPDX-License-Identifier: Apache-2.0
/* The cosines and sines of every position, computed once when a model is loaded: a thread per pair.
 */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/kernels.h"

/* The angle is rounded to float before its sine is taken, as in the models' reference code. */
__global__ void rope_table_kernel(float *cos_sin, const float *inv_freq, int32_t n_pairs, int64_t n,
                                  float factor)
{
    pdl_wait();
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    const float angle = (float)(i / n_pairs) * inv_freq[i % n_pairs];
    double s, c;
    sincos((double)angle, &s, &c);
    cos_sin[2 * i] = (float)c * factor;
    cos_sin[2 * i + 1] = (float)s * factor;
}

extern "C" cudaError_t k_rope_table(cudaStream_t stream, float *cos_sin, const float *inv_freq,
                                    const struct rope_view *rope, float attention_factor)
{
    const int64_t n = (int64_t)rope->n_pairs * rope->max_pos;
    return launch(rope_table_kernel, dim3((unsigned)((n + 255) / 256)), dim3(256), 0, stream,
                  cos_sin, inv_freq, rope->n_pairs, n, attention_factor);
}
