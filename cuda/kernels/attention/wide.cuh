// SPDX-License-Identifier: Apache-2.0
/* Attention on wgmma for passes of any kind, 64 packed rows per warpgroup. A warpgroup issues the
 * scores of a tile, then the products with the previous tile's values, then computes the softmax.
 * Each warpgroup's softmax overlaps the other's products.
 *
 * Thread: device code, one warpgroup at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_WIDE_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_WIDE_CUH

#include "cuda/kernels/attention/sm90.cuh"

#if HAVE_SM90A

template <typename T, int NB> struct wide_computer {
    using S = shape<NB>;
    static constexpr int KEYS = S::KEYS, HEAD_DIM = S::HEAD_DIM;
    const struct attention_params &p;
    char *slots, *q_tile;
    uint64_t *full, *empty;
    const struct attention_maps *maps;
    uint64_t *q_full;
    struct ring at;
    int group;    // 0 or 1
    int first;    // this warpgroup's first packed row in the unit
    int releases; // how often each warp releases a slot: 2 if the other warpgroup does not use it
    int tid;      // index within the warpgroup

    uint32_t q_parity = 0;

    float scores[KEYS / 2];
    float values[HEAD_DIM / 2];
    uint32_t probs[KEYS / 16][4];
    float top[2], sum[2], decay[2]; // for rows g and g + 8; top: the reference, in units of scores
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

    /* Loads Q into shared memory, with zeros where a row or column does not exist. */
    __device__ __forceinline__ void load_q(const struct attention_unit &u)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        sync(); // the previous unit may still be in use
        if (p.q_rows > 0) {
            if (tid == 0) {
                load_queries<NB>(p, maps, u, first, q_tile, q_full);
            }
            barrier_wait(q_full, q_parity);
            q_parity ^= 1;
            return;
        }
#pragma unroll 4
        for (int i = tid; i < GROUP_ROWS * CHUNKS; i += WARPGROUP) {
            const int r = i / CHUNKS, c = i % CHUNKS, packed = first + r;
            uint4 v = {0, 0, 0, 0};
            if (packed < u.n_packed && c * 8 < p.kv.head_dim_k) {
                const int k = u.first_packed + packed;
                const int row = u.item.first_row + k / p.group;
                const int head = u.kv_head * p.group + k % p.group;
                v = *reinterpret_cast<const uint4 *>((const T *)p.q + (int64_t)row * p.q_stride +
                                                     (int64_t)head * p.kv.head_dim_k + c * 8);
            }
            *reinterpret_cast<uint4 *>(q_tile + (c >> 3) * (GROUP_ROWS * 128) +
                                       swizzled(r, c & 7)) = v;
        }
        fence_async();
        sync();
    }

    /* Issues scores = Q K^T. */
    __device__ __forceinline__ void issue_scores(int slot)
    {
        const uint32_t a = smem_address(q_tile), b = smem_address(slots + slot * S::SLOT_BYTES);
        wgmma_settle(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            const uint32_t step = (k & 3) * 32;
            wgmma<T, KEYS>::ss(scores, wgmma_operand(a + (k >> 2) * (GROUP_ROWS * 128) + step, 0),
                               wgmma_operand(b + (k >> 2) * (KEYS * 128) + step, 0), k > 0);
        }
        wgmma_commit();
    }

    /* Issues values += P V. */
    __device__ __forceinline__ void issue_values(int slot)
    {
        const uint32_t b = smem_address(slots + slot * S::SLOT_BYTES);
        wgmma_settle(values);
        wgmma_settle(probs);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            wgmma<T, HEAD_DIM>::rs(values, probs[k], wgmma_operand(b + k * 16 * 128, KEYS * 128),
                                   1);
        }
        wgmma_commit();
    }

    /* Masks the keys that a row does not see. */
    __device__ __forceinline__ void mask(const struct attention_unit &u, int start)
    {
        const int first = start + (tid & 3) * 2;
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {
            const int key = first + (i >> 2) * 8 + (i & 1);
            const struct attention_row_view &v = view[i >> 1 & 1];
            if (key < v.lo || key >= v.hi) {
                scores[i] = -INFINITY;
            }
        }
        if (u.item.mask == ATTENTION_TREE && start + KEYS > u.item.n_past) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const unsigned __int128 seen = tree_keys(p, u, view[r], first);
#pragma unroll
                for (int i = 0; i < KEYS / 4; i++) {
                    if (!(uint32_t)(seen >> ((i >> 1) * 8 + (i & 1)) & 1)) {
                        scores[(i >> 1) * 4 + 2 * r + (i & 1)] = -INFINITY;
                    }
                }
            }
        }
    }

    /* Turns scores into probabilities in place (not yet divided by the sum), and updates top, sum
     * and decay. GENERAL: with a soft cap or a mask. This is a separate instance so that it costs
     * the plain loop no registers. */
    template <bool GENERAL>
    __device__ __forceinline__ void softmax(const struct attention_unit &u, int start)
    {
        if (GENERAL && p.softcap > 0.0f) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; i++) {
                scores[i] = soft_cap(p, scores[i]);
            }
        }
        if (GENERAL) {
            mask(u, start);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float high = -INFINITY;
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
                high = fmaxf(high, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            }
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
            high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
            high = next_reference(top[r], high, p.scale_log2);
            const float safe = high == -INFINITY ? 0.0f : __fmul_rn(high, p.scale_log2);
            /* Not fused: if the reference does not move, the result must be exactly 1. */
            decay[r] = exp2_fast(__fsub_rn(__fmul_rn(top[r], p.scale_log2), safe));
            top[r] = high;
            float add[2] = {0.0f, 0.0f}; // even and odd keys, as in few_fixed.cuh
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &s = scores[4 * j + 2 * r + e];
                    s = exp2_fast(__fmaf_rn(s, p.scale_log2, -safe));
                    add[e] += s;
                }
            }
            sum[r] = __fmaf_rn(sum[r], decay[r], add[0] + add[1]);
        }
    }

    __device__ __forceinline__ void to_probs()
    {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                probs[k][i] = pack<T>(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
            }
        }
    }

    /* Zeroes the rows of V for keys from `end` on, because they contain garbage. */
    __device__ __forceinline__ void clean_values(int slot, int start, int end)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        if (start + KEYS <= end) {
            return;
        }
        char *v = slots + slot * S::SLOT_BYTES;
        for (int i = tid + (end - start) * CHUNKS; i < KEYS * CHUNKS; i += WARPGROUP) {
            const int r = i / CHUNKS, c = i % CHUNKS;
            *reinterpret_cast<uint4 *>(v + (c >> 3) * (KEYS * 128) + swizzled(r, c & 7)) =
                make_uint4(0, 0, 0, 0);
        }
        fence_async();
        sync();
    }

    /* Computes the scores of the tile at `start` while the previous tile's values are summed. */
    template <bool GENERAL>
    __device__ __forceinline__ void step(const struct attention_unit &u, int start)
    {
        const int k_slot = at.slot;
        barrier_wait(&full[k_slot], at.parity);
        issue_scores(k_slot);
        at.next();
        const int v_slot = at.slot;
        barrier_wait(&full[v_slot], at.parity);
        at.next();
        issue_values(v_slot);
        wgmma_wait<1>();
        wgmma_settle(scores);
        release(k_slot);
        softmax<GENERAL>(u, start);
        wgmma_settle(scores);
        wgmma_wait<0>();
        wgmma_settle(values);
        wgmma_settle(probs);
        release(v_slot);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] *= decay[i >> 1 & 1];
        }
        to_probs();
    }

    /* Processes keys [lo, end), into values, top and sum. */
    __device__ __forceinline__ void run(const struct attention_unit &u, int lo, int end)
    {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] = 0.0f;
        }
        barrier_wait(&full[at.slot], at.parity);
        issue_scores(at.slot);
        wgmma_wait<0>();
        wgmma_settle(scores);
        release(at.slot);
        at.next();
        const int plain = p.softcap > 0.0f ? INT32_MAX : u.all_lo, plain_end = min(end, u.all_hi);
        if (lo >= plain && lo + KEYS <= plain_end) {
            softmax<false>(u, lo);
        } else {
            softmax<true>(u, lo);
        }
        to_probs();
        int start = lo + KEYS;
        for (; start < end && start < plain; start += KEYS) {
            step<true>(u, start);
        }
        for (; start + KEYS <= plain_end; start += KEYS) {
            step<false>(u, start);
        }
        for (; start < end; start += KEYS) {
            step<true>(u, start);
        }
        barrier_wait(&full[at.slot], at.parity);
        clean_values(at.slot, lo + (end - lo - 1) / KEYS * KEYS, end);
        issue_values(at.slot);
        wgmma_wait<0>();
        wgmma_settle(values);
        wgmma_settle(probs);
        release(at.slot);
        at.next();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            top[r] = __fmul_rn(top[r], p.scale_log2);
        }
    }

    /* For a unit in which this warpgroup has no rows: releases the loader. */
    __device__ __forceinline__ void skip(const struct attention_unit &u)
    {
        for (int lo = u.lo; lo < u.hi;) {
            const int end = run_end(u, lo), n = 2 * ((end - lo + KEYS - 1) / KEYS);
            for (int i = 0; i < n; i++) {
                barrier_wait(&full[at.slot], at.parity);
                release(at.slot);
                at.next();
            }
            lo = end;
        }
    }

    /* Joins a run of a folding item to the earlier runs, whose results are in this thread's
     * scratch. */
    __device__ __forceinline__ void fold(float (&all_top)[2], float (&all_sum)[2], bool last)
    {
        float *keep =
            p.scratch + ((int64_t)(blockIdx.x * 2 + group) * (HEAD_DIM / 2)) * WARPGROUP + tid;
        fold_run(keep, last, values, top, sum, all_top, all_sum);
    }

    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const struct attention_row *slot_rows =
            (const struct attention_row *)((const char *)p.plan +
                                           sizeof(struct attention_plan_head));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int packed = first + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r;
            if (packed >= u.n_packed) {
                continue;
            }
            const struct attention_row_view &v = view[r];
            const int d = p.kv.head_dim_v, c0 = (tid & 3) * 2;
            if (u.item.split < 0) {
                const float w = final_weight(top[r], sum[r], p.sinks, v.head);
                T *to = (T *)p.out + (int64_t)v.row * p.out_stride + (int64_t)v.head * d;
#pragma unroll
                for (int j = 0; j < HEAD_DIM / 8; j++) {
                    if (j * 8 < d) {
                        *reinterpret_cast<uint32_t *>(to + j * 8 + c0) =
                            pack<T>(__fmul_rn(values[4 * j + 2 * r], w),
                                    __fmul_rn(values[4 * j + 2 * r + 1], w));
                    }
                }
            } else {
                float *to = slot_at(p, slot_rows[v.row].first_slot + u.item.split, v.head);
                store_slot(to, d, tid & 3, r, values, top[r], sum[r]);
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
        load_q(u);
        if (u.lo >= u.hi) {
            top[0] = top[1] = -INFINITY;
            sum[0] = sum[1] = 0.0f;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) {
                values[i] = 0.0f;
            }
        }
        float all_top[2] = {-INFINITY, -INFINITY}, all_sum[2] = {-1.0f, -1.0f};
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
