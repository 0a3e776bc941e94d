// SPDX-License-Identifier: Apache-2.0
/* Attention with mma.sync, for sm_80 and for what attention/sm90.cu does not support: MLA, where
 * the value is a part of the key, and unequal or unusual head sizes, up to 576 for keys and 512 for
 * values.
 *
 * Grid: fixed; units are dealt out as in attention/sm90.cu. Block: 8 warps, 64 packed rows. For
 * each tile of KEYS keys, warp (m, n) of 4 x 2 scores 16 rows against half of the keys. The row
 * maximum is joined through shared memory, and the rounded probabilities are stored there, too.
 * Then each warp sums 16, 32 or 64 columns of the value for all rows. cp.async brings K and V tiles
 * in two stages; keys that no row sees are replaced by zeros. The order of summation is the same
 * for every number of rows. Bound by the tensor cores for many packed rows, and by reading K and V
 * for few. */
#include "cuda/kernels/attention/mma.cuh"

/* One or two blocks per multiprocessor, each of which takes units in turn. Bound by the tensor
 * cores for prompts, and by reading keys for decode rows. */
template <typename T, int KEYS, int NP, bool CODES>
__global__ void __launch_bounds__(N_WARPS * 32, NP == 1 ? 2 : 1)
    attention_mma_kernel(const __grid_constant__ struct attention_params p)
{
    extern __shared__ __align__(128) char mma_smem[];
    pdl_wait();
    pdl_trigger();
    const struct attention_plan_head head = *plan_head(p.plan);
    int n_sub;
    const int n_units = units_of(p, head, BLOCK_ROWS, &n_sub);
    mma_block<T, KEYS, NP, CODES> block(p, mma_smem);
    const struct unit_rounds rounds(head, n_units, (int)gridDim.x, (int)blockIdx.x);
    for (int k = 0; k < rounds.n_rounds; k++) {
        const int index = rounds.index(k);
        if (index < n_units) {
            const struct attention_unit u =
                unit_at(p, head.items_offset, index, n_sub, BLOCK_ROWS, KEYS);
            if (u.n_packed > 0) {
                block.unit(u);
            }
        }
    }
}

static bool is_small(const struct kv_view &kv)
{
    return kv.head_dim_k <= 128 && kv.head_dim_v <= 128;
}

/* The maximum shared memory of a block. It is too small for heads of 512 on small devices. */
static int most_shared(int sm)
{
    if (sm == 80 || sm == 87) {
        return 163 << 10;
    }
    return (sm >= 90 && sm < 120 ? 227 : 99) << 10;
}

/* True for every layer, on sm_80 and later, whose tile fits into shared memory and whose rows are
 * whole vectors. */
bool attention_mma_takes(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    return a->limits->sm >= 80 &&
           layout_of(*kv, is_small(*kv) ? 64 : 32).total <= most_shared(a->limits->sm) &&
           a->dtype == kv->dtype && (a->dtype == DT_BF16 || a->dtype == DT_F16) &&
           kv->head_dim_k % 8 == 0 && kv->head_dim_v % 8 == 0 && kv->head_dim_k <= MAX_DIM_K &&
           kv->head_dim_v <= ATTENTION_MAX_DIM && kv->v_offset % 8 == 0 &&
           kv->v_token_stride % 8 == 0 && kv->head_stride % 8 == 0 && kv->page_stride % 8 == 0 &&
           (kv->v_offset != 0 || kv->v_token_stride == kv->head_dim_k) &&
           ((uintptr_t)kv->base | (uintptr_t)a->q) % 16 == 0 && a->q_stride % 8 == 0 &&
           a->scale > 0.0f;
}

/* A kernel must ask for permission to use more than 48 KiB of shared memory. */
template <typename T, int KEYS, int NP>
static cudaError_t launch_mma(cudaStream_t stream, const struct attention_params &p, int n_sms)
{
    const int smem = layout_of(p.kv, KEYS).total;
    const auto kernel = p.kv.codes.format == KV_PLAIN ? attention_mma_kernel<T, KEYS, NP, false>
                                                      : attention_mma_kernel<T, KEYS, NP, true>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3(NP == 1 ? 2 * n_sms : n_sms), dim3(N_WARPS * 32),
                                     smem, stream, p);
}

/* Small heads use tiles of 64 keys. Wide values are divided into 2 or 4 parts. */
template <typename T>
static cudaError_t launch_by_dims(cudaStream_t stream, const struct attention_params &p, int n_sms)
{
    if (is_small(p.kv)) {
        return launch_mma<T, 64, 1>(stream, p, n_sms);
    }
    return p.kv.head_dim_v <= 256 ? launch_mma<T, 32, 2>(stream, p, n_sms)
                                  : launch_mma<T, 32, 4>(stream, p, n_sms);
}

cudaError_t attention_mma(cudaStream_t stream, const struct attention_launch *a,
                          const struct attention_params *p, int n_sms)
{
    return a->dtype == DT_BF16 ? launch_by_dims<bf16_t>(stream, *p, n_sms)
                               : launch_by_dims<f16_t>(stream, *p, n_sms);
}
