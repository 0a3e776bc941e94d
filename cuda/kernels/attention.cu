/* Attention's launch: the variant that takes the layer, then the join of partial results. Which
 * variant it is depends on the layer and the machine alone, never on the pass. */
#include "cuda/kernels/attention_device.cuh"

enum { JOIN_WARPS = 8, JOIN_COLUMNS = 128, JOIN_BLOCKS_PER_SM = 8 };

/* Grid: fixed; a warp joins the slots of one (row, head, 128 columns) at a time, in their order. */
template <typename T>
__global__ void __launch_bounds__(JOIN_WARPS * 32)
    attention_join_kernel(const __grid_constant__ struct attention_params p)
{
    pdl_wait();
    pdl_trigger();
    const struct attention_plan_head *head = plan_head(p.plan);
    if (head->n_slots == 0) {
        return;
    }
    const struct attention_row *rows = (const struct attention_row *)(head + 1);
    const int dim = p.kv.head_dim_v, n_parts = (dim + JOIN_COLUMNS - 1) / JOIN_COLUMNS;
    const int64_t n = (int64_t)p.n_rows * p.n_heads * n_parts;
    const int lane = threadIdx.x & 31;
    for (int64_t i = blockIdx.x * JOIN_WARPS + (threadIdx.x >> 5); i < n;
         i += gridDim.x * JOIN_WARPS) {
        const int part = (int)(i % n_parts), h = (int)(i / n_parts % p.n_heads);
        const int64_t r = i / n_parts / p.n_heads;
        const struct attention_row row = rows[r];
        const int column = part * JOIN_COLUMNS + lane * 4;
        if (row.n_slots == 0) {
            continue;
        }
        float top = -INFINITY, sum = 0.0f;
        float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int s = 0; s < row.n_slots; s++) {
            const float *slot = slot_at(p, row.first_slot + s, h);
            const float2 ml = *reinterpret_cast<const float2 *>(slot + dim);
            const float4 add = column < dim ? *reinterpret_cast<const float4 *>(slot + column)
                                            : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const struct join_weights w = join(top, sum, ml.x, ml.y);
            value.x = join_value(w, value.x, add.x);
            value.y = join_value(w, value.y, add.y);
            value.z = join_value(w, value.z, add.z);
            value.w = join_value(w, value.w, add.w);
        }
        const float w = final_weight(top, sum, p.sinks, h);
        if (column < dim) {
            T *to = (T *)p.out + r * p.out_stride + (int64_t)h * dim + column;
            to[0] = from_float<T>(__fmul_rn(value.x, w));
            to[1] = from_float<T>(__fmul_rn(value.y, w));
            to[2] = from_float<T>(__fmul_rn(value.z, w));
            to[3] = from_float<T>(__fmul_rn(value.w, w));
        }
    }
}

static cudaError_t launch_join(cudaStream_t stream, const struct attention_launch *a,
                               const struct attention_params &p)
{
    const int64_t n_parts = (p.kv.head_dim_v + JOIN_COLUMNS - 1) / JOIN_COLUMNS;
    const int64_t wanted = (p.n_rows * n_parts * p.n_heads + JOIN_WARPS - 1) / JOIN_WARPS;
    const int64_t most = (int64_t)a->limits->n_sms * JOIN_BLOCKS_PER_SM;
    const dim3 grid((unsigned)(wanted < most ? wanted : most)), block(JOIN_WARPS * 32);
    BY_DTYPE(a->dtype, T, return launch(attention_join_kernel<T>, grid, block, 0, stream, p));
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t attention_launch(cudaStream_t stream, const struct attention_launch *a)
{
    const bool sm90 = attention_sm90_takes(a);
    if (!sm90 && !attention_mma_takes(a)) {
        return attention_plain(stream, a);
    }
    if (a->workspace_bytes < attention_workspace_bytes(a->limits)) {
        return cudaErrorInvalidValue;
    }
    struct attention_params p = {};
    p.q = a->q;
    p.out = a->out;
    p.q_stride = a->q_stride;
    p.out_stride = a->out_stride;
    p.kv = a->kv;
    p.plan = a->pass.attention_plan;
    p.rows = a->pass.rows;
    p.tree_mask = a->pass.tree_mask;
    p.blocks = a->pass.blocks;
    p.blocks_stride = a->pass.blocks_stride;
    p.n_rows = a->n_rows;
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->kv.n_kv_heads;
    p.softcap = a->softcap;
    p.cap_scale = a->softcap > 0.0f ? 2.8853900817779268f * a->scale / a->softcap : 0.0f;
    p.scale_log2 = (a->softcap > 0.0f ? 1.0f : a->scale) * 1.4426950408889634f;
    p.window = a->window;
    p.sinks = a->sinks;
    p.scratch = (float *)a->workspace;
    p.slots = (float *)((char *)a->workspace + attention_scratch_bytes(a->limits));
    const cudaError_t e = sm90 ? attention_sm90(stream, a, &p, a->limits->n_sms)
                               : attention_mma(stream, a, &p, a->limits->n_sms);
    return e != cudaSuccess ? e : launch_join(stream, a, p);
}
