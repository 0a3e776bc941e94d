// SPDX-License-Identifier: Apache-2.0
/* The inner loops of the CPU backend, as a table. The scalar table is the reference; the others
 * compute the same sums with vectors. Each result depends only on its own row and is summed in one
 * fixed order, so a row's bits do not depend on how many rows are computed together.
 * Thread: any; the functions only touch what they are given. */
#ifndef SLUICE_CPU_KERNELS_H
#define SLUICE_CPU_KERNELS_H

#include "cpu/cpu_attention_amx.h"
#include "cpu/cpu_kv_codes.h"
#include "engine/device/ops.h"

/* A packed product computes PANEL outputs at a time; a tile is 1 to MAX_PANELS panels. */
enum { PANEL = 16, MAX_PANELS = 4, TILE = PANEL * MAX_PANELS };

/* c[i * TILE + j] = (first ? 0 : c) + sum over k of a[i][k] * w[k][j], for m rows of a, `a_stride`
 * elements apart, and panels * PANEL outputs. k runs upward, one chain of sums per (i, j).
 * w: [k / 2][panels][PANEL][2] for bf16, or, if the table is `tiled`, [k / K_UNIT][panels] [K_UNIT
 * / 2][PANEL][2]; [k][panels][PANEL] for f16 and f32. k is a multiple of K_UNIT for bf16 (the
 * packing pads with zeros). */
typedef void gemm_fn(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                     int64_t k, float *c, bool first);

/* Weights that stay quantised: dequantises a run of inputs in which each output has one scale, zero
 * and offset. Codes are stored as [k / group][panels], where a group is a few inputs:
 *
 *     CODE_2           4 inputs: [PANEL] bytes with the first input in the lowest bits
 *     CODE_3           8 inputs: the low two bits of each four as in CODE_2, then [PANEL] bytes
 *                      whose bit i is the third bit of input i
 *     CODE_4           2 inputs: [PANEL] bytes with the first input in the low half
 *     CODE_I8, E4M3    2 inputs: [2][PANEL] bytes
 *     CODE_5           8 inputs: the low four bits of each pair as in CODE_4, then [PANEL] bytes
 *                      whose bit i is the fifth bit of input i
 *     CODE_6           4 inputs: likewise, with two bits of each input in those bytes
 *
 * The weight is
 *
 *     (value of the code - zero) * scale + offset
 *
 * in fp32, rounded to the dtype that the product reads. The value comes from a table (codes of up
 * to five bits) or is the code less `middle` (CODE_6). For codes with offsets value * scale is
 * exact, so it does not matter whether it is rounded before the offset is added. */
enum code_kind { CODE_2, CODE_3, CODE_4, CODE_5, CODE_6, CODE_I8, CODE_E4M3 };
/* PAIR_CODES: codes of a pair of inputs, per panel. */
enum { PAIR_CODES = 2 * PANEL, N_CODE_VALUES = 32 };
struct code_run {
    enum code_kind kind;
    const char *codes;
    const float *values; // [N_CODE_VALUES], repeated where there are fewer codes
    int32_t middle;
    const float *scales; // [panels * PANEL]; zeros and offsets have the same shape
    // NULL: none. CODE_2, CODE_4, and CODE_I8 without offsets, may have zeros.
    const float *zeros, *offsets;
    int32_t panels;
    // Range of inputs, relative to the start of `out`; both are multiples of a group.
    int64_t first, k;
    bool tiled; // whether bf16 output has the tiled layout
    void *out;  // weights in the form that gemm_fn reads
};
typedef void decode_fn(const struct code_run *r);

static inline int32_t code_group(enum code_kind kind)
{
    switch (kind) {
    case CODE_3:
    case CODE_5: return 8;
    case CODE_2:
    case CODE_6: return 4;
    default: return 2;
    }
}

/* n_codes must be a whole number of groups. */
static inline int64_t code_bytes(enum code_kind kind, int64_t n_codes)
{
    switch (kind) {
    case CODE_2: return n_codes / 4;
    case CODE_3: return n_codes / 8 * 3;
    case CODE_4: return n_codes / 2;
    case CODE_5: return n_codes / 8 * 5;
    case CODE_6: return n_codes / 4 * 3;
    default: return n_codes;
    }
}

/* The code of input i, given the bytes of its group. */
static inline uint32_t code_at(enum code_kind kind, const uint8_t *group, int32_t i, int32_t output)
{
    if (kind == CODE_I8 || kind == CODE_E4M3) {
        return group[i * PANEL + output];
    }
    if (kind == CODE_2 || kind == CODE_3) {
        uint32_t low = group[i / 4 * PANEL + output] >> i % 4 * 2 & 3u;
        return kind == CODE_2 ? low : low | (group[2 * PANEL + output] >> i & 1u) << 2;
    }
    int32_t pairs = code_group(kind) / 2;
    uint32_t low = group[i / 2 * PANEL + output] >> i % 2 * 4 & 15u;
    uint32_t high = kind == CODE_4 ? 0 : group[pairs * PANEL + output];
    return kind == CODE_5 ? low | (high >> i & 1u) << 4 : low | (high >> 2 * i & 3u) << 4;
}

/* Where a panel's pair of inputs is in the operand of a bf16 product, counted in such pairs (PANEL
 * outputs by 2 inputs). */
static inline int64_t pair_at(const struct code_run *r, int64_t pair, int32_t panel)
{
    enum { PAIRS = 16 };
    if (!r->tiled) {
        return pair * r->panels + panel;
    }
    return (pair / PAIRS * r->panels + panel) * PAIRS + pair % PAIRS;
}

/* PANEL_BYTES: bytes of a panel's K_UNIT inputs in bf16. PAIR_BYTES: bytes of one pair of
 * inputs. */
enum { K_UNIT = 32, PAIR_BYTES = PANEL * 4, PANEL_BYTES = K_UNIT / 2 * PAIR_BYTES };

/* The same sums for products of many rows, in blocks of 1 to BLOCK_TILES tiles of ROW_TILE rows by
 * BLOCK_N outputs. Rows are stored as [k / 32][ROW_TILE][32], with tiles a_tile bytes apart.
 * Weights are as in gemm_fn, with w_step bytes per 32 inputs. Sums are stored as
 * [panel][tile][ROW_TILE][PANEL]. */
enum { ROW_TILE = 16, BLOCK_TILES = 3, BLOCK_N = 2 * PANEL };
enum { BLOCK_FLOATS = BLOCK_TILES * ROW_TILE * BLOCK_N };
struct block_product {
    const char *a, *w;
    int64_t a_tile, w_step, k;
    int32_t n_tiles;
    float *c;
    bool first;
    /* Side work, done between the products: bytes to prefetch, and calls of aside(arg, i) for i in
     * [0, n_aside). */
    const char *next;
    int64_t next_bytes;
    void (*aside)(void *arg, int32_t i);
    void *arg;
    int32_t n_aside;
};

/* begin and end enclose a thread's products. */
struct block_unit {
    void (*begin)(void);
    void (*product)(const struct block_product *p);
    void (*end)(void);
    /* Both take PANEL values at a and PANEL values at b, which belong to one row. put stores them
     * unchanged to y; put_rounded stores them rounded to bf16 in one cache line at `to`. They
     * bypass the caches if possible; other threads see the values after end. */
    void (*put)(const float *a, const float *b, float *y);
    void (*put_rounded)(const float *a, const float *b, char *to);
};

/* Pages that will be read after those of a run. Kernels prefetch the first n_bytes of each into the
 * L2 cache, a few cache lines at a time between their sums. `page` and `at`: the page and byte that
 * they have reached. */
struct page_ahead {
    const char *const *pages;
    int32_t n_pages, page;
    size_t n_bytes, at;
};

/* Consecutive pages of one head's K or V. `first` and `end` are the range of tokens that the kernel
 * `weigh` reads, counted from the first token of the first page. */
struct page_run {
    const struct kv_plane *plane;
    int32_t n_pages;
    int32_t first, end;
    const char *const *pages; // where the head starts in each page
    bool is_near;             // these pages have been prefetched, during an earlier run
    struct page_ahead *ahead; // may be NULL
};

struct argmax {
    float value;
    int32_t id;
};

struct kv_pages; // cpu_internal.h

/* Products of int8 and int4 codes of V with probabilities as integers (cpu_vec_words.h). */
struct word_kernels {
    /* Whether the codes in such a plane are multiplied so. The choice depends only on the layer. */
    bool (*fit)(const struct kv_plane *v);
    /* The scales of the run's tokens, and their logarithms, roughly. */
    void (*scales)(const struct page_run *v, float *scales, float *logs);
    /* Turns n scores (a multiple of 2 PANEL), in place, into the products of probabilities and
     * scales as 16-bit words. Both are relative to exp(*reference), which gives the largest product
     * all bits. *sum: of the probabilities. */
    void (*soften)(float *s, int32_t n, const float *scales, const float *logs, float *reference,
                   float *sum);
    /* The sum of exp(s - reference) alone. */
    float (*sum)(const float *s, int32_t n, float reference);
    /* acc[i][d] += sum over t of p[i][t] * v[t][d], where v are codes without their scales, p[i] is
     * `stride` words after p[i - 1], and at most ATTN_CHUNK of a run's tokens have a p other than
     * 0. p[i][t] may be read, but is 0, for t in [first rounded down to PANEL, first). */
    void (*weigh)(const int16_t *p, int64_t stride, int32_t m, const struct page_run *v,
                  float *acc);
};

struct cpu_kernels {
    const char *name;

    gemm_fn *gemm_bf16, *gemm_f16, *gemm_f32;
    const struct block_unit *blocks; // products in blocks, with bf16 weights; NULL: none
    bool tiled;     // layout of weights for gemm_bf16; `blocks` reads only tiled weights
    bool bf16_rows; // true: gemm_bf16 reads `a` as bf16; false: as fp32 with rounded values
    const struct matrix_unit *unit;   // computes attention over bf16 pages; NULL: none
    const struct word_kernels *words; // NULL: codes are multiplied in fp32
    /* Whether `scores` and `words` multiply the codes in such pages on the matrix unit; NULL: they
     * never do. */
    bool (*multiplies_codes)(const struct kv_pages *p);
    /* pass_rows: the maximum number of rows for which a product reads each weight only once. few_k:
     * the best number of inputs to process at a time with a few dozen rows. */
    int32_t pass_rows, few_k;
    /* Convert one row of activations to the form that the product reads. */
    void (*round_bf16)(const float *x, void *out, int64_t n);
    void (*round_f16)(const float *x, float *out, int64_t n);

    decode_fn *decode_bf16, *decode_f16;

    /* x += scale * d */
    void (*add_scaled)(float *x, const float *d, float scale, int64_t n);
    /* weight NULL: all ones; bias NULL: all zeros; out may be x. */
    void (*norm)(enum norm_kind kind, const float *x, const float *weight, float offset,
                 const float *bias, float eps, int64_t n, float *out);
    float (*dot)(const float *a, const float *b, int64_t n);
    /* up NULL: the activation is not gated */
    void (*activate)(enum activation kind, struct act_shape shape, const float *gate,
                     const float *up, float *out, int64_t n);
    /* Rotates the pairs (x[i], x[i + n]) or, if interleaved, (x[2i], x[2i + 1]). */
    void (*rotate)(float *x, const float *cos, const float *sin, int32_t n, bool interleaved);

    /* Converts stored elements to fp32. */
    void (*widen)(enum dtype dtype, const void *from, float *to, int64_t n);
    kv_encode_fn *encode; // see kv_encode_scalar
    /* Reads the first `width` elements of n tokens, from `token` on, as bf16 or fp32: K as
     * [width][n], V as [n][width]. */
    void (*unpack)(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                   int32_t width, bool bf16, void *out);
    /* s[i * s_stride + page * tokens + t] = q[i] . the key of token t of a page */
    void (*scores)(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                   int32_t dim, float *s, int64_t s_stride);
    /* Multiplies p[i][t], for all tokens of the pages, by the scale of the token's codes, unless
     * p[i][t] is 0. */
    void (*fold)(float *p, int64_t p_stride, int32_t m, const struct page_run *v);
    /* acc[i][d] += sum over t of p[i][t] * v[t][d], where v are codes without their scales. The
     * width of a token is a multiple of PANEL. A run of codes has at most ATTN_CHUNK +
     * MAX_TREE_NODES tokens; at most ATTN_CHUNK of them have a p other than 0. */
    void (*weigh)(const float *p, int64_t p_stride, int32_t m, const struct page_run *v,
                  float *acc);
    float (*max)(const float *x, int64_t n);
    /* x = exp(x - max) in place; returns the sum. */
    float (*exp_sum)(float *x, int64_t n, float max);
    /* x = cap * tanh(x / cap) */
    void (*softcap)(float *x, float cap, int64_t n);
    void (*scale)(float *x, float scale, int64_t n);

    /* The highest x; among equal values the lowest id; NaN ranks below everything. If n is 0, the
     * id is -1. */
    struct argmax (*argmax)(const float *x, int32_t n);
    /* The same for x[i] + gumbel(seed, position, i); -infinity is never chosen. */
    struct argmax (*argmax_gumbel)(const float *x, int32_t n, uint64_t seed, int32_t position);
    /* out[i] = exact_exp(x[i] - max) */
    void (*exp_exact)(const float *x, int32_t n, float max, float *out);
    /* sum of exp(x - max) in double; x stays unchanged */
    double (*exp_total)(const float *x, int32_t n, float max);

    /* For cpu_peaks. read_all reads n bytes (a multiple of 1,024); the others run n rounds of
     * multiply-adds in registers. They return a result only to keep the compiler from removing the
     * work. */
    float (*read_all)(const void *p, size_t n_bytes);
    float (*spin_fma)(int64_t n);
    float (*spin_product)(int64_t n);
    double fma_flops, product_flops; // operations per round
};

extern const struct cpu_kernels cpu_kernels_scalar;
/* Each table exists if the compiler targets its architecture, and may be called if the processor
 * supports its instructions. */
extern const struct cpu_kernels cpu_kernels_avx2, cpu_kernels_avx512, cpu_kernels_avx512bf16;
extern const struct cpu_kernels cpu_kernels_neon;

/* The best table that this machine can run. */
const struct cpu_kernels *cpu_kernels_best(void);

#endif
