// SPDX-License-Identifier: Apache-2.0
/* The naive products that the kernels are compared with. */
#include "bench/ops/bench.cuh"
#include "cuda/gemm.h"

#include <cmath>

/* One thread per output; it adds the products in the order of the inputs. */
template <typename T, typename Y> __global__ void naive_kernel(struct gemm_args a, float *out)
{
    const int f = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (f < a.n_out) {
        float sum = 0.0f;
        for (int k = 0; k < a.n_in; k++) {
            sum += to_float(((const T *)a.x)[(int64_t)r * a.x_stride + k]) *
                   to_float(((const T *)a.weight)[(int64_t)f * a.n_in + k]);
        }
        sum += a.bias ? a.bias[f] : 0.0f;
        if (a.accumulate) {
            sum += to_float(((const Y *)a.y)[(int64_t)r * a.y_stride + f]);
        }
        out[(int64_t)r * a.n_out + f] = sum;
    }
}

/* Calls the naive kernel for the types of x and y. */
void bench_naive(const struct gemm_args &a, float *out)
{
    const dim3 grid((a.n_out + 127) / 128, a.n_rows);
    if (a.x_dtype == DT_BF16) {
        a.y_dtype == DT_F32 ? naive_kernel<bf16_t, float><<<grid, 128>>>(a, out)
                            : naive_kernel<bf16_t, bf16_t><<<grid, 128>>>(a, out);
    } else {
        a.y_dtype == DT_F32 ? naive_kernel<f16_t, float><<<grid, 128>>>(a, out)
                            : naive_kernel<f16_t, f16_t><<<grid, 128>>>(a, out);
    }
    CHECK(cudaGetLastError());
}

/* The reference of a gated product: gates the plain product on the host. */
std::vector<float> bench_silu_gated(const std::vector<float> &v, int n_rows, int width,
                                    enum dtype dt)
{
    std::vector<float> out((size_t)n_rows * width);
    auto rounded = [dt](float x) {
        if (dt == DT_BF16) {
            return __bfloat162float(__float2bfloat16_rn(x));
        }
        return __half2float(__float2half_rn(x));
    };
    for (int r = 0; r < n_rows; r++) {
        for (int i = 0; i < width; i++) {
            const float g = rounded(v[(size_t)r * 2 * width + i]);
            out[(size_t)r * width + i] =
                g / (1.0f + expf(-g)) * rounded(v[(size_t)r * 2 * width + width + i]);
        }
    }
    return out;
}
