// SPDX-License-Identifier: Apache-2.0
/* y += up_a sums of low-rank adapters (adapter.cuh), 16 bits. A block has a tile of an item's rows,
 * whose sums it adds up, rounds and keeps in shared memory, and one or more bands of features; a
 * warp has 32 features of a band, which usually belong to one run; where they belong to several,
 * it multiplies with the ranks of each. The matrix goes from memory to registers, a band ahead of
 * its use. The first part of it is fetched before the wait.
 *
 * Bound by latency for one row, by reading the matrices for many adapters, and by reading and
 * writing y for prompts. */
#include "cuda/kernels/gemm/adapter.cuh"

/* FEATURES: of a warp in a band. STEPS: of 16 ranks, whose part of the matrix is loaded together.
 * MANY: tiles of a block, with many rows. */
enum { FEATURES = 32, BAND = THREADS / 32 * FEATURES, STEPS = 4, MANY = 2 };

/* The distance between rows of sums in shared memory: a multiple of 32 bytes, by an odd number, so
 * that eight rows are in different banks. */
__host__ __device__ __forceinline__ int sums_stride(int ranks)
{
    return ranks / TILE % 2 == 0 ? ranks + TILE : ranks;
}

/* A thread's piece of a row of y. */
template <typename Y> struct alignas(16) y_piece {
    Y v[8];

    __device__ __forceinline__ void load(const Y *p)
    {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Y) / 2; i++) {
            ((uint4 *)v)[i] = ((const uint4 *)p)[i];
        }
    }
    __device__ __forceinline__ void store(Y *p) const
    {
#pragma unroll
        for (int i = 0; i < (int)sizeof(Y) / 2; i++) {
            ((uint4 *)p)[i] = ((const uint4 *)v)[i];
        }
    }
};

/* What a thread loads for a step: its part of the matrix, and its pieces of y. */
template <typename Y, int MT> struct up_operands {
    uint2 w[STEPS][4];
    struct y_piece<Y> y[MT * 2];
};

/* Where a warp is: 32 features from `feature` on, ranks from `rank` on of one of their runs. */
struct up_place {
    int feature, run, rank;
};

/* A warp's products of up to MT times 16 rows with 32 features. Columns of mma.sync are features in
 * such an order that a lane gets 8 consecutive ones. */
template <typename T, typename Y, int MT> struct up_warp {
    const struct adapter_args &a;
    const T *up;   // the adapter's matrix
    Y *row[MT][2]; // the lane's rows of y; NULL: there is no such row
    float acc[MT][4][4];

    /* Features of other runs get zeros. */
    __device__ __forceinline__ void load_w(uint2 (&w)[STEPS][4], const struct up_place &p) const
    {
        const int g = (threadIdx.x & 31) / 4, q = threadIdx.x & 3;
        const int first = a.first_out[p.run], end = run_end(a, p.run);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = p.feature + g / 2 * 8 + j * 2 + g % 2;
            const bool is_own = at >= first && at < end;
            const T *from = up + (int64_t)(is_own ? at : first) * a.rank + p.rank + q * 4;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                w[s][j] = is_own && p.rank + s * TILE < a.rank ? *(const uint2 *)(from + s * TILE)
                                                               : make_uint2(0, 0);
            }
        }
    }

    __device__ __forceinline__ bool has(int i, int feature) const
    {
        return row[i / 2][i % 2] && feature + (int)(threadIdx.x & 3) * 8 < a.n_out;
    }

    __device__ __forceinline__ void load_y(struct y_piece<Y> (&y)[MT * 2], int feature) const
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            if (has(i, feature)) {
                y[i].load(row[i / 2][i % 2] + feature + (threadIdx.x & 3) * 8);
            }
        }
    }

    /* is_last: no ranks of these features are left. */
    __device__ __forceinline__ struct up_place next_place(struct up_place p, bool *is_last) const
    {
        p.rank += STEPS * TILE;
        *is_last = false;
        if (p.rank < a.rank) {
            return p;
        }
        p.rank = 0;
        if (p.run + 1 < a.n_runs && run_end(a, p.run) < p.feature + FEATURES) {
            p.run++;
            return p;
        }
        *is_last = true;
        p.feature += BAND;
        p.run = run_of(a, p.feature);
        return p;
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < MT * 16; i++) {
            acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
        }
    }

    __device__ __forceinline__ void multiply(const uint2 (&w)[STEPS][4], const T *sums,
                                             const struct up_place &p)
    {
        const int ld = sums_stride(a.ranks);
        sums += (threadIdx.x & 31) / 4 * ld + a.first_rank[p.run] + p.rank + (threadIdx.x & 3) * 4;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            if (p.rank + s * TILE < a.rank) {
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    const T *from = sums + m * TILE * ld + s * TILE;
                    const uint2 low = *(const uint2 *)from, high = *(const uint2 *)(from + 8 * ld);
                    const uint32_t rows[4] = {low.x, high.x, low.y, high.y};
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        mma_16x8x16(acc[m][j], rows, w[s][j].x, w[s][j].y, T());
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void store(struct y_piece<Y> (&y)[MT * 2], int feature) const
    {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            if (has(i, feature)) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    y[i].v[e] =
                        from_float<Y>(to_float(y[i].v[e]) + acc[i / 2][e / 2][i % 2 * 2 + e % 2]);
                }
                y[i].store(row[i / 2][i % 2] + feature + (threadIdx.x & 3) * 8);
            }
        }
    }
};

/* Puts the sums of rows first .. + MT * 16 of an item into shared memory, rounded; zeros for rows
 * that do not exist. n_added: the parts to add up. A thread has two pieces of four ranks at a time,
 * so that more loads are under way. */
template <typename T, int MT>
__device__ __forceinline__ void gather_sums(const struct adapter_args &a, int n_parts, int n_added,
                                            const struct adapter_item &item, int first, T *to)
{
    const int per_row = a.ranks / 4, n = MT * TILE * per_row;
    for (int at = threadIdx.x; at < n; at += 2 * THREADS) {
        const float *from[2];
        float4 sum[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = first + (at + i * THREADS) / per_row;
            from[i] = at + i * THREADS < n && row < item.n_rows
                          ? sums_at(a, n_parts, item, row, 0) + (at + i * THREADS) % per_row * 4
                          : nullptr;
            sum[i] = from[i] ? *(const float4 *)from[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll 4
        for (int p = 1; p < n_added; p++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (from[i]) {
                    add_part(sum[i], *(const float4 *)(from[i] + p * a.ranks));
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = (at + i * THREADS) / per_row, rank = (at + i * THREADS) % per_row * 4;
            const T four[4] = {from_float<T>(sum[i].x), from_float<T>(sum[i].y),
                               from_float<T>(sum[i].z), from_float<T>(sum[i].w)};
            if (at + i * THREADS < n) {
                *(uint2 *)(to + row * sums_stride(a.ranks) + rank) = *(const uint2 *)four;
            }
        }
    }
}

/* A block has up to MT times 16 rows of an item and n_bands bands of 32 features per warp. n_added:
 * the parts to add up, of n_parts that there is room for. */
template <typename T, typename Y, int MT>
__global__ void __launch_bounds__(THREADS)
    up_kernel(const __grid_constant__ struct adapter_args a, int n_parts, int n_added, int n_bands)
{
    extern __shared__ __align__(16) char smem[];
    enum { ROWS = MT * TILE };
    T *sums = (T *)smem;
    const int per_item = (a.list.tile + ROWS - 1) / ROWS, first = blockIdx.y % per_item * ROWS;
    const struct adapter_item item = a.list.items[blockIdx.y / per_item];
    if (first >= item.n_rows) {
        pdl_wait();
        return;
    }
    struct up_warp<T, Y, MT> u = {
        a, (const T *)a.up + (int64_t)(item.adapter - 1) * a.n_out *a.rank
    };
    struct up_place at = {(int)blockIdx.x * n_bands * BAND + (int)(threadIdx.x >> 5) * FEATURES};
    const int end = at.feature + n_bands * BAND;
    struct up_operands<Y, MT> now, next;
    at.run = run_of(a, at.feature);
    u.load_w(now.w, at);
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int row = first + i * 8 + (threadIdx.x & 31) / 4;
        u.row[i / 2][i % 2] =
            row < item.n_rows ? (Y *)a.y + row_at(a, item, row) * a.y_stride : nullptr;
    }
    pdl_wait();
    pdl_trigger();
    u.load_y(now.y, at.feature);
    gather_sums<T, MT>(a, n_parts, n_added, item, first, sums);
    __syncthreads();
    u.clear();
    while (at.feature < end) {
        bool is_last;
        const struct up_place after = u.next_place(at, &is_last);
        next = now;
        if (after.feature < end) {
            u.load_w(next.w, after);
            if (is_last) {
                u.load_y(next.y, after.feature);
            }
        }
        u.multiply(now.w, sums, at);
        if (is_last) {
            u.store(now.y, at.feature);
            u.clear();
        }
        now = next;
        at = after;
    }
}

/* ---- host ------------------------------------------------------------------------------------ */

template <typename T, typename Y, int MT>
static cudaError_t up(cudaStream_t stream, const struct adapter_args *a, int n_parts, int n_added)
{
    /* Few rows: as many blocks as run at the same time; otherwise four times as many. */
    const int n_blocks = (MT == 1 ? 4 : 12) * n_multiprocessors();
    const int n_tiles = a->list.n_items * ceil_div(a->list.tile, MT * TILE);
    const int bands = ceil_div(a->n_out, BAND), most = ceil_div(bands * n_tiles, n_blocks);
    const int per_block = ceil_div(bands, ceil_div(bands, most)); // blocks have equal shares
    const int smem = MT * TILE * sums_stride(a->ranks) * (int)sizeof(T);
    const auto kernel = up_kernel<T, Y, MT>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3(ceil_div(bands, per_block), n_tiles), dim3(THREADS),
                        (size_t)smem, stream, *a, n_parts, n_added, per_block);
}

template <typename T, typename Y>
static cudaError_t up_rows(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    return a->list.tile == ADAPTER_FEW_TILE ? up<T, Y, 1>(stream, a, n_parts, n_parts)
                                            : up<T, Y, MANY>(stream, a, n_parts, 1);
}

template <typename T>
static cudaError_t up_of(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    return a->y_dtype == DT_F32 ? up_rows<T, float>(stream, a, n_parts)
                                : up_rows<T, T>(stream, a, n_parts);
}

cudaError_t adapter_up(cudaStream_t stream, const struct adapter_args *a, int n_parts)
{
    return a->dtype == DT_BF16 ? up_of<bf16_t>(stream, a, n_parts)
                               : up_of<f16_t>(stream, a, n_parts);
}
