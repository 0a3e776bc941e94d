// SPDX-License-Identifier: Apache-2.0
/* The device half of mma.cu: how a block processes one unit.
 * Thread: device code, one block at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_MMA_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_MMA_CUH

#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/kv_decode.cuh"

enum { N_WARPS = 8, BLOCK_ROWS = 64, N_STAGES = 2, MAX_DIM_K = 576 };

/* The layout of shared memory: queries; keys and values of one tile; probabilities; and statistics
 * of the rows. */
struct mma_layout {
    // In elements; odd multiples of 16 bytes, to avoid bank conflicts.
    int32_t k_pitch, v_pitch, p_pitch;
    int32_t q, k, v, p, floats, total; // byte offsets
};

/* Computes the offsets in shared memory. With v_in_k the tile of K also serves as V. */
static __host__ __device__ inline struct mma_layout layout_of(const struct kv_view &kv, int keys)
{
    struct mma_layout l;
    const int dk = (kv.head_dim_k + 15) / 16 * 16, dv = (kv.head_dim_v + 15) / 16 * 16;
    const bool v_in_k = kv.v_offset == 0;
    l.k_pitch = dk + 8;
    l.v_pitch = v_in_k ? l.k_pitch : dv + 8;
    l.p_pitch = keys + 8;
    l.q = 0;
    l.k = l.q + BLOCK_ROWS * l.k_pitch * 2;
    l.v = v_in_k ? l.k : l.k + N_STAGES * keys * l.k_pitch * 2;
    l.p = (v_in_k ? l.k + N_STAGES * keys * l.k_pitch * 2 : l.v + N_STAGES * keys * l.v_pitch * 2);
    l.floats = l.p + BLOCK_ROWS * l.p_pitch * 2;
    l.total = l.floats + 9 * BLOCK_ROWS * (int)sizeof(float);
    return l;
}

__device__ __forceinline__ uint32_t smem_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes to shared memory, or writes zeros. */
__device__ __forceinline__ void copy16(void *to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_at(to)), "l"(from),
                 "r"(real ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void load4(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(p))
                 : "memory");
}

__device__ __forceinline__ void load4_transposed(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_at(p))
                 : "memory");
}

/* d[16, 8] += a[16, 16] b[16, 8] */
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1);
template <>
__device__ __forceinline__ void mma<bf16_t>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<f16_t>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* NP: number of pairs of 8 columns of the value per warp. CODES: pages contain codes, which are
 * dequantised on their way to shared memory. */
template <typename T, int KEYS, int NP, bool CODES> struct mma_block {
    static constexpr int NF = KEYS / 16; // score fragments (of 8 keys each) per warp
    const struct attention_params &p;
    const struct mma_layout l;
    char *smem;
    int tid, warp, lane, m, n; // m, n: the warp's position in the score tile
    /* Per row, in shared memory: the maxima and sums of the two halves; the decay; the final
     * maximum and sum; and the weights with which runs are folded. */
    float *high, *part, *decay, *top_of, *sum_of, *fold_old, *fold_new;

    float scores[NF][4];
    float values[NP][4][2][4]; // [pair][16 rows][8 columns of the pair]
    float top[2], sum[2];
    struct attention_row_view view[2];

    __device__ mma_block(const struct attention_params &params, char *memory)
        : p(params), l(layout_of(params.kv, KEYS)), smem(memory)
    {
        tid = threadIdx.x;
        warp = tid >> 5;
        lane = tid & 31;
        m = warp & 3;
        n = warp >> 2;
        float *f = (float *)(smem + l.floats);
        high = f;
        part = f + 2 * BLOCK_ROWS;
        decay = f + 4 * BLOCK_ROWS;
        top_of = f + 5 * BLOCK_ROWS;
        sum_of = f + 6 * BLOCK_ROWS;
        fold_old = f + 7 * BLOCK_ROWS;
        fold_new = f + 8 * BLOCK_ROWS;
    }

    __device__ __forceinline__ void load_q(const struct attention_unit &u)
    {
        const int n_chunks = (l.k_pitch - 8) / 8;
        for (int r = tid >> 3; r < BLOCK_ROWS; r += 32) {
            const int k = u.first_packed + r;
            const int64_t row = u.item.first_row + k / p.group;
            const int h = u.kv_head * p.group + k % p.group;
            const T *from = (const T *)p.q + row * p.q_stride + (int64_t)h * p.kv.head_dim_k;
            for (int c = tid & 7; c < n_chunks; c += 8) {
                const bool real = r < u.n_packed && c * 8 < p.kv.head_dim_k;
                copy16(smem + l.q + (r * l.k_pitch + c * 8) * 2, real ? from + c * 8 : p.q, real);
            }
        }
    }

    __device__ __forceinline__ void load_tile(const struct attention_unit &u, int stage, int start,
                                              int end)
    {
        const struct kv_view &kv = p.kv;
        const int32_t *table = p.blocks + (int64_t)u.item.lane * p.blocks_stride;
        for (int r = tid >> 3; r < KEYS; r += 32) {
            const int key = min(start + r, end - 1), page = key / kv.block_tokens;
            const int64_t t = key - page * kv.block_tokens;
            const bool real = start + r < end;
            const T *base = (const T *)kv.base + (int64_t)table[page] * kv.page_stride +
                            (int64_t)u.kv_head * kv.head_stride;
            char *to = smem + l.k + (stage * KEYS + r) * l.k_pitch * 2;
            for (int c = tid & 7; c < (l.k_pitch - 8) / 8; c += 8) {
                const bool inside = c * 8 < kv.head_dim_k;
                copy16(to + c * 16, base + t * kv.head_dim_k + (inside ? c * 8 : 0),
                       real && inside);
            }
            if (kv.v_offset != 0) {
                to = smem + l.v + (stage * KEYS + r) * l.v_pitch * 2;
                for (int c = tid & 7; c * 8 < kv.head_dim_v; c += 8) {
                    copy16(to + c * 16, base + kv.v_offset + t * kv.v_token_stride + c * 8, real);
                }
            }
        }
    }

    /* Like load_tile, for pages of codes. */
    __device__ __forceinline__ void decode_tile(const struct attention_unit &u, int stage,
                                                int start, int end)
    {
        const struct kv_view &kv = p.kv;
        const int32_t *table = p.blocks + (int64_t)u.item.lane * p.blocks_stride;
        for (int r = tid >> 3; r < KEYS; r += 32) {
            const int key = min(start + r, end - 1), page = key / kv.block_tokens;
            const struct kv_place at =
                kv_place_of(kv, table[page], u.kv_head, key - page * kv.block_tokens);
            const bool real = start + r < end;
            const struct kv_scale k_scale = kv_scale_get(kv.codes, at, false);
            // if the value is part of a key that is NaN, it is read as 0, as in plain pages
            const int32_t first = kv.v_offset == 0 && isnan(k_scale.scale) ? kv.head_dim_v : 0;
            T *to = (T *)(smem + l.k) + (stage * KEYS + r) * l.k_pitch;
            for (int d = (tid & 7) * 8; d < l.k_pitch - 8; d += 64) {
                put_decoded(to + d, kv.codes, at, false, k_scale, d,
                            real && d >= first && d < kv.head_dim_k);
            }
            if (kv.v_offset != 0) {
                const struct kv_scale v_scale = kv_scale_get(kv.codes, at, true);
                to = (T *)(smem + l.v) + (stage * KEYS + r) * l.v_pitch;
                for (int d = (tid & 7) * 8; d < kv.head_dim_v; d += 64) {
                    put_decoded(to + d, kv.codes, at, true, v_scale, d, real);
                }
            }
        }
    }

    __device__ __forceinline__ void bring_tile(const struct attention_unit &u, int stage, int start,
                                               int end)
    {
        if constexpr (CODES) {
            decode_tile(u, stage, start, end);
        } else {
            load_tile(u, stage, start, end);
        }
    }

    /* Computes the scores of this warp's 16 rows with its half of the tile's keys. */
    __device__ __forceinline__ void score(const struct attention_unit &u, int stage, int start)
    {
#pragma unroll
        for (int f = 0; f < NF; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[f][i] = 0.0f;
            }
        }
        const T *q = (const T *)(smem + l.q) + (m * 16 + (lane & 15)) * l.k_pitch + (lane >> 4) * 8;
        const T *k = (const T *)(smem + l.k) +
                     (stage * KEYS + n * (KEYS / 2) + (lane >> 4) * 8 + (lane & 7)) * l.k_pitch +
                     (lane >> 3 & 1) * 8;
        for (int d = 0; d < l.k_pitch - 8; d += 16) {
            uint32_t a[4], b[4];
            load4(a, q + d);
#pragma unroll
            for (int f = 0; f < NF; f += 2) {
                load4(b, k + f * 8 * l.k_pitch + d);
                mma<T>(scores[f], a, b[0], b[1]);
                mma<T>(scores[f + 1], a, b[2], b[3]);
            }
        }
        const bool all = start >= u.all_lo && start + KEYS <= u.all_hi;
#pragma unroll
        for (int f = 0; f < NF; f++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (p.softcap > 0.0f) {
                    scores[f][i] = soft_cap(p, scores[f][i]);
                }
                const int key = start + n * (KEYS / 2) + f * 8 + (lane & 3) * 2 + (i & 1);
                if (!all && !row_sees(p, u, view[i >> 1], key)) {
                    scores[f][i] = -INFINITY;
                }
            }
        }
    }

    __device__ __forceinline__ int row_of(int r) const
    {
        return m * 16 + (lane >> 2) + 8 * r;
    }

    __device__ __forceinline__ void softmax()
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float h = -INFINITY;
#pragma unroll
            for (int f = 0; f < NF; f++) {
                h = fmaxf(h, fmaxf(scores[f][2 * r], scores[f][2 * r + 1]));
            }
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 1));
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 2));
            if ((lane & 3) == 0) {
                high[n * BLOCK_ROWS + row_of(r)] = h;
            }
        }
        __syncthreads();
        T *probs = (T *)(smem + l.p);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = row_of(r);
            const float h = fmaxf(top[r], fmaxf(high[row], high[BLOCK_ROWS + row]));
            const float safe = h == -INFINITY ? 0.0f : __fmul_rn(h, p.scale_log2);
            const float d = exp2_fast(__fsub_rn(__fmul_rn(top[r], p.scale_log2), safe));
            top[r] = h;
            float add = 0.0f;
#pragma unroll
            for (int f = 0; f < NF; f++) {
                const float x = exp2_fast(__fmaf_rn(scores[f][2 * r], p.scale_log2, -safe));
                const float y = exp2_fast(__fmaf_rn(scores[f][2 * r + 1], p.scale_log2, -safe));
                T *to = probs + row * l.p_pitch + n * (KEYS / 2) + f * 8 + (lane & 3) * 2;
                to[0] = from_float<T>(x);
                to[1] = from_float<T>(y);
                add += x + y;
            }
            sum[r] = __fmaf_rn(sum[r], d, add);
            if (n == 0 && (lane & 3) == 0) {
                decay[row] = d;
            }
        }
        __syncthreads();
    }

    /* values = values * decay + P V, for this warp's columns. */
    __device__ __forceinline__ void add_values(int stage, int n_packed)
    {
#pragma unroll
        for (int f = 0; f < 4; f++) {
            const float a = decay[f * 16 + (lane >> 2)], b = decay[f * 16 + (lane >> 2) + 8];
#pragma unroll
            for (int i = 0; i < NP; i++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    values[i][f][c][0] *= a;
                    values[i][f][c][1] *= a;
                    values[i][f][c][2] *= b;
                    values[i][f][c][3] *= b;
                }
            }
        }
        const T *probs = (const T *)(smem + l.p) + (lane & 15) * l.p_pitch + (lane >> 4) * 8;
        const T *v =
            (const T *)(smem + l.v) + (stage * KEYS + (lane & 15)) * l.v_pitch + (lane >> 4) * 8;
#pragma unroll
        for (int k = 0; k < KEYS; k += 16) {
            uint32_t b[NP][4];
#pragma unroll
            for (int i = 0; i < NP; i++) {
                const int column = (warp + N_WARPS * i) * 16;
                if (column < p.kv.head_dim_v) {
                    load4_transposed(b[i], v + k * l.v_pitch + column);
                }
            }
#pragma unroll
            for (int f = 0; f < 4; f++) {
                if (f * 16 >= n_packed) {
                    continue;
                }
                uint32_t a[4];
                load4(a, probs + f * 16 * l.p_pitch + k);
#pragma unroll
                for (int i = 0; i < NP; i++) {
                    if ((warp + N_WARPS * i) * 16 < p.kv.head_dim_v) {
                        mma<T>(values[i][f][0], a, b[i][0], b[i][1]);
                        mma<T>(values[i][f][1], a, b[i][2], b[i][3]);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < NP * 32; i++) {
            (&values[0][0][0][0])[i] = 0.0f;
        }
    }

    /* Processes keys [lo, end). Leaves each row's maximum and sum in top_of and sum_of. */
    __device__ __forceinline__ void run(const struct attention_unit &u, int lo, int end)
    {
        clear();
        if (lo < end) {
            bring_tile(u, 0, lo, end);
        }
        copy_commit();
        for (int start = lo, stage = 0; start < end; start += KEYS, stage ^= 1) {
            if (start + KEYS < end) {
                bring_tile(u, stage ^ 1, start + KEYS, end);
            }
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            score(u, stage, start);
            softmax();
            add_values(stage, u.n_packed);
            __syncthreads(); // all threads have read the stage, probabilities and maxima
        }
        copy_wait<0>();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            if ((lane & 3) == 0) {
                part[n * BLOCK_ROWS + row_of(r)] = sum[r];
                if (n == 0) {
                    top_of[row_of(r)] = __fmul_rn(top[r], p.scale_log2);
                }
            }
        }
        __syncthreads();
        if (tid < BLOCK_ROWS) {
            sum_of[tid] = part[tid] + part[BLOCK_ROWS + tid];
        }
        __syncthreads();
    }

    /* Joins a run of a folding item to the earlier runs. Thread `row` keeps the running maximum and
     * sum of that row. */
    __device__ __forceinline__ void fold(float &all_top, float &all_sum, bool first, bool last)
    {
        float *keep = p.scratch + (int64_t)blockIdx.x * (NP * 32 * N_WARPS * 32) + tid;
        if (tid < BLOCK_ROWS) {
            const struct join_weights w = join(all_top, all_sum, top_of[tid], sum_of[tid]);
            fold_old[tid] = w.old_weight;
            fold_new[tid] = w.new_weight;
            if (last) {
                top_of[tid] = all_top;
                sum_of[tid] = all_sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NP * 32; i++) {
            const int row = (i / 8 % 4) * 16 + (lane >> 2) + (i >> 1 & 1) * 8;
            const struct join_weights w = {fold_old[row], fold_new[row]};
            float &value = (&values[0][0][0][0])[i];
            value = join_value(w, first ? 0.0f : keep[i * N_WARPS * 32], value);
            if (!last) {
                keep[i * N_WARPS * 32] = value;
            }
        }
    }

    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const struct attention_row *rows =
            (const struct attention_row *)((const char *)p.plan +
                                           sizeof(struct attention_plan_head));
        const int d = p.kv.head_dim_v;
#pragma unroll
        for (int f = 0; f < 4; f++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int packed = f * 16 + (lane >> 2) + 8 * r;
                if (packed >= u.n_packed) {
                    continue;
                }
                const int k = u.first_packed + packed, row = u.item.first_row + k / p.group;
                const int head = u.kv_head * p.group + k % p.group;
                const bool whole = u.item.split < 0;
                const float w =
                    whole ? final_weight(top_of[packed], sum_of[packed], p.sinks, head) : 1.0f;
                float *slot =
                    whole ? nullptr : slot_at(p, rows[row].first_slot + u.item.split, head);
                T *out = (T *)p.out + (int64_t)row * p.out_stride + (int64_t)head * d;
                if (!whole && warp == 0 && (lane & 3) == 0) {
                    slot[d] = top_of[packed];
                    slot[d + 1] = sum_of[packed];
                }
#pragma unroll
                for (int i = 0; i < NP; i++) {
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const int column = (warp + N_WARPS * i) * 16 + c * 8 + (lane & 3) * 2;
                        if (column >= d) {
                            continue;
                        }
                        const float x = values[i][f][c][2 * r], y = values[i][f][c][2 * r + 1];
                        if (whole) {
                            out[column] = from_float<T>(__fmul_rn(x, w));
                            out[column + 1] = from_float<T>(__fmul_rn(y, w));
                        } else {
                            *reinterpret_cast<float2 *>(slot + column) = make_float2(x, y);
                        }
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        __syncthreads(); // the previous unit has been stored
        view[0] = row_view(p, u, row_of(0));
        view[1] = row_view(p, u, row_of(1));
        load_q(u);
        if (!u.item.fold || u.lo >= u.hi) {
            run(u, u.lo, u.hi);
        } else {
            float all_top = -INFINITY, all_sum = 0.0f;
            for (int lo = u.lo; lo < u.hi;) {
                const int end = run_end(u, lo);
                run(u, lo, end);
                fold(all_top, all_sum, lo == u.lo, end == u.hi);
                lo = end;
            }
            __syncthreads();
        }
        store(u);
    }
};

#endif
