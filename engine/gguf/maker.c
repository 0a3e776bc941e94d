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

bool maker_number_of(const struct gguf *g, const char *full_key, size_t layer, double *out)
{
    const struct gguf_value *v = gguf_get(g, full_key);
    if (!v || !v->is_list) {
        return v && gguf_get_number(g, full_key, out);
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

bool maker_number_at(const struct maker *m, const char *key, size_t layer, double *out)
{
    char full[96];
    maker_full_key(m, key, full);
    return maker_number_of(m->g, full, layer, out);
}

bool maker_has_key(const struct maker *m, const char *key)
{
    char full[96];
    maker_full_key(m, key, full);
    return gguf_get(m->g, full) != NULL;
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

enum status maker_put_renamed(const struct maker *m, const struct rename *r)
{
    char full[96];
    bool found, flag;
    double v;
    if (!r->as) {
        return OK;
    }
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
        TRY(maker_put_renamed(m, rows));
    }
    return OK;
}

bool maker_has_tensor(const struct maker *m, const char *name)
{
    return gguf_find_tensor(m->g, name) != NULL;
}

enum status maker_put_switch(const struct maker *m, const char *key, const char *name)
{
    char full[96];
    maker_full_key(m, key, full);
    if (!gguf_get(m->g, full)) {
        maker_put_flag(m, name, false);
        return OK;
    }
    const struct rename row = {key, name, FLAG};
    return maker_put_renamed(m, &row);
}

enum status maker_has_window(const struct maker *m, size_t layer, double every, bool *out)
{
    static const char key[] = "attention.sliding_window_pattern";
    char full[96];
    double listed = 0;
    maker_full_key(m, key, full);
    const struct gguf_value *v = gguf_get(m->g, full);
    if (v && v->is_list) {
        if (!maker_number_at(m, key, layer, &listed)) {
            return err_set(m->err, ERR_FORMAT, "%s has no number for layer %zu", full, layer);
        }
        *out = listed != 0.0;
        return OK;
    }
    if (v && (!gguf_get_number(m->g, full, &every) || every != floor(every) || !(every >= 0.0))) {
        return err_set(m->err, ERR_FORMAT, "%s is not a number of layers", full);
    }
    const double without = m->arch->full_first ? 0.0 : every - 1.0;
    *out = !(every > 0.0) || fmod((double)layer, every) != without;
    return OK;
}

enum status maker_put_windows(const struct maker *m, double every)
{
    int32_t layers, drafts;
    if (!(maker_number_or(m, "attention.sliding_window", 0) > 0.0)) {
        return OK;
    }
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"layer_types\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        bool window = false;
        TRY(maker_has_window(m, (size_t)i, every, &window));
        buf_printf(m->out, "%s\"%s_attention\"", text_if(i > 0, ","), window ? "sliding" : "full");
    }
    buf_puts(m->out, "],");
    return OK;
}

enum status maker_need_windows(const struct maker *m, double every)
{
    int32_t layers, drafts;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        bool window = false;
        TRY(maker_has_window(m, (size_t)i, every, &window));
        if (window != (fmod(i, every) != every - 1.0)) {
            return err_set(m->err, ERR_UNSUPPORTED,
                           "%s.attention.sliding_window_pattern: full attention in other layers "
                           "than every %g is not supported",
                           m->arch->name, every);
        }
    }
    if (!(maker_number_or(m, "attention.sliding_window", 0) > 0.0)) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s.attention.sliding_window is missing or 0, which is not supported",
                       m->arch->name);
    }
    return maker_put_windows(m, every);
}

enum status maker_need_positions(const struct maker *m)
{
    char full[96];
    bool rotated = true;
    maker_full_key(m, "rope.scaling.finetuned", full);
    gguf_get_bool(m->g, full, &rotated);
    if (!rotated) {
        return err_set(m->err, ERR_UNSUPPORTED,
                       "%s is false: attention without positions is not supported", full);
    }
    return OK;
}

enum status maker_need_normed(const struct maker *m)
{
    char full[96];
    bool normed = false;
    maker_full_key(m, "expert_weights_norm", full);
    gguf_get_bool(m->g, full, &normed);
    if (!normed) {
        return err_set(m->err, ERR_UNSUPPORTED, "%s is false, which is not supported", full);
    }
    return OK;
}

double maker_share(double rotated, double head)
{
    return rotated < head ? (rotated + 0.25) / head : 1.0;
}

enum status maker_put_list(const struct maker *m, const char *full_key, const char *as)
{
    int32_t layers, drafts;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_printf(m->out, "\"%s\":[", as);
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        double v;
        if (!maker_number_of(m->g, full_key, (size_t)i, &v)) {
            return err_set(m->err, ERR_FORMAT, "%s has no number for layer %d", full_key, i);
        }
        buf_puts(m->out, text_if(i > 0, ","));
        buf_put_double(m->out, v);
    }
    buf_puts(m->out, "],");
    return OK;
}

enum status maker_put_granite_scale(const struct maker *m)
{
    double heads, width;
    bool found;
    TRY(maker_need_number(m, "attention.head_count", &heads));
    TRY(maker_need_number(m, "embedding_length", &width));
    double key = width / heads, scale;
    TRY(maker_get_number(m, "attention.key_length", &key, &found));
    TRY(maker_get_number(m, "attention.scale", &scale, &found));
    if (!found) {
        maker_put_number(m, "attention_multiplier", 1 / sqrt(key));
    }
    return OK;
}

enum status maker_put_experts(const struct maker *m)
{
    int32_t layers, drafts;
    TRY(gguf_count_layers(m->g, &layers, &drafts, m->err));
    buf_puts(m->out, "\"mlp_layer_types\":[");
    for (int32_t i = 0; i < layers && i < MOST_LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        buf_printf(m->out, "%s\"%s\"", text_if(i > 0, ","),
                   maker_has_tensor(m, name) ? "sparse" : "dense");
    }
    buf_puts(m->out, "],");
    return OK;
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
