// SPDX-License-Identifier: Apache-2.0
/* Launches attention: the kernel variant that supports the layer, then the kernel that joins
 * partial results. The variant depends on the layer and the device and, only for a quantised KV
 * cache, on the pass. The file of each variant says how its work is divided and what bounds it. */
#include "cuda/kernels/attention/common.cuh"

enum { JOIN_WARPS = 8, JOIN_BLOCKS_PER_SM = 2, JOIN_AHEAD = 8 };

/* Joins the slots of one row and head into the output; each lane has four columns. JOIN_AHEAD slots
 * are loaded at a time, because loading them one by one would cost a full memory latency each. The
 * code is kept short, because each launch loads it again, which takes longer than running it. */
template <typename T>
__device__ __forceinline__ void join_row(const struct attention_params &p, struct attention_row row,
                                         int r, int h, int column)
{
    const int dim = p.kv.head_dim_v, stride = p.n_heads * (dim + 4);
    const float *slot = slot_at(p, row.first_slot, h);
    float top = -INFINITY, sum = 0.0f;
    float4 value = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 1
    for (int left = row.n_slots; left > 0; left -= JOIN_AHEAD) {
        float2 ml[JOIN_AHEAD];
        float4 add[JOIN_AHEAD];
#pragma unroll
        for (int k = 0; k < JOIN_AHEAD; k++) {
            ml[k] = *reinterpret_cast<const float2 *>(slot + dim);
            add[k] = *reinterpret_cast<const float4 *>(slot + column);
            slot += k + 1 < left ? stride : 0; // past the end, reload the last slot
        }
#pragma unroll
        for (int k = 0; k < JOIN_AHEAD; k++) {
            if (k < left) {
                const struct join_weights w = join(top, sum, ml[k].x, ml[k].y);
                value.x = join_value(w, value.x, add[k].x);
                value.y = join_value(w, value.y, add[k].y);
                value.z = join_value(w, value.z, add[k].z);
                value.w = join_value(w, value.w, add[k].w);
            }
        }
    }
    const float w = final_weight(top, sum, p.sinks, h);
    T *to = (T *)p.out + (int64_t)r * p.out_stride + h * dim + column;
    to[0] = from_float<T>(__fmul_rn(value.x, w));
    to[1] = from_float<T>(__fmul_rn(value.y, w));
    to[2] = from_float<T>(__fmul_rn(value.z, w));
    to[3] = from_float<T>(__fmul_rn(value.w, w));
}

/* Grid: (rows, heads / JOIN_WARPS), with as many blocks along x as fit the device; a warp joins one
 * row and head at a time. Bound by the latency of reading the slots. */
template <typename T>
__global__ void __launch_bounds__(JOIN_WARPS * 32)
    attention_join_kernel(const __grid_constant__ struct attention_params p)
{
    /* The plan was written before the preceding kernel started. The slots are the output of that
     * kernel. */
    const struct attention_plan_head *head = plan_head(p.plan);
    const struct attention_row *rows = (const struct attention_row *)(head + 1);
    const bool is_any = head->n_slots > 0;
    struct attention_row row = rows[blockIdx.x];
    const int h = blockIdx.y * JOIN_WARPS + (int)(threadIdx.x >> 5);
    /* With this many rows, gemm/wide.cu computes the next product; its blocks load weights as soon
     * as attention leaves a multiprocessor. With fewer rows, the next kernel must not start early:
     * its blocks would crowd onto some multiprocessors (device/launch.cuh). */
    if (p.n_rows > 32) {
        pdl_trigger();
    }
    pdl_wait();
    pdl_trigger();
    if (!is_any || h >= p.n_heads) {
        return;
    }
#pragma unroll 1
    for (int r = (int)blockIdx.x; r < p.n_rows; r += (int)gridDim.x) {
        const struct attention_row next = rows[min(r + (int)gridDim.x, p.n_rows - 1)];
#pragma unroll 1
        for (int c = (int)(threadIdx.x & 31) * 4; row.n_slots > 0 && c < p.kv.head_dim_v;
             c += 128) {
            join_row<T>(p, row, r, h, c);
        }
        row = next;
    }
}

static cudaError_t launch_join(cudaStream_t stream, const struct attention_launch *a,
                               const struct attention_params &p)
{
    const int by_heads = (p.n_heads + JOIN_WARPS - 1) / JOIN_WARPS;
    const int most = a->limits->n_sms * JOIN_BLOCKS_PER_SM / by_heads;
    int n = most < 1 ? 1 : most;
    if (p.n_rows < most) {
        n = p.n_rows;
    }
    const dim3 grid((unsigned)n, (unsigned)by_heads), block(JOIN_WARPS * 32);
    BY_DTYPE(a->dtype, T, return launch(attention_join_kernel<T>, grid, block, 0, stream, p));
    return cudaErrorInvalidValue;
}

static struct attention_params params_of(const struct attention_launch *a)
{
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
    p.chunk = a->chunk;
    p.sinks = a->sinks;
    p.scratch = (float *)a->workspace;
    p.slots = (float *)((char *)a->workspace + attention_scratch_bytes(a->limits));
    p.end_lane = INT32_MAX;
    return p;
}

/* Dequantises the keys and values that many rows read, and runs attention on them. The items of all
 * other lanes read the codes directly. */
static cudaError_t launch_expanded(cudaStream_t stream, const struct attention_launch *a,
                                   const struct attention_params *params)
{
    const int first_lane = a->pass.max_lanes + 1, n_sms = a->limits->n_sms;
    struct attention_launch numbers = *a;
    numbers.kv = attention_expanded(
        &a->kv, a->run_memory,
        (int32_t)(a->limits->run_bytes / ((size_t)a->kv.n_kv_heads * 4 *
                                          (size_t)(a->kv.head_dim_k * a->kv.block_tokens))));
    if (!attention_sm90_takes(&numbers)) {
        return cudaErrorInvalidValue;
    }
    cudaError_t e = attention_expand(stream, a, &numbers.kv);
    struct attention_params p = *params;
    if (e == cudaSuccess && a->has_others) {
        p.end_lane = first_lane;
        e = attention_codes(stream, a, &p, n_sms);
    }
    p.kv = numbers.kv;
    p.first_lane = first_lane;
    p.end_lane = INT32_MAX;
    p.is_expanded = true;
    return e == cudaSuccess ? attention_sm90(stream, &numbers, &p, n_sms) : e;
}

extern "C" cudaError_t attention_launch(cudaStream_t stream, const struct attention_launch *a)
{
    if (attention_mla_picked_takes(a)) {
        const struct attention_params p = params_of(a);
        return attention_mla(stream, a, &p, a->limits->n_sms);
    }
    if (a->picks) {
        return attention_picked(stream, a);
    }
    const bool codes = attention_codes_takes(a), sm90 = attention_sm90_takes(a);
    if (!codes && !sm90 && !attention_mma_takes(a)) {
        return attention_plain(stream, a);
    }
    if (a->workspace_bytes < attention_workspace_bytes(a->limits)) {
        return cudaErrorInvalidValue;
    }
    const struct attention_params p = params_of(a);
    const bool has_runs = a->n_rows > ATTENTION_CAPTURED_ROWS && a->n_runs > 0;
    const int n_sms = a->limits->n_sms;
    cudaError_t e;
    if (has_runs && !codes) {
        return cudaErrorInvalidValue; // attention_learn and the variants disagree
    }
    if (codes) {
        e = has_runs ? launch_expanded(stream, a, &p) : attention_codes(stream, a, &p, n_sms);
    } else if (sm90) {
        e = attention_sm90(stream, a, &p, n_sms);
    } else {
        e = attention_mla_takes(a) ? attention_mla(stream, a, &p, n_sms)
                                   : attention_mma(stream, a, &p, n_sms);
    }
    const bool has_slots = a->n_rows <= ATTENTION_CAPTURED_ROWS || !a->has_no_slots;
    return e == cudaSuccess && has_slots ? launch_join(stream, a, p) : e;
}
