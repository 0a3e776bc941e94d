// SPDX-License-Identifier: Apache-2.0
/* Pages of quantised keys and values: where codes and scales are, and what they mean. The vector
 * kernels read the same layout. */
#include "cpu/cpu_kv_codes.h"

#include "cpu/cpu_internal.h"
#include "cpu/cpu_kv_encode.h"

/* A byte holds the 4-bit codes of two neighbouring dimensions or tokens, so counts are rounded
 * up. */
static int64_t code_bytes_of(const struct kv_plane *p)
{
    int64_t tokens = p->tokens, width = p->width;
    int64_t dims2 = (width + 1) / 2, tokens2 = (tokens + 1) / 2;
    switch (p->format) {
    case KV_FP8: return tokens * width;
    case KV_INT8_SYMMETRIC:
    case KV_INT8: return p->by_dim ? dims2 * 2 * tokens : tokens2 * 2 * width;
    case KV_INT4: return p->by_dim ? dims2 * tokens : tokens2 * 2 * ((width + 31) / 32 * 16);
    default: return tokens * width * (int64_t)dtype_bytes(p->dtype);
    }
}

/* Scales follow the codes, one per token. In bf16 and f16 models, a scale and its zero share a
 * word. */
struct kv_plane kv_plane_make(enum kv_format format, enum dtype dtype, bool by_dim, int32_t tokens,
                              int32_t width, float stored, size_t at)
{
    struct kv_plane p = {.format = format,
                         .dtype = dtype,
                         .by_dim = by_dim,
                         .tokens = tokens,
                         .width = width,
                         .scale = stored,
                         .at = at};
    p.has_scales = format != KV_PLAIN && !(format == KV_FP8 && stored > 0.0f);
    p.n_bytes = (size_t)code_bytes_of(&p);
    if (p.has_scales) {
        p.n_bytes = (size_t)round_up((int64_t)p.n_bytes, 16);
        p.scales_at = at + p.n_bytes;
        bool two = kv_format_has_zero(format) && dtype == DT_F32;
        p.n_bytes += (size_t)tokens * sizeof(float) * (two ? 2 : 1);
    }
    return p;
}

void kv_encode_scalar(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                      struct kv_scale *scale)
{
    kv_encode(p, x, n, codes, scale);
}

/* The definition of each format. */
float kv_decode(const struct kv_plane *p, struct kv_scale s, uint32_t code)
{
    switch (p->format) {
    case KV_FP8: return dtype_value(DT_E4M3, code) * s.scale;
    case KV_INT8_SYMMETRIC: return (float)(int8_t)code * s.scale;
    default: return ((float)code - s.zero) * s.scale;
    }
}

/* ---- in pages ----------------------------------------------------------------------------- */

static bool has_words(const struct kv_plane *p)
{
    return kv_format_has_zero(p->format) && p->dtype != DT_F32;
}

/* The zero is in the low bits of the word, in units of the format's step. */
struct kv_scale kv_scale_get(const struct kv_plane *p, const char *head, int32_t token)
{
    const float *scales = (const float *)(const void *)(head + p->scales_at);
    if (!p->has_scales) {
        return (struct kv_scale){p->scale, 0.0f};
    }
    if (has_words(p)) {
        uint32_t word = kv_float_bits(scales[token]);
        int32_t zero = (int32_t)(word << (32 - KV_ZERO_BITS)) >> (32 - KV_ZERO_BITS);
        return (struct kv_scale){kv_float_of(word & KV_SCALE_BITS),
                                 (float)zero * kv_zero_step(p->format)};
    }
    return (struct kv_scale){scales[token],
                             kv_format_has_zero(p->format) ? scales[p->tokens + token] : 0.0f};
}

/* The scale loses the low bits that the zero occupies; the encoder has rounded it accordingly. */
void kv_scale_put(const struct kv_plane *p, char *head, int32_t token, struct kv_scale s)
{
    float *scales = (float *)(void *)(head + p->scales_at);
    if (has_words(p)) {
        uint32_t zero = (uint32_t)(int32_t)(s.zero / kv_zero_step(p->format));
        uint32_t word = (kv_float_bits(s.scale) & KV_SCALE_BITS) | (zero & ~KV_SCALE_BITS);
        memcpy(&scales[token], &word, sizeof word);
        return;
    }
    scales[token] = s.scale;
    if (kv_format_has_zero(p->format)) {
        scales[p->tokens + token] = s.zero;
    }
}

static float plain_get(enum dtype dtype, const char *at, int64_t i)
{
    switch (dtype) {
    case DT_BF16: return bf16_to_f32(((const uint16_t *)(const void *)at)[i]);
    case DT_F16: return f16_to_f32(((const uint16_t *)(const void *)at)[i]);
    default: return ((const float *)(const void *)at)[i];
    }
}

static void plain_put(enum dtype dtype, char *at, int64_t i, float x)
{
    switch (dtype) {
    case DT_BF16: ((uint16_t *)(void *)at)[i] = bf16_of(x); break;
    case DT_F16: ((uint16_t *)(void *)at)[i] = f16_of(x); break;
    default: ((float *)(void *)at)[i] = x; break;
    }
}

static uint32_t code_get(const struct kv_plane *p, const char *head, int32_t token, int32_t d)
{
    uint32_t byte = (uint8_t)head[p->at + (size_t)kv_code_at(p, token, d)];
    return p->format == KV_INT4 ? byte >> kv_code_shift(p, d) & 15u : byte;
}

static void code_put(const struct kv_plane *p, char *head, int32_t token, int32_t d, uint32_t code)
{
    uint8_t *byte = (uint8_t *)head + p->at + kv_code_at(p, token, d);
    int32_t shift = kv_code_shift(p, d);
    *byte = (uint8_t)(p->format == KV_INT4 ? (*byte & ~(15u << shift)) | code << shift : code);
}

float kv_get(const struct kv_plane *p, const char *head, int32_t token, int32_t d)
{
    if (p->format == KV_PLAIN) {
        return plain_get(p->dtype, head + p->at, kv_code_at(p, token, d));
    }
    return kv_decode(p, kv_scale_get(p, head, token), code_get(p, head, token, d));
}

/* Two codes share a byte, but codes of two tokens never do, so no byte is read before it is
 * written. */
static void put_halves(const struct kv_plane *p, char *head, int32_t token, const uint8_t *codes,
                       int32_t n)
{
    int32_t step = p->by_dim ? 1 : 16, width = (p->width + 2 * step - 1) / (2 * step) * 2 * step;
    for (int32_t d = 0; d < width; d += d % step == step - 1 || step == 1 ? step + 1 : 1) {
        uint32_t low = d < n ? codes[d] : 0, high = d + step < n ? codes[d + step] : 0;
        head[p->at + (size_t)kv_code_at(p, token, d)] = (char)(low | high << 4);
    }
}

/* Codes are interleaved in pairs, so two distances are needed. */
void kv_put_codes(const struct kv_plane *p, char *head, int32_t token, const uint8_t *codes,
                  int32_t n, struct kv_scale scale)
{
    if (p->has_scales) {
        kv_scale_put(p, head, token, scale);
    }
    if (p->format == KV_INT4) {
        put_halves(p, head, token, codes, n);
        return;
    }
    /* The distance from one dimension to the next, and to the one after that. */
    int64_t first = kv_code_at(p, token, 0);
    int64_t next = kv_code_at(p, token, 1) - first, pair = kv_code_at(p, token, 2) - first;
    char *to = head + p->at + first;
    for (int32_t d = 0; d < p->width; d++) {
        to[d / 2 * pair + d % 2 * next] = (char)(d < n ? codes[d] : 0);
    }
}

/* Writes the padding, too, because kernels read whole panels. */
void kv_put_plain(const struct kv_plane *p, char *head, int32_t token, const float *x, int32_t n)
{
    int64_t at = kv_code_at(p, token, 0), step = p->by_dim ? p->tokens : 1;
    if (p->dtype == DT_BF16) { // nearly all pages are bf16
        uint16_t *out = (uint16_t *)(void *)(head + p->at) + at;
        for (int32_t d = 0; d < n; d++) {
            out[d * step] = bf16_of(x[d]);
        }
    } else {
        for (int32_t d = 0; d < n; d++) {
            plain_put(p->dtype, head + p->at, at + d * step, x[d]);
        }
    }
    for (int32_t d = n; d < p->width; d++) {
        plain_put(p->dtype, head + p->at, at + d * step, 0.0f);
    }
}

/* Moves one code at a time, because the other code in a byte may belong to another token. */
void kv_move(const struct kv_plane *p, const char *from, int32_t from_token, char *to,
             int32_t to_token)
{
    size_t size = dtype_bytes(p->dtype);
    for (int32_t d = 0; d < p->width; d++) {
        if (p->format == KV_PLAIN) {
            memcpy(to + p->at + (size_t)kv_code_at(p, to_token, d) * size,
                   from + p->at + (size_t)kv_code_at(p, from_token, d) * size, size);
        } else {
            code_put(p, to, to_token, d, code_get(p, from, from_token, d));
        }
    }
    if (p->has_scales) {
        kv_scale_put(p, to, to_token, kv_scale_get(p, from, from_token));
    }
}

/* Fills the codes with NaN if the format has it; otherwise the scales. */
void kv_poison(const struct kv_plane *p, char *head)
{
    if (p->format == KV_PLAIN) {
        for (int64_t i = 0; i < (int64_t)p->tokens * p->width; i++) {
            plain_put(p->dtype, head + p->at, i, NAN);
        }
        return;
    }
    memset(head + p->at, 0x7F, (size_t)code_bytes_of(p)); // E4M3's NaN
    for (int32_t t = 0; t < p->tokens && p->has_scales; t++) {
        kv_scale_put(p, head, t, (struct kv_scale){NAN, 0.0f});
    }
}
