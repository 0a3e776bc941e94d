// SPDX-License-Identifier: Apache-2.0
/* What the parts of once.cu share: its parameters, a block's share of the work, what the blocks tell
 * each other, and the stream of weights that a warp reads.
 * Thread: device code. */
#ifndef SLUICE_CUDA_MOE_ONCE_CUH
#define SLUICE_CUDA_MOE_ONCE_CUH

#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, MOST_ROWS = 16, MOST_EXPERTS = 512 };
enum { MOST_OWN = 8, MOMENT_ROWS = 4 };             // scores of a block; rows normed at a time
enum { RUN = 8, HALF = 32 * RUN, STEP = 2 * HALF }; // elements: a lane's vector, a warp's, a step
enum { MOST_REGISTERS = 104 };                      // so that the next norm's block fits beside

/* How n things are divided among the blocks: `each` to a block, and one more to the first `more`.
 */
struct once_shares {
    int32_t each, more;
};

__host__ __device__ static inline struct once_shares shares_of(int32_t n, int32_t n_blocks)
{
    const int32_t each = (int32_t)((uint32_t)n / (uint32_t)n_blocks);
    return {each, n - each * n_blocks};
}

/* The first that belongs to this block, and their number. */
__device__ __forceinline__ int32_t first_of(const struct once_shares &s)
{
    return (int32_t)blockIdx.x * s.each + min((int32_t)blockIdx.x, s.more);
}

__device__ __forceinline__ int32_t number_of(const struct once_shares &s)
{
    return s.each + ((int32_t)blockIdx.x < s.more);
}

/* An RMS norm of the rows, after adding a delta. */
struct once_norm {
    bool is;
    float eps, weight_offset, delta_scale, x_scale;
    const float *weight;
    const void *delta;
    void *kept; // [n_rows][hidden]: the rows with their deltas
    int64_t delta_stride;
};

struct once_params {
    struct route_params route;
    const float *router, *router_bias, *correction, *expert_scale, *up_bias, *down_bias;
    const float *shared_gate; // NULL: open
    const int32_t *real;      // NULL: all rows are
    uint32_t *arrived;        // of await_all
    float *logits;            // [n_rows][n_scores]; 0 between launches
    int32_t *ids;
    float *weights;
    const void *x, *gate_up, *down, *shared_gate_up, *shared_down;
    void *act, *y; // act: [slot][ffn], then [row][shared_ffn]
    int64_t x_stride, y_stride;
    int32_t hidden, ffn, shared_ffn, n_scores; // the last score may be the shared expert's gate
    struct once_shares of_scores, of_shared, of_hidden;
    enum activation kind;
    struct act_shape shape;
    struct once_norm norm;
};

/* What a block knows of the picks. An expert has a place among those that were picked, and a slot
 * for each row that picked it. */
template <int R> struct once_room {
    float partial[WARPS][MOST_OWN][R], moments[WARPS][MOMENT_ROWS];
    float open[R];                                     // the shared expert's weight
    float picked[R][MOE_MAX_K], weight[R * MOE_MAX_K]; // by pick; by slot
    uint16_t ids[R][MOE_MAX_K];
    uint32_t rows_of[R > 1 ? MOST_EXPERTS : 1]; // rows that picked an expert, as bits
    uint16_t place_of[R > 1 ? MOST_EXPERTS : 1];
    uint16_t expert[R * MOE_MAX_K], start[R * MOE_MAX_K], rows[R * MOE_MAX_K]; // by place
    int32_t n_experts, n_slots;
};

/* A block's features: of the shared expert, of the picked ones one after another, of y. */
struct once_work {
    int32_t shared, n_shared, up, n_up, out, n_out;
    bool is_picked; // `up` is known
};

__device__ __forceinline__ int32_t n_real(const struct once_params &p)
{
    return p.real ? min(p.route.n_rows, *p.real) : p.route.n_rows;
}

__host__ __device__ static inline int32_t ring_bytes(int32_t depth)
{
    return WARPS * depth * STEP * (int32_t)sizeof(uint16_t);
}

__host__ __device__ static inline int32_t rows_bytes(const struct once_params &p)
{
    return p.route.n_rows * p.hidden * (int32_t)sizeof(uint16_t);
}

__device__ __forceinline__ struct once_work work_of(const struct once_params &p)
{
    struct once_work w = {};
    w.shared = first_of(p.of_shared);
    w.n_shared = number_of(p.of_shared);
    w.out = first_of(p.of_hidden);
    w.n_out = number_of(p.of_hidden);
    return w;
}

/* Of a run-time kind, because it takes few instructions per feature. */
__device__ __forceinline__ float activated(enum activation kind, float gate, float up,
                                           const struct act_shape &shape)
{
    switch (kind) {
    case ACT_SILU: return act_gated<ACT_SILU>(gate, up, shape);
    case ACT_GELU_TANH: return act_gated<ACT_GELU_TANH>(gate, up, shape);
    case ACT_GELU: return act_gated<ACT_GELU>(gate, up, shape);
    case ACT_RELU: return act_gated<ACT_RELU>(gate, up, shape);
    case ACT_RELU2: return act_gated<ACT_RELU2>(gate, up, shape);
    default: return act_gated<ACT_GPT_OSS>(gate, up, shape);
    }
}

/* ---- between blocks ---------------------------------------------------------------------------
 */

__device__ __forceinline__ void store_word(float *to, float x)
{
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
}

__device__ __forceinline__ float load_word(const float *from)
{
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

/* All blocks have come here, and what they have written before is visible. The highest bit of the
 * count changes each time; the others return to 0. */
__device__ __forceinline__ void await_all(uint32_t *arrived)
{
    const uint32_t turn = 1u << 31;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t now;
        __threadfence();
        const uint32_t before = atomicAdd(arrived, blockIdx.x == 0 ? turn - (gridDim.x - 1) : 1u);
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(now)
                         : "l"(arrived)
                         : "memory");
        } while (((now ^ before) & turn) == 0);
    }
    __syncthreads();
}

/* ---- copies to shared memory --------------------------------------------------------------------
 */

__device__ __forceinline__ void copy_vector(void *to, const void *from)
{
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
}

/* The end of a group of this thread's copies. */
__device__ __forceinline__ void copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most the last N groups are in flight. */
template <int N> __device__ __forceinline__ void copies_await()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- the stream of weights --------------------------------------------------------------------
 */

/* A warp's rows of weights in the order in which it reads them: gate and up of its features, then
 * for each feature of y the row of each expert. A lane reads only what it has copied itself, so the
 * ring needs no barriers. Each fetch is a group of copies, also if nothing is left. */
template <typename T, int DEPTH> struct stream {
    T *ring;
    const T *from;
    int32_t left; // elements of the row that are not fetched yet
    int32_t item, part, fetched, taken;
    bool down;

    __device__ __forceinline__ explicit stream(T *rings)
        : ring(rings + (threadIdx.x >> 5) * DEPTH * STEP + (threadIdx.x & 31) * RUN), from(NULL),
          left(0), item(threadIdx.x >> 5), part(0), fetched(0), taken(0), down(false)
    {
    }

    /* True if the next step is of the shared expert's gate or up. */
    __device__ __forceinline__ bool is_shared(const struct once_work &w) const
    {
        return item < w.n_shared && !down;
    }

    template <int R>
    __device__ __forceinline__ void
    begin_row(const struct once_params &p, const struct once_room<R> &room, const struct once_work &w)
    {
        if (!down && item >= w.n_shared && !w.is_picked) {
            return;
        }
        if (!down && item >= w.n_shared + w.n_up) {
            down = true;
            item = threadIdx.x >> 5;
        }
        if (!down) {
            const bool routed = item >= w.n_shared;
            const int32_t flat = w.up + item - w.n_shared, place = routed ? flat / p.ffn : 0;
            const int32_t feature = routed ? flat - place * p.ffn : w.shared + item;
            const int32_t width = routed ? p.ffn : p.shared_ffn;
            const int64_t first = routed ? (int64_t)room.expert[place] * 2 * p.ffn : 0;
            from = (const T *)(routed ? p.gate_up : p.shared_gate_up) +
                   (first + part * width + feature) * p.hidden;
            left = p.hidden;
        } else if (item < w.n_out) {
            const bool routed = part < room.n_experts;
            const int64_t row = (routed ? (int64_t)room.expert[part] * p.hidden : 0) + w.out + item;
            left = routed ? p.ffn : p.shared_ffn;
            from = (const T *)(routed ? p.down : p.shared_down) + row * left;
        }
    }

    template <int R>
    __device__ __forceinline__ void fetch(const struct once_params &p,
                                          const struct once_room<R> &room, const struct once_work &w)
    {
        if (left <= 0) {
            begin_row(p, room, w);
        }
        if (left > 0) {
            const int32_t at = (threadIdx.x & 31) * RUN;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (at + half * HALF < left) {
                    copy_vector(ring + fetched * STEP + half * HALF, from + at + half * HALF);
                }
            }
            from += STEP;
            left -= STEP;
            if (left <= 0 && ++part == (down ? room.n_experts + (p.shared_ffn > 0) : 2)) {
                part = 0;
                item += WARPS;
            }
        }
        copies_end();
        fetched = fetched + 1 == DEPTH ? 0 : fetched + 1;
    }

    /* The oldest step. Elements past the row's end are left as they are. */
    __device__ __forceinline__ void take(vec<T> (&step)[2])
    {
        copies_await<DEPTH - 1>();
        step[0].load(ring + taken * STEP);
        step[1].load(ring + taken * STEP + HALF);
        taken = taken + 1 == DEPTH ? 0 : taken + 1;
    }
};

#endif
