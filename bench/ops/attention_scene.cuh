// SPDX-License-Identifier: Apache-2.0
/* Attention's benches: a pass over one layer or several, made in device memory, and one made ready
 * to launch. Every slot that nobody owns holds NaN. Thread: one. */
#ifndef SLUICE_TEST_ATTENTION_SCENE_CUH
#define SLUICE_TEST_ATTENTION_SCENE_CUH

#include "bench/ops/bench.cuh"
#include "cuda/attention.h"
#include "cuda/attention_plan.h"
#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"

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

static __global__ void own_kernel(struct kv_view v, const int32_t *table, int n_slots,
                                  uint64_t seed)
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
        const int64_t at =
            i < v.head_dim_k ? base + (int64_t)t * v.head_dim_k + i
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

/* ---- building a scene ---------------------------------------------------------------------- */

static inline void add_seq(struct scene &s, int n_past, int n_rows, bool tree)
{
    const struct pass_seq seq = {(int)s.seqs.size(), s.n_rows(), n_rows, n_past, tree};
    s.seqs.push_back(seq);
    for (int i = 0; i < n_rows; i++) {
        s.rows.push_back({seq.lane, 0, n_past + i, n_past + i});
        s.masks.insert(s.masks.end(), TREE_MASK_WORDS, 0xdeadbeefdeadbeefull);
    }
}

/* Random parents; the position is by depth. */
static inline void plant_tree(struct scene &s, const struct pass_seq &seq, struct rng &r)
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
static inline void build(struct scene &s, int n_layers, uint64_t seed)
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

static inline void destroy(struct scene &s)
{
    for (void *p : {(void *)s.kv, s.q, s.out, (void *)s.sink_values, (void *)s.d_tables}) {
        CHECK(cudaFree(p));
    }
}

static inline struct attention_limits limits_of(const struct scene &s, bool deterministic)
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

static inline void prepare(struct prepared &p, const struct scene &s, int first_row,
                           const std::vector<struct pass_seq> &seqs,
                           const std::vector<struct pass_group> &groups, int padding,
                           bool deterministic)
{
    p.limits = limits_of(s, deterministic);
    int n_rows = 0;
    std::vector<int32_t> row_seq;
    for (size_t i = 0; i < seqs.size(); i++) {
        n_rows += seqs[i].n_rows;
        row_seq.insert(row_seq.end(), seqs[i].n_rows, (int)i);
    }
    std::vector<struct pass_row> rows(s.rows.begin() + first_row,
                                      s.rows.begin() + first_row + n_rows);
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
    a.has_no_slots = p.n_slots == 0;
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

static inline void finish(struct prepared &p)
{
    for (void *m : p.memory) {
        CHECK(cudaFree(m));
    }
}

#endif
