// SPDX-License-Identifier: Apache-2.0
/* Times attention: passes alone, shared prefixes, and steps in which attention runs between a
 * layer's products. */
#include "bench/ops/attention_scene.cuh"
#include "cuda/few.h"
#include "engine/base/optional.h"

/* The shape of Llama 3 8B, for comparison with published numbers. */
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

/* Bytes of a token's K and V in one layer. */
static double token_bytes(const struct scene &s)
{
    const struct kv_layer layer = layer_of(s);
    struct kv_set_desc desc = {};
    desc.n_layers = 1;
    desc.layers = &layer;
    desc.dtype = s.dtype;
    desc.format = s.format;
    size_t n_bytes = 0;
    cuda_kv_bytes(NULL, &desc, s.block_tokens, &n_bytes);
    return (double)n_bytes / s.block_tokens;
}

/* Prints the time, the bandwidth and the arithmetic rate. The bandwidth counts every key and value
 * once. */
static struct timing time_scene(struct scene &s, const char *name, bool grouped = true,
                                bool deterministic = false)
{
    double keys = 0, pairs = 0;
    for (const struct pass_seq &q : s.seqs) {
        keys += q.n_past + q.n_rows;
        pairs += (double)q.n_past * q.n_rows + q.n_rows * (q.n_rows + 1.0) / 2;
    }
    for (const struct pass_group &g : s.groups) {
        if (grouped) {
            keys -= (double)(g.n_seqs - 1) * g.n_blocks * s.block_tokens;
        }
    }
    const double bytes = keys * token_bytes(s);
    const int n_layers = std::max(2, std::min(32, (int)(600e6 / bytes)));
    build(s, n_layers, 7);
    struct prepared p;
    prepare(p, s, 0, s.seqs, grouped ? s.groups : std::vector<struct pass_group>{}, 0,
            deterministic);
    const double us = time_us(std::max(n_layers, 4), [&](cudaStream_t stream, int i) {
        struct attention_launch a = p.launch;
        a.kv.base = s.kv + (size_t)(i % n_layers) * s.layer_bytes;
        CHECK(attention_launch(stream, &a));
    });
    const struct timing t = {us, bytes / us * 1e-6,
                             pairs * s.n_heads * 2.0 * (s.dim_k + s.dim_v) / us * 1e-6};
    printf("%-44s %9.1f %7.2f %5.0f%% %8.0f %6d %6d %7.0f\n", name, t.us, t.tb_s,
           t.tb_s / 4.8 * 100, t.tflop_s, p.n_items, p.n_slots, p.plan_us);
    finish(p);
    destroy(s);
    return t;
}

/* A format of the cache and its stored scale. */
struct format_time {
    const char *name;
    enum kv_format format;
    float stored;
};

/* Times long contexts and prompts with each KV format; only lines that contain `what` are run. */
static void time_formats(const char *what)
{
    static const struct format_time formats[] = {{"bf16", KV_PLAIN, 0.0f},
                                                 {"fp8, stored scales", KV_FP8, 0.02f},
                                                 {"fp8", KV_FP8, 0.0f},
                                                 {"int8", KV_INT8, 0.0f},
                                                 {"int4", KV_INT4, 0.0f}};
    static const int passes[][3] = {{128, 2047, 1}, {8, 32767, 1}, {64, 8191, 1}, {1, 8191, 1},
                                    {32, 2047, 16}, {1, 0, 2048},  {1, 0, 8192},  {1, 6144, 2048},
                                    {1, 7680, 512}, {8, 1000, 60}, {64, 1000, 4}};
    for (const auto &pass : passes) {
        for (const struct format_time &f : formats) {
            char name[128];
            snprintf(name, sizeof name, "%s: %d x %d rows after %d", f.name, pass[0], pass[2],
                     pass[1]);
            if (!strstr(name, what)) {
                continue;
            }
            struct scene s = llama_8b(16);
            s.format = f.format;
            s.stored = f.stored;
            s.run_bytes = (size_t)1 << 30;
            for (int i = 0; i < pass[0]; i++) {
                add_seq(s, pass[1], pass[2], false);
            }
            time_scene(s, name);
        }
    }
}

static struct timing time_equal(const char *what, int n_seqs, int n_past, int n_rows,
                                int block_tokens = 32, bool deterministic = false,
                                bool tree = false)
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
    snprintf(name, sizeof name, "%s: %d x %d rows after %d, page %d%s", what, n_seqs, n_rows,
             n_past, block_tokens, text_if(deterministic, ", det."));
    return time_scene(s, name, true, deterministic);
}

/* Groups of sequences that share a prefix. */
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

/* Times the same keys twice: once with the prefix known as shared, once as if it were each
 * sequence's own. */
static void time_shared(int n_groups, int n_each, int n_shared, int n_own)
{
    char name[128];
    snprintf(name, sizeof name, "shared: %d prefixes x %d, %d + %d", n_groups, n_each, n_shared,
             n_own);
    struct scene a = shared_scene(n_groups, n_each, n_shared, n_own);
    const struct timing with = time_scene(a, name);
    struct scene b = shared_scene(n_groups, n_each, n_shared, n_own);
    const struct timing without = time_scene(b, "  the same, without knowing the prefix", false);
    /* Even if attention does not know the common prefix, reads of it hit the L2 cache once the
     * first sequence has read it. So the fair comparison is with the same number of unrelated
     * sequences. */
    const struct timing own =
        time_equal("  as many without a common prefix", n_groups * n_each, n_shared + n_own, 1);
    printf(
        "  -> %.2f of the time of unrelated sequences (%.2f of the same pages read one by one)\n",
        with.us / own.us, with.us / without.us);
}

/* ---- in a step ----------------------------------------------------------------------------- */

/* The ops around attention in a layer of an 8B model. */
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
        cos_sin = device_new<float>(2 * 64 * 8192);
        inv_freq = device_new<float>(64);
        fill(weights, DT_BF16, n_layers * WEIGHTS, 1, 0.02f);
        fill(x, DT_BF16, (int64_t)n_rows * HIDDEN, 2, 1.0f);
        fill(qkv, DT_BF16, (int64_t)n_rows * QKV, 3, 1.0f);
        fill(inv_freq, DT_F32, 64, 4, 0.01f);
        rope = {cos_sin, 64, 8192, false};
        CHECK(k_rope_table(0, cos_sin, inv_freq, &rope, 1.0f));
        CHECK(cudaDeviceSynchronize());
    }

    /* The kernel for small products represents all products; with more than 64 rows it computes
     * only 64. */
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
        CHECK(gemm_small(stream, &g, 132));
    }

    enum way { NONE, APART, FEW };

    void issue(cudaStream_t stream, const struct attention_launch &a, const struct few_pass &few,
               int layer, enum way way)
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
        if (way == FEW && few.seq_rows > 1) {
            CHECK(k_attention_several(stream, &r, &rope, nullptr, nullptr, &a, &few));
        } else if (way == FEW) {
            CHECK(k_attention_few(stream, &r, &rope, nullptr, nullptr, &a, nullptr, nullptr));
        } else {
            CHECK(k_rope_store(stream, &r, &rope, nullptr, 0, nullptr, 0, &a.kv, &a.pass, nullptr));
        }
        if (way == APART) {
            CHECK(attention_launch(stream, &a));
        }
        product(stream, a.out, w + (int64_t)HIDDEN * QKV, x, HIDDEN, a.n_rows);
    }

    void close()
    {
        for (void *m :
             {(void *)weights, (void *)x, (void *)qkv, (void *)cos_sin, (void *)inv_freq}) {
            CHECK(cudaFree(m));
        }
    }
};

/* Times rows of decoding sequences after rope and between products, whose weights evict everything
 * else from the L2 cache. Attention's time is that of the chain with it minus that of the chain
 * without it. */
static void time_in_step(int n_seqs, int n_past, bool deterministic,
                         enum kv_format format = KV_PLAIN, int seq_rows = 1)
{
    const struct few_pass few = {n_seqs, seq_rows, 0};
    struct scene s = llama_8b(64);
    s.format = format;
    for (int i = 0; i < n_seqs; i++) {
        add_seq(s, n_past, seq_rows, false);
    }
    const double bytes = (double)n_seqs * (n_past + seq_rows) * token_bytes(s);
    const int n_layers = std::max(4, std::min(12, (int)(800e6 / bytes)));
    build(s, n_layers, 7);
    struct prepared p;
    prepare(p, s, 0, s.seqs, s.groups, 0, deterministic);
    struct layer_chain chain;
    chain.open(n_layers, s.n_rows());
    p.launch.q = chain.qkv;
    p.launch.q_stride = layer_chain::QKV;
    double us[3] = {};
    for (int way = 0; way < 3; way++) {
        us[way] = time_us(n_layers, [&](cudaStream_t stream, int i) {
            struct attention_launch a = p.launch;
            a.kv.base = s.kv + (size_t)i * s.layer_bytes;
            chain.issue(stream, a, few, i, (enum layer_chain::way)way);
        });
    }
    printf("%s%s%3d x %d x %5d: %6.1f us (the rest of the chain %5.1f; memory at 4.5 TB/s %5.1f); "
           "fused with rope %6.1f%s\n",
           text_if(deterministic, "deterministic "), text_if(format != KV_PLAIN, "codes "), n_seqs,
           seq_rows, n_past + 1, us[1] - us[0], us[0], bytes / 4.5e6, us[2] - us[0],
           text_if(attention_few_keys(n_seqs) > n_past, ", used"));
    chain.close();
    finish(p);
    destroy(s);
}

/* Rows to verify. */
static void time_several_in_step()
{
    for (int rows : {2, 4, 8}) {
        time_in_step(1, 299, false, KV_PLAIN, rows);
        time_in_step(1, 2047, false, KV_PLAIN, rows);
    }
    time_in_step(1, 8191, false, KV_PLAIN, 4);
    time_in_step(4, 2047, false, KV_PLAIN, 4);
    time_in_step(8, 2047, false, KV_PLAIN, 2);
}

/* Times attention in a chain, where a launch overlaps with its neighbours; timing a single kernel
 * does not show this. With the environment variable FORMATS only pages of codes are timed, with
 * ROWS only several rows of a sequence. */
void bench_attention_step()
{
    printf(
        "attention in a step: the time that it adds to a chain of qkv, rope, attention and o, for "
        "sequences x rows x keys\n");
    if (getenv("ROWS")) {
        time_several_in_step();
        return;
    }
    for (enum kv_format f : {KV_INT4, KV_FP8}) {
        for (int n : {1, 4, 8}) {
            time_in_step(n, 299, false, f);
        }
        time_in_step(1, 2047, false, f);
        time_in_step(4, 2047, false, f);
        time_in_step(8, 2047, false, f);
        time_in_step(1, 8191, false, f);
    }
    if (getenv("FORMATS")) {
        return;
    }
    for (int n : {1, 4, 8, 16, 32, 64, 128, 256}) {
        time_in_step(n, 299, false);
        time_in_step(n, 299, true);
    }
    for (int n : {1, 64, 256}) {
        time_in_step(n, 256, false);
    }
    for (int n : {1, 8, 64}) {
        time_in_step(n, 2047, false);
        time_in_step(n, 2047, true);
    }
    time_in_step(1, 8191, false);
    time_several_in_step();
}

/* Times a few cases, for comparing two builds. */
static void time_some()
{
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
}

/* Decoding rows: contexts of equal and of different lengths, pages of different sizes. */
static void time_decode()
{
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
}

/* What the rows of drafts cost, compared with one row of the same sequences. */
static void time_verify()
{
    for (int n : {8, 32}) {
        const struct timing one = time_equal("one row", n, 2047, 1);
        for (int q : {4, 16, 32}) {
            const struct timing t = time_equal("verify", n, 2047, q);
            printf("  -> %.2f of one row\n", t.us / one.us);
        }
        const struct timing t = time_equal("verify, tree", n, 2047, 16, 32, false, true);
        printf("  -> %.2f of one row\n", t.us / one.us);
    }
}

static void time_prompts()
{
    for (int n : {1024, 2048, 4096, 8192}) {
        time_equal("prefill", 1, 0, n);
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
    for (int n : {16, 64}) {
        for (int q : {448, 1984, 8128}) {
            struct scene mixed = llama_8b(32);
            for (int i = 0; i < q; i += 1024) {
                add_seq(mixed, 0, q - i < 1024 ? q - i : 1024, false);
            }
            for (int i = 0; i < n; i++) {
                add_seq(mixed, 1087, 1, false);
            }
            char name[64];
            snprintf(name, sizeof name, "both: %d decode at 1,088 + %d rows of prompts", n, q);
            time_scene(mixed, name);
        }
    }
}

/* The environment variables FORMATS, SHORT and PROMPTS select a part. */
void bench_attention_time()
{
    if (getenv("FORMATS")) {
        time_formats(getenv("FORMATS"));
        return;
    }
    if (getenv("SHORT")) {
        time_some();
        return;
    }
    if (getenv("PROMPTS")) {
        time_prompts();
        return;
    }
    printf("attention, 32 query heads, 8 KV heads, dim 128, bf16; in a graph, rotating layers\n");
    printf("%-44s %9s %7s %6s %8s %6s %6s %7s\n", "pass", "us", "TB/s", "of 4.8", "TFLOP/s",
           "items", "slots", "plan us");
    time_decode();
    time_verify();
    time_shared(1, 16, 2000, 200);
    time_shared(8, 16, 2000, 200);
    time_shared(32, 16, 2000, 200);
    time_prompts();
    time_formats("");
}
