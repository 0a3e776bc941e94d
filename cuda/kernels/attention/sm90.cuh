// SPDX-License-Identifier: Apache-2.0
/* Shared by the Hopper attention files: a block's shared memory and launch, positions in its ring,
 * and helpers for the operands and results of wgmma.
 * Thread: device code; launches: the rank's owner. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_SM90_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_SM90_CUH

#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/wgmma.cuh"

enum { WARPGROUP = 128, BLOCK_THREADS = 384, GROUP_ROWS = 64, MAX_SMEM = 232448 };

/* If units have at most this many keys on average, the pass runs narrow. */
enum { NARROW_KEYS = 1024 };

template <int NB> struct shape {
    static constexpr int HEAD_DIM = 64 * NB;
    static constexpr int KEYS = NB <= 2 ? 128 : 64;
    static constexpr int Q_BYTES = GROUP_ROWS * 128 * NB; // bytes of one warpgroup's Q
    static constexpr int SLOT_BYTES = KEYS * 128 * NB;
    static constexpr int FREE_BYTES = MAX_SMEM - 1024 - 512 - 2 * Q_BYTES;
    static constexpr int NOTE_BYTES = sizeof(struct attention_unit);
    static constexpr int SLOTS = FREE_BYTES / SLOT_BYTES < 12 ? FREE_BYTES / SLOT_BYTES : 12;
    static constexpr int SMEM =
        1024 + 2 * Q_BYTES + SLOTS * SLOT_BYTES + (2 * SLOTS + 4) * 8 + 2 * NOTE_BYTES;
};

/* Tensor maps. page: a whole page of K or V. part: 16 rows of a page, for a last page of which not
 * all rows are needed. queries: the heads of a group, for as many rows as make GROUP_ROWS packed
 * rows (p.q_rows; if it is 0, the group does not divide GROUP_ROWS, and the map is unused). */
struct attention_maps {
    CUtensorMap page, part, queries;
};
enum { PART_ROWS = 16 };

/* Launches one block per multiprocessor, with the shared memory of shape<NB>. */
template <int NB, typename K>
static cudaError_t launch_block(cudaStream_t stream, K kernel, const struct attention_params &p,
                                const struct attention_maps &map, int n_sms)
{
    const cudaError_t ready = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape<NB>::SMEM);
    return ready != cudaSuccess
               ? ready
               : launch(kernel, dim3(n_sms), dim3(BLOCK_THREADS), shape<NB>::SMEM, stream, p, map);
}

/* attention/prompt.cu: keys of 65 to 256 elements, in deterministic mode of up to 128, for passes
 * in which some tile has more than GROUP_ROWS packed rows. */
cudaError_t attention_prompt(cudaStream_t stream, enum dtype dtype,
                             const struct attention_params &p, const struct attention_maps &map,
                             int n_sms);

#if HAVE_SM90A

/* A position in the ring, and the parity of the current round. */
struct ring {
    int n_slots;
    int slot = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next()
    {
        if (++slot == n_slots) {
            slot = 0;
            parity ^= 1;
        }
    }
};

/* Called by one thread. Loads the GROUP_ROWS packed rows of a unit, from `first` on, into q_tile,
 * in blocks of 64 columns; `bar` counts the bytes. Rows after the unit's end contain garbage. */
template <int NB>
__device__ __forceinline__ void
load_queries(const struct attention_params &p, const struct attention_maps *maps,
             const struct attention_unit &u, int first, char *q_tile, uint64_t *bar)
{
    const int row = u.item.first_row + (u.first_packed + first) / GROUP_ROWS * p.q_rows;
    barrier_expect(bar, shape<NB>::Q_BYTES);
#pragma unroll
    for (int b = 0; b < NB; b++) {
        tensor_load_3d(q_tile + b * (GROUP_ROWS * 128), &maps->queries, bar, b * 64,
                       u.kv_head * p.group, row, policy_normal());
    }
}

template <typename T> __device__ __forceinline__ uint32_t pack(float a, float b);
template <> __device__ __forceinline__ uint32_t pack<bf16_t>(float a, float b)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&v);
}
template <> __device__ __forceinline__ uint32_t pack<f16_t>(float a, float b)
{
    const __half2 v = __floats2half2_rn(a, b);
    return *reinterpret_cast<const uint32_t *>(&v);
}

/* Joins a run of a folding item to the earlier runs. `keep` has this thread's values of the earlier
 * runs; all_top, all_sum: their maximum and sum (all_sum -1: there are none). */
template <int N>
__device__ __forceinline__ void fold_run(float *keep, bool last, float (&values)[N],
                                         const float (&top)[2], const float (&sum)[2],
                                         float (&all_top)[2], float (&all_sum)[2])
{
    struct join_weights w[2];
    const bool first = all_sum[0] == -1.0f;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        all_sum[r] = first ? 0.0f : all_sum[r];
        w[r] = join(all_top[r], all_sum[r], top[r], sum[r]);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float old_value = first ? 0.0f : keep[i * WARPGROUP];
        values[i] = join_value(w[i >> 1 & 1], old_value, values[i]);
        if (!last) {
            keep[i * WARPGROUP] = values[i];
        }
    }
}

/* Stores the part of row r that lane `quad` of the row's four lanes holds, unnormalised, with the
 * row's maximum and sum. */
template <int N>
__device__ __forceinline__ void store_slot(float *to, int d, int quad, int r,
                                           const float (&values)[N], float top, float sum)
{
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        if (j * 8 < d) {
            *reinterpret_cast<float2 *>(to + j * 8 + quad * 2) =
                make_float2(values[4 * j + 2 * r], values[4 * j + 2 * r + 1]);
        }
    }
    if (quad == 0) {
        *reinterpret_cast<float2 *>(to + d) = make_float2(top, sum);
    }
}

#endif // HAVE_SM90A
#endif
