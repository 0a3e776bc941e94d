// SPDX-License-Identifier: Apache-2.0
/* Checks products of odd shapes against a naive product. In deterministic mode, also checks that a
 * row has the same bits whatever the number of rows. */
#include "bench/ops/bench.cuh"
#include "cuda/cuda_fixed.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"

#include <cmath>
#include <cstring>

/* Random shapes around the limits of gemm_small, and of gemm_single. The padding of rows must stay
 * unchanged. */
static void check_one(struct rng &r)
{
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = r.below(2) ? a.x_dtype : DT_F32;
    a.n_rows = r.below(3) == 0 ? 1 : r.between(1, 64);
    a.n_out = r.between(1, r.below(4) ? 3000 : 20000);
    a.n_in = 8 * r.between(1, r.below(4) ? 300 : 1800);
    a.x_stride = a.n_in + 8 * r.below(3);
    a.gated = r.below(3) == 0;
    if (a.gated) {
        a.y_dtype = a.x_dtype;
        a.n_rows = r.below(3) == 0 ? 1 : r.between(1, 32);
        a.n_out = (a.n_out + 15) / 16 * 16;
    }
    const int n_y_out = a.gated ? a.n_out / 2 : a.n_out;
    if (a.gated) {
        a.y_stride = n_y_out + 8 * r.below(3);
    } else {
        a.y_stride = a.n_out + r.below(9);
    }
    a.accumulate = !a.gated && r.below(2);
    a.n_batch = 1;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    void *y = device_new<float>((size_t)a.n_rows * a.y_stride);
    struct output out = {y, a.y_dtype, a.n_rows, n_y_out, a.y_stride, a.accumulate};
    float *bias = device_new<float>(a.n_out),
          *expected = device_new<float>((size_t)a.n_rows * a.n_out);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.05f);
    fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
    out.prepare(r);
    if (!gemm_small_takes(&a, 90, 132)) {
        a.n_rows = out.n_rows = a.n_rows % 32 + 1;
    }
    a.x = x;
    a.weight = w;
    a.y = y;
    a.bias = !a.gated && r.below(2) ? bias : nullptr;
    bench_naive(a, expected);
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_single_takes(&a, 90, 132) ? gemm_single(0, &a, 132) : gemm_small(0, &a, 132));
    CHECK(cudaDeviceSynchronize());
    std::vector<float> want = to_host(expected, DT_F32, (size_t)a.n_rows * a.n_out);
    if (a.gated) {
        want = bench_silu_gated(want, a.n_rows, n_y_out, a.x_dtype);
    }
    bool padding_kept;
    const std::vector<float> got = out.read(&padding_kept);
    const double d = distance(got, want);
    if (!padding_kept || !(d < most_of(a.y_dtype, 3e-5, a.gated))) {
        printf("gemm_small FAILED: %d x %d x %d dtype %d -> %d acc %d bias %d gated %d: distance "
               "%g, padding kept %d\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, a.y_dtype, a.accumulate, a.bias != nullptr,
               a.gated, d, padding_kept);
        bench_failures++;
    }
    for (void *p : {x, w, y, (void *)bias, (void *)expected}) {
        CHECK(cudaFree(p));
    }
}

/* A random product for gemm_wide, and a plan that may compute it. */
static struct wide_plan random_wide(struct rng &r, struct gemm_args &a)
{
    a.x_dtype = a.w_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = r.below(2) ? a.x_dtype : DT_F32;
    a.n_rows = r.between(1, 64);
    a.n_out = r.between(1, r.below(4) ? 3000 : 20000);
    a.n_in = 8 * r.between(1, r.below(4) ? 300 : 1800);
    a.x_stride = a.n_in + 8 * r.below(3);
    a.accumulate = r.below(3) == 0;
    a.n_batch = 1;
    struct wide_plan plan = {};
    plan.n_splits = a.accumulate ? 1 : std::min(r.between(1, 6), (a.n_in + 63) / 64);
    if (plan.n_splits == 1 && !a.accumulate && r.below(2)) {
        a.gated = true;
        a.y_dtype = a.x_dtype;
        a.n_out = (a.n_out + 1) / 2 * 2;
    }
    if (plan.n_splits > 1 || a.gated) {
        a.n_rows = r.between(1, 128);
    }
    const int other = plan.n_splits > 1 || a.y_dtype == DT_F32 ? 192 : 112;
    const int bands[] = {128, other, 96, 64, 48};
    int n_bands = other == 192 ? 4 : 5;
    if (a.n_rows > 64) {
        n_bands = 2;
    }
    plan.band = a.gated && a.n_rows > 64 ? 224 : bands[r.below(n_bands)];
    return plan;
}

/* The same for gemm_wide; the host adds up the partial sums. */
static void check_wide(struct rng &r)
{
    struct gemm_args a = {};
    const struct wide_plan plan = random_wide(r, a);
    const int n_y_out = a.gated ? a.n_out / 2 : a.n_out;
    if (r.below(2)) {
        a.y_stride = (n_y_out + 7) / 8 * 8;
    } else {
        a.y_stride = n_y_out + r.below(9);
    }
    const int n_blocks = r.below(3) ? 132 : r.between(1, 132);
    const size_t n_part = (size_t)a.n_rows * a.n_out;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    void *y = device_new<float>((size_t)a.n_rows * a.y_stride);
    const struct output out = {y, a.y_dtype, a.n_rows, n_y_out, a.y_stride, a.accumulate};
    float *parts = device_new<float>(n_part * plan.n_splits);
    float *bias = device_new<float>(a.n_out), *expected = device_new<float>(n_part);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.05f);
    fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
    CHECK(cudaMemset(parts, 0xff, n_part * plan.n_splits * 4));
    out.prepare(r);
    a.x = x;
    a.weight = w;
    a.y = y;
    a.bias = !a.gated && r.below(2) ? bias : nullptr;
    bench_naive(a, expected);
    CHECK(cudaDeviceSynchronize());
    const struct sum_parts sums = {parts, a.bias, (int64_t)n_part, a.n_out, plan.n_splits};
    CHECK(gemm_wide(0, &a, n_blocks, &plan, &sums));
    if (plan.n_splits > 1) {
        CHECK(gemm_join(0, &a, &sums));
    }
    CHECK(cudaDeviceSynchronize());
    std::vector<float> want = to_host(expected, DT_F32, n_part);
    if (a.gated) {
        want = bench_silu_gated(want, a.n_rows, n_y_out, a.x_dtype);
    }
    bool padding_kept;
    const std::vector<float> got = out.read(&padding_kept);
    const double d = distance(got, want);
    if (!padding_kept || !(d < most_of(a.y_dtype, 3e-5, a.gated))) {
        printf("gemm_wide FAILED: %d x %d x %d dtype %d -> %d acc %d bias %d gated %d, band %d "
               "splits %d "
               "blocks %d: distance %g, padding kept %d\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, a.y_dtype, a.accumulate, a.bias != nullptr,
               a.gated, plan.band, plan.n_splits, n_blocks, d, padding_kept);
        bench_failures++;
    }
    for (void *p : {x, w, y, (void *)bias, (void *)expected, (void *)parts}) {
        CHECK(cudaFree(p));
    }
}

/* Gated products of many rows: a cluster has one or several items, tiles are in one or several
 * groups, and the last tile and band are short. */
static void check_batch(struct rng &r)
{
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = a.y_dtype = r.below(2) ? DT_BF16 : DT_F16;
    const bool is_long = r.below(4) == 0;
    a.n_rows =
        is_long ? r.between(257, 4500) : r.between(129, 256); // any kernel that supports so many
    a.n_in = 8 * r.between(16, r.below(4) ? 150 : 520);
    int widest = 120;
    if (!is_long) {
        widest = r.below(4) ? 900 : 1900;
    }
    const int width = 8 * r.between(1, widest);
    a.n_out = 2 * width;
    a.x_stride = a.n_in + 8 * r.below(3);
    a.y_stride = width + 2 * r.below(5);
    a.gated = true;
    a.n_batch = 1;
    const int n_sms = r.below(3) ? 132 : r.between(2, 132);
    const size_t n_product = (size_t)a.n_rows * a.n_out;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    void *y = device_new<float>((size_t)a.n_rows * a.y_stride);
    const struct output out = {y, a.y_dtype, a.n_rows, width, a.y_stride, false};
    float *expected = device_new<float>(n_product);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.02f);
    out.prepare(r);
    a.x = x;
    a.weight = w;
    a.y = y;
    bench_naive(a, expected);
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_batch(0, &a, n_sms));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> want =
        bench_silu_gated(to_host(expected, DT_F32, n_product), a.n_rows, width, a.x_dtype);
    bool padding_kept;
    const std::vector<float> got = out.read(&padding_kept);
    const double d = distance(got, want);
    if (!padding_kept || !(d < most_of(a.y_dtype, 0, true))) {
        printf("gemm_batch FAILED: %d x %d x %d dtype %d on %d: distance %g, padding kept %d\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, n_sms, d, padding_kept);
        bench_failures++;
    }
    for (void *p : {x, w, y, (void *)expected}) {
        CHECK(cudaFree(p));
    }
}

/* Spoils the weights of some features, so that their logits are equal, infinite or NaN: copies the
 * row of another feature, or sets one element to infinity or NaN. */
static void spoil_features(struct rng &r, void *w, const struct gemm_args &a)
{
    const size_t bytes = (size_t)a.n_in * 2;
    const uint16_t nan = 0x7fff, infinity = a.w_dtype == DT_BF16 ? 0x7f80 : 0x7c00;
    for (int i = 0; i < a.n_out / 16; i++) {
        char *to = (char *)w + bytes * r.below(a.n_out);
        const int kind = r.below(40);
        if (kind < 30) { // equal rows: their logits tie, even in different bands
            CHECK(cudaMemcpy(to, (char *)w + bytes * r.below(a.n_out), bytes,
                             cudaMemcpyDeviceToDevice));
        } else if (kind == 30) {
            CHECK(cudaMemcpy(to, &nan, 2, cudaMemcpyHostToDevice));
            // Its logits are infinite, with the sign of x's element.
        } else if (kind == 31 && r.below(8) == 0) {
            CHECK(cudaMemcpy(to, &infinity, 2, cudaMemcpyHostToDevice));
        }
    }
}

/* The best pairs of each band must match the logits that the same kernel wrote; among equal logits
 * the lowest id wins. If a logit of the band is NaN, so is the best one. */
static bool same_bests(const struct gemm_args &a, const std::vector<float> &logits, int bands,
                       int stride, const std::vector<struct best_pair> &pairs)
{
    const int band = a.n_rows <= 128 ? 248 : 216;
    for (int row = 0; row < a.n_rows; row++) {
        for (int b = 0; b < stride; b++) {
            struct best_pair want = {-INFINITY, INT32_MAX};
            bool is_nan = false;
            for (int f = b * band; f < std::min(a.n_out, (b + 1) * band); f++) {
                const float v = logits[(size_t)row * a.y_stride + f];
                is_nan = is_nan || std::isnan(v);
                if (v > want.value) {
                    want.value = v;
                    want.id = f;
                }
            }
            const struct best_pair &got = pairs[(size_t)row * stride + b];
            const bool same =
                is_nan ? std::isnan(got.value) : got.value == want.value && got.id == want.id;
            if (b < bands ? !same : got.id != -1) {
                printf("row %d band %d: %d (%g), not %d (%g)\n", row, b, got.id, got.value, want.id,
                       want.value);
                return false;
            }
        }
    }
    return true;
}

/* The head: its logits, and for each row and band the first of the greatest logits. */
static void check_head(struct rng &r)
{
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = DT_F32;
    if (r.below(4) == 0) {
        a.n_rows = 128 * r.between(1, 2);
    } else {
        a.n_rows = r.between(1, 256);
    }
    a.n_in = 8 * r.between(1, r.below(4) ? 100 : 520);
    a.n_out = r.between(1, r.below(4) ? 4000 : 40000);
    a.x_stride = a.n_in + 8 * r.below(3);
    a.y_stride = a.n_out + r.below(9);
    a.n_batch = 1;
    const int n_sms = r.below(3) ? 132 : r.between(2, 132);
    const size_t n_y = (size_t)a.n_rows * a.y_stride;
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *w = device_new<float>((size_t)a.n_out * a.n_in / 2 + 64);
    float *y = device_new<float>(n_y), *bias = device_new<float>(a.n_out);
    float *expected = device_new<float>((size_t)a.n_rows * a.n_out);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(w, a.w_dtype, (int64_t)a.n_out * a.n_in, r.next(), 0.05f);
    fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
    if (r.below(2)) {
        spoil_features(r, w, a);
    }
    CHECK(cudaMemset(y, 0xff, n_y * 4));
    a.x = x;
    a.weight = w;
    a.y = y;
    a.bias = r.below(2) ? bias : nullptr;
    bench_naive(a, expected);
    const int bands = gemm_head_bands(&a), stride = bands + r.below(3);
    struct best_pair *pairs = device_new<struct best_pair>((size_t)a.n_rows * stride);
    CHECK(cudaMemset(pairs, 0xff, (size_t)a.n_rows * stride * sizeof *pairs));
    const struct row_bests bests = {pairs, stride, bands};
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_head(0, &a, n_sms, &bests, nullptr));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> all = to_host(y, DT_F32, n_y);
    const std::vector<float> naively = to_host(expected, DT_F32, (size_t)a.n_rows * a.n_out);
    std::vector<struct best_pair> got_pairs((size_t)a.n_rows * stride);
    CHECK(cudaMemcpy(got_pairs.data(), pairs, got_pairs.size() * sizeof *pairs,
                     cudaMemcpyDeviceToHost));
    std::vector<float> got, want;
    bool kept = true; // holds for padding, and for infinite and NaN logits
    for (int i = 0; i < a.n_rows; i++) {
        for (int c = 0; c < a.y_stride; c++) {
            const float v = all[(size_t)i * a.y_stride + c];
            const float e = c < a.n_out ? naively[(size_t)i * a.n_out + c] : NAN;
            if (std::isfinite(e)) {
                got.push_back(v);
                want.push_back(e);
            } else {
                kept = kept && (std::isnan(e) ? std::isnan(v) : v == e);
            }
        }
    }
    const double d = distance(got, want);
    if (!kept || !(d < 1e-5) || !same_bests(a, all, bands, stride, got_pairs)) {
        printf("gemm_head FAILED: %d x %d x %d dtype %d bias %d on %d: distance %g, kept %d\n",
               a.n_rows, a.n_out, a.n_in, a.x_dtype, a.bias != nullptr, n_sms, d, kept);
        bench_failures++;
    }
    for (void *p : {x, w, (void *)y, (void *)bias, (void *)expected, (void *)pairs}) {
        CHECK(cudaFree(p));
    }
}

enum { FIXED_MOST = 2048, FIXED_SUMS = 32 << 20 };

/* The bits of a product in deterministic mode; partial sums are added up. */
static std::vector<uint16_t> fixed_bits(struct gemm_args a, int rows, struct sum_parts sums)
{
    const int width = a.gated ? a.n_out / 2 : a.n_out;
    a.n_rows = rows;
    sums.stride = (int64_t)rows * a.n_out;
    CHECK(cudaMemset(a.y, 0xff, (size_t)rows * width * dtype_bytes(a.y_dtype)));
    CHECK(fixed_product(0, &a, 132, FIXED_SUMS, &sums));
    if (sums.n > 0) {
        CHECK(gemm_join(0, &a, &sums));
    }
    std::vector<uint16_t> y((size_t)rows * width * dtype_bytes(a.y_dtype) / 2);
    CHECK(cudaMemcpy(y.data(), a.y, y.size() * 2, cudaMemcpyDeviceToHost));
    return y;
}

/* The products of Llama-3.1-8B and of Qwen3-30B-A3B's attention: a row has the same bits for any
 * number of rows, and the results of 256 rows match the naive product. */
static void check_fixed(struct rng &r)
{
    static const struct {
        const char *name;
        int n, k;
        bool gated, is_head;
    } shapes[] = {{"qkv", 6144, 4096, false, false},
                  {"o", 4096, 4096, false, false},
                  {"gate_up", 28672, 4096, false, false},
                  {"gate_up with SiLU", 28672, 4096, true, false},
                  {"down", 4096, 14336, false, false},
                  {"head", 128256, 4096, false, true},
                  {"qkv of 30B-A3B", 5120, 2048, false, false},
                  {"o of 30B-A3B", 2048, 4096, false, false}};
    for (const auto &s : shapes) {
        for (enum dtype dtype : {DT_BF16, DT_F16}) {
            struct gemm_args a = {};
            a.x_dtype = a.w_dtype = dtype;
            a.y_dtype = s.is_head ? DT_F32 : dtype;
            a.n_out = s.n;
            a.n_in = a.x_stride = s.k;
            a.y_stride = s.gated ? s.n / 2 : s.n;
            a.gated = s.gated;
            a.n_batch = 1;
            a.may_split = true;
            void *x = device_new<float>((size_t)FIXED_MOST * s.k / 2);
            void *w = device_new<float>((size_t)s.n * s.k / 2);
            void *y = device_new<float>((size_t)FIXED_MOST * s.n);
            float *parts = device_new<float>(FIXED_SUMS / 4);
            fill(x, dtype, (int64_t)FIXED_MOST * s.k, r.next(), 1.0f);
            fill(w, dtype, (int64_t)s.n * s.k, r.next(), 0.02f);
            a.x = x;
            a.weight = w;
            a.y = y;
            const struct sum_parts sums = {parts, nullptr, 0, s.n, 0};
            const std::vector<uint16_t> all = fixed_bits(a, FIXED_MOST, sums);
            for (int rows : {1, 2, 7, 16, 32, 33, 64, 65, 128, 129, 200, 256, 257, 512, 1000}) {
                const std::vector<uint16_t> got = fixed_bits(a, rows, sums);
                size_t differ = 0;
                for (size_t i = 0; i < got.size(); i++) {
                    differ += got[i] != all[i];
                }
                if (differ > 0) {
                    printf("%s FAILED: dtype %d, %d rows: %zu of %zu words differ from those among "
                           "2,048 rows\n",
                           s.name, dtype, rows, differ, got.size());
                    bench_failures++;
                }
            }
            if (!s.gated) {
                float *expected = device_new<float>((size_t)256 * s.n);
                a.n_rows = 256;
                bench_naive(a, expected);
                CHECK(cudaDeviceSynchronize());
                const double d = distance(to_host(y, a.y_dtype, (size_t)256 * s.n),
                                          to_host(expected, DT_F32, (size_t)256 * s.n));
                if (!(d < most_of(a.y_dtype, 1e-5))) {
                    printf("%s FAILED: dtype %d: distance %g\n", s.name, dtype, d);
                    bench_failures++;
                }
                CHECK(cudaFree(expected));
            }
            for (void *p : {x, w, y, (void *)parts}) {
                CHECK(cudaFree(p));
            }
        }
    }
}

/* `only` names the kernel to check; NULL: all. */
bool bench_gemm_check(const char *only)
{
    static const struct {
        const char *name;
        int n;
        uint64_t seed;
        void (*check)(struct rng &r);
    } kinds[] = {{"fixed", 1, 5, check_fixed},
                 {"gemm_four", 200, 6, bench_four_check},
                 {"gemm_four_few", 120, 8, bench_four_few_check},
                 {"gemm_four_head", 40, 11, bench_four_head_check},
                 {"gemm_eight", 160, 7, bench_check_codes},
                 {"gemm_eight_many", 60, 9, bench_check_many_codes},
                 {"gemm_eight_rows", 20, 10, bench_check_rows_of_codes},
                 {"gemm_head", 60, 4, check_head},
                 {"gemm_batch", 60, 3, check_batch},
                 {"gemm_wide", 120, 2, check_wide},
                 {"gemm_small", 90, 1, check_one}};
    bool any = false;
    for (const auto &kind : kinds) {
        if (only && strcmp(only, kind.name) != 0) {
            continue;
        }
        struct rng r = {kind.seed};
        for (int i = 0; i < kind.n; i++) {
            kind.check(r);
        }
        printf("%s: %d products checked\n", kind.name, kind.n);
        any = true;
    }
    return any;
}
