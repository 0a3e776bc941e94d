// SPDX-License-Identifier: Apache-2.0
/* gemm_small for 16-bit operands: products of 1 to 64 rows (small.cuh has the kernel), and which
 * shapes it takes. Bound by reading the weight. */
#include "cuda/kernels/gemm/small.cuh"

#if HAVE_SM90A

template <typename T, int N, bool GATED> struct band_product {
    static __device__ __forceinline__ void make(const struct small_params &p, char *smem,
                                                uint64_t *full, uint64_t *empty,
                                                struct ring_place &at, int band, float (&d)[N / 2])
    {
        (void)band;
        using S = stage_of<N>;
        const uint32_t groups = p.x_rows > 8 ? 1024 : 0;
        const int bytes = S::bytes(p.x_rows), x_box = p.x_rows * BOX_BYTES;
        for (int box = 0; box < p.n_boxes; box += S::BOXES) {
            barrier_wait(&full[at.stage], at.parity);
            const uint32_t w = smem_address(smem + at.stage * bytes), x = w + S::BOXES * S::W_BOX;
            wgmma_fence();
#pragma unroll
            for (int b = 0; b < S::BOXES; b++) {
                multiply_box<T, N>(d, x + b * x_box, w + b * S::W_BOX, groups, box > 0 || b > 0);
            }
            wgmma_commit();
            wgmma_wait<0>(); // short compared with loading the stage
            if ((threadIdx.x & 31) == 0) {
                barrier_arrive(&empty[at.stage]);
            }
            at.next(p.n_stages);
        }
        sums_done(d);
    }
};

#endif // HAVE_SM90A

/* ---- host ---------------------------------------------------------------------------------- */

static int x_rows_of(int n_rows)
{
    int rows = 8;
    while (rows < n_rows && rows < 64) {
        rows *= 2;
    }
    return rows;
}

/* The band with the shortest schedule (rounds times band); among equals the widest, which reads x
 * the fewest times. */
static int band_of(int n_out, int n_sms)
{
    static const int bands[] = {128, 112, 96, 64, 48, 32};
    int best = 0;
    int64_t best_cost = INT64_MAX;
    for (int n : bands) {
        const int64_t n_bands = (n_out + n - 1) / n, rounds = (n_bands + n_sms - 1) / n_sms;
        const int64_t cost = rounds * (n + 4); // 4: the start and end of a band
        if (cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

extern "C" bool gemm_small_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    /* Every band reads x. If that is as much as the weights, cuBLASLt is faster (measured). */
    if (a->n_rows > 32 && band_of(a->n_out, n_sms) < 96) {
        return false;
    }
    if (a->gated && ((a->n_rows > 32 && !a->scales) || a->n_out % 16 != 0 || a->accumulate ||
                     a->bias || (a->y_dtype != a->x_dtype && !a->scales) || a->y_dtype == DT_F32 ||
                     a->y_stride % 2 != 0 || (uintptr_t)a->y % 4 != 0)) {
        return false;
    }
    const bool is_16 = (a->w_dtype == DT_BF16 || a->w_dtype == DT_F16) &&
                       (a->y_dtype == a->x_dtype || a->y_dtype == DT_F32);
    const bool is_8 = a->w_dtype == DT_E4M3 && a->scales && a->n_out % 16 == 0;
    const int per_16 = is_8 ? 16 : 8; // elements in 16 bytes
    return sm == 90 && a->n_batch <= 1 && a->n_rows >= 1 && a->n_rows <= 64 && (is_16 || is_8) &&
           a->x_dtype == a->w_dtype && a->n_in % per_16 == 0 && a->x_stride % per_16 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0;
}

template <typename T, typename Y, bool GATED, bool PARTS = false>
static cudaError_t launch_by_band(cudaStream_t stream, const struct gemm_args *a, int n_sms,
                                  const struct small_params &p)
{
    switch (band_of(a->n_out, n_sms)) {
    case 32: return launch_small<T, Y, 32, GATED, PARTS>(stream, a, n_sms, p);
    case 48: return launch_small<T, Y, 48, GATED, PARTS>(stream, a, n_sms, p);
    case 64: return launch_small<T, Y, 64, GATED, PARTS>(stream, a, n_sms, p);
    case 96: return launch_small<T, Y, 96, GATED, PARTS>(stream, a, n_sms, p);
    case 112: return launch_small<T, Y, 112, GATED, PARTS>(stream, a, n_sms, p);
    case 128: return launch_small<T, Y, 128, GATED, PARTS>(stream, a, n_sms, p);
    default: return cudaErrorInvalidValue;
    }
}

extern "C" cudaError_t gemm_small(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    struct small_params p = {};
    p.y = a->y;
    p.bias = a->bias;
    p.n_rows = a->n_rows;
    p.n_out = p.up_row = a->gated ? a->n_out / 2 : a->n_out;
    const int depth = BOX_BYTES / (int)dtype_bytes(a->w_dtype);
    p.n_boxes = (a->n_in + depth - 1) / depth;
    p.y_stride = a->y_stride;
    p.x_rows = x_rows_of(a->n_rows);
    p.accumulate = a->accumulate;
    p.plain = !p.bias && !p.accumulate && p.n_out % 2 == 0 && p.y_stride % 2 == 0 &&
              (uintptr_t)p.y % 8 == 0;
    if (a->w_dtype == DT_E4M3) {
        p.scales = *a->scales;
        return gemm_small_codes(stream, a, n_sms, band_of(a->n_out, n_sms), p);
    }
    const bool bf16 = a->w_dtype == DT_BF16;
    if (a->n_parts > 1) {
        p.part_bias = p.bias;
        p.bias = nullptr;
        p.part_boxes = p.n_boxes / a->n_parts;
        p.plain = p.n_out % 2 == 0 && p.y_stride % 2 == 0 && (uintptr_t)p.y % 8 == 0;
        return bf16 ? launch_by_band<bf16_t, bf16_t, false, true>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, f16_t, false, true>(stream, a, n_sms, p);
    }
    if (a->gated) {
        return bf16 ? launch_by_band<bf16_t, bf16_t, true>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, f16_t, true>(stream, a, n_sms, p);
    }
    if (a->y_dtype == DT_F32) {
        return bf16 ? launch_by_band<bf16_t, float, false>(stream, a, n_sms, p)
                    : launch_by_band<f16_t, float, false>(stream, a, n_sms, p);
    }
    return bf16 ? launch_by_band<bf16_t, bf16_t, false>(stream, a, n_sms, p)
                : launch_by_band<f16_t, f16_t, false>(stream, a, n_sms, p);
}
