// SPDX-License-Identifier: Apache-2.0
/* Measures the machine's peak rates with the backend's own threads. */
#include "cpu/cpu_internal.h"
#include "engine/base/clock.h"
#include "engine/base/minmax.h"

struct peak_job {
    const struct cpu_backend *cpu;
    float (*spin)(int64_t n);
    int64_t rounds;
    const char *p;
    size_t n_bytes;
    _Alignas(64) float sink[1024]; // one element per item
};

enum { READ_BYTES = 1 << 20 };

static void spin_item(void *arg, int32_t item, int32_t thread)
{
    struct peak_job *job = arg;
    (void)thread;
    job->sink[item % 1024] = job->spin(job->rounds);
}

static void read_item(void *arg, int32_t item, int32_t thread)
{
    struct peak_job *job = arg;
    (void)item;
    size_t at = (size_t)item * READ_BYTES;
    size_t n = lesser(job->n_bytes - at, READ_BYTES);
    job->sink[thread] = job->cpu->kernels->read_all(job->p + at, n / 1024 * 1024);
}

/* Returns the best of several runs, because other processes may use the machine at the same
 * time. */
static double best_spin(struct peak_job *job, double flops)
{
    int32_t n = 16 * pool_n_threads(job->cpu->pool);
    double best = 0.0;
    for (int i = 0; i < 8; i++) {
        int64_t start = clock_now_ns();
        pool_run(job->cpu->pool, n, spin_item, job);
        double rate = flops * (double)job->rounds * n / (double)(clock_now_ns() - start) * 1e9;
        best = greater(rate, best);
    }
    return best;
}

static double read_weight(const struct cpu_backend *cpu, const struct weight *w)
{
    struct peak_job job = {.cpu = cpu, .p = w->packed, .n_bytes = w->packed_bytes};
    int64_t start = clock_now_ns();
    pool_run(cpu->pool, (int32_t)((w->packed_bytes + READ_BYTES - 1) / READ_BYTES), read_item,
             &job);
    return (double)(clock_now_ns() - start) * 1e-9;
}

int32_t cpu_read_weights(struct backend *be, double *seconds, int32_t max)
{
    const struct cpu_backend *cpu = cpu_of(be);
    int32_t n = 0;
    for (const struct weight *w = cpu->weights; w && n < max; w = w->next) {
        if (w->packed_bytes > 0) {
            double t = read_weight(cpu, w);
            seconds[n] = lesser(t, seconds[n]);
            n++;
        }
    }
    return n;
}

static double read_rate(const struct cpu_backend *cpu)
{
    double n_bytes = 0.0, t = 0.0;
    for (const struct weight *w = cpu->weights; w; w = w->next) {
        if (w->packed_bytes > 0) {
            n_bytes += (double)w->packed_bytes;
            t += read_weight(cpu, w);
        }
    }
    return n_bytes / t;
}

enum status cpu_peaks(struct backend *be, struct cpu_peaks *out)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct peak_job job = {.cpu = cpu, .rounds = 20000};
    job.spin = cpu->kernels->spin_fma;
    out->fma_flops_per_s = best_spin(&job, cpu->kernels->fma_flops);
    job.spin = cpu->kernels->spin_product;
    out->product_flops_per_s = best_spin(&job, cpu->kernels->product_flops);
    out->n_threads = pool_n_threads(cpu->pool);
    out->has_matrix_unit = cpu->kernels->product_flops > 2.0 * cpu->kernels->fma_flops;
    out->read_bytes_per_s = 0.0;
    for (int i = 0; i < 4; i++) {
        double rate = read_rate(cpu);
        out->read_bytes_per_s = greater(rate, out->read_bytes_per_s);
    }
    return OK;
}
