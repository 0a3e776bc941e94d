// SPDX-License-Identifier: Apache-2.0
/* Times products against cuBLASLt. Each timing replays a graph of dependent launches that use
 * several weights in turn. */
#include "bench/ops/lt.cuh"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "engine/base/optional.h"

#include <cmath>

/* Times gate_up with its activation: our fused kernel, and cuBLASLt's product followed by the
 * activation op. */
static void time_gated(const char *weights, size_t pool, char *x, char *y, char *act,
                       void *workspace)
{
    const int n_out = 28672, k = 4096;
    const size_t bytes = (size_t)n_out * k * 2;
    const int n_copies = (int)(pool / bytes);
    printf("gate_up and SiLU, by rows: own us, cublas and activation op us\n");
    for (int m : {64, 128, 192, 224, 240, 256, 512, 768, 1024, 1920, 2048, 8192}) {
        struct gemm_args a = {};
        a.x = x;
        a.y = act;
        a.x_dtype = a.w_dtype = a.y_dtype = DT_BF16;
        a.n_rows = m;
        a.n_out = n_out;
        a.n_in = a.x_stride = k;
        a.y_stride = n_out / 2;
        a.n_batch = 1;
        a.gated = true;
        a.weight = weights;
        struct wide_plan plan = {};
        const bool wide = gemm_wide_takes(&a, 90, 132, 0, &plan);
        const int n = m > 256 ? 4 : 12;
        const double own = time_us(n, [&](cudaStream_t stream, int i) {
            struct gemm_args one = a;
            one.weight = weights + bytes * (size_t)(i % n_copies);
            CHECK(wide ? gemm_wide(stream, &one, 132, &plan, nullptr)
                       : gemm_batch(stream, &one, 132));
        });
        struct activation_args silu = {};
        silu.x.mem.p = y;
        silu.x.dtype = silu.out.dtype = DT_BF16;
        silu.x.stride = n_out;
        silu.out.mem.p = act;
        silu.out.stride = silu.width = n_out / 2;
        silu.n_rows = m;
        silu.kind = ACT_SILU;
        silu.gated = true;
        const struct lt_product p = lt_open(m, n_out, k);
        const double theirs = time_us(n, [&](cudaStream_t stream, int i) {
            lt_issue(p, weights + bytes * (size_t)(i % n_copies), x, y, workspace, stream);
            CHECK(k_activation(stream, &silu));
        });
        printf("%4d  %7.2f (%s%s)  %7.2f\n", m, own, wide ? "wide" : "batch",
               wide || gemm_batch_takes(&a, 90, 132) ? "" : ", not taken", theirs);
    }
}

/* Successive launches take their weights from a pool larger than the L2 cache, because a model's
 * next layer has other weights. */
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
    lt_start();
    const size_t pool = (size_t)3 << 30;
    enum { MOST = 8192 }; // rows of gate_up
    char *weights = device_new<char>(pool), *x = device_new<char>((size_t)MOST * 14336 * 2);
    char *y = device_new<char>((size_t)MOST * 28672 * 2);
    char *act = device_new<char>((size_t)MOST * 14336 * 2);
    char *lt_workspace = device_new<char>(LT_WORKSPACE);
    fill(weights, DT_BF16, (int64_t)pool / 2, 3, 0.03f);
    fill(x, DT_BF16, (int64_t)MOST * 14336, 4, 1.0f);
    float *sums = device_new<float>((size_t)8 * 128 * 28672);
    printf("products of few rows, bf16, in a graph of dependent launches over rotating weights\n");
    printf("%-8s %4s %9s %7s %7s   %9s %7s   %s\n", "shape", "rows", "own us", "TB/s", "of 4.3",
           "cublas us", "TB/s", "own / cublas speed");
    for (const auto &s : shapes) {
        const size_t bytes = (size_t)s.n * s.k * 2;
        const int n_copies = (int)(pool / bytes);
        const int n = std::max(4, std::min(24, n_copies));
        for (int m : {1, 2, 4, 8, 16, 32, 64, 128}) {
            if (getenv("SHORT") && m != 1 && m != 16 && m != 64) {
                continue;
            }
            struct gemm_args a = {};
            a.x = x;
            a.weight = weights;
            a.y = y;
            a.x_dtype = a.w_dtype = a.y_dtype = DT_BF16;
            a.n_rows = m;
            a.n_out = a.y_stride = s.n;
            a.n_in = a.x_stride = s.k;
            a.n_batch = 1;
            // The op that reads the product would add the sums; these times do not include it.
            a.may_split = true;
            struct wide_plan plan = {};
            const size_t sums_bytes = (size_t)8 * 128 * 28672 * 4;
            const bool wide = gemm_wide_takes(&a, 90, 132, sums_bytes, &plan);
            const bool small = !wide && gemm_small_takes(&a, 90, 132);
            const struct sum_parts parts = {sums, nullptr, (int64_t)m * s.n, s.n, plan.n_splits};
            const double own = !wide && !small ? NAN : time_us(n, [&](cudaStream_t stream, int i) {
                struct gemm_args one = a;
                one.weight = weights + bytes * (size_t)(i % n_copies);
                CHECK(wide ? gemm_wide(stream, &one, 132, &plan, &parts)
                           : gemm_small(stream, &one, 132));
            });
            const struct lt_product p = lt_open(m, s.n, s.k);
            const double theirs = time_us(n, [&](cudaStream_t stream, int i) {
                lt_issue(p, weights + bytes * (size_t)(i % n_copies), x, y, lt_workspace, stream);
            });
            const char *note = text_if(wide, " wide");
            if (wide && plan.n_splits > 1) {
                note = "  wide, partial sums not added up";
            }
            printf("%-8s %4d %9.2f %7.2f %6.0f%%   %9.2f %7.2f   %.2f%s\n", s.name, m, own,
                   bytes / own * 1e-6, bytes / own * 1e-6 / 4.3 * 100, theirs,
                   bytes / theirs * 1e-6, theirs / own, note);
        }
    }
    time_gated(weights, pool, x, y, act, lt_workspace);
    for (void *p :
         {(void *)weights, (void *)x, (void *)y, (void *)act, (void *)lt_workspace, (void *)sums}) {
        CHECK(cudaFree(p));
    }
}
