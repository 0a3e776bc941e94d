// SPDX-License-Identifier: Apache-2.0
/* Checks attention against a naive fp32 version, over random passes. */
#include "bench/ops/attention_scene.cuh"
#include "cuda/few.h"
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

/* ---- decoding rows of few sequences -------------------------------------------------------- */

/* Compares the kernel that does rope, store and attention with the three separate ops: the output,
 * and every slot of the cache. */
struct few_case {
    struct scene s;
    struct prepared p;
    struct rope_store_args rope_args;
    struct rope_view rope;
    void *qkv, *old_qkv, *old_kv;
    float *cos_sin, *inv_freq, *norms, *runs;
    struct sum_parts sums; // n 0: qkv needs no summing
    size_t qkv_bytes;
    struct few_pass few;

    bool several() const
    {
        return few.seq_rows > 1;
    }

    /* True if the kernel supports the case. */
    bool is_taken() const
    {
        const int32_t d = s.dim_k;
        return several()
                   ? k_attention_several_takes(&rope_args, &rope, d, d, &s.view, &p.limits, &few)
                   : k_attention_few_takes(&rope_args, &rope, d, d, &s.view, &p.limits);
    }

    void open(struct rng &r, bool deterministic)
    {
        static const int heads[][2] = {{32, 8}, {8, 8}, {32, 4}, {6, 2}, {14, 2}, {12, 4}, {7, 1}};
        static const int sizes[] = {16, 32, 64};
        s = {};
        const int h = r.below(7);
        s.n_heads = heads[h][0];
        s.n_kv_heads = heads[h][1];
        s.dim_k = s.dim_v = r.below(3) ? 128 : 64;
        s.dtype = r.below(3) == 0 ? DT_F16 : DT_BF16;
        s.block_tokens = sizes[r.below(3)];
        int longest = 700; // longer in one of three cases
        if (r.below(3) == 0) {
            longest = r.below(2) ? 2000 : 9000;
        }
        int n_seqs = r.between(1, longest > 700 || r.below(2) ? 8 : 200);
        if (!deterministic && r.below(3) == 0) {
            s.format = (enum kv_format)r.between(KV_FP8, KV_INT4);
            s.stored = s.format == KV_FP8 && r.below(2) ? 0.02f : 0.0f;
            n_seqs = r.between(1, 6);
        } else if (!deterministic && r.below(3) == 0) {
            s.dim_k = s.dim_v = 256;
            n_seqs = r.between(1, 12);
        }
        few = {n_seqs, 1, 0};
        if (!deterministic && s.format == KV_PLAIN && r.below(2)) {
            few = {r.between(1, 4), FEW_SEQ_ROWS, 0};
        }
        for (int n = few.n_seqs; n > 0; n--) {
            const int most = std::min((int)FEW_SEQ_ROWS, ATTENTION_COMPLETE_ROWS / few.n_seqs);
            add_seq(s, r.below(longest), several() ? r.between(1, most) : 1,
                    several() && r.below(3) == 0);
            if (s.seqs.back().tree) {
                plant_tree(s, s.seqs.back(), r);
            }
        }
        build(s, 1, r.next());
        prepare(p, s, 0, s.seqs, s.groups, r.below(3), deterministic);
        const int n_rows = p.launch.n_rows, width = (s.n_heads + 2 * s.n_kv_heads) * s.dim_k;
        qkv_bytes = (size_t)n_rows * width * 2;
        qkv = device_new<char>(qkv_bytes);
        old_qkv = device_new<char>(qkv_bytes);
        old_kv = device_new<char>(s.layer_bytes);
        fill(old_qkv, s.dtype, (int64_t)n_rows * width, r.next(), 1.5f);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(old_kv, s.kv, s.layer_bytes, cudaMemcpyDeviceToDevice));
        const bool large = s.dim_k == 256;
        const int n_pairs = large && r.below(2) ? 32 : s.dim_k / 2, max_pos = 9000;
        cos_sin = device_new<float>((size_t)2 * n_pairs * max_pos);
        inv_freq = device_new<float>(n_pairs);
        norms = device_new<float>(2 * s.dim_k);
        fill(inv_freq, DT_F32, n_pairs, 4, 0.1f);
        fill(norms, DT_F32, 2 * s.dim_k, 5, 1.0f);
        rope = {cos_sin, n_pairs, max_pos, false};
        CHECK(k_rope_table(0, cos_sin, inv_freq, &rope, 1.1f));
        // With pages of codes, large heads or several rows per sequence the kernel takes so few
        // rows that the product before it leaves no partial sums.
        const bool complete = s.format != KV_PLAIN || large || several();
        const int n_runs = !complete && r.below(2) ? r.between(2, 6) : 0;
        const int64_t run = (int64_t)n_rows * width;
        runs = device_new<float>((size_t)((n_runs + 1) * run));
        fill(runs, DT_F32, (n_runs + 1) * run, r.next(), 0.7f);
        sums = {runs, r.below(2) ? runs + n_runs * run : nullptr, run, width, n_runs};
        rope_args = {};
        rope_args.qkv.mem.p = qkv;
        rope_args.qkv.stride = width;
        rope_args.qkv.dtype = s.dtype;
        rope_args.n_rows = n_rows;
        rope_args.n_heads = s.n_heads;
        rope_args.n_kv_heads = s.n_kv_heads;
        rope_args.head_dim = s.dim_k;
        rope_args.qk_norm = 2 * n_pairs < s.dim_k || r.below(2) ? QK_NORM_HEAD : QK_NORM_NONE;
        rope_args.v_norm = large && r.below(2);
        rope_args.eps = 1e-5f;
        rope_args.norm_offset = 0.25f;
        p.launch.q = qkv;
        p.launch.q_stride = width;
    }

    /* Fills a slot of quantised pages with ones: codes of 16 bytes at a time, and words. */
    void empty_coded(int32_t page, int token)
    {
        const struct kv_codes &c = s.view.codes;
        for (int h = 0; h < s.n_kv_heads; h++) {
            char *record = (char *)s.kv + page * s.view.page_stride + h * s.view.head_stride +
                           token / c.tokens * c.record_bytes;
            const int t = token % c.tokens;
            for (int is_v = 0; is_v < 2; is_v++) {
                for (int b = t * c.k_row; b < (t + 1) * c.k_row; b += 16) {
                    CHECK(cudaMemset(record + is_v * c.v_offset + (b ^ (b >> 3 & 0x70)), 0xff, 16));
                }
                CHECK(cudaMemset(record + c.words_offset + (t + is_v * c.tokens) * c.word_bytes,
                                 0xff, c.word_bytes));
            }
        }
    }

    /* All pages without the trash block: numbers, or the bytes of quantised pages. */
    std::vector<float> pages() const
    {
        const size_t n = (size_t)s.n_blocks * s.view.page_stride;
        if (s.format == KV_PLAIN) {
            return to_host(s.kv, s.dtype, n);
        }
        std::vector<uint8_t> bytes(n);
        CHECK(cudaMemcpy(bytes.data(), s.kv, n, cudaMemcpyDeviceToHost));
        return {bytes.begin(), bytes.end()};
    }

    /* Returns the output, followed by all pages. */
    std::vector<float> run(bool is_few)
    {
        CHECK(cudaMemcpy(qkv, old_qkv, qkv_bytes, cudaMemcpyDeviceToDevice));
        CHECK(cudaMemcpy(s.kv, old_kv, s.layer_bytes, cudaMemcpyDeviceToDevice));
        // The slots that the pass stores are still empty.
        for (size_t i = 0; s.format != KV_PLAIN && i < s.seqs.size(); i++) {
            const int slot = s.seqs[i].n_past;
            empty_coded(s.tables[i * s.table_stride + slot / s.block_tokens],
                        slot % s.block_tokens);
        }
        for (size_t i = 0; s.format == KV_PLAIN && i < s.rows.size(); i++) {
            const int slot = s.rows[i].slot_pos, bt = s.block_tokens;
            const int32_t page = s.tables[s.rows[i].lane * s.table_stride + slot / bt];
            for (int h = 0; h < 2 * s.n_kv_heads; h++) {
                CHECK(cudaMemset((char *)s.kv +
                                     2 * (page * s.view.page_stride + h / 2 * s.view.head_stride +
                                          h % 2 * s.view.v_offset + slot % bt * s.dim_k),
                                 0xff, s.dim_k * 2));
            }
        }
        const size_t n = s.rows.size() * (size_t)s.n_heads * s.dim_v;
        CHECK(cudaMemset(p.launch.out, 0xff, n * 2));
        const int32_t d = s.dim_k;
        if (is_few && several()) {
            CHECK(k_attention_several(0, &rope_args, &rope, norms, norms + d, &p.launch, &few));
        } else if (is_few) {
            CHECK(
                k_attention_few(0, &rope_args, &rope, norms, norms + d, &p.launch, &sums, nullptr));
        } else {
            CHECK(k_rope_store(0, &rope_args, &rope, norms, d, norms + d, d, &s.view,
                               &p.launch.pass, &sums));
            CHECK(attention_launch(0, &p.launch));
        }
        CHECK(cudaDeviceSynchronize());
        std::vector<float> out = to_host(p.launch.out, s.dtype, n);
        const std::vector<float> stored = pages();
        out.insert(out.end(), stored.begin(), stored.end());
        return out;
    }

    void close()
    {
        for (void *m : {qkv, old_qkv, old_kv, (void *)cos_sin, (void *)inv_freq, (void *)norms,
                        (void *)runs}) {
            CHECK(cudaFree(m));
        }
        finish(p);
        destroy(s);
    }
};

/* Compares the fused kernel for few rows with separate ops. Counts the cases that it accepts: a
 * kernel that accepts none would otherwise pass. */
static bool few_is_right(int seed, bool deterministic, double *worst, int *n_taken)
{
    struct rng r = {(uint64_t)seed + 5000};
    struct few_case c;
    c.open(r, deterministic);
    const struct scene &s = c.s;
    bool good = k_rope_takes_sums(&c.rope_args, &c.rope, s.dim_k, s.dim_k, &s.view);
    double far = 0;
    if (c.is_taken()) {
        ++*n_taken;
        const std::vector<float> want = c.run(false), got = c.run(true);
        const size_t n_out = s.rows.size() * (size_t)s.n_heads * s.dim_v;
        for (size_t i = 0; i < want.size(); i++) {
            const bool exact = deterministic || (s.format != KV_PLAIN && i >= n_out);
            good = good && std::isnan(want[i]) == std::isnan(got[i]);
            good = good &&
                   (!exact || std::isnan(want[i]) || memcmp(&want[i], &got[i], sizeof got[i]) == 0);
            far = std::isnan(want[i])
                      ? far
                      : std::max(far, (double)fabsf(got[i] - want[i]) / (1.0 + fabsf(want[i])));
        }
        *worst = std::max(*worst, far);
        good = good && far < (s.dtype == DT_BF16 ? 1e-2 : 1.5e-3);
    }
    if (!good) {
        printf("few case %d%s FAILED: heads %d/%d dim %d %s format %d page %d rows %d of %zu: "
               "farthest %g\n",
               seed, text_if(deterministic, " (bits)"), s.n_heads, s.n_kv_heads, s.dim_k,
               s.dtype == DT_BF16 ? "bf16" : "f16", s.format, s.block_tokens, c.p.launch.n_rows,
               s.rows.size(), far);
    }
    c.close();
    return good;
}

/* The fused kernel must accept at least three of four cases. */
static void check_few(int n_cases)
{
    double worst = 0;
    int n_failed = 0, n_taken = 0;
    for (int i = 0; i < n_cases; i++) {
        n_failed += !few_is_right(i / 2, i % 2, &worst, &n_taken);
    }
    /* It declines some cases, such as many rows of few heads. */
    bench_failures += n_failed + (4 * n_taken < 3 * n_cases);
    printf("few: %d of %d passes checked, %d failed, worst relative difference %.2g\n", n_taken,
           n_cases, n_failed, worst);
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
    check_few(n_cases);
}
