// SPDX-License-Identifier: Apache-2.0
/* The reference kernels: each computes its formula, one element at a time. */
#include "cpu/cpu_internal.h"
#include "engine/base/exact.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* Computes one tile with plain loops. k advances by `pair` inputs, whose weights are adjacent. */
#define DEFINE_GEMM(name, type, pair, widen_element)                                               \
    static void name(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,    \
                     int64_t k, float *c, bool first)                                              \
    {                                                                                              \
        int32_t n = panels * PANEL;                                                                \
        for (int32_t i = 0; i < m; i++) {                                                          \
            const float *row = (const float *)a + i * a_stride;                                    \
            const type *weights = w;                                                               \
            float *sum = c + (int64_t)i * TILE;                                                    \
            for (int32_t j = 0; j < n && first; j++) {                                             \
                sum[j] = 0.0f;                                                                     \
            }                                                                                      \
            for (int64_t x = 0; x < k; x += pair, weights += (int64_t)n * pair) {                  \
                for (int32_t p = 0; p < pair; p++) {                                               \
                    for (int32_t j = 0; j < n; j++) {                                              \
                        sum[j] += row[x + p] * widen_element(weights[j * pair + p]);               \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

#define SAME(x) (x)
DEFINE_GEMM(gemm_bf16, uint16_t, 2, bf16_to_f32)
DEFINE_GEMM(gemm_f16, uint16_t, 1, f16_to_f32)
DEFINE_GEMM(gemm_f32, float, 1, SAME)

static void round_bf16(const float *x, void *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        ((float *)out)[i] = bf16_to_f32(bf16_of(x[i]));
    }
}

static void round_f16(const float *x, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = f16_to_f32(f16_of(x[i]));
    }
}

/* The value of a code, without its scale. */
static float code_value(const struct code_run *r, uint32_t code)
{
    switch (r->kind) {
    case CODE_2:
    case CODE_3:
    case CODE_4:
    case CODE_5: return r->values[code];
    case CODE_I8: return (float)(int8_t)code;
    case CODE_E4M3: return dtype_value(DT_E4M3, code);
    case CODE_6: break;
    }
    return (float)((int32_t)code - r->middle);
}

/* One weight, given its place in the panel layout: input, panel, output. */
static float code_weight(const struct code_run *r, int64_t pair, int32_t panel, int32_t input,
                         int32_t output)
{
    int32_t group = code_group(r->kind), j = panel * PANEL + output;
    int64_t k = 2 * pair + input, at = (k / group * r->panels + panel) * PANEL * group;
    const char *codes = r->codes + code_bytes(r->kind, at);
    float value =
        code_value(r, code_at(r->kind, (const uint8_t *)codes, (int32_t)(k % group), output));
    value = (r->zeros ? value - r->zeros[j] : value) * r->scales[j];
    return r->offsets ? value + r->offsets[j] : value;
}

/* bf16 products read inputs in pairs, so weights are stored in pairs. */
static void decode_bf16(const struct code_run *r)
{
    for (int32_t panel = 0; panel < r->panels; panel++) {
        for (int64_t pair = 0; pair < r->k / 2; pair++) {
            uint16_t *to = (uint16_t *)r->out + pair_at(r, r->first / 2 + pair, panel) * PAIR_CODES;
            for (int32_t i = 0; i < PAIR_CODES; i++) {
                to[i] = bf16_of(code_weight(r, pair, panel, i % 2, i / 2));
            }
        }
    }
}

/* f16 products read one input at a time. */
static void decode_f16(const struct code_run *r)
{
    for (int32_t panel = 0; panel < r->panels; panel++) {
        for (int64_t k = 0; k < r->k; k++) {
            uint16_t *to = (uint16_t *)r->out + ((r->first + k) * r->panels + panel) * PANEL;
            for (int32_t j = 0; j < PANEL; j++) {
                to[j] = f16_of(code_weight(r, k / 2, panel, (int32_t)(k % 2), j));
            }
        }
    }
}

static void add_scaled(float *x, const float *d, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] += scale * d[i];
    }
}

/* For an RMS norm the mean stays 0. Weight and bias may be NULL. */
static void norm(enum norm_kind kind, const float *x, const float *weight, float offset,
                 const float *bias, float eps, int64_t n, float *out)
{
    float mean = 0.0f, square = 0.0f;
    if (kind == NORM_LAYER) {
        for (int64_t i = 0; i < n; i++) {
            mean += x[i];
        }
        mean /= (float)n;
    }
    for (int64_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean);
    }
    float r = 1.0f / sqrtf(square / (float)n + eps);
    for (int64_t i = 0; i < n; i++) {
        float w = (weight ? weight[i] : 1.0f) + offset;
        out[i] = (x[i] - mean) * r * w + (bias ? bias[i] : 0.0f);
    }
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* The formulas of engine/device/ops.h, written so that large inputs do not overflow. */
static float activated(enum activation kind, struct act_shape shape, float g, float u)
{
    switch (kind) {
    case ACT_SILU: return g / (1.0f + expf(-g)) * u;
    // 1 + erf(x), computed without cancellation
    case ACT_GELU: return 0.5f * g * erfcf(g * -0.70710678f) * u;
    case ACT_GELU_TANH: // (1 + tanh(z)) / 2 = 1 / (1 + e^-2z)
        return g / (1.0f + expf(-1.59576912f * (g + 0.044715f * g * g * g))) * u;
    case ACT_RELU: return greater(g, 0.0f) * u;
    case ACT_RELU2: return (g > 0.0f ? g * g : 0.0f) * u;
    case ACT_SILU_CLAMPED:
        u = greater(lesser(u, shape.limit), -shape.limit);
        return lesser(g / (1.0f + expf(-g)), shape.alpha) * u;
    case ACT_GPT_OSS:
        g = lesser(g, shape.limit);
        u = lesser(u, shape.limit);
        u = greater(u, -shape.limit);
        return g / (1.0f + expf(-shape.alpha * g)) * (u + 1.0f);
    case ACT_XIELU:
        if (g > 0.0f) {
            return (shape.rise * g + shape.slope) * g;
        }
        return shape.fall * (expm1f(g) - g) + shape.slope * g;
    }
    return 0.0f;
}

static void activate(enum activation kind, struct act_shape shape, const float *gate,
                     const float *up, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = activated(kind, shape, gate[i], up ? up[i] : 1.0f);
    }
}

/* A pair is two neighbours, or the same element of the two halves of the rotated part. */
static void rotate(float *x, const float *cos, const float *sin, int32_t n, bool interleaved)
{
    int32_t step = interleaved ? 2 : 1, other = interleaved ? 1 : n;
    for (int32_t i = 0; i < n; i++) {
        float a = x[i * step], b = x[i * step + other];
        x[i * step] = a * cos[i] - b * sin[i];
        x[i * step + other] = b * cos[i] + a * sin[i];
    }
}

static void widen(enum dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t *half = from;
    if (dtype == DT_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (dtype == DT_I8) {
            to[i] = (float)((const int8_t *)from)[i];
        } else {
            to[i] = dtype == DT_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
        }
    }
}

/* Converts to the layout that attention reads: K by dimension, V by token. */
static void unpack(const struct kv_plane *p, const char *head, int32_t token, int32_t n,
                   int32_t width, bool bf16, void *out)
{
    for (int32_t t = 0; t < n; t++) {
        for (int32_t d = 0; d < width; d++) {
            int64_t at = p->by_dim ? (int64_t)d * n + t : (int64_t)t * width + d;
            float x = kv_get(p, head, token + t, d);
            if (bf16) {
                ((uint16_t *)out)[at] = bf16_of(x);
            } else {
                ((float *)out)[at] = x;
            }
        }
    }
}

/* Loops over tokens outside and rows inside, so that each element of K is read once. */
static void scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                   int32_t dim, float *s, int64_t s_stride)
{
    int32_t tokens = k->plane->tokens;
    for (int32_t t = 0; t < k->n_pages * tokens; t++) {
        for (int32_t i = 0; i < m; i++) {
            s[i * s_stride + t] = 0.0f;
        }
        for (int32_t d = 0; d < dim; d++) {
            float x = kv_get(k->plane, k->pages[t / tokens], t % tokens, d);
            for (int32_t i = 0; i < m; i++) {
                s[i * s_stride + t] += q[i * q_stride + d] * x;
            }
        }
    }
}

/* There is nothing to do, because `weigh` reads dequantised values. */
static void fold(float *p, int64_t p_stride, int32_t m, const struct page_run *v)
{
    (void)p;
    (void)p_stride;
    (void)m;
    (void)v;
}

/* Reads only the tokens that are seen, [first, end), because others may be NaN. */
static void weigh(const float *p, int64_t p_stride, int32_t m, const struct page_run *v, float *acc)
{
    int32_t tokens = v->plane->tokens, dim = v->plane->width;
    for (int32_t t = v->first; t < v->end; t++) {
        for (int32_t d = 0; d < dim; d++) {
            float x = kv_get(v->plane, v->pages[t / tokens], t % tokens, d);
            for (int32_t i = 0; i < m; i++) {
                acc[(int64_t)i * dim + d] += p[i * p_stride + t] * x;
            }
        }
    }
}

static float max_of(const float *x, int64_t n)
{
    float m = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        m = greater(x[i], m);
    }
    return m;
}

static float exp_sum(float *x, int64_t n, float max)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += x[i];
    }
    return sum;
}

static void softcap(float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = cap * tanhf(x[i] / cap);
    }
}

static void scale_by(float *x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] *= scale;
    }
}

/* Of equal values the lowest id is chosen, so that results do not depend on the vector width. */
static struct argmax argmax(const float *x, int32_t n)
{
    struct argmax best = {-INFINITY, n > 0 ? 0 : -1};
    for (int32_t i = 0; i < n; i++) {
        if (x[i] > best.value) {
            best = (struct argmax){x[i], i};
        }
    }
    return best;
}

/* Sampling as an arg-max: Gumbel noise, from a separate counter for each id, is added to each
 * logit. */
static struct argmax argmax_gumbel(const float *x, int32_t n, uint64_t seed, int32_t position)
{
    struct argmax best = {-INFINITY, -1};
    for (int32_t i = 0; i < n; i++) {
        if (!(x[i] > -INFINITY)) {
            continue;
        }
        float v = x[i] + gumbel_noise(rng_bits(seed, position, RNG_SAMPLE, (uint32_t)i));
        if (v > best.value || best.id < 0) {
            best = (struct argmax){v, i};
        }
    }
    return best;
}

static void exp_exact(const float *x, int32_t n, float max, float *out)
{
    for (int32_t i = 0; i < n; i++) {
        out[i] = exact_exp(x[i] - max);
    }
}

/* Adds in double precision, so that the order of additions hardly matters. */
static double exp_total(const float *x, int32_t n, float max)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] > -INFINITY) {
            sum += (double)expf(x[i] - max);
        }
    }
    return sum;
}

/* Measures how fast memory can be read. The sum keeps the compiler from removing the reads. */
static float read_all(const void *p, size_t n_bytes)
{
    const uint64_t *x = p;
    uint64_t sum = 0;
    for (size_t i = 0; i < n_bytes / sizeof *x; i += 4) {
        sum += x[i] + x[i + 1] + x[i + 2] + x[i + 3];
    }
    return (float)sum;
}

/* Measures the speed of arithmetic with eight independent chains of multiply-adds. */
static float spin(int64_t n)
{
    float x[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int64_t i = 0; i < n; i++) {
        for (int j = 0; j < 8; j++) {
            x[j] = x[j] * 0.999f + 0.001f;
        }
    }
    return x[0] + x[1] + x[2] + x[3] + x[4] + x[5] + x[6] + x[7];
}

const struct cpu_kernels cpu_kernels_scalar = {
    .name = "scalar",
    .gemm_bf16 = gemm_bf16,
    .gemm_f16 = gemm_f16,
    .gemm_f32 = gemm_f32,
    .pass_rows = 8,
    .few_k = 256,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
    .decode_bf16 = decode_bf16,
    .decode_f16 = decode_f16,
    .add_scaled = add_scaled,
    .norm = norm,
    .dot = dot,
    .activate = activate,
    .rotate = rotate,
    .widen = widen,
    .encode = kv_encode_scalar,
    .unpack = unpack,
    .fold = fold,
    .scores = scores,
    .weigh = weigh,
    .max = max_of,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .scale = scale_by,
    .argmax = argmax,
    .argmax_gumbel = argmax_gumbel,
    .exp_exact = exp_exact,
    .exp_total = exp_total,
    .read_all = read_all,
    .spin_fma = spin,
    .spin_product = spin,
    .fma_flops = 16,
    .product_flops = 16,
};
