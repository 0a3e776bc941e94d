/* The inside of `sluice bench-ops --device cuda`: what is measured, and how a line of its table is
 * timed. Thread: main. */
#ifndef SLUICE_BENCH_OPS_CUDA_TIMING_H
#define SLUICE_BENCH_OPS_CUDA_TIMING_H

#include "engine/device/ops.h"

#include <stdio.h>

/* Llama-3.1-8B, and the experts of Qwen3-30B-A3B and Mixtral-8x7B. */
enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    FFN = 14336,
    VOCAB = 128256,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    /* MLA as DeepSeek-V2-Lite has it. */
    MLA_HEADS = 16,
    MLA_LORA = 512,
    MLA_ROPE = 64,
    MLA_NOPE = 128,
    MLA_KEY = MLA_LORA + MLA_ROPE,
    MLA_Q = MLA_NOPE + MLA_ROPE, // of a head, before its key product is absorbed
    MOE_SHAPES = 2,
    MOE_MOST_K = 8,
    ROWS = 8192,
    OUT_ROWS = 256,
    LANES = 256,
    BLOCK = 64,
    LANE_BLOCKS = 132, // 8,448 tokens
    N_BLOCKS = 10240,
    LAYERS = 2,
    COPIES = 4, // of each weight, so that a cache does not hold them
    REPEATS = 7,
};

/* A mixture's layer. */
struct bench_moe {
    const char *route, *experts; // names of its lines
    int32_t hidden, ffn, n_experts, k;
    const struct weight *w_router, *w_up, *w_down;
};

struct bench {
    struct backend *be;
    const struct backend_ops *ops;
    struct backend_facts facts;
    enum dtype dtype;
    const char *filter;
    FILE *out;
    int32_t next_model; // a pass's graph is keyed by it: each line has its own
    double copy_peak, product_peak; // bytes and operations per second

    struct tensor x, h, qkv, attn, wide, narrow, logits;
    struct dmem ids, weights;
    const struct weight *w_qkv[COPIES], *w_o[COPIES], *w_gate_up[COPIES], *w_down[COPIES];
    const struct weight *w_head, *w_embed, *w_norm, *w_square, *w_sinks, *w_kv_norm, *w_uk, *w_uv;
    struct bench_moe moe[MOE_SHAPES];
    struct rope_table *rope, *mla_rope;

    struct pass pass;
    struct pass_row *rows;
    struct pass_seq *seqs;
    struct pass_group *groups;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct pass_pool *pool;
};

/* What a line measures: `issue` launches the op once, i counts the launches. */
struct line {
    const char *name;
    enum status (*issue)(struct bench *b, const struct line *l, int32_t i);
    int32_t n_rows, context; // context: tokens that are there already
    double bytes, operations;
    const struct weight *const *weight;
    struct tensor from, to;
    int32_t n_out, n_in;
    const struct bench_moe *moe;
    enum { DECODE, PREFILL, SHARED } shape;
    int32_t kv_set, window;
    float softcap;
    bool sinks, pools;
};

/* cuda_timing.c. The lanes' tables: lane l's block i; with `shared` groups of 16 have all but the
 * last in common. */
enum status bench_give_blocks(struct bench *b, int32_t n_lanes, int32_t n_blocks, bool shared);
/* What all lanes' draws go by from here on. */
enum status bench_draw_by(struct bench *b, const struct sampling_params *params);
/* The pass that the line's op runs in, into b->pass. */
void bench_make_pass(struct bench *b, const struct line *l);
/* Microseconds of one launch of the op. */
enum status bench_run_line(struct bench *b, const struct line *l, double *us);

/* Times the op and prints its line, if the filter has it. */
enum status bench_print_line(struct bench *b, const struct line *l);

/* bench/ops/cuda_more.c. element: bytes of one. */
enum status bench_more_lines(struct bench *b, double element);

/* bench/ops/cuda_lines.c: fills the activations with something random, then prints the whole table. */
enum status bench_warm_up(struct bench *b);
enum status bench_lines(struct bench *b);

#endif
