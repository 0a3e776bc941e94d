// SPDX-License-Identifier: Apache-2.0
/* Shared by the attention kernels: their parameters, the unit of work, the visibility rule, and the
 * arithmetic that joins partial results. It is defined once, so that a row's bits do not depend on
 * which kernel joined them.
 * Thread: device code. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_COMMON_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_COMMON_CUH

#include "cuda/attention.h"
#include "cuda/attention_plan.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/types.cuh"

struct attention_params {
    const void *q;
    void *out;
    int32_t q_stride, out_stride;
    struct kv_view kv;
    const void *plan;
    const struct pass_row *rows;
    const uint64_t *tree_mask;
    const int32_t *blocks;
    int32_t blocks_stride;
    int32_t n_rows, n_heads, group; // group: query heads per KV head
    float softcap, cap_scale;       // cap_scale: converts a score to an exponent for soft_cap
    float scale_log2; // converts a score to an exponent of 2; applied after the soft cap
    int32_t window, chunk;
    const float *sinks;
    float *slots;                         // see attention_plan.h
    float *scratch;                       // for each block, where fixed splits are accumulated
    int32_t page_rows, head_rows, v_rows; // for sm_90: strides, in rows of head_dim elements
    // For sm_90: number of rows that make GROUP_ROWS packed rows; 0: not a whole number.
    int32_t q_rows;
    int32_t first_lane, end_lane; // this launch skips items of lanes outside this range
    bool is_expanded;             // the preceding kernel writes the items' tables and older keys
    bool may_be_thin;             // a row's bits may depend on the other rows of the pass
};

__device__ __forceinline__ float *slot_at(const struct attention_params &p, int slot, int head)
{
    return p.slots + ((int64_t)slot * p.n_heads + head) * (p.kv.head_dim_v + 4);
}

/* is_local: true if rows do not see all older keys. first_seen: the first position that a row at
 * `pos` sees; it never decreases as `pos` increases. */
__device__ __forceinline__ bool is_local(const struct attention_params &p)
{
    return p.window > 0 || p.chunk > 0;
}

__device__ __forceinline__ int first_seen(int window, int chunk, int pos)
{
    const int low = window > 0 ? pos - window + 1 : 0;
    return chunk > 0 ? max(low, pos / chunk * chunk) : low;
}

/* The end of what a row at `pos` sees through a window in both directions. */
__device__ __forceinline__ int end_seen(int window, int pos)
{
    return window > 0 && pos < INT32_MAX - window ? pos + window : INT32_MAX;
}

/* One item for one KV head, limited to ATTENTION_TILE_ROWS packed rows. Packed row p is pass row
 * first_row + p / group and head kv_head * group + p % group. */
struct attention_unit {
    struct attention_item item;
    int32_t kv_head, first_packed, n_packed; // n_packed <= 0: there is nothing to do
    // All keys that a row sees are in [lo, hi); lo is aligned to a tile.
    int32_t lo, hi;
    int32_t first;          // in [lo, hi]: no row sees an earlier key
    int32_t all_lo, all_hi; // every row sees the keys in [all_lo, all_hi)
};

__device__ __forceinline__ const struct attention_plan_head *plan_head(const void *plan)
{
    return (const struct attention_plan_head *)plan;
}

__device__ __forceinline__ int units_of(const struct attention_params &p,
                                        const struct attention_plan_head &head, int tile_rows,
                                        int *n_sub)
{
    *n_sub = (head.tile_rows * p.group + tile_rows - 1) / tile_rows;
    return head.n_items * p.kv.n_kv_heads * *n_sub;
}

/* Called by all lanes of a warp together; they all get the same unit. */
__device__ __forceinline__ struct attention_unit unit_at(const struct attention_params &p,
                                                         int items_offset, int index, int n_sub,
                                                         int tile_rows, int tile_keys)
{
    struct attention_unit u;
    const int per_item = p.kv.n_kv_heads * n_sub, i = index / per_item, rest = index % per_item;
    u.item = *((const struct attention_item *)((const char *)p.plan + items_offset) + i);
    u.kv_head = rest / n_sub;
    u.first_packed = rest % n_sub * tile_rows;
    u.n_packed = u.item.lane < p.first_lane || u.item.lane >= p.end_lane
                     ? 0
                     : min(tile_rows, u.item.n_rows * p.group - u.first_packed);
    u.lo = u.all_lo = u.first = u.item.kv_begin;
    u.hi = u.item.kv_end;
    u.all_hi = u.item.mask == ATTENTION_ALL || u.item.mask == ATTENTION_BOTH
                   ? u.hi
                   : min(u.hi, u.item.n_past + (u.item.mask == ATTENTION_CAUSAL
                                                    ? u.item.first_row - u.item.seq_row + 1
                                                    : 0));
    if (is_local(p)) {
        int low = INT32_MAX, high = 0;
        for (int r = threadIdx.x & 31; r < u.item.n_rows; r += 32) {
            const int pos = p.rows[u.item.first_row + r].pos;
            low = min(low, pos);
            high = max(high, pos);
        }
        low = __reduce_min_sync(0xffffffffu, low);
        high = __reduce_max_sync(0xffffffffu, high);
        if (u.item.mask == ATTENTION_BOTH) {
            u.all_hi = min(u.hi, end_seen(p.window, low));
            u.hi = max(u.lo, min(u.hi, end_seen(p.window, high)));
        }
        low = first_seen(p.window, p.chunk, low);
        high = first_seen(p.window, p.chunk, high);
        if (low > u.lo) {
            u.lo = min(u.lo + (low - u.lo) / tile_keys * tile_keys, u.hi);
            u.first = min(low, u.hi);
        }
        u.all_lo = max(u.all_lo, high);
    }
    return u;
}

/* The index of the k-th unit of one of n workers. Units are dealt out from longest to shortest in
 * alternating direction, so that workers get similar amounts of work. */
__device__ __forceinline__ int unit_index(int k, int n, int worker)
{
    return k * n + (k & 1 ? n - 1 - worker : worker);
}

/* The units of one of n workers, in its order. In a plan with prompts beside decoding rows, every
 * second block goes backwards: then some multiprocessors multiply while others read. */
struct unit_rounds {
    int n_units, n, worker, n_rounds;
    bool backwards;

    __device__ __forceinline__ unit_rounds(const struct attention_plan_head &head, int n_units,
                                           int n, int worker)
        : n_units(n_units), n(n), worker(worker), n_rounds((n_units + n - 1) / n),
          backwards(head.both_ways && (blockIdx.x & 1))
    {
    }

    /* The index of the k-th; n_units or more: there is none. */
    __device__ __forceinline__ int index(int k) const
    {
        return unit_index(backwards ? n_rounds - 1 - k : k, n, worker);
    }
};

/* The end of the run of keys that starts at lo; the keys of a run are summed separately. */
__device__ __forceinline__ int run_end(const struct attention_unit &u, int lo)
{
    return u.item.fold ? min(u.hi, (lo / ATTENTION_FIXED_SPLIT + 1) * ATTENTION_FIXED_SPLIT) : u.hi;
}

/* The keys that one query row sees. */
struct attention_row_view {
    int32_t row, head; // pass row, query head
    int32_t first_pos; // the first position that it sees
    // Range of slots that it sees; of a tree's new slots it sees only those in its mask.
    int32_t lo, hi;
};

__device__ __forceinline__ struct attention_row_view
row_view(const struct attention_params &p, const struct attention_unit &u, int packed)
{
    struct attention_row_view v;
    const int k = u.first_packed + packed, i = k / p.group;
    v.row = u.item.first_row + min(i, u.item.n_rows - 1);
    v.head = u.kv_head * p.group + k % p.group;
    v.hi = u.item.mask == ATTENTION_CAUSAL ? min(u.hi, u.item.n_past + v.row - u.item.seq_row + 1)
                                           : u.hi;
    if (u.item.mask == ATTENTION_BOTH && p.window > 0) {
        v.hi = min(u.hi, end_seen(p.window, p.rows[v.row].pos));
    }
    v.first_pos = is_local(p) ? first_seen(p.window, p.chunk, p.rows[v.row].pos) : 0;
    /* The slots of a tree's new rows differ from their positions; row_sees handles them. */
    v.lo = u.item.mask == ATTENTION_TREE ? min(v.first_pos, u.item.n_past) : v.first_pos;
    return v;
}

/* True if the row sees the key at slot `key`. In a tree a mask selects among the new slots, and a
 * sliding window applies to a node's position, which follows from its depth. */
__device__ __forceinline__ bool row_sees(const struct attention_params &p,
                                         const struct attention_unit &u,
                                         const struct attention_row_view &v, int key)
{
    if (key < v.lo || key >= v.hi) {
        return false;
    }
    if (u.item.mask != ATTENTION_TREE || key < u.item.n_past) {
        return true;
    }
    const uint64_t *words = p.tree_mask + (int64_t)v.row * TREE_MASK_WORDS;
    const uint64_t w[2] = {words[0], words[1]};
    const int node = key - u.item.n_past;
    const uint64_t word = node < 64 ? w[0] : w[1];
    return node < MAX_TREE_NODES && (word >> (node & 63) & 1) != 0 &&
           (!is_local(p) || p.rows[u.item.seq_row + node].pos >= v.first_pos);
}

/* The same for the 128 slots of a tree from `first` on: bit i is slot first + i. `first` may be up
 * to 128 slots before the new rows. */
__device__ __forceinline__ unsigned __int128 tree_keys(const struct attention_params &p,
                                                       const struct attention_unit &u,
                                                       const struct attention_row_view &v,
                                                       int first)
{
    const uint64_t *words = p.tree_mask + (int64_t)v.row * TREE_MASK_WORDS;
    unsigned __int128 seen = (unsigned __int128)words[1] << 64 | words[0];
    if (is_local(p)) {
#pragma unroll 1
        for (int n = 0; n < MAX_TREE_NODES && seen >> n != 0; n++) {
            if ((seen >> n & 1) != 0 && p.rows[u.item.seq_row + n].pos < v.first_pos) {
                seen &= ~((unsigned __int128)1 << n);
            }
        }
    }
    const int node = first - u.item.n_past;
    if (node >= 128) {
        return 0;
    }
    if (node >= 0) {
        return seen >> node;
    }
    if (node > -128) { // all slots before the new rows are visible
        return seen << -node | (((unsigned __int128)1 << -node) - 1);
    }
    return ~(unsigned __int128)0;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Exponentials are taken relative to a reference, one per row, in units of scores. The reference
 * moves to the row's maximum only if a score exceeds it by more than KEEP powers of two: before
 * that, sums cannot overflow, and while no reference moves, nothing has to be rescaled. high: the
 * largest score of the next tile. */
__device__ __forceinline__ float next_reference(float reference, float high, float scale_log2)
{
    constexpr float KEEP = 8.0f;
    high = fmaxf(high, reference);
    // The comparison is false if both are -inf.
    return (high - reference) * scale_log2 <= KEEP ? reference : high;
}

/* cap * tanh(score * scale / cap) */
__device__ __forceinline__ float soft_cap(const struct attention_params &p, float score)
{
    const float e = exp2_fast(score * p.cap_scale);
    return p.softcap * (1.0f - __fdividef(2.0f, e + 1.0f));
}

/* What join multiplies the old and the new values by when it adds (m, l) to (top, sum). */
struct join_weights {
    float old_weight, new_weight;
};

__device__ __forceinline__ struct join_weights join(float &top, float &sum, float m, float l)
{
    const float t = fmaxf(top, m), safe = t == -INFINITY ? 0.0f : t;
    const struct join_weights w = {exp2_fast(__fsub_rn(top, safe)), exp2_fast(__fsub_rn(m, safe))};
    sum = __fmaf_rn(sum, w.old_weight, __fmul_rn(l, w.new_weight));
    top = t;
    return w;
}

__device__ __forceinline__ float join_value(const struct join_weights &w, float old_value,
                                            float new_value)
{
    return __fmaf_rn(old_value, w.old_weight, __fmul_rn(new_value, w.new_weight));
}

/* The factor that normalises the joined values at the end. */
__device__ __forceinline__ float final_weight(float top, float sum, const float *sinks, int head)
{
    float weight = 1.0f;
    if (sinks != nullptr) {
        const float sink = __fmul_rn(sinks[head], 1.4426950408889634f);
        weight = join(top, sum, sink, 1.0f).old_weight;
    }
    return sum > 0.0f ? __fdiv_rn(weight, sum) : 0.0f;
}

/* Launchers of the variants; attention.cu chooses one. */
cudaError_t attention_sm90(cudaStream_t stream, const struct attention_launch *a,
                           const struct attention_params *p, int n_sms);
cudaError_t attention_mma(cudaStream_t stream, const struct attention_launch *a,
                          const struct attention_params *p, int n_sms);
cudaError_t attention_mla(cudaStream_t stream, const struct attention_launch *a,
                          const struct attention_params *p, int n_sms);
cudaError_t attention_codes(cudaStream_t stream, const struct attention_launch *a,
                            const struct attention_params *p, int n_sms);
struct kv_view attention_expanded(const struct kv_view *kv, void *memory, int32_t n_pages);
cudaError_t attention_expand(cudaStream_t stream, const struct attention_launch *a,
                             const struct kv_view *to);
cudaError_t attention_plain(cudaStream_t stream, const struct attention_launch *a);
cudaError_t attention_picked(cudaStream_t stream, const struct attention_launch *a);
bool attention_codes_takes(const struct attention_launch *a);
bool attention_sm90_takes(const struct attention_launch *a);
bool attention_mma_takes(const struct attention_launch *a);
bool attention_mla_takes(const struct attention_launch *a);
bool attention_mla_picked_takes(const struct attention_launch *a);

#endif
