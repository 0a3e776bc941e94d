// SPDX-License-Identifier: Apache-2.0
#include "engine/device/kv_format.h"

static const struct {
    int32_t bits;
    bool has_zero;
} formats[N_KV_FORMATS] = {
    [KV_PLAIN] = {0, false}, [KV_FP8] = {8, false}, [KV_INT8_SYMMETRIC] = {8, false},
    [KV_INT8] = {8, true},   [KV_INT4] = {4, true},
};

/* config_test compares them with the row of --kv-cache-dtype. */
static const struct kv_choice choices[] = {
    {"fp8", KV_FP8, true},
    {"fp8_per_token_head", KV_FP8, false},
    {"int8_per_token_head", KV_INT8_SYMMETRIC, false},
    {"int8", KV_INT8, false},
    {"int4", KV_INT4, false},
};

static const struct {
    enum dtype dtype;
    struct kv_choice choice;
} plain[] = {
    {DT_F32, {"float32", KV_PLAIN, false}},
    {DT_BF16, {"bfloat16", KV_PLAIN, false}},
    {DT_F16, {"float16", KV_PLAIN, false}},
};

const struct kv_choice *kv_choice_at(size_t i)
{
    return i < sizeof choices / sizeof choices[0] ? &choices[i] : NULL;
}

const struct kv_choice *kv_choice_find(const char *name)
{
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (strcmp(choices[i].name, name) == 0) {
            return &choices[i];
        }
    }
    return strcmp(name, "fp8_e4m3") == 0 ? &choices[0] : NULL;
}

const struct kv_choice *kv_choice_plain(enum dtype dtype)
{
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (plain[i].dtype == dtype) {
            return &plain[i].choice;
        }
    }
    return NULL;
}

int32_t kv_format_bits(enum kv_format format)
{
    return formats[format].bits;
}

bool kv_format_has_zero(enum kv_format format)
{
    return formats[format].has_zero;
}
