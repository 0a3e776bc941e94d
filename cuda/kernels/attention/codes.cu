// SPDX-License-Identifier: Apache-2.0
/* Attention over pages of codes (a quantised KV cache) on Hopper: heads of up to 256 elements, any
 * mask; several units may share the keys of a row.
 *
 * A block processes one unit: an item of the plan for one KV head, limited to 8, 16 or 32 query
 * vectors. Its four warps take the keys in turn, in chunks of 32 (16 where heads are larger than
 * 128). A chunk is two page records (one for larger heads) with keys, values and scales; one bulk
 * copy per record brings it into the warp's own ring. So warps need no barrier while they process
 * keys; at the end of the unit, their results are joined in the order of warps. The two records are
 * independent, which hides most of the instruction latency.
 *
 * Scores are K Q^T and outputs V^T P^T (mma.sync with fp16 operands). The 16 rows of a product are
 * keys or, for outputs, elements of a value; its 8 columns are query vectors. ldmatrix loads K as
 * stored and V transposed in 16-bit elements; the registers are then converted to operands, without
 * moving single codes. A key's scale and zero point are applied to its score. A value's scale is a
 * term of the exponent, and values' zero points are summed separately.
 *
 * Deterministic mode processes all units like this. Otherwise units are thin (codes_thin.cuh; 8
 * vectors) if items are that small or heads have 65 to 128 elements.
 *
 * With few rows (decoding) it is bound by reading codes. With more rows per unit it is bound by
 * instructions, and the codes are read again for every 8 or 32 query vectors; so for prompts with
 * many rows, the codes are dequantised first (expand.cu).
 *
 * A row's result depends only on its own keys and their slots: chunks are assigned to warps by
 * position, sums run in key order, and masked keys change nothing. */
#include "cuda/kernels/attention/codes_thin.cuh"

template <enum kv_format F, int D, bool FULL>
__global__ void __launch_bounds__(CODE_THREADS, ATTENTION_CODE_BLOCKS)
    attention_codes_kernel(const __grid_constant__ struct codes_params p)
{
#if HAVE_SM90A
    using S = codes_shape<D>;
    extern __shared__ __align__(128) char smem[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int ring_bytes = p.n_slots * S::RECORDS * p.record_room;
    char *slots = smem + warp * ring_bytes;
    char *rest = smem + CODE_WARPS * ring_bytes;
    uint2 *queries = (uint2 *)rest;
    float *query_sums = (float *)(queries + S::MANY * S::TILES * 32);
    uint64_t *full = (uint64_t *)(query_sums + S::MANY * 8) + warp * CODE_MAX_SLOTS;
    float *room = (float *)((uint64_t *)(query_sums + S::MANY * 8) + CODE_WARPS * CODE_MAX_SLOTS);
    float *folded = room + S::ROOM;
    open_ring(full, p.n_slots, lane);
    /* The plan, the tables and older keys were written before the preceding kernel started. The
     * exception is tree paths (paths.cu), whose tables that kernel writes. */
    const struct attention_plan_head head = *plan_head(p.a.plan);
    const bool is_few = head.tile_rows * p.a.group <= 8;
    // With smaller and with larger heads, dividing items into thin units takes longer.
    const bool is_thin = p.a.may_be_thin && (is_few || D == 128);
    const int tile_rows = is_few || is_thin ? 8 : 8 * S::MANY;
    int n_sub;
    const int n_units = units_of(p.a, head, tile_rows, &n_sub);
    const struct unit_walk<S::KEYS> walk = {
        p.a, head.items_offset, n_sub, n_units, tile_rows
    };
    if (head.n_paths > 0) {
        pdl_wait();
    }
    struct codes_loader<D> loader = {
        p, slots, full, warp, lane, walk, policy_evict_first(), policy_normal()
    };
    for (int i = 0; i < p.n_slots; i++) {
        loader.fetch(i);
    }
    pdl_wait();
    pdl_trigger();
    struct unit_walk<S::KEYS> units = walk;
    struct attention_unit u;
    const auto run = [&](auto c) {
        while (units.next(u)) {
            codes_unit<S::KEYS>(c, u);
        }
    };
    if (is_thin && head.tile_rows * p.a.group <= 4) {
        run(codes_thin<F, D, 1, FULL>{{p, loader, room, folded, queries, query_sums, warp, lane}});
    } else if (is_thin) {
        run(codes_thin<F, D, 2, FULL>{{p, loader, room, folded, queries, query_sums, warp, lane}});
    } else if (is_few) {
        run(codes_computer<F, D, 1, FULL>{p, loader, room, folded, queries, query_sums, warp,
                                          lane});
    } else {
        run(codes_computer<F, D, S::MANY, FULL>{p, loader, room, folded, queries, query_sums, warp,
                                                lane});
    }
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

bool attention_codes_takes(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    const int dk = kv->head_dim_k, dv = kv->head_dim_v;
    return kv->codes.format != KV_PLAIN && a->limits->sm == 90 && a->dtype == kv->dtype &&
           (a->dtype == DT_BF16 || a->dtype == DT_F16) && kv->codes.tokens == 16 &&
           kv->v_offset != 0 && dk % 8 == 0 && dv % 8 == 0 && dk <= 256 && dv <= 256 &&
           (kv->codes.word_bytes == 0 || kv->codes.word_bytes == 4) && a->scale > 0.0f &&
           ((uintptr_t)kv->base | (uintptr_t)a->q | (uintptr_t)a->out) % 16 == 0;
}

/* Resident blocks divide the shared memory of the multiprocessor, which reserves 1,024 bytes for
 * each block in addition to what the block requests. */
enum { BLOCK_BYTES = (228 * 1024) / ATTENTION_CODE_BLOCKS - 1024 };

template <enum kv_format F, int D, bool FULL>
static cudaError_t launch_codes(cudaStream_t stream, const struct attention_launch *a,
                                const struct attention_params &params, int n_sms)
{
    using S = codes_shape<D>;
    const int numbers = 16 * (F == KV_INT4 ? 2 : 1);
    struct codes_params p = {};
    p.a = params;
    p.a.may_be_thin = !a->limits->deterministic && a->q_stride % 8 == 0;
    p.is_bf16 = a->dtype == DT_BF16;
    // Room for scale words even if there are none, so that distances in the ring are constants.
    p.record_room = (a->kv.codes.words_offset + 2 * RECORD_KEYS * 4 + 127) / 128 * 128;
    p.n_k = (a->kv.head_dim_k + numbers - 1) / numbers;
    p.n_v = (a->kv.head_dim_v + numbers - 1) / numbers;
    const int fixed = S::fixed_bytes(a->limits->deterministic);
    // The bytes of one slot in the rings of all warps.
    const int slot_bytes = CODE_WARPS * S::RECORDS * p.record_room;
    p.n_slots = (BLOCK_BYTES - fixed) / slot_bytes;
    p.n_slots = p.n_slots < CODE_MAX_SLOTS ? p.n_slots : CODE_MAX_SLOTS;
    if (p.n_slots < 1) {
        return cudaErrorInvalidValue;
    }
    const int smem = fixed + p.n_slots * slot_bytes;
    const auto kernel = attention_codes_kernel<F, D, FULL>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((unsigned)(ATTENTION_CODE_BLOCKS * n_sms)),
                                     dim3(CODE_THREADS), (size_t)smem, stream, p);
}

template <enum kv_format F, int D>
static cudaError_t launch_by_fill(cudaStream_t stream, const struct attention_launch *a,
                                  const struct attention_params &p, int n_sms)
{
    return a->kv.head_dim_k == D && a->kv.head_dim_v == D
               ? launch_codes<F, D, true>(stream, a, p, n_sms)
               : launch_codes<F, D, false>(stream, a, p, n_sms);
}

template <enum kv_format F>
static cudaError_t launch_by_dim(cudaStream_t stream, const struct attention_launch *a,
                                 const struct attention_params &p, int n_sms)
{
    const int dk = a->kv.head_dim_k, dv = a->kv.head_dim_v, most = dk > dv ? dk : dv;
    if (most <= 64) {
        return launch_by_fill<F, 64>(stream, a, p, n_sms);
    }
    return most <= 128 ? launch_by_fill<F, 128>(stream, a, p, n_sms)
                       : launch_by_fill<F, 256>(stream, a, p, n_sms);
}

cudaError_t attention_codes(cudaStream_t stream, const struct attention_launch *a,
                            const struct attention_params *p, int n_sms)
{
    switch (a->kv.codes.format) {
    case KV_FP8: return launch_by_dim<KV_FP8>(stream, a, *p, n_sms);
    case KV_INT4: return launch_by_dim<KV_INT4>(stream, a, *p, n_sms);
    default: return launch_by_dim<KV_INT8>(stream, a, *p, n_sms);
    }
}
