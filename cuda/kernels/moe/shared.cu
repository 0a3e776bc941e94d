// SPDX-License-Identifier: Apache-2.0
/* The shared expert of some hundred rows on Hopper, and the router's scores. The first product also
 * computes the scores, with SiLU applied to its own results; the second one runs while the picks
 * are sorted. Separate kernels would each read the rows again and leave multiprocessors idle.
 *
 * A block has ROWS rows, BAND features of the gate and the matching ones of the up matrix, and
 * EXPERTS experts; or DOWN_BAND features of the second product. It has all of K. The two blocks of
 * a cluster take neighbouring bands, and each loads half of the rows for both. Two warpgroups
 * compute 64 rows each. One warp loads the weights and one the rows, through a ring of stages, and
 * four split the router's weights into three bf16 terms (moe/scores.cuh): the first one is more
 * columns of the product, and the others are multiplied only where they are not 0. Bound by reading
 * the L2 cache. */
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/quads.cuh"
#include "cuda/kernels/device/wgmma.cuh"
#include "cuda/kernels/gemm/x_ring.cuh"
#include "cuda/kernels/moe/scores.cuh"
#include "cuda/moe_shared.h"

enum {
    ROWS = 128,
    HALF_ROWS = ROWS / 2,
    DEPTH = 64, // along K per box
    BAND = 32,
    EXPERTS = 16,
    DOWN_BAND = 128,
    STAGES = 6,
    CLUSTER = 2,
    W_WARP = 8, // after the computing ones
    X_WARP,
    FIRST_SPLITTER,
    SPLITTERS = 4,
    MORE_THAN = 128, // rows; fewer are left to gemm/wide.cu and route.cu
    ROW_BYTES = DEPTH * 2,
    X_BYTES = ROWS * ROW_BYTES,
    TERM_BYTES = EXPERTS * ROW_BYTES,
    ROUTER_BYTES = EXPERTS * DEPTH * 4, // in two halves of 128 bytes per expert
    PREFETCHED = 256 << 10,             // of the experts' weights, by each block
};

struct shared_params {
    bf16_t *out;
    const float *bias; // of the scores
    float *logits;
    int64_t out_stride;
    int32_t n_rows, n_in, n_out, n_experts;
    /* The experts' up product, of which the second product prefetches the first n_ahead boxes:
     * units of work (of a cluster) in all and per expert, weight rows per expert, and those of the
     * gate. */
    int32_t n_ahead, n_units, per_expert, expert_rows, gate_rows;
};

/* A stage holds x, then the weights: rows of the gate, of the up matrix, terms of experts, and
 * those experts' weights in fp32. */
template <bool UP> struct shape {
    static constexpr int W_ROWS = UP ? 2 * BAND : DOWN_BAND; // loaded by tensor maps
    static constexpr int COLUMNS = W_ROWS + (UP ? EXPERTS : 0);
    static constexpr int LOADED = X_BYTES + W_ROWS * ROW_BYTES;
    static constexpr int ROUTER = LOADED + 3 * TERM_BYTES; // where the experts' weights begin
    static constexpr int BYTES = UP ? ROUTER + ROUTER_BYTES : LOADED;
    static constexpr int SMEM_BYTES = STAGES * BYTES + 2048; // 2048: alignment and barriers
    static constexpr int SPLITS = UP ? SPLITTERS : 0, THREADS = (FIRST_SPLITTER + SPLITS) * 32;
};

#if HAVE_SM90A

// clang-format off
#define WGMMA_LIST_40 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_OUT_40(d) \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
    "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
    "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
    "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
    "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
// clang-format on
template <> struct wgmma<bf16_t, 80> {
    WGMMA_SS(bf16_t, "bf16", 80, 40, "%40", "%41", "%42")
};

struct shared_room {
    uint64_t full[STAGES], empty[STAGES];
    uint64_t loaded[STAGES]; // the experts' weights in fp32
    /* By splitting warp: the stage has terms after the first that are not 0. */
    uint8_t has_more[STAGES][SPLITTERS];
};

using ring = x_place<STAGES>;

/* The threads that load. */
template <bool UP> struct loader {
    using S = shape<UP>;
    const struct shared_params &p;
    const CUtensorMap *map, *experts_map; // experts: the router, or the experts' up product
    char *stages;
    struct shared_room *s;
    int n_boxes;

    /* Calls f with each box and its stage once that is free. */
    template <typename F> __device__ __forceinline__ void each_box(F f) const
    {
        ring at;
#pragma unroll 1
        for (int box = 0; box < n_boxes; box++, at.next()) {
            barrier_wait(&s->empty[at.slot], at.parity ^ 1);
            f(box, stages + at.slot * S::BYTES, at.slot);
        }
    }

    __device__ __forceinline__ void load_w() const
    {
        const int row = (int)blockIdx.x * (UP ? BAND : DOWN_BAND);
        const uint64_t policy = policy_normal();
        each_box([&](int box, char *stage, int slot) {
            uint64_t *bar = &s->full[slot];
            barrier_expect(bar, S::W_ROWS * ROW_BYTES);
            tensor_load_3d(stage + X_BYTES, map, bar, box * DEPTH, row, 0, policy);
            if (UP) {
                bar = &s->loaded[slot];
                barrier_expect(bar, ROUTER_BYTES);
                tensor_load_3d(stage + S::ROUTER, experts_map, bar, 0, (int)blockIdx.x * EXPERTS,
                               box * 2, policy);
            }
        });
    }

    __device__ __forceinline__ void load_x() const
    {
        const int rank = (int)cluster_rank(), row = (int)blockIdx.y * ROWS + rank * HALF_ROWS;
        const uint64_t policy = policy_normal();
        each_box([&](int box, char *stage, int slot) {
            barrier_expect(&s->full[slot], X_BYTES);
            tensor_load_multicast(stage + rank * (X_BYTES / 2), map, &s->full[slot], box * DEPTH,
                                  row, 3, policy);
        });
    }

    /* Prefetches the weights that each block of the experts' up product will read first, if every
     * expert has one tile: the memory is idle now. */
    __device__ __forceinline__ void prefetch_experts() const
    {
        const int block = (int)(blockIdx.y * gridDim.x + blockIdx.x), unit = block / CLUSTER;
        const int band = unit % p.per_expert * CLUSTER + block % CLUSTER;
        const int row = unit / p.per_expert * p.expert_rows + band * DOWN_BAND;
#pragma unroll 1
        for (int box = 0; unit < p.n_units && box < p.n_ahead; box++) {
            tensor_prefetch(experts_map, box * DEPTH, row);
            tensor_prefetch(experts_map, box * DEPTH, row + p.gate_rows);
        }
    }
};

/* A warp that splits the router's weights: a lane has eight of each box. Terms of its stages that
 * it does not write are 0. */
struct splitter {
    using S = shape<true>;
    char *stages;
    struct shared_room *s;
    int n_boxes, row, chunk; // row: among the block's experts; chunk: of eight columns

    /* had_more: what it returned when the stage was used before. */
    __device__ __forceinline__ bool split(char *stage, bool had_more) const
    {
        const char *from = stage + S::ROUTER + chunk / 4 * (ROUTER_BYTES / 2);
        char *to = stage + S::LOADED + swizzled(row, chunk);
        const float4 low = *(const float4 *)(from + swizzled(row, chunk % 4 * 2));
        const float4 high = *(const float4 *)(from + swizzled(row, chunk % 4 * 2 + 1));
        float2 left[4] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
        uint32_t term[4];
        bool is = false;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            term[i] = next_term(left[i]);
            is |= left[i].x != 0.0f || left[i].y != 0.0f;
        }
        *(uint4 *)to = make_uint4(term[0], term[1], term[2], term[3]);
        const bool has_more = __any_sync(0xffffffffu, is);
#pragma unroll 1
        for (int t = 1; t < 3 && (has_more || had_more); t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                term[i] = next_term(left[i]);
            }
            *(uint4 *)(to + t * TERM_BYTES) = make_uint4(term[0], term[1], term[2], term[3]);
        }
        return has_more;
    }

    __device__ __forceinline__ void run() const
    {
        ring at;
        uint32_t more = (1u << STAGES) - 1; // by slot; nothing is known about the stages yet
#pragma unroll 1
        for (int box = 0; box < n_boxes; box++, at.next()) {
            barrier_wait(&s->loaded[at.slot], at.parity);
            const uint32_t bit = 1u << at.slot;
            const bool has_more = split(stages + at.slot * S::BYTES, more & bit);
            more = has_more ? more | bit : more & ~bit;
            fence_async();
            __syncwarp();
            if ((threadIdx.x & 31) == 0) {
                *(volatile uint8_t *)&s->has_more[at.slot][row / 4] = has_more;
                barrier_arrive(&s->full[at.slot]);
            }
        }
    }
};

/* A computing warpgroup. */
template <bool UP> struct computer {
    using S = shape<UP>;
    const struct shared_params &p;
    char *stages;
    struct shared_room *s;
    int n_boxes, group;
    float d[S::COLUMNS / 2];
    float more[EXPERTS / 2]; // products with the second and third terms

    __device__ __forceinline__ void release(int slot) // tells the loaders of both blocks
    {
        if ((threadIdx.x & 31) < CLUSTER) {
            barrier_arrive_at(&s->empty[slot], threadIdx.x & 31);
        }
    }

    /* Rare, so it need not overlap anything. */
    __device__ __forceinline__ void add_more(uint32_t x, uint32_t terms)
    {
        float e[EXPERTS];
        wgmma_wait<0>();
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) {
            wgmma<bf16_t, 2 * EXPERTS>::ss(e, wgmma_operand(x + k * 32, 0),
                                           wgmma_operand(terms + k * 32, 0), k > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_settle(e);
#pragma unroll
        for (int i = 0; i < EXPERTS / 2; i++) {
            more[i] += e[EXPERTS / 2 + i] + e[i];
        }
    }

    __device__ __forceinline__ void multiply()
    {
        ring at;
        int last = 0; // slot of the previous box
#pragma unroll 1
        for (int box = 0; box < n_boxes; box++, at.next()) {
            const uint32_t stage = smem_address(stages + at.slot * S::BYTES);
            const uint32_t x = stage + group * (X_BYTES / 2), w = stage + X_BYTES;
            barrier_wait(&s->full[at.slot], at.parity);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++) {
                wgmma<bf16_t, S::COLUMNS>::ss(d, wgmma_operand(x + k * 32, 0),
                                              wgmma_operand(w + k * 32, 0), box > 0 || k > 0);
            }
            wgmma_commit();
            if (UP && *(volatile uint32_t *)s->has_more[at.slot]) {
                add_more(x, stage + S::LOADED + TERM_BYTES);
            }
            if (box > 0) {
                wgmma_wait<1>();
                release(last);
            }
            last = at.slot;
        }
        wgmma_wait<0>();
        wgmma_settle(d);
    }

    /* Stores a row's 32 columns from `column` on, of which this lane has pairs of four blocks. */
    __device__ __forceinline__ void store_32(uint32_t (&pairs)[4], int32_t row, int32_t column)
    {
        transpose_quad(pairs);
        if (row < p.n_rows) {
            bf16_t *to = p.out + row * p.out_stride + column + (threadIdx.x & 3) * 8;
            *(uint4 *)to = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }

    /* Rounded as if the product were stored without the activation. */
    __device__ __forceinline__ void store_activation(int r, int32_t row)
    {
        uint32_t v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int g = 4 * j + 2 * r, u = g + BAND / 2;
            const float2 gate = unpack_pair<bf16_t>(pack_pair<bf16_t>(d[g], d[g + 1]));
            const float2 up = unpack_pair<bf16_t>(pack_pair<bf16_t>(d[u], d[u + 1]));
            v[j] = pack_pair<bf16_t>(silu_gated(gate.x, up.x), silu_gated(gate.y, up.y));
        }
        store_32(v, row, (int32_t)blockIdx.x * BAND);
    }

    __device__ __forceinline__ void store_scores(int r, int32_t row)
    {
#pragma unroll
        for (int j = 0; j < EXPERTS / 8; j++) {
            const int32_t e = (int32_t)blockIdx.x * EXPERTS + j * 8 + (threadIdx.x & 3) * 2;
            const int i = 4 * j + 2 * r;
            float2 v = make_float2(d[BAND + i] + more[i], d[BAND + i + 1] + more[i + 1]);
            if (row < p.n_rows && e < p.n_experts) {
                v.x += p.bias ? p.bias[e] : 0.0f;
                v.y += p.bias ? p.bias[e + 1] : 0.0f;
                *(float2 *)(p.logits + (int64_t)row * p.n_experts + e) = v;
            }
        }
    }

    __device__ __forceinline__ void store()
    {
        const int32_t first = (int32_t)blockIdx.y * ROWS + group * HALF_ROWS +
                              (int32_t)(threadIdx.x >> 5 & 3) * 16 + (threadIdx.x >> 2 & 7);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t row = first + 8 * r;
            if constexpr (UP) {
                store_activation(r, row);
                store_scores(r, row);
            } else {
#pragma unroll
                for (int c = 0; c < DOWN_BAND / 32; c++) {
                    uint32_t v[4];
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int i = 4 * (4 * c + j) + 2 * r;
                        v[j] = pack_pair<bf16_t>(d[i], d[i + 1]);
                    }
                    store_32(v, row, (int32_t)blockIdx.x * DOWN_BAND + c * 32);
                }
            }
        }
    }
};

#endif // HAVE_SM90A

/* The second product needs nothing of the kernel before it (moe_shared.h), and its successor relies
 * on that kernel. */
template <bool UP>
__global__ void __launch_bounds__(shape<UP>::THREADS, 1)
    moe_shared_kernel(const __grid_constant__ struct shared_params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CUtensorMap experts_map)
{
#if HAVE_SM90A
    extern __shared__ char memory[];
    char *stages = memory + (1024 - smem_address(memory) % 1024) % 1024;
    struct shared_room *s = (struct shared_room *)(stages + STAGES * shape<UP>::BYTES);
    const int n_boxes = (p.n_in + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s->full[i], 2 + shape<UP>::SPLITS);
            barrier_init(&s->empty[i], CLUSTER * W_WARP); // the computing warps of both blocks
            barrier_init(&s->loaded[i], 1);
        }
        barrier_init_done();
    }
    cluster_sync();
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    if (warp < W_WARP) {
        computer<UP> c = {p, stages, s, n_boxes, warp / 4};
        c.multiply();
        c.store();
    } else if (warp == W_WARP && lane == 0) {
        const loader<UP> l = {p, &w_map, &experts_map, stages, s, n_boxes};
        l.load_w();
        if (!UP) {
            l.prefetch_experts();
        }
    } else if (warp == X_WARP && lane == 0) {
        if (UP) {
            pdl_wait();
        }
        pdl_trigger();
        loader<UP>{p, &x_map, &experts_map, stages, s, n_boxes}.load_x();
        pdl_wait();
    } else if (UP && warp >= FIRST_SPLITTER) {
        splitter{stages, s, n_boxes, (warp - FIRST_SPLITTER) * 4 + (lane >> 3), lane & 7}.run();
    }
    cluster_sync(); // the other block may still write to this one's shared memory
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* The gate and the up matrix are planes, of which a box has the same rows. */
template <bool UP>
static cudaError_t weights_map(CUtensorMap *map, const void *weights, const struct shared_params &p)
{
    const cuuint64_t row = (cuuint64_t)p.n_in * sizeof(bf16_t), n_out = (cuuint64_t)p.n_out;
    const cuuint64_t dims[3] = {(cuuint64_t)p.n_in, n_out, UP ? 2 : 1},
                     bytes[2] = {row, n_out * row};
    const cuuint32_t box[3] = {DEPTH, UP ? BAND : DOWN_BAND, UP ? 2 : 1};
    return tensor_map(map, weights, true, 3, dims, bytes, box);
}

/* Runs of 128 bytes of the experts' weights are planes, of which a box has two. */
static cudaError_t router_map(CUtensorMap *map, const float *router, const struct shared_params &p)
{
    enum { RUN = DEPTH / 2 };
    const cuuint64_t row = (cuuint64_t)p.n_in * sizeof(float);
    const cuuint64_t dims[3] = {RUN, (cuuint64_t)p.n_experts, (cuuint64_t)p.n_in / RUN};
    const cuuint64_t bytes[2] = {row, RUN * sizeof(float)};
    const cuuint32_t box[3] = {RUN, EXPERTS, 2};
    return tensor_map_of(map, router, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, dims, bytes, box);
}

template <bool UP>
static cudaError_t launch_shared(cudaStream_t stream, const struct shared_params &p,
                                 const void *weights, const void *x, int64_t x_stride,
                                 const CUtensorMap &experts)
{
    const auto kernel = moe_shared_kernel<UP>;
    const int32_t band = UP ? BAND : DOWN_BAND;
    CUtensorMap w_map, x_map;
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shape<UP>::SMEM_BYTES); // per device, and ranks have one
                                                                 // device each
    if (e == cudaSuccess) {
        e = weights_map<UP>(&w_map, weights, p);
    }
    if (e == cudaSuccess) {
        e = tensor_map_2d(&x_map, x, true, p.n_in, p.n_rows, x_stride * 2, HALF_ROWS);
    }
    const dim3 grid(p.n_out / band, (p.n_rows + ROWS - 1) / ROWS);
    return e != cudaSuccess
               ? e
               : launch_clusters(CLUSTER, kernel, grid, dim3(shape<UP>::THREADS),
                                 shape<UP>::SMEM_BYTES, stream, p, w_map, x_map, experts);
}

bool moe_shared_takes(const struct moe_shared *m, int32_t sm, int32_t n_sms)
{
    const struct moe_route_args *a = m->route;
    const int32_t tiles = (a->n_rows + ROWS - 1) / ROWS;
    const int32_t bands = m->ffn / BAND, down_bands = m->hidden / DOWN_BAND;
    return sm == 90 && a->n_rows > MORE_THAN && m->hidden % (CLUSTER * DOWN_BAND) == 0 &&
           m->ffn % (CLUSTER * BAND) == 0 && a->n_experts % 2 == 0 &&
           a->n_experts <= bands * EXPERTS && tiles * bands <= n_sms / CLUSTER * CLUSTER &&
           tiles * down_bands <= n_sms / CLUSTER * CLUSTER && a->x.dtype == DT_BF16 &&
           vec_ok(a->x.mem.p, a->x.stride, m->hidden, 2) &&
           vec_ok(m->act.mem.p, m->act.stride, m->ffn, 2) &&
           vec_ok(m->y.mem.p, m->y.stride, m->hidden, 2) &&
           ((uintptr_t)m->gate_up | (uintptr_t)m->down | (uintptr_t)m->router) % 16 == 0;
}

cudaError_t moe_shared_up(cudaStream_t stream, const struct moe_shared *m)
{
    const struct moe_route_args *a = m->route;
    struct shared_params p = {};
    p.out = (bf16_t *)m->act.mem.p;
    p.out_stride = m->act.stride;
    p.bias = m->router_bias;
    p.logits = m->logits;
    p.n_rows = a->n_rows;
    p.n_in = m->hidden;
    p.n_out = m->ffn;
    p.n_experts = a->n_experts;
    CUtensorMap router;
    const cudaError_t e = router_map(&router, m->router, p);
    return e != cudaSuccess
               ? e
               : launch_shared<true>(stream, p, m->gate_up, a->x.mem.p, a->x.stride, router);
}

cudaError_t moe_shared_down(cudaStream_t stream, const struct moe_shared *m,
                            const struct moe_ffn_args *a, const void *gate_up)
{
    struct shared_params p = {};
    p.out = (bf16_t *)m->y.mem.p;
    p.out_stride = m->y.stride;
    p.n_rows = m->route->n_rows;
    p.n_in = m->ffn;
    p.n_out = m->hidden;
    p.n_ahead = min(m->hidden / DEPTH, PREFETCHED / (CLUSTER * ROW_BYTES * DOWN_BAND));
    p.per_expert = (a->ffn + CLUSTER * DOWN_BAND - 1) / (CLUSTER * DOWN_BAND);
    p.n_units = a->n_experts * p.per_expert;
    p.expert_rows = 2 * a->ffn;
    p.gate_rows = a->ffn;
    CUtensorMap experts;
    const cudaError_t e =
        tensor_map_2d(&experts, gate_up, true, m->hidden, (int64_t)a->n_experts * p.expert_rows,
                      m->hidden * 2ll, DOWN_BAND);
    return e != cudaSuccess
               ? e
               : launch_shared<false>(stream, p, m->down, m->act.mem.p, m->act.stride, experts);
}
