// SPDX-License-Identifier: Apache-2.0
/* Rows of the embedding table, which may be packed for use as the output head, and of the tables of
 * token types and positions. */
#include "cpu/cpu_internal.h"

struct embed_job {
    const struct cpu_backend *cpu;
    const struct embed_args *a;
};

/* x += row `at` of another table. */
static void add_row(const struct embed_job *job, const struct weight *table, int64_t at, float *x,
                    int32_t thread)
{
    float *row = (float *)job->cpu->scratch[thread].p; // large enough: see pack
    ASSERT(at >= 0 && at < table->n_out && table->n_in == job->a->table->n_in);
    cpu_weight_row(job->cpu, table, at, row);
    job->cpu->kernels->add_scaled(x, row, 1.0f, table->n_in);
}

static void embed_item(void *arg, int32_t row, int32_t thread)
{
    const struct embed_job *job = arg;
    const struct embed_args *a = job->a;
    float *x = tensor_row(&a->x, row);
    int32_t token = job->cpu->row_tokens[row];
    /* A row past the end of a sequence may read a token that was never drawn. Its result is
     * discarded. */
    if (token < 0 || token >= a->table->n_out) {
        token = 0;
    }
    cpu_weight_row(job->cpu, a->table, token, x);
    if (a->scale != 1.0f) {
        job->cpu->kernels->scale(x, a->scale, a->table->n_in);
    }
    const int32_t pos = job->cpu->pass->rows[row].pos;
    if (a->types) {
        const int32_t second = job->cpu->pass->seqs[job->cpu->row_seq[row]].second;
        add_row(job, a->types, second > 0 && pos >= second && a->types->n_out > 1, x, thread);
    }
    if (a->positions) {
        add_row(job, a->positions, (int64_t)a->first_position + pos, x, thread);
    }
}

enum status cpu_embed(struct backend *be, const struct embed_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct embed_job job = {cpu, a};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    pool_run(cpu->pool, a->n_rows, embed_item, &job);
    return OK;
}
