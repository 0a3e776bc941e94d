// SPDX-License-Identifier: Apache-2.0
/* The short convolution of recurrent layers. It first computes the outputs of all rows, from the
 * pass's own inputs and the ring of earlier ones, and copies the inputs that a record keeps. Then
 * it stores the inputs in the ring. A row's sum adds its inputs in the order of their positions. */
#include "cpu/cpu_state.h"

#include <string.h>

/* The state of one op. Its items are rows. */
struct conv_job {
    struct cpu_backend *cpu;
    const struct short_conv_args *a;
    const struct state_pages *pages;
};

size_t cpu_conv_scratch(const struct state_pages *p)
{
    return (size_t)p->geometry.conv_width * sizeof(float);
}

/* The input at position `pos` on the row's path, rounded as the set stores it. False: there is
 * none. */
static bool input_at(const struct conv_job *job, int32_t row, int32_t pos, float *out)
{
    const struct pass *pass = job->cpu->pass;
    const struct pass_seq *seq = &pass->seqs[job->cpu->row_seq[row]];
    int32_t at = cpu_path_row(pass, seq, row, pos), width = job->a->width;
    if (pos < 0) {
        return false;
    }
    if (at < 0) {
        job->cpu->kernels->widen(job->pages->dtype, state_inputs(job->pages, seq->lane, pos), out,
                                 width);
        return true;
    }
    const float *x = tensor_row(&job->a->x, at);
    for (int32_t c = 0; c < width; c++) {
        out[c] = cpu_state_rounded(job->pages->dtype, x[c]);
    }
    return true;
}

/* Copies the inputs before a boundary, which are needed to continue from it. */
static void put_tail(const struct conv_job *job, int32_t row, char *tail, float *scratch)
{
    const struct state_pages *p = job->pages;
    const struct pass_row *r = &job->cpu->pass->rows[row];
    for (int32_t i = 0; i < job->a->kernel - 1; i++) {
        if (input_at(job, row, r->pos + 2 - job->a->kernel + i, scratch)) {
            cpu_state_put(p->dtype, tail + (size_t)i * p->conv_bytes, 0, 1, scratch, job->a->width);
        }
    }
}

/* If the row is the last one before a boundary, stores the last inputs in the boundary's record and
 * in its snapshot. The record is skipped if the pass crosses further boundaries, because they would
 * overwrite it. */
static void keep_tail(const struct conv_job *job, int32_t row, float *scratch)
{
    const struct state_pages *p = job->pages;
    const struct pass *pass = job->cpu->pass;
    const struct pass_row *r = &pass->rows[row];
    const struct pass_seq *seq = &pass->seqs[job->cpu->row_seq[row]];
    char *kept = cpu_state_kept(job->cpu, p, r->lane, r->pos + 1);
    bool stays = seq->tree || r->pos + 1 + p->n_records * p->block > seq->n_past + seq->n_rows;
    if (stays) {
        put_tail(job, row, state_record(p, r->lane, r->pos + 1) + p->s_bytes, scratch);
    }
    if (kept) {
        put_tail(job, row, kept + p->s_bytes, scratch);
    }
}

/* Adds the bias first, then the taps from the oldest input to the newest. */
static void conv_item(void *arg, int32_t row, int32_t thread)
{
    const struct conv_job *job = arg;
    const struct short_conv_args *a = job->a;
    int32_t pos = job->cpu->pass->rows[row].pos;
    float *out = tensor_row(&a->out, row), *in = (float *)(void *)job->cpu->scratch[thread].p;
    if (a->bias) {
        memcpy(out, a->bias->vector, (size_t)a->width * sizeof *out);
    } else {
        memset(out, 0, (size_t)a->width * sizeof *out);
    }
    for (int32_t i = 0; i < a->kernel; i++) {
        const float *w = a->weight->vector + (int64_t)i * a->width;
        if (input_at(job, row, pos + 1 - a->kernel + i, in)) {
            for (int32_t c = 0; c < a->width; c++) {
                out[c] += in[c] * w[c];
            }
        }
    }
    if (a->silu) {
        job->cpu->kernels->activate(ACT_SILU, ACT_SHAPE_PUBLISHED, out, NULL, out, a->width);
    }
    if ((pos + 1) % job->pages->block == 0) {
        keep_tail(job, row, in);
    }
}

/* If there are many rows, the ring holds only the last ones, so no two are written to the same
 * place. */
static void keep_item(void *arg, int32_t row, int32_t thread)
{
    const struct conv_job *job = arg;
    const struct pass *pass = job->cpu->pass;
    const struct pass_seq *seq = &pass->seqs[job->cpu->row_seq[row]];
    int32_t slot = pass->rows[row].slot_pos;
    (void)thread;
    if (slot >= seq->n_past + seq->n_rows - job->pages->conv_ring) {
        cpu_state_put(job->pages->dtype, state_inputs(job->pages, seq->lane, slot), 0, 1,
                      tensor_row(&job->a->x, row), job->a->width);
    }
}

/* Outputs need the ring as it was before, so all rows are computed before any input is stored. */
enum status cpu_short_conv(struct backend *be, const struct short_conv_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct conv_job job = {cpu, a, cpu_state_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows && a->x.mem.p != a->out.mem.p);
    ASSERT(job.pages->geometry.conv_width == a->width);
    ASSERT(job.pages->geometry.conv_kernel == a->kernel);
    pool_run(cpu->pool, a->n_rows, conv_item, &job);
    pool_run(cpu->pool, a->n_rows, keep_item, &job);
    return OK;
}
