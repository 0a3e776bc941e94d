// SPDX-License-Identifier: Apache-2.0
/* A scene for the attention benches: a pass over one or several layers in device memory, and the
 * same pass prepared for launching. Slots without an owner hold NaN.
 * Thread: one. */
#ifndef SLUICE_TEST_ATTENTION_SCENE_CUH
#define SLUICE_TEST_ATTENTION_SCENE_CUH

#include "bench/ops/bench.cuh"
#include "cuda/attention.h"
#include "cuda/attention_plan.h"
#include "cuda/cuda_kv.h"
#include "cuda/gemm.h"
#include "cuda/kernels/device/kv_codes.cuh"
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
    enum kv_format format; // quantised if it has codes
    float stored;          // their scale, if tokens have no scales of their own
    size_t run_bytes;      // size of the buffer that holds decoded runs

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

/* Number i of a token's K or V before it is quantised. */
__device__ inline float fresh_number(const struct kv_view &v, uint64_t seed, int64_t token, int h,
                                     bool is_v, int i)
{
    const uint64_t at = (((uint64_t)token * v.n_kv_heads + h) * 2 + is_v) * 1024 + i;
    if (v.codes.format == KV_PLAIN) {
        return random_normal(seed, at);
    }
    // The mean is not 0, so that codes need their zero points.
    return random_normal(seed, at) + (is_v ? 1.5f : 0.5f);
}

/* Writes tokens [0, n) of K and V with one block per token and head. They are the tokens of
 * `table`, or of all pages in order. */
static __global__ void own_kernel(struct kv_view v, const int32_t *table, uint64_t seed)
{
    __shared__ float x[1024];
    const int slot = blockIdx.x, h = blockIdx.y, t = slot % v.block_tokens;
    int64_t page;
    if (table) {
        page = table[slot / v.block_tokens];
    } else {
        page = slot / v.block_tokens;
    }
    const int64_t base = page * v.page_stride + (int64_t)h * v.head_stride;
    const int64_t token = page * v.block_tokens + t;
    for (int is_v = 0; is_v < (v.v_offset > 0 ? 2 : 1); is_v++) {
        const int n = is_v ? v.head_dim_v : v.head_dim_k;
        __syncthreads();
        for (int i = threadIdx.x; i < (n + 31) / 32 * 32; i += blockDim.x) {
            if (i < n) {
                x[i] = fresh_number(v, seed, token, h, is_v, i);
            } else {
                x[i] = 0.0f;
            }
        }
        __syncthreads();
        if (v.codes.format != KV_PLAIN) {
            if (threadIdx.x < 32) {
                kv_store_head(v.codes, kv_place_of(v, page, h, t), is_v, x, n);
            }
            continue;
        }
        int64_t first;
        if (is_v) {
            first = base + v.v_offset + (int64_t)t * v.v_token_stride;
        } else {
            first = base + (int64_t)t * v.head_dim_k;
        }
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            if (v.dtype == DT_F32) {
                ((float *)v.base)[first + i] = x[i];
            } else if (v.dtype == DT_BF16) {
                ((bf16_t *)v.base)[first + i] = from_float<bf16_t>(x[i]);
            } else {
                ((f16_t *)v.base)[first + i] = from_float<f16_t>(x[i]);
            }
        }
    }
}

/* ---- building a scene ---------------------------------------------------------------------- */

/* Masks are filled with garbage for rows that are not in a tree: kernels must not read them. */
static inline void add_seq(struct scene &s, int n_past, int n_rows, bool tree)
{
    const struct pass_seq seq = {(int)s.seqs.size(), s.n_rows(), n_rows, n_past, tree};
    s.seqs.push_back(seq);
    for (int i = 0; i < n_rows; i++) {
        s.rows.push_back({seq.lane, 0, n_past + i, n_past + i});
        s.masks.insert(s.masks.end(), TREE_MASK_WORDS, 0xdeadbeefdeadbeefull);
    }
}

/* Gives each row a random parent; its position follows from its depth. */
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

/* The geometry of the scene's layer. */
static inline struct kv_layer layer_of(const struct scene &s)
{
    struct kv_layer layer = {};
    layer.n_heads = s.n_heads;
    layer.n_kv_heads = s.n_kv_heads;
    layer.head_dim_k = s.dim_k;
    layer.head_dim_v = s.dim_v;
    layer.v_in_k = s.v_in_k;
    layer.k_scale = layer.v_scale = s.stored;
    return layer;
}

/* Allocates and fills the pages and tables. Sequences of a group share their first blocks. */
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
    s.tables.assign((size_t)(n_seqs + 1 + ATTENTION_MAX_RUNS) * s.table_stride, s.n_blocks);
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
    const struct kv_layer layer = layer_of(s);
    struct kv_set_desc desc = {};
    desc.n_layers = 1;
    desc.layers = &layer;
    desc.dtype = s.dtype;
    desc.format = s.format;
    s.view = kv_view_make(&layer, &desc, bt, s.n_blocks + 1, NULL);
    s.n_layers = n_layers;
    s.layer_bytes = (size_t)(s.n_blocks + 1) * s.view.page_stride * kv_element_bytes(&s.view);
    s.layer_bytes = (s.layer_bytes + 255) / 256 * 256;
    s.kv = device_new<char>(s.layer_bytes * n_layers);
    CHECK(cudaMemset(s.kv, 0xff, s.layer_bytes * n_layers));
    s.d_tables = device_copy(s.tables);
    for (int i = 0; n_layers > 1 && i < n_layers; i++) { // timing: all tokens are stored already
        struct kv_view v = s.view;
        v.base = s.kv + (size_t)i * s.layer_bytes;
        own_kernel<<<dim3((s.n_blocks + 1) * bt, s.n_kv_heads), 128>>>(v, nullptr, seed + i);
    }
    s.view.base = s.kv;
    for (const struct pass_seq &q : s.seqs) {
        if (n_layers == 1) {
            own_kernel<<<dim3(q.n_past + q.n_rows, s.n_kv_heads), 128>>>(
                s.view, s.d_tables + (size_t)q.lane * s.table_stride, seed);
        }
    }
    CHECK(cudaGetLastError());
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

/* The limits that the engine would set for this device. */
static inline struct attention_limits limits_of(const struct scene &s, bool deterministic)
{
    struct attention_limits l = {};
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    l.max_rows = 8192;
    l.max_lanes = (int)s.seqs.size();
    l.max_len = 1 << 20;
    l.block_tokens = s.block_tokens;
    l.n_sms = prop.multiProcessorCount;
    l.sm = prop.major * 10 + prop.minor;
    l.deterministic = deterministic;
    if (deterministic || l.sm != 90 || s.format == KV_PLAIN) {
        l.max_runs = 0;
    } else {
        l.max_runs = ATTENTION_MAX_RUNS;
    }
    l.run_bytes = l.max_runs > 0 ? s.run_bytes : 0;
    attention_learn(&l, 0, s.n_heads, &s.view);
    return l;
}

/* A pass ready to launch: the scene's rows from first_row on, as the sequences `seqs` (whose rows
 * count from 0). */
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

/* The plan of the pass; p.plan_us is the time that it takes. */
static inline std::vector<char> make_plan(struct prepared &p, const struct pass &pass, int n_rows)
{
    std::vector<char> plan(attention_plan_bytes(&p.limits, n_rows));
    size_t used = 0;
    for (int i = 0; i < 2; i++) { // the second launch finds its memory warm
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        if (attention_plan(&p.limits, &pass, n_rows, plan.data(), &used) != OK) {
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
    return plan;
}

/* The launch's own memory, filled with NaN. */
static inline void give_memory(struct prepared &p)
{
    struct attention_launch &a = p.launch;
    a.run_memory = device_new<char>(p.limits.run_bytes);
    p.memory.push_back(a.run_memory);
    CHECK(cudaMemset(a.run_memory, 0xff, p.limits.run_bytes));
    a.workspace_bytes = attention_workspace_bytes(&p.limits);
    a.workspace = device_new<char>(a.workspace_bytes);
    p.memory.push_back(a.workspace);
    CHECK(cudaMemset(a.workspace, 0xff, a.workspace_bytes));
}

/* Copies everything to the device, so that the pass can be launched many times. */
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
    const std::vector<char> plan = make_plan(p, pass, n_rows + padding);
    p.n_items = ((struct attention_plan_head *)plan.data())->n_items;
    const struct attention_plan_facts facts = attention_plan_facts(plan.data());
    p.n_slots = facts.n_slots;
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
    a.n_runs = facts.n_runs;
    a.has_others = facts.has_others;
    a.scale = 1.0f / sqrtf((float)s.dim_k);
    a.window = s.window;
    a.softcap = s.softcap;
    a.sinks = s.sinks ? s.sink_values : nullptr;
    give_memory(p);
    a.limits = &p.limits;
}

static inline void finish(struct prepared &p)
{
    for (void *m : p.memory) {
        CHECK(cudaFree(m));
    }
}

#endif
