// SPDX-License-Identifier: Apache-2.0
/* Models with several residual streams per row, and MLPs of which only the gates that stand out are
 * open. One item per row. */
#include "cpu/cpu_internal.h"

#include "engine/base/minmax.h"

#include <math.h>
#include <string.h>

/* Sums have this many chains, so that they do not wait for each addition. */
enum { CHAINS = 16 };

/* Adds up the chains as a balanced tree. */
static float joined(float *chains)
{
    for (int32_t n = CHAINS / 2; n > 0; n /= 2) {
        for (int32_t i = 0; i < n; i++) {
            chains[i] += chains[i + n];
        }
    }
    return chains[0];
}

static float mean_of(const float *x, int32_t n)
{
    float chains[CHAINS] = {0};
    int32_t i = 0;
    for (; i + CHAINS <= n; i += CHAINS) {
        for (int32_t k = 0; k < CHAINS; k++) {
            chains[k] += x[i + k];
        }
    }
    for (int32_t k = 0; i + k < n; k++) {
        chains[k] += x[i + k];
    }
    return joined(chains) / (float)n;
}

/* The mean square of the distances from `from`. */
static float square_of(const float *x, int32_t n, float from)
{
    float chains[CHAINS] = {0};
    int32_t i = 0;
    for (; i + CHAINS <= n; i += CHAINS) {
        for (int32_t k = 0; k < CHAINS; k++) {
            const float d = x[i + k] - from;
            chains[k] += d * d;
        }
    }
    for (int32_t k = 0; i + k < n; k++) {
        const float d = x[i + k] - from;
        chains[k] += d * d;
    }
    return joined(chains) / (float)n;
}

struct streams_job {
    const struct cpu_kernels *kernels;
    const struct streams_args *a;
};

/* The row's n_out coefficients. */
static void coefs_of(const struct streams_job *job, int32_t row, int32_t n_out, float *out)
{
    const struct streams_args *a = job->a;
    const float *in = tensor_row(&a->in, row);
    float m[MAX_STREAMS];
    for (int32_t k = 0; k < a->n; k++) {
        const float *router = a->router->vector + (int64_t)k * a->width;
        m[k] = tanhf(a->router_scale * job->kernels->dot(in, router, a->width));
    }
    for (int32_t i = 0; i < n_out; i++) {
        out[i] = 0.0f;
        for (int32_t k = 0; k < a->n; k++) {
            out[i] += a->coefs->vector[i * a->n + k] * m[k];
        }
    }
}

/* Columns whose old values are kept while the streams change. */
enum { COLUMNS = 128 };

static void before_layer(const struct streams_job *job, int32_t row)
{
    const struct streams_args *a = job->a;
    const int32_t n = a->n, width = a->width;
    float c[MAX_STREAMS * MAX_STREAMS], old[MAX_STREAMS][COLUMNS];
    float *streams = tensor_row(&a->streams, row), *x = tensor_row(&a->x, row);
    coefs_of(job, row, n * n, c);
    for (int32_t at = 0; at < width; at += COLUMNS) {
        const int32_t m = lesser(width - at, COLUMNS);
        for (int32_t j = 0; j < n; j++) {
            memcpy(old[j], streams + (int64_t)j * width + at, (size_t)m * sizeof(float));
        }
        for (int32_t i = 0; i < n; i++) {
            float *to = streams + (int64_t)i * width + at;
            for (int32_t j = 0; j < n; j++) {
                job->kernels->add_scaled(to, old[j], c[i * n + j], m);
            }
        }
    }
    memcpy(x, streams + (int64_t)a->active * width, (size_t)width * sizeof(float));
}

static void after_layer(const struct streams_job *job, int32_t row)
{
    const struct streams_args *a = job->a;
    float c[MAX_STREAMS], *streams = tensor_row(&a->streams, row), *x = tensor_row(&a->x, row);
    const float *active = streams + (int64_t)a->active * a->width;
    coefs_of(job, row, a->n, c);
    job->kernels->add_scaled(x, active, -1.0f, a->width);
    for (int32_t i = 0; i < a->n; i++) {
        job->kernels->add_scaled(streams + (int64_t)i * a->width, x, 1.0f + c[i], a->width);
    }
    for (int32_t at = 0; at < a->width; at++) {
        x[at] = a->scale ? active[at] * a->scale->vector[at] : active[at];
    }
}

static void streams_item(void *arg, int32_t row, int32_t thread)
{
    const struct streams_job *job = arg;
    (void)thread;
    if (job->a->after) {
        after_layer(job, row);
    } else {
        before_layer(job, row);
    }
}

enum status cpu_streams(struct backend *be, const struct streams_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct streams_job job = {cpu->kernels, a};
    ASSERT(a->n > 0 && a->n <= MAX_STREAMS && a->active >= 0 && a->active < a->n);
    pool_run(cpu->pool, a->n_rows, streams_item, &job);
    return OK;
}

static void match_item(void *arg, int32_t row, int32_t thread)
{
    const struct rms_match_args *a = arg;
    const float *x = tensor_row(&a->x, row), *like = tensor_row(&a->like, row);
    float *out = tensor_row(&a->out, row);
    (void)thread;
    const float own = square_of(x, a->width, 0.0f);
    const float wanted = sqrtf(square_of(like, a->width, 0.0f));
    const float factor = wanted / sqrtf(own < a->floor ? a->floor : own);
    for (int32_t i = 0; i < a->width; i++) {
        out[i] = x[i] * factor;
    }
}

enum status cpu_rms_match(struct backend *be, const struct rms_match_args *a)
{
    struct rms_match_args args = *a;
    pool_run(cpu_of(be)->pool, a->n_rows, match_item, &args);
    return OK;
}

/* What is not a number stays so. */
static void cutoff_item(void *arg, int32_t row, int32_t thread)
{
    const struct cutoff_args *a = arg;
    float *x = tensor_row(&a->x, row);
    (void)thread;
    const float mean = mean_of(x, a->width);
    const float cut = mean + a->deviations * sqrtf(square_of(x, a->width, mean));
    for (int32_t i = 0; i < a->width; i++) {
        const float over = x[i] - cut;
        x[i] = over < 0.0f ? 0.0f : over;
    }
}

enum status cpu_cutoff(struct backend *be, const struct cutoff_args *a)
{
    struct cutoff_args args = *a;
    pool_run(cpu_of(be)->pool, a->n_rows, cutoff_item, &args);
    return OK;
}
