// SPDX-License-Identifier: Apache-2.0
/* Sorts a pass's picks by expert and lists the tiles of moe/sm90.cu, coded_many.cu and
 * eight_sm90.cu. One kernel counts and a second one places the picks, a chunk per block. The result
 * is ordered by (expert, pick) whatever order the blocks run in. Bound by launch latency. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum { SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / 32 };

struct sort_params {
    const int32_t *ids;
    const int32_t *real; // number of real rows; NULL: all rows are real
    int32_t n_rows, row_offset, n_experts, k;
};

/* The number of picks of real rows. */
__device__ __forceinline__ int n_real(const struct sort_params &p)
{
    int n = p.n_rows;
    if (p.real) {
        n = min(n, max(*p.real - p.row_offset, 0));
    }
    return n * p.k;
}

__device__ __forceinline__ int expert_of(const struct sort_params &p, int pick, int n)
{
    const int id = pick < n ? p.ids[pick] : -1;
    return id < p.n_experts ? id : -1;
}

/* counts[block] = the number of picks of each expert in the block's chunk. */
__global__ void __launch_bounds__(SORT_THREADS)
    moe_count_kernel(struct sort_params p, struct moe_work w)
{
    __shared__ int32_t count[MOE_MAX_EXPERTS];
    pdl_wait();
    pdl_trigger();
    for (int e = threadIdx.x; e < p.n_experts; e += SORT_THREADS) {
        count[e] = 0;
    }
    __syncthreads();
    const int n = n_real(p), first = blockIdx.x * SORT_CHUNK;
    for (int i = threadIdx.x; i < SORT_CHUNK; i += SORT_THREADS) {
        const int e = expert_of(p, first + i, n);
        if (e >= 0) {
            atomicAdd(&count[e], 1);
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < p.n_experts; e += SORT_THREADS) {
        w.counts[blockIdx.x * p.n_experts + e] = count[e];
    }
}

struct place_shared {
    int32_t total[MOE_MAX_EXPERTS]; // picks per expert
    int32_t base[MOE_MAX_EXPERTS];  // place of an expert's first pick, then of this chunk's first
    int32_t first_tile[MOE_MAX_EXPERTS];
    uint16_t of_warp[SORT_WARPS][MOE_MAX_EXPERTS];
    int32_t warp_rows[SORT_WARPS], warp_tiles[SORT_WARPS];
};

/* Exclusive sums over the experts: first places and first tiles. Returns the number of tiles. */
__device__ __forceinline__ int sum_experts(struct place_shared &s, int n_experts)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int each = (n_experts + SORT_THREADS - 1) / SORT_THREADS;
    const int begin = min((int)threadIdx.x * each, n_experts), end = min(begin + each, n_experts);
    int rows = 0, tiles = 0;
    for (int e = begin; e < end; e++) {
        rows += s.total[e];
        tiles += (s.total[e] + TILE_ROWS - 1) / TILE_ROWS;
    }
    int rows_to = rows, tiles_to = tiles; // inclusive, over the warp
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int r = __shfl_up_sync(0xffffffffu, rows_to, d);
        const int t = __shfl_up_sync(0xffffffffu, tiles_to, d);
        rows_to += lane >= d ? r : 0;
        tiles_to += lane >= d ? t : 0;
    }
    if (lane == 31) {
        s.warp_rows[warp] = rows_to;
        s.warp_tiles[warp] = tiles_to;
    }
    __syncthreads();
    int all = 0, row = rows_to - rows, tile = tiles_to - tiles;
    for (int i = 0; i < SORT_WARPS; i++) {
        row += i < warp ? s.warp_rows[i] : 0;
        tile += i < warp ? s.warp_tiles[i] : 0;
        all += s.warp_tiles[i];
    }
    for (int e = begin; e < end; e++) {
        s.base[e] = row;
        s.first_tile[e] = tile;
        row += s.total[e];
        tile += (s.total[e] + TILE_ROWS - 1) / TILE_ROWS;
    }
    __syncthreads();
    return all;
}

__device__ __forceinline__ void write_tiles(const struct place_shared &s, struct moe_work w,
                                            int n_experts)
{
    const int lane = threadIdx.x & 31, warp = blockIdx.x * SORT_WARPS + (threadIdx.x >> 5);
    for (int e = warp; e < n_experts; e += gridDim.x * SORT_WARPS) {
        const int n = (s.total[e] + TILE_ROWS - 1) / TILE_ROWS;
        const int last_rows = s.total[e] - (n - 1) * TILE_ROWS;
        for (int i = lane; i < n; i += 32) {
            const int group = i / GROUP * GROUP, in_group = min(n - group, (int)GROUP);
            const bool is_last = group + in_group == n;
            const int whole = in_group - (is_last && last_rows <= HALF_ROWS);
            w.tiles[s.first_tile[e] + i] = {
                e,
                s.base[e] + i * TILE_ROWS,
                s.first_tile[e] + group,
                (uint8_t)min(s.total[e] - i * TILE_ROWS, (int)TILE_ROWS),
                (uint8_t)in_group,
                (uint8_t)(whole & ~1),
                (uint8_t)(is_last ? last_rows : (int)TILE_ROWS)};
        }
    }
}

/* s.total, and the picks of each of the thread's experts in the chunks before this one. */
__device__ __forceinline__ void count_before(const struct sort_params &p, const struct moe_work &w,
                                             struct place_shared &s,
                                             int (&before)[MOE_MAX_EXPERTS / SORT_THREADS])
{
#pragma unroll
    for (int j = 0; j < MOE_MAX_EXPERTS / SORT_THREADS; j++) {
        const int e = j * SORT_THREADS + threadIdx.x;
        int total = 0;
        before[j] = 0;
        if (e < p.n_experts) {
#pragma unroll 8
            for (int b = 0; b < (int)gridDim.x; b++) {
                const int c = w.counts[b * p.n_experts + e];
                total += c;
                before[j] += b < (int)blockIdx.x ? c : 0;
            }
            s.total[e] = total;
            for (int i = 0; i < SORT_WARPS; i++) {
                s.of_warp[i][e] = 0;
            }
        }
    }
}

/* Each block places its chunk's picks in (expert, pick) order, and writes some of the tiles. */
__global__ void __launch_bounds__(SORT_THREADS)
    moe_place_kernel(struct sort_params p, struct moe_work w)
{
    __shared__ struct place_shared s;
    pdl_wait();
    pdl_trigger();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n = n_real(p);
    int before[MOE_MAX_EXPERTS / SORT_THREADS];
    count_before(p, w, s, before);
    __syncthreads();
    const int n_tiles = sum_experts(s, p.n_experts);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *w.n_tiles = n_tiles;
    }
    write_tiles(s, w, p.n_experts);
    /* A warp takes SORT_CHUNK / SORT_WARPS consecutive picks: it ranks them first, then places
     * them. */
    const int mine = blockIdx.x * SORT_CHUNK + warp * (SORT_CHUNK / SORT_WARPS) + lane;
    for (int i = 0; i < SORT_CHUNK / SORT_WARPS; i += 32) {
        const int e = expert_of(p, mine + i, n);
        const unsigned same = __match_any_sync(0xffffffffu, e);
        if (e >= 0 && lane == __ffs(same) - 1) {
            s.of_warp[warp][e] += __popc(same);
        }
        __syncwarp();
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < MOE_MAX_EXPERTS / SORT_THREADS; j++) {
        const int e = j * SORT_THREADS + threadIdx.x;
        if (e < p.n_experts) {
            s.base[e] += before[j];
            int sum = 0;
            for (int i = 0; i < SORT_WARPS; i++) {
                const int c = s.of_warp[i][e];
                s.of_warp[i][e] = (uint16_t)sum;
                sum += c;
            }
        }
    }
    __syncthreads();
    for (int i = 0; i < SORT_CHUNK / SORT_WARPS; i += 32) {
        const int e = expert_of(p, mine + i, n);
        const unsigned same = __match_any_sync(0xffffffffu, e);
        if (e >= 0) {
            const int place = s.base[e] + s.of_warp[warp][e] + __popc(same & ((1u << lane) - 1));
            w.sorted[place] = mine + i;
            w.rows[place] = (mine + i) / p.k;
        }
        __syncwarp();
        if (e >= 0 && lane == __ffs(same) - 1) {
            s.of_warp[warp][e] += __popc(same);
        }
        __syncwarp();
    }
}

cudaError_t moe_sort(cudaStream_t stream, const struct moe_ffn_args *a, const struct moe_work &w,
                     const int32_t *real, int32_t row_offset)
{
    const struct sort_params p = {
        (const int32_t *)a->ids.p, real, a->n_rows, row_offset, a->n_experts, a->k};
    const dim3 chunks((unsigned)((a->n_rows * a->k + SORT_CHUNK - 1) / SORT_CHUNK));
    const cudaError_t e = launch(moe_count_kernel, chunks, dim3(SORT_THREADS), 0, stream, p, w);
    return e != cudaSuccess ? e
                            : launch(moe_place_kernel, chunks, dim3(SORT_THREADS), 0, stream, p, w);
}
