// SPDX-License-Identifier: Apache-2.0
/* A router's scores on the tensor cores: for many rows, or any number in deterministic mode. The
 * router is fp32, and its scores decide between experts. So each weight is split into a sum of
 * three bf16 numbers, whose products with bf16 rows are exact and are added in fp32.
 *
 * Many rows: a block computes ROWS rows by EXPERTS experts, a warp 16 or 32 of the rows. If there
 * would be few blocks, scores_some.cu takes the rows, or in deterministic mode blocks have fewer
 * experts, with the same bits. Weights are split on their way to shared memory. Where all of a
 * tile's weights are bf16 numbers, as most checkpoints store them, the other terms are 0 and are
 * not multiplied. Bound by reading shared memory, and by latency if there are few rows.
 *
 * In deterministic mode K is summed in parts of PART columns, which are added in order. With few
 * rows one warp computes a part and splits its weights in registers. With very few rows every block
 * also applies the norm before the router itself, which takes less time than a launch. */
#include "cuda/kernels/device/norm.cuh"
#include "cuda/kernels/moe/few.cuh"
#include "cuda/kernels/moe/scores.cuh"
#include "cuda/moe_fixed.h"

enum { ROWS = 128, MOST_EXPERTS = 64, FEW_EXPERTS = 16, DEPTH = 64, TERMS = 3, PAD = 8 };
enum { WARPS = 8, THREADS = WARPS * 32 };
enum { PART = 128, MOST_PARTS = 96 }; // columns of a part of K in deterministic mode

/* The number of float4 of the router that a thread splits. */
template <int EXPERTS> static constexpr int RUNS = EXPERTS * DEPTH / 4 / THREADS;

/* How the warps divide a tile, and how far ahead of the products its operands are loaded: blocks of
 * few experts have little to compute, so they wait for their loads. */
template <int EXPERTS> struct division {
    static constexpr bool FEW = EXPERTS < 32;
    static constexpr int MF = FEW ? 1 : 2, OF_ROWS = ROWS / (16 * MF), OF_EXPERTS = WARPS / OF_ROWS;
    static constexpr int COLUMNS = EXPERTS / OF_EXPERTS, NF = COLUMNS / 8;
    static constexpr int STAGES = FEW ? 4 : 2, AHEAD = FEW ? 2 : 1;

    __device__ __forceinline__ static int row()
    {
        return (int)(threadIdx.x >> 5) % OF_ROWS * MF * 16;
    }
    __device__ __forceinline__ static int expert()
    {
        return (int)(threadIdx.x >> 5) / OF_ROWS * COLUMNS;
    }
};

template <int EXPERTS> struct scores_room {
    bf16_t x[division<EXPERTS>::STAGES][ROWS][DEPTH + PAD];
    bf16_t w[2][TERMS][EXPERTS][DEPTH + PAD];
};

__device__ __forceinline__ static void load_x(const struct scores_params &p,
                                              bf16_t (*to)[DEPTH + PAD], int32_t k)
{
    for (int32_t i = threadIdx.x; i < ROWS * DEPTH / 8; i += THREADS) {
        const int32_t r = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
        const int32_t row = blockIdx.x * ROWS + r;
        const bool is = row < p.n_rows && k + c < p.hidden;
        cp_async_16(&to[r][c], is ? p.x + row * p.x_stride + k + c : p.x, is);
    }
}

/* The position in the tile of the thread's run j. */
__device__ __forceinline__ static int32_t run_row(int j)
{
    return (threadIdx.x + j * THREADS) / (DEPTH / 4);
}

__device__ __forceinline__ static int32_t run_col(int j)
{
    return (threadIdx.x + j * THREADS) % (DEPTH / 4) * 4;
}

template <int EXPERTS>
__device__ __forceinline__ static void load_router(const struct scores_params &p,
                                                   float4 (&w)[RUNS<EXPERTS>], int32_t k)
{
#pragma unroll
    for (int j = 0; j < RUNS<EXPERTS>; j++) {
        const int32_t e = blockIdx.y * EXPERTS + run_row(j), at = k + run_col(j);
        const bool is = e < p.n_experts && at < p.hidden;
        w[j] = is ? *(const float4 *)(p.router + (int64_t)e * p.hidden + at)
                  : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Splits the thread's weights. The other terms than the first are stored only if one of them is not
 * 0, or if was_more: those that the thread has stored there before are not 0. Returns true if one
 * of them is not 0. */
template <int EXPERTS>
__device__ __forceinline__ static bool split_router(bf16_t (*to)[EXPERTS][DEPTH + PAD],
                                                    const float4 (&w)[RUNS<EXPERTS>], bool was_more)
{
    float2 left[RUNS<EXPERTS>][2];
    bool has_more = false;
#pragma unroll
    for (int j = 0; j < RUNS<EXPERTS>; j++) {
        float2 &low = left[j][0], &high = left[j][1];
        low = make_float2(w[j].x, w[j].y);
        high = make_float2(w[j].z, w[j].w);
        *(uint2 *)&to[0][run_row(j)][run_col(j)] = make_uint2(next_term(low), next_term(high));
        has_more |= low.x != 0.0f || low.y != 0.0f || high.x != 0.0f || high.y != 0.0f;
    }
    if (has_more || was_more) {
#pragma unroll
        for (int i = RUNS<EXPERTS>; i < TERMS * RUNS<EXPERTS>; i++) {
            const int j = i % RUNS<EXPERTS>;
            *(uint2 *)&to[i / RUNS<EXPERTS>][run_row(j)][run_col(j)] =
                make_uint2(next_term(left[j][0]), next_term(left[j][1]));
        }
    }
    return has_more;
}

/* N_TERMS: the number of terms that are not 0. */
template <int EXPERTS, int N_TERMS, typename D = division<EXPERTS>>
__device__ __forceinline__ static void multiply(const bf16_t (*x)[DEPTH + PAD],
                                                const bf16_t (*w)[EXPERTS][DEPTH + PAD],
                                                float (&sum)[D::MF][D::NF][4])
{
    const int lane = threadIdx.x & 31, row = D::row() + (lane & 15);
    const int expert = D::expert() + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t rows[D::MF][4];
#pragma unroll
        for (int m = 0; m < D::MF; m++) {
            ldmatrix_x4(rows[m], &x[row + m * 16][k + (lane >> 4) * 8]);
        }
#pragma unroll
        for (int t = N_TERMS - 1; t >= 0; t--) { // small terms first
#pragma unroll
            for (int n = 0; n < D::COLUMNS; n += 16) {
                uint32_t columns[4];
                ldmatrix_x4(columns, &w[t][expert + n][k + (lane >> 3 & 1) * 8]);
#pragma unroll
                for (int m = 0; m < D::MF; m++) {
                    mma_16x8x16(sum[m][n / 8], rows[m], columns[0], columns[1], bf16_t());
                    mma_16x8x16(sum[m][n / 8 + 1], rows[m], columns[2], columns[3], bf16_t());
                }
            }
        }
    }
}

template <int EXPERTS, typename D = division<EXPERTS>>
__device__ __forceinline__ static void store_scores(const struct scores_params &p,
                                                    const float (&sum)[D::MF][D::NF][4])
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < D::MF; m++) {
#pragma unroll
        for (int n = 0; n < D::NF; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int32_t row =
                    blockIdx.x * ROWS + D::row() + m * 16 + (i >> 1) * 8 + (lane >> 2);
                const int32_t e =
                    blockIdx.y * EXPERTS + D::expert() + n * 8 + (lane & 3) * 2 + (i & 1);
                if (row < p.n_rows && e < p.n_experts) {
                    p.logits[(int64_t)row * p.n_experts + e] =
                        sum[m][n][i] + (p.bias ? p.bias[e] : 0.0f);
                }
            }
        }
    }
}

/* Adds the sums of a part of K to those of the parts before it. */
template <int EXPERTS, typename D = division<EXPERTS>>
__device__ __forceinline__ static void end_part(float (&sum)[D::MF][D::NF][4],
                                                float (&total)[D::MF][D::NF][4])
{
#pragma unroll
    for (int m = 0; m < D::MF; m++) {
#pragma unroll
        for (int n = 0; n < D::NF; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                total[m][n][i] += sum[m][n][i];
                sum[m][n][i] = 0.0f;
            }
        }
    }
}

/* Step s multiplies columns from s * DEPTH on. Its rows are loaded STAGES - 1 steps before it. Its
 * part of the router is loaded AHEAD steps before it, and split in the step before it. */
template <int EXPERTS, bool FIXED>
__global__ void __launch_bounds__(THREADS, 2) route_many_kernel(struct scores_params p)
{
    typedef division<EXPERTS> D;
    extern __shared__ __align__(16) char memory[];
    scores_room<EXPERTS> &m = *(scores_room<EXPERTS> *)memory;
    float sum[D::MF][D::NF][4] = {}, total[D::MF][D::NF][4] = {};
    float4 w[D::AHEAD][RUNS<EXPERTS>];
#pragma unroll
    for (int a = 0; a < D::AHEAD; a++) {
        load_router<EXPERTS>(p, w[a], a * DEPTH);
    }
    bool has_more = split_router<EXPERTS>(m.w[0], w[0], true), had_more = true;
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int s = 0; s < D::STAGES - 1; s++) {
        load_x(p, m.x[s], s * DEPTH);
        cp_async_commit();
    }
    int32_t stage = 0, last = D::STAGES - 1, half = 0;
    for (int32_t first = 0; first < p.hidden; first += D::AHEAD * DEPTH) {
#pragma unroll
        for (int a = 0; a < D::AHEAD; a++) {
            const int32_t k = first + a * DEPTH;
            if (k >= p.hidden) {
                break;
            }
            cp_async_wait<D::STAGES - 2>();
            // This stage has arrived, and the last one may be refilled.
            const bool all_terms = __syncthreads_or(has_more);
            if (k + (D::STAGES - 1) * DEPTH < p.hidden) {
                load_x(p, m.x[last], k + (D::STAGES - 1) * DEPTH);
            }
            cp_async_commit();
            load_router<EXPERTS>(p, w[a], k + D::AHEAD * DEPTH);
            if (all_terms) {
                multiply<EXPERTS, TERMS>(m.x[stage], m.w[half], sum);
            } else {
                multiply<EXPERTS, 1>(m.x[stage], m.w[half], sum);
            }
            if (FIXED && ((k + DEPTH) % PART == 0 || k + DEPTH >= p.hidden)) {
                end_part<EXPERTS>(sum, total);
            }
            half ^= 1;
            const bool more = split_router<EXPERTS>(m.w[half], w[(a + 1) % D::AHEAD], had_more);
            had_more = has_more;
            has_more = more;
            last = stage;
            stage = stage + 1 == D::STAGES ? 0 : stage + 1;
        }
    }
    store_scores<EXPERTS>(p, FIXED ? total : sum);
}

bool k_moe_scores_takes(const struct moe_route_args *a, enum dtype router_dtype, int32_t hidden)
{
    return a->x.dtype == DT_BF16 && router_dtype == DT_F32 && a->n_rows >= ROWS &&
           hidden % 8 == 0 && vec_ok(a->x.mem.p, a->x.stride, hidden, sizeof(bf16_t));
}

template <int EXPERTS, bool FIXED>
static cudaError_t launch_scores(cudaStream_t stream, const struct scores_params &p)
{
    const size_t n_bytes = sizeof(scores_room<EXPERTS>);
    const dim3 grid((p.n_rows + ROWS - 1) / ROWS, (p.n_experts + EXPERTS - 1) / EXPERTS);
    const auto kernel = route_many_kernel<EXPERTS, FIXED>;
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return e != cudaSuccess ? e : launch(kernel, grid, dim3(THREADS), n_bytes, stream, p);
}

/* ---- few rows in deterministic mode -------------------------------------------------------- */

enum { TILE = 16, TILE_EXPERTS = 8, STEPS = PART / 16, PART_WARPS = 16 };
enum { NORM_ROWS = 4, NORM_HIDDEN = PART_WARPS * 32 * RUN }; // the most that a block normalises

/* The column of K where a lane's pair h of step s of a part begins. */
__device__ __forceinline__ static int32_t pair_column(int32_t part, int s, int h)
{
    return part * PART + s * 16 + h * 8 + (int)(threadIdx.x & 3) * 2;
}

/* A lane's elements of an expert's row in a part of K, split into terms. */
__device__ __forceinline__ static void load_part(const struct scores_params &p, int32_t part,
                                                 uint32_t (&terms)[STEPS][2][TERMS])
{
    const int32_t e = blockIdx.x * TILE_EXPERTS + (int32_t)(threadIdx.x >> 2 & 7);
    float2 w[STEPS][2];
#pragma unroll
    for (int i = 0; i < 2 * STEPS; i++) {
        const int32_t at = pair_column(part, i / 2, i % 2);
        w[i / 2][i % 2] = e < p.n_experts && at < p.hidden
                              ? *(const float2 *)(p.router + (int64_t)e * p.hidden + at)
                              : make_float2(0.0f, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < 2 * STEPS; i++) {
#pragma unroll
        for (int t = 0; t < TERMS; t++) {
            terms[i / 2][i % 2][t] = next_term(w[i / 2][i % 2]);
        }
    }
}

/* A lane's elements of two rows in a part of K. from: the rows. */
__device__ __forceinline__ static void load_rows(const struct scores_params &p, const bf16_t *from,
                                                 int64_t stride, int32_t part,
                                                 uint32_t (&x)[STEPS][4])
{
    const int32_t row = blockIdx.y * TILE + (int32_t)(threadIdx.x >> 2 & 7);
#pragma unroll
    for (int i = 0; i < 4 * STEPS; i++) {
        const int32_t r = row + (i & 1) * 8, at = pair_column(part, i / 4, i >> 1 & 1);
        x[i / 4][i % 4] =
            r < p.n_rows && at < p.hidden ? *(const uint32_t *)(from + r * stride + at) : 0;
    }
}

/* The products of 16 rows and eight experts over a part of K, summed in the order of multiply(). */
__device__ __forceinline__ static void multiply_part(const uint32_t (&x)[STEPS][4],
                                                     const uint32_t (&terms)[STEPS][2][TERMS],
                                                     float (&sum)[4])
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int t = TERMS - 1; t >= 0; t--) {
            mma_16x8x16(sum, x[s], terms[s][0][t], terms[s][1][t], bf16_t());
        }
    }
}

/* The norm before the router. */
struct fixed_norm {
    struct few_norm norm;
    bf16_t *out; // what the router and the experts read, p.x
};

/* The thread's run of the norm's weights. */
__device__ __forceinline__ static void load_norm_weights(const struct few_norm &n, int32_t hidden,
                                                         float (&w)[RUN])
{
    const int32_t at = (int32_t)threadIdx.x * RUN;
#pragma unroll
    for (int e = 0; e < RUN; e++) {
        w[e] = n.weight && at < hidden ? n.weight[at + e] + n.offset : 1.0f;
    }
}

/* Normalises the rows into shared memory. As in norm.cu, a thread has a run of a row, and so the
 * bits are the same. The first block also stores the results. */
__device__ __forceinline__ static void norm_rows(const struct scores_params &p,
                                                 const struct fixed_norm &n, const float (&w)[RUN],
                                                 bf16_t *to, float *shared)
{
    const int32_t at = (int32_t)threadIdx.x * RUN;
    const bool is = at < p.hidden;
#pragma unroll 1
    for (int32_t row = 0; row < p.n_rows; row++) {
        vec<bf16_t> v;
        float sum = 0.0f;
        if (is) {
            v = added<bf16_t>(n.norm, row, at);
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                sum = moment_add(sum, to_float(v.v[e]), false);
            }
        }
        const float scale = 1.0f / sqrtf(block_sum(sum, shared) / (float)p.hidden + n.norm.eps);
        if (is) {
#pragma unroll
            for (int e = 0; e < RUN; e++) {
                v.v[e] = from_float<bf16_t>(normed(to_float(v.v[e]), w[e], 0.0f, 0.0f, scale));
            }
            v.store(to + row * p.hidden + at);
            if (blockIdx.x == 0) {
                v.store(n.out + row * p.x_stride + at);
            }
        }
    }
    __syncthreads();
}

/* A block has 16 rows and eight experts; each warp takes one part of K after another. All of a part
 * is loaded before it is multiplied, because few rows are bound by latency. NORM: also normalises
 * the rows, up to NORM_ROWS. It triggers first, so that the next kernel, `up` of few_fixed.cu,
 * fetches its code meanwhile. */
template <bool NORM>
__global__ void __launch_bounds__(PART_WARPS * 32)
    route_fixed_kernel(struct scores_params p, struct fixed_norm n)
{
    extern __shared__ __align__(16) float sums[]; // [parts][TILE][TILE_EXPERTS], then normed rows
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int32_t n_parts = (p.hidden + PART - 1) / PART;
    const bf16_t *rows = p.x;
    uint32_t terms[STEPS][2][TERMS], x[STEPS][4];
    if (NORM) {
        pdl_trigger();
    }
    load_part(p, warp, terms);
    if constexpr (NORM) {
        __shared__ float shared[32]; // without a norm, `sums` may take all that a block gets
        float w[RUN];
        load_norm_weights(n.norm, p.hidden, w);
        pdl_wait();
        bf16_t *to = (bf16_t *)(sums + n_parts * TILE * TILE_EXPERTS);
        norm_rows(p, n, w, to, shared);
        rows = to;
    } else {
        pdl_wait();
        pdl_trigger();
    }
    for (int32_t part = warp; part < n_parts; part += PART_WARPS) {
        float sum[4] = {};
        load_rows(p, rows, NORM ? p.hidden : p.x_stride, part, x);
        multiply_part(x, terms, sum);
        if (part + PART_WARPS < n_parts) {
            load_part(p, part + PART_WARPS, terms);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = (lane >> 2) + (i >> 1) * 8, e = (lane & 3) * 2 + (i & 1);
            sums[(part * TILE + r) * TILE_EXPERTS + e] = sum[i];
        }
    }
    __syncthreads();
    const int32_t row = blockIdx.y * TILE + threadIdx.x / TILE_EXPERTS;
    const int32_t e = blockIdx.x * TILE_EXPERTS + threadIdx.x % TILE_EXPERTS;
    if (threadIdx.x < TILE * TILE_EXPERTS && row < p.n_rows && e < p.n_experts) {
        float total = 0.0f;
        for (int32_t part = 0; part < n_parts; part++) {
            total += sums[part * TILE * TILE_EXPERTS + threadIdx.x];
        }
        p.logits[(int64_t)row * p.n_experts + e] = total + (p.bias ? p.bias[e] : 0.0f);
    }
}

bool k_moe_scores_fixed_takes(const struct moe_route_args *a, enum dtype router_dtype,
                              int32_t hidden)
{
    return a->x.dtype == DT_BF16 && router_dtype == DT_F32 && hidden % 8 == 0 &&
           hidden <= PART * MOST_PARTS && vec_ok(a->x.mem.p, a->x.stride, hidden, sizeof(bf16_t));
}

static struct scores_params params_of(const struct moe_route_args *a, const float *router,
                                      const float *bias, int32_t hidden, float *logits)
{
    return {(const bf16_t *)a->x.mem.p,
            router,
            bias,
            logits,
            a->x.stride,
            a->n_rows,
            a->n_experts,
            hidden};
}

/* Shared memory of route_fixed_kernel for the sums of all parts. */
static size_t sums_bytes(int32_t hidden)
{
    return (size_t)((hidden + PART - 1) / PART) * TILE * TILE_EXPERTS * sizeof(float);
}

/* True if blocks of MOST_EXPERTS experts would be too few. */
static bool few_blocks(const struct scores_params &p)
{
    enum { FEW_BLOCKS = 66 }; // half of a device's multiprocessors
    return (p.n_rows + ROWS - 1) / ROWS * ((p.n_experts - 1) / MOST_EXPERTS + 1) <= FEW_BLOCKS;
}

cudaError_t k_moe_scores_fixed(cudaStream_t stream, const struct moe_route_args *a,
                               const float *router, const float *bias, int32_t hidden,
                               float *logits)
{
    const struct scores_params p = params_of(a, router, bias, hidden, logits);
    if (p.n_rows < ROWS) {
        const dim3 grid((p.n_experts + TILE_EXPERTS - 1) / TILE_EXPERTS,
                        (p.n_rows + TILE - 1) / TILE);
        return launch(route_fixed_kernel<false>, grid, dim3(PART_WARPS * 32), sums_bytes(hidden),
                      stream, p, fixed_norm{});
    }
    return few_blocks(p) ? launch_scores<FEW_EXPERTS, true>(stream, p)
                         : launch_scores<MOST_EXPERTS, true>(stream, p);
}

bool k_moe_scores_norm_takes(const struct moe_route_args *a, enum dtype router_dtype,
                             int32_t hidden)
{
    return k_moe_scores_fixed_takes(a, router_dtype, hidden) && a->n_rows <= NORM_ROWS &&
           hidden <= NORM_HIDDEN;
}

cudaError_t k_moe_scores_norm(cudaStream_t stream, const struct moe_route_args *a,
                              const struct norm_args *norm, const float *norm_weight,
                              const float *router, const float *bias, int32_t hidden, float *logits)
{
    const auto kernel = route_fixed_kernel<true>;
    const struct scores_params p = params_of(a, router, bias, hidden, logits);
    const struct fixed_norm n = {few_norm_of(norm, norm_weight), (bf16_t *)a->x.mem.p};
    const size_t n_bytes = sums_bytes(hidden) + (size_t)a->n_rows * (size_t)hidden * sizeof(bf16_t);
    const cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)n_bytes);
    return e != cudaSuccess ? e
                            : launch(kernel, dim3((p.n_experts + TILE_EXPERTS - 1) / TILE_EXPERTS),
                                     dim3(PART_WARPS * 32), n_bytes, stream, p, n);
}

cudaError_t k_moe_scores(cudaStream_t stream, const struct moe_route_args *a, const float *router,
                         const float *bias, int32_t hidden, float *logits)
{
    const struct scores_params p = params_of(a, router, bias, hidden, logits);
    return few_blocks(p) ? k_moe_scores_some(stream, p)
                         : launch_scores<MOST_EXPERTS, false>(stream, p);
}
