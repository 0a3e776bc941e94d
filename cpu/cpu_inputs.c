// SPDX-License-Identifier: Apache-2.0
/* Rounds inputs before a product if the weight's format requires it (struct input_rule). They are
 * rounded to few bits and converted back, so the product itself is the usual one. A row's rounded
 * values depend only on that row; if ranks share the row, on all ranks' parts of it. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* ---- the rule of a weight ----------------------------------------------------------------- */

static bool same_rule(const struct input_rule *a, const struct input_rule *b)
{
    return a->numbers == b->numbers && a->group == b->group && a->from_row == b->from_row &&
           a->power_of_two == b->power_of_two && a->asymmetric == b->asymmetric &&
           a->limit == b->limit;
}

static float larger(float a, float b)
{
    return greater(a, b);
}

/* Reads the stored scales. All parts of a matrix read the same rows, so they get the largest of
 * their scales. An expert that was never reached during calibration has no scale and gets the
 * largest of all. */
static void read_scales(const struct weight_desc *d, struct weight *w)
{
    float largest = 0.0f;
    int32_t per_matrix = d->n_parts / w->n_matrices;
    for (int32_t i = 0; i < d->n_parts; i++) {
        const struct input_rule *rule = &d->parts[i].inputs;
        struct input_scale *s = &w->input_scales[i / per_matrix];
        *s = rule->scale > s->scale ? (struct input_scale){rule->scale, rule->zero} : *s;
        largest = larger(largest, rule->scale);
    }
    for (int32_t i = 0; i < w->n_matrices; i++) {
        struct input_scale *s = &w->input_scales[i];
        if (!(s->scale > 0.0f)) {
            s->scale = largest;
        }
    }
}

enum status cpu_inputs_open(struct cpu_backend *cpu, const struct weight_desc *d, struct weight *w)
{
    struct input_rule rule = d->parts[0].inputs;
    if (d->kind != WEIGHT_LINEAR && d->kind != WEIGHT_EXPERTS) {
        return OK;
    }
    for (int32_t i = 1; i < d->n_parts; i++) {
        if (!same_rule(&rule, &d->parts[i].inputs)) {
            // The fused parts have different rules but read the same rows, so the rows are not
            // rounded.
            return OK;
        }
    }
    if (rule.numbers == INPUT_AS_IT_IS || d->n_parts % w->n_matrices != 0 || w->dtype == DT_F32) {
        return OK;
    }
    w->inputs = rule;
    w->input_scales = cpu_memory(cpu, (size_t)w->n_matrices * sizeof *w->input_scales);
    if (!w->input_scales) {
        return ERR_NOMEM;
    }
    read_scales(d, w);
    const struct weight_part *p = &d->parts[0];
    int64_t total = p->inputs.n_inputs, group = rule.group > 0 ? rule.group : total;
    w->first_input = p->first_col;
    w->input_groups = (total + group - 1) / group;
    w->shared_ranges = rule.from_row && cpu->base.n_ranks > 1 && w->n_in < total && w->n_in % group;
    if (!w->shared_ranges) {
        return OK;
    }
    size_t floats = (size_t)w->input_groups * 2 * (size_t)(cpu->base.n_ranks + 1);
    return cpu_need_ranges(cpu, floats * BLOCKS_PACK_ROWS);
}

enum status cpu_need_ranges(struct cpu_backend *cpu, size_t n_floats)
{
    if (n_floats <= cpu->n_range_floats) {
        return OK;
    }
    float *p = cpu_memory(cpu, n_floats * sizeof *p);
    if (!p) {
        return ERR_NOMEM;
    }
    cpu_memory_free(cpu, (char *)cpu->ranges);
    cpu->ranges = p;
    cpu->n_range_floats = n_floats;
    return OK;
}

/* ---- scales ------------------------------------------------------------------------------- */

enum { E4M3_MOST = 448, E2M1_MOST = 6, I8_MOST = 127 };
#define LEAST_GROUP_SCALE 1e-10f

/* Rounds to E4M3, ties to even: three fraction bits from 2^-6 on, and multiples of 2^-9 below
 * that. */
static float to_e4m3(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {fabsf(x)};
    if (v.f < 0.015625f) {
        v.f = v.f + 16384.0f - 16384.0f;
    } else {
        v.u = (v.u + 0x7FFFF + (v.u >> 20 & 1)) & 0xFFF00000u;
    }
    return copysignf(lesser(v.f, (float)E4M3_MOST), x);
}

/* Rounds to E2M1: in steps of 0.5 below 2, of 1 below 4, and of 2 above; ties to the even code. */
static float to_e2m1(float x)
{
    float a = fabsf(x);
    if (a < 2.0f) {
        a = rintf(a * 2.0f) * 0.5f;
    } else if (a < 4.0f) {
        a = rintf(a);
    } else {
        a = rintf(a * 0.5f) * 2.0f;
    }
    return copysignf(lesser(a, (float)E2M1_MOST), x);
}

/* The shared exponent of MX formats: the exponent of the largest input, rounded to one fraction
 * bit, less the exponent of 6. */
static float shared_exponent(float largest)
{
    int exponent;
    float mantissa = frexpf(largest, &exponent);
    exponent += mantissa >= 0.875f;
    return ldexpf(1.0f, exponent - 1 - 2);
}

static float power_above(float x)
{
    int exponent;
    float mantissa = frexpf(x, &exponent);
    return ldexpf(1.0f, mantissa == 0.5f ? exponent - 1 : exponent);
}

static struct input_scale dynamic_e4m3(const struct input_rule *rule, float largest)
{
    float scale = (rule->limit > 0.0f ? lesser(largest, rule->limit) : largest) / (float)E4M3_MOST;
    if (rule->group > 0) {
        scale = larger(scale, LEAST_GROUP_SCALE);
    }
    return (struct input_scale){rule->power_of_two ? power_above(scale) : scale, 0.0f};
}

static struct input_scale dynamic_i8(const struct input_rule *rule, struct input_range r)
{
    float largest = larger(-r.low, r.high);
    if (!rule->asymmetric) {
        return (struct input_scale){largest / (float)I8_MOST, 0.0f};
    }
    float low = lesser(r.low, 0.0f), high = larger(r.high, 0.0f);
    float scale = (high - low) / 255.0f;
    return (struct input_scale){scale, scale > 0.0f ? rintf(-128.0f - low / scale) : 0.0f};
}

/* The scale for inputs in that range. The scales of E2M1 groups are E4M3 values times `stored`. */
static struct input_scale scale_of(const struct input_rule *rule, struct input_scale stored,
                                   struct input_range r)
{
    float largest = larger(-r.low, r.high);
    if (!rule->from_row) {
        return stored;
    }
    switch (rule->numbers) {
    case INPUT_E4M3: return dynamic_e4m3(rule, largest);
    case INPUT_I8: return dynamic_i8(rule, r);
    default: break;
    }
    if (rule->power_of_two) {
        return (struct input_scale){largest > 0.0f ? shared_exponent(largest) : 0.0f, 0.0f};
    }
    return (struct input_scale){to_e4m3(largest / (float)E2M1_MOST / stored.scale) * stored.scale,
                                0.0f};
}

/* ---- rows --------------------------------------------------------------------------------- */

static struct input_range range_of(const float *x, int64_t n)
{
    struct input_range r = {0.0f, 0.0f};
    for (int64_t i = 0; i < n; i++) {
        r.low = lesser(x[i], r.low);
        r.high = greater(x[i], r.high);
    }
    return r;
}

/* The number of inputs from k on that are in the same group as k. Groups are counted from the
 * tensor's first input. */
static int64_t left_in_group(const struct weight *w, int64_t k)
{
    int64_t group = w->inputs.group, left = w->n_in - k;
    if (group > 0) {
        int64_t end = group - (w->first_input + k) % group;
        left = lesser(end, left);
    }
    return left;
}

static int64_t group_at(const struct weight *w, int64_t k)
{
    return w->inputs.group > 0 ? (w->first_input + k) / w->inputs.group : 0;
}

void cpu_input_ranges(const struct weight *w, const float *x, struct input_range *out)
{
    memset(out, 0, (size_t)w->input_groups * sizeof *out);
    for (int64_t k = 0, n; k < w->n_in; k += n) {
        n = left_in_group(w, k);
        out[group_at(w, k)] = range_of(x + k, n);
    }
}

/* Rounds n inputs that share a scale, and converts them back. */
static void round_some(const struct input_rule *rule, struct input_scale s, const float *x,
                       int64_t n, float *out)
{
    if (s.scale == 0.0f) { // all of its inputs are 0
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    switch (rule->numbers) {
    case INPUT_E4M3:
        for (int64_t i = 0; i < n; i++) {
            out[i] = to_e4m3(x[i] / s.scale) * s.scale;
        }
        break;
    case INPUT_I8:
        for (int64_t i = 0; i < n; i++) {
            float q = rintf(x[i] / s.scale) + s.zero;
            q = larger(lesser(q, 127.0f), -128.0f);
            out[i] = (q - s.zero) * s.scale;
        }
        break;
    default:
        for (int64_t i = 0; i < n; i++) {
            out[i] = to_e2m1(x[i] / s.scale) * s.scale;
        }
        break;
    }
}

int64_t cpu_round_inputs(const struct weight *w, int32_t matrix, const float *x,
                         const struct input_range *ranges, int64_t k, int64_t most, float *out,
                         struct input_group *group)
{
    int64_t n = left_in_group(w, k), at = group_at(w, k);
    if (group->at != at) { // this is the first piece of the group
        group->at = at;
        struct input_range r = {0.0f, 0.0f};
        if (w->inputs.from_row) {
            r = ranges ? ranges[at] : range_of(x + k, n);
        }
        group->scale = scale_of(&w->inputs, w->input_scales[matrix], r);
    }
    n = lesser(n, most);
    round_some(&w->inputs, group->scale, x + k, n, out);
    return n;
}

/* ---- ranks -------------------------------------------------------------------------------- */

struct input_range *cpu_share_ranges(struct cpu_backend *cpu, const struct weight *w,
                                     int32_t n_rows)
{
    int64_t width = w->input_groups * 2, n_ranks = cpu->base.n_ranks;
    float *all = cpu->ranges + n_rows * width;
    if (!cpu_comm_gather(cpu, cpu->ranges, width, all, width * n_ranks, n_rows, width)) {
        return NULL;
    }
    struct input_range *out = (struct input_range *)(void *)cpu->ranges;
    for (int64_t i = 0; i < n_rows * w->input_groups; i++) {
        int64_t row = i / w->input_groups, group = i % w->input_groups;
        for (int64_t r = 0; r < n_ranks; r++) {
            const float *theirs = all + (row * n_ranks + r) * width + group * 2;
            out[i].low = lesser(theirs[0], out[i].low);
            out[i].high = greater(theirs[1], out[i].high);
        }
    }
    return out;
}
