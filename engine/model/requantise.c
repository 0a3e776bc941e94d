// SPDX-License-Identifier: Apache-2.0
#include "engine/model/requantise.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/words.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 128, SMALL_GROUP = 32, MAX_THREADS = 16 };
enum { E4M3_MOST = 448, E4M3_MOST_CODE = 0x7E, I8_MOST = 127 };

/* A matrix that is being quantised. Bands of BLOCK rows are independent of each other. */
struct work {
    const struct weight_part *from;
    struct requantise *q;
    int64_t group; // number of inputs that share a scale
    int64_t n_groups, row_bytes;
    uint8_t *codes; // [n_rows, row_bytes]
    float *scales;  // [n_rows, n_groups]; with blocks there is one row per band
};

/* ---- numbers ------------------------------------------------------------------------------ */

/* Rounds to nearest even, as cpu_inputs.c does. */
static uint8_t e4m3_code(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {fabsf(x)};
    const uint8_t sign = signbit(x) ? 0x80 : 0;
    if (!(v.f < (float)E4M3_MOST)) {
        return (uint8_t)(sign | E4M3_MOST_CODE);
    }
    if (v.f < 0.015625f) { // subnormal, or rounds up to the smallest normal value
        return (uint8_t)(sign | (uint32_t)lrintf(v.f * 512.0f));
    }
    v.u += 0x7FFFF + (v.u >> 20 & 1);
    return (uint8_t)(sign | ((v.u >> 23) - 120) << 3 | (v.u >> 20 & 7));
}

static float to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    v.u = (v.u + 0x7FFF + (v.u >> 16 & 1)) & 0xFFFF0000u;
    return v.f;
}

static float largest_of(const float *w, int64_t n, float largest)
{
    for (int64_t i = 0; i < n; i++) {
        largest = greater(fabsf(w[i]), largest);
    }
    return largest;
}

/* If all values are zero, the scale is 1, because a scale of 0 would be invalid. */
static float scale_for(enum requantise_kind kind, float largest)
{
    if (!(largest > 0.0f)) {
        return 1.0f;
    }
    if (kind == REQUANTISE_INT4) {
        return to_bf16(largest / 7.5f);
    }
    return largest / (float)(kind == REQUANTISE_FP8 ? E4M3_MOST : I8_MOST);
}

static int32_t whole_code(float x, int32_t least, int32_t most)
{
    const float v = rintf(x);
    if (!(v > (float)least)) {
        return least;
    }
    return v < (float)most ? (int32_t)v : most;
}

static void put_codes(enum requantise_kind kind, const float *w, int64_t first, int64_t n,
                      float scale, uint8_t *row)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = first + i;
        const float x = w[i] / scale;
        if (kind == REQUANTISE_FP8) {
            row[k] = e4m3_code(x);
        } else if (kind == REQUANTISE_INT8) {
            row[k] = (uint8_t)whole_code(x, -I8_MOST, I8_MOST);
        } else {
            row[k / 2] |= (uint8_t)((uint32_t)(whole_code(x, -8, 7) + 8) << (k % 2 * 4));
        }
    }
}

/* ---- a matrix ----------------------------------------------------------------------------- */

/* Works on BLOCK rows at a time: with square blocks they share scales, and a band of floats fits
 * into the cache. */
static void quantise_band(const struct work *w, int64_t band, float *values)
{
    const struct weight_part *p = w->from;
    const int64_t first = band * BLOCK, n_in = p->n_cols;
    const int64_t n = lesser(p->n_rows - first, BLOCK);
    const int64_t in_common = w->q->blocks ? n : 1; // number of rows that share a scale
    for (int64_t r = 0; r < n; r++) {
        weight_part_read(p, first + r, 0, n_in, values + r * n_in);
    }
    for (int64_t r = 0; r < n; r += in_common) {
        const int64_t scale_row = w->q->blocks ? band : first + r;
        for (int64_t g = 0; g < w->n_groups; g++) {
            const int64_t at = g * w->group;
            const int64_t width = lesser(n_in - at, w->group);
            float largest = 0.0f;
            for (int64_t i = 0; i < in_common; i++) {
                largest = largest_of(values + (r + i) * n_in + at, width, largest);
            }
            const float scale = scale_for(w->q->kind, largest);
            w->scales[scale_row * w->n_groups + g] = scale;
            for (int64_t i = 0; i < in_common; i++) {
                put_codes(w->q->kind, values + (r + i) * n_in + at, at, width, scale,
                          w->codes + (first + r + i) * w->row_bytes);
            }
        }
    }
}

struct worker {
    pthread_t thread;
    const struct work *work;
    int64_t first, step;
};

static void *run_worker(void *arg)
{
    const struct worker *me = arg;
    const struct weight_part *p = me->work->from;
    float *values = xmalloc((size_t)(BLOCK * p->n_cols) * sizeof *values);
    for (int64_t band = me->first; band * BLOCK < p->n_rows; band += me->step) {
        quantise_band(me->work, band, values);
    }
    free(values);
    return NULL;
}

/* If a thread cannot be created, the caller's thread works on its bands. */
static void quantise(const struct work *w)
{
    struct worker workers[MAX_THREADS];
    const int64_t bands = (w->from->n_rows + BLOCK - 1) / BLOCK;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    n = greater(1, n);
    n = lesser(MAX_THREADS, n);
    if (bands < n) {
        n = (long)bands;
    }
    bool started[MAX_THREADS] = {false};
    for (long i = 0; i < n; i++) {
        workers[i] = (struct worker){.work = w, .first = i, .step = n};
        started[i] =
            i > 0 && pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0;
    }
    for (long i = 0; i < n; i++) {
        if (!started[i]) {
            run_worker(&workers[i]);
        }
    }
    for (long i = 0; i < n; i++) {
        if (started[i]) {
            pthread_join(workers[i].thread, NULL);
        }
    }
}

static void *keep(struct requantise *q, void *p)
{
    if (q->n_made == q->room) {
        q->room = q->room ? 2 * q->room : 64;
        q->made = xrealloc(q->made, (size_t)q->room * sizeof *q->made);
    }
    q->made[q->n_made++] = p;
    return p;
}

int64_t requantise_group(const struct requantise *q, int64_t n_in)
{
    if (q->kind != REQUANTISE_INT4) {
        return q->blocks ? BLOCK : n_in;
    }
    if (n_in % BLOCK == 0) {
        return BLOCK;
    }
    return n_in % SMALL_GROUP == 0 ? SMALL_GROUP : n_in;
}

static const struct {
    const char *format;
    enum dtype dtype;
    enum packing packing;
    int32_t zero;
    enum input_numbers inputs;
} kinds[] = {
    [REQUANTISE_FP8] = {"fp8", DT_E4M3, PACK_NONE, 0, INPUT_E4M3},
    [REQUANTISE_INT4] = {"int4", DT_U4, PACK_BYTES, 8, INPUT_AS_IT_IS},
    [REQUANTISE_INT8] = {"int8", DT_I8, PACK_NONE, 0, INPUT_I8},
};

/* The codec of the codes and scales. */
static struct weight_part describe(const struct work *w)
{
    const enum requantise_kind kind = w->q->kind;
    struct weight_part p =
        weight_part_plain(NULL, kinds[kind].dtype, w->from->n_rows, w->from->n_cols, w->row_bytes);
    struct weight_codec *c = &p.codec;
    c->format = kinds[kind].format;
    c->values.packing = kinds[kind].packing;
    c->scales = (struct number_grid){.dtype = DT_F32, .row_stride = w->n_groups, .col_stride = 1};
    c->zero = kinds[kind].zero;
    c->block_rows = w->q->blocks ? BLOCK : 1;
    c->block_cols = w->group;
    if (kinds[kind].inputs != INPUT_AS_IT_IS) {
        p.inputs = (struct input_rule){.numbers = kinds[kind].inputs,
                                       .from_row = true,
                                       .group = w->q->blocks ? BLOCK : 0,
                                       .n_inputs = w->from->n_cols};
    }
    return p;
}

enum requantise_kind requantise_named(const char *name)
{
    return (enum requantise_kind)(words_find(REQUANTISE_AT_LOAD, name) + 1);
}

void requantise_part(struct requantise *q, struct weight_part *part)
{
    if (q->kind == REQUANTISE_NOT || !weight_part_is_plain(part)) {
        return;
    }
    const struct weight_part from = *part;
    struct work w = {.from = &from, .q = q, .group = requantise_group(q, from.n_cols)};
    w.n_groups = (from.n_cols + w.group - 1) / w.group;
    if (q->kind == REQUANTISE_INT4) {
        w.row_bytes = (from.n_cols + 1) / 2;
    } else {
        w.row_bytes = from.n_cols;
    }
    *part = describe(&w);
    if (weight_part_is_dummy(&from)) {
        part->codec.scales.row_stride = part->codec.scales.col_stride = 0;
        return;
    }
    int64_t scale_rows;
    if (q->blocks) {
        scale_rows = (from.n_rows + BLOCK - 1) / BLOCK;
    } else {
        scale_rows = from.n_rows;
    }
    w.codes = keep(q, xcalloc((size_t)from.n_rows, (size_t)w.row_bytes));
    w.scales = keep(q, xcalloc((size_t)(scale_rows * w.n_groups), sizeof *w.scales));
    quantise(&w);
    part->codec.values.data = w.codes;
    part->codec.scales.data = w.scales;
}

void requantise_clear(struct requantise *q)
{
    for (int32_t i = 0; i < q->n_made; i++) {
        free(q->made[i]);
    }
    q->n_made = 0;
}

void requantise_deinit(struct requantise *q)
{
    requantise_clear(q);
    free(q->made);
    *q = (struct requantise){.kind = REQUANTISE_NOT};
}
