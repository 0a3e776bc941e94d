// SPDX-License-Identifier: Apache-2.0
/* y = x W^T of E4M3 codes with a scale per row of x and of W, for many rows on Hopper.
 *
 * The tensor cores add codes with fewer bits than fp32. cuBLASLt therefore either moves their sums
 * to fp32 registers every 128 inputs, which takes time and power, or never, which errs too much.
 * Here it happens every 512 inputs: these are the parts of fixed_many.cuh, which says how the work
 * is divided. Bound by power. */
#include "cuda/kernels/gemm/fixed_many.cuh"

enum { PART_BOXES = 4 }; // the last part has up to 7

static int32_t boxes_along(const struct gemm_args *a)
{
    return up(a->n_in, 2 * DEPTH);
}

/* The widest band with full rounds of items, 0: none. */
static int32_t band_for(const struct gemm_args *a, int32_t n_sms)
{
    if (rounds_are_full(a, 256, n_sms)) {
        return 256;
    }
    return rounds_are_full(a, 192, n_sms) ? 192 : 0;
}

extern "C" bool gemm_eight_rows_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    return sm == 90 && a->scales && a->scales->n_blocks == 0 && a->n_rows > CLUSTER_ROWS &&
           a->w_dtype == DT_E4M3 && a->x_dtype == DT_E4M3 &&
           (a->y_dtype == DT_BF16 || a->y_dtype == DT_F16) && !a->bias && !a->gated &&
           !a->accumulate && a->n_batch <= 1 && a->n_in % 16 == 0 &&
           boxes_along(a) >= 2 * PART_BOXES && a->n_out % 16 == 0 && a->x_stride % 16 == 0 &&
           a->w_stride % 16 == 0 && a->y_stride % 8 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y) % 16 == 0 &&
           band_for(a, n_sms) > 0;
}

template <typename T>
static cudaError_t by_band(cudaStream_t stream, const struct gemm_args *a,
                           const struct fixed_params &p, int32_t n_sms)
{
    return band_for(a, n_sms) == 192 ? launch_many<e4m3_t, T, 192, true>(stream, a, p, n_sms)
                                     : launch_many<e4m3_t, T, 256, true>(stream, a, p, n_sms);
}

extern "C" cudaError_t gemm_eight_rows(cudaStream_t stream, const struct gemm_args *a,
                                       int32_t n_sms)
{
    struct fixed_params p = {};
    p.y = a->y;
    p.x_scales = a->scales->x;
    p.w_scales = a->scales->w;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.y_stride = a->y_stride;
    p.part_boxes = PART_BOXES;
    p.n_parts = boxes_along(a) / PART_BOXES;
    p.last_boxes = boxes_along(a) - (p.n_parts - 1) * PART_BOXES;
    p.n_items = 1;
    return a->y_dtype == DT_BF16 ? by_band<bf16_t>(stream, a, p, n_sms)
                                 : by_band<f16_t>(stream, a, p, n_sms);
}
