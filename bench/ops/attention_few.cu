// SPDX-License-Identifier: Apache-2.0
/* Checks the kernels that compute rope, the store and attention in one launch (attention/few*.cu)
 * against the separate ops, over random passes. */
#include "bench/ops/attention_scene.cuh"
#include "cuda/few.h"
#include "engine/base/optional.h"

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

    void fill_args(struct rng &r, int n_rows, int width, bool large, int n_pairs)
    {
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
        fill_args(r, n_rows, width, large, n_pairs);
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
void bench_attention_few_check(int n_cases)
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
