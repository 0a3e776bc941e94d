// SPDX-License-Identifier: Apache-2.0
/* y = x W^T, both operands E4M3 codes, for 1 to 64 rows on Hopper. It reads each weight once; bound
 * by memory bandwidth.
 *
 * D[features, rows] = W x^T by wgmma: 64 features of W are the first operand and the rows of x the
 * second one, so few rows cost little besides reading W from shared memory, and their sums need few
 * registers. A block has a multiprocessor to itself and processes items in turn: a band of up to
 * 256 features, a range of K and a tile of rows. A thread loads boxes of W and x through a ring of
 * stages that fills shared memory, and four warpgroups compute. A band has one, two or four
 * tiles of up to 64 features. If there are fewer tiles than warpgroups, several warpgroups take the
 * boxes of one tile in turn, and their sums are added at the end of the item. If there are fewer
 * bands than multiprocessors K is split, if the caller allows it, and the partial sums are left in
 * fp32 for the kernel that reads the product.
 *
 * The tensor cores sum over 128 inputs at most, because they accumulate codes with fewer bits than
 * fp32. Those sums are scaled and accumulated in fp32. Scales of blocks are copied to shared memory
 * for up to WINDOW boxes at a time; scales of rows are applied at the end.
 *
 * x may come in floating point; every block then rounds it for its range of K. For one or two rows
 * this is faster than a separate kernel. With programmatic dependent launch the ring is filled with
 * weights, which no kernel writes, before the wait for the preceding kernel. */
#include "cuda/kernels/gemm/eight.cuh"

#if HAVE_SM90A

/* ---- sums ------------------------------------------------------------------------------------ */

/* sums += d, scaled by its group's scales. x: the scales of rows 2 t and 2 t + 1. */
template <int N, bool BLOCKS>
__device__ __forceinline__ void add_scaled(float (&sums)[N / 2], const float (&d)[N / 2],
                                           const float *x, float w)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float2 f = make_float2(1.0f, 1.0f);
        if (BLOCKS) {
            f = *(const float2 *)(x + 8 * j);
            f.x *= w, f.y *= w;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float *to = sums + 4 * j + 2 * h;
            const float *from = d + 4 * j + 2 * h;
            to[0] = BLOCKS ? fmaf(from[0], f.x, to[0]) : to[0] + from[0];
            to[1] = BLOCKS ? fmaf(from[1], f.y, to[1]) : to[1] + from[1];
        }
    }
}

/* A warpgroup's part of an item: a tile of its band, and every n_ways-th box. */
struct eight_part {
    int32_t tile, way;
    int32_t start, end; // features, counted from the band's first one

    __device__ __forceinline__ explicit eight_part(const struct eight_params &p)
    {
        const int32_t group = threadIdx.x >> 7;
        tile = group % p.n_tiles;
        way = group / p.n_tiles;
        start = tile_start(p.band, p.n_tiles, tile);
        end = tile_start(p.band, p.n_tiles, tile + 1);
    }
};

/* The warpgroup's sums of an item. `at` is the position of the item's first box, and becomes that
 * of the next item's first box. */
template <int N, bool BLOCKS>
__device__ __forceinline__ void
sum_item(const struct eight_params &p, const struct eight_item &item, const struct eight_part &part,
         char *stages, struct eight_ring *ring, const struct eight_scales &scales,
         struct eight_place &at, float (&sums)[N / 2])
{
    const int32_t block =
        (item.feature + part.start + STEP * (threadIdx.x >> 5 & 3)) / BOX - item.feature / BOX;
    const float *w_scales = scales.w + min(block, MAX_BLOCKS - 1) * WINDOW;
    const float *x_scales = scales.x + 2 * (threadIdx.x & 3);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        sums[i] = 0.0f;
    }
#pragma unroll 1
    for (int32_t box = item.box; box < item.end; box += p.n_ways) {
        const int32_t in_item = box - item.box;
        if (BLOCKS && in_item % WINDOW == 0 && in_item > 0) {
            computers_meet();
            copy_w_scales(p, item, box, scales.w);
            copy_x_scales<N, BLOCKS>(p, item, box, scales.x);
            computers_meet();
        }
        struct eight_place mine = at;
        mine.add(p, part.way);
        at.add(p, p.n_ways);
        char *stage = stages + mine.stage * p.stage_bytes;
        const char *x = stage;
        if (p.is_whole) {
            x = stages + p.whole_x + (in_item + part.way) * N * BOX;
        } else {
            barrier_wait(&ring->full_x[mine.stage], mine.parity);
        }
        barrier_wait(&ring->full_w[mine.stage], mine.parity);
        float d[N / 2];
        wgmma_fence();
        multiply_box<N>(d, smem_address(stage + p.stage_x + part.start * BOX), smem_address(x));
        wgmma_commit();
        const int32_t i = (in_item + part.way) % WINDOW;
        const float w = BLOCKS ? w_scales[i] : 1.0f;
        wgmma_wait<0>();
        wgmma_settle(d);
        if ((threadIdx.x & 31) == 0) {
            barrier_arrive(&ring->empty[mine.stage]);
        }
        add_scaled<N, BLOCKS>(sums, d, x_scales + i * N, w);
    }
}

/* Adds up, in order, the sums of the warpgroups that share a tile. */
template <int HALF>
__device__ __forceinline__ void join_ways(const struct eight_params &p,
                                          const struct eight_part &part, float *room,
                                          float (&sums)[HALF])
{
    float *to = room + ((part.way - 1) * p.n_tiles + part.tile) * (HALF * 128);
    computers_meet(); // the previous item's sums have been read
    if (part.way > 0) {
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            to[i * 128 + (threadIdx.x & 127)] = sums[i];
        }
    }
    computers_meet();
    if (part.way > 0) {
        return;
    }
#pragma unroll 1
    for (int way = 1; way < p.n_ways; way++) {
        const float *from = room + ((way - 1) * p.n_tiles + part.tile) * (HALF * 128);
#pragma unroll
        for (int i = 0; i < HALF; i++) {
            sums[i] += from[i * 128 + (threadIdx.x & 127)];
        }
    }
}

/* ---- storing results ------------------------------------------------------------------------- */

/* Two adjacent features of one row. */
__device__ __forceinline__ void store_pair(const struct eight_params &p, int64_t at, float2 v)
{
    if (p.y_dtype == DT_F32) {
        float2 *to = (float2 *)((float *)p.y + at);
        if (p.accumulate) {
            const float2 old = *to;
            v.x += old.x, v.y += old.y;
        }
        *to = v;
    } else if (p.y_dtype == DT_BF16) {
        __nv_bfloat162 *to = (__nv_bfloat162 *)((bf16_t *)p.y + at);
        if (p.accumulate) {
            const float2 old = __bfloat1622float2(*to);
            v.x += old.x, v.y += old.y;
        }
        *to = __floats2bfloat162_rn(v.x, v.y);
    } else {
        __half2 *to = (__half2 *)((f16_t *)p.y + at);
        if (p.accumulate) {
            const float2 old = __half22float2(*to);
            v.x += old.x, v.y += old.y;
        }
        *to = __floats2half2_rn(v.x, v.y);
    }
}

/* Multiplies sums by the scales of rows. of_w: those of the lane's two features. */
template <int N>
__device__ __forceinline__ void scale_rows(float (&sums)[N / 2], const float *x_scales,
                                           const float (&of_w)[2])
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 x = *(const float2 *)(x_scales + 8 * j + 2 * (threadIdx.x & 3));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sums[4 * j + 2 * h] *= x.x * of_w[h];
            sums[4 * j + 2 * h + 1] *= x.y * of_w[h];
        }
    }
}

/* Stores the sums of a warp's features as they are. Few instructions matter here, since fetching
 * code that runs once takes longer than running it. */
template <int N>
__device__ __forceinline__ void store_plain(const struct eight_params &p,
                                            const struct eight_item &item, int32_t feature,
                                            const float (&sums)[N / 2])
{
    const int32_t row = item.row + 2 * (threadIdx.x & 3), left = p.n_rows - row;
    float *to = (float *)p.y + (item.run * p.part_stride + row * p.y_stride + feature);
    float *next = to + p.y_stride;
#pragma unroll
    for (int j = 0; j < N / 8; j++, to += 8 * p.y_stride, next += 8 * p.y_stride) {
        if (8 * j < left) {
            to[0] = sums[4 * j];
            to[8] = sums[4 * j + 2];
        }
        if (8 * j + 1 < left) {
            next[0] = sums[4 * j + 1];
            next[8] = sums[4 * j + 3];
        }
    }
}

/* Stores a tile's sums, of features [first, end). Lanes of neighbouring features exchange sums, so
 * that each stores pairs. */
template <int N>
__device__ __forceinline__ void store_tile(const struct eight_params &p,
                                           const struct eight_item &item, int32_t first,
                                           int32_t end, float (&sums)[N / 2])
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const bool is_odd = g & 1;
    first += (threadIdx.x >> 5 & 3) * STEP;
    if (first >= end) { // a warp's features
        return;
    }
    if (p.is_plain) {
        store_plain<N>(p, item, first + g, sums);
        return;
    }
#pragma unroll 1
    for (int j = 0; j < N / 8; j++) { // a single copy of the code, which stores sums[0] to [3]
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t feature = first + 8 * h + (g & ~1);
            float2 bias = make_float2(0.0f, 0.0f);
            if (p.bias) {
                bias = make_float2(p.bias[feature], p.bias[feature + 1]);
            }
            const float a = sums[2 * h], b = sums[2 * h + 1];
            const float other = __shfl_xor_sync(0xffffffffu, is_odd ? a : b, 4);
            const float2 two = is_odd ? make_float2(other, b) : make_float2(a, other);
            const int32_t row = item.row + 8 * j + 2 * t + (is_odd ? 1 : 0);
            if (row < p.n_rows) {
                store_pair(p, item.run * p.part_stride + row * p.y_stride + feature,
                           make_float2(two.x + bias.x, two.y + bias.y));
            }
        }
#pragma unroll
        for (int i = 0; i + 4 < N / 2; i++) {
            sums[i] = sums[i + 4];
        }
    }
}

/* Scales of the lane's features of a tile. */
__device__ __forceinline__ void row_scales(const struct eight_params &p, int32_t first,
                                           float (&of_w)[2])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int32_t in_tile = (threadIdx.x >> 5 & 3) * STEP + 8 * h + (threadIdx.x >> 2 & 7);
        of_w[h] = p.scales.w[min(first + in_tile, p.n_out - 1)];
    }
}

template <int N, bool BLOCKS, bool RAW>
__device__ __forceinline__ void compute(const struct eight_params &p, char *stages,
                                        struct eight_ring *ring)
{
    const struct eight_part part(p);
    float *rest = (float *)(stages + p.rest);
    const struct eight_scales scales = {rest, rest + WINDOW * N};
    float *room = rest + WINDOW * (N + MAX_BLOCKS);
    struct eight_place at;
    bool is_first = true;
#pragma unroll 1
    for (int32_t i = blockIdx.x; i < p.plan.n_items; i += gridDim.x) {
        const struct eight_item item(p, i, N);
        const int32_t first = item.feature + part.start;
        float of_w[2];
        if (!BLOCKS) {
            row_scales(p, first, of_w);
        }
        if (!is_first) {
            computers_meet(); // the previous item's scales have been read
        }
        if (BLOCKS) {
            copy_w_scales(p, item, item.box, scales.w);
        }
        if (is_first) {
            pdl_wait(); // preceding kernels may use x and y until then
            pdl_trigger();
            is_first = false;
        }
        if constexpr (!RAW) {
            copy_x_scales<N, BLOCKS>(p, item, item.box, scales.x);
        } else if (p.raw.x_dtype == DT_BF16) {
            round_x<BLOCKS, bf16_t>(p, item, stages + p.whole_x, scales.x, ring->largest);
        } else {
            round_x<BLOCKS, f16_t>(p, item, stages + p.whole_x, scales.x, ring->largest);
        }
        computers_meet();
        if (!RAW && p.is_whole) { // then the block has only this item
            barrier_wait(&ring->full_x[0], 0);
        }
        float sums[N / 2];
        sum_item<N, BLOCKS>(p, item, part, stages, ring, scales, at, sums);
        if (p.n_ways > 1) {
            join_ways(p, part, room, sums);
        }
        if (part.way == 0) {
            if (!BLOCKS) {
                scale_rows<N>(sums, scales.x, of_w);
            }
            store_tile<N>(p, item, first, min(item.feature + part.end, item.end_feature), sums);
        }
    }
}

#endif // HAVE_SM90A

/* With up to 16 rows, registers are left for blocks of the next norm on the multiprocessor. */
template <int N, bool RAW> constexpr int REGISTERS = N <= 16 && !RAW ? 64 : 96;

template <int N, bool BLOCKS, bool RAW>
__global__ void __maxnreg__((REGISTERS<N, RAW>))
    gemm_eight_kernel(const __grid_constant__ struct eight_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    extern __shared__ char smem_raw[];
    __shared__ struct eight_ring ring;
    char *stages = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int i = 0; i < p.n_stages; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], 4 * p.n_tiles); // warps that compute with a stage
        }
        barrier_init_done();
    }
    __syncthreads();
    if (threadIdx.x >= COMPUTERS) {
        if (threadIdx.x == COMPUTERS) {
            const struct eight_loader<N, RAW> l = {
                p, &w_map, &x_map, stages, &ring
            };
            l.run();
        }
        pdl_wait();
        return;
    }
    /* Triggers before the wait only if blocks of two products do not fit side by side: otherwise
     * the product after the next one would start too early. */
    if (p.is_full) {
        pdl_trigger();
    }
    compute<N, BLOCKS, RAW>(p, stages, &ring);
#endif
}

/* ---- host ------------------------------------------------------------------------------------ */

static int32_t row_tile(int32_t n_rows)
{
    int32_t n = 8;
    while (n < n_rows && n < MAX_ROWS) {
        n *= 2;
    }
    return n;
}

/* The most boxes of an item. */
static int32_t boxes_of(const struct item_plan &plan)
{
    return item_most(plan.runs) * CHUNK;
}

static int32_t tiles_of(int32_t band)
{
    if (band <= TILE) {
        return 1;
    }
    return band <= 2 * TILE ? 2 : 4;
}

static struct item_plan plan_of(const struct gemm_args *a, int32_t n_sms, size_t sums_bytes)
{
    enum { FEW = 32 };
    const int32_t n = row_tile(a->n_rows);
    /* Attention of few rows adds partial sums more slowly than other readers. */
    const bool may_cut = a->may_split && !a->accumulate && (a->n_rows > FEW || a->n_out <= a->n_in);
    const struct item_costs costs = {
        .n_tiles = a->n_out / STEP,
        .n_chunks = items_up(a->n_in, CHUNK * BOX),
        .n_row_tiles = items_up(a->n_rows, n),
        .most_tiles = MAX_BAND / STEP,
        .most_runs = may_cut ? (int32_t)MAX_RUNS : 1,
        .tile_bytes = CHUNK * STEP * BOX,
        .x_bytes = CHUNK * n * BOX,
        .sums_bytes = (int64_t)a->n_rows * a->n_out * (int64_t)sizeof(float),
        .most_sums_bytes = (int64_t)sums_bytes,
        .n_sms = n_sms,
    };
    return plan_items(costs);
}

/* True if the kernel can round x itself: there are so few rows that this is faster than a separate
 * kernel, and all of an item's x fits. */
static bool takes_raw(const struct gemm_args *a, const struct item_plan &plan)
{
    enum { MOST_RAW_ROWS = 2 };
    return a->n_rows <= MOST_RAW_ROWS && boxes_of(plan) <= WINDOW;
}

extern "C" bool gemm_eight_rounds(const struct gemm_args *a, int32_t n_sms, size_t sums_bytes,
                                  bool is_gated)
{
    return takes_raw(a, plan_of(a, n_sms, sums_bytes)) && (!is_gated || a->scales->n_blocks > 0);
}

extern "C" bool gemm_eight_takes(const struct gemm_args *a, int32_t sm)
{
    const size_t y_align = a->y_dtype == DT_F32 ? 8 : 4;
    return sm == 90 && a->scales && a->w_dtype == DT_E4M3 && a->x_dtype == DT_E4M3 && !a->gated &&
           a->n_batch <= 1 && a->n_rows >= 1 && a->n_rows <= MAX_ROWS && a->n_in % 16 == 0 &&
           a->n_out % STEP == 0 && a->x_stride % 16 == 0 && a->w_stride % 16 == 0 &&
           ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0 && a->y_stride % 2 == 0 &&
           (uintptr_t)a->y % y_align == 0;
}

enum { MOST_SHARED = 221 * 1024 }; // the rest lets small kernels run beside it

/* Divides shared memory. Two blocks never share a multiprocessor. With few rows attention leaves
 * half of each multiprocessor's memory free. A block whose items have few bytes then gets a smaller
 * ring, so that it can start beside attention. */
static size_t lay_out(struct eight_params *p, int32_t n, bool is_raw)
{
    enum {
        BESIDE_ATTENTION = 116 * 1024,
        FEW_BYTES = 160 * 1024,
        MOST_WHOLE = 32 * 1024,
        ALIGN = 1024,
    };
    const int32_t x_bytes = p->most_boxes * n * BOX;
    const bool is_alone = p->plan.n_items <= p->n_blocks;
    p->is_whole = is_raw || (is_alone && x_bytes <= MOST_WHOLE && p->most_boxes <= WINDOW &&
                             p->n_in % BOX == 0);
    p->stage_x = p->is_whole ? 0 : n * BOX;
    p->stage_bytes = p->stage_x + p->band * BOX;
    const int32_t whole = p->is_whole ? x_bytes : 0;
    const int32_t spare = p->n_tiles * TILE > p->band ? TILE * BOX : 0; // tiles may exceed the band
    const int32_t join = (p->n_ways - 1) * p->n_tiles * (n / 2) * 128 * 4;
    const int32_t other = ALIGN + spare + whole + WINDOW * (n + MAX_BLOCKS) * 4 + join;
    const bool is_beside = n <= 8 && p->most_boxes * p->band * BOX <= FEW_BYTES;
    const int32_t room = is_beside ? (int32_t)BESIDE_ATTENTION : (int32_t)MOST_SHARED;
    const int32_t fit = (room - other) / p->stage_bytes;
    p->n_stages = fit < MAX_STAGES ? fit : (int32_t)MAX_STAGES;
    p->whole_x = p->n_stages * p->stage_bytes + spare;
    p->rest = p->whole_x + whole;
    const int32_t used = p->n_stages * p->stage_bytes + other;
    return (size_t)(used > BESIDE_ATTENTION ? used : (int32_t)BESIDE_ATTENTION);
}

/* Makes the map for loading x box by box, or all boxes of an item at once. */
static cudaError_t map_x(CUtensorMap *map, const struct gemm_args *a, const struct eight_params &p,
                         int32_t n)
{
    if (!p.is_whole) {
        return tensor_map_bytes(map, a->x, (uint64_t)a->n_in, (uint64_t)a->n_rows,
                                (uint64_t)a->x_stride, (uint32_t)n);
    }
    const cuuint64_t dims[3] = {BOX, (cuuint64_t)a->n_rows, (cuuint64_t)(a->n_in / BOX)};
    const cuuint64_t strides[2] = {(cuuint64_t)a->x_stride, BOX};
    const cuuint32_t box[3] = {BOX, (cuuint32_t)n, (cuuint32_t)p.most_boxes};
    return tensor_map_of(map, a->x, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, dims, strides, box);
}

template <int N, bool BLOCKS, bool RAW>
static cudaError_t launch_eight(cudaStream_t stream, const struct gemm_args *a,
                                struct eight_params p)
{
    const size_t smem = lay_out(&p, N, RAW);
    const auto kernel = gemm_eight_kernel<N, BLOCKS, RAW>;
    cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED);
    CUtensorMap w_map, x_map = {};
    if (e == cudaSuccess) {
        e = tensor_map_bytes(&w_map, a->weight, (uint64_t)a->n_in, (uint64_t)a->n_out,
                             (uint64_t)a->w_stride, (uint32_t)p.band);
    }
    if (e == cudaSuccess && !RAW) {
        e = map_x(&x_map, a, p, N);
    }
    if (e != cudaSuccess) {
        return e;
    }
    return launch(kernel, dim3((unsigned)p.n_blocks), dim3(COMPUTERS + 32), smem, stream, p, w_map,
                  x_map);
}

template <int N, bool BLOCKS>
static cudaError_t by_x(cudaStream_t stream, const struct gemm_args *a,
                        const struct eight_params &p)
{
    if constexpr (N == 8) {
        if (p.raw.x) {
            return launch_eight<N, BLOCKS, true>(stream, a, p);
        }
    }
    return launch_eight<N, BLOCKS, false>(stream, a, p);
}

template <int N>
static cudaError_t by_scales(cudaStream_t stream, const struct gemm_args *a,
                             const struct eight_params &p)
{
    return p.scales.n_blocks > 0 ? by_x<N, true>(stream, a, p) : by_x<N, false>(stream, a, p);
}

extern "C" cudaError_t gemm_eight(cudaStream_t stream, const struct gemm_args *a, int32_t n_sms,
                                  const struct round_args *raw, bool is_gated, size_t sums_bytes,
                                  struct sum_parts *sums)
{
    struct eight_params p = {};
    if (raw) {
        p.raw = *raw;
        p.is_gated = is_gated;
    }
    p.plan = plan_of(a, n_sms, sums_bytes);
    const bool cut = p.plan.runs.n_parts > 1;
    sums->n = cut ? p.plan.runs.n_parts : 0;
    p.y = cut ? (void *)(uintptr_t)sums->first : a->y;
    p.y_dtype = cut ? DT_F32 : a->y_dtype;
    p.bias = cut ? nullptr : a->bias;
    p.scales = *a->scales;
    p.n_rows = a->n_rows;
    p.n_out = a->n_out;
    p.n_in = a->n_in;
    p.n_boxes = items_up(a->n_in, BOX);
    p.y_stride = cut ? sums->width : a->y_stride;
    p.part_stride = cut ? sums->stride : 0;
    p.accumulate = !cut && a->accumulate;
    p.is_plain = p.y_dtype == DT_F32 && !p.bias && !p.accumulate;
    p.band = item_most(p.plan.bands) * STEP;
    p.n_tiles = tiles_of(p.band);
    p.n_ways = GROUPS / p.n_tiles;
    p.most_boxes = boxes_of(p.plan);
    p.n_blocks = p.plan.n_items < n_sms ? p.plan.n_items : n_sms;
    p.is_full = p.plan.n_items * 3 > n_sms * 2;
    switch (row_tile(a->n_rows)) {
    case 8: return by_scales<8>(stream, a, p);
    case 16: return by_scales<16>(stream, a, p);
    case 32: return by_scales<32>(stream, a, p);
    default: return by_scales<64>(stream, a, p);
    }
}
