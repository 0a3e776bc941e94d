// SPDX-License-Identifier: Apache-2.0
/* Products with packed weights. An item is one tile of outputs for some rows (cpu_gemm.c). */
#include "cpu/cpu_internal.h"
#include "engine/base/minmax.h"

#include <string.h>

/* A tile is multiplied with this many rows at a time: their sums, 24 KiB, stay in the L1 cache. It
 * is also the number of rows of an item if there are too few tiles to keep the threads busy. */
enum { ITEM_ROWS = 96 };

/* Used for rows packed as fp32. The rows of an item should stay in the L2 cache while tiles pass,
 * so an item has fewer rows if K is large; but it has enough rows for the computation to take as
 * long as loading the weights. */
enum { STAY_BYTES = 1600 << 10, STAY_LEAST = 24 };

/* The number of rows that stay in the cache while a tile of weights is read. */
static int32_t stay_rows(int64_t row_bytes)
{
    int64_t n = STAY_BYTES / row_bytes / STAY_LEAST * STAY_LEAST;
    if (n < STAY_LEAST) {
        return STAY_LEAST;
    }
    return n < ITEM_ROWS ? (int32_t)n : ITEM_ROWS;
}

/* Rows are packed first, then every item multiplies some of them by one tile. */
struct linear_job {
    const struct cpu_backend *cpu;
    const struct linear_args *a;
    int32_t first_row, n_rows;
    int64_t row_bytes;
    int32_t rows_per_item;
    const struct input_range *ranges; // ranges of the rows' groups, if ranks share them
};

/* Rounds a row of x and converts it to the type of the weights. */
static void pack_item(void *arg, int32_t item, int32_t thread)
{
    const struct linear_job *job = arg;
    const struct weight *w = job->a->weight;
    (void)thread;
    cpu_pack_row(job->cpu, w, 0, tensor_row(&job->a->x, job->first_row + item),
                 job->ranges ? job->ranges + item * w->input_groups : NULL,
                 job->cpu->packed_rows + item * job->row_bytes);
}

/* Computes the ranges of the rows' groups, over all ranks that share the rows. */
static bool share_ranges(struct cpu_backend *cpu, struct linear_job *job)
{
    const struct weight *w = job->a->weight;
    struct input_range *own = (struct input_range *)(void *)cpu->ranges;
    for (int32_t i = 0; i < job->n_rows; i++) {
        cpu_input_ranges(w, tensor_row(&job->a->x, job->first_row + i), own + i * w->input_groups);
    }
    job->ranges = cpu_share_ranges(cpu, w, job->n_rows);
    return job->ranges != NULL;
}

/* Reads a tile once for several runs of rows. */
static void linear_item(void *arg, int32_t item, int32_t thread)
{
    const struct linear_job *job = arg;
    const struct linear_args *a = job->a;
    int32_t tile = item % (int32_t)a->weight->n_tiles;
    int32_t row = item / (int32_t)a->weight->n_tiles * job->rows_per_item;
    int32_t end = lesser(row + job->rows_per_item, job->n_rows);
    for (int32_t n; row < end; row += n) { // the tile and the sums stay in the cache
        n = lesser(end - row, ITEM_ROWS);
        cpu_gemm_tile(job->cpu, &(struct gemm_tile){
                                    .weight = a->weight,
                                    .tile = tile,
                                    .rows = job->cpu->packed_rows + row * job->row_bytes,
                                    .row_bytes = job->row_bytes,
                                    .n_rows = n,
                                    .y = tensor_row(&a->y, job->first_row + row),
                                    .y_stride = a->y.stride,
                                    .bias = a->partial ? NULL : a->weight->bias,
                                    .accumulate = a->accumulate,
                                    .scratch = (float *)job->cpu->scratch[thread].p,
                                });
    }
}

/* act: only for products in blocks; NULL: none. */
static enum status linear(struct backend *be, const struct linear_args *a,
                          const struct activation_args *act)
{
    struct cpu_backend *cpu = cpu_of(be);
    const struct weight *w = a->weight;
    ASSERT(w->packed && w->n_matrices == 1);
    struct linear_job job = {.cpu = cpu, .a = a, .row_bytes = cpu_row_bytes(cpu, w)};
    for (int32_t row = 0, n; row < a->n_rows; row += n) {
        int32_t left = a->n_rows - row;
        if (cpu_in_blocks(cpu, w, left)) {
            n = lesser(left, BLOCKS_PACK_ROWS);
            cpu_linear_blocks(cpu, &(struct blocks_args){.linear = a, .act = act}, row, n);
            continue;
        }
        n = lesser(left, PACK_ROWS);
        job.first_row = row;
        job.n_rows = n;
        bool few = w->n_tiles < 4 * (int64_t)pool_n_threads(cpu->pool);
        job.rows_per_item = few && n > ITEM_ROWS ? ITEM_ROWS : n;
        if (n > FEW_ROWS && !cpu_rows_are_bf16(cpu, w)) {
            int32_t stay = stay_rows(job.row_bytes);
            job.rows_per_item = lesser(n, stay);
        }
        int32_t parts = (n + job.rows_per_item - 1) / job.rows_per_item;
        if (w->shared_ranges && !share_ranges(cpu, &job)) {
            return ERR_DEVICE;
        }
        pool_run(cpu->pool, n, pack_item, &job);
        pool_run(cpu->pool, (int32_t)w->n_tiles * parts, linear_item, &job);
    }
    return OK;
}

enum status cpu_linear(struct backend *be, const struct linear_args *a)
{
    return linear(be, a, NULL);
}

static struct tensor from_row(struct tensor t, int32_t row)
{
    t.mem = dmem_at(t.mem, (size_t)row * (size_t)t.stride * sizeof(float));
    return t;
}

/* True if the activation can be computed from a block's sums. */
static bool act_fits(const struct linear_args *a, const struct activation_args *act)
{
    const struct weight *w = a->weight;
    return !w->bias && !a->accumulate && (!act->gated || act->width % (w->panels * PANEL) == 0);
}

/* In blocks, the activation is computed while the sums are still in the cache. Rows that do not
 * fill a block, and unsupported shapes, use the separate ops. */
enum status cpu_linear_act(struct backend *be, const struct linear_args *a,
                           const struct activation_args *act)
{
    struct linear_args part = *a;
    struct activation_args after = *act;
    for (int32_t row = 0; row < a->n_rows; row += part.n_rows) {
        int32_t left = a->n_rows - row, most = cpu_pack_rows(cpu_of(be));
        part.n_rows = after.n_rows = lesser(left, most);
        part.x = from_row(a->x, row);
        part.y = from_row(a->y, row);
        after.x = from_row(act->x, row);
        after.out = from_row(act->out, row);
        if (act_fits(a, act) && cpu_in_blocks(cpu_of(be), a->weight, part.n_rows)) {
            TRY(linear(be, &part, &after));
            continue;
        }
        TRY(linear(be, &part, NULL));
        TRY(cpu_activation(be, &after));
    }
    return OK;
}

/* Computes the first rows of an op in blocks. Returns their number. */
static int32_t first_rows(struct cpu_backend *cpu, const struct blocks_args *a)
{
    const struct weight *w = a->linear->weight, *last = a->down ? a->down->weight : w;
    bool fits = !a->down ||
                (act_fits(a->linear, a->act) && a->act->width % BLOCK_N == 0 &&
                 last->segment == last->segment_padded && last->inputs.numbers == INPUT_AS_IT_IS);
    int32_t row = 0, left = a->linear->n_rows;
    while (fits && cpu_in_blocks(cpu, w, left) && cpu_in_blocks(cpu, last, left)) {
        int32_t n = lesser(left, BLOCKS_PACK_ROWS);
        cpu_linear_blocks(cpu, a, row, n);
        row += n;
        left -= n;
    }
    return row;
}

static struct linear_args linear_from(const struct linear_args *a, int32_t row)
{
    struct linear_args rest = *a;
    rest.n_rows -= row;
    rest.x = from_row(a->x, row);
    rest.y = from_row(a->y, row);
    return rest;
}

/* In blocks, the norm's output is packed directly, and the result of one product is written as the
 * packed input of the next. Rows that do not fill a block use the separate ops. */
static enum status joined(struct backend *be, const struct blocks_args *a)
{
    int32_t row = first_rows(cpu_of(be), a);
    if (row == a->linear->n_rows) {
        return OK;
    }
    struct linear_args first = linear_from(a->linear, row);
    if (a->norm) {
        struct norm_args norm = *a->norm;
        norm.n_rows -= row;
        norm.x = from_row(norm.x, row);
        if (norm.delta.mem.p) {
            norm.delta = from_row(norm.delta, row);
        }
        norm.out = from_row(norm.out, row);
        TRY(cpu_norm(be, &norm));
    }
    if (!a->down) {
        return cpu_linear(be, &first);
    }
    struct linear_args second = linear_from(a->down, row);
    struct activation_args act = *a->act;
    act.n_rows -= row;
    act.x = from_row(act.x, row);
    act.out = from_row(act.out, row);
    TRY(cpu_linear_act(be, &first, &act));
    return cpu_linear(be, &second);
}

enum status cpu_mlp(struct backend *be, const struct linear_args *up,
                    const struct activation_args *act, const struct linear_args *down)
{
    return joined(be, &(struct blocks_args){NULL, up, act, down});
}

enum status cpu_norm_linear(struct backend *be, const struct norm_args *norm,
                            const struct linear_args *linear, const struct activation_args *act,
                            const struct linear_args *down)
{
    return joined(be, &(struct blocks_args){norm, linear, act, down});
}

/* ---- one small matrix per head ------------------------------------------------------------ */

enum { HEAD_ROWS = 48 };

/* A product for each head: MLA's projections. */
struct heads_job {
    const struct cpu_backend *cpu;
    const struct linear_heads_args *a;
    int64_t row_bytes;
};

/* Each item packs its own rows, because each head has different inputs. */
static void heads_item(void *arg, int32_t item, int32_t thread)
{
    const struct heads_job *job = arg;
    const struct linear_heads_args *a = job->a;
    const struct weight *w = a->weight;
    int32_t head = item % w->n_matrices, row = item / w->n_matrices * HEAD_ROWS;
    int32_t n_rows = lesser(a->n_rows - row, HEAD_ROWS);
    char *packed = job->cpu->scratch[thread].p;
    for (int32_t i = 0; i < n_rows; i++) {
        cpu_pack_row(job->cpu, w, head, tensor_row(&a->x, row + i) + (int64_t)head * a->x_head,
                     NULL, packed + i * job->row_bytes);
    }
    for (int64_t tile = 0; tile < w->n_tiles; tile++) {
        cpu_gemm_tile(job->cpu, &(struct gemm_tile){
                                    .weight = w,
                                    .matrix = head,
                                    .tile = tile,
                                    .rows = packed,
                                    .row_bytes = job->row_bytes,
                                    .n_rows = n_rows,
                                    .y = tensor_row(&a->y, row) + (int64_t)head * a->y_head,
                                    .y_stride = a->y.stride,
                                    .scratch = (float *)(packed + HEAD_ROWS * job->row_bytes),
                                });
    }
}

enum status cpu_linear_heads(struct backend *be, const struct linear_heads_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct heads_job job = {cpu, a, cpu_row_bytes(cpu, a->weight)};
    int32_t parts = (a->n_rows + HEAD_ROWS - 1) / HEAD_ROWS;
    pool_run(cpu->pool, a->weight->n_matrices * parts, heads_item, &job);
    return OK;
}
