// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of int4 codes in groups of 128 or more (cuda/coded.h) and 17 to 64 rows,
 * on Hopper, as four_units.cuh describes. Codes are multiplied exactly, each group is summed
 * separately, and its sums are scaled in fp32. A block takes 256 features and a range of K, in two
 * warpgroups. Bound by converting the codes. */
#include "cuda/kernels/gemm/four_units.cuh"

#if HAVE_SM90A

/* Adds a unit's sums over a group, multiplied by the scale of each feature. */
template <int N>
__device__ __forceinline__ void add_group(float (&d)[N / 2], float scale, float scale_8,
                                          float (&sums)[N / 2])
{
    wgmma_settle(d);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        sums[i] = fmaf(d[i], i / 2 % 2 == 0 ? scale : scale_8, sums[i]);
    }
}

/* The product of up to N rows. Each group is summed separately and the sums are scaled in fp32, so
 * that codes are multiplied exactly. One unit is converted, or its sums are added, while the tensor
 * cores work on the other one. */
template <typename T, enum coded_code CODE, int N>
__device__ __forceinline__ void compute_exact(const struct many_params &p, const char *xs,
                                              char *rings, struct x_ring *x_ring)
{
    using S = many_shape<CODE, CODED_WORDS, 2, 1, N>;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    char *ring = rings + warp * S::RING;
    const uint32_t x0 = smem_address(xs);
    x_place<S::X_SLOTS> at;
    bool is_first = true;
#pragma unroll 1
    for (int32_t which = (int32_t)blockIdx.x; which < p.plan.n_items; which += (int32_t)gridDim.x) {
        const struct item it = item_at(p.plan, which);
        many_copies<S> copies(p, it);
        copies.begin(p, ring);
        if (is_first) {
            wait_for_previous(p);
        }
        is_first = false;
        float sums[2][N / 2] = {};
        int from = 0;
#pragma unroll 1
        for (int32_t chunk = it.first_chunk; chunk < it.end_chunk; chunk++) {
            many_codes<T, CODE, CODED_WORDS, S> codes;
            float d[2][N / 2];
            uint32_t a[2][2][4][4];
            copies.next(p, ring);
            codes.read(p, ring + from);
            from = from + S::SLOT == S::RING ? 0 : from + S::SLOT;
            const int slot = at.slot;
            const uint32_t parity = at.parity;
            at.next();
#pragma unroll
            for (int unit = 0; unit < 2; unit++) {
                codes.make_exact(unit, 0, a[unit][0]);
                codes.make_exact(unit, 1, a[unit][1]);
                if (unit == 0) {
                    barrier_wait(&x_ring->full[slot], parity);
                    barrier_wait(&x_ring->full[at.slot], at.parity);
                }
                wgmma_fence();
#pragma unroll
                for (int step = 0; step < 8; step++) {
                    const uint32_t x = x0 + (step < 4 ? slot : at.slot) * S::X_SLOT;
                    wgmma<T, N>::rk(d[unit], a[unit][step / 4][step % 4],
                                    wgmma_operand(x + step % 4 * 32, 0), step > 0);
                }
                wgmma_commit();
            }
            wgmma_wait<1>();
            add_group<N>(d[0], codes.scale[0][0], codes.scale[1][0], sums[0]);
            wgmma_wait<0>();
            if (lane == 0) {
                barrier_arrive(&x_ring->empty[slot]);
                barrier_arrive(&x_ring->empty[at.slot]);
            }
            at.next();
            add_group<N>(d[1], codes.scale[2][0], codes.scale[3][0], sums[1]);
        }
        cp_async_wait<0>();
#pragma unroll 1
        for (int i = 0; i < 2; i++) { // a single copy of the code, which stores sums[0]
            store<T, N>(p, it, warp * 2 + i, it.row_tile * S::ROWS, (float *)ring, sums[0]);
#pragma unroll
            for (int k = 0; k < N / 2; k++) {
                sums[0][k] = sums[1][k];
            }
        }
        __syncwarp(); // before the ring is filled again
    }
}

#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int N>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_four_exact_kernel(const __grid_constant__ struct many_params p,
                           const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    run_block<many_shape<CODE, CODED_WORDS, 2, 1, N>>(
        p, &x_map, [&](const char *xs, char *rings, struct x_ring *ring) {
            compute_exact<T, CODE, N>(p, xs, rings, ring);
        });
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

extern "C" bool four_is_exact(const struct coded_matrix *m, int32_t n_rows)
{
    return n_rows <= 64 && m->code == CODED_U4 && m->record_groups == 1;
}

template <typename T, int N>
static cudaError_t launch_rows(cudaStream_t stream, const struct many_params &p,
                               const struct coded_args *a, int32_t n_sms)
{
    return launch_units<many_shape<CODED_U4, CODED_WORDS, 2, 1, N>>(
        stream, gemm_four_exact_kernel<T, CODED_U4, N>, p, a, n_sms);
}

cudaError_t launch_exact(cudaStream_t stream, const struct many_params &p,
                         const struct coded_args *a, int32_t n_sms)
{
    if (a->n_rows <= 32) {
        return a->x_dtype == DT_BF16 ? launch_rows<bf16_t, 32>(stream, p, a, n_sms)
                                     : launch_rows<f16_t, 32>(stream, p, a, n_sms);
    }
    return a->x_dtype == DT_BF16 ? launch_rows<bf16_t, 64>(stream, p, a, n_sms)
                                 : launch_rows<f16_t, 64>(stream, p, a, n_sms);
}
