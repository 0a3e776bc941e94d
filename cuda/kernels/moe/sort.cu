// SPDX-License-Identifier: Apache-2.0
/* Sorts a pass's picks by expert and lists the tiles of moe/sm90.cu, coded_many.cu and
 * eight_sm90.cu. Each block of a cluster counts the experts of a part of the picks, the blocks
 * exchange their counts, and then each warp knows the places of its picks. If there are many picks,
 * there are several clusters: all of them count all picks, and a block places one share of its
 * part. The result is ordered by (expert, pick) whatever order the warps run in.
 *
 * Bound by latency. Code that runs once takes longer to fetch than to run, so the kernel first runs
 * without picks, while it would only wait. */
#include "cuda/kernels/device/hopper.cuh"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/moe/sm90.cuh"

enum {
    MOST_PARTS = 8,     // blocks of a cluster
    MOST_SHARES = 8,    // clusters
    BLOCK_PICKS = 1024, // to be placed by a block, if there are not more than the blocks allow
    FEW_THREADS = 256,  // with one cluster
    MOST_THREADS = 1024,
    LOADS = 4 // picks that a lane loads at once
};

struct sort_params {
    const int32_t *ids;
    const int32_t *real; // number of real rows; NULL: all rows are real
    int32_t n_rows, row_offset, n_experts, k;
    int32_t n_parts, n_shares; // blocks of a cluster; clusters
};

/* Shared memory, by expert. The number of experts is rounded up to an even one. */
struct sort_room {
    int32_t *of_part;  // [MOST_PARTS][experts] picks in each part
    int32_t *total;    // picks in the part after the block's share; then in all parts
    int32_t *base;     // picks in the part before the share; then the place of the share's first
    uint16_t *of_warp; // [warps][experts] picks of each warp; then those before the warp's next
    int32_t *warp_rows, *warp_tiles; // [32] sums over the experts of a warp's threads
};

__host__ __device__ static inline int even(int n)
{
    return (n + 1) & ~1;
}

static size_t room_bytes(int n_experts, int threads)
{
    const int each = (MOST_PARTS + 2) * 4 + threads / 32 * 2;
    return (size_t)(even(n_experts) * each + 2 * 32 * 4);
}

#if HAVE_SM90A

__device__ __forceinline__ struct sort_room room_at(int32_t *memory, int n_experts)
{
    const int n = even(n_experts);
    int32_t *total = memory + 64 + MOST_PARTS * n;
    return {memory + 64, total, total + n, (uint16_t *)(total + 2 * n), memory, memory + 32};
}

__device__ __forceinline__ void clear_counts(const struct sort_params &p, const struct sort_room &s)
{
    const int n = even(p.n_experts);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        s.total[i] = s.base[i] = 0;
    }
    for (int i = threadIdx.x; i < (int)blockDim.x / 32 * n / 2; i += blockDim.x) {
        ((uint32_t *)s.of_warp)[i] = 0;
    }
}

/* The number of picks of real rows. */
__device__ __forceinline__ int n_real(const struct sort_params &p)
{
    int n = p.n_rows;
    if (p.real) {
        n = min(n, max(*p.real - p.row_offset, 0));
    }
    return n * p.k;
}

/* The experts of a lane's next picks, which are 32 apart; -1: no such pick. */
__device__ __forceinline__ void load_experts(const struct sort_params &p, int pick, int end,
                                             int (&e)[LOADS])
{
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        e[j] = pick + 32 * j < end ? p.ids[pick + 32 * j] : -1;
    }
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        e[j] = e[j] < p.n_experts ? e[j] : -1;
    }
}

/* Counts the warp's picks [first, end) by expert. */
__device__ __forceinline__ void count_picks(const struct sort_params &p, uint16_t *count, int first,
                                            int end)
{
    int i = first + (int)(threadIdx.x & 31);
#pragma unroll 1
    do {
        int e[LOADS];
        load_experts(p, i, end, e);
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            if (e[j] >= 0) { // a half of a word
                atomicAdd((unsigned *)count + (e[j] >> 1), 1u << 16 * (e[j] & 1));
            }
        }
        i += 32 * LOADS;
    } while (i < end);
}

/* Counts the picks of the part [first, end) that are not in the block's share. */
__device__ __forceinline__ void count_others(const struct sort_params &p, const struct sort_room &s,
                                             int first, int end, int share, int share_end)
{
#pragma unroll 1
    for (int i = first + (int)(threadIdx.x >> 5) * 32 * LOADS + (int)(threadIdx.x & 31); i < end;
         i += (int)blockDim.x * LOADS) {
        int e[LOADS];
        load_experts(p, i, end, e);
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const int pick = i + 32 * j;
            if (e[j] >= 0 && (pick < share || pick >= share_end)) {
                atomicAdd((pick < share ? s.base : s.total) + e[j], 1);
            }
        }
    }
}

/* Makes a warp's counts those of the warps before it, and tells all parts the sums. */
__device__ __forceinline__ void sum_warps(const struct sort_params &p, const struct sort_room &s)
{
    const int n = even(p.n_experts), n_warps = blockDim.x / 32;
#pragma unroll 1
    for (int e = threadIdx.x; e < p.n_experts; e += blockDim.x) {
        int sum = 0;
#pragma unroll 8
        for (int i = 0; i < n_warps; i++) {
            const int c = s.of_warp[i * n + e];
            s.of_warp[i * n + e] = (uint16_t)sum;
            sum += c;
        }
        sum += s.base[e] + s.total[e];
#pragma unroll 1
        for (int part = 0; part < p.n_parts; part++) {
            asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(
                             address_in(&s.of_part[cluster_rank() * n + e], part)),
                         "r"(sum)
                         : "memory");
        }
    }
}

/* Writes every n-th of an expert's tiles, where n is the number of blocks. */
__device__ __forceinline__ void write_tiles(const struct moe_work &w, int expert, int n_rows,
                                            int first, int first_tile)
{
    const int n = (n_rows + TILE_ROWS - 1) / TILE_ROWS, last_rows = n_rows - (n - 1) * TILE_ROWS;
#pragma unroll 1
    for (int i = blockIdx.x; i < n; i += gridDim.x) {
        const int group = i / GROUP * GROUP, in_group = min(n - group, (int)GROUP);
        const bool is_last = group + in_group == n;
        const int whole = in_group - (is_last && last_rows <= HALF_ROWS);
        w.tiles[first_tile + i] = {expert,
                                   first + i * TILE_ROWS,
                                   first_tile + group,
                                   (uint8_t)min(n_rows - i * TILE_ROWS, (int)TILE_ROWS),
                                   (uint8_t)in_group,
                                   (uint8_t)(whole & ~1),
                                   (uint8_t)(is_last ? last_rows : (int)TILE_ROWS)};
    }
}

/* Adds up the parts' counts: s.total, and in s.base the picks before the block's share. Returns the
 * rows and tiles of the thread's experts [begin, end). */
__device__ __forceinline__ int2 sum_parts(const struct sort_params &p, const struct sort_room &s,
                                          int begin, int end)
{
    const int n = even(p.n_experts), rank = (int)cluster_rank();
    int2 sum = {0, 0};
#pragma unroll 1
    for (int e = begin; e < end; e++) {
        int total = 0, before = 0;
#pragma unroll
        for (int part = 0; part < MOST_PARTS; part++) {
            const int c = part < p.n_parts ? s.of_part[part * n + e] : 0;
            total += c;
            before += part < rank ? c : 0;
        }
        s.total[e] = total;
        s.base[e] += before;
        sum.x += total;
        sum.y += (total + TILE_ROWS - 1) / TILE_ROWS;
    }
    return sum;
}

/* Finds the places of the experts' first picks in the block's share, and writes the block's tiles.
 * is: false if nothing may be written yet. */
__device__ __forceinline__ void sum_experts(const struct sort_params &p, const struct sort_room &s,
                                            const struct moe_work &w, bool is)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x / 32;
    const int each = (p.n_experts + blockDim.x - 1) / blockDim.x;
    const int begin = min((int)threadIdx.x * each, p.n_experts);
    const int end = min(begin + each, p.n_experts);
    const int2 sum = sum_parts(p, s, begin, end);
    int2 to = sum; // inclusive, over the warp
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int r = __shfl_up_sync(0xffffffffu, to.x, d);
        const int t = __shfl_up_sync(0xffffffffu, to.y, d);
        to.x += lane >= d ? r : 0;
        to.y += lane >= d ? t : 0;
    }
    if (lane == 31) {
        s.warp_rows[warp] = to.x;
        s.warp_tiles[warp] = to.y;
    }
    __syncthreads();
    const int rows = lane < n_warps ? s.warp_rows[lane] : 0;
    const int tiles = lane < n_warps ? s.warp_tiles[lane] : 0;
    int row = to.x - sum.x + __reduce_add_sync(0xffffffffu, lane < warp ? rows : 0);
    int tile = to.y - sum.y + __reduce_add_sync(0xffffffffu, lane < warp ? tiles : 0);
    const int n_tiles = __reduce_add_sync(0xffffffffu, tiles);
    if (is && blockIdx.x == 0 && threadIdx.x == 0) {
        *w.n_tiles = n_tiles;
    }
#pragma unroll 1
    for (int e = begin; e < end; e++) {
        const int n = s.total[e];
        s.base[e] += row;
        write_tiles(w, e, is ? n : 0, row, tile);
        row += n;
        tile += (n + TILE_ROWS - 1) / TILE_ROWS;
    }
}

/* Places the warp's picks [first, end). */
__device__ __forceinline__ void place_picks(const struct sort_params &p, const struct moe_work &w,
                                            const int32_t *base, uint16_t *before, int first,
                                            int end)
{
    const int lane = threadIdx.x & 31;
#pragma unroll 1
    do {
        int e[LOADS];
        load_experts(p, first + lane, end, e);
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            const unsigned same = __match_any_sync(0xffffffffu, e[j]);
            const int pick = first + 32 * j + lane;
            if (e[j] >= 0) {
                const int at = base[e[j]] + before[e[j]] + __popc(same & ((1u << lane) - 1));
                w.sorted[at] = pick;
                w.rows[at] = (unsigned)pick / (unsigned)p.k;
            }
            __syncwarp();
            if (e[j] >= 0 && lane == __ffs(same) - 1) {
                before[e[j]] += (uint16_t)__popc(same);
            }
            __syncwarp();
        }
        first += 32 * LOADS;
    } while (first < end);
}

#endif // HAVE_SM90A

__global__ void __launch_bounds__(MOST_THREADS, 2)
    moe_sort_kernel(struct sort_params p, struct moe_work w)
{
#if HAVE_SM90A
    extern __shared__ int32_t memory[];
    const struct sort_room s = room_at(memory, p.n_experts);
    const int n_warps = blockDim.x / 32, n_real_picks = n_real(p);
    const int shares = p.n_parts * p.n_shares, all_warps = shares * n_warps;
    const int each = ((n_real_picks + all_warps - 1) / all_warps + 31) / 32 * 32; // of a warp
    const int of_share = each * n_warps, warp = threadIdx.x >> 5;
    const int part = (int)cluster_rank() * p.n_shares * of_share;
    const int share = part + (int)blockIdx.x / p.n_parts * of_share;
    uint16_t *own = s.of_warp + warp * even(p.n_experts);
    cluster_sync(); // the blocks have started, so that their shared memory may be written
#pragma unroll 1
    for (int run = 0; run < 2; run++) {
        const int n = run ? n_real_picks : 0;
        const int first = min(share + warp * each, n), end = min(first + each, n);
        clear_counts(p, s);
        if (run) {
            pdl_wait();
            pdl_trigger();
        }
        __syncthreads();
        count_picks(p, own, first, end);
        if (p.n_shares > 1) {
            count_others(p, s, part, min(part + p.n_shares * of_share, n), share, share + of_share);
        }
        __syncthreads();
        sum_warps(p, s);
        cluster_sync();
        sum_experts(p, s, w, run);
        __syncthreads();
        place_picks(p, w, s.base, own, first, end);
        __syncthreads();
    }
#endif
}

cudaError_t moe_sort(cudaStream_t stream, const struct moe_ffn_args *a, const struct moe_work &w,
                     const int32_t *real, int32_t row_offset)
{
    const int64_t blocks = ((int64_t)a->n_rows * a->k + BLOCK_PICKS - 1) / BLOCK_PICKS;
    struct sort_params p = {
        (const int32_t *)a->ids.p, real, a->n_rows, row_offset, a->n_experts, a->k, 1, 1};
    while (p.n_parts < MOST_PARTS && p.n_parts < blocks) {
        p.n_parts *= 2;
    }
    while (p.n_shares < MOST_SHARES && p.n_parts * p.n_shares < blocks) {
        p.n_shares++;
    }
    const int threads = p.n_shares > 1 ? MOST_THREADS : FEW_THREADS;
    const size_t n_bytes = room_bytes(a->n_experts, threads);
    cudaError_t e = cudaFuncSetAttribute(moe_sort_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    if (e == cudaSuccess) { // so that blocks with more shared memory may start beside it
        e = cudaFuncSetAttribute(moe_sort_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    }
    return e != cudaSuccess ? e
                            : launch_clusters(p.n_parts, moe_sort_kernel,
                                              dim3((unsigned)(p.n_parts * p.n_shares)),
                                              dim3(threads), n_bytes, stream, p, w);
}
