// SPDX-License-Identifier: Apache-2.0
/* The values of K and V as stored in a page: the definition of every KV format. The values of one
 * head and token are encoded together, with one scale (and zero), and decode as
 *
 *     KV_FP8             E4M3(code) scale       scale = max(max|x| / 448, 1e-6), or the layer's own
 *     KV_INT8_SYMMETRIC  code scale             scale = max(max|x| / 127, 1e-6); -128 <= code < 128
 *     KV_INT8, KV_INT4   (code - zero) scale    scale = (max - min) / L, 1 if that is 0,
 *                                               zero = -min / scale; 0 <= code <= L = 255, 15
 *
 * where the code is the one nearest to x / scale (+ zero). E4M3 rounds to nearest even,
 * KV_INT8_SYMMETRIC rounds halves away from 0, and the others round by floor(. + 0.5). In a 16-bit
 * model the scale and zero of the last two share a 32-bit word: the scale's upper 18 bits, rounded,
 * above the zero in steps of 1/16 (KV_INT4: 1/64). x is encoded against these rounded values; if a
 * head's values are far from 0, the scale is enlarged until the zero is in range. A head with a NaN
 * or infinity decodes to NaN throughout.
 *
 * Thread: any; the functions touch what they are given. */
#ifndef SLUICE_CPU_KV_CODES_H
#define SLUICE_CPU_KV_CODES_H

#include "engine/device/dtype.h"
#include "engine/device/kv_format.h"

struct kv_scale {
    float scale, zero;
};

/* One head's K or V in a page. K is [dim][token], V is [token][dim]. 8-bit integers are stored in
 * pairs: for K two dims of a token, [dim / 2][token][2]; for V two tokens of a dim, [token /
 * 2][dim][2]. A byte of KV_INT4 holds two successive dims of K, [dim / 2][token], or dims d and d +
 * 16 of V, [token / 2][dim / 2][2]; the first is in the low half. The scales follow: [token] as
 * fp32 or as words; in fp32 models, all scales and then all zeros. */
struct kv_plane {
    enum kv_format format;
    // Element type of KV_PLAIN; otherwise F32 means that scales and zeros are two floats.
    enum dtype dtype;
    bool by_dim;           // true for K
    int32_t tokens, width; // tokens per page; elements per token
    float scale;           // scale of all elements, if tokens have no scales of their own
    bool has_scales;
    size_t at, scales_at, n_bytes; // at, scales_at: offsets from the head's start; n_bytes: bytes
                                   // of codes and scales together, from `at` on
};

/* Chooses the scale (and zero) of a head and encodes its elements. `stored`: the layer's own scale,
 * or 0. */
typedef void kv_encode_fn(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                          struct kv_scale *scale);

struct kv_plane kv_plane_make(enum kv_format format, enum dtype dtype, bool by_dim, int32_t tokens,
                              int32_t width, float stored, size_t at);

/* The offset of the byte that holds element d of a token. For KV_INT4, kv_code_shift is the bit
 * position in that byte. */
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

/* The bit position of the code of dim d in its byte, which holds two codes of 4 bits. */
static inline int32_t kv_code_shift(const struct kv_plane *p, int32_t d)
{
    if (p->format != KV_INT4) {
        return 0;
    }
    return (p->by_dim ? d % 2 : d / 16 % 2) * 4;
}

/* A scale and a zero in one word. */
#define KV_SCALE_BITS 0xFFFFC000u
enum { KV_ZERO_BITS = 14, KV_ZERO_MOST = 8191 };

static inline float kv_zero_step(enum kv_format format)
{
    return format == KV_INT4 ? 1.0f / 64.0f : 1.0f / 16.0f;
}

/* The definition of how a head is encoded. The kernel tables contain it compiled for their
 * machines. */
void kv_encode_scalar(const struct kv_plane *p, const float *x, int32_t n, uint8_t *codes,
                      struct kv_scale *scale);
float kv_decode(const struct kv_plane *p, struct kv_scale s, uint32_t code);

/* `head`: the address of the head in a page. */
struct kv_scale kv_scale_get(const struct kv_plane *p, const char *head, int32_t token);
void kv_scale_put(const struct kv_plane *p, char *head, int32_t token, struct kv_scale s);
float kv_get(const struct kv_plane *p, const char *head, int32_t token, int32_t d);
/* Store codes, one per byte, with their scale; or n plain elements. The rest of the width is
 * zeroed. */
void kv_put_codes(const struct kv_plane *p, char *head, int32_t token, const uint8_t *codes,
                  int32_t n, struct kv_scale scale);
void kv_put_plain(const struct kv_plane *p, char *head, int32_t token, const float *x, int32_t n);
void kv_move(const struct kv_plane *p, const char *from, int32_t from_token, char *to,
             int32_t to_token);
/* Makes the whole plane read as NaN. */
void kv_poison(const struct kv_plane *p, char *head);

#endif
