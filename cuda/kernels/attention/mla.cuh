// SPDX-License-Identifier: Apache-2.0
/* The device half of mla.cu: what the loading and the computing warpgroups of a block do.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_MLA_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_MLA_CUH

#include "cuda/index.h"
#include "cuda/kernels/attention/common.cuh"
#include "cuda/kernels/device/mma_tile.cuh"
#include "cuda/kernels/device/pairs.cuh"
#include "cuda/kernels/device/wgmma.cuh"

enum { MLA_DIM_K = 576, MLA_DIM_V = 512, MLA_ROWS = 64, MLA_KEYS = 64 };
enum { MLA_COMPUTERS = 256, MLA_LOADERS = 128, MLA_STAGES = 2 };
/* Tiles are planes of 64 elements: rows of 128 bytes, swizzled. */
enum { PLANES = MLA_DIM_K / 64, PLANE_BYTES = 64 * 128, TILE_BYTES = PLANES * PLANE_BYTES };
/* Shared memory: the queries, the stages of keys, the probabilities, maxima and sums of each
 * warpgroup's rows, and the barriers. */
enum {
    MLA_K = TILE_BYTES,
    MLA_P = MLA_K + MLA_STAGES * TILE_BYTES,
    MLA_HIGH = MLA_P + PLANE_BYTES,
    MLA_SUM = MLA_HIGH + 2 * MLA_ROWS * 4,
    MLA_BARRIERS = MLA_SUM + 2 * MLA_ROWS * 4,
    MLA_BYTES = MLA_BARRIERS + 2 * MLA_STAGES * 8,
};

/* The lists of keys of sparse attention. The keys of a unit are then those of a list, by their
 * places in it. */
struct mla_lists {
    const int32_t *lists;
    int32_t top_k;
};

/* A tile of packed rows (n_packed 0: there is nothing to do), and where its keys are. */
struct mla_unit {
    struct attention_unit u;
    const int32_t *table, *keys; // block table; the list, or NULL

    __device__ __forceinline__ int n_tiles() const
    {
        return u.n_packed > 0 ? (u.hi - u.lo + MLA_KEYS - 1) / MLA_KEYS : 0;
    }
};

/* The units of a block, in order. All lanes of a warp call next() together. */
template <bool PICKED> struct mla_units {
    const struct attention_params &p;
    const struct mla_lists &lists;
    int n_units, n_sub, items_offset, k;

    __device__ __forceinline__ mla_units(const struct attention_params &params,
                                         const struct mla_lists &of)
        : p(params), lists(of), items_offset(0), k(0)
    {
        if (PICKED) {
            n_sub = (p.n_heads + MLA_ROWS - 1) / MLA_ROWS;
            n_units = p.n_rows * n_sub;
        } else {
            const struct attention_plan_head head = *plan_head(p.plan);
            n_units = units_of(p, head, MLA_ROWS, &n_sub);
            items_offset = head.items_offset;
        }
    }

    __device__ __forceinline__ bool next(struct mla_unit &to)
    {
        if (k * (int)gridDim.x >= n_units) {
            return false;
        }
        // The parts of a row stay neighbours, because they read the same keys.
        const int index = PICKED ? k * (int)gridDim.x + (int)blockIdx.x
                                 : unit_index(k, (int)gridDim.x, (int)blockIdx.x);
        k++;
        to.u.n_packed = 0;
        if (index >= n_units) {
            return true;
        }
        if (PICKED) {
            enter_list(to, index / n_sub, index % n_sub);
        } else {
            to.u = unit_at(p, items_offset, index, n_sub, MLA_ROWS, MLA_KEYS);
            to.keys = nullptr;
            to.table = p.blocks + (int64_t)to.u.item.lane * p.blocks_stride;
        }
        return true;
    }

    __device__ __forceinline__ void enter_list(struct mla_unit &to, int row, int part) const
    {
        const int32_t *list = lists.lists + (int64_t)row * PICK_STRIDE(lists.top_k);
        to.u = {};
        to.u.item.first_row = row;
        to.u.item.n_rows = 1;
        to.u.item.mask = ATTENTION_ALL;
        to.u.item.split = -1;
        to.u.first_packed = part * MLA_ROWS;
        to.u.n_packed = min(MLA_ROWS, p.n_heads - to.u.first_packed);
        to.u.hi = to.u.all_hi = *list;
        to.keys = list + 1;
        to.table = p.blocks + (int64_t)p.rows[row].lane * p.blocks_stride;
    }
};

#if HAVE_SM90A

/* Completes this thread's arrival once its copies so far are there. */
__device__ __forceinline__ void barrier_arrive_after_copies(uint64_t *bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(bar))
                 : "memory");
}

struct mla_ring {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        stage ^= 1;
        parity ^= stage == 0;
    }
};
static_assert(MLA_STAGES == 2, "mla_ring");

/* The warpgroup that gathers keys: eight threads copy 128 bytes of a key, and a thread has the keys
 * tid / 8 + 16 i. It runs ahead across the borders of units. */
template <typename T> struct mla_loader {
    const struct kv_view &kv;
    char *smem;
    uint64_t *full, *empty;
    int tid;
    struct mla_ring at;
    bool is_first = true; // the stage has never been used

    __device__ __forceinline__ void load(const struct mla_unit &unit, int first)
    {
        constexpr int EACH = MLA_KEYS / 16;
        const int chunk = tid & 7;
        const T *from[EACH];
        bool real[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int key = first + (tid >> 3) + 16 * i;
            real[i] = key < unit.u.hi;
            const int slot = real[i] && unit.keys ? unit.keys[key] : key;
            const int block = slot / kv.block_tokens, token = slot - block * kv.block_tokens;
            from[i] = (const T *)kv.base + chunk * 8;
            if (real[i]) {
                from[i] += unit.table[block] * kv.page_stride + (int64_t)token * MLA_DIM_K;
            }
        }
        if (!is_first) {
            barrier_wait(&empty[at.stage], at.parity ^ 1);
        }
        char *to = smem + MLA_K + at.stage * TILE_BYTES + swizzled(tid >> 3, chunk);
#pragma unroll 3
        for (int plane = 0; plane < PLANES; plane++) {
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                copy_async(to + plane * PLANE_BYTES + i * 16 * 128, from[i] + plane * 64,
                           real[i] ? 16 : 0);
            }
        }
        barrier_arrive_after_copies(&full[at.stage]);
        at.advance();
        is_first = is_first && at.stage != 0;
    }

    template <bool PICKED> __device__ __forceinline__ void run(struct mla_units<PICKED> units)
    {
        struct mla_unit unit;
        while (units.next(unit)) {
            const int n = unit.n_tiles();
#pragma unroll 1
            for (int t = 0; t < n; t++) {
                load(unit, unit.u.lo + t * MLA_KEYS);
            }
        }
    }
};

/* A computing warpgroup: it scores half of a tile's keys, and sums half of the value's columns over
 * all keys. A thread has two packed rows, r and r + 8. */
template <typename T> struct mla_computer {
    static constexpr int HALF_KEYS = MLA_KEYS / 2, HALF_V = MLA_DIM_V / 2;
    const struct attention_params &p;
    char *smem;
    uint64_t *full, *empty;
    float *high, *sums; // [2][MLA_ROWS]
    int group, tid, warp, lane, row;
    struct mla_ring at;

    struct attention_row_view view[2];
    float values[HALF_V / 2], reference[2], sum[2];

    __device__ __forceinline__ void sync(int id) const
    {
        named_barrier(id, MLA_COMPUTERS);
    }

    /* Loads the unit's queries; rows that do not exist are zeros. */
    __device__ __forceinline__ void load_q(const struct attention_unit &u) const
    {
        for (int i = group * 128 + tid; i < MLA_ROWS * PLANES * 8; i += MLA_COMPUTERS) {
            const int packed = i / (PLANES * 8), rest = i % (PLANES * 8),
                      k = u.first_packed + packed;
            const bool is_real = packed < u.n_packed;
            const int64_t from = is_real ? (int64_t)(u.item.first_row + k / p.group) * p.q_stride +
                                               (int64_t)(k % p.group) * MLA_DIM_K
                                         : 0;
            copy_async(smem + (rest >> 3) * PLANE_BYTES + swizzled(packed, rest & 7),
                       (const T *)p.q + from + rest * 8, is_real ? 16 : 0);
        }
        copies_wait();
        fence_async();
    }

    /* Starts to score this warpgroup's keys of the next tile. */
    __device__ __forceinline__ void start_scores(float (&s)[HALF_KEYS / 2])
    {
        barrier_wait(&full[at.stage], at.parity);
        fence_async(); // the keys were copied by threads
        const uint32_t q = smem_address(smem);
        const uint32_t k = q + MLA_K + at.stage * TILE_BYTES + group * HALF_KEYS * 128;
        wgmma_fence();
#pragma unroll
        for (int plane = 0; plane < PLANES; plane++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma<T, HALF_KEYS>::ss(s, wgmma_operand(q + plane * PLANE_BYTES + i * 32, 0),
                                        wgmma_operand(k + plane * PLANE_BYTES + i * 32, 0),
                                        plane > 0 || i > 0);
            }
        }
        wgmma_commit();
    }

    /* Removes the keys of the tile at `first` that a row does not see. */
    __device__ __forceinline__ void hide(const struct attention_unit &u, int first,
                                         float (&s)[HALF_KEYS / 2]) const
    {
        if (first >= u.all_lo && first + MLA_KEYS <= u.all_hi) {
            return;
        }
#pragma unroll
        for (int i = 0; i < HALF_KEYS / 2; i++) {
            const int key = first + group * HALF_KEYS + (i >> 2) * 8 + (lane & 3) * 2 + (i & 1);
            s[i] = row_sees(p, u, view[i >> 1 & 1], key) ? s[i] : -INFINITY;
        }
    }

    /* Moves the references of this thread's rows, for which both warpgroups exchange maxima. */
    __device__ __forceinline__ void refer(const float (&s)[HALF_KEYS / 2])
    {
        float factor[2];
        bool moved = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < HALF_KEYS / 8; j++) {
                top = fmaxf(top, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            if ((lane & 3) == 0) {
                high[group * MLA_ROWS + row + 8 * r] = top;
            }
        }
        sync(1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float top = fmaxf(high[row + 8 * r], high[MLA_ROWS + row + 8 * r]);
            const float next = next_reference(reference[r], top, p.scale_log2);
            factor[r] =
                next == reference[r] ? 1.0f : exp2_fast((reference[r] - next) * p.scale_log2);
            moved = moved || next != reference[r];
            reference[r] = next;
            sum[r] *= factor[r];
        }
        if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
            for (int i = 0; i < HALF_V / 2; i++) {
                values[i] *= factor[i >> 1 & 1];
            }
        }
    }

    /* Stores this warpgroup's probabilities. */
    __device__ __forceinline__ void put_probs(const float (&s)[HALF_KEYS / 2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float safe = reference[r] == -INFINITY ? 0.0f : reference[r];
            const float offset = -safe * p.scale_log2;
#pragma unroll
            for (int j = 0; j < HALF_KEYS / 8; j++) {
                const float a = exp2_fast(fmaf(s[4 * j + 2 * r], p.scale_log2, offset));
                const float b = exp2_fast(fmaf(s[4 * j + 2 * r + 1], p.scale_log2, offset));
                sum[r] += a + b;
                *(uint32_t *)(smem + MLA_P + swizzled(row + 8 * r, group * (HALF_KEYS / 8) + j) +
                              (lane & 3) * 4) = pack_pair<T>(a, b);
            }
        }
    }

    /* Turns the scores of the tile at `first` into probabilities, which both warpgroups read. */
    __device__ __forceinline__ void weigh(const struct attention_unit &u, int first,
                                          float (&s)[HALF_KEYS / 2])
    {
        hide(u, first, s);
        refer(s);
        put_probs(s);
        sync(2);
    }

    /* Starts to add this warpgroup's columns of the tile's values. */
    __device__ __forceinline__ void start_values(uint32_t (&probs)[MLA_KEYS / 16][4])
    {
        const char *from = smem + MLA_P;
#pragma unroll
        for (int i = 0; i < MLA_KEYS / 16; i++) {
            ldmatrix_x4(probs[i], from + swizzled(warp * 16 + (lane & 15), i * 2 + (lane >> 4)));
        }
        const uint32_t v = smem_address(smem) + MLA_K + at.stage * TILE_BYTES +
                           group * (HALF_V / 64) * PLANE_BYTES;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < MLA_KEYS / 16; i++) {
            wgmma<T, HALF_V>::rs(values, probs[i], wgmma_operand(v + i * 16 * 128, PLANE_BYTES), 1);
        }
        wgmma_commit();
    }

    __device__ __forceinline__ void release(int stage) const
    {
        if (lane == 0) {
            barrier_arrive(&empty[stage]);
        }
    }

    __device__ __forceinline__ void unit(const struct mla_unit &of)
    {
        const struct attention_unit &u = of.u;
        const int n = of.n_tiles();
        float s[HALF_KEYS / 2];
        uint32_t probs[MLA_KEYS / 16][4];
#pragma unroll
        for (int i = 0; i < HALF_V / 2; i++) {
            values[i] = 0.0f;
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            view[r] = row_view(p, u, min(row + 8 * r, u.n_packed - 1));
            reference[r] = -INFINITY;
            sum[r] = 0.0f;
        }
        sync(2); // all have multiplied the previous unit's queries
        load_q(u);
        sync(1);
        if (n > 0) {
            start_scores(s);
            wgmma_wait<0>();
            wgmma_settle(s);
        }
#pragma unroll 1
        for (int t = 0; t < n - 1; t++) {
            weigh(u, u.lo + t * MLA_KEYS, s);
            start_values(probs);
            at.advance();
            start_scores(s);
            wgmma_wait<1>(); // the values
            wgmma_settle(values);
            release(at.stage ^ 1);
            wgmma_wait<0>();
            wgmma_settle(s);
        }
        if (n > 0) {
            weigh(u, u.lo + (n - 1) * MLA_KEYS, s);
            start_values(probs);
            wgmma_wait<0>();
            wgmma_settle(values);
            release(at.stage);
            at.advance();
        }
        store(u);
    }

    /* Writes the output, or the rows' slots. */
    __device__ __forceinline__ void store(const struct attention_unit &u)
    {
        const struct attention_row *rows =
            (const struct attention_row *)((const char *)p.plan +
                                           sizeof(struct attention_plan_head));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
            if ((lane & 3) == 0) {
                sums[group * MLA_ROWS + row + 8 * r] = sum[r];
            }
        }
        sync(1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (row + 8 * r >= u.n_packed) {
                continue;
            }
            const struct attention_row_view v = view[r];
            const float all = sums[row + 8 * r] + sums[MLA_ROWS + row + 8 * r];
            const float top = reference[r] * p.scale_log2;
            const int column = group * HALF_V + (lane & 3) * 2;
            if (u.item.split < 0) {
                const float w = final_weight(top, all, p.sinks, v.head);
                T *to = (T *)p.out + (int64_t)v.row * p.out_stride + (int64_t)v.head * MLA_DIM_V +
                        column;
#pragma unroll
                for (int j = 0; j < HALF_V / 8; j++) {
                    *(uint32_t *)(to + j * 8) =
                        pack_pair<T>(values[4 * j + 2 * r] * w, values[4 * j + 2 * r + 1] * w);
                }
                continue;
            }
            float *slot = slot_at(p, rows[v.row].first_slot + u.item.split, v.head);
#pragma unroll
            for (int j = 0; j < HALF_V / 8; j++) {
                *(float2 *)(slot + column + j * 8) =
                    make_float2(values[4 * j + 2 * r], values[4 * j + 2 * r + 1]);
            }
            if (group == 0 && (lane & 3) == 0) {
                slot[MLA_DIM_V] = top;
                slot[MLA_DIM_V + 1] = all;
            }
        }
    }

    template <bool PICKED> __device__ __forceinline__ void run(struct mla_units<PICKED> units)
    {
        struct mla_unit of;
        while (units.next(of)) {
            if (of.u.n_packed > 0) {
                unit(of);
            }
        }
    }
};

#endif // HAVE_SM90A
#endif
