// SPDX-License-Identifier: Apache-2.0
/* Checks attention against a naive fp32 version, over random passes. */
#include "bench/ops/attention_scene.cuh"
#include "engine/base/optional.h"

/* An element of any dtype as fp32. */
__device__ float element(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F32: return ((const float *)p)[i];
    case DT_BF16: return to_float(((const bf16_t *)p)[i]);
    default: return to_float(((const f16_t *)p)[i]);
    }
}

/* Element i of K or V of a sequence's key. is_rounded: codes are converted to the layer's dtype
 * before they are multiplied. */
__device__ float stored_number(const struct kv_view &kv, const int32_t *table, int kv_head, int key,
                               bool is_v, int i, bool is_rounded)
{
    const int64_t page = table[key / kv.block_tokens];
    const int t = key % kv.block_tokens;
    is_v = is_v && kv.v_offset != 0;
    if (kv.codes.format != KV_PLAIN) {
        const struct kv_place at = kv_place_of(kv, page, kv_head, t);
        const float x = kv_get(kv.codes, at, is_v, kv_scale_get(kv.codes, at, is_v), i);
        if (!is_rounded) {
            return x;
        }
        if (kv.dtype == DT_BF16) {
            return to_float(from_float<bf16_t>(x));
        }
        return to_float(from_float<f16_t>(x));
    }
    return element(
        kv.base, kv.dtype,
        page * kv.page_stride + (int64_t)kv_head * kv.head_stride + i +
            (is_v ? kv.v_offset + (int64_t)t * kv.v_token_stride : (int64_t)t * kv.head_dim_k));
}

/* Arguments of the naive kernel, which reads the same pages as the real kernels. */
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
    bool is_rounded;
};

/* One block per row and head. It keeps the scores of all keys in shared memory, without online
 * softmax or sharing of keys, so that an error of the fast kernels is not repeated here. */
__global__ void naive_attention(struct naive_args a)
{
    extern __shared__ float score[];
    __shared__ float shared[256];
    const int r = blockIdx.x, h = blockIdx.y, kv_head = h / (a.n_heads / a.kv.n_kv_heads);
    const struct pass_seq s = a.seqs[a.row_seq[r]];
    const int32_t *table = a.tables + (int64_t)s.lane * a.table_stride;
    const int n = s.n_past + s.n_rows;
    float top = -INFINITY;
    for (int key = threadIdx.x; key < n; key += blockDim.x) {
        bool seen = true;
        int key_pos = key;
        if (key >= s.n_past) {
            const int node = key - s.n_past;
            key_pos = a.rows[s.first_row + node].pos;
            if (s.tree) {
                seen = a.masks[(int64_t)r * TREE_MASK_WORDS + node / 64] >> (node % 64) & 1;
            } else {
                seen = node <= r - s.first_row;
            }
        }
        seen = seen && (a.window == 0 || a.rows[r].pos - a.window < key_pos);
        float dot = 0.0f;
        if (seen) {
            for (int i = 0; i < a.kv.head_dim_k; i++) {
                dot += element(a.q, a.kv.dtype,
                               (int64_t)r * a.q_stride + (int64_t)h * a.kv.head_dim_k + i) *
                       stored_number(a.kv, table, kv_head, key, false, i, a.is_rounded);
            }
            dot *= a.scale;
            if (a.softcap > 0) {
                dot = a.softcap * tanhf(dot / a.softcap);
            }
        }
        score[key] = seen ? dot : -INFINITY;
        top = fmaxf(top, score[key]);
    }
    shared[threadIdx.x] = top;
    __syncthreads();
    for (int i = 0; i < (int)blockDim.x; i++) {
        top = fmaxf(top, shared[i]);
    }
    if (a.sinks) {
        top = fmaxf(top, a.sinks[h]);
    }
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
                         stored_number(a.kv, table, kv_head, key, true, i, a.is_rounded);
            }
        }
        a.out[((int64_t)r * a.n_heads + h) * a.kv.head_dim_v + i] = value / sum;
    }
}

/* Runs the scene's sequences from first_row on, in their groups, with `padding` more rows. */
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

/* is_rounded: codes are converted to the layer's dtype before they are multiplied. */
static std::vector<float> run_naive(const struct scene &s, bool is_rounded)
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
    a.is_rounded = is_rounded && s.dtype != DT_F32;
    CHECK(
        cudaFuncSetAttribute(naive_attention, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000));
    naive_attention<<<dim3(s.n_rows(), s.n_heads), 128, longest * sizeof(float)>>>(a);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> v = to_host(out, DT_F32, n);
    CHECK(cudaFree(out));
    finish(p);
    return v;
}

/* For each row and head, the nearer of two reference answers. */
static std::vector<float> nearer(const std::vector<float> &got, const std::vector<float> &a,
                                 const std::vector<float> &b, int dims)
{
    std::vector<float> out = a;
    for (size_t i = 0; i < got.size(); i += dims) {
        double to_a = 0, to_b = 0;
        for (size_t k = i; k < i + dims; k++) {
            to_a += ((double)got[k] - a[k]) * ((double)got[k] - a[k]);
            to_b += ((double)got[k] - b[k]) * ((double)got[k] - b[k]);
        }
        if (to_b < to_a) {
            std::copy_n(b.begin() + i, dims, out.begin() + i);
        }
    }
    return out;
}

/* Some kernels use codes exactly, others round them first; the expectation is the nearer of the
 * two. */
static std::vector<float> expected_of(const struct scene &s, const std::vector<float> &got)
{
    const std::vector<float> exact = run_naive(s, false);
    if (s.format == KV_PLAIN) {
        return exact;
    }
    return nearer(got, exact, run_naive(s, true), s.dim_v);
}

/* In deterministic mode, every sequence alone, with its chain in two pieces, must give the same
 * bits. */
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

/* Shapes, pasts, trees, windows and groups are random, so that rare combinations occur as well. */
static struct scene random_scene(struct rng &r)
{
    static const int dims[] = {16, 32, 64, 80, 96, 128, 128, 192, 256, 40, 112, 72};
    static const int heads[][2] = {{32, 8}, {8, 8},  {4, 1},  {6, 2},
                                   {16, 1}, {12, 4}, {40, 1}, {5, 5}};
    static const int sizes[] = {16, 32, 64};
    struct scene s = {};
    const int h = r.below(8);
    s.n_heads = heads[h][0];
    s.n_kv_heads = heads[h][1];
    s.dim_k = s.dim_v = dims[r.below(12)];
    if (r.below(8) == 0) {
        s.dtype = DT_F32;
    } else {
        s.dtype = r.below(3) == 0 ? DT_F16 : DT_BF16;
    }
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
    if (r.below(2)) {
        s.format = KV_PLAIN;
    } else {
        s.format = (enum kv_format)r.between(KV_FP8, KV_INT4);
    }
    s.stored = s.format == KV_FP8 && r.below(2) ? 0.02f : 0.0f;
    s.run_bytes = r.below(4) ? (size_t)64 << 20 : (size_t)2 << 20;
    // decoding: enough work units that the narrow and the thin kernels are chosen
    if (r.below(5) == 0) {
        for (int n = r.between(40, 160); n > 0; n--) {
            add_seq(s, r.below(900), r.below(8) ? 1 : 2, false);
        }
        return s;
    }
    const int n_seqs = r.between(1, 10), longest = r.below(3) ? 700 : 4000;
    while ((int)s.seqs.size() < n_seqs) {
        const int group = r.below(3) == 0 ? r.between(2, 9) : 1;
        int n_shared = 0;
        if (group > 1) {
            n_shared = r.between(1, longest / s.block_tokens);
        }
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
    if (r.below(4) == 0) { // a prompt with more rows than a captured pass may have
        add_seq(s, r.below(longest), r.between(520, 1100), false);
    }
    return s;
}

static const char *name_of(enum dtype t)
{
    switch (t) {
    case DT_F32: return "f32";
    case DT_BF16: return "bf16";
    default: return "f16";
    }
}

/* The greatest distance of a pass, and the greatest difference of an element. */
struct nearness {
    double distance, farthest;
};

static struct nearness nearness_of(enum dtype t)
{
    switch (t) {
    case DT_F32: return {4e-6, 1e-4};
    case DT_BF16: return {3.5e-3, 4e-2};
    default: return {5e-4, 5e-3};
    }
}

/* A third of the passes run in deterministic mode: there, rows computed alone must have the same
 * bits. */
void bench_attention_check(int n_cases)
{
    int n_bits = 0, n_failed = 0;
    double worst = 0;
    for (int i = 0; i < n_cases; i++) {
        struct rng r = {(uint64_t)i + 1000};
        struct scene s = random_scene(r);
        build(s, 1, r.next());
        const bool deterministic = r.below(3) == 0;
        const std::vector<float> got = run(s, 0, s.seqs, s.groups, r.below(9), deterministic);
        const std::vector<float> want = expected_of(s, got);
        const double d = distance(got, want);
        double far = 0;
        for (size_t k = 0; k < got.size(); k++) {
            far = std::max(far, (double)fabsf(got[k] - want[k]));
        }
        worst = std::max(worst, s.dtype == DT_F32 ? 0 : d);
        const struct nearness most = nearness_of(s.dtype);
        const bool good = d < most.distance && far < most.farthest;
        const bool bits = !good || !deterministic || same_alone(s, got, r);
        n_bits += deterministic;
        if (!good || !bits) {
            n_failed++;
            printf("attention case %d FAILED%s: heads %d/%d dims %d/%d %s page %d window %d cap %g "
                   "sinks %d format %d of %g rows %d seqs %zu groups %zu%s: distance %g, farthest "
                   "%g\n",
                   i, bits ? "" : " (bits)", s.n_heads, s.n_kv_heads, s.dim_k, s.dim_v,
                   name_of(s.dtype), s.block_tokens, s.window, s.softcap, s.sinks, s.format,
                   s.stored, s.n_rows(), s.seqs.size(), s.groups.size(),
                   text_if(deterministic, " deterministic"), d, far);
        }
        destroy(s);
    }
    bench_failures += n_failed;
    printf("attention: %d passes checked (%d for equal bits), %d failed, worst distance %.2g\n",
           n_cases, n_bits, n_failed, worst);
    bench_attention_few_check(n_cases);
}
