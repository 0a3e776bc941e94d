// SPDX-License-Identifier: Apache-2.0
/* Complete products of many rows of 16 bits in deterministic mode; fixed_many.cuh says how the work
 * is divided and what bounds it. */
#include "cuda/kernels/gemm/fixed_many.cuh"

template <typename T>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a,
                           const struct fixed_params &p, int32_t band, int32_t n_sms)
{
    if (p.n_parts == 1) {
        return launch_many<T, T, 256, false>(stream, a, p, n_sms);
    }
    switch (band) {
    case 96: return launch_many<T, T, 96, true>(stream, a, p, n_sms);
    case 128: return launch_many<T, T, 128, true>(stream, a, p, n_sms);
    case 160: return launch_many<T, T, 160, true>(stream, a, p, n_sms);
    case 192: return launch_many<T, T, 192, true>(stream, a, p, n_sms);
    default: return launch_many<T, T, 256, true>(stream, a, p, n_sms);
    }
}

cudaError_t fixed_many(cudaStream_t stream, const struct gemm_args *a, const struct fixed_params &p,
                       int32_t band, int32_t n_sms)
{
    return a->w_dtype == DT_BF16 ? by_band<bf16_t>(stream, a, p, band, n_sms)
                                 : by_band<f16_t>(stream, a, p, band, n_sms);
}
