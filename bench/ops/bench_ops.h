/* A plain Llama of dummy weights, driven through a backend's table alone: what `sluice bench-ops`
 * times. The weights and memory live until bench_close.
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

enum { BENCH_LANES = 64 };

struct layer {
    struct weight *norm_1, *qkv, *o, *norm_2, *gate_up, *down;
};

struct bench {
    struct shape shape;
    const char *device;
    const char *only; // lines of the CUDA bench, NULL: all
    bool deterministic;
    bool brief; // the ratios alone
    int32_t threads, context, max_rows;
    enum dtype dtype;
    double seconds; // of each figure, at least
    struct backend *be;
    const struct backend_ops *ops;
    struct layer *layers;
    struct weight *embed, *norm;
    struct rope_table *rope;
    struct tensor x, h, qkv, attn, mid, act, delta, out_x, out_attn, out, logits;
    double read_rate, fma_rate, product_rate; // 0: not known
    struct pass_row *rows;
    struct pass_seq *seqs;
    int32_t *out_rows;
    struct pass_draw *draws;
    struct pass pass;
    double *laps; // NULL, or [bench_n_laps]: lowered to what each op of bench_forward took
    int32_t lap;
    int64_t lap_start;
};

enum status bench_open(struct bench *b, struct err *err);
void bench_close(struct bench *b);

/* Opens and closes a pass: n_seqs sequences of `rows` new rows each after `past` ones. */
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
/* gate+up, activation and down, as the engine asks for them. */
/* norm: of what it reads, made first; or NULL. */
enum status bench_mlp(struct bench *b, const struct layer *l, const struct norm_args *norm,
                      int32_t n);
enum status bench_head(struct bench *b);
enum status bench_sample(struct bench *b);
/* A plain Llama's whole forward pass, sampling included. */
enum status bench_forward(struct bench *b);
int32_t bench_n_laps(const struct bench *b);

#endif
