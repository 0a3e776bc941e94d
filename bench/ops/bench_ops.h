// SPDX-License-Identifier: Apache-2.0
/* A plain Llama with dummy weights, driven only through a backend's table; `sluice bench-ops` times
 * it. The weights and memory live until bench_close.
 * Thread: main. */
#ifndef SLUICE_BENCH_OPS_BENCH_OPS_H
#define SLUICE_BENCH_OPS_BENCH_OPS_H

#include "engine/device/ops.h"

struct shape {
    const char *name;
    int32_t hidden, n_layers, n_heads, n_kv_heads, head_dim, ffn, vocab;
};

/* NULL: no such shape. */
const struct shape *bench_shape(const char *name);

enum {
    BENCH_LANES = 64,
    BENCH_KV_SETS = 4, // compared by kv_lines.c: unquantised, and three formats
    COPIES = 4,        // copies of each weight in the GPU's table; together they exceed every cache
    MOE_SHAPES = 2,
    BENCH_FORMATS = 4, // measured by cuda_quant.c
    BENCH_QUANT_PRODUCTS = 4,
    BENCH_RANKS = 2, // measured by cuda_adapters.c
    BENCH_ADAPTED = 4,
};

struct layer {
    struct weight *norm_1, *qkv, *o, *norm_2, *gate_up, *down;
};

/* A layer with a mixture of experts. */
struct bench_moe {
    const char *route, *experts; // names of its two lines
    int32_t hidden, ffn, n_experts, k;
    const struct weight *w_router, *w_up, *w_down;
};

/* The options, the backend, the operands of its ops, and the current pass. The CPU run uses a whole
 * model of `shape`; the GPU's table uses single weights of the shapes in cuda_timing.h. */
struct bench {
    struct shape shape;
    const char *device;
    const char *only; // lines of the CUDA benchmark to run; NULL: all
    bool deterministic;
    bool brief; // print only the ratios
    int32_t threads, context, max_rows;
    int32_t n_lanes, n_blocks; // for the CPU run
    int32_t kv_set;
    enum dtype dtype;
    double seconds; // minimum per measurement
    struct backend *be;
    const struct backend_ops *ops;
    struct backend_facts facts;
    struct rope_table *rope;
    struct tensor x, h, qkv, attn, mid, act, delta, out_x, out_attn, out, logits;
    struct dmem ids, weights; // picks of experts
    struct pass pass;
    struct pass_row *rows;
    struct pass_seq *seqs;
    struct pass_group *groups;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct pass_pool *pool;

    struct layer *layers;
    struct weight *embed, *norm;
    double read_rate, fma_rate, product_rate; // per second; 0: unknown
    double *laps; // [bench_n_laps] or NULL: bench_forward lowers each to the time of its op, if
                  // that is less
    int32_t lap;
    int64_t lap_start;

    /* the GPU's table */
    int32_t next_model; // part of the key of a pass's graph; differs from line to line, so that
                        // each gets its own graph
    double copy_peak, product_peak; // bytes and operations per second
    const struct weight *w_qkv[COPIES], *w_o[COPIES], *w_gate_up[COPIES], *w_down[COPIES];
    const struct weight *w_hyper_fn, *w_hyper_base, *w_hyper_scale; // of DeepSeek V4's form
    const struct weight *w_head, *w_embed, *w_norm, *w_square, *w_sinks, *w_kv_norm, *w_uk, *w_uv;
    const struct weight *w_quantised[BENCH_FORMATS][BENCH_QUANT_PRODUCTS][COPIES];
    struct adapter_pair adapters[BENCH_ADAPTED][BENCH_RANKS][COPIES];
    struct bench_moe moe[MOE_SHAPES];
    struct rope_table *mla_rope;
};

enum status bench_open(struct bench *b, struct err *err);
void bench_close(struct bench *b);

/* Opens and closes a pass: n_seqs sequences with `rows` new rows each after `past` tokens. */
enum status bench_begin(struct bench *b, int32_t n_seqs, int32_t rows, int32_t past);
enum status bench_end(struct bench *b);

/* Ops over the rows of the open pass. */
enum status bench_linear(struct bench *b, struct weight *w, struct tensor x, struct tensor y,
                         int32_t n);
enum status bench_norm(struct bench *b, struct weight *w, struct tensor delta, struct tensor x,
                       struct tensor out, int32_t n);
enum status bench_store(struct bench *b, int32_t layer, int32_t n);
enum status bench_attention(struct bench *b, int32_t layer, int32_t n);
enum status bench_activate(struct bench *b, int32_t n);
/* gate+up, activation and down, as the engine calls them. norm: computes their input first; may be
 * NULL. */
enum status bench_mlp(struct bench *b, const struct layer *l, const struct norm_args *norm,
                      int32_t n);
enum status bench_head(struct bench *b);
enum status bench_sample(struct bench *b);
/* A plain Llama's whole forward pass, sampling included. */
enum status bench_forward(struct bench *b);
int32_t bench_n_laps(const struct bench *b);

/* The KV set's format, for `--only kv`. */
const struct kv_choice *bench_kv_format(int32_t set);
/* kv_lines.c: the cost of each of the sets. */
enum status bench_kv(struct bench *b);

/* cuda_table.c: prints the time of each op at the shapes of an 8B Llama and of mixtures of experts,
 * with dummy weights: microseconds, bandwidth, arithmetic rate, and the share of what a large copy
 * and a large product reach in the same run. */
enum status cuda_bench(struct bench *b, const struct backend_options *options, struct err *err);

#endif
