// SPDX-License-Identifier: Apache-2.0
/* Checks products of two matrices of E4M3 codes against a naive product, over odd shapes. */
#include "bench/ops/bench.cuh"
#include "cuda/gemm.h"

#include <cmath>
#include <cuda_fp8.h>

/* Finite codes of all magnitudes up to 2, like those of a weight or of rounded inputs. */
__global__ void fill_codes_kernel(uint8_t *to, int64_t n, uint64_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = __nv_cvt_float_to_fp8(random_normal(seed, (uint64_t)i) * 0.5f, __NV_SATFINITE,
                                      __NV_E4M3);
    }
}

__global__ void fill_scales_kernel(float *to, int64_t n, uint64_t seed, float around)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = around * exp2f(random_normal(seed, (uint64_t)i));
    }
}

__device__ static float number_of(uint8_t code)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

/* One thread per output, in double precision. */
template <typename Y> __global__ void naive_codes_kernel(struct gemm_args a, float *out)
{
    const int f = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (f >= a.n_out) {
        return;
    }
    const struct product_scales s = *a.scales;
    double sum = 0.0;
    for (int k = 0; k < a.n_in; k++) {
        const double scale = s.n_blocks > 0 ? (double)s.x[(int64_t)(k / 128) * a.n_rows + r] *
                                                  s.w[(int64_t)(f / 128) * s.n_blocks + k / 128]
                                            : (double)s.x[r] * s.w[f];
        sum += scale * number_of(((const uint8_t *)a.x)[(int64_t)r * a.x_stride + k]) *
               number_of(((const uint8_t *)a.weight)[(int64_t)f * a.w_stride + k]);
    }
    sum += a.bias ? a.bias[f] : 0.0f;
    if (a.accumulate) {
        sum += to_float(((const Y *)a.y)[(int64_t)r * a.y_stride + f]);
    }
    out[(int64_t)r * a.n_out + f] = (float)sum;
}

static void naive_codes(const struct gemm_args &a, float *out)
{
    const dim3 grid((a.n_out + 127) / 128, a.n_rows);
    switch (a.y_dtype) {
    case DT_F32: naive_codes_kernel<float><<<grid, 128>>>(a, out); break;
    case DT_BF16: naive_codes_kernel<bf16_t><<<grid, 128>>>(a, out); break;
    default: naive_codes_kernel<f16_t><<<grid, 128>>>(a, out); break;
    }
    CHECK(cudaGetLastError());
}

/* Operands of one product, with room for the results. */
struct codes_case {
    struct gemm_args a;
    uint8_t *x, *w;
    float *x_scales, *w_scales, *y, *bias, *expected;
    struct product_scales *scales;
    size_t one;

    codes_case(struct rng &r, const struct gemm_args &shape) : a(shape)
    {
        const int down = (a.n_out + 127) / 128, across = (a.n_in + 127) / 128;
        one = (size_t)a.n_rows * a.n_out;
        x = device_new<uint8_t>((size_t)a.n_rows * a.x_stride);
        w = device_new<uint8_t>((size_t)a.n_out * a.w_stride);
        x_scales = device_new<float>((size_t)a.n_rows * across);
        w_scales = device_new<float>((size_t)down * (128 + across + 3));
        y = device_new<float>((size_t)a.n_rows * a.y_stride);
        bias = device_new<float>(a.n_out);
        expected = device_new<float>(one);
        CHECK(cudaMallocManaged(&scales, sizeof *scales));
        *scales = {w_scales, x_scales, r.below(2) ? (across + 3) / 4 * 4 : 0};
        const float around = 1.0f / sqrtf((float)a.n_in); // results of about 1
        fill_codes_kernel<<<256, 256>>>(x, (int64_t)a.n_rows * a.x_stride, r.next());
        fill_codes_kernel<<<256, 256>>>(w, (int64_t)a.n_out * a.w_stride, r.next());
        fill_scales_kernel<<<64, 256>>>(x_scales, (int64_t)a.n_rows * across, r.next(), 1.0f);
        fill_scales_kernel<<<64, 256>>>(w_scales, (int64_t)down * (128 + across + 3), r.next(),
                                        around);
        fill(bias, DT_F32, a.n_out, r.next(), 1.0f);
        output_of(a.n_out).prepare(r);
        a.x = x;
        a.weight = w;
        a.y = y;
        a.bias = shape.bias ? bias : nullptr;
        a.scales = scales;
    }
    ~codes_case()
    {
        for (void *p : {(void *)x, (void *)w, (void *)x_scales, (void *)w_scales, (void *)y,
                        (void *)bias, (void *)expected, (void *)scales}) {
            CHECK(cudaFree(p));
        }
    }

    std::vector<float> want()
    {
        naive_codes(a, expected);
        CHECK(cudaDeviceSynchronize());
        return to_host(expected, DT_F32, one);
    }

    struct output output_of(int width) const
    {
        return {y, a.y_dtype, a.n_rows, width, a.y_stride, a.accumulate};
    }

    void judge(const char *name, double d, double most, bool kept, int n_parts)
    {
        if (kept && d < most) {
            return;
        }
        printf("%s FAILED: %d x %d x %d -> %d blocks %d gated %d parts %d acc %d bias %d: distance "
               "%g, padding kept %d\n",
               name, a.n_rows, a.n_out, a.n_in, a.y_dtype, scales->n_blocks, a.gated, n_parts,
               a.accumulate, a.bias != nullptr, d, kept);
        bench_failures++;
    }
};

static struct gemm_args random_shape(struct rng &r)
{
    static const enum dtype results[] = {DT_BF16, DT_F16, DT_F32};
    static const float some = 0.0f;
    struct gemm_args a = {};
    a.x_dtype = a.w_dtype = DT_E4M3;
    a.y_dtype = results[r.below(3)];
    a.n_rows = r.below(3) == 0 ? 1 : r.between(1, 1 << r.between(1, 6));
    a.n_out = 16 * r.between(1, r.below(4) ? 200 : 1800);
    a.n_in = 16 * r.between(1, r.below(4) ? 200 : 1000);
    a.x_stride = a.n_in + 16 * r.below(3);
    a.w_stride = a.n_in + 16 * r.below(3);
    a.y_stride = a.n_out + 2 * r.below(5);
    a.accumulate = r.below(3) == 0;
    a.may_split = r.below(2);
    a.n_batch = 1;
    a.bias = r.below(2) ? &some : nullptr;
    return a;
}

/* Random shapes around the limits of gemm_eight; padding of rows must be kept. */
void bench_check_codes(struct rng &r)
{
    enum { MOST_PARTS = 8 };
    struct codes_case c(r, random_shape(r));
    const std::vector<float> want = c.want();
    float *parts = device_new<float>(MOST_PARTS * c.one);
    CHECK(cudaMemset(parts, 0xff, MOST_PARTS * c.one * sizeof *parts));
    struct sum_parts sums = {parts, c.a.bias, (int64_t)c.one, c.a.n_out, 0};
    CHECK(gemm_eight(0, &c.a, 132, nullptr, false, MOST_PARTS * c.one * sizeof *parts, &sums));
    if (sums.n > 0) {
        CHECK(gemm_join(0, &c.a, &sums));
    }
    CHECK(cudaDeviceSynchronize());
    bool kept = false;
    const double d = distance(c.output_of(c.a.n_out).read(&kept), want);
    c.judge("gemm_eight", d, most_of(c.a.y_dtype, 3e-4), kept, sums.n);
    CHECK(cudaFree(parts));
}

static struct gemm_args random_many(struct rng &r)
{
    struct gemm_args a = random_shape(r);
    a.gated = r.below(2);
    a.y_dtype = a.gated || r.below(3) ? DT_BF16 : DT_F32;
    a.n_rows = r.between(a.gated ? 1 : 65, 128);
    a.n_out = (a.gated ? 256 : 128) * r.between(1, 20);
    a.n_in = 16 * r.between(1, 200);
    a.x_stride = a.n_in + 16 * r.below(3);
    a.w_stride = a.n_in + 16 * r.below(3);
    a.y_stride = a.n_out + 8 * r.below(5);
    a.accumulate = false;
    return a;
}

/* The codes of a gated product are those of its results, rounded by the separate kernel. */
static void check_gated_codes(struct rng &r, struct gemm_args a)
{
    const int width = a.n_out / 2, groups = (width + 127) / 128;
    const size_t n = (size_t)a.n_rows * width, n_scales = (size_t)a.n_rows * groups;
    uint8_t *codes[2];
    float *scales[2];
    struct round_args round = {};
    round.x = a.y;
    round.x_dtype = DT_BF16;
    round.x_stride = a.y_stride;
    round.n_rows = a.n_rows;
    round.n_in = width;
    round.code_stride = width;
    round.power_of_two = r.below(2);
    if (r.below(3) == 0) {
        round.scale = 0.01f;
    } else {
        round.group = 128;
    }
    std::vector<uint8_t> host_codes[2];
    std::vector<float> host_scales[2];
    for (int i = 0; i < 2; i++) {
        codes[i] = device_new<uint8_t>(n);
        scales[i] = device_new<float>(n_scales);
        CHECK(cudaMemset(codes[i], 0xff, n));
        CHECK(cudaMemset(scales[i], 0, n_scales * sizeof(float)));
        round.codes = codes[i];
        round.scales = scales[i];
        if (i == 0) {
            CHECK(round_inputs(0, &round));
        } else {
            struct sum_parts none = {};
            a.y_codes = &round;
            a.y = nullptr;
            CHECK(gemm_eight_many(0, &a, 132, 0, &none));
        }
        host_codes[i].resize(n);
        host_scales[i].resize(n_scales);
        CHECK(cudaMemcpy(host_codes[i].data(), codes[i], n, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(host_scales[i].data(), scales[i], n_scales * sizeof(float),
                         cudaMemcpyDeviceToHost));
        CHECK(cudaFree(codes[i]));
        CHECK(cudaFree(scales[i]));
    }
    if (host_codes[0] != host_codes[1] || host_scales[0] != host_scales[1]) {
        printf("gemm_eight_many FAILED: codes of %d x %d x %d, group %d\n", a.n_rows, a.n_out,
               a.n_in, round.group);
        bench_failures++;
    }
}

/* The same for gemm_eight_many. */
void bench_check_many_codes(struct rng &r)
{
    enum { MOST_PARTS = 8 };
    struct codes_case c(r, random_many(r));
    std::vector<float> want = c.want();
    const int width = c.a.gated ? c.a.n_out / 2 : c.a.n_out;
    if (c.a.gated) {
        want = bench_silu_gated(want, c.a.n_rows, width, c.a.y_dtype);
    }
    float *parts = device_new<float>(MOST_PARTS * c.one);
    CHECK(cudaMemset(parts, 0xff, MOST_PARTS * c.one * sizeof *parts));
    struct sum_parts sums = {parts, c.a.bias, (int64_t)c.one, c.a.n_out, 0};
    CHECK(gemm_eight_many(0, &c.a, 132, MOST_PARTS * c.one * sizeof *parts, &sums));
    if (sums.n > 0) {
        CHECK(gemm_join(0, &c.a, &sums));
    }
    CHECK(cudaDeviceSynchronize());
    bool kept = false;
    const double d = distance(c.output_of(width).read(&kept), want);
    c.judge("gemm_eight_many", d, most_of(c.a.y_dtype, 3e-4, c.a.gated), kept, sums.n);
    if (c.a.gated) {
        check_gated_codes(r, c.a);
    }
    CHECK(cudaFree(parts));
}

/* The same for gemm_eight_rows, which sums 512 inputs with few bits. */
void bench_check_rows_of_codes(struct rng &r)
{
    struct gemm_args shape = random_many(r);
    shape.y_dtype = r.below(2) ? DT_BF16 : DT_F16;
    shape.n_in = 16 * r.between(57, 250);
    shape.x_stride = shape.n_in + 16 * r.below(3);
    shape.w_stride = shape.n_in + 16 * r.below(3);
    shape.n_rows = r.between(257, 1100);
    shape.bias = nullptr;
    shape.gated = false;
    struct codes_case c(r, shape);
    c.scales->n_blocks = 0;
    const std::vector<float> want = c.want();
    CHECK(gemm_eight_rows(0, &c.a, 132));
    CHECK(cudaDeviceSynchronize());
    bool kept = false;
    const double d = distance(c.output_of(c.a.n_out).read(&kept), want);
    c.judge("gemm_eight_rows", d, c.a.y_dtype == DT_BF16 ? 2.5e-3 : 7e-4, kept, 0);
}
