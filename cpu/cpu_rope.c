/* Rotation of positions, the norms of q and k, and the way of K and V into their pages. */
#include "cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

struct rope_job {
    struct rope_table *rope;
    const float *inv_freq;
    float factor;
};

enum { ROPE_RUN = 256 }; // positions of one item

/* The angle is a product of floats, as the models were trained with. */
static void rope_item(void *arg, int32_t item, int32_t thread)
{
    const struct rope_job *job = arg;
    struct rope_table *r = job->rope;
    (void)thread;
    for (int32_t pos = item * ROPE_RUN; pos < r->max_pos && pos < (item + 1) * ROPE_RUN; pos++) {
        for (int32_t i = 0; i < r->n_pairs; i++) {
            double angle = (double)((float)pos * job->inv_freq[i]);
            r->cos[(int64_t)pos * r->n_pairs + i] = (float)cos(angle) * job->factor;
            r->sin[(int64_t)pos * r->n_pairs + i] = (float)sin(angle) * job->factor;
        }
    }
}

enum status cpu_rope_open(struct backend *be, const struct rope_desc *desc,
                          struct rope_table **out)
{
    struct cpu_backend *cpu = cpu_of(be);
    *out = NULL;
    if (desc->n_pairs < 0 || desc->max_pos < 1) {
        return ERR_INVALID;
    }
    struct rope_table *r = xcalloc(1, sizeof *r);
    r->next = cpu->ropes;
    cpu->ropes = r;
    r->n_pairs = desc->n_pairs;
    r->max_pos = desc->max_pos;
    r->interleaved = desc->interleaved;
    size_t n_bytes = (size_t)desc->n_pairs * (size_t)desc->max_pos * sizeof(float);
    r->cos = cpu_memory(cpu, n_bytes);
    r->sin = cpu_memory(cpu, n_bytes);
    if (!r->cos || !r->sin) {
        return ERR_NOMEM;
    }
    struct rope_job job = {r, desc->inv_freq, desc->attention_factor};
    pool_run(cpu->pool, (desc->max_pos + ROPE_RUN - 1) / ROPE_RUN, rope_item, &job);
    *out = r;
    return OK;
}

static void rotate(const struct cpu_backend *cpu, const struct rope_table *r, int32_t pos, float *x)
{
    if (r && r->n_pairs > 0) {
        ASSERT(pos < r->max_pos);
        cpu->kernels->rotate(x, r->cos + (int64_t)pos * r->n_pairs,
                             r->sin + (int64_t)pos * r->n_pairs, r->n_pairs, r->interleaved);
    }
}

struct store_job {
    const struct cpu_backend *cpu;
    const struct rope_store_args *a;
    const struct kv_pages *pages;
    int32_t first_row;
    /* QK_NORM_WIDTH: sums of squares of the heads of q, then of k; of this rank, and of all ranks
     * one behind the other. One rank has both in one place. */
    float *own, *all; // [rows, heads], [rows, n_ranks, heads]
};

/* The norm of one head; its weight is common to all heads or each head's own. */
static void norm_head(const struct store_job *job, const struct weight *w, float *x, int32_t head)
{
    const struct rope_store_args *a = job->a;
    const float *weight = w ? w->vector : NULL;
    if (w && w->n_in > a->head_dim) {
        weight += (int64_t)head * a->head_dim;
    }
    job->cpu->kernels->norm(a->qk_norm_kind, x, weight, a->norm_offset, NULL, a->eps, a->head_dim,
                            x);
}

static void square_item(void *arg, int32_t item, int32_t thread)
{
    const struct store_job *job = arg;
    const struct rope_store_args *a = job->a;
    int32_t heads = a->n_heads + a->n_kv_heads;
    const float *x = tensor_row(&a->qkv, job->first_row + item);
    (void)thread;
    for (int32_t h = 0; h < heads; h++, x += a->head_dim) {
        job->own[(int64_t)item * heads + h] = job->cpu->kernels->dot(x, x, a->head_dim);
    }
}

/* RMS over all heads, which ranks share: squares are summed head by head in the order of heads, so
 * that ranks give the bits of one. `first`: of the heads in `all`. */
static void norm_width(const struct store_job *job, int32_t item, const struct weight *w, float *x,
                       int32_t first, int32_t n_heads)
{
    const struct rope_store_args *a = job->a;
    int32_t heads = a->n_heads + a->n_kv_heads, n_ranks = job->cpu->base.n_ranks;
    const float *squares = job->all + (int64_t)item * n_ranks * heads;
    float sum = 0.0f;
    for (int32_t r = 0; r < n_ranks; r++) {
        for (int32_t h = 0; h < n_heads; h++) {
            sum += squares[r * heads + first + h];
        }
    }
    int32_t width = n_heads * a->head_dim;
    float scale = 1.0f / sqrtf(sum / ((float)width * (float)n_ranks) + a->eps);
    for (int32_t i = 0; i < width; i++) {
        x[i] = x[i] * scale * ((w ? w->vector[i] : 1.0f) + a->norm_offset);
    }
}

static void store_item(void *arg, int32_t item, int32_t thread)
{
    const struct store_job *job = arg;
    const struct rope_store_args *a = job->a;
    int32_t row = job->first_row + item;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *q = tensor_row(&a->qkv, row);
    float *k = q + (int64_t)a->n_heads * a->head_dim;
    float *v = k + (int64_t)a->n_kv_heads * a->head_dim;
    (void)thread;
    if (a->qk_norm == QK_NORM_WIDTH) {
        norm_width(job, item, a->q_norm, q, 0, a->n_heads);
        norm_width(job, item, a->k_norm, k, a->n_heads, a->n_kv_heads);
    }
    for (int32_t h = 0; h < a->n_heads + a->n_kv_heads; h++) {
        float *x = q + (int64_t)h * a->head_dim;
        bool is_q = h < a->n_heads;
        if (a->qk_norm == QK_NORM_HEAD) {
            norm_head(job, is_q ? a->q_norm : a->k_norm, x, is_q ? h : h - a->n_heads);
        }
        rotate(job->cpu, a->rope, p->pos, x);
    }
    struct kv_slot slot = cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos);
    for (int32_t h = 0; h < a->n_kv_heads; h++) {
        cpu_kv_store_k(job->cpu, job->pages, slot, h, k + (int64_t)h * a->head_dim);
        cpu_kv_store_v(job->cpu, job->pages, slot, h, v + (int64_t)h * a->head_dim);
    }
}

/* The sums of squares lie where products pack their rows, as many rows as fit. */
static enum status store_width(struct cpu_backend *cpu, struct store_job *job)
{
    const struct rope_store_args *a = job->a;
    int32_t heads = a->n_heads + a->n_kv_heads, n_ranks = cpu->base.n_ranks;
    size_t row_bytes = (size_t)heads * (size_t)(1 + n_ranks) * sizeof(float);
    int32_t step = (int32_t)(cpu->packed_rows_bytes / row_bytes);
    if (step < 1 || a->qk_norm_kind != NORM_RMS) {
        return ERR_UNSUPPORTED;
    }
    for (int32_t n; job->first_row < a->n_rows; job->first_row += n) {
        n = a->n_rows - job->first_row < step ? a->n_rows - job->first_row : step;
        job->own = (float *)cpu->packed_rows;
        job->all = n_ranks > 1 ? job->own + (int64_t)n * heads : job->own;
        pool_run(cpu->pool, n, square_item, job);
        if (n_ranks > 1 && !cpu_comm_gather(cpu, job->own, heads, job->all,
                                            (int64_t)n_ranks * heads, n, heads)) {
            cpu->failed = true;
            return ERR_DEVICE;
        }
        pool_run(cpu->pool, n, store_item, job);
    }
    return OK;
}

enum status cpu_rope_store(struct backend *be, const struct rope_store_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct store_job job = {.cpu = cpu, .a = a, .pages = cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(job.pages->geometry.n_kv_heads == a->n_kv_heads && !job.pages->geometry.v_in_k);
    ASSERT(job.pages->geometry.head_dim_k == a->head_dim);
    ASSERT(job.pages->geometry.head_dim_v == a->head_dim);
    if (a->qk_norm != QK_NORM_WIDTH) {
        pool_run(cpu->pool, a->n_rows, store_item, &job);
        return OK;
    }
    return store_width(cpu, &job);
}

struct mla_job {
    const struct cpu_backend *cpu;
    const struct mla_store_args *a;
    const struct kv_pages *pages;
};

static void mla_item(void *arg, int32_t row, int32_t thread)
{
    const struct mla_job *job = arg;
    const struct mla_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    const float *kv = tensor_row(&a->kv, row);
    float *key = (float *)job->cpu->scratch[thread].p; // [kv_lora + rope_dim]
    job->cpu->kernels->norm(NORM_RMS, kv, a->kv_norm ? a->kv_norm->vector : NULL, 0.0f, NULL,
                            a->eps, a->kv_lora, key);
    memcpy(key + a->kv_lora, kv + a->kv_lora, (size_t)a->rope_dim * sizeof *key);
    rotate(job->cpu, a->rope, p->pos, key + a->kv_lora);
    cpu_kv_store_k(job->cpu, job->pages,
                   cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos), 0, key);
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float *q = tensor_row(&a->q, row) + (int64_t)h * a->q_head + a->q_rope_offset;
        float *to = tensor_row(&a->q_out, row) + (int64_t)h * a->q_out_head + a->q_out_offset;
        memcpy(key, q, (size_t)a->rope_dim * sizeof *key);
        rotate(job->cpu, a->rope, p->pos, key);
        memcpy(to, key, (size_t)a->rope_dim * sizeof *key);
    }
}

enum status cpu_mla_store(struct backend *be, const struct mla_store_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct mla_job job = {cpu, a, cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(job.pages->geometry.n_kv_heads == 1 && job.pages->geometry.v_in_k);
    ASSERT(job.pages->geometry.head_dim_k == a->kv_lora + a->rope_dim);
    pool_run(cpu->pool, a->n_rows, mla_item, &job);
    return OK;
}
