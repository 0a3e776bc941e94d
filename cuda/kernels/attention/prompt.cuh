// SPDX-License-Identifier: Apache-2.0
/* Attention of prompts: the computing half of prompt.cu, with wgmma on 64 packed rows per
 * warpgroup.
 *
 * For each tile of keys, the warpgroup issues the scores and then the products with the previous
 * tile's values. When the scores are done it masks them and takes the exponentials. One
 * warpgroup's softmax overlaps the other's products; with heads of up to 128 elements they take
 * turns at issuing for this. No wgmma may be in flight across a branch, because ptxas would
 * serialise it.
 *
 * The sums have the same bits as those of wide.cuh.
 *
 * Thread: device code, one warpgroup at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_PROMPT_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_PROMPT_CUH

#include "cuda/kernels/attention/sm90.cuh"

#if HAVE_SM90A

/* If items may have several runs, the values of earlier runs are kept in place of the ring's last
 * slots. In global memory, they would increase the traffic of the L2 cache by half of the bytes of
 * the keys and values. */
enum { FOLD_SLOTS = 2 };

/* An operand, which is the same in all lanes, in uniform registers. Otherwise the compiler computes
 * all operands of a chain of products in ordinary registers, of which it has too few, and moves
 * them one by one. */
__device__ __forceinline__ uint64_t uniform(uint64_t operand)
{
    return (operand & 0xffffffff00000000ull) | __shfl_sync(0xffffffffu, (uint32_t)operand, 0);
}

/* FOLDS: items may have several runs. */
template <typename T, int NB, bool FOLDS> struct prompt_computer {
    using S = shape<NB>;
    static constexpr int KEYS = S::KEYS, HEAD_DIM = S::HEAD_DIM;
    static constexpr bool TURNS = NB <= 2;
    static_assert(!FOLDS || FOLD_SLOTS * S::SLOT_BYTES >= HEAD_DIM * WARPGROUP * (int)sizeof(float),
                  "room for the values of both warpgroups");
    const struct attention_params &p;
    char *slots, *q_tile;
    uint64_t *full, *empty, *q_empty;
    struct ring at;
    int group; // 0 or 1
    int tid;   // index within the warpgroup
    bool takes_turns = false;

    float scores[KEYS / 2];
    float values[HEAD_DIM / 2];
    uint32_t probs[KEYS / 16][4];
    float top[2], sum[2], decay[2]; // for rows g and g + 8; top: the reference, in units of scores
    struct attention_row_view view[2];

    __device__ __forceinline__ void release(int slot)
    {
        if ((tid & 31) == 0) {
            barrier_arrive(&empty[slot]);
        }
    }

    /* Releases the slot of the scores. Without turns, once the sums are known: the number of
     * arrivals is 2 if they are negative, which they never are. Otherwise the compiler would move
     * the exponentials behind the next wait for products, on which they do not depend. */
    __device__ __forceinline__ void release_scores(int slot)
    {
        if ((tid & 31) == 0) {
            barrier_arrive(&empty[slot], !TURNS && sum[0] + sum[1] < 0.0f ? 2 : 1);
        }
    }

    __device__ __forceinline__ void release_q()
    {
        if ((tid & 31) == 0) {
            barrier_arrive(q_empty);
        }
    }

    __device__ __forceinline__ void sync()
    {
        named_barrier(1 + group, WARPGROUP);
    }

    /* Barriers 3 and 4 pass the turn from one group to the other. Group 1 calls this once, so that
     * group 0 goes first. */
    __device__ __forceinline__ void pass_turn_first()
    {
        named_barrier_arrive(3, 2 * WARPGROUP);
    }

    __device__ __forceinline__ void wait_turn()
    {
        if (takes_turns) {
            named_barrier(3 + group, 2 * WARPGROUP);
        }
    }

    __device__ __forceinline__ void pass_turn()
    {
        if (takes_turns) {
            named_barrier_arrive(3 + (group ^ 1), 2 * WARPGROUP);
        }
    }

    /* Issues scores = Q K^T for the current tile, when it is this group's turn. */
    __device__ __forceinline__ void issue_scores(bool in_turn)
    {
        const uint64_t a = uniform(wgmma_operand(smem_address(q_tile), 0));
        const uint64_t b = uniform(wgmma_operand(smem_address(slots + at.slot * S::SLOT_BYTES), 0));
        if (in_turn) {
            wait_turn();
        }
        wgmma_settle(scores);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < HEAD_DIM / 16; k++) {
            wgmma<T, KEYS>::ss(scores,
                               wgmma_advance(a, (k >> 2) * (GROUP_ROWS * 128) + (k & 3) * 32),
                               wgmma_advance(b, (k >> 2) * (KEYS * 128) + (k & 3) * 32), k > 0);
        }
        wgmma_commit();
    }

    /* Issues values += P V for the current tile. */
    __device__ __forceinline__ void issue_values()
    {
        const uint64_t b =
            uniform(wgmma_operand(smem_address(slots + at.slot * S::SLOT_BYTES), KEYS * 128));
        wgmma_settle(values);
        wgmma_settle(probs);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            wgmma<T, HEAD_DIM>::rs(values, probs[k], wgmma_advance(b, k * 16 * 128), 1);
        }
        wgmma_commit();
    }

    /* Applies the soft cap, and masks the keys of the tile at `start` that a row does not see. */
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
        if (is_local(p)) {
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

    /* Turns scores into probabilities in place (not yet divided by the sum), and updates top, sum
     * and decay. */
    __device__ __forceinline__ void softmax()
    {
        float high[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                high[r][j & 1] =
                    fmaxf(high[r][j & 1], fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
            }
        }
        float safe[2], add[4] = {0.0f, 0.0f, 0.0f, 0.0f}; // even and odd keys, as in wide.cuh
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float h = fmaxf(high[r][0], high[r][1]);
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 1));
            h = fmaxf(h, __shfl_xor_sync(0xffffffffu, h, 2));
            h = next_reference(top[r], h, p.scale_log2);
            safe[r] = h == -INFINITY ? 0.0f : __fmul_rn(h, p.scale_log2);
            /* Not fused: if the reference does not move, the result must be exactly 1. */
            decay[r] = exp2_fast(__fsub_rn(__fmul_rn(top[r], p.scale_log2), safe[r]));
            top[r] = h;
        }
#pragma unroll
        for (int n = 0; n < KEYS / 2; n++) {
            const int r = n & 1, i = n >> 1;
            float &s = scores[(i >> 1) * 4 + 2 * r + (i & 1)];
            s = exp2_fast(__fmaf_rn(s, p.scale_log2, -safe[r]));
            add[n & 3] += s;
        }
        sum[0] = __fmaf_rn(sum[0], decay[0], add[0] + add[2]);
        sum[1] = __fmaf_rn(sum[1], decay[1], add[1] + add[3]);
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

    __device__ __forceinline__ void scale_values()
    {
        if (!__any_sync(0xffffffffu, decay[0] != 1.0f || decay[1] != 1.0f)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) {
            values[i] *= decay[i >> 1 & 1];
        }
    }

    /* Computes the scores of a run's first tile. */
    __device__ __forceinline__ void first_step(const struct attention_unit &u, int lo, bool hidden)
    {
        barrier_wait(&full[at.slot], at.parity);
        issue_scores(false);
        wgmma_wait<0>();
        wgmma_settle(scores);
        release(at.slot);
        at.next();
        if (hidden) {
            hide(u, lo);
        }
        softmax();
        to_probs();
    }

    /* Computes the scores of the tile at `start` while the previous tile's values are summed. */
    template <bool HIDE>
    __device__ __forceinline__ void step(const struct attention_unit &u, int start)
    {
        const int k_slot = at.slot;
        barrier_wait(&full[k_slot], at.parity);
        issue_scores(true);
        at.next();
        barrier_wait(&full[at.slot], at.parity);
        issue_values();
        pass_turn();
        wgmma_wait<1>();
        wgmma_settle(scores);
        if (HIDE) {
            hide(u, start);
        }
        softmax();
        wgmma_settle(scores);
        release_scores(k_slot);
        wgmma_wait<0>();
        wgmma_settle(values);
        wgmma_settle(probs);
        release(at.slot);
        at.next();
        to_probs();
        scale_values();
    }

    /* values += P V for the last tile, which has n real keys. The other rows of V contain garbage
     * and are zeroed. */
    __device__ __forceinline__ void last_values(int n)
    {
        constexpr int CHUNKS = HEAD_DIM / 8;
        barrier_wait(&full[at.slot], at.parity);
        if (n < KEYS) {
            char *v = slots + at.slot * S::SLOT_BYTES;
#pragma unroll 1
            for (int i = tid + n * CHUNKS; i < KEYS * CHUNKS; i += WARPGROUP) {
                const int r = i / CHUNKS, c = i % CHUNKS;
                *reinterpret_cast<uint4 *>(v + (c >> 3) * (KEYS * 128) + swizzled(r, c & 7)) =
                    make_uint4(0, 0, 0, 0);
            }
            fence_async();
            sync();
        }
        issue_values();
        wgmma_wait<0>();
        wgmma_settle(values);
        wgmma_settle(probs);
        release(at.slot);
        at.next();
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
        const int plain = p.softcap > 0.0f ? INT32_MAX : u.all_lo, plain_end = min(end, u.all_hi);
        first_step(u, lo, lo < plain || lo + KEYS > plain_end);
        int start = lo + KEYS;
#pragma unroll 1
        for (; start < end; start += KEYS) {
            if (start >= plain && start + KEYS <= plain_end) {
                step<false>(u, start);
            } else {
                step<true>(u, start);
            }
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

    /* For a unit in which this warpgroup has no rows: releases the loaders. */
    __device__ __forceinline__ void skip(const struct attention_unit &u)
    {
#pragma unroll 1
        for (int lo = u.lo; lo < u.hi;) {
            const int end = FOLDS ? run_end(u, lo) : u.hi, n = 2 * ((end - lo + KEYS - 1) / KEYS);
#pragma unroll 1
            for (int i = 0; i < n; i++) {
                barrier_wait(&full[at.slot], at.parity);
                release(at.slot);
                at.next();
            }
            lo = end;
        }
        release_q();
    }

    /* Packs the values of row r into 16-bit pairs and exchanges them among the four lanes that hold
     * the row, so that each lane has whole 16-byte chunks: chunk 4 i + lane of the row in words 4 i
     * to 4 i + 3. */
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
            /* Two exchanges transpose 4 x 4 words: one with the neighbour, and one with the other
             * pair. */
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
            const int packed = group * GROUP_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r;
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
        if (group * GROUP_ROWS >= u.n_packed) {
            skip(u);
            return;
        }
        takes_turns = TURNS && u.n_packed > GROUP_ROWS;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            view[r] = row_view(p, u, group * GROUP_ROWS + (tid >> 5) * 16 + (tid >> 2 & 7) + 8 * r);
        }
        if (u.lo >= u.hi) {
            top[0] = top[1] = -INFINITY;
            sum[0] = sum[1] = 0.0f;
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) {
                values[i] = 0.0f;
            }
            release_q();
        }
        float all_top[2] = {-INFINITY, -INFINITY}, all_sum[2] = {-1.0f, -1.0f};
#pragma unroll 1
        for (int lo = u.lo; lo < u.hi;) {
            const int end = FOLDS ? run_end(u, lo) : u.hi;
            run(u, lo, end);
            if (FOLDS && u.item.fold) {
                float *keep = (float *)(slots + (S::SLOTS - FOLD_SLOTS) * S::SLOT_BYTES);
                fold_run(keep + group * (HEAD_DIM / 2) * WARPGROUP + tid, end == u.hi, values, top,
                         sum, all_top, all_sum);
                top[0] = all_top[0];
                top[1] = all_top[1];
                sum[0] = all_sum[0];
                sum[1] = all_sum[1];
            }
            lo = end;
        }
        store(u);
    }
};

#endif // HAVE_SM90A
#endif
