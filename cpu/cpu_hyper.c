// SPDX-License-Identifier: Apache-2.0
/* Hyper-connections: what lies between two sub-layers, row by row. The gates are sums over all
 * streams of a row, each one chain, so a row's bits do not depend on the batch. */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* Columns whose streams are mixed among themselves at a time. */
enum { MIXED_COLUMNS = 256, HYPER_ROWS = 2 * MAX_HYPER + MAX_HYPER * MAX_HYPER };

struct hyper_job {
    const struct cpu_kernels *kernels;
    const struct hyper_args *a;
};

/* stream[k] = sum over j of cross[j][k] * stream[j], in the order of j. */
static void cross_streams(const struct hyper_job *job, const float *cross, float *streams)
{
    const struct hyper_args *a = job->a;
    float old[MAX_HYPER][MIXED_COLUMNS];
    for (int32_t first = 0; first < a->width; first += MIXED_COLUMNS) {
        const int32_t n = lesser(MIXED_COLUMNS, a->width - first);
        for (int32_t j = 0; j < a->n; j++) {
            float *stream = streams + (int64_t)j * a->width + first;
            memcpy(old[j], stream, (size_t)n * sizeof *stream);
            memset(stream, 0, (size_t)n * sizeof *stream);
        }
        for (int32_t k = 0; k < a->n; k++) {
            for (int32_t j = 0; j < a->n; j++) {
                job->kernels->add_scaled(streams + (int64_t)k * a->width + first, old[j],
                                         cross[j * a->n + k], n);
            }
        }
    }
}

/* Adds a sub-layer's result to the streams, with the gates that were computed before it. */
static void add_result(const struct hyper_job *job, const float *gates, const float *delta,
                       float *streams)
{
    const struct hyper_args *a = job->a;
    if (a->n_sinkhorn > 0 && !a->begins) {
        cross_streams(job, gates + a->n, streams);
    }
    for (int32_t k = 0; k < a->n; k++) {
        float *stream = streams + (int64_t)k * a->width;
        if (a->begins) {
            memcpy(stream, delta, (size_t)a->width * sizeof *stream);
        } else {
            job->kernels->add_scaled(stream, delta, gates[k], a->width);
        }
    }
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* Divides n numbers, `step` apart, by (their sum + eps). */
static void normalise(float *x, int32_t n, int32_t step, float eps)
{
    float sum = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i * step];
    }
    for (int32_t i = 0; i < n; i++) {
        x[i * step] /= sum + eps;
    }
}

/* Makes a matrix doubly stochastic: first the softmax of its rows, then Sinkhorn's iterations. */
static void sinkhorn(const struct hyper_args *a, float *cross)
{
    const int32_t n = a->n;
    for (int32_t j = 0; j < n; j++) {
        float *row = cross + j * n, most = row[0];
        for (int32_t k = 1; k < n; k++) {
            most = greater(most, row[k]);
        }
        for (int32_t k = 0; k < n; k++) {
            row[k] = expf(row[k] - most);
        }
        normalise(row, n, 1, 0.0f);
        for (int32_t k = 0; k < n; k++) {
            row[k] += a->eps;
        }
    }
    for (int32_t i = 0; i < a->n_sinkhorn; i++) {
        for (int32_t j = 0; j < n && i > 0; j++) {
            normalise(cross + j * n, n, 1, a->eps);
        }
        for (int32_t k = 0; k < n; k++) {
            normalise(cross + k, n, n, a->eps);
        }
    }
}

static int32_t rows_of_fn(const struct hyper_args *a)
{
    if (a->ends) {
        return a->n;
    }
    return a->n_sinkhorn > 0 ? a->n * (2 + a->n) : 2 * a->n;
}

/* The gates of a row: before, which only this op reads, and those for the next op. */
static void make_gates(const struct hyper_job *job, const float *streams, float *before,
                       float *gates)
{
    const struct hyper_args *a = job->a;
    const int32_t n = a->n, all = n * a->width, n_rows = rows_of_fn(a);
    const float squares = job->kernels->dot(streams, streams, all);
    const float factor = 1.0f / sqrtf(squares / (float)all + a->norm_eps);
    float z[HYPER_ROWS];
    for (int32_t i = 0; i < n_rows; i++) {
        const float sum = job->kernels->dot(a->fn->vector + (int64_t)i * all, streams, all);
        z[i] = sum * factor * a->scale->vector[lesser(i / n, 2)] + a->base->vector[i];
    }
    for (int32_t k = 0; k < n; k++) {
        before[k] = sigmoid(z[k]) + a->eps;
        if (!a->ends) {
            gates[k] = a->magnitude * sigmoid(z[n + k]) + a->after_eps;
        }
    }
    if (a->n_sinkhorn > 0 && !a->ends) {
        memcpy(gates + n, z + 2 * n, (size_t)(n * n) * sizeof *z);
        sinkhorn(a, gates + n);
    }
}

/* x is kept where the caller wants it, or else in `out`, which the norm then overwrites. */
static void read_streams(const struct hyper_job *job, const float *streams, const float *before,
                         int32_t row)
{
    const struct hyper_args *a = job->a;
    const bool has_out = a->out.mem.p != NULL;
    float *out = has_out ? tensor_row(&a->out, row) : NULL;
    float *x = a->x.mem.p ? tensor_row(&a->x, row) : out;
    memset(x, 0, (size_t)a->width * sizeof *x);
    for (int32_t k = 0; k < a->n; k++) {
        job->kernels->add_scaled(x, streams + (int64_t)k * a->width, before[k], a->width);
    }
    if (has_out) {
        job->kernels->norm(NORM_RMS, x, a->norm ? a->norm->vector : NULL, 0.0f, NULL, a->norm_eps,
                           a->width, out);
    }
}

static void hyper_item(void *arg, int32_t row, int32_t thread)
{
    const struct hyper_job *job = arg;
    const struct hyper_args *a = job->a;
    float *streams = tensor_row(&a->streams, row), before[MAX_HYPER];
    float *gates = a->gates.mem.p ? tensor_row(&a->gates, row) : NULL;
    (void)thread;
    if (a->delta.mem.p) {
        add_result(job, gates, tensor_row(&a->delta, row), streams);
    }
    if (a->fn) {
        make_gates(job, streams, before, gates);
        read_streams(job, streams, before, row);
    }
}

/* One item per row. */
enum status cpu_hyper(struct backend *be, const struct hyper_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct hyper_job job = {cpu->kernels, a};
    ASSERT(a->n >= 1 && a->n <= MAX_HYPER && a->streams.stride >= a->n * a->width);
    ASSERT(a->gates.mem.p || ((a->begins || !a->delta.mem.p) && (a->ends || !a->fn)));
    ASSERT(!a->fn || a->x.mem.p || a->out.mem.p);
    pool_run(cpu->pool, a->n_rows, hyper_item, &job);
    return OK;
}
