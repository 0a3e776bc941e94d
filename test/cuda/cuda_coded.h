// SPDX-License-Identifier: Apache-2.0
/* Random weights in the formats of files, for tests of products with quantised weights.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_CUDA_CODED_H
#define SLUICE_TEST_CUDA_CODED_H

#include "engine/base/minmax.h"
#include "test/cuda/cuda_pair.h"

#include <math.h>

#define COUNT(a) (int32_t)(sizeof(a) / sizeof((a)[0]))

/* A format as files have it. */
struct format {
    const char *name;
    enum dtype values, scales;
    bool zeros;
    int32_t zero;
    enum tensor_scale tensor_scale;
    int32_t block_rows, block_cols; // rows and columns that share a scale; 0: all
    bool has_order;                 // inputs are permuted (GPTQ's act-order)
    bool stays;                     // the weight stays quantised on the device
};

/* One per way in which codes, scales and zeros are laid out; the last field says whether
 * it stays quantised on the device. */
static const struct format formats[] = {
    {"fp8", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 0, 0, false, true},
    {"fp8 of channels", DT_E4M3, DT_BF16, false, 0, TENSOR_SCALE_NONE, 1, 0, false, true},
    {"fp8 in blocks", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 128, 128, false, true},
    {"fp8 in small blocks", DT_E4M3, DT_BF16, false, 0, TENSOR_SCALE_NONE, 40, 64, false, true},
    {"fp8 in odd blocks", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 48, 48, false, false},
    {"int4 by 128", DT_U4, DT_F16, false, 8, TENSOR_SCALE_NONE, 1, 128, false, true},
    {"int4 by 64 with zeros", DT_U4, DT_BF16, true, 1, TENSOR_SCALE_NONE, 1, 64, false, true},
    {"int4 by 32 with zeros", DT_U4, DT_F16, true, 0, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"int4 by 32", DT_U4, DT_F32, false, 8, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"int4 by 256", DT_U4, DT_BF16, false, 8, TENSOR_SCALE_NONE, 1, 256, false, true},
    {"int4 of channels", DT_U4, DT_BF16, false, 8, TENSOR_SCALE_NONE, 1, 0, false, true},
    {"int4 with an order", DT_U4, DT_F16, true, 1, TENSOR_SCALE_NONE, 1, 128, true, false},
    {"mxfp4", DT_E2M1, DT_E8M0, false, 0, TENSOR_SCALE_NONE, 1, 32, false, true},
    {"nvfp4", DT_E2M1, DT_E4M3, false, 0, TENSOR_SCALE_DIVIDES, 1, 16, false, false},
    {"int8", DT_U8, DT_BF16, false, 128, TENSOR_SCALE_NONE, 1, 0, false, false},
    {"int4 by 128 with zeros", DT_U4, DT_F16, true, 1, TENSOR_SCALE_NONE, 1, 128, false, true},
};

static uint64_t next_bits;

static inline uint32_t random_bits(void)
{
    const uint64_t i = next_bits++;
    return rng_philox(3, (uint32_t)i, (uint32_t)(i >> 32), RNG_TEST, 11).v[0];
}

static inline uint8_t *random_bytes(size_t n)
{
    uint8_t *bytes = xmalloc(n);
    for (size_t i = 0; i < n; i += sizeof(struct rng_block)) {
        const uint64_t at = next_bits++;
        const struct rng_block b = rng_philox(3, (uint32_t)at, (uint32_t)(at >> 32), RNG_TEST, 11);
        memcpy(bytes + i, &b, n - i < sizeof b ? n - i : sizeof b);
    }
    return bytes;
}

/* Scales of about 0.02; those that are powers of two vary more. */
static inline void *random_scales(enum dtype dtype, size_t n)
{
    uint8_t *bytes = random_bytes(n * 4);
    for (size_t i = 0; i < n; i++) {
        const float f = 0.01f + 0.02f * (float)(bytes[4 * i] & 15) / 16.0f;
        const float kept = round_to(f, dtype == DT_F32 ? DT_F32 : dtype);
        uint32_t u;
        memcpy(&u, &kept, sizeof u);
        switch (dtype) {
        case DT_E8M0: bytes[i] = (uint8_t)(118 + random_bits() % 6); break;
        case DT_E4M3: bytes[i] = (uint8_t)(0x20 + random_bits() % 0x50); break;
        case DT_BF16: ((uint16_t *)(void *)bytes)[i] = (uint16_t)(u >> 16); break;
        case DT_F16: ((uint16_t *)(void *)bytes)[i] = half_bits(u); break;
        default: ((float *)(void *)bytes)[i] = f; break;
        }
    }
    return bytes;
}

/* Groups in random order, as GPTQ's act-order gives them. */
static inline void *random_order(int32_t n_in, int32_t group)
{
    int32_t *order = xmalloc((size_t)n_in * sizeof *order);
    for (int32_t i = 0; i < n_in; i++) {
        order[i] = (int32_t)(random_bits() % (uint32_t)((n_in + group - 1) / group));
    }
    return order;
}

/* A tensor of n_out x n_in in memory of its own. */
static inline struct weight_part make_tensor(const struct format *f, int32_t n_out, int32_t n_in)
{
    struct weight_part p = weight_part_plain(NULL, f->values, n_out, n_in, 0);
    struct weight_codec *c = &p.codec;
    const int32_t per_byte = 8 / dtype_bits(f->values);
    const int64_t row_bytes = (n_in + per_byte - 1) / per_byte;
    uint8_t *values = random_bytes((size_t)(row_bytes * n_out));
    for (int64_t i = 0; f->values == DT_E4M3 && i < row_bytes * n_out; i++) {
        if ((values[i] & 0x7F) == 0x7F) {
            values[i] = 0;
        }
    }
    const enum packing packing = per_byte > 1 ? PACK_BYTES : PACK_NONE;
    c->values = (struct number_grid){values, f->values, packing, row_bytes, 1, 0};
    c->block_rows = f->block_rows ? f->block_rows : n_out;
    c->block_cols = f->block_cols ? f->block_cols : n_in;
    const int64_t rows = (n_out + c->block_rows - 1) / c->block_rows;
    const int64_t cols = (n_in + c->block_cols - 1) / c->block_cols;
    c->scales = (struct number_grid){
        random_scales(f->scales, (size_t)(rows * cols)), f->scales, PACK_NONE, cols, 1, 0};
    if (f->zeros) {
        c->zeros = (struct number_grid){
            random_bytes((size_t)(rows * cols)), f->values, packing, cols, 1, 0};
    }
    if (f->has_order) {
        c->groups = random_order(n_in, (int32_t)c->block_cols);
    } else {
        c->groups = NULL;
    }
    c->zero = f->zero;
    c->tensor_scale_use = f->tensor_scale;
    c->tensor_scale = 37.5f;
    return p;
}

/* The tests own what the parts point to. */
static inline void free_tensor(struct weight_part *p)
{
    free((void *)(uintptr_t)p->codec.values.data);
    free((void *)(uintptr_t)p->codec.scales.data);
    free((void *)(uintptr_t)p->codec.zeros.data);
    free((void *)(uintptr_t)p->codec.groups);
}

/* on_cpu: the dtype to which the weight is decoded on the CPU. */
static inline struct pair_weight open_parts_as(struct pair *p, enum weight_kind kind,
                                               const struct weight_part *parts, int32_t n,
                                               int32_t n_experts, bool bias, enum dtype on_cpu)
{
    struct weight_desc d = {.name = "test",
                            .kind = kind,
                            .n_in = parts[0].n_cols,
                            .n_experts = n_experts,
                            .n_parts = n,
                            .parts = parts,
                            .k_segments = 1};
    for (int32_t i = 0; i < n; i++) {
        d.n_out += parts[i].n_rows;
    }
    d.n_out /= n_experts;
    const int64_t n_bias = d.n_out * n_experts;
    float *biases = xmalloc((size_t)n_bias * sizeof *biases);
    struct weight_part *bias_parts = xmalloc((size_t)n_experts * sizeof *bias_parts);
    for (int64_t i = 0; i < n_bias; i++) {
        biases[i] = round_to((float)(random_bits() & 255) / 256.0f, DT_BF16);
    }
    for (int32_t e = 0; e < n_experts; e++) {
        bias_parts[e] = weight_part_plain(biases + e * d.n_out, DT_F32, 1, d.n_out, d.n_out);
    }
    d.bias = bias ? bias_parts : NULL;
    struct pair_weight w = {{NULL, NULL}};
    for (int b = FIRST; b <= GPU; b++) {
        struct err err = {""};
        d.dtype = b == CPU ? on_cpu : p->dtype;
        if (p->be[b]->ops->weight_open(p->be[b], &d, &w.w[b], &err) != OK) {
            CHECK_FAIL("weight_open: %s", err.text);
        }
    }
    free(biases);
    free(bias_parts);
    return w;
}

/* On the CPU the weight is decoded to fp32. */
static inline struct pair_weight open_parts(struct pair *p, enum weight_kind kind,
                                            const struct weight_part *parts, int32_t n,
                                            int32_t n_experts, bool bias)
{
    return open_parts_as(p, kind, parts, n, n_experts, bias, DT_F32);
}

/* One tensor per expert, opened as one weight. */
static inline struct pair_weight open_experts(struct pair *p, const struct format *f,
                                              int32_t n_experts, int32_t n_out, int32_t n_in,
                                              bool bias)
{
    struct weight_part *parts = xmalloc((size_t)n_experts * sizeof *parts);
    for (int32_t e = 0; e < n_experts; e++) {
        parts[e] = make_tensor(f, n_out, n_in);
    }
    struct pair_weight w = open_parts(p, WEIGHT_EXPERTS, parts, n_experts, n_experts, bias);
    for (int32_t e = 0; e < n_experts; e++) {
        free_tensor(&parts[e]);
    }
    free(parts);
    return w;
}

#endif
