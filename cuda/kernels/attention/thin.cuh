// SPDX-License-Identifier: Apache-2.0
/* Attention of a few rows (decoding): the computing half of sm90.cu for units of at most 8 packed
 * rows. With wgmma, both the products and the softmax would be computed for 64 rows. Here the four
 * warps of a warpgroup share the keys of a tile, and each uses mma.sync on 16 rows, of which 8 are
 * real. Each warp keeps its own maximum and sums, which are joined at the end of the unit.
 * Thread: device code, one warpgroup at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_THIN_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_THIN_CUH

#include "cuda/kernels/attention/sm90.cuh"
#include "cuda/kernels/device/mma_tile.cuh"

enum { THIN_ROWS = 8 };

#if HAVE_SM90A

template <typename T, int NB> struct thin_computer {
    using S = shape<NB>;
    static constexpr int KEYS = S::KEYS, HEAD_DIM = S::HEAD_DIM;
    // A warp's keys in a tile, and the number of groups of eight keys among them.
    static constexpr int OWN = KEYS / 4, NF = OWN / 8;
    // The row pitch of the results to join, in floats.
    static constexpr int PITCH = HEAD_DIM + 4;
    const struct attention_params &p;
    char *slots, *q_tile;
    uint64_t *full, *empty;
    struct ring at;
    int group, tid;

    uint32_t q[HEAD_DIM / 16][4]; // rows 8 to 15 are zero
    float scores[NF][4];          // [2] and [3] belong to rows 8 to 15 and are unused
    uint32_t probs[NF / 2][4];
    float values[HEAD_DIM / 8][4];
    float top, sum, decay; // of row lane / 4, over this warp's keys
    struct attention_row_view view;

    __device__ __forceinline__ int warp() const
    {
        return tid >> 5;
    }
    __device__ __forceinline__ int lane() const
    {
        return tid & 31;
    }

    __device__ __forceinline__ void sync()
    {
        named_barrier(1 + group, WARPGROUP);
    }

    __device__ __forceinline__ void release()
    {
        __syncwarp();
        if (lane() == 0) {
            barrier_arrive(&empty[at.slot], 2);
        }
        at.next();
    }

    /* Loads Q from global memory directly into operand registers: row g, columns 2 t and 2 t + 1 of
     * every eight columns. */
    __device__ __forceinline__ void load_q(const struct attention_unit &u)
    {
        const T *from = (const T *)p.q + (int64_t)view.row * p.q_stride +
                        (int64_t)view.head * p.kv.head_dim_k + (lane() & 3) * 2;
        const bool real = (lane() >> 2) < u.n_packed;
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int c = k * 16 + half * 8;
                q[k][2 * half] = real && c < p.kv.head_dim_k ? *(const uint32_t *)(from + c) : 0u;
                q[k][2 * half + 1] = 0u;
            }
        }
    }

    /* The address of 16-byte chunk c of row r (a key) of the current tile. */
    __device__ __forceinline__ char *chunk_at(int r, int c)
    {
        return slots + at.slot * S::SLOT_BYTES + (c >> 3) * (KEYS * 128) + swizzled(r, c & 7);
    }

    __device__ __forceinline__ void score()
    {
#pragma unroll
        for (int f = 0; f < NF; f++) {
            scores[f][0] = scores[f][1] = scores[f][2] = scores[f][3] = 0.0f;
        }
        const int r = warp() * OWN + (lane() >> 4) * 8 + (lane() & 7), c = lane() >> 3 & 1;
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
#pragma unroll
            for (int f = 0; f < NF; f += 2) {
                uint32_t b[4];
                ldmatrix_x4(b, chunk_at(r + f * 8, k * 2 + c));
                mma_16x8x16(scores[f], q[k], b[0], b[1], T());
                mma_16x8x16(scores[f + 1], q[k], b[2], b[3], T());
            }
        }
    }

    /* Bit 2 f + e: key first + 8 f + e is visible. */
    __device__ __forceinline__ uint32_t seen_keys(const struct attention_unit &u, int first)
    {
        uint32_t seen = 0;
#pragma unroll 1
        for (int i = 0; i < 2 * NF; i++) {
            seen |= (uint32_t)row_sees(p, u, view, first + (i >> 1) * 8 + (i & 1)) << i;
        }
        return seen;
    }

    /* Turns scores into probs (not yet divided by the sum), and updates top, sum and decay. */
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int start)
    {
        const bool all = start >= u.all_lo && start + KEYS <= u.all_hi;
        const uint32_t seen = all ? ~0u : seen_keys(u, start + warp() * OWN + (lane() & 3) * 2);
        if (p.softcap > 0.0f) {
#pragma unroll
            for (int f = 0; f < NF; f++) {
                scores[f][0] = soft_cap(p, scores[f][0]);
                scores[f][1] = soft_cap(p, scores[f][1]);
            }
        }
        float high = top;
#pragma unroll
        for (int f = 0; f < NF; f++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &s = scores[f][e];
                s = seen >> (2 * f + e) & 1 ? s : -INFINITY;
                high = fmaxf(high, s);
            }
        }
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
        high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
        const float safe = high == -INFINITY ? 0.0f : __fmul_rn(high, p.scale_log2);
        decay = exp2_fast(__fsub_rn(__fmul_rn(top, p.scale_log2), safe));
        top = high;
        float add = 0.0f;
#pragma unroll
        for (int f = 0; f < NF; f++) {
            const float x = exp2_fast(__fmaf_rn(scores[f][0], p.scale_log2, -safe));
            const float y = exp2_fast(__fmaf_rn(scores[f][1], p.scale_log2, -safe));
            add += x + y;
            probs[f / 2][f % 2 * 2] = pack<T>(x, y);
            probs[f / 2][f % 2 * 2 + 1] = 0u;
        }
        sum = __fmaf_rn(sum, decay, add);
    }

    __device__ __forceinline__ void add_values()
    {
        const int r = warp() * OWN + (lane() & 15), c = lane() >> 4;
#pragma unroll
        for (int k = 0; k < NF / 2; k++) {
#pragma unroll
            for (int f = 0; f < HEAD_DIM / 8; f += 2) {
                uint32_t b[4];
                ldmatrix_x4_transposed(b, chunk_at(r + k * 16, f + c));
                mma_16x8x16(values[f], probs[k], b[0], b[1], T());
                mma_16x8x16(values[f + 1], probs[k], b[2], b[3], T());
            }
        }
    }

    /* Zeroes this warp's rows of V for keys from `n` on, which contain garbage. */
    __device__ __forceinline__ void clean_values(int n)
    {
        const int end = (warp() + 1) * OWN, from = max(n, warp() * OWN);
        for (int i = from * (HEAD_DIM / 8) + lane(); i < end * (HEAD_DIM / 8); i += 32) {
            *reinterpret_cast<uint4 *>(chunk_at(i / (HEAD_DIM / 8), i % (HEAD_DIM / 8))) =
                make_uint4(0, 0, 0, 0);
        }
        if (from < end) {
            fence_async();
            __syncwarp();
        }
    }

    /* Processes keys [lo, hi) of the unit in the order of the ring: K0 K1 V0 K2 V1 ... The first
     * and last steps are not separate copies of the code, because each launch loads the code again,
     * which takes longer than running it. */
    __device__ __forceinline__ void run(const struct attention_unit &u)
    {
#pragma unroll 1
        for (int start = u.lo;; start += KEYS) {
            const bool is_last = start >= u.hi;
            if (!is_last) {
                barrier_wait(&full[at.slot], at.parity);
                score();
                release();
            }
            if (start > u.lo) {
                barrier_wait(&full[at.slot], at.parity);
                if (is_last) {
                    clean_values(u.hi - (start - KEYS));
                }
                add_values();
                release();
            }
            if (is_last) {
                break;
            }
            softmax(u, start);
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 8; i++) {
                values[i][0] *= decay;
                values[i][1] *= decay;
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        top = __fmul_rn(top, p.scale_log2);
    }

    /* Warp 0 joins the results of the other warps, in the order of warps. */
    __device__ __forceinline__ void join_warps(const struct attention_unit &u)
    {
        const int row = lane() >> 2, column = (lane() & 3) * 2;
        float *room = (float *)q_tile;
        sync(); // the results of the previous unit have been read
        if (warp() > 0 && row < u.n_packed) {
            float *to = room + ((warp() - 1) * THIN_ROWS + row) * PITCH;
#pragma unroll
            for (int f = 0; f < HEAD_DIM / 8; f++) {
                *reinterpret_cast<float2 *>(to + f * 8 + column) =
                    make_float2(values[f][0], values[f][1]);
            }
            if (column == 0) {
                *reinterpret_cast<float2 *>(to + HEAD_DIM) = make_float2(top, sum);
            }
        }
        sync();
        if (warp() == 0 && row < u.n_packed) {
#pragma unroll 1
            for (int w = 0; w < 3; w++) {
                const float *from = room + (w * THIN_ROWS + row) * PITCH;
                const float2 other = *reinterpret_cast<const float2 *>(from + HEAD_DIM);
                const struct join_weights weights = join(top, sum, other.x, other.y);
#pragma unroll
                for (int f = 0; f < HEAD_DIM / 8; f++) {
                    const float2 v = *reinterpret_cast<const float2 *>(from + f * 8 + column);
                    values[f][0] = join_value(weights, values[f][0], v.x);
                    values[f][1] = join_value(weights, values[f][1], v.y);
                }
            }
        }
    }

    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const int d = p.kv.head_dim_v, column = (lane() & 3) * 2;
        if (warp() > 0 || (lane() >> 2) >= u.n_packed) {
            return;
        }
        if (u.item.split < 0) {
            const float w = final_weight(top, sum, p.sinks, view.head);
            T *to = (T *)p.out + (int64_t)view.row * p.out_stride + (int64_t)view.head * d;
#pragma unroll
            for (int f = 0; f < HEAD_DIM / 8; f++) {
                if (f * 8 < d) {
                    *reinterpret_cast<uint32_t *>(to + f * 8 + column) =
                        pack<T>(__fmul_rn(values[f][0], w), __fmul_rn(values[f][1], w));
                }
            }
            return;
        }
        const struct attention_row *rows = (const struct attention_row *)(plan_head(p.plan) + 1);
        float *to = slot_at(p, rows[view.row].first_slot + u.item.split, view.head);
#pragma unroll
        for (int f = 0; f < HEAD_DIM / 8; f++) {
            if (f * 8 < d) {
                *reinterpret_cast<float2 *>(to + f * 8 + column) =
                    make_float2(values[f][0], values[f][1]);
            }
        }
        if (column == 0) {
            *reinterpret_cast<float2 *>(to + d) = make_float2(top, sum);
        }
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        view = row_view(p, u, lane() >> 2);
        load_q(u);
        top = -INFINITY;
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            values[i][0] = values[i][1] = values[i][2] = values[i][3] = 0.0f;
        }
        if (u.lo < u.hi) {
            run(u);
        }
        join_warps(u);
        store(u);
    }
};

#endif // HAVE_SM90A
#endif
