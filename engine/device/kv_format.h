// SPDX-License-Identifier: Apache-2.0
/* How the numbers of a KV cache are stored, and what operators call that. What an encoded number
 * means is defined by the CPU's scalar code (cpu/cpu_kv_codes.h); where codes and scales lie in a
 * page is each backend's own.
 * Thread: any; constants. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_KV_FORMAT_H
#define SLUICE_ENGINE_DEVICE_KV_FORMAT_H

#include "engine/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Scales, and zeros, are those of one head of one token's K, or V, and lie in the page; but FP8 of
 * a layer that has scales of its own (struct kv_layer) has no others. */
enum kv_format {
    KV_PLAIN,          // numbers of the set's dtype
    KV_FP8,            // E4M3 times a scale
    KV_INT8_SYMMETRIC, // -128 to 127 times a scale
    KV_INT8,           // 0 to 255, less a zero, times a scale
    KV_INT4,           // 0 to 15, likewise
};

/* What --kv-cache-dtype can ask for. */
struct kv_choice {
    const char *name;
    enum kv_format format;
    bool stored_scales; // those of the checkpoint are taken where it has them
};

/* "fp8", "int8" and so on; NULL: none of these (the model's dtype and "auto" are the caller's). */
const struct kv_choice *kv_choice_find(const char *name);
/* Numbers as they are, of this type. */
const struct kv_choice *kv_choice_plain(enum dtype dtype);

/* Bits of a number; 0: those of the set's dtype. */
int32_t kv_format_bits(enum kv_format format);
/* Whether there is a zero besides the scale. */
bool kv_format_has_zero(enum kv_format format);

#ifdef __cplusplus
}
#endif
#endif
