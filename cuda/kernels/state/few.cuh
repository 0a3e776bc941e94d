// SPDX-License-Identifier: Apache-2.0
/* What a block of few.cu holds in registers and in shared memory, and the loads before its wait.
 *
 * A warp owns COLUMNS columns of S and of the values, and BLOCK / WARPS keys. Products run on the
 * tensor cores, and the lanes hold their operands: with lane = 4 * i + j, "i" and "j" below. The
 * order of a product's inputs is free, so each lane's are adjacent in memory.
 * Thread: device code. */
#ifndef SLUICE_CUDA_STATE_FEW_CUH
#define SLUICE_CUDA_STATE_FEW_CUH

#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/reduce.cuh"
#include "cuda/kernels/state/rows.cuh"

enum { KEY = 128, VALUE = 128, BLOCK = 64, TAPS = 4 }; // the shape that this kernel supports
enum { THREADS = 256, WARPS = THREADS / 32, COLUMNS = VALUE / WARPS, EACH = 4 };
enum { GROUP = 4 };           // rows computed together
enum { KINDS = 2 * GROUP };   // keys of a group, then its queries
enum { PAIR = 2 };            // a lane's columns, and its rows of results
enum { RUNS = 4, STEPS = 4 }; // a lane's elements of a key: RUNS runs of 8; steps of 16 slots
static_assert((int)KINDS == WARPS && COLUMNS == 16 && BLOCK == STEPS * 16, "lanes of a warp");

template <typename T> struct alignas(EACH * sizeof(T)) four {
    T v[EACH];
};

/* The values of the past that a thread holds, as operands. Pair y of run r is the elements
 * 32 * r + 8 * j + 2 * y and the next one of a key, or these rows of S. The lane's columns are
 * 2 * i and 2 * i + 1. */
template <typename T> struct past {
    float s[RUNS][4][4]; // [run][y]: both columns of the pair's first row, then of its second
    uint4 key[RUNS];     // of slot 8 * warp + i
    /* [step][m]: both columns of the values in slots 16 * j + 4 * step + m */
    uint32_t value[STEPS][4];
    float g[BLOCK / 32]; // in the last warp: the block's sums of log decays
};

/* The inputs of a group. A warp convolves one query or key, with EACH channels per lane. A lane
 * convolves the values of two rows in its columns if j < 2, and applies the gate to the results of
 * two rows otherwise. Pairs are two columns. */
template <typename T> struct inputs {
    struct four<T> x[TAPS];
    uint32_t value[TAPS + 1], gate[PAIR];
    T beta[PAIR], decay;
    uint32_t x_at, value_at, gate_at; // where they are, as numbers of elements
};

/* The layer's weights for the warp's query or key, and for its head. */
struct key_weights {
    float4 taps[TAPS], bias;
    float a_log, dt_bias;
};

struct value_weights {
    float2 taps[TAPS], bias, norm;
};

enum { STAGE_ROWS = 16, STAGE_STRIDE = KEY + 8 };

template <typename T> struct alignas(16) few_room {
    union {
        struct {
            T rows[KINDS + GROUP][KEY];  // keys; queries, rounded; the rest of the queries
            T scores[2 * KINDS][BLOCK];  // keys and queries times the block's earlier keys, and the
                                         // rest of these products
            float own[KINDS][GROUP];     // keys and queries times the group's keys
            float squares[GROUP][WARPS]; // of results
        };
        T stage[STAGE_ROWS][STAGE_STRIDE]; // keys at the end of a block
    };
    float g[BLOCK];
};

struct few_work {
    struct pass_seq seq;
    int32_t head, key_head;
    bool owner;         // writes the key head's rows
    int32_t slot, ring; // where the block's rows and the inputs from n_past on begin
};

/* Rows [first, first + n) of the pass's rows of a sequence, at places [at, at + n) of a block. */
struct group {
    int32_t first, n, at;
};

__device__ __forceinline__ int32_t lane_i()
{
    return (int32_t)(threadIdx.x & 31) >> 2;
}
__device__ __forceinline__ int32_t lane_j()
{
    return (int32_t)threadIdx.x & 3;
}
__device__ __forceinline__ int32_t my_warp()
{
    return (int32_t)threadIdx.x >> 5;
}

/* The lane's first row of S in a run. */
__device__ __forceinline__ int32_t first_row_of(int32_t run)
{
    return 32 * run + 8 * lane_j();
}

/* The first of the lane's two columns. */
__device__ __forceinline__ int32_t my_column()
{
    return my_warp() * COLUMNS + lane_i() * PAIR;
}

/* The first of the lane's two rows of a group. */
__device__ __forceinline__ int32_t my_rows()
{
    return lane_j() % 2 * PAIR;
}

/* unpack_pair in one instruction per number */
template <typename T> __device__ __forceinline__ float2 numbers_of(uint32_t pair)
{
    return unpack_pair<T>(pair);
}
template <> __device__ __forceinline__ float2 numbers_of<bf16_t>(uint32_t pair)
{
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

/* Two numbers rounded to T, and what that leaves, rounded too. */
template <typename T>
__device__ __forceinline__ void split_pair(float a, float b, uint32_t &most, uint32_t &rest)
{
    most = pack_pair<T>(a, b);
    const float2 x = numbers_of<T>(most);
    rest = pack_pair<T>(a - x.x, b - x.y);
}

/* Word y of v; y is known to the compiler. */
__device__ __forceinline__ uint32_t word(const uint4 &v, int y)
{
    return (&v.x)[y];
}

/* ---- places in a lane's memory ----------------------------------------------------------------
 */

template <typename T>
__device__ __forceinline__ T *key_slot(const struct rows_params &p, const struct few_work &w,
                                       int32_t at)
{
    const struct state_view &s = p.state;
    return (T *)(lane_of(s, w.seq.lane) + s.k_at) +
           ((uint32_t)(w.slot + at) * s.geometry.n_key_heads + w.key_head) * KEY;
}

template <typename T>
__device__ __forceinline__ T *value_slot(const struct rows_params &p, const struct few_work &w,
                                         int32_t at)
{
    const struct state_view &s = p.state;
    return (T *)(lane_of(s, w.seq.lane) + s.u_at) +
           ((uint32_t)(w.slot + at) * s.geometry.n_heads + w.head) * VALUE;
}

__device__ __forceinline__ float *decay_slot(const struct rows_params &p, const struct few_work &w,
                                             int32_t at)
{
    const struct state_view &s = p.state;
    return (float *)(lane_of(s, w.seq.lane) + s.g_at) +
           (uint32_t)(w.slot + at) * s.geometry.n_heads + w.head;
}

/* The inputs of the row that is `offset` rows after n_past, or before it. A ring is longer than
 * the rows of a window and the taps. */
template <typename T>
__device__ __forceinline__ T *input_slot(const struct rows_params &p, const struct few_work &w,
                                         int32_t offset)
{
    const struct state_view &s = p.state;
    int32_t slot = w.ring + offset;
    slot = slot < 0 ? slot + s.conv_ring : slot;
    slot = slot >= s.conv_ring ? slot - s.conv_ring : slot;
    return (T *)(lane_of(s, w.seq.lane) + s.conv_at) + (uint32_t)slot * s.geometry.conv_width;
}

/* The warp's channels, of its query or key. */
__device__ __forceinline__ int32_t key_channel(const struct rows_params &p,
                                               const struct few_work &w)
{
    const int32_t first = my_warp() < GROUP ? p.k_at : p.q_at;
    return first + w.key_head * KEY + (int32_t)(threadIdx.x & 31) * EACH;
}

__device__ __forceinline__ int32_t value_channel(const struct rows_params &p,
                                                 const struct few_work &w)
{
    return p.v_at + w.head * VALUE + my_column();
}

/* ---- before the wait --------------------------------------------------------------------------
 */

template <typename T>
__device__ __forceinline__ void load_values(const struct rows_params &p, const struct few_work &w,
                                            struct past<T> &m, int32_t known)
{
    const T *from = value_slot<T>(p, w, 0) + my_column();
    const int32_t stride = p.state.geometry.n_heads * VALUE;
#pragma unroll
    for (int e = 0; e < STEPS * 4; e++) {
        const int32_t t = 16 * lane_j() + e;
        m.value[e / 4][e % 4] = t < known ? *(const uint32_t *)(from + t * stride) : 0;
    }
}

/* The operand of a step's values: its numbers are of one column and of adjacent slots. */
__device__ __forceinline__ void operand_of(const uint32_t (&value)[4], uint32_t (&to)[4])
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        to[2 * h] = __byte_perm(value[2 * h], value[2 * h + 1], 0x5410);
        to[2 * h + 1] = __byte_perm(value[2 * h], value[2 * h + 1], 0x7632);
    }
}

/* Nothing here waits for a load. */
template <typename T>
__device__ __forceinline__ void load_past(const struct rows_params &p, const struct few_work &w,
                                          struct past<T> &m)
{
    const int32_t n_past = w.seq.n_past, known = n_past % BLOCK, begin = n_past - known;
    const float *s = (const float *)record_of(p.state, w.seq.lane, begin) +
                     (int64_t)w.head * KEY * VALUE + my_column();
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float2 zero = {0.0f, 0.0f};
            const float2 x =
                begin > 0 ? *(const float2 *)(s + (first_row_of(r) + e) * VALUE) : zero;
            m.s[r][e / 2][e % 2 * 2] = x.x;
            m.s[r][e / 2][e % 2 * 2 + 1] = x.y;
        }
    }
    const int32_t t = my_warp() * 8 + lane_i();
    const T *key = key_slot<T>(p, w, t);
#pragma unroll
    for (int r = 0; r < RUNS; r++) {
        const uint4 zero = {0, 0, 0, 0};
        m.key[r] = t < known ? *(const uint4 *)(key + first_row_of(r)) : zero;
    }
    load_values(p, w, m, known);
#pragma unroll
    for (int h = 0; h < BLOCK / 32; h++) {
        const int32_t slot = 32 * h + (int32_t)(threadIdx.x & 31);
        m.g[h] = my_warp() == WARPS - 1 && slot < known ? *decay_slot(p, w, slot) : 0.0f;
    }
}

__device__ __forceinline__ void load_weights(const struct rows_params &p, const struct few_work &w,
                                             struct key_weights &of)
{
    const int32_t key = key_channel(p, w);
    of.bias = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (p.vectors.bias) {
        of.bias = *(const float4 *)(p.vectors.bias + key);
    }
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        const uint32_t at = j * p.state.geometry.conv_width + key;
        of.taps[j] = *(const float4 *)(p.vectors.kernel + at);
    }
    of.a_log = p.vectors.a_log[w.head];
    of.dt_bias = p.vectors.dt_bias[w.head];
}

__device__ __forceinline__ void load_weights(const struct rows_params &p, const struct few_work &w,
                                             struct value_weights &of)
{
    const int32_t value = value_channel(p, w), head = p.vectors.norm_is_wide ? w.head * VALUE : 0;
    of.bias = make_float2(0.0f, 0.0f);
    if (p.vectors.bias) {
        of.bias = *(const float2 *)(p.vectors.bias + value);
    }
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        const uint32_t at = j * p.state.geometry.conv_width + value;
        of.taps[j] = *(const float2 *)(p.vectors.kernel + at);
    }
    of.norm = *(const float2 *)(p.vectors.norm + head + my_column());
}

/* The inputs, from earlier passes, of the row's N channels from `channel` on; 0 if there are none.
 */
template <typename T, typename V>
__device__ __forceinline__ V earlier_input(const struct rows_params &p, const struct few_work &w,
                                           int32_t row, int32_t channel)
{
    const bool is = row < 0 && w.seq.n_past + row >= 0;
    return is ? *(const V *)(input_slot<T>(p, w, row) + channel) : V();
}

/* What of a group's inputs was there before the wait, and the places of the rest. */
template <typename T>
__device__ __forceinline__ void load_before(const struct rows_params &p, const struct few_work &w,
                                            const struct group &b, struct inputs<T> &in)
{
    const int32_t of_warp = b.first + my_warp() % GROUP, of_lane = b.first + my_rows();
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        *(uint2 *)in.x[j].v =
            earlier_input<T, uint2>(p, w, of_warp + j - (TAPS - 1), key_channel(p, w));
    }
#pragma unroll
    for (int j = 0; j < TAPS + 1; j++) {
        in.value[j] =
            earlier_input<T, uint32_t>(p, w, of_lane + j - (TAPS - 1), value_channel(p, w));
    }
    in.gate[0] = in.gate[1] = 0;
    in.beta[0] = in.beta[1] = in.decay = from_float<T>(0.0f);
    const int32_t x_stride = (int32_t)p.x_stride, row = w.seq.first_row + of_lane;
    in.x_at = (w.seq.first_row + of_warp - (TAPS - 1)) * x_stride + key_channel(p, w);
    in.value_at = (row - (TAPS - 1)) * x_stride + value_channel(p, w);
    in.gate_at = row * (int32_t)p.gate_stride + w.head * VALUE + my_column();
    asm volatile("" : "+r"(in.x_at), "+r"(in.value_at), "+r"(in.gate_at));
}

/* ---- after the wait ---------------------------------------------------------------------------
 */

/* A group's other inputs. */
template <typename T>
__device__ __forceinline__ void load_after(const struct rows_params &p, const struct few_work &w,
                                           const struct group &b, struct inputs<T> &in)
{
    const int32_t of_warp = my_warp() % GROUP, of_lane = my_rows();
    const uint32_t x_stride = (uint32_t)p.x_stride, row = w.seq.first_row + b.first;
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        if (of_warp < b.n && b.first + of_warp + j >= TAPS - 1) {
            *(uint2 *)in.x[j].v = *(const uint2 *)((const T *)p.x + (in.x_at + j * x_stride));
        }
    }
    if (lane_j() < b.n) {
        const uint32_t at = (row + lane_j()) * (uint32_t)p.decay_stride + w.head;
        in.decay = ((const T *)p.decay)[at];
    }
    __syncwarp(); // what is needed first is loaded first
#pragma unroll
    for (int j = 0; j < TAPS + 1; j++) {
        const int32_t of = of_lane + j - (TAPS - 1);
        if (of < b.n && b.first + of >= 0) {
            in.value[j] = *(const uint32_t *)((const T *)p.x + (in.value_at + j * x_stride));
        }
    }
#pragma unroll
    for (int r = 0; r < PAIR; r++) {
        if (of_lane + r < b.n) {
            const uint32_t gate = in.gate_at + r * (uint32_t)p.gate_stride;
            in.gate[r] = *(const uint32_t *)((const T *)p.gate + gate);
            const uint32_t beta = (row + of_lane + r) * (uint32_t)p.beta_stride + w.head;
            in.beta[r] = ((const T *)p.beta)[beta];
        }
    }
}

#endif
