// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/maker.h"

#include "engine/base/optional.h"

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
