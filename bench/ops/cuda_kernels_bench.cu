// SPDX-License-Identifier: Apache-2.0
/* Checks and times the attention and small-product kernels without the engine.
 * usage: cuda_kernels_bench [check N] [check PRODUCT]
 * [gemm|fixed|four|head|layer|attention|step]... check N checks N passes of attention and all
 * products, check PRODUCT only that product (gemm_head, gemm_batch, ...; attention: 100 passes of
 * attention). */
#include "bench/ops/bench.cuh"

#include <cstring>

/* Each thread has four loads in flight; the sum keeps the compiler from removing them. */
__global__ void read_kernel(const uint4 *p, int64_t n, uint4 *out)
{
    uint4 sum = {0, 0, 0, 0};
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = __ldcs(p + i), b = __ldcs(p + i + step), c = __ldcs(p + i + 2 * step),
                    d = __ldcs(p + i + 3 * step);
        sum.x ^= a.x ^ b.y ^ c.z ^ d.w;
    }
    if (sum.x == 0x12345) {
        *out = sum;
    }
}

/* Measures how fast plain loads read: the ceiling of the other figures. */
static void time_read()
{
    const int64_t n = (int64_t)4 << 30;
    char *p = device_new<char>((size_t)n);
    fill(p, DT_BF16, n / 2, 1, 1.0f);
    const double us = time_us(4, [&](cudaStream_t s, int) {
        read_kernel<<<132 * 8, 512, 0, s>>>((uint4 *)p, n / 16, (uint4 *)p);
    });
    printf("plain read of %lld MiB: %.2f TB/s\n", (long long)(n >> 20), n / us * 1e-6);
    CHECK(cudaFree(p));
}

/* Without a device the bench is skipped, not failed. */
int main(int argc, char **argv)
{
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) {
        printf("skipped: no CUDA device\n");
        return 0;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "check") == 0) {
            const char *what = i + 1 < argc ? argv[++i] : "100";
            if (strcmp(what, "attention") == 0) {
                bench_attention_check(100);
            } else if (!bench_gemm_check(atoi(what) > 0 ? nullptr : what)) {
                printf("no such product: %s\n", what);
                return 1;
            }
            if (atoi(what) > 0) {
                bench_attention_check(atoi(what));
            }
            printf("%s: %d failures\n", bench_failures == 0 ? "ok" : "FAILED", bench_failures);
        } else if (strcmp(argv[i], "gemm") == 0) {
            time_read();
            bench_gemm_time();
        } else if (strcmp(argv[i], "fixed") == 0) {
            bench_fixed_time();
        } else if (strcmp(argv[i], "four") == 0) {
            bench_four_time();
        } else if (strcmp(argv[i], "head") == 0) {
            bench_four_head_time();
        } else if (strcmp(argv[i], "layer") == 0) {
            bench_four_layer();
        } else if (strcmp(argv[i], "attention") == 0) {
            bench_attention_time();
        } else if (strcmp(argv[i], "step") == 0) {
            bench_attention_step();
        }
    }
    return bench_failures != 0;
}
