/* Small products: against a naive product over odd shapes, then timed against cuBLASLt. */
#include "cuda/gemm.h"
#include "test/bench/bench.cuh"

#include <cublasLt.h>

template <typename T, typename Y>
__global__ void naive_kernel(struct gemm_args a, float *out)
{
    const int f = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (f < a.n_out) {
        float sum = 0.0f;
        for (int k = 0; k < a.n_in; k++) {
            sum += to_float(((const T *)a.x)[(int64_t)r * a.x_stride + k]) *
                   to_float(((const T *)a.weight)[(int64_t)f * a.n_in + k]);
        }
        sum += a.bias ? a.bias[f] : 0.0f;
        sum += a.accumulate ? to_float(((const Y *)a.y)[(int64_t)r * a.y_stride + f]) : 0.0f;
        out[(int64_t)r * a.n_out + f] = sum;
    }
}

static void naive(const struct gemm_args &a, float *out)
{
    const dim3 grid((a.n_out + 127) / 128, a.n_rows);
    if (a.x_dtype == DT_BF16) {
        a.y_dtype == DT_F32 ? naive_kernel<bf16_t, float><<<grid, 128>>>(a, out)
                            : naive_kernel<bf16_t, bf16_t><<<grid, 128>>>(a, out);
    } else {
        a.y_dtype == DT_F32 ? naive_kernel<f16_t, float><<<grid, 128>>>(a, out)
                            : naive_kernel<f16_t, f16_t><<<grid, 128>>>(a, out);
    }
    CHECK(cudaGetLastError());
}

static void check_one(struct rng &r)
{
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = r.below(2) ? a.x_dtype : DT_F32;
    a.n_rows = r.below(3) == 0 ? 1 : r.between(1, 64);
    a.n_out = r.between(1, r.below(4) ? 3000 : 20000);
    a.n_in = 8 * r.between(1, r.below(4) ? 300 : 1800);
    a.x_stride = a.n_in + 8 * r.below(3);
    a.y_stride = a.n_out + r.below(9);
    a.accumulate = r.below(2);
    a.n_batch = 1;
    const size_t n_y = (size_t)a.n_rows * a.y_stride;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    void *y = device_new<float>(n_y);
    float *bias = device_new<float>(a.n_out), *expected = device_new<float>((size_t)a.n_rows * a.n_out);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.05f);
    fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
    if (a.accumulate) {
        fill(y, a.y_dtype, (int64_t)n_y, r.next(), 1.0f);
    } else {
        CHECK(cudaMemset(y, 0xff, n_y * dtype_bytes(a.y_dtype)));
    }
    if (!gemm_small_takes(&a, 90)) {
        a.n_rows = a.n_rows % 32 + 1;
    }
    a.x = x;
    a.weight = w;
    a.y = y;
    a.bias = r.below(2) ? bias : nullptr;
    naive(a, expected);
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_small(0, &a));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> all = to_host(y, a.y_dtype, n_y);
    const std::vector<float> want = to_host(expected, DT_F32, (size_t)a.n_rows * a.n_out);
    std::vector<float> got;
    for (int i = 0; i < a.n_rows; i++) {
        got.insert(got.end(), all.begin() + (size_t)i * a.y_stride,
                   all.begin() + (size_t)i * a.y_stride + a.n_out);
    }
    const double d = distance(got, want);
    if (!(d < (a.y_dtype == DT_F32 ? 1e-4 : a.y_dtype == DT_F16 ? 1e-3 : 5e-3))) {
        printf("gemm_small FAILED: %d x %d x %d dtype %d -> %d acc %d bias %d: distance %g\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, a.y_dtype, a.accumulate, a.bias != nullptr, d);
        bench_failures++;
    }
    for (void *p : {x, w, y, (void *)bias, (void *)expected}) {
        CHECK(cudaFree(p));
    }
}

/* Any plan, also such as no product is made by. */
static void check_wide(struct rng &r)
{
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = r.below(2) ? a.x_dtype : DT_F32;
    a.n_rows = r.between(1, 64);
    a.n_out = r.between(1, r.below(4) ? 3000 : 20000);
    a.n_in = 8 * r.between(1, r.below(4) ? 300 : 1800);
    a.x_stride = a.n_in + 8 * r.below(3);
    a.y_stride = a.n_out + r.below(9);
    a.n_batch = 1;
    struct wide_plan plan = {};
    plan.band = r.below(2) ? 112 : 128;
    plan.n_splits = r.below(2) ? 1 : std::min(r.between(2, 6), (a.n_in + 63) / 64);
    plan.cluster = 1 << r.below(3);
    plan.n_blocks = r.below(3) ? 132 : r.between(4, 132);
    const bool split = plan.n_splits > 1;
    a.accumulate = !split && r.below(2);
    const size_t n_y = (size_t)a.n_rows * a.y_stride, n_sum = (size_t)a.n_rows * a.n_out;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    void *y = device_new<float>(n_y);
    float *sums = device_new<float>(n_sum * plan.n_splits), *expected = device_new<float>(n_sum);
    float *bias = device_new<float>(a.n_out);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.05f);
    fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
    CHECK(cudaMemset(sums, 0xff, n_sum * plan.n_splits * 4));
    if (a.accumulate) {
        fill(y, a.y_dtype, (int64_t)n_y, r.next(), 1.0f);
    } else {
        CHECK(cudaMemset(y, 0xff, n_y * dtype_bytes(a.y_dtype)));
    }
    a.x = x;
    a.weight = w;
    a.y = y;
    a.bias = !split && r.below(2) ? bias : nullptr;
    naive(a, expected);
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_wide(0, &a, &plan, sums));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> all = split ? to_host(sums, DT_F32, n_sum * plan.n_splits)
                                         : to_host(y, a.y_dtype, n_y);
    const std::vector<float> want = to_host(expected, DT_F32, n_sum);
    std::vector<float> got(n_sum);
    for (size_t i = 0; i < n_sum; i++) {
        got[i] = all[split ? i : i / a.n_out * a.y_stride + i % a.n_out];
        for (int k = 1; k < plan.n_splits; k++) {
            got[i] += all[k * n_sum + i];
        }
    }
    const double d = distance(got, want);
    if (!(d < (split || a.y_dtype == DT_F32 ? 1e-4 : a.y_dtype == DT_F16 ? 1e-3 : 5e-3))) {
        printf("gemm_wide FAILED: %d x %d x %d dtype %d -> %d acc %d bias %d, band %d runs %d "
               "cluster %d blocks %d: distance %g\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, a.y_dtype, a.accumulate, a.bias != nullptr,
               plan.band, plan.n_splits, plan.cluster, plan.n_blocks, d);
        bench_failures++;
    }
    for (void *p : {x, w, y, (void *)bias, (void *)expected, (void *)sums}) {
        CHECK(cudaFree(p));
    }
}

void bench_gemm_check()
{
    struct rng r = {1}, of_wide = {2};
    for (int i = 0; i < 100; i++) {
        check_wide(of_wide);
    }
    printf("gemm_wide: 100 products checked\n");
    for (int i = 0; i < 60; i++) {
        check_one(r);
    }
    printf("gemm_small: 60 products checked\n");
}

/* ---- timing -------------------------------------------------------------------------------- */

struct lt_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulHeuristicResult_t plan;
};

static cublasLtHandle_t lt;
enum { LT_WORKSPACE = 32 << 20 };

#define LT(call)                                                                                   \
    do {                                                                                           \
        const cublasStatus_t lt_status = (call);                                                   \
        if (lt_status != CUBLAS_STATUS_SUCCESS) {                                                  \
            printf("%s: %d\n", #call, (int)lt_status);                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static struct lt_product lt_open(int m, int n, int k)
{
    struct lt_product p;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace = LT_WORKSPACE;
    cublasLtMatmulPreference_t preference;
    int found = 0;
    LT(cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                      sizeof transposed));
    LT(cublasLtMatrixLayoutCreate(&p.w, CUDA_R_16BF, k, n, k));
    LT(cublasLtMatrixLayoutCreate(&p.x, CUDA_R_16BF, k, m, k));
    LT(cublasLtMatrixLayoutCreate(&p.y, CUDA_R_16BF, n, m, n));
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof workspace));
    LT(cublasLtMatmulAlgoGetHeuristic(lt, p.desc, p.w, p.x, p.y, p.y, preference, 1, &p.plan, &found));
    LT(cublasLtMatmulPreferenceDestroy(preference));
    return p;
}

void bench_gemm_time()
{
    static const struct {
        const char *name;
        int n, k;
    } shapes[] = {{"qkv", 6144, 4096},
                  {"o", 4096, 4096},
                  {"gate_up", 28672, 4096},
                  {"down", 4096, 14336},
                  {"head", 128256, 4096}};
    LT(cublasLtCreate(&lt));
    const size_t pool = (size_t)3 << 30;
    char *weights = device_new<char>(pool), *x = device_new<char>(64 * 14336 * 2);
    char *y = device_new<char>(64 * 128256 * 2), *lt_workspace = device_new<char>(LT_WORKSPACE);
    fill(weights, DT_BF16, (int64_t)pool / 2, 3, 0.03f);
    fill(x, DT_BF16, 64 * 14336, 4, 1.0f);
    printf("small products, bf16, in a graph of dependent launches over rotating weights\n");
    printf("%-8s %4s %9s %7s %7s   %9s %7s   %s\n", "shape", "rows", "own us", "TB/s", "of 4.3",
           "cublas us", "TB/s", "own / cublas speed");
    for (const auto &s : shapes) {
        const size_t bytes = (size_t)s.n * s.k * 2;
        const int n_copies = (int)(pool / bytes);
        const int n = std::max(4, std::min(24, n_copies));
        for (int m : {1, 2, 4, 8, 16, 32, 64}) {
            if (getenv("SHORT") && m != 1 && m != 16 && m != 64) {
                continue;
            }
            const double own = time_us(n, [&](cudaStream_t stream, int i) {
                struct gemm_args a = {};
                a.x = x;
                a.weight = weights + bytes * (size_t)(i % n_copies);
                a.y = y;
                a.x_dtype = a.w_dtype = a.y_dtype = DT_BF16;
                a.n_rows = m;
                a.n_out = a.y_stride = s.n;
                a.n_in = a.x_stride = s.k;
                a.n_batch = 1;
                struct wide_plan plan;
                CHECK(gemm_wide_takes(&a, 90, 132, &plan) ? gemm_wide(stream, &a, &plan, nullptr)
                                                          : gemm_small(stream, &a));
            });
            const bool taken = m <= 32 || s.n > 10000;
            const struct lt_product p = lt_open(m, s.n, s.k);
            const float one = 1.0f, zero = 0.0f;
            const double theirs = time_us(n, [&](cudaStream_t stream, int i) {
                LT(cublasLtMatmul(lt, p.desc, &one, weights + bytes * (size_t)(i % n_copies), p.w, x,
                                  p.x, &zero, y, p.y, y, p.y, &p.plan.algo, lt_workspace,
                                  LT_WORKSPACE, stream));
            });
            printf("%-8s %4d %9.2f %7.2f %6.0f%%   %9.2f %7.2f   %.2f%s\n", s.name, m, own,
                   bytes / own * 1e-6, bytes / own * 1e-6 / 4.3 * 100, theirs,
                   bytes / theirs * 1e-6, theirs / own, taken ? "" : " (left to cuBLASLt)");
        }
    }
    for (void *p : {(void *)weights, (void *)x, (void *)y, (void *)lt_workspace}) {
        CHECK(cudaFree(p));
    }
}
