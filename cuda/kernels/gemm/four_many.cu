// SPDX-License-Identifier: Apache-2.0
/* y = x W^T with a weight of 4-bit codes (cuda/coded.h), on Hopper, as four_units.cuh describes,
 * for up to 256 rows. gemm_four uses it from 33 or 65 rows on. Codes are scaled in fp32 and rounded
 * once to bf16 or fp16, as when a weight is dequantised, so that the tensor cores sum all of K; the
 * next operand is made while they work on the previous one. A block takes 128 or 256 features and a
 * range of K, in two warpgroups. Bound by reading x from the L2 cache and by converting codes. */
#include "cuda/kernels/gemm/four_units.cuh"

#if HAVE_SM90A

/* Issues the products of a unit with half a chunk of x. add: 0: they begin the sums. */
template <typename T, int BLOCKS, int N>
__device__ __forceinline__ void issue(float (&d)[N][BLOCK_ROWS / 2], int unit,
                                      const uint32_t (&a)[4][4], uint32_t x, int add)
{
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            wgmma<T, BLOCK_ROWS>::rk(d[unit * BLOCKS + b], a[step],
                                     wgmma_operand(x + b * BLOCK_ROWS * BOX * 2 + step * 32, 0),
                                     step > 0 ? 1 : add);
        }
    }
    wgmma_commit();
}

template <typename T, enum coded_code CODE, int PER_GROUP, int UNITS, int BLOCKS>
__device__ __forceinline__ void compute(const struct many_params &p, const char *xs, char *rings,
                                        struct x_ring *x_ring)
{
    using S = many_shape<CODE, PER_GROUP, UNITS, BLOCKS>;
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
        constexpr int ACCUMULATORS = S::UNITS * S::BLOCKS;
        float d[ACCUMULATORS][BLOCK_ROWS / 2];
        many_codes<T, CODE, PER_GROUP, S> codes;
        uint32_t a[2][4][4];
        int from = 0, last = -1; // slots of the ring, and of x
        int add = 0;
#pragma unroll 1
        for (int32_t chunk = it.first_chunk; chunk < it.end_chunk; chunk++) {
            copies.next(p, ring);
            codes.read(p, ring + from);
            from = from + S::SLOT == S::RING ? 0 : from + S::SLOT;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t x = x0 + at.slot * S::X_SLOT;
#pragma unroll
                for (int unit = 0; unit < S::UNITS; unit++) {
                    const int which_a = S::UNITS == 2 ? unit : half; // the other one is in use
                    codes.make(unit, half, a[which_a]);
                    if (unit == 0) {
                        barrier_wait(&x_ring->full[at.slot], at.parity);
                    }
                    issue<T, BLOCKS>(d, unit, a[which_a], x, add);
                    wgmma_wait<1>();
                    if (unit == 0 && last >= 0 && lane == 0) {
                        barrier_arrive(&x_ring->empty[last]);
                    }
                }
                last = at.slot;
                at.next();
                add = 1;
            }
        }
        wgmma_wait<0>();
        if (lane == 0) {
            barrier_arrive(&x_ring->empty[last]);
        }
        wgmma_settle(d);
        cp_async_wait<0>();
#pragma unroll 1
        for (int i = 0; i < ACCUMULATORS; i++) { // a single copy of the code, which stores d[0]
            store<T, BLOCK_ROWS>(p, it, warp * S::UNITS + i / S::BLOCKS,
                                 it.row_tile * S::ROWS + i % S::BLOCKS * BLOCK_ROWS, (float *)ring,
                                 d[0]);
            if (ACCUMULATORS == 2) {
#pragma unroll
                for (int k = 0; k < BLOCK_ROWS / 2; k++) {
                    d[0][k] = d[ACCUMULATORS - 1][k];
                }
            }
        }
        __syncwarp(); // before the ring is filled again
    }
}
#endif // HAVE_SM90A

template <typename T, enum coded_code CODE, int PER_GROUP, int UNITS, int BLOCKS>
__global__ void __launch_bounds__(THREADS, 1)
    gemm_four_many_kernel(const __grid_constant__ struct many_params p,
                          const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    run_block<many_shape<CODE, PER_GROUP, UNITS, BLOCKS>>(
        p, &x_map, [&](const char *xs, char *rings, struct x_ring *ring) {
            compute<T, CODE, PER_GROUP, UNITS, BLOCKS>(p, xs, rings, ring);
        });
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

/* The best plan in which each warp has n_units units, and its cost. The time per chunk is that of
 * the tensor cores for n_units units per warp, or that of loading x, even if the band has fewer
 * units. It was measured, and is expressed as the number of bytes that a multiprocessor reads in
 * the same time. */
static struct item_plan plan_of(const struct coded_matrix *m, const struct coded_args *a,
                                int32_t n_sms, size_t sums_bytes, int32_t n_units, int64_t *cost)
{
    enum { ONE_BYTES = 32 << 10, TWO_BYTES = 52 << 10 };
    const int32_t n_blocks = items_up(a->n_rows, BLOCK_ROWS);
    const bool may_cut = sums_bytes > 0 && !a->gated && !a->accumulate && a->y_dtype != DT_F32;
    struct item_costs c = {};
    c.n_tiles = a->gated ? m->n_tiles / 2 : m->n_tiles;
    c.n_chunks = m->n_chunks;
    c.n_row_tiles = 1;
    c.most_tiles = WARPS * n_units / (a->gated ? 2 : 1);
    c.most_runs = may_cut ? (int32_t)MAX_RUNS : 1;
    c.x_bytes = 3 * (n_units * n_blocks == 1 ? ONE_BYTES : TWO_BYTES);
    c.sums_bytes = (int64_t)a->n_rows * m->n_out * (int64_t)sizeof(float);
    c.most_sums_bytes = (int64_t)sums_bytes;
    c.n_sms = n_sms;
    const struct item_plan p = plan_items(c);
    *cost = items_cost(c, p.bands.n_parts, p.runs.n_parts);
    return p;
}

template <typename T, enum coded_code CODE, int PER_GROUP, int UNITS, int BLOCKS>
static cudaError_t launch_many(cudaStream_t stream, const struct many_params &p,
                               const struct coded_args *a, int32_t n_sms)
{
    return launch_units<many_shape<CODE, PER_GROUP, UNITS, BLOCKS>>(
        stream, gemm_four_many_kernel<T, CODE, PER_GROUP, UNITS, BLOCKS>, p, a, n_sms);
}

template <typename T, enum coded_code CODE, int PER_GROUP>
static cudaError_t by_shape(cudaStream_t stream, const struct many_params &p,
                            const struct coded_args *a, int32_t n_sms)
{
    if (a->n_rows > BLOCK_ROWS) {
        return launch_many<T, CODE, PER_GROUP, 1, 2>(stream, p, a, n_sms);
    }
    return p.n_units == 2 ? launch_many<T, CODE, PER_GROUP, 2, 1>(stream, p, a, n_sms)
                          : launch_many<T, CODE, PER_GROUP, 1, 1>(stream, p, a, n_sms);
}

template <typename T>
static cudaError_t by_code(cudaStream_t stream, const struct many_params &p,
                           const struct coded_args *a, int32_t n_sms)
{
    switch (p.m.code) {
    case CODED_E2M1: return by_shape<T, CODED_E2M1, 1>(stream, p, a, n_sms);
    case CODED_U4:
        return p.m.record_groups == 1 ? by_shape<T, CODED_U4, 4>(stream, p, a, n_sms)
                                      : by_shape<T, CODED_U4, 1>(stream, p, a, n_sms);
    case CODED_E4M3: break; // gemm_four_takes rejects it
    }
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t gemm_four_many(cudaStream_t stream, const struct coded_matrix *m,
                                      const struct coded_args *a, int32_t n_sms, size_t sums_bytes,
                                      struct sum_parts *sums)
{
    struct many_params p = {};
    int64_t cost, other_cost;
    p.n_units = 1;
    p.plan = plan_of(m, a, n_sms, sums_bytes, 1, &cost);
    if (a->n_rows <= BLOCK_ROWS) {
        const struct item_plan other = plan_of(m, a, n_sms, sums_bytes, 2, &other_cost);
        if (other_cost < cost || four_is_exact(m, a->n_rows)) {
            p.plan = other;
            p.n_units = 2;
        }
    }
    const bool cut = four_output(&p, m, a, p.plan.runs.n_parts, sums);
    p.is_float = cut || a->y_dtype == DT_F32;
    p.is_aligned = !a->accumulate && (uintptr_t)p.y % 16 == 0 && p.y_stride % 8 == 0 &&
                   p.part_stride % 8 == 0 && p.n_out % 8 == 0;
    p.is_full = p.plan.n_items * 3 > n_sms * 2;
    if (four_is_exact(m, a->n_rows)) {
        return launch_exact(stream, p, a, n_sms);
    }
    return a->x_dtype == DT_BF16 ? by_code<bf16_t>(stream, p, a, n_sms)
                                 : by_code<f16_t>(stream, p, a, n_sms);
}
