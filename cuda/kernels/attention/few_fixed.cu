// SPDX-License-Identifier: Apache-2.0
/* few.cu for deterministic mode: rope, the store of the new key and value, and attention in one
 * launch, with the same bits as rope.cu and wide.cuh.
 *
 * A unit is a row and a KV head (or a part of its group of query heads), as in few.cu. But warps
 * cannot divide the keys of a unit as they do there, because all keys must be added in order: for
 * each tile of 128 keys, first the scores, then the probabilities, then the values. Runs of 512
 * keys are summed separately and joined in order. Scores are K Q^T and outputs V^T P^T (mma.sync),
 * which have the same bits as Q K^T and P V (wgmma).
 *
 * With more than 32 rows a warp processes a unit alone (few_fixed.cuh), and warps share nothing.
 * With fewer rows a block processes a unit (fixed_team.cuh): its warps divide the keys for the
 * scores, and the elements of the values for the sums.
 *
 * Bound by reading the keys and values if there are many, otherwise by latencies. */
#include "cuda/kernels/attention/few_fixed.cuh"
#include "cuda/kernels/attention/fixed_team.cuh"

#include <algorithm>

/* With more rows, gemm/wide.cu may follow, and may start early; other kernels must not. */
enum { FEW_ROWS = 32 };

/* The warp's index, obtained such that the compiler knows that it is uniform in a warp. */
#if HAVE_SM90A
__device__ __forceinline__ int warp_of_block()
{
    return __shfl_sync(0xffffffffu, (int)threadIdx.x >> 5, 0);
}
#endif

template <typename T, int DIM, bool NORM>
__global__ void __launch_bounds__(fixed_few_shape<DIM>::WARPS * 32, fixed_few_shape<DIM>::BLOCKS)
    attention_few_fixed_kernel(const __grid_constant__ struct few_params p,
                               const __grid_constant__ CUtensorMap map, int n_slots)
{
#if HAVE_SM90A
    using S = fixed_few_shape<DIM>;
    extern __shared__ __align__(1024) char smem[]; // aligned as the swizzle requires
    const int warp = warp_of_block();
    uint64_t *bars = (uint64_t *)(smem + S::WARPS * n_slots * S::SLOT);
    fixed_few<T, DIM, NORM> f(p);
    f.map = &map;
    f.full = bars + warp * n_slots;
    f.slots = smem + warp * n_slots * S::SLOT;
    f.n_slots = n_slots;
    f.lane = threadIdx.x & 31;
    f.first = warp * (int)gridDim.x + (int)blockIdx.x;
    f.step = (int)gridDim.x * S::WARPS;
    f.n_units = f.first < p.n_units ? (p.n_units - 1 - f.first) / f.step + 1 : 0;
    if (f.n_units > 0) {
        f.begin();
    }
    if (p.n_rows > FEW_ROWS) {
        pdl_trigger();
    }
#pragma unroll 1
    for (int k = 0; k < f.n_units; k++) {
        float4 cos_sin[S::J * 2];
        float growth = 1.0f;
        f.enter_unit(k, cos_sin, &growth);
        if (k == 0) {
            pdl_wait();
            pdl_trigger();
        }
        if (f.n_chunks > 0) {
            f.unit(cos_sin, growth);
        }
    }
    pdl_wait(); // for warps without units
#endif
}

/* A block for each unit. */
template <typename T, int DIM, bool NORM>
__global__ void __launch_bounds__(fixed_team_shape<DIM>::WARPS * 32, 2)
    attention_team_kernel(const __grid_constant__ struct few_params p,
                          const __grid_constant__ CUtensorMap map, int n_slots)
{
#if HAVE_SM90A
    using S = fixed_team_shape<DIM>;
    extern __shared__ __align__(1024) char smem[]; // aligned as the swizzle requires
    __shared__ struct fixed_team_room room;
    fixed_team<T, DIM, NORM> f(p);
    f.map = &map;
    f.slots = smem;
    f.full = (uint64_t *)(smem + n_slots * S::SLOT);
    f.room = &room;
    f.n_slots = n_slots;
    f.warp = warp_of_block();
    f.lane = threadIdx.x & 31;
    const int row = (int)blockIdx.x / p.heads_y();
    struct pass_row info = p.rows[row];
    if (p.row_seq[row] < 0) {
        info.slot_pos = -1;
    }
    float4 cos_sin[S::J * 2];
    float growth = 1.0f;
    f.table = p.blocks + (int64_t)info.lane * p.blocks_stride;
    f.enter(row, (int)blockIdx.x - row * p.heads_y(), info, cos_sin, &growth);
    f.begin();
    pdl_wait();
    pdl_trigger();
    if (f.n_chunks > 0) {
        f.unit(cos_sin, growth);
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

template <typename T, int DIM, bool NORM>
static cudaError_t launch_teams(cudaStream_t stream, const struct few_params &p,
                                const CUtensorMap &map, int n_sms)
{
    using S = fixed_team_shape<DIM>;
    const auto kernel = attention_team_kernel<T, DIM, NORM>;
    enum { HALF_ROOM = 102 * 1024, ROOM = 200 * 1024 }; // two blocks on a multiprocessor, or one
    constexpr int SLOT = S::SLOT + (int)sizeof(uint64_t);
    const int n_slots = (p.n_units > n_sms ? HALF_ROOM : ROOM) / SLOT, smem = n_slots * SLOT;
    const cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)p.n_units), dim3(S::WARPS * 32),
                                     (size_t)smem, stream, p, map, n_slots);
}

/* As many blocks as fit the device at once; if there are few, each gets more shared memory. */
template <typename T, int DIM, bool NORM>
static cudaError_t launch_warps(cudaStream_t stream, const struct few_params &p,
                                const CUtensorMap &map, int n_sms)
{
    using S = fixed_few_shape<DIM>;
    enum { SM_BYTES = 228 * 1024, RESERVED = 1024, MOST_SLOTS = 8 * 128 / DIM };
    constexpr int SLOT = S::SLOT + (int)sizeof(uint64_t);
    const auto kernel = attention_few_fixed_kernel<T, DIM, NORM>;
    const int least = (p.n_units + S::WARPS * MAX_UNITS - 1) / (S::WARPS * MAX_UNITS);
    const int wanted = (p.n_units + S::WARPS - 1) / S::WARPS;
    const int n_blocks = std::max(least, std::min(wanted, (int)S::BLOCKS * n_sms));
    const int per_sm = std::min((int)S::BLOCKS, (n_blocks + n_sms - 1) / n_sms);
    const int n_slots = std::min((int)MOST_SLOTS, (SM_BYTES / per_sm - RESERVED) / S::WARPS / SLOT);
    const int smem = S::WARPS * n_slots * SLOT;
    const cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)n_blocks), dim3(S::WARPS * 32),
                                     (size_t)smem, stream, p, map, n_slots);
}

template <typename T, int DIM, bool NORM>
static cudaError_t by_rows(cudaStream_t stream, const struct few_params &p, int n_sms)
{
    CUtensorMap map;
    const cudaError_t e = few_map(&map, p);
    if (e != cudaSuccess) {
        return e;
    }
    return p.n_rows > FEW_ROWS ? launch_warps<T, DIM, NORM>(stream, p, map, n_sms)
                               : launch_teams<T, DIM, NORM>(stream, p, map, n_sms);
}

template <typename T>
static cudaError_t by_dim(cudaStream_t stream, const struct few_params &p, bool norm, int n_sms)
{
    if (p.kv.head_dim_k == 64) {
        return norm ? by_rows<T, 64, true>(stream, p, n_sms)
                    : by_rows<T, 64, false>(stream, p, n_sms);
    }
    return norm ? by_rows<T, 128, true>(stream, p, n_sms)
                : by_rows<T, 128, false>(stream, p, n_sms);
}

cudaError_t attention_few_fixed(cudaStream_t stream, const struct few_params &p, bool norm,
                                int n_sms)
{
    return p.kv.dtype == DT_BF16 ? by_dim<bf16_t>(stream, p, norm, n_sms)
                                 : by_dim<f16_t>(stream, p, norm, n_sms);
}
