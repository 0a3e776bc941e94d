// SPDX-License-Identifier: Apache-2.0
/* Shared by the kernel benches: checked calls, random device data, and timing by replaying graphs.
 * Thread: one. */
#ifndef SLUICE_TEST_BENCH_CUH
#define SLUICE_TEST_BENCH_CUH

#include "cuda/kernels/device/types.cuh"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <functional>
#include <vector>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        const cudaError_t check_error = (call);                                                    \
        if (check_error != cudaSuccess) {                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(check_error)); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A small generator with its own state, so that a failing case can be run alone. */
struct rng {
    uint64_t state;
    uint32_t next()
    {
        state += 0x9e3779b97f4a7c15ull;
        uint64_t z = state;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return (uint32_t)((z ^ (z >> 31)) >> 32);
    }
    int below(int n)
    {
        return (int)(next() % (uint32_t)n);
    }
    int between(int a, int b)
    {
        return a + below(b - a + 1);
    }
};

/* About normally distributed: the sum of four uniform numbers, with mean 0 and variance 1, from a
 * hash of (seed, i), so that any thread can compute any element. */
__device__ inline float random_normal(uint64_t seed, uint64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15ull + i * 0xd1342543de82ef95ull + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    int sum = -2 * 0xffff;
    for (int k = 0; k < 4; k++) {
        sum += (int)(z >> 16 * k & 0xffff);
    }
    return (float)sum * (1.7320508f / 65536.0f);
}

template <typename T> __global__ void fill_kernel(T *to, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = from_float<T>(random_normal(seed, (uint64_t)i) * scale);
    }
}

/* Fills an array of any dtype with normally distributed numbers. */
static inline void fill(void *to, enum dtype dt, int64_t n, uint64_t seed, float scale)
{
    if (dt == DT_F32) {
        fill_kernel<<<1024, 256>>>((float *)to, n, seed, scale);
    } else if (dt == DT_BF16) {
        fill_kernel<<<1024, 256>>>((bf16_t *)to, n, seed, scale);
    } else {
        fill_kernel<<<1024, 256>>>((f16_t *)to, n, seed, scale);
    }
    CHECK(cudaGetLastError());
}

template <typename T> static T *device_new(size_t n)
{
    void *p = nullptr;
    CHECK(cudaMalloc(&p, n * sizeof(T) + 256));
    return (T *)p;
}

template <typename T> static T *device_copy(const std::vector<T> &v)
{
    T *p = device_new<T>(v.size() + 1);
    CHECK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* Copies an array of any dtype to the host as fp32. */
static inline std::vector<float> to_host(const void *p, enum dtype dt, size_t n)
{
    std::vector<float> v(n);
    std::vector<char> raw(n * dtype_bytes(dt));
    CHECK(cudaMemcpy(raw.data(), p, raw.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        switch (dt) {
        case DT_F32: v[i] = ((float *)raw.data())[i]; break;
        case DT_BF16: v[i] = __bfloat162float(((bf16_t *)raw.data())[i]); break;
        default: v[i] = __half2float(((f16_t *)raw.data())[i]); break;
        }
    }
    return v;
}

/* The output of a product that is checked: rows of `width` values, `stride` elements apart. */
struct output {
    void *p;
    enum dtype dtype;
    int n_rows, width;
    int64_t stride;
    bool accumulate; // the product adds to it

    size_t n() const
    {
        return (size_t)n_rows * stride;
    }

    /* Writes values for the product to add to; otherwise NaN, which shows what it leaves unchanged.
     */
    void prepare(struct rng &r) const
    {
        if (accumulate) {
            fill(p, dtype, (int64_t)n(), r.next(), 1.0f);
        } else {
            CHECK(cudaMemset(p, 0xff, n() * dtype_bytes(dtype)));
        }
    }

    /* The values of all rows. *kept: the NaN between the rows are unchanged.
     */
    std::vector<float> read(bool *kept) const
    {
        const std::vector<float> all = to_host(p, dtype, n());
        std::vector<float> v;
        *kept = true;
        for (int i = 0; i < n_rows; i++) {
            const size_t row = (size_t)i * stride;
            v.insert(v.end(), all.begin() + row, all.begin() + row + width);
            for (int c = width; c < stride && !accumulate; c++) {
                *kept = *kept && std::isnan(all[row + c]);
            }
        }
        return v;
    }
};

/* ||a - b|| / ||b||; NaN and infinity do not pass. */
static inline double distance(const std::vector<float> &a, const std::vector<float> &b)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < a.size(); i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return sqrt(diff) / (sqrt(norm) + 1e-30);
}

/* The greatest distance of a product. Rounding random results to bf16 or fp16 alone gives 1.66e-3
 * or 2.1e-4. of_sums: for results in fp32. gated: results of a gated product, whose factors are
 * rounded too. */
static inline double most_of(enum dtype dt, double of_sums, bool gated = false)
{
    const double most = gated ? 1.5 : 1.0;
    switch (dt) {
    case DT_F32: return of_sums;
    case DT_BF16: return 2.5e-3 * most;
    default: return 3.2e-4 * most;
    }
}

/* Microseconds per launch: n launches are captured into a graph, which is replayed. */
static inline double time_us(int n, const std::function<void(cudaStream_t, int)> &issue)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++) {
        issue(stream, i);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    double spent = 0;
    for (int i = 0; i < 3 || (i < 12 && spent < 60); i++) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i > 0) {
            times.push_back(ms);
        }
        spent += ms;
    }
    std::sort(times.begin(), times.end());
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    return times[times.size() / 2] * 1000.0 / n;
}

struct gemm_args;
void bench_naive(const struct gemm_args &a, float *out); // the product in fp32, [n_rows, n_out]
std::vector<float> bench_silu_gated(const std::vector<float> &v, int n_rows, int width,
                                    enum dtype dt);
void bench_four_check(struct rng &r);
void bench_four_few_check(struct rng &r);
void bench_four_head_check(struct rng &r);
void bench_four_time();
void bench_four_head_time();
void bench_four_layer();
/* only: the products to check; NULL: all. Returns false if none has that name. */
bool bench_gemm_check(const char *only);
void bench_check_codes(struct rng &r);
void bench_check_many_codes(struct rng &r);
void bench_check_rows_of_codes(struct rng &r);
void bench_gemm_time();
void bench_fixed_time();
void bench_attention_check(int n_cases);
void bench_attention_few_check(int n_cases); // a part of it
void bench_attention_time();
void bench_attention_step();

inline int bench_failures; // failures of all checks so far

#endif
