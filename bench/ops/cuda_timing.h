// SPDX-License-Identifier: Apache-2.0
/* The lines of `sluice bench-ops --device cuda`: the shapes, how a line is timed, and one file per
 * kind of op.
 * Thread: main. */
#ifndef SLUICE_BENCH_OPS_CUDA_TIMING_H
#define SLUICE_BENCH_OPS_CUDA_TIMING_H

#include "bench/ops/bench_ops.h"

/* Llama-3.1-8B, and the experts of Qwen3-30B-A3B and Mixtral-8x7B. */
enum {
    HIDDEN = 4096,
    HEADS = 32,
    KV_HEADS = 8,
    HEAD_DIM = 128,
    FFN = 14336,
    VOCAB = 128256,
    QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
    /* MLA as in DeepSeek-V2-Lite. */
    MLA_HEADS = 16,
    MLA_LORA = 512,
    MLA_ROPE = 64,
    MLA_NOPE = 128,
    MLA_KEY = MLA_LORA + MLA_ROPE,
    MLA_Q = MLA_NOPE + MLA_ROPE, // width per query head, before W_UK is absorbed
    /* Sparse attention as in DeepSeek V3.2, whose keys are those above. */
    INDEX_HEADS = 64,
    INDEX_DIM = 128,
    INDEX_TOP = 2048,
    /* Sparse attention by blocks as in MiniMax M3, with index keys of INDEX_DIM. */
    M3_HEADS = 64,
    M3_KV_HEADS = 4,
    M3_BLOCK = 128,
    M3_TOP = 16,
    /* Hyper-connections as in DeepSeek V4, and their gates. */
    STREAMS = 4,
    STREAM_GATES = 2 * STREAMS + STREAMS * STREAMS,
    MOE_MOST_K = 8,
    ROWS = 8192,
    OUT_ROWS = 256,
    LANES = 256,
    BLOCK = 64,
    LANE_BLOCKS = 1032, // 66,048 tokens
    N_BLOCKS = 10240,
    LAYERS = 2,
    REPEATS = 7,
};

/* One measurement: `issue` launches the op once; i counts the launches. */
struct line {
    const char *name;
    enum status (*issue)(struct bench *b, const struct line *l, int32_t i);
    int32_t n_rows, context; // context: number of earlier tokens
    double bytes, operations;
    const struct weight *const *weight;
    struct tensor from, to;
    int32_t n_out, n_in;
    const struct bench_moe *moe;
    enum { DECODE, PREFILL, SHARED } shape;
    int32_t kv_set, window;
    float softcap;
    bool sinks, pools;
    const struct adapter_pair *adapters; // [COPIES]
    int32_t n_adapters;                  // that the sequences use in turn; 0: none
};

/* cuda_timing.c. Sets the lanes' block tables; with `shared`, groups of 16 lanes share all but the
 * last block. */
enum status bench_give_blocks(struct bench *b, int32_t n_lanes, int32_t n_blocks, bool shared);
/* Sets the sampling parameters of all lanes. */
enum status bench_draw_by(struct bench *b, const struct sampling_params *params);
void bench_make_pass(struct bench *b, const struct line *l);
/* Microseconds per launch of the op. */
enum status bench_run_line(struct bench *b, const struct line *l, double *us);
/* Times the op and prints its line, if `only` selects it. */
enum status bench_print_line(struct bench *b, const struct line *l);

/* The lines, by what they measure. element: bytes per element. */
enum status bench_peak_lines(struct bench *b);                    // cuda_peaks.c
enum status bench_row_lines(struct bench *b, double element);     // cuda_rows.c
enum status bench_out_row_lines(struct bench *b, double element); // ops that run once per pass
enum status bench_warm_up(struct bench *b); // fills activations and pages with random values
enum status bench_copy_pages(struct bench *b);
enum status bench_product_lines(struct bench *b, double element); // cuda_products.c
enum status bench_fused_product_lines(struct bench *b, double element);
enum status bench_make_quantised(struct bench *b, struct err *err); // cuda_quant.c
enum status bench_quantised_lines(struct bench *b, double element);
enum status bench_make_adapters(struct bench *b, struct err *err); // cuda_adapters.c
enum status bench_adapter_lines(struct bench *b);
enum status bench_expert_lines(struct bench *b, double element);    // cuda_experts.c
enum status bench_draw_lines(struct bench *b);                      // cuda_draws.c
enum status bench_head_lines(struct bench *b, double element);      // the head with its draws
enum status bench_attention_lines(struct bench *b, double element); // cuda_attention.c
enum status bench_mla_lines(struct bench *b, double element);       // cuda_mla.c
enum status bench_index_lines(struct bench *b, double element);     // cuda_index.c

/* cuda_products.c: one product of a line. */
enum status bench_issue_linear(struct bench *b, const struct line *l, int32_t i);

#endif
