// SPDX-License-Identifier: Apache-2.0
/* MLA on Hopper: attention of absorbed queries of 576 elements to latent keys, of which the first
 * 512 elements are the value; over all keys that rows see, or over lists (cuda/index.h).
 *
 * Units of work are those of attention/mma.cu: 64 packed rows (pairs of a row and a head) and a
 * range of keys, or with lists a row and 64 heads. There is one block per multiprocessor, which
 * takes units in turn. A warpgroup gathers tiles of 64 keys into two stages of shared memory, which
 * with the queries fill it, and runs ahead across units. Two warpgroups compute (wgmma): each
 * scores half of a tile's keys, they exchange maxima and probabilities through shared memory, and
 * each sums half of the value's columns, because the sums of all do not fit one warpgroup's
 * registers. The next tile is scored behind the values of the current one.
 *
 * Bound by the tensor cores and the chain between a tile's two products: exchanging maxima,
 * exponentials and two barriers, which nothing hides, take nearly as long as both products. Reading
 * keys from the L2 cache follows closely. Where lists or ranges of keys are cut depends on the
 * pass, and a row's bits on the cuts, so deterministic mode does not use this kernel. */
#include "cuda/kernels/attention/mla.cuh"

enum { COMPUTER_REGISTERS = 232, LOADER_REGISTERS = 40 };

template <typename T, bool PICKED>
__global__ void __launch_bounds__(MLA_COMPUTERS + MLA_LOADERS, 1)
    attention_mla_kernel(const __grid_constant__ struct attention_params p,
                         const __grid_constant__ struct mla_lists lists)
{
#if HAVE_SM90A
    extern __shared__ __align__(1024) char mla_smem[]; // aligned as the swizzle requires
    uint64_t *full = (uint64_t *)(mla_smem + MLA_BARRIERS), *empty = full + MLA_STAGES;
    const int tid = (int)threadIdx.x;
    if (tid == 0) {
        for (int i = 0; i < MLA_STAGES; i++) {
            barrier_init(&full[i], MLA_LOADERS);
            barrier_init(&empty[i], MLA_COMPUTERS / 32);
        }
        barrier_init_done();
    }
    __syncthreads();
    pdl_wait();
    pdl_trigger();
    const struct mla_units<PICKED> units(p, lists);
    if (tid >= MLA_COMPUTERS) {
        registers_fewer<LOADER_REGISTERS>();
        mla_loader<T> loader = {p.kv, mla_smem, full, empty, tid - MLA_COMPUTERS};
        loader.run(units);
        return;
    }
    registers_more<COMPUTER_REGISTERS>();
    float *high = (float *)(mla_smem + MLA_HIGH);
    const int in_group = tid & 127, lane = tid & 31;
    mla_computer<T> computer = {p,
                                mla_smem,
                                full,
                                empty,
                                high,
                                high + 2 * MLA_ROWS,
                                tid >> 7,
                                in_group,
                                in_group >> 5,
                                lane,
                                (in_group >> 5) * 16 + (lane >> 2)};
    computer.run(units);
#endif
}

/* ---- host ---------------------------------------------------------------------------------- */

static bool layer_fits(const struct attention_launch *a)
{
    const struct kv_view *kv = &a->kv;
    return a->limits->sm == 90 && !a->limits->deterministic && kv->codes.format == KV_PLAIN &&
           kv->n_kv_heads == 1 && kv->head_dim_k == MLA_DIM_K && kv->head_dim_v == MLA_DIM_V &&
           kv->v_offset == 0 && a->dtype == kv->dtype &&
           (a->dtype == DT_BF16 || a->dtype == DT_F16) && a->softcap <= 0.0f && a->scale > 0.0f &&
           a->window <= 0 && a->chunk <= 0 && kv->page_stride % 8 == 0 && a->q_stride % 8 == 0 &&
           a->out_stride % 2 == 0 &&
           ((uintptr_t)kv->base | (uintptr_t)a->q | (uintptr_t)a->out) % 16 == 0;
}

bool attention_mla_takes(const struct attention_launch *a)
{
    return !a->picks && layer_fits(a);
}

/* Lists are not split, so there must be enough of them. Up to 16 heads picked.cu is as fast,
 * because three quarters of a unit's rows would be empty. */
bool attention_mla_picked_takes(const struct attention_launch *a)
{
    enum { LEAST_HEADS = 17 };
    const int parts = (a->n_heads + MLA_ROWS - 1) / MLA_ROWS;
    return a->picks && a->pick_block == 0 && layer_fits(a) && a->n_heads >= LEAST_HEADS &&
           a->n_rows * parts >= a->limits->n_sms;
}

template <typename T, bool PICKED>
static cudaError_t launch_mla(cudaStream_t stream, const struct attention_params &p,
                              const struct mla_lists &lists, int n_sms)
{
    const auto kernel = attention_mla_kernel<T, PICKED>;
    const cudaError_t e = // set at every launch, because each rank has its own device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MLA_BYTES);
    return e != cudaSuccess
               ? e
               : launch(kernel, dim3((unsigned)n_sms), dim3(MLA_COMPUTERS + MLA_LOADERS), MLA_BYTES,
                        stream, p, lists);
}

cudaError_t attention_mla(cudaStream_t stream, const struct attention_launch *a,
                          const struct attention_params *p, int n_sms)
{
    const struct mla_lists lists = {a->picks, a->top_k};
    if (a->picks) {
        return a->dtype == DT_BF16 ? launch_mla<bf16_t, true>(stream, *p, lists, n_sms)
                                   : launch_mla<f16_t, true>(stream, *p, lists, n_sms);
    }
    return a->dtype == DT_BF16 ? launch_mla<bf16_t, false>(stream, *p, lists, n_sms)
                               : launch_mla<f16_t, false>(stream, *p, lists, n_sms);
}
