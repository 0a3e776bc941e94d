// SPDX-License-Identifier: Apache-2.0
/* How a pooled vector passes through its matrices. */
#include "engine/model/pooling.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool pool_act_named(const char *name, enum pool_act *out)
{
    static const struct {
        const char *name;
        enum pool_act act;
    } rows[] = {{"identity", POOL_ACT_NONE}, {"linear", POOL_ACT_NONE}, {"tanh", POOL_ACT_TANH},
                {"relu", POOL_ACT_RELU},     {"gelu", POOL_ACT_GELU},   {"silu", POOL_ACT_SILU},
                {"swish", POOL_ACT_SILU}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcasecmp(rows[i].name, name) == 0) {
            *out = rows[i].act;
            return true;
        }
    }
    return false;
}

static float activated(enum pool_act act, float x)
{
    switch (act) {
    case POOL_ACT_NONE: return x;
    case POOL_ACT_TANH: return tanhf(x);
    case POOL_ACT_RELU: return greater(x, 0.0f);
    case POOL_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case POOL_ACT_SILU: return x / (1.0f + expf(-x));
    }
    return x;
}

static void norm_row(const struct pool_step *s, float *x)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < s->n_out; i++) {
        sum += (double)x[i];
    }
    const double mean = sum / s->n_out;
    for (int32_t i = 0; i < s->n_out; i++) {
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    const double scale = 1.0 / sqrt(squares / s->n_out + (double)s->eps);
    for (int32_t i = 0; i < s->n_out; i++) {
        x[i] = (float)(((double)x[i] - mean) * scale) * s->norm[i];
        x[i] += s->norm_bias ? s->norm_bias[i] : 0.0f;
    }
}

static void run_step(const struct pool_step *s, const float *x, float *y)
{
    for (int32_t k = 0; k < s->n_out; k++) {
        y[k] = 0.0f;
    }
    for (int32_t i = 0; i < s->n_in; i++) {
        const float *column = s->columns + (size_t)i * (size_t)s->n_out;
        for (int32_t k = 0; k < s->n_out; k++) {
            y[k] += x[i] * column[k];
        }
    }
    for (int32_t k = 0; k < s->n_out; k++) {
        y[k] = activated(s->act, y[k] + (s->bias ? s->bias[k] : 0.0f));
    }
    if (s->norm) {
        norm_row(s, y);
    }
}

int32_t pooling_width(const struct pooling *p, int32_t hidden)
{
    return p->n_steps > 0 ? p->steps[p->n_steps - 1].n_out : hidden;
}

void pooling_apply(const struct pooling *p, const float *x, int32_t hidden, float *out)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        run_step(&p->steps[i], x, p->room[i % 2]);
        x = p->room[i % 2];
    }
    memmove(out, x, (size_t)pooling_width(p, hidden) * sizeof *out); // they may be the same
}

static float *vector_of(const struct weight_part *p)
{
    float *out = NULL;
    if (p) {
        out = xmalloc((size_t)p->n_cols * sizeof *out);
        for (int64_t i = 0; i < p->n_cols; i++) {
            out[i] = weight_part_get(p, 0, i);
        }
    }
    return out;
}

enum status pooling_add(struct pooling *p, const struct pool_parts *parts, enum pool_act act,
                        float eps, struct err *err)
{
    const struct weight_part *m = parts->matrix;
    const size_t n = (size_t)m->n_rows * (size_t)m->n_cols;
    if (p->n_steps == MAX_POOL_STEPS) {
        return err_set(err, ERR_UNSUPPORTED, "more than %d dense modules", MAX_POOL_STEPS);
    }
    float *columns = mem_try_calloc(n, sizeof *columns);
    if (!columns) {
        return err_set(err, ERR_NOMEM, "no memory for a dense module");
    }
    for (int64_t row = 0; row < m->n_rows; row++) {
        for (int64_t col = 0; col < m->n_cols; col++) {
            columns[col * m->n_rows + row] = weight_part_get(m, row, col);
        }
    }
    p->steps[p->n_steps++] = (struct pool_step){.n_in = (int32_t)m->n_cols,
                                                .n_out = (int32_t)m->n_rows,
                                                .columns = columns,
                                                .bias = vector_of(parts->bias),
                                                .norm = vector_of(parts->norm),
                                                .norm_bias = vector_of(parts->norm_bias),
                                                .act = act,
                                                .eps = eps};
    for (int i = 0; i < 2; i++) {
        int32_t widest = 1;
        for (int32_t k = 0; k < p->n_steps; k++) {
            widest = greater(p->steps[k].n_out, widest);
        }
        free(p->room[i]);
        p->room[i] = xcalloc((size_t)widest, sizeof *p->room[i]);
    }
    return OK;
}

void pooling_deinit(struct pooling *p)
{
    for (int32_t i = 0; i < p->n_steps; i++) {
        free(p->steps[i].columns);
        free(p->steps[i].bias);
        free(p->steps[i].norm);
        free(p->steps[i].norm_bias);
    }
    free(p->room[0]);
    free(p->room[1]);
    *p = (struct pooling){0};
}
