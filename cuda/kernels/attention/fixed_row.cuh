// SPDX-License-Identifier: Apache-2.0
/* Shared by the kernels of few_fixed.cu: the new row of a unit, and the arithmetic of its chunks,
 * with the same bits as rope.cu and wide.cuh.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FIXED_ROW_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FIXED_ROW_CUH

#include "cuda/kernels/attention/few.cuh"

template <int DIM> struct fixed_row_shape {
    static constexpr int J = DIM / 32;                     // vectors of a head per lane
    static constexpr int TILES = DIM / 16;                 // tiles per value, and steps of a score
    static constexpr int SLOT = DIM / 64 * FEW_PART_BYTES; // a chunk's keys or its values
    // Number of chunks in a tile, whose keys share a maximum, and in a run, which is summed
    // separately.
    static constexpr int TILE = shape<DIM / 64>::KEYS / CHUNK;
    static constexpr int RUN = ATTENTION_FIXED_SPLIT / CHUNK;
};

#if HAVE_SM90A

template <typename T, int DIM, bool NORM> struct fixed_row {
    using S = fixed_row_shape<DIM>;
    static constexpr int J = S::J, TILES = S::TILES;
    const struct few_params &p;
    int lane;

    __device__ __forceinline__ explicit fixed_row(const struct few_params &params) : p(params)
    {
    }

    int row, kv_head, part;
    int past, n_chunks; // numbers of older keys, and of chunks, including the new key's
    uint32_t new_page;
    /* Lanes 4 g to 4 g + 3 have row g: a head of the group or, after the last, the key. While rows
     * are rotated, a lane has J vectors of 8 elements; later, the products' operands. */
    uint32_t q[J][4];
    uint4 value;

    /* Loads the inputs of a unit that do not depend on the preceding product. number: the index of
     * the row in the pass; head: the unit's index in the row (KV head and part of its group). */
    __device__ __forceinline__ void enter(int number, int head, const struct pass_row &info,
                                          float4 (&cos_sin)[J * 2], float *growth)
    {
        row = number;
        kv_head = head >> p.log_parts;
        part = head & ((1 << p.log_parts) - 1);
        past = info.slot_pos;
        n_chunks = past < 0 ? 0 : past / CHUNK + 1;
        if (past < 0) {
            return;
        }
        new_page = p.blocks[(int64_t)info.lane * p.blocks_stride + (past >> p.log_bt)];
        const float *table = p.cos_sin + (int64_t)min(info.pos, p.max_pos - 1) * DIM;
#pragma unroll
        for (int j = 0; j < J * 2; j++) {
            cos_sin[j] = *reinterpret_cast<const float4 *>(table + few_dim<DIM>(lane, j / 4) * 2 +
                                                           j % 4 * 4);
        }
        *growth = lane >> 2 < p.group ? growth_at(p.growth, info.pos) : 1.0f;
    }

    __device__ __forceinline__ int first_head() const
    {
        return ((kv_head << p.log_parts) + part) * p.group;
    }

    /* Where vector j of the row starts for this lane. Vector J is the value. */
    __device__ __forceinline__ int column_of(int j) const
    {
        const int g = lane >> 2, head = g < p.group ? first_head() + g : p.n_heads + kv_head;
        return j < J ? head * DIM + few_dim<DIM>(lane, j)
                     : (p.n_heads + p.kv.n_kv_heads + kv_head) * DIM + lane % (DIM / 8) * 8;
    }

    __device__ __forceinline__ void set(int j, const uint4 &v)
    {
        if (j < J) {
            q[j][0] = v.x, q[j][1] = v.y, q[j][2] = v.z, q[j][3] = v.w;
        } else {
            value = v;
        }
    }

    /* Adds up partial sums, as load_sum does, for all vectors at once. */
    __device__ __forceinline__ void load_sums()
    {
        float x[J + 1][8];
#pragma unroll
        for (int j = 0; j <= J; j++) {
#pragma unroll
            for (int e = 0; e < 8; e++) {
                x[j][e] = p.sums.bias ? -0.0f : 0.0f; // -0 + bias is the bias
            }
        }
        const float *from = p.sums.bias ? p.sums.bias : p.sums.first + (int64_t)row * p.sums.width;
#pragma unroll 1
        for (int32_t k = p.sums.bias ? -1 : 0; k < p.sums.n; k++) {
            float4 add[J + 1][2];
#pragma unroll
            for (int j = 0; j <= J; j++) {
                add[j][0] = *reinterpret_cast<const float4 *>(from + column_of(j));
                add[j][1] = *reinterpret_cast<const float4 *>(from + column_of(j) + 4);
            }
#pragma unroll
            for (int j = 0; j <= J; j++) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    x[j][e] += ((const float *)add[j])[e];
                }
            }
            from = p.sums.first + (k + 1) * p.sums.stride + (int64_t)row * p.sums.width;
        }
#pragma unroll
        for (int j = 0; j <= J; j++) {
            set(j, make_uint4(pack<T>(x[j][0], x[j][1]), pack<T>(x[j][2], x[j][3]),
                              pack<T>(x[j][4], x[j][5]), pack<T>(x[j][6], x[j][7])));
        }
    }

    __device__ __forceinline__ void load_rows()
    {
        if (p.sums.n > 0) {
            load_sums();
            return;
        }
        const T *from = (const T *)p.qkv + (int64_t)row * p.stride;
#pragma unroll
        for (int j = 0; j <= J; j++) {
            set(j, *reinterpret_cast<const uint4 *>(from + column_of(j)));
        }
    }

    __device__ __forceinline__ float4 weights_at(int j, int e, float scale) const
    {
        const float *from =
            (lane >> 2 < p.group ? p.q_norm : p.k_norm) + few_dim<DIM>(lane, j) + e * 4;
        float4 w = *reinterpret_cast<const float4 *>(from);
        w.x = scale * (w.x + p.norm_offset);
        w.y = scale * (w.y + p.norm_offset);
        w.z = scale * (w.z + p.norm_offset);
        w.w = scale * (w.w + p.norm_offset);
        return w;
    }

    /* Applies the norm and rope, with the arithmetic of rope.cu. `stores`: also stores the new key
     * and value. */
    __device__ __forceinline__ void rotate(const float4 (&cos_sin)[J * 2], float growth,
                                           bool stores = true)
    {
        const float scale = NORM ? few_norm_scale<T, DIM>(q, p.eps) : 1.0f;
#pragma unroll
        for (int j = 0; j < J / 2; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 cs = cos_sin[j * 4 + e];
                float2 a = unpack<T>(q[j][e]), b = unpack<T>(q[j + J / 2][e]);
                if (NORM) {
                    const float4 low = weights_at(j, e / 2, scale);
                    const float4 high = weights_at(j + J / 2, e / 2, scale);
                    a.x *= e % 2 ? low.z : low.x;
                    a.y *= e % 2 ? low.w : low.y;
                    b.x *= e % 2 ? high.z : high.x;
                    b.y *= e % 2 ? high.w : high.y;
                }
                turn(a.x, b.x, cs.x, cs.y);
                turn(a.y, b.y, cs.z, cs.w);
                if (p.growth.beta != 0.0f) {
                    a.x = __fmul_rn(a.x, growth), a.y = __fmul_rn(a.y, growth);
                    b.x = __fmul_rn(b.x, growth), b.y = __fmul_rn(b.y, growth);
                }
                q[j][e] = pack<T>(a.x, a.y);
                q[j + J / 2][e] = pack<T>(b.x, b.y);
            }
        }
        few_drop_broken<T>(value, q[0][0]);
        if (stores && part == 0) {
            store_new();
        }
#pragma unroll
        for (int j = 0; j < J; j++) {
            exchange(q[j]);
        }
    }

    /* Stores the new key and value into their page. */
    __device__ __forceinline__ void store_new() const
    {
        T *to = (T *)p.kv.base + (int64_t)new_page * p.kv.page_stride +
                (int64_t)kv_head * p.kv.head_stride + (past & (p.kv.block_tokens - 1)) * DIM;
        if (lane >> 2 == p.group) {
#pragma unroll
            for (int j = 0; j < J; j++) {
                *reinterpret_cast<uint4 *>(to + few_dim<DIM>(lane, j)) =
                    make_uint4(q[j][0], q[j][1], q[j][2], q[j][3]);
            }
        }
        if (lane < DIM / 8) {
            *reinterpret_cast<uint4 *>(to + p.kv.v_offset + lane * 8) = value;
        }
    }

    /* a where the mask has ones, b elsewhere; without a branch. */
    __device__ __forceinline__ static uint32_t either(uint32_t mask, uint32_t a, uint32_t b)
    {
        return (a & mask) | (b & ~mask);
    }

    /* Transposes the 4 x 4 words of the four lanes of a row: word w of lane t becomes word t of
     * lane w. */
    __device__ __forceinline__ void exchange(uint32_t (&w)[4]) const
    {
        const uint32_t odd = lane & 1 ? ~0u : 0, high = lane & 2 ? ~0u : 0; // masks
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const uint32_t got = __shfl_xor_sync(0xffffffffu, either(odd, w[i], w[i + 1]), 1);
            w[i] = either(odd, got, w[i]);
            w[i + 1] = either(odd, w[i + 1], got);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t got = __shfl_xor_sync(0xffffffffu, either(high, w[i], w[i + 2]), 2);
            w[i] = either(high, got, w[i]);
            w[i + 2] = either(high, w[i + 2], got);
        }
    }

    /* After the exchange: elements 8 n + 2 t and 8 n + 2 t + 1 of the lane's row. */
    __device__ __forceinline__ uint32_t operand(int n) const
    {
        return DIM == 128 ? q[(n >> 3) * 2 + (n & 1)][(n & 7) >> 1] : q[n >> 2][n & 3];
    }

    __device__ __forceinline__ void add_key(char *chunk) const
    {
        if (lane >> 2 == p.group) {
            const int at = past & (CHUNK - 1);
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                *reinterpret_cast<uint32_t *>(chunk + slot_place(at, n * 8) + (lane & 3) * 4) =
                    operand(n);
            }
        }
        fence_async(); // before the copy engine refills the slot
        __syncwarp();
    }

    __device__ __forceinline__ void add_value(char *chunk) const
    {
        if (lane < DIM / 8) {
            const int at = past & (CHUNK - 1);
            *reinterpret_cast<uint4 *>(chunk + slot_place(at, lane * 8)) = value;
            for (int r = at + 1; r < CHUNK; r++) { // the rows after the new key contain garbage
                *reinterpret_cast<uint4 *>(chunk + slot_place(r, lane * 8)) =
                    make_uint4(0, 0, 0, 0);
            }
        }
        fence_async();
        __syncwarp();
    }

    /* The scores of a chunk in shared memory. A lane with lane % 4 == t gets keys lane / 4 and lane
     * / 4 + 8 of the chunk, for heads 2 t and 2 t + 1. */
    __device__ __forceinline__ void score(char *k, int chunk, bool has_new, float (&s)[4]) const
    {
        if (has_new) {
            add_key(k);
        }
        const char *from = k + (lane & 15) * 128;
        const int swizzle = ((lane >> 4) ^ (lane & 7)) << 4;
        s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t a[4];
            ldmatrix_x4(a, from + (i >> 2) * FEW_PART_BYTES + (swizzle ^ (i & 3) << 5));
            mma_16x8x16(s, a, operand(2 * i), operand(2 * i + 1), T());
        }
        const int key = chunk * CHUNK + (lane >> 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[e] = key + e / 2 * 8 <= past ? s[e] : -INFINITY;
        }
    }

    /* The operand of elements f * 16 to f * 16 + 15 of a chunk's values. */
    __device__ __forceinline__ void load_values(const char *v, int f, uint32_t (&a)[4]) const
    {
        const int r = (lane & 7) + (lane >> 4) * 8, half = (lane >> 3 & 1) * 8;
        ldmatrix_x4_transposed(a, v + slot_place(r, f * 16 + half));
    }

    /* Stores elements f * 16 to f * 16 + 15 of the heads, `v` times the heads' weights. */
    __device__ __forceinline__ void store(int f, const float (&v)[4], const float (&w)[2]) const
    {
        const int g = lane >> 2;
        T *to = (T *)p.out + (int64_t)row * p.out_stride + (first_head() + g) * DIM + f * 16 +
                (lane & 3) * 2;
        const uint32_t low = transposed(pack<T>(__fmul_rn(v[0], w[0]), __fmul_rn(v[1], w[1])));
        const uint32_t high = transposed(pack<T>(__fmul_rn(v[2], w[0]), __fmul_rn(v[3], w[1])));
        if (g < p.group) {
            *reinterpret_cast<uint32_t *>(to) = low;
            *reinterpret_cast<uint32_t *>(to + 8) = high;
        }
    }

    /* The largest x of the lanes that have the same heads and different keys. */
    __device__ __forceinline__ static float highest(float x)
    {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 4));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 8));
        return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 16));
    }

    /* Adds up a run's sums over all lanes, and converts its maxima to exponents of 2. */
    __device__ __forceinline__ void finish_run(float (&top)[2], float (&sum)[2]) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(0xffffffffu, sum[h], 8));
            sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(0xffffffffu, sum[h], 16));
            top[h] = __fmul_rn(top[h], p.scale_log2);
        }
    }

    /* Joins a run to the earlier ones. `top` and `sum` become those of all runs so far; w: the
     * weights of the values. */
    __device__ __forceinline__ static void join_run(bool is_first, float (&top)[2], float (&sum)[2],
                                                    float (&all_top)[2], float (&all_sum)[2],
                                                    struct join_weights (&w)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            all_top[h] = is_first ? -INFINITY : all_top[h];
            all_sum[h] = is_first ? 0.0f : all_sum[h];
            w[h] = join(all_top[h], all_sum[h], top[h], sum[h]);
            top[h] = all_top[h];
            sum[h] = all_sum[h];
        }
    }
};

#endif // HAVE_SM90A

#endif
