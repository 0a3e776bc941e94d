// SPDX-License-Identifier: Apache-2.0
/* Rounds the inputs of experts to E4M3 and dequantises them again, for products that multiply
 * floating point. Where scales are computed from the rows, gemm/inputs.cu does this. The kernel
 * here is for stored scales: each expert has its own, so each pick gets a row of rounded inputs. A
 * block takes such a row. Bound by memory bandwidth. */
#include "cuda/experts.h"
#include "cuda/kernels/device/launch.cuh"
#include "cuda/kernels/device/rounding.cuh"

enum { THREADS = 128 };

struct stored_params {
    const int32_t *ids;
    const float *scales;           // [n_experts]
    const int32_t *sorted, *first; // of the activations; NULL: rows are picks
    int32_t n_experts, k, width;   // k: picks that share a row of x
    int64_t x_stride;
};

template <typename T>
__global__ void __launch_bounds__(THREADS)
    moe_round_kernel(const T *x, T *to, const __grid_constant__ struct stored_params p)
{
    pdl_wait();
    pdl_trigger();
    const int32_t row = (int32_t)blockIdx.x;
    if (p.first && row >= p.first[p.n_experts]) { // a padding row's pick
        return;
    }
    const int32_t id = p.ids[p.sorted ? p.sorted[row] : row];
    const float scale = id >= 0 && id < p.n_experts ? p.scales[id] : 0.0f;
    const float factor = round_factor(scale);
    for (int k = threadIdx.x * ROUND_PIECE; k < p.width; k += THREADS * ROUND_PIECE) {
        vec<T> v;
        v.load(x + row / p.k * p.x_stride + k);
#pragma unroll
        for (int i = 0; i < ROUND_PIECE; i += 2) {
            const __half2 two = __nv_cvt_fp8x2_to_halfraw2(
                round_pair(to_float(v.v[i]), to_float(v.v[i + 1]), factor), __NV_E4M3);
            v.v[i] = from_float<T>(__low2float(two) * scale);
            v.v[i + 1] = from_float<T>(__high2float(two) * scale);
        }
        v.store(to + (int64_t)row * p.width + k);
    }
}

extern "C" size_t moe_rounded_bytes(const struct moe_ffn_args *a, const struct moe_rounding *r,
                                    int32_t hidden, int32_t n_rows)
{
    const int64_t rows = r->up.scales ? (int64_t)n_rows * a->k : n_rows;
    return r->up.rule ? (size_t)(rows * hidden) * sizeof(uint16_t) : 0;
}

static cudaError_t by_stored(cudaStream_t stream, enum dtype dtype, const void *x, void *to,
                             int64_t picks, const struct stored_params &p)
{
    const dim3 grid((unsigned)picks);
    return dtype == DT_BF16 ? launch(moe_round_kernel<bf16_t>, grid, dim3(THREADS), 0, stream,
                                     (const bf16_t *)x, (bf16_t *)to, p)
                            : launch(moe_round_kernel<f16_t>, grid, dim3(THREADS), 0, stream,
                                     (const f16_t *)x, (f16_t *)to, p);
}

static cudaError_t by_rows(cudaStream_t stream, const struct input_rule *rule, struct tensor x,
                           void *to, int64_t n_rows, int32_t width)
{
    struct round_args round = {};
    round.x = x.mem.p;
    round.x_dtype = x.dtype;
    round.x_stride = x.stride;
    round.n_rows = (int32_t)n_rows;
    round.n_in = width;
    round.group = rule->group;
    round.power_of_two = rule->power_of_two;
    round.limit = rule->limit;
    round.numbers = to;
    return round_inputs(stream, &round);
}

extern "C" cudaError_t moe_round_x(cudaStream_t stream, const struct moe_ffn_args *a,
                                   const struct moe_rounding *r, int32_t hidden)
{
    if (!r->up.scales) {
        return by_rows(stream, r->up.rule, a->x, r->x, a->n_rows, hidden);
    }
    struct stored_params p = {};
    p.ids = (const int32_t *)a->ids.p;
    p.scales = r->up.scales;
    p.n_experts = a->n_experts;
    p.k = a->k;
    p.width = hidden;
    p.x_stride = a->x.stride;
    return by_stored(stream, a->x.dtype, a->x.mem.p, r->x, (int64_t)a->n_rows * a->k, p);
}

extern "C" cudaError_t moe_round_act(cudaStream_t stream, const struct moe_ffn_args *a,
                                     const struct moe_rounding *r, const struct moe_scratch *s)
{
    const int64_t picks = (int64_t)a->n_rows * a->k;
    if (!r->down.scales) {
        struct tensor act = a->x;
        act.mem.p = s->act;
        act.stride = a->ffn;
        return by_rows(stream, r->down.rule, act, s->act, picks, a->ffn);
    }
    struct stored_params p = {};
    p.ids = (const int32_t *)a->ids.p;
    p.scales = r->down.scales;
    p.sorted = s->sorted;
    p.first = s->first;
    p.n_experts = a->n_experts;
    p.k = 1;
    p.width = a->ffn;
    p.x_stride = a->ffn;
    return by_stored(stream, a->x.dtype, s->act, s->act, picks, p);
}
