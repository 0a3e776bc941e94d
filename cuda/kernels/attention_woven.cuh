/* Attention of prompts: a warpgroup's 64 packed rows on wgmma, with P V woven into the softmax.
 *
 * Issuing wgmma holds a warp up for about as long as the tensor cores take, so what is to run beside
 * it must stand between the instructions. A tile of keys goes: its scores, and between them the sums
 * so far are scaled; what is not seen is hidden; maxima; exponentials, and between them the products
 * with the values of the tile before. Nothing is in flight across a branch: ptxas would serialise
 * it. A row's sums are made in the order of attention_wide.cuh.
 *
 * Thread: device code, a warpgroup at once. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_WOVEN_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_WOVEN_CUH

#include "cuda/kernels/attention_sm90.cuh"

#if HAVE_SM90A

template <typename T, int NB> struct woven_computer {
    using S = shape<NB>;
    static constexpr int KEYS = S::KEYS, HEAD_DIM = S::HEAD_DIM;
    const struct attention_params &p;
    char *slots, *q_tile;
    uint64_t *full, *empty, *q_full, *q_empty;
    struct ring at;
    int group;    // 0 or 1
    int first;    // packed row of a unit that is this warpgroup's first
    int releases; // of a slot by one warp: 2 if the other warpgroup does not use it
    int tid;      // in the warpgroup
    uint32_t q_parity = 0;

    float scores[KEYS / 2];
    float values[HEAD_DIM / 2];
    uint32_t probs[KEYS / 16][4];
    float top[2], sum[2], decay[2]; // of rows g and g + 8; top in units of scores
    struct attention_row_view view[2];

    __device__ __forceinline__ void release(int slot)
    {
        if ((tid & 31) == 0) {
            barrier_arrive(&empty[slot], releases);
        }
    }

    __device__ __forceinline__ void sync()
    {
        named_barrier(1 + group, WARPGROUP);
    }

    /* scores = Q K^T of the tile in hand. SCALING: while they are made, the values are scaled for
     * the maximum that the tile before brought. */
    template <bool SCALING> __device__ __forceinline__ void score()
    {
        const uint64_t a = wgmma_operand(smem_address(q_tile), 0);
        const uint64_t b = wgmma_operand(smem_address(slots + at.slot * S::SLOT_BYTES), 0);
        barrier_wait(&full[at.slot], at.parity);
        settle(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            if (SCALING && k > 0) {
                wgmma_order();
            }
            wgmma<T, KEYS>::ss(scores,
                               wgmma_advance(a, (k >> 2) * (GROUP_ROWS * 128) + (k & 3) * 32),
                               wgmma_advance(b, (k >> 2) * (KEYS * 128) + (k & 3) * 32), k > 0);
#pragma unroll
            for (int i = 0; SCALING && i < 8; i++) {
                values[8 * k + i] *= decay[i >> 1 & 1];
            }
        }
        if (SCALING) {
            wgmma_order();
        }
        wgmma_commit();
        wgmma_wait<0>();
        settle(scores);
        release(at.slot);
        at.next();
    }

    /* Hides from each row what it does not see. */
    __device__ __forceinline__ void hide(const struct attention_unit &u, int start)
    {
        if (p.softcap > 0.0f) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                scores[i] = soft_cap(p, scores[i]);
            }
        }
        const int first_key = start + (tid & 3) * 2;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int hi = view[r].hi - first_key;
#pragma unroll
            for (int i = 0; i < KEYS / 4; i++) {
                float &s = scores[(i >> 1) * 4 + 2 * r + (i & 1)];
                s = (i >> 1) * 8 + (i & 1) < hi ? s : -INFINITY;
            }
        }
        if (p.window > 0) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int lo = view[r].lo - first_key;
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    float &s = scores[(i >> 1) * 4 + 2 * r + (i & 1)];
                    s = (i >> 1) * 8 + (i & 1) >= lo ? s : -INFINITY;
                }
            }
        }
        if (u.item.mask == ATTENTION_TREE && start + KEYS > u.item.n_past) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unsigned __int128 seen = tree_keys(p, u, view[r], first_key);
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    float &s = scores[(i >> 1) * 4 + 2 * r + (i & 1)];
                    s = (uint32_t)(seen >> ((i >> 1) * 8 + (i & 1)) & 1) ? s : -INFINITY;
                }
            }
        }
    }

    /* scores -> probabilities in place (not yet divided), top, sum, decay. WITH_VALUES: between the
     * exponentials, values += P V of the tile before, whose V is the tile in hand. */
    template <bool WITH_VALUES> __device__ __forceinline__ void softmax()
    {
        const uint64_t b = wgmma_operand(smem_address(slots + at.slot * S::SLOT_BYTES), KEYS * 128);
        constexpr int STEPS = KEYS / 16;
        if (WITH_VALUES) {
            barrier_wait(&full[at.slot], at.parity);
            settle(values);
            settle(probs);
            wgmma_fence();
            wgmma<T, HEAD_DIM>::rs(values, probs[0], b, 1);
        }
        float high[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                high[r][j & 1] =
                    fmaxf(high[r][j & 1], fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            }
        }
        float safe[2], add[2] = {0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float h = fmaxf(high[r][0], high[r][1]);
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 1));
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 2));
            h = fmaxf(h, top[r]);
            safe[r] = h == -INFINITY ? 0.0f : __fmul_rn(h, p.scale_log2);
            /* Not fused: a tile that brings no new maximum must leave 1 exactly. */
            decay[r] = exp2_fast(__fsub_rn(__fmul_rn(top[r], p.scale_log2), safe[r]));
            top[r] = h;
        }
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            if (WITH_VALUES && k > 0) {
                /* Zero, but not before those exponentials: else ptxas issues all at once. */
                const uint32_t tie =
                    (__float_as_uint(scores[8 * k - 1]) ^ __float_as_uint(scores[8 * k - 3])) &
                    p.zero;
                wgmma_order();
                wgmma<T, HEAD_DIM>::rs(values, probs[k], wgmma_advance(b, k * 16 * 128 + tie), 1);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &s = scores[8 * k + i];
                s = exp2_fast(__fmaf_rn(s, p.scale_log2, -safe[i >> 1 & 1]));
                add[i >> 1 & 1] += s;
            }
        }
        sum[0] = __fmaf_rn(sum[0], decay[0], add[0]);
        sum[1] = __fmaf_rn(sum[1], decay[1], add[1]);
        settle(scores);
        if (WITH_VALUES) {
            wgmma_order();
            wgmma_commit();
            wgmma_wait<0>();
            settle(values);
            settle(probs);
            release(at.slot);
            at.next();
        }
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                probs[k][i] = pack<T>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
            }
        }
    }

    /* Sets V rows of keys that no row sees to zero: what they hold is nobody's. */
    __device__ __forceinline__ void clean_values(int slot, int n)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        if (n >= KEYS) {
            return;
        }
        char *v = slots + slot * S::SLOT_BYTES;
#pragma unroll 1
        for (int i = tid + n * CHUNKS; i < KEYS * CHUNKS; i += WARPGROUP) {
            const int r = i / CHUNKS, c = i % CHUNKS;
            *reinterpret_cast<uint4 *>(v + (c >> 3) * (KEYS * 128) + swizzled(r, c & 7)) =
                make_uint4(0, 0, 0, 0);
        }
        fence_async();
        sync();
    }

    /* values += P V of the last tile, of which n keys are real. */
    __device__ __forceinline__ void last_values(int n)
    {
        barrier_wait(&full[at.slot], at.parity);
        clean_values(at.slot, n);
        const uint64_t b = wgmma_operand(smem_address(slots + at.slot * S::SLOT_BYTES), KEYS * 128);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] *= decay[i >> 1 & 1];
        }
        settle(values);
        settle(probs);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            wgmma<T, HEAD_DIM>::rs(values, probs[k], wgmma_advance(b, k * 16 * 128), 1);
        }
        wgmma_commit();
        wgmma_wait<0>();
        settle(values);
        settle(probs);
        release(at.slot);
        at.next();
    }

    /* Keys [lo, end) into values, top, sum. */
    __device__ __forceinline__ void run(const struct attention_unit &u, int lo, int end)
    {
        const int plain = p.softcap > 0.0f ? INT32_MAX : u.all_lo, plain_end = min(end, u.all_hi);
        clear();
        score<false>();
        if (lo < plain || lo + KEYS > plain_end) {
            hide(u, lo);
        }
        softmax<false>();
        int start = lo + KEYS;
#pragma unroll 1
        for (; start < end; start += KEYS) {
            score<true>();
            if (start < plain || start + KEYS > plain_end) {
                hide(u, start);
            }
            softmax<true>();
        }
        if (end == u.hi) {
            release_q();
        }
        last_values(end - (start - KEYS));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            top[r] = __fmul_rn(top[r], p.scale_log2);
        }
    }

    __device__ __forceinline__ void release_q()
    {
        if ((tid & 31) == 0) {
            barrier_arrive(q_empty);
        }
    }

    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        decay[0] = decay[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] = 0.0f;
        }
    }

    /* This warpgroup has no rows: lets the loader go on. */
    __device__ __forceinline__ void skip(const struct attention_unit &u)
    {
#pragma unroll 1
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo), n = 2 * ((end - lo + KEYS - 1) / KEYS);
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                barrier_wait(&full[at.slot], at.parity);
                release(at.slot);
                at.next();
            }
            lo = end;
        }
    }

    /* Joins the runs of a folding item; what came before waits in this thread's scratch. */
    __device__ __forceinline__ void fold(float (&all_top)[2], float (&all_sum)[2], bool last)
    {
        float *keep =
            p.scratch + ((int64_t)(blockIdx.x * 2 + group) * (HEAD_DIM / 2)) * WARPGROUP + tid;
        fold_run(keep, last, values, top, sum, all_top, all_sum);
    }

    /* Row r's values as 16-bit pairs, so exchanged among the four lanes that hold the row that each
     * has whole chunks of 16 bytes: chunk 4 i + lane of the row in words 4 i to 4 i + 3. */
    __device__ __forceinline__ void pack_row(int r, float weight, uint32_t (&to)[HEAD_DIM / 8])
    {
        const bool odd = tid & 1, high = tid & 2;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            uint32_t w[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int k = 4 * (4 * i + j) + 2 * r;
                w[j] = pack<T>(__fmul_rn(values[k], weight), __fmul_rn(values[k + 1], weight));
            }
            /* Two exchanges transpose 4 x 4: among neighbours, then among pairs. */
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[j] : w[j + 1], 1);
                w[j] = odd ? got : w[j];
                w[j + 1] = odd ? w[j + 1] : got;
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[j] : w[j + 2], 2);
                w[j] = high ? got : w[j];
                w[j + 2] = high ? w[j + 2] : got;
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                to[4 * i + j] = w[j];
            }
        }
    }

    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const struct attention_row *slot_rows =
            (const struct attention_row *)(plan_head(p.plan) + 1);
        const int d = p.kv.head_dim_v, quad = tid & 3;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int packed = first + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r;
            const struct attention_row_view &v = view[r];
            if (u.item.split < 0) {
                const float w = final_weight(top[r], sum[r], p.sinks, v.head);
                uint32_t words[HEAD_DIM / 8];
                pack_row(r, w, words);
                T *to = (T *)p.out + (int64_t)v.row * p.out_stride + (int64_t)v.head * d;
#pragma unroll
                for (int i = 0; i < HEAD_DIM / 32; i++) {
                    const int c = (4 * i + quad) * 8;
                    if (packed < u.n_packed && c < d) {
                        *reinterpret_cast<uint4 *>(to + c) = make_uint4(
                            words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
                    }
                }
            } else if (packed < u.n_packed) {
                float *to = slot_at(p, slot_rows[v.row].first_slot + u.item.split, v.head);
                store_slot(to, d, quad, r, values, top[r], sum[r]);
            }
        }
    }

    __device__ __forceinline__ void unit(const struct attention_unit &u)
    {
        if (first >= u.n_packed) {
            skip(u);
            return;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            view[r] = row_view(p, u, first + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r);
        }
        barrier_wait(q_full, q_parity);
        q_parity ^= 1;
        if (u.lo >= u.hi) {
            clear();
            release_q();
        }
        float all_top[2] = {-INFINITY, -INFINITY}, all_sum[2] = {-1.0f, -1.0f};
#pragma unroll 1
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo);
            run(u, lo, end);
            if (u.item.fold) {
                fold(all_top, all_sum, end == u.hi);
            }
            lo = end;
        }
        if (u.item.fold && u.lo < u.hi) {
            top[0] = all_top[0];
            top[1] = all_top[1];
            sum[0] = all_sum[0];
            sum[1] = all_sum[1];
        }
        store(u);
    }
};

#endif // HAVE_SM90A
#endif
