// SPDX-License-Identifier: Apache-2.0
/* KV cache formats, and their names on the command line. The CPU's scalar code defines what an
 * encoded value means (cpu/cpu_kv_codes.h); the layout of codes and scales in a page is up to each
 * backend.
 * Thread: any; constants. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_KV_FORMAT_H
#define SLUICE_ENGINE_DEVICE_KV_FORMAT_H

#include "engine/device/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* K and V each have one scale (and zero) per head and token, stored in the page. Exception: FP8 in
 * a layer that has scales of its own (struct kv_layer). */
enum kv_format {
    KV_PLAIN,          // unquantised, in the set's dtype
    KV_FP8,            // E4M3 times a scale
    KV_INT8_SYMMETRIC, // -128 to 127 times a scale
    KV_INT8,           // 0 to 255, less a zero, times a scale
    KV_INT4,           // 0 to 15, less a zero, times a scale
};
enum { N_KV_FORMATS = KV_INT4 + 1 };

/* One value of --kv-cache-dtype. */
struct kv_choice {
    const char *name;
    enum kv_format format;
    bool stored_scales; // use the checkpoint's scales if it has them
};

/* The quantised choice number i; NULL past the last. */
const struct kv_choice *kv_choice_at(size_t i);
/* "fp8", "int8" and so on; NULL for other names (the caller handles "auto" and the model's
 * dtype). */
const struct kv_choice *kv_choice_find(const char *name);
/* The unquantised format of this dtype. */
const struct kv_choice *kv_choice_plain(enum dtype dtype);

/* Bits per element; 0: as many as the set's dtype has. */
int32_t kv_format_bits(enum kv_format format);
/* True if the format has a zero besides the scale. */
bool kv_format_has_zero(enum kv_format format);

#ifdef __cplusplus
}
#endif
#endif
