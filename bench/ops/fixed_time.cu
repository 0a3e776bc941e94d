// SPDX-License-Identifier: Apache-2.0
/* Times the products of deterministic mode against cuBLASLt: what a fixed order of additions costs.
 * The two take turns, so that both meet the same clocks: many rows draw so much power that the
 * card lowers them. */
#include "bench/ops/lt.cuh"
#include "cuda/cuda_fixed.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "engine/base/optional.h"

/* Memory for partial sums. The times do not include reading the sums. */
enum { FIXED_SUMS = 32 << 20, MOST = 8192 };

/* One of several ways to compute the same, as a graph of n launches. */
struct racer {
    std::function<void(cudaStream_t, int)> issue;
    cudaGraphExec_t exec;
    std::vector<double> us; // per launch, by turn
};

static void graph_of(struct racer &r, cudaStream_t stream, int n)
{
    cudaGraph_t graph;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; i++) {
        r.issue(stream, i);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&r.exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
}

/* A turn: about `ms` milliseconds of replays, after one that is not counted. */
static void take_turn(struct racer &r, cudaStream_t stream, int n, double ms)
{
    cudaEvent_t begin, first, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(r.exec, stream));
    CHECK(cudaEventRecord(first, stream));
    CHECK(cudaEventSynchronize(first));
    float one, all;
    CHECK(cudaEventElapsedTime(&one, begin, first));
    const int replays = std::max(2, (int)(ms / one));
    for (int i = 0; i < replays; i++) {
        CHECK(cudaGraphLaunch(r.exec, stream));
    }
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&all, first, end));
    r.us.push_back(all * 1000.0 / replays / n);
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(first));
    CHECK(cudaEventDestroy(end));
}

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Fills in the times of all racers, each of n launches. */
static void race(std::vector<struct racer> &all, int n)
{
    enum { TURNS = 3, MS = 10 };
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (struct racer &r : all) {
        graph_of(r, stream, n);
    }
    for (int turn = 0; turn < TURNS; turn++) {
        for (struct racer &r : all) {
            take_turn(r, stream, n, MS);
        }
    }
    for (struct racer &r : all) {
        CHECK(cudaGraphExecDestroy(r.exec));
    }
    CHECK(cudaStreamDestroy(stream));
}

static const struct shape {
    const char *name;
    int n, k;
    bool gated;
} shapes[] = {{"qkv", 6144, 4096, false},
              {"o", 4096, 4096, false},
              {"down", 4096, 14336, false},
              {"gate_up", 28672, 4096, true},
              {"qkv of 30B-A3B", 5120, 2048, false},
              {"o of 30B-A3B", 2048, 4096, false}};

struct buffers {
    char *weights, *x, *y, *act, *workspace;
    float *sums;
    size_t pool;
};

static struct gemm_args args_of(const struct shape &s, const struct buffers &b, int m)
{
    struct gemm_args a = {};
    a.x = b.x;
    a.y = b.y;
    a.x_dtype = a.w_dtype = a.y_dtype = DT_BF16;
    a.n_rows = m;
    a.n_out = s.n;
    a.y_stride = s.gated ? s.n / 2 : s.n;
    a.n_in = a.x_stride = s.k;
    a.n_batch = 1;
    a.may_split = !s.gated;
    a.gated = s.gated;
    return a;
}

static void activate(cudaStream_t stream, const struct shape &s, const struct buffers &b, int m)
{
    struct activation_args silu = {};
    silu.x.mem.p = b.y;
    silu.x.dtype = silu.out.dtype = DT_BF16;
    silu.x.stride = s.n;
    silu.out.mem.p = b.act;
    silu.out.stride = silu.width = s.n / 2;
    silu.n_rows = m;
    silu.kind = ACT_SILU;
    silu.gated = true;
    CHECK(k_activation(stream, &silu));
}

static void time_shape(const struct shape &s, const struct buffers &b, int m)
{
    const size_t bytes = (size_t)s.n * s.k * 2;
    const int n_copies = (int)(b.pool / bytes), n = m < 1024 ? 8 : 4;
    const struct gemm_args a = args_of(s, b, m);
    struct sum_parts parts = {b.sums, nullptr, (int64_t)m * s.n, s.n, 0};
    const struct lt_product p = lt_open(m, s.n, s.k);
    const auto weight = [&](int i) { return b.weights + bytes * (size_t)(i % n_copies); };
    const auto own = [&](cudaStream_t stream, int i) {
        struct gemm_args one = a;
        one.weight = weight(i);
        CHECK(fixed_product(stream, &one, 132, FIXED_SUMS, &parts));
    };
    const auto theirs = [&](cudaStream_t stream, int i) {
        lt_issue(p, weight(i), b.x, b.y, b.workspace, stream);
    };
    std::vector<struct racer> all = {{own, nullptr, {}}, {theirs, nullptr, {}}};
    if (s.gated) {
        all.push_back({[&](cudaStream_t stream, int i) {
                           theirs(stream, i);
                           activate(stream, s, b, m);
                       },
                       nullptr,
                       {}});
    }
    race(all, n);
    const double own_us = median(all[0].us), theirs_us = median(all[1].us);
    printf("%-14s %5d  %8.1f%s  %8.1f  %.3f", s.name, m, own_us, text_if(parts.n > 0, " (sums)"),
           theirs_us, theirs_us / own_us);
    if (s.gated) {
        const double both_us = median(all[2].us);
        printf("  with the activation op %8.1f  %.3f", both_us, both_us / own_us);
    }
    printf("\n");
}

/* Successive launches take their weights from a pool larger than the L2 cache, because a model's
 * next layer has other weights. */
void bench_fixed_time()
{
    lt_start();
    struct buffers b = {};
    b.pool = (size_t)2 << 30;
    b.weights = device_new<char>(b.pool);
    b.x = device_new<char>((size_t)MOST * 14336 * 2);
    b.y = device_new<char>((size_t)MOST * 28672 * 2);
    b.act = device_new<char>((size_t)MOST * 14336 * 2);
    b.workspace = device_new<char>(LT_WORKSPACE);
    b.sums = device_new<float>(FIXED_SUMS / 4);
    fill(b.weights, DT_BF16, (int64_t)b.pool / 2, 3, 0.03f);
    fill(b.x, DT_BF16, (int64_t)MOST * 14336, 4, 1.0f);
    printf("products with a fixed order of additions, by rows: own us, cublas us, own / cublas "
           "speed\n");
    for (const struct shape &s : shapes) {
        for (int m : {1, 32, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192}) {
            time_shape(s, b, m);
        }
    }
    for (void *p : {(void *)b.weights, (void *)b.x, (void *)b.y, (void *)b.act, (void *)b.workspace,
                    (void *)b.sums}) {
        CHECK(cudaFree(p));
    }
}
