// SPDX-License-Identifier: Apache-2.0
/* Numbers of K and V as they lie in a page: the definition of every KV format. A head's numbers of
 * one token are encoded together, with one scale (and zero), and are then
 *
 *     KV_FP8             E4M3(code) scale       scale = max(max|x| / 448, 1e-6), or the layer's own
 *     KV_INT8_SYMMETRIC  code scale             scale = max(max|x| / 127, 1e-6); -128 <= code < 128
 *     KV_INT8, KV_INT4   (code - zero) scale    scale = (max - min) / L, 1 if that is 0,
 *                                               zero = -min / scale; 0 <= code <= L = 255, 15
 *
 * the code being that nearest to x / scale (+ zero): E4M3 to nearest even, -128 to 127 with halves
 * away from 0, else floor(. + 0.5). In a model of 16 bits scale and zero of the last two share a
 * word of 32: the scale's upper 18 bits, rounded, above the zero in steps of 1/16, of KV_INT4 1/64.
 * x is encoded against those; of a head that lies far off 0 the scale is larger than that, so that
 * the zero is in range. A head with a number that is none reads as NaN throughout.
 *
 * Thread: any; the functions touch what they are given. */
#ifndef SLUICE_CPU_KV_CODES_H
#define SLUICE_CPU_KV_CODES_H

#include "engine/device/dtype.h"
#include "engine/device/kv_format.h"

struct kv_scale {
    float scale, zero;
};

/* One head's K, or V, in a page. K is [dim][token], V [token][dim]; bytes of 8-bit integers lie two
 * by two, K's of two dims, V's of two tokens: [dim / 2][token][2], [token / 2][dim][2]. A byte of
 * KV_INT4 holds K's of two successive dims, [dim / 2][token], and V's of dims d and d + 16,
 * [token / 2][dim / 2][2]; the first is in the low half. Scales follow: [token] fp32, or
 * words, or, of a model in fp32, scales and then zeros. */
struct kv_plane {
    enum kv_format format;
    enum dtype dtype;      // of KV_PLAIN's numbers; else F32: scales and zeros are whole
    bool by_dim;           // K
    int32_t tokens, width; // of a page; numbers of a token
    float scale;           // of all numbers, where tokens have none
    bool has_scales;
    size_t at, scales_at, n_bytes; // from the head's begin; of both together, from `at`
};

/* What a head's codes are relative to. `stored`: the layer's own scale, or 0. */
typedef void kv_encode_fn(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                          struct kv_scale *scale);

struct kv_plane kv_plane_make(enum kv_format format, enum dtype dtype, bool by_dim, int32_t tokens,
                              int32_t width, float stored, size_t at);

/* The bytes that hold a token's number d, and, of KV_INT4, the bits there. */
static inline int64_t kv_code_at(const struct kv_plane *p, int32_t token, int32_t d)
{
    int64_t tokens = p->tokens, width = p->width;
    switch (p->format) {
    case KV_INT8_SYMMETRIC:
    case KV_INT8:
        return p->by_dim ? (d / 2 * tokens + token) * 2 + d % 2
                         : (token / 2 * width + d) * 2 + token % 2;
    case KV_INT4:
        return p->by_dim
                   ? d / 2 * tokens + token
                   : (token / 2 * ((width + 31) / 32 * 16) + d / 32 * 16 + d % 16) * 2 + token % 2;
    default: return p->by_dim ? d * tokens + token : token * width + d;
    }
}

static inline int32_t kv_code_shift(const struct kv_plane *p, int32_t d)
{
    return p->format != KV_INT4 ? 0 : (p->by_dim ? d % 2 : d / 16 % 2) * 4;
}

/* A word of scale and zero. */
#define KV_SCALE_BITS 0xFFFFC000u
enum { KV_ZERO_BITS = 14, KV_ZERO_MOST = 8191 };

static inline float kv_zero_step(enum kv_format format)
{
    return format == KV_INT4 ? 1.0f / 64.0f : 1.0f / 16.0f;
}

/* The definition of one head's codes; tables of kernels have it compiled for their machines. */
void kv_encode_scalar(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                      struct kv_scale *scale);
float kv_decode(const struct kv_plane *p, struct kv_scale s, uint32_t code);

/* `head`: where the head begins in a page. */
struct kv_scale kv_scale_get(const struct kv_plane *p, const char *head, int32_t token);
float kv_get(const struct kv_plane *p, const char *head, int32_t token, int32_t d);
/* Codes as they were encoded, a byte each, with their scale; or n plain numbers. The rest of the
 * width becomes 0. */
void kv_put_codes(const struct kv_plane *p, char *head, int32_t token, const uint8_t *codes,
                  int32_t n, struct kv_scale scale);
void kv_put_plain(const struct kv_plane *p, char *head, int32_t token, const float *x, int32_t n);
void kv_move(const struct kv_plane *p, const char *from, int32_t from_token, char *to,
             int32_t to_token);
/* All of it reads as NaN. */
void kv_poison(const struct kv_plane *p, char *head);

#endif
