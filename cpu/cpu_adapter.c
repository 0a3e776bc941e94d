// SPDX-License-Identifier: Apache-2.0
/* Low-rank adapters: y += B (A x) for the rows of sequences that have one. The matrices are fp32
 * and stored by rows, so every element of a result is one dot product, whose bits depend on the row
 * alone. First the threads divide A x of some rows among them, then what is added to y. */
#include "cpu/cpu_state.h"
#include "engine/base/minmax.h"

#include <string.h>

enum {
    ROWS = 256,       // rows at a time
    MOST_RANK = 4096, // chosen: above what the engine passes
    DOWN_ITEM = 16,   // elements of A x per item
    UP_ITEM = 512,    // elements of y per item
};

struct adapter_job {
    const struct cpu_backend *cpu;
    const struct linear_args *a;
    int32_t rows[ROWS], adapters[ROWS]; // indices of rows and of their adapters
    int32_t n_rows, n_items_per_row;
    float *room; // [n_rows, ranks of all modules]
};

/* As the weights of products are rounded. */
void cpu_adapter_round(enum dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = cpu_state_rounded(dtype, x[i]);
    }
}

/* The rank is one of a matrix's sizes; it is not known which. */
enum status cpu_need_adapter(struct cpu_backend *cpu, int64_t most)
{
    const size_t n_bytes = (size_t)lesser(most, (int64_t)MOST_RANK) * ROWS * sizeof(float);
    if (n_bytes <= cpu->adapter_room_bytes) {
        return OK;
    }
    cpu_memory_free(cpu, cpu->adapter_room);
    cpu->adapter_room = cpu_memory(cpu, n_bytes);
    cpu->adapter_room_bytes = cpu->adapter_room ? n_bytes : 0;
    return cpu->adapter_room ? OK : ERR_NOMEM;
}

static void down_item(void *arg, int32_t item, int32_t thread)
{
    const struct adapter_job *job = arg;
    const struct weight *w = job->a->adapter->down;
    const int32_t i = item / job->n_items_per_row;
    const int64_t first = item % job->n_items_per_row * (int64_t)DOWN_ITEM;
    const int64_t end = lesser(first + DOWN_ITEM, w->n_out);
    const float *x = tensor_row(&job->a->x, job->rows[i]);
    const float *matrix = w->vector + job->adapters[i] * w->n_out * w->n_in;
    (void)thread;
    for (int64_t r = first; r < end; r++) {
        job->room[i * w->n_out + r] = job->cpu->kernels->dot(matrix + r * w->n_in, x, w->n_in);
    }
}

static void up_item(void *arg, int32_t item, int32_t thread)
{
    const struct adapter_job *job = arg;
    const struct adapter_pair *pair = job->a->adapter;
    const struct weight *w = pair->up;
    const int32_t i = item / job->n_items_per_row;
    const int64_t first = item % job->n_items_per_row * (int64_t)UP_ITEM;
    const int64_t end = lesser(first + UP_ITEM, w->n_out);
    const float *matrix = w->vector + job->adapters[i] * w->n_out * w->n_in;
    const float *room = job->room + i * pair->down->n_out;
    float *y = tensor_row(&job->a->y, job->rows[i]);
    int32_t run = 0;
    (void)thread;
    for (int64_t j = first; j < end; j++) {
        while (run + 1 < pair->n_runs && j >= pair->runs[run + 1].first_out) {
            run++;
        }
        const float *t = room + pair->runs[run].first_rank;
        y[j] += job->cpu->kernels->dot(matrix + j * w->n_in, t, w->n_in);
    }
}

static void run_rows(struct adapter_job *job)
{
    const struct adapter_pair *pair = job->a->adapter;
    job->n_items_per_row = (int32_t)((pair->down->n_out + DOWN_ITEM - 1) / DOWN_ITEM);
    pool_run(job->cpu->pool, job->n_rows * job->n_items_per_row, down_item, job);
    job->n_items_per_row = (int32_t)((pair->up->n_out + UP_ITEM - 1) / UP_ITEM);
    pool_run(job->cpu->pool, job->n_rows * job->n_items_per_row, up_item, job);
    job->n_rows = 0;
}

enum status cpu_linear_adapter(struct backend *be, const struct linear_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct pass *pass = cpu->pass;
    const struct weight *down = a->adapter->down, *up = a->adapter->up;
    struct adapter_job job = {.cpu = cpu, .a = a, .room = cpu->adapter_room};
    ASSERT(pass && down->kind == WEIGHT_ADAPTER && up->kind == WEIGHT_ADAPTER);
    ASSERT(down->n_out % up->n_in == 0 && down->n_matrices == up->n_matrices);
    ASSERT((size_t)down->n_out * ROWS * sizeof(float) <= cpu->adapter_room_bytes);
    ASSERT(a->n_rows <= (a->out_rows ? pass->n_out : pass->n_rows));
    for (int32_t i = 0; i < a->n_rows; i++) {
        const int32_t row = a->out_rows ? pass->out_rows[i] : i;
        const int32_t adapter = pass->seqs[cpu->row_seq[row]].adapter;
        if (adapter == 0) {
            continue;
        }
        ASSERT(adapter <= down->n_matrices);
        job.rows[job.n_rows] = i;
        job.adapters[job.n_rows++] = adapter - 1;
        if (job.n_rows == ROWS) {
            run_rows(&job);
        }
    }
    if (job.n_rows > 0) {
        run_rows(&job);
    }
    return OK;
}

enum status cpu_weight_adapter_set(struct backend *be, const struct weight *w, int32_t index,
                                   const float *values)
{
    const int64_t n = w->n_out * w->n_in;
    (void)be;
    ASSERT(w->kind == WEIGHT_ADAPTER && index >= 0 && index < w->n_matrices);
    float *to = w->vector + index * n;
    memcpy(to, values, (size_t)n * sizeof *to);
    cpu_adapter_round(w->dtype, to, n);
    return OK;
}
