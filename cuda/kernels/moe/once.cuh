// SPDX-License-Identifier: Apache-2.0
/* What the parts of once.cu share: its parameters, a block's share of the work, what the blocks
 * tell each other, and the stream of weights that a warp reads. Thread: device code. */
#ifndef SLUICE_CUDA_MOE_ONCE_CUH
#define SLUICE_CUDA_MOE_ONCE_CUH

#include "cuda/kernels/device/activation.cuh"
#include "cuda/kernels/device/types.cuh"
#include "cuda/kernels/kernels.h"
#include "cuda/kernels/moe/pick.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, MOST_ROWS = 16, MOST_EXPERTS = 512 };
enum { MOST_OWN = 8, MOMENT_ROWS = 4 }; // scores of a block; rows normed at a time
enum { RUN = 8, CHUNK = 64, TILE = 16, STEP = TILE * CHUNK }; // elements; TILE: rows of a weight
enum { PAD = 32 };             // elements between vectors, so that they lie in different banks
enum { MOST_REGISTERS = 104 }; // so that the next norm's block fits beside

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
    int32_t n_shared_tiles, n_up_tiles, n_down_tiles;
    int32_t chunks, up_chunks, down_chunks; // of an expert's row of `down`; of all of a tile's rows
    bool is_picked;                         // `up` is known
};

__device__ __forceinline__ int32_t n_real(const struct once_params &p)
{
    return p.real ? min(p.route.n_rows, *p.real) : p.route.n_rows;
}

__host__ __device__ static inline int32_t ring_bytes(int32_t depth)
{
    return WARPS * depth * STEP * (int32_t)sizeof(uint16_t);
}

/* A tile's sums by warp, of two tiles in turn. */
__host__ __device__ static inline int32_t sums_bytes(int32_t most_rows)
{
    return 2 * WARPS * TILE * most_rows * (int32_t)sizeof(float);
}

/* The router's weights for the scores of a block. */
__host__ __device__ static inline int32_t router_bytes(const struct once_params &p)
{
    return (p.of_scores.each + (p.of_scores.more > 0)) * p.hidden * (int32_t)sizeof(float);
}

__host__ __device__ static inline int32_t rows_bytes(const struct once_params &p)
{
    return p.route.n_rows * (p.hidden + PAD) * (int32_t)sizeof(uint16_t);
}

__device__ __forceinline__ struct once_work work_of(const struct once_params &p)
{
    struct once_work w = {};
    w.shared = first_of(p.of_shared);
    w.n_shared = number_of(p.of_shared);
    w.out = first_of(p.of_hidden);
    w.n_out = number_of(p.of_hidden);
    w.n_shared_tiles = (w.n_shared + 7) / 8;
    w.n_down_tiles = (w.n_out + TILE - 1) / TILE;
    w.chunks = (p.ffn + CHUNK - 1) / CHUNK;
    w.up_chunks = (p.hidden + CHUNK - 1) / CHUNK;
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

/* Zeros unless `is`; then `from` is not read. */
__device__ __forceinline__ void copy_or_zero(void *to, const void *from, bool is)
{
    const uint32_t shared = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
                 "r"(is ? 16 : 0)
                 : "memory");
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

/* The weights of a block in the order in which it reads them: tiles of gate and up rows of 8
 * features, first of the shared expert, then tiles of 16 rows of `down`, with the rows of all
 * experts one after another. Each warp has every WARPS-th chunk of columns. A lane has 16 bytes in
 * each half of a chunk, in rows lane / 4 and 8 + lane / 4 of the tile: what mma reads from it, with
 * the columns of a product in another order. So a lane reads only what it has copied itself, and
 * the ring needs no barriers. Each fetch is a group of copies, also if nothing is left. */
template <typename T, int DEPTH> struct stream {
    T *ring;
    const T *from; // the lane's first row
    int64_t apart; // from there to its second one
    int32_t n;     // columns of a row
    int32_t tile, chunk, fetched, taken;
    bool down, is_first, is_second;

    __device__ __forceinline__ explicit stream(T *rings)
        : ring(rings + (threadIdx.x >> 5) * DEPTH * STEP + (threadIdx.x & 31) * RUN), from(NULL),
          apart(0), n(0), tile(0), chunk(-1), fetched(0), taken(0), down(false), is_first(false),
          is_second(false)
    {
    }

    /* True if the next step is of the shared expert's gate and up. */
    __device__ __forceinline__ bool is_shared(const struct once_work &w) const
    {
        return tile < w.n_shared_tiles && !down && (int32_t)(threadIdx.x >> 5) < w.up_chunks;
    }

    /* The lane's rows of a tile of gate and up. */
    template <int R>
    __device__ __forceinline__ void begin_up(const struct once_params &p,
                                             const struct once_room<R> &room,
                                             const struct once_work &w)
    {
        const bool routed = tile >= w.n_shared_tiles;
        const int32_t in_tile = (threadIdx.x & 31) >> 2;
        const int32_t i = (routed ? tile - w.n_shared_tiles : tile) * 8 + in_tile;
        const int32_t width = routed ? p.ffn : p.shared_ffn;
        is_first = is_second = i < (routed ? w.n_up : w.n_shared);
        int32_t feature = w.shared + i, expert = 0;
        if (routed && is_first) {
            const int32_t place = (uint32_t)(w.up + i) / (uint32_t)p.ffn;
            feature = w.up + i - place * p.ffn;
            expert = room.expert[place];
        }
        n = p.hidden;
        apart = (int64_t)width * p.hidden;
        from = (const T *)(routed ? p.gate_up : p.shared_gate_up) +
               ((int64_t)expert * 2 * width + feature) * p.hidden;
    }

    /* The lane's rows of the expert that has the chunk, in a tile of `down`; the chunk in them. */
    template <int R>
    __device__ __forceinline__ int32_t begin_down(const struct once_params &p,
                                                  const struct once_room<R> &room,
                                                  const struct once_work &w)
    {
        const int32_t place = min((uint32_t)chunk / (uint32_t)w.chunks, room.n_experts);
        const bool routed = place < room.n_experts;
        const int32_t row = tile * TILE + ((threadIdx.x & 31) >> 2);
        const int64_t first = (routed ? (int64_t)room.expert[place] * p.hidden : 0) + w.out + row;
        n = routed ? p.ffn : p.shared_ffn;
        apart = 8 * n;
        is_first = row < w.n_out;
        is_second = row + 8 < w.n_out;
        from = (const T *)(routed ? p.down : p.shared_down) + first * n;
        return chunk - place * w.chunks;
    }

    template <int R>
    __device__ __forceinline__ void
    fetch(const struct once_params &p, const struct once_room<R> &room, const struct once_work &w)
    {
        const int32_t warp = threadIdx.x >> 5;
        const int32_t n_up = warp < w.up_chunks ? w.n_shared_tiles + w.n_up_tiles : 0;
        if (!down && chunk < 0 && tile >= n_up) {
            down = true;
            tile = 0;
        }
        const int32_t n_chunks = down ? w.down_chunks : w.up_chunks;
        if (tile < (down ? w.n_down_tiles : n_up) && warp < n_chunks) {
            const bool begins = chunk < 0;
            chunk = begins ? warp : chunk;
            if (begins && !down) {
                begin_up(p, room, w);
            }
            const int32_t here = down ? begin_down(p, room, w) : chunk;
            const int32_t at = here * CHUNK + (threadIdx.x & 3) * RUN;
            T *to = ring + fetched * STEP;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int32_t column = at + half * (CHUNK / 2);
                const bool is = column < n;
                copy_or_zero(to + half * 32 * RUN, from + column, is && is_first);
                copy_or_zero(to + (2 + half) * 32 * RUN, from + apart + column, is && is_second);
            }
            chunk += WARPS;
            if (chunk >= n_chunks) {
                chunk = -1;
                tile++;
            }
        }
        copies_end();
        fetched = fetched + 1 == DEPTH ? 0 : fetched + 1;
    }

    /* The oldest step: 16 bytes of the lane's first row in each half of the chunk, then of its
     * second one. */
    __device__ __forceinline__ void take(uint4 (&step)[4])
    {
        copies_await<DEPTH - 1>();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            step[i] = *(const uint4 *)(ring + taken * STEP + i * 32 * RUN);
        }
        taken = taken + 1 == DEPTH ? 0 : taken + 1;
    }
};

#endif
