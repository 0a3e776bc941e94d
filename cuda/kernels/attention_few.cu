/* Decoding rows of few sequences: rope, the store of the new key and value, and attention in one
 * launch, for Hopper. Other ways need three (rope, attention, the join of its pieces), each of
 * which takes longer than the keys.
 *
 * Grid: (blocks of a cluster, KV heads or parts of their groups, rows). The warps of a cluster
 * share the keys of one row and KV head, a chunk of 16 at a time, each with a maximum and sums of
 * its own; in the end each block joins all warps' results for its part of the head's elements,
 * which the warps have stored in its shared memory.
 *
 * Older keys and values do not come from the kernel ahead (the product that makes qkv): they are
 * fetched before the wait for it, and so are block tables and angles.
 *
 * Scores are K Q^T and values V^T P^T (mma.sync): keys, and elements of a value, are the 16 rows of
 * a product, heads its 8 columns. K's operand is read from memory as it lies: lane (g, t) takes 8
 * elements from t * 8 + 32 j on, of key g and of key g + 8, and Q alike, which only permutes the
 * elements that are summed over; and an element to be rotated lies in the same lane as its partner.
 * The new key comes as one more row of Q. */
#include "cuda/kernels/attention_few.cuh"
#include "cuda/kernels/kernels.h"

template <typename T, int DIM, bool NORM, bool ALONE>
__global__ void __launch_bounds__(WARPS * 32, ALONE ? 3 : 1)
    attention_few_kernel(const __grid_constant__ struct few_params p)
{
#if HAVE_SM90A
    extern __shared__ __align__(16) char smem[];
    const int warp = threadIdx.x >> 5, n_blocks = 1 << (ALONE ? 0 : p.log_cluster);
    uint64_t *bar = (uint64_t *)(smem + WARPS * p.n_slots * few_shape<DIM>::SLOT);
    float *room = (float *)(bar + 2);
    few<T, DIM, NORM, ALONE> f = {p, smem + warp * p.n_slots * few_shape<DIM>::SLOT};
    f.rank = ALONE ? 0 : (int)cluster_rank();
    f.kv_head = (int)blockIdx.y >> p.log_parts;
    f.part = (int)blockIdx.y & ((1 << p.log_parts) - 1);
    f.row = (int)blockIdx.z;
    f.lane = threadIdx.x & 31;
    f.worker = warp * n_blocks + f.rank;
    f.n_workers = n_blocks * WARPS;
    const struct pass_row row = p.rows[f.row];
    if (p.row_seq[f.row] < 0) { // padding; the cluster's blocks alike
        pdl_wait();
        return;
    }
    f.begin(row);
    if (!ALONE) {
        if (threadIdx.x == 0) {
            barrier_init(bar, 1);
            barrier_init_done();
            barrier_expect(bar, f.bytes_sent());
        }
        __syncthreads();
        cluster_begun();
    }
    if (p.is_early) {
        pdl_trigger();
    }
    pdl_wait();
    pdl_trigger();
    const T *qkv = (const T *)p.qkv + (int64_t)f.row * p.stride;
    f.load_rows(qkv);
    const uint4 value = *reinterpret_cast<const uint4 *>(
        qkv + (p.n_heads + p.kv.n_kv_heads + f.kv_head) * DIM + f.lane % (DIM / 8) * 8);
    f.rotate();
    f.add_chunks(value);
    if (ALONE) {
        f.send(room, bar);
        __syncthreads();
    } else {
        __syncwarp();
        cluster_wait();
        f.send(room, bar);
        barrier_wait(bar, 0);
    }
    f.join_all(room);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

/* The log of a cluster's blocks: half of the machine is enough, and more are no faster. 0: not even
 * two to each row fit, and blocks go alone. */
static int log_cluster_of(const struct few_params &p, int head_dim, int n_sms)
{
    const int n = p.n_rows * (p.kv.n_kv_heads << p.log_parts);
    if (2 * n > n_sms) {
        return 0;
    }
    int log = 1;
    while (2 << log <= MAX_CLUSTER && 2 << log <= head_dim / 16 && (4 << log) * n <= n_sms) {
        log++;
    }
    return log;
}

/* The log of the parts in which the heads of a group are taken: the eighth column is the new
 * key's. -1: none. */
static int log_parts_of(int group)
{
    for (int n = 0; n <= 2; n++) {
        if (group % (1 << n) == 0 && group >> n < 8) {
            return n;
        }
    }
    return -1;
}

extern "C" bool k_attention_few_takes(const struct rope_store_args *a, const struct rope_view *rope,
                                      int32_t q_norm_n, int32_t k_norm_n, const struct kv_view *kv,
                                      const struct attention_limits *limits)
{
    const int d = a->head_dim, bt = kv->block_tokens;
    return limits->sm == 90 && !limits->deterministic && a->qkv.dtype == kv->dtype &&
           (kv->dtype == DT_BF16 || kv->dtype == DT_F16) && (d == 64 || d == 128) &&
           kv->head_dim_k == d && kv->head_dim_v == d && (bt == 16 || bt == 32 || bt == 64) &&
           kv->v_token_stride == d && kv->v_offset > 0 && kv->v_offset % 8 == 0 &&
           kv->head_stride % 8 == 0 && kv->page_stride % 8 == 0 && a->qkv.stride % 8 == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)a->qkv.mem.p) % 16 == 0 &&
           a->n_heads % a->n_kv_heads == 0 && log_parts_of(a->n_heads / a->n_kv_heads) >= 0 &&
           2 * rope->n_pairs == d && !rope->interleaved &&
           (a->qk_norm == QK_NORM_NONE ||
            (a->qk_norm == QK_NORM_HEAD && a->qk_norm_kind != NORM_LAYER && q_norm_n == d &&
             k_norm_n == d));
}

template <typename T, int DIM, bool NORM, bool ALONE>
static cudaError_t launch_few(cudaStream_t stream, const struct few_params &p)
{
    const int smem = few_shape<DIM>::bytes(p), n = 1 << p.log_cluster;
    const cudaError_t ready = // of this device: ranks have one each
        cudaFuncSetAttribute(attention_few_kernel<T, DIM, NORM, ALONE>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return ready != cudaSuccess
               ? ready
               : launch_clusters((unsigned)n, attention_few_kernel<T, DIM, NORM, ALONE>,
                                 dim3((unsigned)n, (unsigned)p.kv.n_kv_heads << p.log_parts,
                                      (unsigned)p.n_rows),
                                 dim3(WARPS * 32), (size_t)smem, stream, p);
}

template <typename T, int DIM>
static cudaError_t by_way(cudaStream_t stream, const struct few_params &given, bool norm, int n_sms)
{
    struct few_params p = given;
    p.log_cluster = log_cluster_of(p, DIM, n_sms);
    /* Where gemm_small.cu is behind it, a block of this and one of that fill a multiprocessor: with
     * less memory two of that met on some, and none on others. Of many rows, three blocks; and a
     * product is let in as by attention's join. */
    p.is_early = p.n_rows > 32;
    p.n_slots = p.is_early ? MIN_SLOTS : MAX_SLOTS;
    if (p.log_cluster == 0) {
        return norm ? launch_few<T, DIM, true, true>(stream, p)
                    : launch_few<T, DIM, false, true>(stream, p);
    }
    return norm ? launch_few<T, DIM, true, false>(stream, p)
                : launch_few<T, DIM, false, false>(stream, p);
}

template <typename T>
static cudaError_t by_dim(cudaStream_t stream, const struct few_params &p, bool norm, int n_sms)
{
    return p.kv.head_dim_k == 64 ? by_way<T, 64>(stream, p, norm, n_sms)
                                 : by_way<T, 128>(stream, p, norm, n_sms);
}

extern "C" cudaError_t k_attention_few(cudaStream_t stream, const struct rope_store_args *r,
                                       const struct rope_view *rope, const float *q_norm,
                                       const float *k_norm, const struct attention_launch *a)
{
    struct few_params p = {};
    p.qkv = r->qkv.mem.p;
    p.out = a->out;
    p.stride = r->qkv.stride;
    p.out_stride = a->out_stride;
    p.kv = a->kv;
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
    p.log_parts = log_parts_of(a->n_heads / a->kv.n_kv_heads);
    p.group = a->n_heads / a->kv.n_kv_heads >> p.log_parts;
    p.log_heads = p.group <= 2 ? 1 : p.group <= 4 ? 2 : 3;
    p.log_bt = a->kv.block_tokens == 16 ? 4 : a->kv.block_tokens == 32 ? 5 : 6;
    p.eps = r->eps;
    p.norm_offset = r->norm_offset;
    p.scale_log2 = a->scale * 1.4426950408889634f;
    const bool norm = r->qk_norm == QK_NORM_HEAD;
    return a->dtype == DT_BF16 ? by_dim<bf16_t>(stream, p, norm, a->limits->n_sms)
                               : by_dim<f16_t>(stream, p, norm, a->limits->n_sms);
}
