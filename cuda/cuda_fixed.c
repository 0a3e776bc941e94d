// SPDX-License-Identifier: Apache-2.0
/* The order in which K is summed, which is fixed for each weight: 1, 2 or 4 equal parts, each
 * summed in one fp32 accumulator in steps of 16 (one wgmma), and the parts added to the bias in
 * order. All kernels named here sum in that way; they differ in how they divide the work. Parts let
 * several multiprocessors share a narrow product of few rows. */
#include "cuda/cuda_fixed.h"

static int32_t up(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}

/* The number of parts of a weight's K: enough to keep the multiprocessors busy with up to 256 rows.
 * Two, or four if K is long or the weight so narrow that clusters of two multiprocessors would be
 * idle with bands of 128 features; each part more costs time with many rows. Gated products and
 * logits have many outputs, so their K has one part. */
static int32_t parts_of(const struct gemm_args *a, int32_t n_sms)
{
    enum { WIDE = 192, NARROW = 128, LEAST_OF_FOUR = 2048 };
    if (a->gated || a->y_dtype == DT_F32 || 2 * up(a->n_out, WIDE) > n_sms ||
        !gemm_parts_ok(a->n_in, 2)) {
        return 1;
    }
    const bool is_long = a->n_in >= 4 * LEAST_OF_FOUR && 4 * up(a->n_out, WIDE) <= n_sms;
    const bool is_narrow = 4 * up(a->n_out, NARROW) <= n_sms / 2;
    return (is_long || is_narrow) && gemm_parts_ok(a->n_in, 4) ? 4 : 2;
}

static bool is_aligned(const struct gemm_args *a)
{
    return ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y) % 16 == 0 &&
           a->n_in % 8 == 0 && a->x_stride % 8 == 0 && a->y_stride % 2 == 0 &&
           a->n_out % (a->gated ? 16 : 2) == 0;
}

bool fixed_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    // The first boxes of an item in gemm_batch and gemm_fixed have special tasks.
    enum { LEAST_IN = 256 };
    const bool is_16 = a->w_dtype == DT_BF16 || a->w_dtype == DT_F16;
    return sm == 90 && n_sms >= 2 && is_16 && a->x_dtype == a->w_dtype &&
           (a->y_dtype == a->x_dtype || (a->y_dtype == DT_F32 && !a->gated)) && !a->coded &&
           !a->scales && !a->is_fresh && !a->accumulate && a->n_batch <= 1 && a->w_stride == 0 &&
           a->n_in >= LEAST_IN && is_aligned(a) && !(a->gated && a->bias);
}

static cudaError_t on_wide(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                           int32_t n_parts, struct sum_parts *sums)
{
    const struct wide_plan plan = gemm_wide_plan(a, n_sms, n_parts);
    if (n_parts > 1) {
        sums->n = n_parts;
    }
    return gemm_wide(stream, a, n_sms, &plan, sums);
}

cudaError_t fixed_product(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                          size_t sums_bytes, struct sum_parts *sums)
{
    enum { FEW = 32, SOME = 64, MANY = 128 }; // row limits of gemm_small and gemm_wide
    struct gemm_args b = *a;
    const int32_t n = b.n_parts = parts_of(a, n_sms), rows = a->n_rows;
    sums->n = 0;
    if (rows <= (n > 1 || a->gated ? FEW : SOME)) {
        return gemm_small(stream, &b, n_sms);
    }
    if (a->gated) {
        return rows <= MANY ? on_wide(stream, &b, n_sms, 1, sums) : gemm_batch(stream, &b, n_sms);
    }
    const size_t bytes = (size_t)n * (size_t)rows * (size_t)a->n_out * sizeof(float);
    if (rows <= MANY && n > 1 && a->may_split && bytes <= sums_bytes) {
        return on_wide(stream, &b, n_sms, n, sums);
    }
    return gemm_fixed(stream, &b, n_sms, sums_bytes, sums);
}

/* Passes of thousands of rows draw so much power that shorter pauses between kernels gain nothing.
 */
bool fixed_fills(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    enum { MORE_THAN = 256, MOST_ROWS = 1024, TILE = 256, BAND = 256 };
    if (a->n_rows <= MORE_THAN || a->n_rows > MOST_ROWS || a->gated || a->y_dtype == DT_F32 ||
        !fixed_takes(a, sm, n_sms)) {
        return false;
    }
    const int32_t at_once = n_sms / 2, items = up(a->n_rows, TILE) * up(a->n_out, BAND);
    const int64_t made = (int64_t)up(items, at_once) * at_once * TILE * BAND;
    return made * 23 <= (int64_t)a->n_rows * a->n_out * 25;
}

cudaError_t fixed_whole(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms)
{
    struct gemm_args b = *a;
    b.n_parts = 1;
    return gemm_fixed(stream, &b, n_sms, 0, NULL);
}
