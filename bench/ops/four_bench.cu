// SPDX-License-Identifier: Apache-2.0
/* Products with 4-bit weights: checked against a naive product of the dequantised weight, and
 * timed. */
#include "bench/ops/bench.cuh"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"

#include <cmath>
#include <cstring>

/* A random weight in the layout of cuda/coded.h. Scales are powers of two, so that the dequantised
 * numbers are exact. */
struct four_weight {
    struct coded_matrix m;
    std::vector<void *> memory;

    /* group: inputs that share a scale, at most 128. */
    four_weight(struct rng &r, enum coded_code code, int n_out, int n_in, int group, bool zeros)
        : m()
    {
        m.code = code;
        m.scale = code == CODED_E2M1 ? DT_E8M0 : DT_F32;
        m.zero = code == CODED_U4 ? 8 : 0;
        m.n_out = n_out;
        m.n_in = n_in;
        m.n_experts = 1;
        m.n_tiles = (n_out + CODED_ROWS - 1) / CODED_ROWS;
        m.n_chunks = (n_in + 127) / 128;
        m.record_groups = 128 / group;
        m.n_records = m.n_chunks;
        m.record_bytes = CODED_ROWS * m.record_groups * (int)dtype_bytes(m.scale);
        std::vector<uint32_t> codes((size_t)m.n_tiles * m.n_chunks * CODED_TILE_BYTES / 4);
        for (uint32_t &c : codes) {
            c = r.next();
        }
        m.tiles = keep(codes);
        const size_t n = (size_t)m.n_tiles * m.n_records * CODED_ROWS * m.record_groups;
        std::vector<uint8_t> bytes(n), zero(n);
        std::vector<float> floats(n);
        for (size_t i = 0; i < n; i++) {
            const int e = r.between(-9, -4);
            bytes[i] = (uint8_t)(127 + e);
            floats[i] = ldexpf(1.0f, e);
            zero[i] = (uint8_t)r.between(0, 16);
        }
        m.scales = code == CODED_E2M1 ? keep(bytes) : keep(floats);
        m.zeros = zeros ? keep(zero) : nullptr;
    }
    four_weight(const four_weight &) = delete;
    ~four_weight()
    {
        for (void *p : memory) {
            CHECK(cudaFree(p));
        }
    }
    template <typename T> const uint8_t *keep(const std::vector<T> &v)
    {
        memory.push_back(device_copy(v));
        return (const uint8_t *)memory.back();
    }
};

enum { SUMS_BYTES = 32 << 20 };

/* The features of a random weight. is_aligned: rows are stored eight features at a time, and end in
 * the middle of a tile row. */
static int draw_features(struct rng &r, bool gated, bool *is_aligned)
{
    const int n = r.between(1, r.below(4) ? 1500 : 9000);
    *is_aligned = !gated && r.below(4) == 0;
    if (gated) {
        return (n + 31) / 32 * 32;
    }
    return *is_aligned ? n / CODED_ROWS * CODED_ROWS + CODED_ROWS / 2 : n;
}

/* A random number of rows, and types and strides of x and y. width: features of y. */
static struct coded_args draw_args(struct rng &r, bool is_few, bool gated, bool is_aligned,
                                   int n_in, int width)
{
    struct coded_args a = {};
    a.x_dtype = r.below(2) ? DT_BF16 : DT_F16;
    a.y_dtype = is_few || gated || r.below(2) ? a.x_dtype : DT_F32;
    static const int most[] = {8, 16, 32, 64, 128, 256};
    a.n_rows = r.between(1, most[r.below(is_few ? 2 : 6)]);
    a.x_stride = n_in + 8 * r.below(3);
    a.y_stride = width + (is_aligned ? 8 * r.below(2) : r.below(9));
    a.accumulate = !is_few && !gated && r.below(4) == 0;
    a.gated = gated;
    a.activation = ACT_SILU;
    return a;
}

/* The same product with the weight in x's type. */
static struct gemm_args expanded_product(const struct coded_args &a, const void *weight, int n_out,
                                         int n_in)
{
    struct gemm_args g = {};
    g.x = a.x;
    g.weight = weight;
    g.y = a.y;
    g.bias = a.bias;
    g.x_dtype = g.w_dtype = a.x_dtype;
    g.y_dtype = a.y_dtype;
    g.n_rows = a.n_rows;
    g.n_out = n_out;
    g.n_in = n_in;
    g.x_stride = (int32_t)a.x_stride;
    g.y_stride = (int32_t)a.y_stride;
    g.accumulate = a.accumulate;
    return g;
}

/* Checks a random shape, format and number of rows; partial sums are added up. is_few: only cases
 * that the kernels for few rows support. */
static void check_four(struct rng &r, bool is_few)
{
    static const int groups[] = {32, 64, 128};
    const enum coded_code code = r.below(4) ? CODED_U4 : CODED_E2M1;
    const bool gated = r.below(3) == 0;
    bool is_aligned;
    const int n_out = draw_features(r, gated, &is_aligned);
    const int n_in = 64 * r.between(1, r.below(4) ? 40 : 140), width = gated ? n_out / 2 : n_out;
    int group = 32;
    if (code != CODED_E2M1) {
        group = groups[is_few ? 2 : r.below(3)];
    }
    const struct four_weight w(r, code, n_out, n_in, group, code == CODED_U4 && r.below(2));
    struct coded_args a = draw_args(r, is_few, gated, is_aligned, n_in, width);
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride);
    void *y = device_new<float>((size_t)a.n_rows * a.y_stride),
         *expanded = device_new<float>((size_t)n_out * n_in / 2 + 64);
    float *bias = device_new<float>(n_out), *sums = device_new<float>(SUMS_BYTES / 4);
    float *expected = device_new<float>((size_t)a.n_rows * n_out);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(bias, DT_F32, n_out, r.next(), 1.0f);
    const struct output out = {y, a.y_dtype, a.n_rows, width, a.y_stride, a.accumulate};
    out.prepare(r);
    a.x = x;
    a.y = y;
    a.bias = r.below(is_few ? 8 : 2) ? nullptr : bias;
    CHECK(coded_expand(0, &w.m, 0, n_out, expanded, a.x_dtype));
    const struct gemm_args g = expanded_product(a, expanded, n_out, n_in);
    bench_naive(g, expected);
    CHECK(cudaDeviceSynchronize());
    struct sum_parts left = {sums, a.bias, (int64_t)a.n_rows * n_out, n_out, 0};
    const bool may_split = r.below(2);
    if (!gemm_four_takes(&w.m, &a, 90)) {
        printf("gemm_four FAILED: it does not support %d x %d x %d\n", a.n_rows, n_out, n_in);
        bench_failures++;
    }
    CHECK(cudaMemset(sums, 0xff, SUMS_BYTES));
    CHECK(gemm_four(0, &w.m, &a, 132, may_split ? (size_t)SUMS_BYTES : 0, &left));
    if (left.n > 0) {
        CHECK(gemm_join(0, &g, &left));
    }
    CHECK(cudaDeviceSynchronize());
    std::vector<float> want = to_host(expected, DT_F32, (size_t)a.n_rows * n_out);
    if (gated) {
        want = bench_silu_gated(want, a.n_rows, width, a.x_dtype);
    }
    bool kept;
    const std::vector<float> got = out.read(&kept);
    const double d = distance(got, want);
    if (!kept || !(d < most_of(a.y_dtype, 4e-6, gated))) {
        printf(
            "gemm_four FAILED: %d x %d x %d code %d group %d zeros %d dtype %d -> %d acc %d bias "
            "%d gated %d parts %d: distance %g, padding kept %d\n",
            a.n_rows, n_out, n_in, code, group, w.m.zeros != nullptr, a.x_dtype, a.y_dtype,
            a.accumulate, a.bias != nullptr, gated, left.n, d, kept);
        bench_failures++;
    }
    for (void *p : {x, y, expanded, (void *)bias, (void *)sums, (void *)expected}) {
        CHECK(cudaFree(p));
    }
}

void bench_four_check(struct rng &r)
{
    check_four(r, false);
}

void bench_four_few_check(struct rng &r)
{
    check_four(r, true);
}

/* Times the products of an 8B model's layer with int4 in groups of 128, and gate_up also with the
 * other format. */
void bench_four_time()
{
    static const struct {
        const char *name;
        int n, k;
        bool gated;
    } shapes[] = {{"qkv", 6144, 4096, false},
                  {"o", 4096, 4096, false},
                  {"gate_up with SiLU", 28672, 4096, true},
                  {"down", 4096, 14336, false}};
    enum { MOST = 256, COPIES = 4 };
    void *x = device_new<float>((size_t)MOST * 14336 / 2), *y = device_new<float>(MOST * 14336);
    float *sums = device_new<float>(SUMS_BYTES / 4);
    fill(x, DT_BF16, (int64_t)MOST * 14336, 4, 1.0f);
    printf("products with 4-bit weights, us (partial sums not added up), in a graph of dependent "
           "launches "
           "over rotating weights\n%-20s",
           "rows");
    static const int rows[] = {1, 8, 16, 32, 64, 128, 256};
    for (int m : rows) {
        printf(" %9d", m);
    }
    printf("\n");
    struct rng r = {7};
    for (enum coded_code code : {CODED_U4, CODED_E2M1}) {
        for (const auto &s : shapes) {
            if (code == CODED_E2M1 && !s.gated) {
                continue;
            }
            /* So many copies, each in its own allocation, that the next one used is never in the L2
             * cache. */
            const int n_copies = s.gated ? COPIES : 4 * COPIES;
            std::vector<struct four_weight *> weights;
            for (int i = 0; i < n_copies; i++) {
                weights.push_back(
                    new four_weight(r, code, s.n, s.k, code == CODED_U4 ? 128 : 32, false));
            }
            printf("%-5s%-15s", code == CODED_U4 ? "int4" : "mx", s.name);
            for (int m : rows) {
                struct coded_args a = {};
                a.x = x;
                a.y = y;
                a.x_dtype = a.y_dtype = DT_BF16;
                a.n_rows = m;
                a.x_stride = s.k;
                a.y_stride = s.gated ? s.n / 2 : s.n;
                a.gated = s.gated;
                a.activation = ACT_SILU;
                struct sum_parts left = {sums, nullptr, (int64_t)m * s.n, s.n, 0};
                const double us = time_us(16, [&](cudaStream_t stream, int i) {
                    CHECK(gemm_four(stream, &weights[i % n_copies]->m, &a, 132, SUMS_BYTES, &left));
                });
                printf(" %6.1f(%d)", us, left.n);
            }
            printf("\n");
            for (struct four_weight *w : weights) {
                delete w;
            }
        }
    }
    for (void *p : {x, y, (void *)sums}) {
        CHECK(cudaFree(p));
    }
}

/* The first of a row's greatest logits, as a draw finds it in the bests of the bands. */
static bool same_best(const float *logits, int n_out, const struct best_pair *pairs, int n_bands)
{
    struct best_pair want = {-INFINITY, INT32_MAX}, got = want;
    for (int f = 0; f < n_out; f++) {
        if (logits[f] > want.value) {
            want = {logits[f], f};
        }
    }
    for (int b = 0; b < n_bands; b++) {
        if (pairs[b].value > got.value || (pairs[b].value == got.value && pairs[b].id < got.id)) {
            got = pairs[b];
        }
    }
    return got.value == want.value && got.id == want.id;
}

/* The head for few multiprocessors, with at least a pair of tile rows for each warp. */
void bench_four_head_check(struct rng &r)
{
    const int n_sms = r.between(1, 6), n_in = 512 * r.between(1, 5);
    const int n_out = 32 * (16 * n_sms + r.below(40)) - r.below(16);
    const enum coded_code code = r.below(4) ? CODED_U4 : CODED_E2M1;
    const struct four_weight w(r, code, n_out, n_in, code == CODED_U4 ? 128 : 32,
                               code == CODED_U4 && r.below(2));
    struct coded_args a = {};
    a.x_dtype = DT_BF16;
    a.y_dtype = DT_F32;
    a.n_rows = r.between(1, 8);
    a.x_stride = n_in + 8 * r.below(3);
    a.y_stride = n_out + r.below(9);
    void *x = device_new<float>((size_t)a.n_rows * a.x_stride),
         *expanded = device_new<float>((size_t)n_out * n_in / 2 + 64);
    float *y = device_new<float>((size_t)a.n_rows * a.y_stride), *bias = device_new<float>(n_out),
          *expected = device_new<float>((size_t)a.n_rows * n_out);
    struct best_pair *pairs = device_new<struct best_pair>((size_t)a.n_rows * n_sms);
    fill(x, a.x_dtype, (int64_t)a.n_rows * a.x_stride, r.next(), 1.0f);
    fill(bias, DT_F32, n_out, r.next(), 1.0f);
    const struct output out = {y, DT_F32, a.n_rows, n_out, a.y_stride, false};
    out.prepare(r);
    a.x = x;
    a.y = y;
    a.bias = r.below(2) ? bias : nullptr;
    CHECK(coded_expand(0, &w.m, 0, n_out, expanded, a.x_dtype));
    bench_naive(expanded_product(a, expanded, n_out, n_in), expected);
    const struct row_bests bests = {pairs, n_sms, n_sms};
    bool kept, same = gemm_four_head_takes(&w.m, &a, n_sms);
    CHECK(cudaDeviceSynchronize());
    CHECK(gemm_four_head(0, &w.m, &a, n_sms, &bests, nullptr));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> got = out.read(&kept);
    const double d = distance(got, to_host(expected, DT_F32, (size_t)a.n_rows * n_out));
    std::vector<struct best_pair> best((size_t)a.n_rows * n_sms);
    CHECK(cudaMemcpy(best.data(), pairs, best.size() * sizeof *pairs, cudaMemcpyDeviceToHost));
    for (int i = 0; i < a.n_rows; i++) {
        same = same && same_best(&got[(size_t)i * n_out], n_out, &best[(size_t)i * n_sms], n_sms);
    }
    if (!kept || !same || !(d < 4e-6)) {
        printf("gemm_four_head FAILED: %d x %d x %d code %d zeros %d bias %d on %d: "
               "distance %g, padding kept %d, bests %d\n",
               a.n_rows, n_out, n_in, code, w.m.zeros != nullptr, a.bias != nullptr, n_sms, d, kept,
               same);
        bench_failures++;
    }
    for (void *p : {x, expanded, (void *)y, (void *)bias, (void *)expected, (void *)pairs}) {
        CHECK(cudaFree(p));
    }
}

/* The head of Qwen3.5-35B-A3B's draft module, with and without its logits. */
void bench_four_head_time()
{
    enum { FEATURES = 248320, WIDTH = 2048, MOST = 8, COPIES = 3 };
    struct rng r = {7};
    std::vector<struct four_weight *> weights; // so many that little is in the L2 cache when reused
    for (int i = 0; i < COPIES; i++) {
        weights.push_back(new four_weight(r, CODED_U4, FEATURES, WIDTH, 128, false));
    }
    void *x = device_new<float>(MOST * WIDTH / 2);
    float *y = device_new<float>((size_t)MOST * FEATURES);
    struct best_pair *pairs = device_new<struct best_pair>(MOST * 132);
    const struct row_bests bests = {pairs, 132, 132};
    struct pass_counts *counts = device_new<struct pass_counts>(1); // without draws
    CHECK(cudaMemset(counts, 0, sizeof *counts));
    struct pass_view pass = {};
    pass.counts = counts;
    fill(x, DT_BF16, MOST * WIDTH, 4, 1.0f);
    printf("head of %d x %d in int4: us with logits, and with bests only\n", FEATURES, WIDTH);
    for (int m : {1, 2, 4, 8}) {
        struct coded_args a = {};
        a.x = x;
        a.y = y;
        a.x_dtype = DT_BF16;
        a.y_dtype = DT_F32;
        a.n_rows = m;
        a.x_stride = WIDTH;
        a.y_stride = FEATURES;
        const double all = time_us(15, [&](cudaStream_t s, int i) {
            CHECK(gemm_four(s, &weights[i % COPIES]->m, &a, 132, 0, nullptr));
        });
        const double best = time_us(15, [&](cudaStream_t s, int i) {
            CHECK(gemm_four_head(s, &weights[i % COPIES]->m, &a, 132, &bests, &pass));
        });
        printf("%d rows %6.1f %6.1f\n", m, all, best);
    }
    for (struct four_weight *w : weights) {
        delete w;
    }
    for (void *p : {x, (void *)y, (void *)pairs, (void *)counts}) {
        CHECK(cudaFree(p));
    }
}

/* ---- a layer --------------------------------------------------------------------------------- */

/* The products and norms of an 8B model's layer; attention is left out. */
struct four_layer {
    enum { HIDDEN = 4096, QKV = 6144, INNER = 14336, GATE_UP = 2 * INNER };
    struct four_weight qkv, o, gate_up, down;

    explicit four_layer(struct rng &r, enum coded_code code)
        : qkv(r, code, QKV, HIDDEN, group(code), false),
          o(r, code, HIDDEN, HIDDEN, group(code), false),
          gate_up(r, code, GATE_UP, HIDDEN, group(code), false),
          down(r, code, HIDDEN, INNER, group(code), false)
    {
    }
    static int group(enum coded_code code)
    {
        return code == CODED_U4 ? 128 : 32;
    }
};

struct four_chain {
    bf16_t *residual, *in, *mid, *act, *out;
    float *sums, *norm;
    int rows;

    struct sum_parts product(cudaStream_t stream, const struct four_weight &w, const bf16_t *x,
                             bf16_t *y, bool gated) const
    {
        struct coded_args a = {};
        a.x = x;
        a.y = y;
        a.x_dtype = a.y_dtype = DT_BF16;
        a.n_rows = rows;
        a.x_stride = w.m.n_in;
        a.y_stride = gated ? w.m.n_out / 2 : w.m.n_out;
        a.gated = gated;
        a.activation = ACT_SILU;
        struct sum_parts left = {sums, nullptr, (int64_t)rows * w.m.n_out, w.m.n_out, 0};
        CHECK(gemm_four(stream, &w.m, &a, 132, gated ? 0 : (size_t)SUMS_BYTES, &left));
        return left;
    }

    /* residual += y, in = norm(residual). */
    void add(cudaStream_t stream, const struct sum_parts &left) const
    {
        struct norm_args n = {};
        n.x.mem.p = residual;
        n.delta.mem.p = out;
        n.out.mem.p = in;
        n.x.dtype = n.delta.dtype = n.out.dtype = DT_BF16;
        n.x.stride = n.delta.stride = n.out.stride = n.width = four_layer::HIDDEN;
        n.n_rows = rows;
        n.eps = 1e-5f;
        n.delta_scale = 0.01f;
        CHECK(k_norm(stream, &n, norm, nullptr, left.n > 0 ? &left : nullptr, nullptr));
    }

    void layer(cudaStream_t stream, const struct four_layer &l) const
    {
        product(stream, l.qkv, in, mid, false);
        add(stream, product(stream, l.o, mid, out, false)); // `mid` may hold any numbers
        product(stream, l.gate_up, in, act, true);
        add(stream, product(stream, l.down, act, out, false));
    }
};

/* The best of three timings. */
static double best_us(int n, const std::function<void(cudaStream_t, int)> &issue)
{
    double us = time_us(n, issue);
    for (int i = 0; i < 2; i++) {
        us = std::min(us, time_us(n, issue));
    }
    return us;
}

/* Prints a line for a code: the time of a layer and of each of its products in us, and how many
 * partial sums the products leave.
 */
static void time_layer(const struct four_chain &of, enum coded_code code)
{
    enum { LAYERS = 4 };
    struct four_chain c = of;
    struct rng r = {7};
    std::vector<struct four_layer *> layers;
    for (int i = 0; i < LAYERS; i++) {
        layers.push_back(new four_layer(r, code));
    }
    const auto layer = [&](cudaStream_t stream, int i) { c.layer(stream, *layers[i % LAYERS]); };
    c.rows = 1;
    for (int i = 0; i < 4; i++) { // until the clock is high
        time_us(4 * LAYERS, layer);
    }
    printf("%-5s", code == CODED_U4 ? "int4" : "mx");
    for (int rows : {1, 4, 8, 16, 32}) {
        c.rows = rows;
        const double all = time_us(4 * LAYERS, layer);
        double us[4];
        int parts[4];
        for (int k = 0; k < 4; k++) {
            us[k] = best_us(4 * LAYERS, [&](cudaStream_t stream, int i) {
                const struct four_layer &l = *layers[i % LAYERS];
                const struct four_weight *w[] = {&l.qkv, &l.o, &l.gate_up, &l.down};
                const bool gated = w[k] == &l.gate_up;
                const bf16_t *x = w[k] == &l.down ? c.act : c.in;
                parts[k] = c.product(stream, *w[k], x, gated ? c.act : c.out, gated).n;
            });
        }
        printf(" |%3d: %5.1f =%5.1f(%d)%5.1f(%d)%5.1f%5.1f(%d)", rows, all, us[0], parts[0], us[1],
               parts[1], us[2], us[3], parts[3]);
    }
    printf("\n");
    for (struct four_layer *l : layers) {
        delete l;
    }
}

void bench_four_layer()
{
    enum { MOST = 64 };
    struct four_chain c = {};
    c.residual = device_new<bf16_t>((size_t)MOST * four_layer::HIDDEN);
    c.in = device_new<bf16_t>((size_t)MOST * four_layer::HIDDEN);
    c.mid = device_new<bf16_t>((size_t)MOST * four_layer::QKV);
    c.act = device_new<bf16_t>((size_t)MOST * four_layer::INNER);
    c.out = device_new<bf16_t>((size_t)MOST * four_layer::QKV);
    c.sums = device_new<float>(SUMS_BYTES / 4);
    c.norm = device_new<float>(four_layer::HIDDEN);
    for (bf16_t *p : {c.residual, c.in, c.out}) {
        fill(p, DT_BF16, (int64_t)MOST * four_layer::HIDDEN, 4, 0.1f);
    }
    fill(c.mid, DT_BF16, (int64_t)MOST * four_layer::QKV, 5, 0.1f);
    fill(c.act, DT_BF16, (int64_t)MOST * four_layer::INNER, 6, 0.1f);
    fill(c.norm, DT_F32, four_layer::HIDDEN, 7, 0.1f);
    printf("rows: products and norms of an 8B model's layer with 4-bit weights, us = qkv (partial "
           "sums) o gate_up down\n");
    for (enum coded_code code : {CODED_U4, CODED_E2M1}) {
        time_layer(c, code);
    }
    for (void *p : {(void *)c.residual, (void *)c.in, (void *)c.mid, (void *)c.act, (void *)c.out,
                    (void *)c.sums, (void *)c.norm}) {
        CHECK(cudaFree(p));
    }
}
