// SPDX-License-Identifier: Apache-2.0
/* Finds the tensors of a quantised module, and checks them. */
#include "engine/model/formats_private.h"

#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>

enum { MAX_NAME = 320 };

/* A tensor counts as used once it has been looked up. */
static const struct checkpoint_tensor *find(const struct module *m, const char *base,
                                            const char *suffix)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    const struct checkpoint_tensor *t = checkpoint_find(m->checkpoint, name);
    if (t && m->taken) {
        size_t n;
        m->taken[t - checkpoint_tensors(m->checkpoint, &n)] = true;
    }
    return t;
}

const struct checkpoint_tensor *module_tensor(const struct module *m, const char *suffix)
{
    return find(m, m->name, suffix);
}

/* The first of two tensors of all experts; NULL if there is neither. */
const struct checkpoint_tensor *format_stack_tensor(const struct module *m, const char *suffix,
                                                    const char *other)
{
    if (!m->place.stack) {
        return NULL;
    }
    const struct checkpoint_tensor *t = find(m, m->place.stack, suffix);
    return t ? t : find(m, m->place.stack, other);
}

const char *format_title(const struct module *m)
{
    return m->scheme->format->name;
}

enum status format_need_tensor(const struct module *m, const char *suffix,
                               const struct checkpoint_tensor **out)
{
    *out = module_tensor(m, suffix);
    if (*out) {
        return OK;
    }
    return err_set(m->err, ERR_FORMAT, "%s: there is no tensor %s%s, which the format %s requires",
                   checkpoint_where(m->checkpoint), m->name, suffix, format_title(m));
}

static void print_dims(char *out, size_t n_bytes, int32_t n, const int64_t *dims)
{
    out[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t at = strlen(out);
        snprintf(out + at, n_bytes - at, "%s%lld", text_if(i, ", "), (long long)dims[i]);
    }
}

/* The message names both shapes, and the format that needs one of them. */
enum status format_need_dims(const struct module *m, const struct checkpoint_tensor *t, int32_t n,
                             const int64_t *dims)
{
    if (has_dims(t, n, dims)) {
        return OK;
    }
    char want[128], have[128];
    print_dims(want, sizeof want, n, dims);
    print_dims(have, sizeof have, t->n_dims, t->dims);
    return err_set(
        m->err, ERR_FORMAT,
        "%s: tensor %s has shape [%s], but the format %s of a %lld x %lld matrix requires [%s]",
        t->file, t->name, have, format_title(m), (long long)m->n_out, (long long)m->n_in, want);
}

enum status format_need_dtype(const struct module *m, const struct checkpoint_tensor *t,
                              enum dtype dtype)
{
    if (is_dtype(t, dtype)) {
        return OK;
    }
    return err_set(m->err, ERR_FORMAT, "%s: tensor %s is %s, which the format %s does not have",
                   t->file, t->name, t->dtype_name, format_title(m));
}

bool tensor_is_plain(const struct checkpoint_tensor *t)
{
    return is_dtype(t, DT_F32) || is_dtype(t, DT_BF16) || is_dtype(t, DT_F16);
}

/* Rejects scales that are zero, NaN or infinite, because they mean that the file is broken. */
enum status format_check_scales(const struct module *m, const struct checkpoint_tensor *t,
                                enum dtype dtype, size_t first, size_t n)
{
    struct number_grid all = {t->data, dtype, PACK_NONE, 0, 1, 0};
    for (size_t i = first; i < first + n; i++) {
        float scale = number_get(&all, 0, (int64_t)i);
        if (!isfinite(scale) || scale == 0.0f) {
            return err_set(m->err, ERR_FORMAT, "%s: tensor %s: the scale at %zu is %g", t->file,
                           t->name, i, (double)scale);
        }
    }
    return OK;
}

enum status format_need_float(const struct module *m, const struct checkpoint_tensor *t)
{
    if (!tensor_is_plain(t)) {
        return format_need_dtype(m, t, DT_F32);
    }
    return OK;
}

enum status format_need_scales(const struct module *m, const struct checkpoint_tensor *t)
{
    return is_dtype(t, DT_E8M0) ? OK : format_need_float(m, t);
}
