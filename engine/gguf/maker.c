// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/maker.h"

#include "engine/base/optional.h"
#include "engine/gguf/make.h"

#include <math.h>
#include <stdio.h>

void maker_full_key(const struct maker *m, const char *key, char out[96])
{
    snprintf(out, 96, "%s.%s", m->arch->name, key);
}

enum status maker_get_number(const struct maker *m, const char *key, double *out, bool *found)
{
    char full[96];
    maker_full_key(m, key, full);
    const struct gguf_value *v = gguf_get(m->g, full);
    *found = v != NULL;
    if (!v || gguf_get_number(m->g, full, out)) {
        return OK;
    }
    struct gguf_walk w = gguf_walk(v);
    double next;
    if (!gguf_next_number(&w, out)) {
        return err_set(m->err, ERR_FORMAT, "%s is not a number", full);
    }
    while (gguf_next_number(&w, &next)) {
        if (next != *out) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s differs from layer to layer, which is not "
                           "supported",
                           full);
        }
    }
    return OK;
}

bool maker_number_at(const struct maker *m, const char *key, size_t layer, double *out)
{
    char full[96];
    maker_full_key(m, key, full);
    const struct gguf_value *v = gguf_get(m->g, full);
    if (!v || !v->is_list) {
        return v && gguf_get_number(m->g, full, out);
    }
    if (v->type == GGUF_BOOL) {
        *out = layer < v->n && v->data[layer] ? 1.0 : 0.0;
        return layer < v->n;
    }
    struct gguf_walk w = gguf_walk(v);
    bool found = true;
    for (size_t i = 0; i <= layer && found; i++) {
        found = gguf_next_number(&w, out);
    }
    return found;
}

double maker_number_or(const struct maker *m, const char *key, double otherwise)
{
    char full[96];
    double v = otherwise;
    maker_full_key(m, key, full);
    gguf_get_number(m->g, full, &v);
    return v;
}

enum status maker_need_number(const struct maker *m, const char *key, double *out)
{
    bool found;
    TRY(maker_get_number(m, key, out, &found));
    if (!found) {
        return err_set(m->err, ERR_FORMAT, "the key %s.%s is missing", m->arch->name, key);
    }
    return OK;
}

void maker_put_number(const struct maker *m, const char *name, double v)
{
    buf_printf(m->out, "\"%s\":", name);
    buf_put_double(m->out, v);
    buf_putc(m->out, ',');
}

void maker_put_flag(const struct maker *m, const char *name, bool v)
{
    buf_printf(m->out, "\"%s\":%s,", name, bool_word(v));
}

static enum status put_renamed(const struct maker *m, const struct rename *r)
{
    char full[96];
    bool found, flag;
    double v;
    maker_full_key(m, r->key, full);
    if (r->kind == FLAG) {
        if (gguf_get_bool(m->g, full, &flag)) {
            maker_put_flag(m, r->as, flag);
            return OK;
        }
        if (gguf_get(m->g, full)) {
            return err_set(m->err, ERR_FORMAT, "%s is not a boolean", full);
        }
        return OK;
    }
    TRY(maker_get_number(m, r->key, &v, &found));
    if (found && r->kind == INTEGER && (v != floor(v) || fabs(v) > 1e15)) {
        return err_set(m->err, ERR_FORMAT, "%s is not an integer", full);
    }
    if (found) {
        maker_put_number(m, r->as, v);
    }
    return OK;
}

enum status maker_put_all(const struct maker *m, const struct rename *rows)
{
    for (; rows && rows->key; rows++) {
        TRY(put_renamed(m, rows));
    }
    return OK;
}

bool maker_has_tensor(const struct maker *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

/* *out: a number of layers, or what an absent key means; negative: it is required. */
static enum status count(const struct gguf *g, const char *arch, const char *key, double *out,
                         struct err *err)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    if (!gguf_get(g, full) && *out < 0.0) {
        return err_set(err, ERR_FORMAT, "the key %s is missing", full);
    }
    if (gguf_get(g, full) && !gguf_get_number(g, full, out)) {
        return err_set(err, ERR_FORMAT, "%s is not a number", full);
    }
    if (!(*out >= 0.0) || *out > INT32_MAX || *out != floor(*out)) {
        return err_set(err, ERR_FORMAT, "%s is %g, which is not a number of layers", full, *out);
    }
    return OK;
}

enum status gguf_count_layers(const struct gguf *g, int32_t *layers, int32_t *drafts,
                              struct err *err)
{
    char arch[GGUF_ARCH_BYTES];
    double all = -1.0, last = 0.0;
    TRY(gguf_architecture(g, arch, err));
    TRY(count(g, arch, "block_count", &all, err));
    TRY(count(g, arch, "nextn_predict_layers", &last, err));
    if (all <= last) {
        return err_set(err, ERR_FORMAT, "%s.block_count leaves no layers besides %g that draft",
                       arch, last);
    }
    *layers = (int32_t)(all - last);
    *drafts = (int32_t)last;
    return OK;
}
