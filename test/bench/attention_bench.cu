/* Attention: against a naive fp32 version over random passes, and timed. In the checks every slot
 * that nobody owns holds NaN. */
#include "cuda/attention.h"
#include "cuda/attention_plan.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"
#include "test/bench/bench.cuh"

#include <cmath>
#include <cstring>
#include <numeric>

/* One pass over one layer (or several equal ones), in device memory. */
struct scene {
    int n_heads, n_kv_heads, dim_k, dim_v;
    bool v_in_k;
    enum dtype dtype;
    int block_tokens, window;
    float softcap;
    bool sinks;

    std::vector<struct pass_seq> seqs;
    std::vector<struct pass_group> groups;
    std::vector<struct pass_row> rows;
    std::vector<uint64_t> masks;
    std::vector<int32_t> tables;
    int n_blocks, table_stride, q_stride, n_layers;

    struct kv_view view;
    size_t layer_bytes;
    char *kv;
    void *q, *out;
    float *sink_values;
    int32_t *d_tables;

    int n_rows() const
    {
        return (int)rows.size();
    }
};

__global__ void own_kernel(struct kv_view v, const int32_t *table, int n_slots, uint64_t seed)
{
    const int slot = blockIdx.x, h = blockIdx.y;
    if (slot >= n_slots) {
        return;
    }
    const int64_t page = table[slot / v.block_tokens];
    const int64_t base = page * v.page_stride + (int64_t)h * v.head_stride;
    const int t = slot % v.block_tokens;
    for (int i = threadIdx.x; i < v.head_dim_k + (v.v_offset > 0 ? v.head_dim_v : 0);
         i += blockDim.x) {
        const int64_t at = i < v.head_dim_k
                               ? base + (int64_t)t * v.head_dim_k + i
                               : base + v.v_offset + (int64_t)t * v.v_token_stride + i - v.head_dim_k;
        const float x = random_normal(seed, (uint64_t)at);
        if (v.dtype == DT_F32) {
            ((float *)v.base)[at] = x;
        } else if (v.dtype == DT_BF16) {
            ((bf16_t *)v.base)[at] = from_float<bf16_t>(x);
        } else {
            ((f16_t *)v.base)[at] = from_float<f16_t>(x);
        }
    }
}

__device__ float element(const void *p, enum dtype dt, int64_t i)
{
    return dt == DT_F32    ? ((const float *)p)[i]
           : dt == DT_BF16 ? to_float(((const bf16_t *)p)[i])
                           : to_float(((const f16_t *)p)[i]);
}

struct naive_args {
    const void *q;
    float *out;
    struct kv_view kv;
    const struct pass_row *rows;
    const int32_t *row_seq;
    const struct pass_seq *seqs;
    const uint64_t *masks;
    const int32_t *tables;
    const float *sinks;
    int table_stride, q_stride, n_heads, window;
    float scale, softcap;
};

__global__ void naive_attention(struct naive_args a)
{
    extern __shared__ float score[];
    __shared__ float shared[256];
    const int r = blockIdx.x, h = blockIdx.y, kv_head = h / (a.n_heads / a.kv.n_kv_heads);
    const struct pass_seq s = a.seqs[a.row_seq[r]];
    const int32_t *table = a.tables + (int64_t)s.lane * a.table_stride;
    const int n = s.n_past + s.n_rows;
    auto at = [&](int key) {
        return (int64_t)table[key / a.kv.block_tokens] * a.kv.page_stride +
               (int64_t)kv_head * a.kv.head_stride;
    };
    float top = -INFINITY;
    for (int key = threadIdx.x; key < n; key += blockDim.x) {
        bool seen = true;
        int key_pos = key;
        if (key >= s.n_past) {
            const int node = key - s.n_past;
            key_pos = a.rows[s.first_row + node].pos;
            seen = s.tree ? a.masks[(int64_t)r * TREE_MASK_WORDS + node / 64] >> (node % 64) & 1
                          : node <= r - s.first_row;
        }
        seen = seen && (a.window == 0 || a.rows[r].pos - a.window < key_pos);
        float dot = 0.0f;
        if (seen) {
            const int64_t k = at(key) + (int64_t)(key % a.kv.block_tokens) * a.kv.head_dim_k;
            for (int i = 0; i < a.kv.head_dim_k; i++) {
                dot += element(a.q, a.kv.dtype,
                               (int64_t)r * a.q_stride + (int64_t)h * a.kv.head_dim_k + i) *
                       element(a.kv.base, a.kv.dtype, k + i);
            }
            dot *= a.scale;
            dot = a.softcap > 0 ? a.softcap * tanhf(dot / a.softcap) : dot;
        }
        score[key] = seen ? dot : -INFINITY;
        top = fmaxf(top, score[key]);
    }
    shared[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x; i++) {
        top = fmaxf(top, shared[i]);
    }
    top = a.sinks ? fmaxf(top, a.sinks[h]) : top;
    __syncthreads();
    float sum = a.sinks ? expf(a.sinks[h] - top) : 0.0f;
    for (int key = 0; key < n; key++) {
        sum += expf(score[key] - top);
    }
    for (int i = threadIdx.x; i < a.kv.head_dim_v; i += blockDim.x) {
        float value = 0.0f;
        for (int key = 0; key < n; key++) {
            if (score[key] != -INFINITY) {
                value += expf(score[key] - top) *
                         element(a.kv.base, a.kv.dtype,
                                 at(key) + a.kv.v_offset +
                                     (int64_t)(key % a.kv.block_tokens) * a.kv.v_token_stride + i);
            }
        }
        a.out[((int64_t)r * a.n_heads + h) * a.kv.head_dim_v + i] = value / sum;
    }
}

/* ---- building a scene ---------------------------------------------------------------------- */

static void add_seq(struct scene &s, int n_past, int n_rows, bool tree)
{
    const struct pass_seq seq = {(int)s.seqs.size(), s.n_rows(), n_rows, n_past, tree};
    s.seqs.push_back(seq);
    for (int i = 0; i < n_rows; i++) {
        s.rows.push_back({seq.lane, 0, n_past + i, n_past + i});
        s.masks.insert(s.masks.end(), TREE_MASK_WORDS, 0xdeadbeefdeadbeefull);
    }
}

/* Random parents; the position is by depth. */
static void plant_tree(struct scene &s, const struct pass_seq &seq, struct rng &r)
{
    for (int i = 0; i < seq.n_rows; i++) {
        uint64_t *mask = &s.masks[(size_t)(seq.first_row + i) * TREE_MASK_WORDS];
        std::fill(mask, mask + TREE_MASK_WORDS, 0);
        int pos = seq.n_past;
        if (i > 0) {
            const int parent = r.below(i);
            const uint64_t *from = &s.masks[(size_t)(seq.first_row + parent) * TREE_MASK_WORDS];
            std::copy(from, from + TREE_MASK_WORDS, mask);
            pos = s.rows[seq.first_row + parent].pos + 1;
        }
        mask[i / 64] |= 1ull << (i % 64);
        s.rows[seq.first_row + i].pos = pos;
    }
}

/* Pages, tables and memory. Groups share their first blocks. */
static void build(struct scene &s, int n_layers, uint64_t seed)
{
    const int bt = s.block_tokens, n_seqs = (int)s.seqs.size();
    int longest = 1, n_pages = 0;
    for (const struct pass_seq &q : s.seqs) {
        longest = std::max(longest, q.n_past + q.n_rows);
        n_pages += (q.n_past + q.n_rows + bt - 1) / bt;
    }
    s.n_blocks = n_pages + 3;
    s.table_stride = (longest + bt - 1) / bt + 2;
    std::vector<int32_t> ids(s.n_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    struct rng r = {seed};
    for (int i = s.n_blocks - 1; i > 0; i--) {
        std::swap(ids[i], ids[r.below(i + 1)]);
    }
    s.tables.assign((size_t)(n_seqs + 1) * s.table_stride, s.n_blocks);
    for (int i = 0; i < n_seqs; i++) {
        for (int b = 0; b < (s.seqs[i].n_past + s.seqs[i].n_rows + bt - 1) / bt; b++) {
            s.tables[(size_t)i * s.table_stride + b] = ids[--n_pages];
        }
    }
    for (const struct pass_group &g : s.groups) {
        for (int i = 1; i < g.n_seqs; i++) {
            std::copy_n(&s.tables[(size_t)g.first_seq * s.table_stride], g.n_blocks,
                        &s.tables[(size_t)(g.first_seq + i) * s.table_stride]);
        }
    }
    struct kv_view &v = s.view;
    v = {};
    v.dtype = s.dtype;
    v.n_kv_heads = s.n_kv_heads;
    v.head_dim_k = s.dim_k;
    v.head_dim_v = s.dim_v;
    v.block_tokens = bt;
    v.v_offset = s.v_in_k ? 0 : bt * s.dim_k;
    v.v_token_stride = s.v_in_k ? s.dim_k : s.dim_v;
    v.head_stride = bt * s.dim_k + (s.v_in_k ? 0 : bt * s.dim_v);
    v.page_stride = (int64_t)v.head_stride * s.n_kv_heads;
    v.n_pages = s.n_blocks + 1;
    s.n_layers = n_layers;
    s.layer_bytes = (size_t)(s.n_blocks + 1) * v.page_stride * dtype_bytes(s.dtype);
    s.layer_bytes = (s.layer_bytes + 255) / 256 * 256;
    s.kv = device_new<char>(s.layer_bytes * n_layers);
    CHECK(cudaMemset(s.kv, 0xff, s.layer_bytes * n_layers));
    s.d_tables = device_copy(s.tables);
    v.base = s.kv;
    if (n_layers > 1) { // timing: everything is random
        fill(s.kv, s.dtype, (int64_t)(s.layer_bytes * n_layers / dtype_bytes(s.dtype)), seed, 1.0f);
    } else {
        for (const struct pass_seq &q : s.seqs) {
            own_kernel<<<dim3(q.n_past + q.n_rows, s.n_kv_heads), 128>>>(
                v, s.d_tables + (size_t)q.lane * s.table_stride, q.n_past + q.n_rows, seed);
        }
    }
    s.q_stride = (s.n_heads + 2) * s.dim_k;
    s.q = device_new<char>((size_t)s.n_rows() * s.q_stride * dtype_bytes(s.dtype));
    fill(s.q, s.dtype, (int64_t)s.n_rows() * s.q_stride, seed + 1, 1.5f);
    s.out = device_new<char>((size_t)(s.n_rows() + 8) * s.n_heads * s.dim_v * dtype_bytes(s.dtype));
    s.sink_values = device_new<float>(s.n_heads);
    fill(s.sink_values, DT_F32, s.n_heads, seed + 2, 2.0f);
    CHECK(cudaDeviceSynchronize());
}

static void destroy(struct scene &s)
{
    for (void *p : {(void *)s.kv, s.q, s.out, (void *)s.sink_values, (void *)s.d_tables}) {
        CHECK(cudaFree(p));
    }
}

static struct attention_limits limits_of(const struct scene &s, bool deterministic)
{
    struct attention_limits l = {};
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    l.max_rows = 8192;
    l.max_lanes = 1024;
    l.max_len = 1 << 20;
    l.block_tokens = s.block_tokens;
    l.n_sms = prop.multiProcessorCount;
    l.sm = prop.major * 10 + prop.minor;
    l.deterministic = deterministic;
    attention_learn(&l, 0, s.n_heads, &s.view);
    return l;
}

/* A pass ready to launch: rows [first_row, ...) of the scene, as `seqs` (rows counted from 0). */
struct prepared {
    struct attention_limits limits;
    struct attention_launch launch;
    std::vector<void *> memory;
    int n_items, n_slots;
    double plan_us;
};

template <typename T> static T *keep(struct prepared &p, const std::vector<T> &v)
{
    T *d = device_copy(v);
    p.memory.push_back(d);
    return d;
}

static void prepare(struct prepared &p, const struct scene &s, int first_row,
                    const std::vector<struct pass_seq> &seqs,
                    const std::vector<struct pass_group> &groups, int padding, bool deterministic)
{
    p.limits = limits_of(s, deterministic);
    int n_rows = 0;
    std::vector<int32_t> row_seq;
    for (size_t i = 0; i < seqs.size(); i++) {
        n_rows += seqs[i].n_rows;
        row_seq.insert(row_seq.end(), seqs[i].n_rows, (int)i);
    }
    std::vector<struct pass_row> rows(s.rows.begin() + first_row, s.rows.begin() + first_row + n_rows);
    std::vector<uint64_t> masks(s.masks.begin() + (size_t)first_row * TREE_MASK_WORDS,
                                s.masks.begin() + (size_t)(first_row + n_rows) * TREE_MASK_WORDS);
    rows.resize(n_rows + padding, {(int)s.seqs.size(), 0, 0, 0});
    row_seq.resize(n_rows + padding, -1);
    masks.resize((size_t)(n_rows + padding) * TREE_MASK_WORDS, 0);
    struct pass pass = {};
    pass.n_rows = n_rows;
    pass.rows = rows.data();
    pass.n_seqs = (int)seqs.size();
    pass.seqs = seqs.data();
    pass.n_groups = (int)groups.size();
    pass.groups = groups.data();
    pass.tree_mask = masks.data();
    std::vector<char> plan(attention_plan_bytes(&p.limits, n_rows + padding));
    size_t used = 0;
    for (int i = 0; i < 2; i++) { // the second time its memory is warm
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (attention_plan(&p.limits, &pass, n_rows + padding, plan.data(), &used) != OK) {
            printf("attention_plan FAILED\n");
            exit(1);
        }
        clock_gettime(CLOCK_MONOTONIC, &b);
        p.plan_us = (b.tv_sec - a.tv_sec) * 1e6 + (b.tv_nsec - a.tv_nsec) * 1e-3;
    }
    if (used > plan.size()) {
        printf("attention_plan FAILED: %zu of %zu bytes\n", used, plan.size());
        exit(1);
    }
    plan.resize(used);
    p.n_items = ((struct attention_plan_head *)plan.data())->n_items;
    p.n_slots = ((struct attention_plan_head *)plan.data())->n_slots;
    struct pass_counts counts = {n_rows, (int)seqs.size(), (int)groups.size()};
    struct attention_launch &a = p.launch;
    a = {};
    a.q = (char *)s.q + (size_t)first_row * s.q_stride * dtype_bytes(s.dtype);
    a.out = (char *)s.out + (size_t)first_row * s.n_heads * s.dim_v * dtype_bytes(s.dtype);
    a.q_stride = s.q_stride;
    a.out_stride = s.n_heads * s.dim_v;
    a.dtype = s.dtype;
    a.kv = s.view;
    a.pass.counts = keep(p, std::vector<struct pass_counts>{counts});
    a.pass.rows = keep(p, rows);
    a.pass.row_seq = keep(p, row_seq);
    a.pass.seqs = keep(p, seqs);
    a.pass.groups = keep(p, groups);
    a.pass.tree_mask = keep(p, masks);
    a.pass.attention_plan = keep(p, plan);
    a.pass.blocks = s.d_tables;
    a.pass.blocks_stride = s.table_stride;
    a.pass.max_lanes = (int)s.seqs.size();
    a.pass.n_blocks = s.n_blocks;
    a.pass.n_rows = a.n_rows = n_rows + padding;
    a.n_heads = s.n_heads;
    a.n_seqs = (int)seqs.size();
    a.scale = 1.0f / sqrtf((float)s.dim_k);
    a.window = s.window;
    a.softcap = s.softcap;
    a.sinks = s.sinks ? s.sink_values : nullptr;
    a.workspace_bytes = attention_workspace_bytes(&p.limits);
    a.workspace = device_new<char>(a.workspace_bytes);
    p.memory.push_back(a.workspace);
    CHECK(cudaMemset(a.workspace, 0xff, a.workspace_bytes));
    a.limits = &p.limits;
}

static void finish(struct prepared &p)
{
    for (void *m : p.memory) {
        CHECK(cudaFree(m));
    }
}

/* ---- checks -------------------------------------------------------------------------------- */

static std::vector<float> run(const struct scene &s, int first_row,
                              const std::vector<struct pass_seq> &seqs,
                              const std::vector<struct pass_group> &groups, int padding,
                              bool deterministic)
{
    struct prepared p;
    prepare(p, s, first_row, seqs, groups, padding, deterministic);
    size_t n = 0;
    for (const struct pass_seq &q : seqs) {
        n += (size_t)q.n_rows * s.n_heads * s.dim_v;
    }
    CHECK(cudaMemset(p.launch.out, 0xff, n * dtype_bytes(s.dtype)));
    CHECK(cudaDeviceSynchronize());
    CHECK(attention_launch(0, &p.launch));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> out = to_host(p.launch.out, s.dtype, n);
    finish(p);
    return out;
}

static std::vector<float> run_naive(const struct scene &s)
{
    struct prepared p;
    prepare(p, s, 0, s.seqs, s.groups, 0, false);
    const size_t n = (size_t)s.n_rows() * s.n_heads * s.dim_v;
    int longest = 0;
    for (const struct pass_seq &q : s.seqs) {
        longest = std::max(longest, q.n_past + q.n_rows);
    }
    struct naive_args a = {};
    float *out = device_new<float>(n);
    a.q = s.q;
    a.out = out;
    a.kv = s.view;
    a.rows = p.launch.pass.rows;
    a.row_seq = p.launch.pass.row_seq;
    a.seqs = p.launch.pass.seqs;
    a.masks = p.launch.pass.tree_mask;
    a.tables = s.d_tables;
    a.sinks = p.launch.sinks;
    a.table_stride = s.table_stride;
    a.q_stride = s.q_stride;
    a.n_heads = s.n_heads;
    a.window = s.window;
    a.scale = p.launch.scale;
    a.softcap = s.softcap;
    CHECK(cudaFuncSetAttribute(naive_attention, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    naive_attention<<<dim3(s.n_rows(), s.n_heads), 128, longest * sizeof(float)>>>(a);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> v = to_host(out, DT_F32, n);
    CHECK(cudaFree(out));
    finish(p);
    return v;
}

/* Deterministic mode: every sequence alone, its chain in two pieces, must give the same bits. */
static bool same_alone(const struct scene &s, const std::vector<float> &all, struct rng &r)
{
    for (const struct pass_seq &q : s.seqs) {
        std::vector<float> alone;
        if (!q.tree && q.n_rows > 1) {
            const int first = r.between(1, q.n_rows - 1);
            alone = run(s, q.first_row, {{q.lane, 0, first, q.n_past, false}}, {}, 0, true);
            const std::vector<float> rest =
                run(s, q.first_row + first,
                    {{q.lane, 0, q.n_rows - first, q.n_past + first, false}}, {}, 0, true);
            alone.insert(alone.end(), rest.begin(), rest.end());
        } else {
            alone = run(s, q.first_row, {{q.lane, 0, q.n_rows, q.n_past, q.tree}}, {}, 0, true);
        }
        if (memcmp(alone.data(), &all[(size_t)q.first_row * s.n_heads * s.dim_v],
                   alone.size() * sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

static struct scene random_scene(struct rng &r)
{
    static const int dims[] = {16, 32, 64, 80, 96, 128, 128, 192, 256, 40, 112, 72};
    static const int heads[][2] = {{32, 8}, {8, 8}, {4, 1}, {6, 2}, {16, 1}, {12, 4}, {40, 1}, {5, 5}};
    static const int sizes[] = {16, 32, 64};
    struct scene s = {};
    const int h = r.below(8);
    s.n_heads = heads[h][0];
    s.n_kv_heads = heads[h][1];
    s.dim_k = s.dim_v = dims[r.below(12)];
    s.dtype = r.below(8) == 0 ? DT_F32 : r.below(3) == 0 ? DT_F16 : DT_BF16;
    s.block_tokens = sizes[r.below(3)];
    if (r.below(6) == 0) { // MLA
        const bool small = r.below(2);
        s.n_heads = small ? 4 : 16;
        s.n_kv_heads = 1;
        s.dim_k = small ? 48 : 576;
        s.dim_v = small ? 32 : 512;
        s.v_in_k = true;
    }
    s.window = r.below(4) == 0 ? r.between(1, 700) : 0;
    s.softcap = r.below(4) == 0 ? 5.0f : 0.0f;
    s.sinks = r.below(4) == 0;
    if (r.below(5) == 0) { // decoding: enough units for the narrow and the thin ways
        for (int n = r.between(40, 160); n > 0; n--) {
            add_seq(s, r.below(900), r.below(8) ? 1 : 2, false);
        }
        return s;
    }
    const int n_seqs = r.between(1, 10), longest = r.below(3) ? 700 : 4000;
    while ((int)s.seqs.size() < n_seqs) {
        const int group = r.below(3) == 0 ? r.between(2, 9) : 1;
        const int n_shared = group > 1 ? r.between(1, longest / s.block_tokens) : 0;
        if (group > 1) {
            s.groups.push_back({(int)s.seqs.size(), group, n_shared});
        }
        for (int i = 0; i < group; i++) {
            const int past = n_shared * s.block_tokens + (r.below(4) ? r.below(longest) : 0);
            const int kind = r.below(4);
            const int n = kind < 2 ? 1 : r.between(1, kind == 2 ? 20 : 300);
            const bool tree = r.below(3) == 0;
            add_seq(s, past, tree ? std::min(n, (int)MAX_TREE_NODES) : n, tree);
            if (tree) {
                plant_tree(s, s.seqs.back(), r);
            }
        }
    }
    if (r.below(4) == 0) { // a prompt of more rows than a captured pass may have
        add_seq(s, r.below(longest), r.between(520, 1100), false);
    }
    return s;
}

static const char *name_of(enum dtype t)
{
    return t == DT_F32 ? "f32" : t == DT_BF16 ? "bf16" : "f16";
}

void bench_attention_check(int n_cases)
{
    int n_bits = 0, n_failed = 0;
    double worst = 0;
    for (int i = 0; i < n_cases; i++) {
        struct rng r = {(uint64_t)i + 1000};
        struct scene s = random_scene(r);
        build(s, 1, r.next());
        const bool deterministic = r.below(3) == 0;
        const std::vector<float> want = run_naive(s);
        const std::vector<float> got = run(s, 0, s.seqs, s.groups, r.below(9), deterministic);
        const double d = distance(got, want), bound = s.dtype == DT_F32 ? 1e-5 : 8e-3;
        double far = 0;
        for (size_t k = 0; k < got.size(); k++) {
            far = std::max(far, (double)fabsf(got[k] - want[k]));
        }
        worst = std::max(worst, s.dtype == DT_F32 ? 0 : d);
        const bool good = d < bound && far < (s.dtype == DT_F32 ? 1e-3 : 0.1);
        const bool bits = !good || !deterministic || same_alone(s, got, r);
        n_bits += deterministic;
        if (!good || !bits) {
            n_failed++;
            printf("attention case %d FAILED%s: heads %d/%d dims %d/%d %s page %d window %d cap %g "
                   "sinks %d rows %d seqs %zu groups %zu%s: distance %g, farthest %g\n",
                   i, bits ? "" : " (bits)", s.n_heads, s.n_kv_heads, s.dim_k, s.dim_v,
                   name_of(s.dtype), s.block_tokens, s.window, s.softcap, s.sinks, s.n_rows(),
                   s.seqs.size(), s.groups.size(), deterministic ? " deterministic" : "", d, far);
        }
        destroy(s);
    }
    bench_failures += n_failed;
    printf("attention: %d passes checked (%d for equal bits), %d failed, worst distance %.2g\n",
           n_cases, n_bits, n_failed, worst);
}

/* ---- timing -------------------------------------------------------------------------------- */

static struct scene llama_8b(int block_tokens)
{
    struct scene s = {};
    s.n_heads = 32;
    s.n_kv_heads = 8;
    s.dim_k = s.dim_v = 128;
    s.dtype = DT_BF16;
    s.block_tokens = block_tokens;
    return s;
}

struct timing {
    double us, tb_s, tflop_s;
};

static struct timing time_scene(struct scene &s, const char *name, bool grouped = true,
                                bool deterministic = false)
{
    double keys = 0, pairs = 0;
    for (const struct pass_seq &q : s.seqs) {
        keys += q.n_past + q.n_rows;
        pairs += (double)q.n_past * q.n_rows + q.n_rows * (q.n_rows + 1.0) / 2;
    }
    for (const struct pass_group &g : s.groups) {
        keys -= grouped ? (double)(g.n_seqs - 1) * g.n_blocks * s.block_tokens : 0;
    }
    const double bytes = keys * s.n_kv_heads * (s.v_in_k ? s.dim_k : s.dim_k + s.dim_v) * 2;
    const int n_layers = std::max(2, std::min(32, (int)(600e6 / bytes)));
    build(s, n_layers, 7);
    struct prepared p;
    prepare(p, s, 0, s.seqs, grouped ? s.groups : std::vector<struct pass_group>{}, 0, deterministic);
    const double us = time_us(std::max(n_layers, 4), [&](cudaStream_t stream, int i) {
        struct attention_launch a = p.launch;
        a.kv.base = s.kv + (size_t)(i % n_layers) * s.layer_bytes;
        CHECK(attention_launch(stream, &a));
    });
    const struct timing t = {us, bytes / us * 1e-6,
                             pairs * s.n_heads * 2.0 * (s.dim_k + s.dim_v) / us * 1e-6};
    printf("%-44s %9.1f %7.2f %5.0f%% %8.0f %6d %6d %7.0f\n", name, t.us, t.tb_s, t.tb_s / 4.8 * 100,
           t.tflop_s, p.n_items, p.n_slots, p.plan_us);
    finish(p);
    destroy(s);
    return t;
}

static struct timing time_equal(const char *what, int n_seqs, int n_past, int n_rows,
                                int block_tokens = 32, bool deterministic = false, bool tree = false)
{
    struct scene s = llama_8b(block_tokens);
    struct rng r = {3};
    for (int i = 0; i < n_seqs; i++) {
        add_seq(s, n_past, n_rows, tree);
        if (tree) {
            plant_tree(s, s.seqs.back(), r);
        }
    }
    char name[128];
    snprintf(name, sizeof name, "%s: %d x %d rows after %d, page %d%s", what, n_seqs, n_rows, n_past,
             block_tokens, deterministic ? ", det." : "");
    return time_scene(s, name, true, deterministic);
}

static struct scene shared_scene(int n_groups, int n_each, int n_shared, int n_own)
{
    struct scene s = llama_8b(32);
    for (int g = 0; g < n_groups; g++) {
        s.groups.push_back({(int)s.seqs.size(), n_each, n_shared / 32});
        for (int i = 0; i < n_each; i++) {
            add_seq(s, n_shared / 32 * 32 + n_own, 1, false);
        }
    }
    return s;
}

static void time_shared(int n_groups, int n_each, int n_shared, int n_own)
{
    char name[128];
    snprintf(name, sizeof name, "shared: %d prefixes x %d, %d + %d", n_groups, n_each, n_shared, n_own);
    struct scene a = shared_scene(n_groups, n_each, n_shared, n_own);
    const struct timing with = time_scene(a, name);
    struct scene b = shared_scene(n_groups, n_each, n_shared, n_own);
    const struct timing without = time_scene(b, "  the same, not told of it", false);
    /* Without being told, siblings' reads of one prefix meet in the L2 cache; the fair comparison
     * is with as many sequences of their own. */
    const struct timing own = time_equal("  as many without a common prefix", n_groups * n_each,
                                         n_shared + n_own, 1);
    printf("  -> %.2f of the time without sharing (%.2f of the same pages unshared)\n",
           with.us / own.us, with.us / without.us);
}

/* ---- in a step ----------------------------------------------------------------------------- */

/* What a layer of an 8B has around its attention. */
struct layer_chain {
    static constexpr int HIDDEN = 4096, QKV = 6144;
    static constexpr int64_t WEIGHTS = (int64_t)HIDDEN * (QKV + HIDDEN);
    bf16_t *weights, *x, *qkv;
    float *cos_sin, *inv_freq;
    struct rope_view rope;

    void open(int n_layers, int n_rows)
    {
        weights = device_new<bf16_t>((size_t)n_layers * WEIGHTS);
        x = device_new<bf16_t>((size_t)n_rows * HIDDEN);
        qkv = device_new<bf16_t>((size_t)n_rows * QKV);
        cos_sin = device_new<float>(2 * 64 * 4096);
        inv_freq = device_new<float>(64);
        fill(weights, DT_BF16, n_layers * WEIGHTS, 1, 0.02f);
        fill(x, DT_BF16, (int64_t)n_rows * HIDDEN, 2, 1.0f);
        fill(qkv, DT_BF16, (int64_t)n_rows * QKV, 3, 1.0f);
        fill(inv_freq, DT_F32, 64, 4, 0.01f);
        rope = {cos_sin, 64, 4096, false};
        CHECK(k_rope_table(0, cos_sin, inv_freq, &rope, 1.0f));
        CHECK(cudaDeviceSynchronize());
    }

    /* The small product's kernel stands for every product: of many rows it takes 64. */
    void product(cudaStream_t stream, const void *from, const bf16_t *weight, bf16_t *to, int n_out,
                 int n_rows)
    {
        struct gemm_args g = {};
        g.x = from;
        g.weight = weight;
        g.y = to;
        g.x_dtype = g.w_dtype = g.y_dtype = DT_BF16;
        g.n_rows = std::min(n_rows, 64);
        g.n_out = g.y_stride = n_out;
        g.n_in = g.x_stride = HIDDEN;
        g.n_batch = 1;
        CHECK(gemm_small(stream, &g));
    }

    void issue(cudaStream_t stream, const struct attention_launch &a, int layer,
               bool with_attention)
    {
        const bf16_t *w = weights + layer * WEIGHTS;
        product(stream, x, w, qkv, QKV, a.n_rows);
        struct rope_store_args r = {};
        r.qkv.mem.p = qkv;
        r.qkv.stride = QKV;
        r.qkv.dtype = DT_BF16;
        r.n_rows = a.n_rows;
        r.n_heads = a.n_heads;
        r.n_kv_heads = a.kv.n_kv_heads;
        r.head_dim = a.kv.head_dim_k;
        CHECK(k_rope_store(stream, &r, &rope, nullptr, 0, nullptr, 0, &a.kv, &a.pass));
        if (with_attention) {
            CHECK(attention_launch(stream, &a));
        }
        product(stream, a.out, w + (int64_t)HIDDEN * QKV, x, HIDDEN, a.n_rows);
    }

    void close()
    {
        for (void *m : {(void *)weights, (void *)x, (void *)qkv, (void *)cos_sin,
                        (void *)inv_freq}) {
            CHECK(cudaFree(m));
        }
    }
};

/* Decoding between products, whose weights drive all else out of the L2 cache, and after rope: the
 * attention's time is what the chain takes longer with it. */
static void time_in_step(int n_seqs, int n_past)
{
    struct scene s = llama_8b(64);
    for (int i = 0; i < n_seqs; i++) {
        add_seq(s, n_past, 1, false);
    }
    const double bytes = (double)n_seqs * (n_past + 1) * 4096;
    const int n_layers = std::max(4, std::min(12, (int)(800e6 / bytes)));
    build(s, n_layers, 7);
    struct prepared p;
    prepare(p, s, 0, s.seqs, s.groups, 0, false);
    struct layer_chain chain;
    chain.open(n_layers, n_seqs);
    p.launch.q = chain.qkv;
    p.launch.q_stride = layer_chain::QKV;
    double us[2];
    for (int with = 0; with < 2; with++) {
        us[with] = time_us(n_layers, [&](cudaStream_t stream, int i) {
            struct attention_launch a = p.launch;
            a.kv.base = s.kv + (size_t)i * s.layer_bytes;
            chain.issue(stream, a, i, with != 0);
        });
    }
    printf("%3d x %5d: %6.1f us (the rest of the chain %5.1f; memory at 4.5 TB/s %5.1f)\n", n_seqs,
           n_past + 1, us[1] - us[0], us[0], bytes / 4.5e6);
    chain.close();
    finish(p);
    destroy(s);
}

void bench_attention_step()
{
    printf("attention in a step: what a chain of qkv, rope, attention, o takes longer with it\n");
    for (int n : {1, 4, 8, 16, 32, 64, 128, 256}) {
        time_in_step(n, 299);
    }
    for (int n : {1, 64, 256}) {
        time_in_step(n, 256);
    }
    for (int n : {1, 8, 64}) {
        time_in_step(n, 2047);
    }
}

void bench_attention_time()
{
    if (getenv("SHORT")) {
        for (int n : {1024, 4096}) {
            time_equal("prefill", 1, 0, n);
        }
        for (int q : {256, 2048}) {
            time_equal("chunk", 1, 8192 - q, q);
        }
        time_equal("decode", 1, 2047, 1);
        time_equal("decode", 32, 2047, 1);
        time_equal("decode", 128, 2047, 1, 16);
        time_equal("decode", 128, 2047, 1, 32);
        time_equal("decode", 128, 2047, 1, 64);
        time_equal("verify", 32, 2047, 16);
        time_equal("prefill", 1, 0, 2048);
        time_equal("prefill", 1, 0, 8192);
        return;
    }
    printf("attention, 32 query heads, 8 KV heads, dim 128, bf16; in a graph, rotating layers\n");
    printf("%-44s %9s %7s %6s %8s %6s %6s %7s\n", "pass", "us", "TB/s", "of 4.8", "TFLOP/s", "items",
           "slots", "plan us");
    for (int n : {1, 2, 8, 32, 64, 128, 256}) {
        time_equal("decode", n, 256, 1);
    }
    for (int n : {1, 2, 8, 20, 32, 64, 128}) {
        time_equal("decode", n, 2047, 1);
    }
    for (int bt : {16, 64}) {
        time_equal("decode", 128, 2047, 1, bt);
    }
    for (int n : {1, 8, 32}) {
        time_equal("decode", n, 8191, 1);
    }
    time_equal("decode", 1, 131071, 1);
    time_equal("decode", 128, 2047, 1, 32, true);
    time_equal("decode", 1, 2047, 1, 32, true);
    struct rng r = {9};
    struct scene mixed = llama_8b(32);
    for (int i = 0; i < 100; i++) {
        add_seq(mixed, r.between(100, 4000), 1, false);
    }
    time_scene(mixed, "decode: 100 of 100 to 4000");
    for (int n : {8, 32}) {
        const struct timing one = time_equal("one row", n, 2047, 1);
        for (int q : {4, 16, 32}) {
            const struct timing t = time_equal("verify", n, 2047, q);
            printf("  -> %.2f of one row\n", t.us / one.us);
        }
        const struct timing t = time_equal("verify, tree", n, 2047, 16, 32, false, true);
        printf("  -> %.2f of one row\n", t.us / one.us);
    }
    time_shared(1, 16, 2000, 200);
    time_shared(8, 16, 2000, 200);
    time_shared(32, 16, 2000, 200);
    for (int n : {1024, 2048, 4096, 8192, 16384}) {
        if (n <= 8192) {
            time_equal("prefill", 1, 0, n);
        }
    }
    time_equal("prefill", 4, 0, 2048);
    time_equal("prefill", 8, 0, 1024);
    time_equal("prefill", 1, 0, 8192, 16);
    time_equal("prefill", 1, 0, 8192, 64);
    time_equal("prefill", 1, 0, 8192, 32, true);
    for (int q : {256, 512, 1024, 2048}) {
        time_equal("chunk", 1, 8192 - q, q);
    }
    struct scene both = llama_8b(32);
    add_seq(both, 0, 2048, false);
    for (int i = 0; i < 64; i++) {
        add_seq(both, 2047, 1, false);
    }
    time_scene(both, "both: 64 decode at 2k + prefill 2048");
}
