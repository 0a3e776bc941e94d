// SPDX-License-Identifier: Apache-2.0
/* Decode rows, each of which is a separate sequence: rope, the store of the new key and value, and
 * attention in one launch, for Hopper. The general path needs three launches (rope, attention,
 * join), each of which takes longer than reading the keys of a few rows.
 *
 * A unit is a row and a KV head (or a part of the KV head's group of query heads). The warps that
 * share its keys take chunks of 16 keys in turn, each warp with its own maximum and sums; at the
 * end the results of the warps are joined in shared memory. If there are few units, a cluster of
 * blocks processes each of them, and every block joins its part of the head's elements; if there
 * are more, a block does. If there are many (33 to 256 sequences, and more units than blocks fit),
 * the launch just fills the device, and each block takes every gridDim-th unit: its warps fetch the
 * next unit's keys while they finish the current one, so that memory is always busy.
 *
 * The copy engine brings chunks into the ring of each warp. Older keys and values do not depend on
 * the preceding kernel (the product that makes qkv), so the first chunks, the block tables and the
 * rope angles are fetched before the wait for it. If that product was left as split-K partial sums,
 * they are added up here.
 *
 * Scores are K Q^T and outputs V^T P^T (mma.sync). The 16 rows of a product are keys or, for
 * outputs, elements of a value; its 8 columns are heads. K's operand is loaded as stored, 16 bytes
 * per lane. Which elements a lane gets (few_dim) only permutes the dimension that is summed. The
 * permutation is chosen such that loads have no bank conflicts, and an element is in the same lane
 * as the element with which it is rotated. The new key is an extra row of Q.
 *
 * Bound by reading the keys and values if contexts are long, otherwise by launch and memory
 * latency. */
#include "cuda/kernels/attention/few.cuh"

#include <algorithm>

#if HAVE_SM90A

/* Processes and joins the only unit of a block that belongs to a cluster. */
template <typename F> __device__ __forceinline__ void join_cluster(F &f, float *room, uint64_t *bar)
{
    const int n = min(f.n_workers, f.n_chunks);
    f.rotate();
    f.add_chunks();
    __syncwarp();
    cluster_wait();
    f.send(room, bar, n);
    barrier_wait(bar, 0);
    f.join_all(room, n, f.place());
}

/* Processes units that a block handles alone. The beginning of the next unit is fetched while the
 * current one is joined. */
template <bool SUMS, typename F>
__device__ __forceinline__ void join_units(F &f, float *room, char *rows)
{
    const int n_units = F::S::MANY ? f.n_units : 1;
#pragma unroll 1
    for (int k = 0; k < n_units; k++) {
        const int n = min(f.n_workers, f.n_chunks); // 0 for padding
        const auto out = f.place();
        if (n > 0) {
            f.rotate();
            f.add_chunks();
        }
        if (k + 1 < n_units) {
            f.enter_unit(k + 1);
            if (SUMS) {
                f.load_share();
            } else {
                f.load_rows();
            }
        }
        if (SUMS || k > 0) {
            // Wait until the previous unit has been joined and this unit's rows have been read.
            __syncthreads();
        }
        f.send(room, nullptr, n);
        if (SUMS) {
            f.put_share(rows);
        }
        __syncthreads();
        if (SUMS) {
            f.get_rows(rows);
        }
        if (n > 0) {
            f.join_all(room, n, out);
        }
    }
}

#endif // HAVE_SM90A

template <typename T, int DIM, bool NORM, few_way WAY, bool BOUNDED, few_turn TURN>
__global__ void __launch_bounds__(few_shape<DIM, WAY>::WARPS * 32, few_shape<DIM, WAY>::BLOCKS)
    attention_few_kernel(const __grid_constant__ struct few_params p,
                         const __grid_constant__ CUtensorMap map,
                         const __grid_constant__ struct few_bounds bounds)
{
#if HAVE_SM90A
    using S = few_shape<DIM, WAY>;
    constexpr bool ALONE = WAY != BY_CLUSTER, SUMS = S::SUMS;
    extern __shared__ __align__(1024) char smem[]; // aligned as the swizzle requires
    const int warp = threadIdx.x >> 5, n_blocks = ALONE ? 1 : 1 << p.log_cluster;
    uint64_t *bar = (uint64_t *)(smem + S::WARPS * S::SLOTS * S::SLOT);
    float *room = (float *)((char *)bar + BARRIER_BYTES);
    char *rows = (char *)room + S::room_bytes(p);
    few<T, DIM, NORM, WAY, BOUNDED, TURN> f = {p, &map, bounds, bar + 2 + warp * S::SLOTS,
                                               smem + warp * S::SLOTS * S::SLOT};
    f.rank = ALONE ? 0 : (int)cluster_rank();
    f.warp = warp;
    f.lane = threadIdx.x & 31;
    f.worker = warp * n_blocks + f.rank;
    f.n_workers = n_blocks * S::WARPS;
    f.first = (int)blockIdx.x / n_blocks;
    f.step = (int)gridDim.x;
    f.n_units = ALONE ? (p.n_units - 1 - f.first) / f.step + 1 : 1;
    f.begin();
    f.enter_unit(0);
    if (!ALONE && !f.begin_cluster(bar)) {
        return;
    }
    if (S::MANY) { // gemm/wide.cu may start early; other kernels must not
        pdl_trigger();
    }
    pdl_wait();
    pdl_trigger();
    if (SUMS) {
        if (S::MANY) {
            f.load_share();
            f.put_share(rows);
        } else {
            f.share_rows(rows);
        }
        __syncthreads();
        f.get_rows(rows);
    } else {
        f.load_rows();
    }
    if constexpr (ALONE) {
        join_units<SUMS && S::MANY>(f, room, rows);
    } else {
        join_cluster(f, room, bar);
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

enum { SM_BYTES = 228 * 1024 }; // 1,024 bytes are reserved per block

/* With at most 32 rows, gemm/small.cu follows. None of its blocks fits on a multiprocessor beside a
 * block of this kernel or another of its own: otherwise some multiprocessors would get two and
 * others none. */
static bool is_many(int n_rows)
{
    return n_rows > 32;
}

/* True if n_each units per row keep the device busy. Few rows always do, because clusters share
 * units. */
static bool fills(int n_rows, int n_each, int n_sms)
{
    return !is_many(n_rows) || 2 * n_rows * n_each > n_sms;
}

/* log2 of the number of parts into which a group's heads are divided, at most seven heads each,
 * because the eighth column is for the new key. -1: the group is not supported. */
static int log_parts_of(int group)
{
    for (int n = 0; n <= 2; n++) {
        if (group % (1 << n) == 0 && group >> n < 8) {
            return n;
        }
    }
    return -1;
}

static bool plain_takes(const struct kv_view *kv, int d)
{
    return kv->v_token_stride == d && kv->v_offset % d == 0 && kv->head_stride % d == 0 &&
           kv->page_stride % d == 0;
}

/* Codes are processed only by clusters, and only without partial sums. */
static bool coded_takes(const struct rope_store_args *a, const struct kv_view *kv,
                        const struct attention_limits *limits)
{
    const int n_units =
        a->n_rows * (a->n_kv_heads << std::max(0, log_parts_of(a->n_heads / a->n_kv_heads)));
    return !limits->deterministic && kv->codes.tokens == CHUNK &&
           (kv->codes.word_bytes == 0 || kv->codes.word_bytes == 4) &&
           a->n_rows <= ATTENTION_COMPLETE_ROWS &&
           few_log_cluster(n_units, a->head_dim, limits->n_sms) > 0;
}

/* Only the kernel of this file rotates neighbouring elements together. */
static bool interleaved_takes(const struct rope_store_args *a, const struct kv_view *kv,
                              const struct attention_limits *limits)
{
    return !limits->deterministic && kv->codes.format == KV_PLAIN && a->qk_norm == QK_NORM_NONE;
}

/* Heads of 256 are processed only without partial sums. They have two kinds of rope, and their
 * values may have a norm. */
static bool large_takes(const struct rope_store_args *a, const struct rope_view *rope,
                        const struct kv_view *kv, const struct attention_limits *limits)
{
    const bool first =
        2 * rope->n_pairs == FIRST_ELEMENTS && a->qk_norm == QK_NORM_HEAD && a->growth.beta == 0.0f;
    return !limits->deterministic && kv->codes.format == KV_PLAIN && !rope->interleaved &&
           a->n_rows <= ATTENTION_COMPLETE_ROWS && (2 * rope->n_pairs == a->head_dim || first);
}

static bool rope_fits(const struct rope_store_args *a, const struct rope_view *rope,
                      const struct kv_view *kv, const struct attention_limits *limits)
{
    if (a->head_dim == 256) {
        return large_takes(a, rope, kv, limits);
    }
    return (a->head_dim == 64 || a->head_dim == 128) && 2 * rope->n_pairs == a->head_dim &&
           !a->v_norm && (!rope->interleaved || interleaved_takes(a, kv, limits));
}

/* What does not depend on the number of rows. */
static bool layer_fits(const struct rope_store_args *a, const struct rope_view *rope,
                       int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv,
                       const struct attention_limits *limits)
{
    const int d = a->head_dim, bt = kv->block_tokens;
    return limits->sm == 90 && a->qkv.dtype == kv->dtype &&
           (kv->dtype == DT_BF16 || kv->dtype == DT_F16) && kv->head_dim_k == d &&
           kv->head_dim_v == d && (bt == 16 || bt == 32 || bt == 64) && kv->v_offset > 0 &&
           a->qkv.stride % 8 == 0 && ((uintptr_t)kv->base | (uintptr_t)a->qkv.mem.p) % 16 == 0 &&
           (kv->codes.format != KV_PLAIN || plain_takes(kv, d)) &&
           a->n_heads % a->n_kv_heads == 0 && rope_fits(a, rope, kv, limits) &&
           (a->qk_norm == QK_NORM_NONE ||
            (a->qk_norm == QK_NORM_HEAD && a->qk_norm_kind != NORM_LAYER && !a->norm_after_rope &&
             q_norm_n == d && k_norm_n == d));
}

extern "C" bool k_attention_few_takes(const struct rope_store_args *a, const struct rope_view *rope,
                                      int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv,
                                      const struct attention_limits *limits)
{
    const int log_parts = log_parts_of(a->n_heads / a->n_kv_heads);
    return layer_fits(a, rope, q_norm_n, k_norm_n, kv, limits) && log_parts >= 0 &&
           (kv->codes.format == KV_PLAIN || coded_takes(a, kv, limits)) &&
           fills(a->n_rows, a->n_kv_heads << log_parts, limits->n_sms);
}

extern "C" bool k_attention_several_takes(const struct rope_store_args *a,
                                          const struct rope_view *rope, int32_t q_norm_n,
                                          int32_t k_norm_n, const struct kv_view *kv,
                                          const struct attention_limits *limits,
                                          const struct few_pass *few)
{
    return layer_fits(a, rope, q_norm_n, k_norm_n, kv, limits) && !limits->deterministic &&
           kv->codes.format == KV_PLAIN && attention_several_takes(a, few, limits->n_sms);
}

/* True if each unit is processed by one block, which then joins whole heads. */
static bool is_alone(const struct few_params &p, int head_dim, int n_sms)
{
    return p.sums.n > 0 || is_many(p.n_rows) || few_log_cluster(p.n_units, head_dim, n_sms) == 0;
}

extern "C" bool k_attention_few_makes_codes(const struct rope_store_args *r,
                                            const struct sum_parts *sums,
                                            const struct attention_limits *limits)
{
    struct few_params p = {};
    p.sums = *sums;
    p.n_rows = r->n_rows;
    p.n_units = r->n_rows * (r->n_kv_heads << log_parts_of(r->n_heads / r->n_kv_heads));
    return r->head_dim == ROUND_GROUP && is_alone(p, r->head_dim, limits->n_sms);
}

template <typename T, int DIM, bool NORM, few_way WAY, bool BOUNDED, few_turn TURN>
static cudaError_t launch_few(cudaStream_t stream, const struct few_params &p,
                              const struct few_bounds &bounds, int n_sms)
{
    using S = few_shape<DIM, WAY>;
    const auto kernel = attention_few_kernel<T, DIM, NORM, WAY, BOUNDED, TURN>;
    const int smem = S::bytes(p), cluster = 1 << p.log_cluster;
    CUtensorMap map;
    cudaError_t e = // the attribute is per device, and each rank has one device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    if (e == cudaSuccess) {
        e = few_map(&map, p);
    }
    if (e != cudaSuccess) {
        return e;
    }
    int n_blocks = p.n_units * cluster;
    if (S::MANY) {
        const int fit = std::max(1, std::min((int)S::BLOCKS, SM_BYTES / (smem + 1024)));
        const int least = (p.n_units + MAX_UNITS - 1) / MAX_UNITS;
        n_blocks = std::min(p.n_units, std::max(fit * n_sms, least));
    }
    return launch_clusters((unsigned)cluster, kernel, dim3((unsigned)n_blocks), dim3(S::WARPS * 32),
                           (size_t)smem, stream, p, map, bounds);
}

/* True if blocks take units in turn. Otherwise each unit has a block of its own, which has more
 * warps, and all of them are resident at once. */
template <int DIM> static bool in_turn(const struct few_params &p, int n_sms)
{
    const int bytes = p.sums.n > 0 ? few_shape<DIM, BY_BLOCK_OF_SUMS>::bytes(p)
                                   : few_shape<DIM, BY_BLOCK>::bytes(p);
    const int fit = std::min((int)few_shape<DIM, BY_BLOCK>::BLOCKS, SM_BYTES / (bytes + 1024));
    return is_many(p.n_rows) && p.n_units > fit * n_sms;
}

/* BOUNDED: windows or sinks. With heads of 256 there are few rows, and with those as with
 * neighbours that are rotated together there are no partial sums (large_takes, k_rope_takes_sums).
 */
template <typename T, int DIM, bool NORM, few_turn TURN>
static cudaError_t by_way(cudaStream_t stream, const struct few_params &given,
                          const struct few_bounds &bounds, int n_sms)
{
    constexpr bool MAY_BE_MANY = DIM != 256, MAY_BE_SUMS = MAY_BE_MANY && TURN == TURN_HALVES;
    struct few_params p = given;
    if (p.sums.n > 0) {
        if constexpr (MAY_BE_SUMS) {
            return in_turn<DIM>(p, n_sms)
                       ? launch_few<T, DIM, NORM, IN_TURN_OF_SUMS, false, TURN>(stream, p, bounds,
                                                                                n_sms)
                       : launch_few<T, DIM, NORM, BY_BLOCK_OF_SUMS, false, TURN>(stream, p, bounds,
                                                                                 n_sms);
        }
        return cudaErrorInvalidValue;
    }
    if (in_turn<DIM>(p, n_sms)) {
        if constexpr (MAY_BE_MANY) {
            return launch_few<T, DIM, NORM, IN_TURN, false, TURN>(stream, p, bounds, n_sms);
        }
        return cudaErrorInvalidValue;
    }
    p.log_cluster = few_log_cluster(p.n_units, DIM, n_sms);
    if (bounds.window > 0 || bounds.sinks) {
        return p.log_cluster > 0
                   ? launch_few<T, DIM, NORM, BY_CLUSTER, true, TURN>(stream, p, bounds, n_sms)
                   : launch_few<T, DIM, NORM, BY_BLOCK, true, TURN>(stream, p, bounds, n_sms);
    }
    return p.log_cluster > 0
               ? launch_few<T, DIM, NORM, BY_CLUSTER, false, TURN>(stream, p, bounds, n_sms)
               : launch_few<T, DIM, NORM, BY_BLOCK, false, TURN>(stream, p, bounds, n_sms);
}

template <typename T, bool NORM, few_turn TURN>
static cudaError_t by_dim(cudaStream_t stream, const struct few_params &p,
                          const struct few_bounds &bounds, int n_sms)
{
    if constexpr (TURN != TURN_NEIGHBOURS) {
        if (p.kv.head_dim_k == 256) {
            return by_way<T, 256, NORM, TURN>(stream, p, bounds, n_sms);
        }
    }
    if constexpr (TURN != TURN_FIRST) {
        return p.kv.head_dim_k == 64 ? by_way<T, 64, NORM, TURN>(stream, p, bounds, n_sms)
                                     : by_way<T, 128, NORM, TURN>(stream, p, bounds, n_sms);
    }
    return cudaErrorInvalidValue;
}

template <typename T>
static cudaError_t by_heads(cudaStream_t stream, const struct few_params &p,
                            const struct few_bounds &bounds, bool norm, few_turn turn, int n_sms)
{
    if (turn == TURN_NEIGHBOURS) {
        return by_dim<T, false, TURN_NEIGHBOURS>(stream, p, bounds, n_sms);
    }
    if (turn == TURN_FIRST) {
        return by_dim<T, true, TURN_FIRST>(stream, p, bounds, n_sms);
    }
    return norm ? by_dim<T, true, TURN_HALVES>(stream, p, bounds, n_sms)
                : by_dim<T, false, TURN_HALVES>(stream, p, bounds, n_sms);
}

static few_turn turn_of(const struct rope_view *rope, int head_dim)
{
    if (rope->interleaved) {
        return TURN_NEIGHBOURS;
    }
    return 2 * rope->n_pairs == head_dim ? TURN_HALVES : TURN_FIRST;
}

/* The parameters that do not depend on how rows are divided. */
static struct few_params params_of(const struct rope_store_args *r, const struct rope_view *rope,
                                   const float *q_norm, const float *k_norm,
                                   const struct attention_launch *a)
{
    struct few_params p = {};
    p.qkv = r->qkv.mem.p;
    p.out = a->out;
    p.stride = r->qkv.stride;
    p.out_stride = a->out_stride;
    p.kv = a->kv;
    p.page_rows = (int32_t)(a->kv.page_stride / a->kv.head_dim_k);
    p.head_rows = a->kv.head_stride / a->kv.head_dim_k;
    p.v_rows = a->kv.v_offset / a->kv.head_dim_k;
    p.rows = a->pass.rows;
    p.row_seq = a->pass.row_seq;
    p.blocks = a->pass.blocks;
    p.blocks_stride = a->pass.blocks_stride;
    p.cos_sin = rope->cos_sin;
    p.q_norm = q_norm;
    p.k_norm = k_norm;
    p.max_pos = rope->max_pos;
    p.n_rows = a->n_rows;
    p.n_heads = a->n_heads;
    p.log_bt = a->kv.block_tokens == 32 ? 5 : 6;
    if (a->kv.block_tokens == 16) {
        p.log_bt = 4;
    }
    p.eps = r->eps;
    p.norm_offset = r->norm_offset;
    p.growth = r->growth;
    p.v_norm = r->v_norm;
    p.scale_log2 = a->scale * LOG2E;
    return p;
}

extern "C" cudaError_t k_attention_several(cudaStream_t stream, const struct rope_store_args *r,
                                           const struct rope_view *rope, const float *q_norm,
                                           const float *k_norm, const struct attention_launch *a,
                                           const struct few_pass *few)
{
    return attention_several(stream, params_of(r, rope, q_norm, k_norm, a), a, few,
                             r->qk_norm == QK_NORM_HEAD, turn_of(rope, a->kv.head_dim_k));
}

extern "C" cudaError_t k_attention_few(cudaStream_t stream, const struct rope_store_args *r,
                                       const struct rope_view *rope, const float *q_norm,
                                       const float *k_norm, const struct attention_launch *a,
                                       const struct sum_parts *sums, const struct round_args *codes)
{
    struct few_params p = params_of(r, rope, q_norm, k_norm, a);
    p.sums = sums ? *sums : sum_parts{};
    p.codes = codes ? *codes : round_args{};
    p.log_parts = log_parts_of(a->n_heads / a->kv.n_kv_heads);
    p.group = a->n_heads / a->kv.n_kv_heads >> p.log_parts;
    p.n_units = p.n_rows * p.heads_y();
    p.log_heads = 1;
    while (1 << p.log_heads < p.group && p.log_heads < 3) {
        p.log_heads++;
    }
    const struct few_bounds bounds = {a->window, a->sinks};
    const bool norm = r->qk_norm == QK_NORM_HEAD;
    if (a->kv.codes.format != KV_PLAIN) {
        p.q_norm = norm ? q_norm : nullptr;
        p.log_cluster = few_log_cluster(p.n_units, a->kv.head_dim_k, a->limits->n_sms);
        return attention_few_kv(stream, p);
    }
    if (a->limits->deterministic) {
        return attention_few_fixed(stream, p, norm, a->limits->n_sms);
    }
    const int32_t n_sms = a->limits->n_sms;
    const few_turn turn = turn_of(rope, a->kv.head_dim_k);
    return a->dtype == DT_BF16 ? by_heads<bf16_t>(stream, p, bounds, norm, turn, n_sms)
                               : by_heads<f16_t>(stream, p, bounds, norm, turn, n_sms);
}
