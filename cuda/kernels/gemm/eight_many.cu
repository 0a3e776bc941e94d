// SPDX-License-Identifier: Apache-2.0
/* y = x W^T, both operands E4M3 codes, on Hopper, for more rows than gemm/eight.cu takes, up to
 * 128. With SiLU it takes fewer rows, too.
 *
 * D[rows, features] = x W^T by wgmma. An item is a band of 256 features (two halves) and a range of
 * K. A block has a multiprocessor to itself and processes items in turn: one warpgroup loads boxes
 * of x and W into a ring of stages, and one or two others compute 64 rows each. If the product is
 * gated, the halves are 128 gates and the 128 matching factors, so that a thread has both, and a
 * group of four lanes has all values of a row that share a scale: the activation and its rounding
 * to codes need no other thread.
 *
 * The tensor cores sum over 128 inputs at most, because they accumulate codes with fewer bits than
 * fp32; those sums are scaled and accumulated in fp32. A warpgroup sums its halves one after the
 * other, so that one set of registers suffices. While one warpgroup scales its sums, the other one
 * multiplies.
 *
 * If there are fewer bands than multiprocessors, K is split, if the caller allows it, and partial
 * sums are left for the kernel that reads the product. Weights are loaded before the wait for the
 * preceding kernel.
 *
 * Bound by reading W; from 128 rows on by adding up the sums in fp32. */
#include "cuda/kernels/gemm/eight_many.cuh"

#if HAVE_SM90A

/* The scales of a box: of the thread's two rows, and of the halves. */
struct box_scales {
    float x[2], w[2];
};

/* A computing warpgroup. */
template <typename S, bool GATED, bool BLOCKS> struct many_computer {
    static constexpr bool TURNS = S::TILE_ROWS > GROUP_ROWS;
    const struct many_params &p;
    char *stages;
    struct many_ring *ring;
    int32_t row0; // the first of the thread's two rows in the item
    many_walk<S> at;
    int32_t to_release; // boxes whose stage will be refilled
    int32_t turns;      // turns left to this warpgroup
    float sums[BAND / 2];

    __device__ __forceinline__ many_computer(const struct many_params &p, char *stages,
                                             struct many_ring *ring, int32_t row0)
        : p(p), stages(stages), ring(ring), row0(row0), at(p), to_release(-S::STAGES)
    {
#pragma unroll 1
        for (many_walk<S> all(p); !all.is_done(); all.next_item()) {
            to_release += all.item.end - all.item.box;
        }
        turns = 2 * (to_release + S::STAGES);
        if (TURNS && threadIdx.x / 128 == 1) {
            named_barrier_arrive(1, 256); // the first turn is the other warpgroup's
        }
    }

    /* The warpgroups take turns at issuing products. Otherwise the tensor cores would work on both
     * alternately, both would be done at the same time, and then both would scale their sums. */
    __device__ __forceinline__ void take_turn() const
    {
        if (TURNS) {
            named_barrier(1 + threadIdx.x / 128, 256);
        }
    }
    __device__ __forceinline__ void pass_turn()
    {
        if (TURNS && (threadIdx.x < 128 || --turns > 0)) {
            named_barrier_arrive(2 - threadIdx.x / 128, 256);
        }
    }

    /* Tells the loaders that a stage is free, unless nobody will refill it. */
    __device__ __forceinline__ void release()
    {
        if (to_release-- > 0 && (threadIdx.x & 31) == 0) {
            barrier_arrive(&ring->empty[at.slot]);
        }
    }

    __device__ __forceinline__ int32_t row(int r) const
    {
        return row0 + 8 * r;
    }

    __device__ __forceinline__ void load_scales(struct box_scales *s, int32_t box) const
    {
        if (!BLOCKS) {
            return;
        }
        const int32_t last = p.n_rows - 1, b = min(box, p.n_boxes - 1);
        const int32_t blocks = (GATED ? 2 * p.n_out : p.n_out) / HALF - 1;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t block = min(half_start<GATED>(p, at.item.band, i) / HALF, blocks);
            s->x[i] = p.scales.x[(int64_t)b * p.n_rows + min(row(i), last)];
            s->w[i] = __ldg(p.scales.w + (int64_t)block * p.scales.n_blocks + b);
        }
    }

    __device__ __forceinline__ void add(int half, const float (&d)[HALF / 2],
                                        const struct box_scales &s)
    {
        const float f[2] = {s.x[0] * s.w[half], s.x[1] * s.w[half]};
#pragma unroll
        for (int i = 0; i < HALF / 2; i++) {
            float *to = &sums[half * (HALF / 2) + i];
            *to = BLOCKS ? fmaf(d[i], f[i >> 1 & 1], *to) : *to + d[i];
        }
    }

    __device__ __forceinline__ void sum_box(const struct box_scales &s)
    {
        barrier_wait(&ring->full_x[at.slot], at.parity);
        barrier_wait(&ring->full_w[at.slot], at.parity);
        const uint32_t w = smem_address(stages + at.slot * S::BYTES);
        const uint32_t x = w + W_BYTES + threadIdx.x / 128 * (GROUP_ROWS * BOX);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float d[HALF / 2];
            take_turn();
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BOX / 32; i++) {
                const uint64_t of_w = wgmma_operand(w + half * HALF_BYTES + i * 32, 0);
                wgmma<e4m3_t, HALF>::ss(d, wgmma_operand(x + i * 32, 0), of_w, i > 0);
            }
            wgmma_commit();
            pass_turn();
            wgmma_wait<0>();
            wgmma_settle(d);
            if (half == 1) {
                release();
            }
            add(half, d, s);
        }
    }

    /* Multiplies the sums by the scales of rows, of x and of W. */
    __device__ __forceinline__ void scale_rows()
    {
        float of_x[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            of_x[r] = p.scales.x[min(row(r), p.n_rows - 1)];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t first = half_start<GATED>(p, at.item.band, half);
            const bool valid = GATED || first < p.n_out;
            const float *of_w = p.scales.w + (valid ? first : 0) + (threadIdx.x & 3) * 2;
#pragma unroll
            for (int j = 0; j < HALF / 8; j++) {
                const float2 w = __ldg((const float2 *)(of_w + 8 * j));
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float *to = &sums[half * (HALF / 2) + 4 * j + 2 * r];
                    to[0] *= of_x[r] * w.x;
                    to[1] *= of_x[r] * w.y;
                }
            }
        }
    }

    __device__ __forceinline__ void add_bias()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int32_t first = half_start<GATED>(p, at.item.band, half);
            const bool valid = GATED || first < p.n_out;
            const float *from = p.bias + (valid ? first : 0) + (threadIdx.x & 3) * 2;
#pragma unroll
            for (int j = 0; j < HALF / 8; j++) {
                float *to = &sums[half * (HALF / 2) + 4 * j];
                const float a = from[8 * j], b = from[8 * j + 1];
                to[0] += a, to[1] += b, to[2] += a, to[3] += b;
            }
        }
    }

    __device__ __forceinline__ void store_sums() const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int64_t start = at.item.run * p.part_stride + row(r) * p.y_stride +
                                  at.item.band * BAND + (threadIdx.x & 3) * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (row(r) >= p.n_rows || at.item.band * BAND + half * HALF >= p.n_out) {
                    continue;
                }
                const float *from = sums + half * (HALF / 2) + 2 * r;
                if (p.is_f32) {
                    float *to = (float *)p.y + start + half * HALF;
#pragma unroll
                    for (int j = 0; j < HALF / 8; j++) {
                        *(float2 *)(to + 8 * j) = make_float2(from[4 * j], from[4 * j + 1]);
                    }
                } else {
                    bf16_t *to = (bf16_t *)p.y + start + half * HALF;
#pragma unroll
                    for (int j = 0; j < HALF / 8; j++) {
                        *(uint32_t *)(to + 8 * j) = pack_pair<bf16_t>(from[4 * j], from[4 * j + 1]);
                    }
                }
            }
        }
    }

    /* The activation's results. A step takes the first features of both halves and moves the others
     * to the front, so that the code, which every launch fetches again, is short. */
    __device__ __forceinline__ void activate(uint32_t (&results)[PAIRS])
    {
        enum { STEPS = 4, AT_ONCE = PAIRS / STEPS };
#pragma unroll 1
        for (int step = 0; step < STEPS; step++) {
#pragma unroll
            for (int i = 0; i < PAIRS - AT_ONCE; i++) {
                results[i] = results[i + AT_ONCE];
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE;
                 i++) { // rounded as if the product were stored without SiLU
                const float2 g =
                    unpack_pair<bf16_t>(pack_pair<bf16_t>(sums[2 * i], sums[2 * i + 1]));
                const float2 u = unpack_pair<bf16_t>(
                    pack_pair<bf16_t>(sums[HALF / 2 + 2 * i], sums[HALF / 2 + 2 * i + 1]));
                results[PAIRS - AT_ONCE + i] =
                    pack_pair<bf16_t>(silu_gated(g.x, u.x), silu_gated(g.y, u.y));
            }
#pragma unroll
            for (int i = 0; i < HALF / 2 - 2 * AT_ONCE; i++) {
                sums[i] = sums[i + 2 * AT_ONCE];
                sums[HALF / 2 + i] = sums[HALF / 2 + i + 2 * AT_ONCE];
            }
        }
    }

    __device__ __forceinline__ void store_results(const uint32_t (&results)[PAIRS]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bf16_t *to =
                (bf16_t *)p.y + row(r) * p.y_stride + at.item.band * HALF + (threadIdx.x & 3) * 2;
            if (row(r) < p.n_rows) {
#pragma unroll
                for (int j = 0; j < HALF / 8; j++) {
                    *(uint32_t *)(to + 8 * j) = results[2 * j + r];
                }
            }
        }
    }

    /* Rounds the results as gemm/inputs.cu would. One loop handles both rows, which keeps the code
     * short: every launch fetches it again. */
    __device__ __forceinline__ void round_results(uint32_t (&results)[PAIRS]) const
    {
        const int32_t t = threadIdx.x & 3, band = at.item.band;
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            float scale = p.codes.scale;
            if (p.codes.group > 0) {
                float largest = 0.0f;
#pragma unroll
                for (int j = 0; j < HALF / 8; j++) {
                    const float2 v = unpack_pair<bf16_t>(results[2 * j]);
                    largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y)));
                }
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                scale = round_scale(p.codes, largest);
            }
            const float factor = round_factor(scale);
            uint32_t words[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float2 low = unpack_pair<bf16_t>(results[4 * i]);
                const float2 high = unpack_pair<bf16_t>(results[4 * i + 2]);
                words[i] = round_pair(low.x, low.y, factor) |
                           (uint32_t)round_pair(high.x, high.y, factor) << 16;
            }
            const bool valid = row(r) < p.n_rows;
            store_codes(p.codes.codes + row(r) * p.codes.code_stride + band * HALF + 32 * t, words,
                        valid);
            if (valid && t == 0 && (p.codes.group > 0 || band == 0)) {
                p.codes.scales[(p.codes.group > 0 ? (int64_t)band * p.n_rows : 0) + row(r)] = scale;
            }
#pragma unroll
            for (int i = 0; i < PAIRS; i += 2) {
                results[i] = results[i + 1];
            }
        }
    }

    __device__ __forceinline__ void finish_item()
    {
        if (!BLOCKS) {
            scale_rows();
        }
        if (p.bias) {
            add_bias();
        }
        if constexpr (!GATED) {
            store_sums();
        } else {
            uint32_t results[PAIRS] = {};
            activate(results);
            if (p.codes.codes) {
                round_results(results);
            } else {
                store_results(results);
            }
        }
    }

    __device__ __forceinline__ void run()
    {
#pragma unroll 1
        for (; !at.is_done(); at.next_item()) {
            struct box_scales s = {}, next = {};
            load_scales(&s, at.box);
#pragma unroll
            for (int i = 0; i < BAND / 2; i++) {
                sums[i] = 0.0f;
            }
#pragma unroll 1
            for (; at.box < at.item.end; at.box++, at.next_slot()) {
                load_scales(&next, at.box + 1);
                sum_box(s);
                s = next;
            }
            finish_item();
        }
    }
};

#endif // HAVE_SM90A

template <int GROUPS, bool GATED, bool BLOCKS>
__global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    gemm_eight_many_kernel(const __grid_constant__ struct many_params p,
                           const __grid_constant__ CUtensorMap w_map,
                           const __grid_constant__ CUtensorMap x_map)
{
#if HAVE_SM90A
    typedef many_shape<GROUPS> S;
    extern __shared__ char smem_raw[];
    __shared__ struct many_ring ring;
    char *stages = smem_raw + (1024 - smem_address(smem_raw) % 1024) % 1024;
    const int tid = threadIdx.x;
    if (tid == 0) {
#pragma unroll 1
        for (int i = 0; i < S::STAGES; i++) {
            barrier_init(&ring.full_w[i], 1);
            barrier_init(&ring.full_x[i], 1);
            barrier_init(&ring.empty[i], GROUPS * 4);
        }
        barrier_init_done();
    }
    __syncthreads();
    if (tid >= GROUPS * 128) {
        if constexpr (GROUPS > 1) {
            registers_fewer<24>();
        }
        if (tid == GROUPS * 128) {
            const struct many_loader<S, GATED> l = {
                p, &w_map, stages, &ring
            };
            l.template run<false>();
        } else if (tid == GROUPS * 128 + 32) {
            tensor_map_prefetch(&x_map);
            pdl_wait();
            const struct many_loader<S, GATED> l = {
                p, &x_map, stages, &ring
            };
            l.template run<true>();
        }
        pdl_wait();
    } else {
        if constexpr (GROUPS > 1) {
            registers_more<240>();
        }
        pdl_wait(); // preceding kernels may use y until then
        pdl_trigger();
        const int row0 = (tid >> 5) * 16 + (tid >> 2 & 7);
        struct many_computer<S, GATED, BLOCKS> c(p, stages, &ring, row0);
        c.run();
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

static int32_t up(int64_t a, int64_t b)
{
    return (int32_t)((a + b - 1) / b);
}

/* Chooses the number of ranges of K by estimated time. Time is counted in boxes: 1 is the time of
 * one box. */
static int32_t runs_of(const struct many_params &p, const struct gemm_args *a, int32_t n_sms,
                       size_t sums_bytes)
{
    // START: the cost of starting an item. BOX_BYTES: bytes of partial sums that cost 1.
    enum { START = 5, BOX_BYTES = 5 << 20 };
    const int64_t bytes = (int64_t)a->n_rows * a->n_out * (int64_t)sizeof(float);
    int32_t best = 1;
    int64_t least = INT64_MAX;
    for (int32_t n = 1; n <= MAX_RUNS && n <= p.n_boxes; n++) {
        if (n > 1 && (!a->may_split || a->gated || (int64_t)sums_bytes < n * bytes)) {
            break;
        }
        const int64_t rounds = up((int64_t)p.n_bands * n, n_sms);
        const int64_t cost =
            rounds * (up(p.n_boxes, n) + START) * BOX_BYTES + (n > 1 ? 2 * n * bytes : bytes / 2);
        if (cost < least) {
            least = cost;
            best = n;
        }
    }
    return best;
}

/* True if a gated product can round its results in this way: with one scale per group of HALF
 * features, or with a scale that is known in advance. */
static bool rounds_ok(const struct round_args *r)
{
    return r->codes && (r->group == HALF || (r->group == 0 && r->scale != 0.0f)) &&
           r->code_stride % 16 == 0 && (uintptr_t)r->codes % 16 == 0;
}

/* A gated product saves the launch and the memory traffic of the activation, which is worth it
 * if its bands fill the GPU. Others are faster here than in cuBLASLt only if this kernel splits K
 * and cuBLASLt does not: with scales per row, and fewer outputs than inputs. */
static bool is_faster(const struct gemm_args *a, int32_t n_sms)
{
    enum { LEAST_GATED = 33, LEAST_ROWS = 65, MOST_ROWS = 128 };
    const int32_t n_bands = up(a->n_out, BAND);
    if (a->gated) {
        return a->y_codes && a->n_rows >= LEAST_GATED && a->n_rows <= MOST_ROWS &&
               up(n_bands, n_sms) * n_sms * 4 <= n_bands * 5;
    }
    return a->scales->n_blocks == 0 && a->may_split && a->n_in > a->n_out &&
           a->n_rows >= LEAST_ROWS && a->n_rows <= MOST_ROWS && n_bands * MAX_RUNS * 5 >= n_sms * 4;
}

extern "C" bool gemm_eight_many_takes(const struct gemm_args *a, int32_t sm, int32_t n_sms)
{
    const size_t y_align = a->y_dtype == DT_F32 ? 8 : 4;
    return sm == 90 && a->scales && is_faster(a, n_sms) && a->w_dtype == DT_E4M3 &&
           a->x_dtype == DT_E4M3 && !a->accumulate && a->n_batch <= 1 && a->n_in % 16 == 0 &&
           a->n_out % (a->gated ? BAND : HALF) == 0 && a->x_stride % 16 == 0 &&
           a->w_stride % 16 == 0 && ((uintptr_t)a->x | (uintptr_t)a->weight) % 16 == 0 &&
           (a->y_dtype == DT_BF16 || (a->y_dtype == DT_F32 && !a->gated)) &&
           (a->y_codes ? a->gated && rounds_ok(a->y_codes)
                       : a->y_stride % 2 == 0 && (uintptr_t)a->y % y_align == 0);
}

template <int GROUPS, bool GATED, bool BLOCKS>
static cudaError_t launch_many(cudaStream_t stream, const struct gemm_args *a,
                               const struct many_params &p, int32_t n_sms)
{
    typedef many_shape<GROUPS> S;
    const auto kernel = gemm_eight_many_kernel<GROUPS, GATED, BLOCKS>;
    cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM);
    CUtensorMap w_map, x_map;
    if (e == cudaSuccess) {
        e = tensor_map_bytes(&w_map, a->weight, (uint64_t)a->n_in, (uint64_t)a->n_out,
                             (uint64_t)a->w_stride, HALF);
    }
    if (e == cudaSuccess) {
        e = tensor_map_bytes(&x_map, a->x, (uint64_t)a->n_in, (uint64_t)a->n_rows,
                             (uint64_t)a->x_stride, S::TILE_ROWS);
    }
    if (e != cudaSuccess) {
        return e;
    }
    return launch(kernel, dim3((unsigned)(p.n_items < n_sms ? p.n_items : n_sms)), dim3(S::THREADS),
                  S::SMEM, stream, p, w_map, x_map);
}

template <int GROUPS>
static cudaError_t many_of(cudaStream_t stream, const struct gemm_args *a, struct many_params p,
                           int32_t n_sms, size_t sums_bytes, struct sum_parts *sums)
{
    p.n_runs = runs_of(p, a, n_sms, sums_bytes);
    p.n_items = p.n_bands * p.n_runs;
    sums->n = p.n_runs > 1 ? p.n_runs : 0;
    if (p.n_runs > 1) {
        p.y = (void *)(uintptr_t)sums->first;
        p.bias = nullptr;
        p.is_f32 = true;
        p.y_stride = sums->width;
        p.part_stride = sums->stride;
    }
    if (a->gated) {
        return p.scales.n_blocks > 0 ? launch_many<GROUPS, true, true>(stream, a, p, n_sms)
                                     : launch_many<GROUPS, true, false>(stream, a, p, n_sms);
    }
    return p.scales.n_blocks > 0 ? launch_many<GROUPS, false, true>(stream, a, p, n_sms)
                                 : launch_many<GROUPS, false, false>(stream, a, p, n_sms);
}

extern "C" cudaError_t gemm_eight_many(cudaStream_t stream, const struct gemm_args *a,
                                       int32_t n_sms, size_t sums_bytes, struct sum_parts *sums)
{
    struct many_params p = {};
    p.y = a->y;
    p.bias = a->bias;
    p.scales = *a->scales;
    if (a->y_codes) {
        p.codes = *a->y_codes;
    }
    p.is_f32 = a->y_dtype == DT_F32;
    p.n_rows = a->n_rows;
    p.n_out = a->gated ? a->n_out / 2 : a->n_out;
    p.n_boxes = up(a->n_in, BOX);
    p.n_bands = up(a->n_out, BAND);
    p.y_stride = a->y_stride;
    return a->n_rows <= GROUP_ROWS ? many_of<1>(stream, a, p, n_sms, sums_bytes, sums)
                                   : many_of<2>(stream, a, p, n_sms, sums_bytes, sums);
}
