// SPDX-License-Identifier: Apache-2.0
/* Shared by the readers of formats: finding a module's tensors, and checking them. Private to
 * formats*.c. */
#ifndef SLUICE_ENGINE_MODEL_FORMATS_PRIVATE_H
#define SLUICE_ENGINE_MODEL_FORMATS_PRIVATE_H

#include "engine/model/formats.h"

#include <string.h>

/* The first of two tensors of all experts (struct expert_place); NULL if there is neither. */
const struct checkpoint_tensor *format_stack_tensor(const struct module *m, const char *suffix,
                                                    const char *other);

/* The format's name in messages. */
const char *format_title(const struct module *m);
/* The errors name the tensor, and what the format requires. */
enum status format_need_tensor(const struct module *m, const char *suffix,
                               const struct checkpoint_tensor **out);
enum status format_need_dims(const struct module *m, const struct checkpoint_tensor *t, int32_t n,
                             const int64_t *dims);
enum status format_need_dtype(const struct module *m, const struct checkpoint_tensor *t,
                              enum dtype dtype);
enum status format_need_float(const struct module *m, const struct checkpoint_tensor *t);
/* Also accepts powers of two. */
enum status format_need_scales(const struct module *m, const struct checkpoint_tensor *t);
/* Checks n scales from the first on. */
enum status format_check_scales(const struct module *m, const struct checkpoint_tensor *t,
                                enum dtype dtype, size_t first, size_t n);

/* Read an expert's matrix whose scales are in a tensor of all experts (formats_stacked.c). */
enum status format_read_stacked(const struct module *m, const struct checkpoint_tensor *scales,
                                struct weight_codec *out);
enum status format_read_stacked_nvfp4(const struct module *m,
                                      const struct checkpoint_tensor *scales,
                                      struct weight_codec *out);

/* bitsandbytes (formats_bnb.c). */
enum status format_read_bnb4(const struct module *m, struct weight_codec *out);
enum status format_read_bnb8(const struct module *m, struct weight_codec *out);

static inline bool has_dims(const struct checkpoint_tensor *t, int32_t n, const int64_t *dims)
{
    return t->n_dims == n && memcmp(t->dims, dims, (size_t)n * sizeof *dims) == 0;
}

static inline bool is_dtype(const struct checkpoint_tensor *t, enum dtype dtype)
{
    return t->dtype_known && t->dtype == dtype;
}

static inline size_t count_of(const struct checkpoint_tensor *t)
{
    size_t n = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        n *= (size_t)t->dims[i];
    }
    return n;
}

static inline int64_t cut_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* A dense two-dimensional tensor. */
static inline struct number_grid rows_of(const struct checkpoint_tensor *t, enum dtype dtype,
                                         enum packing packing, int64_t row_stride)
{
    return (struct number_grid){t->data, dtype, packing, row_stride, 1, 0};
}

#endif
