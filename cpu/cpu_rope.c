// SPDX-License-Identifier: Apache-2.0
/* Rotary position embedding, the norms of q and k, and the store of K and V into their pages. */
#include "cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

struct rope_job {
    struct rope_table *rope;
    const float *inv_freq;
    float factor;
};

enum { ROPE_RUN = 256 }; // positions per item

/* The angle is a product of floats, as in training. */
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

/* The angles of all positions are computed in advance, as a table of cosines and sines. */
enum status cpu_rope_open(struct backend *be, const struct rope_desc *desc, struct rope_table **out)
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
    size_t n = (size_t)desc->n_pairs * (size_t)desc->max_pos;
    // A single allocation, so that all of it is checked at once.
    r->cos = cpu_memory(cpu, 2 * n * sizeof(float));
    if (!r->cos) {
        return ERR_NOMEM;
    }
    r->sin = r->cos + n;
    struct rope_job job = {r, desc->inv_freq, desc->attention_factor};
    pool_run(cpu->pool, (desc->max_pos + ROPE_RUN - 1) / ROPE_RUN, rope_item, &job);
    *out = r;
    return OK;
}

void cpu_rotate(const struct cpu_backend *cpu, const struct rope_table *r, int32_t pos, float *x)
{
    if (r && r->n_pairs > 0) {
        ASSERT(pos < r->max_pos);
        cpu->kernels->rotate(x, r->cos + (int64_t)pos * r->n_pairs,
                             r->sin + (int64_t)pos * r->n_pairs, r->n_pairs, r->interleaved);
    }
}

/* Llama 4's scaling of queries by their position. */
static float growth_at(const struct query_growth *g, int32_t pos)
{
    if (g->beta == 0.0f) {
        return 1.0f;
    }
    ASSERT(g->every > 0);
    int32_t periods = (pos + g->offset) / g->every; // number of whole periods
    return 1.0f + g->beta * logf(1.0f + (float)periods);
}

float cpu_head_growth(const struct head_growth *g, int32_t head, int32_t pos)
{
    if (!g->scale) {
        return 1.0f;
    }
    return g->scale->vector[head] * logf(1.0f + (float)pos) + g->bias->vector[head];
}

void cpu_grow(float *x, int32_t n, float by)
{
    for (int32_t i = 0; by != 1.0f && i < n; i++) {
        x[i] *= by;
    }
}

struct store_job {
    const struct cpu_backend *cpu;
    const struct rope_store_args *a;
    const struct kv_pages *pages;
};

/* Norms one head. The norm's weight is shared by all heads, or each head has its own. */
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

static void norm_width(const struct store_job *job, const struct weight *w, float *x, int32_t width)
{
    const struct rope_store_args *a = job->a;
    job->cpu->kernels->norm(a->qk_norm_kind, x, w ? w->vector : NULL, a->norm_offset, NULL, a->eps,
                            width, x);
}

/* One row: norms, rotation and growth of queries; then K and V go to their pages. */
static void store_item(void *arg, int32_t row, int32_t thread)
{
    const struct store_job *job = arg;
    const struct rope_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *q = tensor_row(&a->qkv, row);
    float *k = q + (int64_t)a->n_heads * a->head_dim;
    float *v = k + (int64_t)a->n_kv_heads * a->head_dim;
    (void)thread;
    if (a->qk_norm == QK_NORM_WIDTH) {
        norm_width(job, a->q_norm, q, a->n_heads * a->head_dim);
        norm_width(job, a->k_norm, k, a->n_kv_heads * a->head_dim);
    }
    for (int32_t h = 0; h < a->n_heads + a->n_kv_heads; h++) {
        float *x = q + (int64_t)h * a->head_dim;
        bool is_q = h < a->n_heads, normed = a->qk_norm == QK_NORM_HEAD;
        if (normed && !a->norm_after_rope) {
            norm_head(job, is_q ? a->q_norm : a->k_norm, x, is_q ? h : h - a->n_heads);
        }
        cpu_rotate(job->cpu, a->rope, p->pos, x);
        if (normed && a->norm_after_rope) {
            norm_head(job, is_q ? a->q_norm : a->k_norm, x, is_q ? h : h - a->n_heads);
        }
    }
    cpu_grow(q, a->n_heads * a->head_dim, growth_at(&a->growth, p->pos));
    if (a->n_kv_heads == 0) {
        return;
    }
    struct kv_slot slot = cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos);
    for (int32_t h = 0; h < a->n_kv_heads; h++) {
        float *value = v + (int64_t)h * a->head_dim;
        if (a->v_norm) {
            job->cpu->kernels->norm(NORM_RMS, value, NULL, 0.0f, NULL, a->eps, a->head_dim, value);
        }
        cpu_kv_store(job->cpu, job->pages, slot, h, k + (int64_t)h * a->head_dim, value);
    }
}

/* Rows write to different slots, so their order does not matter. */
enum status cpu_rope_store(struct backend *be, const struct rope_store_args *a)
{
    struct cpu_backend *cpu = cpu_of(be);
    struct store_job job = {cpu, a, cpu_kv_layer(cpu, a->layer)};
    ASSERT(cpu->pass && a->n_rows <= cpu->pass->n_rows);
    ASSERT(a->n_kv_heads == 0 || job.pages->geometry.n_kv_heads == a->n_kv_heads);
    ASSERT(!job.pages->geometry.v_in_k);
    ASSERT(job.pages->geometry.head_dim_k == a->head_dim);
    ASSERT(job.pages->geometry.head_dim_v == a->head_dim);
    pool_run(cpu->pool, a->n_rows, store_item, &job);
    return OK;
}

struct mla_job {
    const struct cpu_backend *cpu;
    const struct mla_store_args *a;
    const struct kv_pages *pages;
};

/* key: room for a key. */
static void store_latent(const struct mla_job *job, int32_t row, float *key)
{
    const struct mla_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    const float *kv = tensor_row(&a->kv, row);
    job->cpu->kernels->norm(NORM_RMS, kv, a->kv_norm ? a->kv_norm->vector : NULL, 0.0f, NULL,
                            a->eps, a->kv_lora, key);
    memcpy(key + a->kv_lora, kv + a->kv_lora, (size_t)a->rope_dim * sizeof *key);
    cpu_rotate(job->cpu, a->rope, p->pos, key + a->kv_lora);
    cpu_kv_store_joined(job->cpu, job->pages,
                        cpu_kv_slot(job->cpu, job->pages, p->lane, p->slot_pos), 0, key);
}

static void mla_item(void *arg, int32_t row, int32_t thread)
{
    const struct mla_job *job = arg;
    const struct mla_store_args *a = job->a;
    const struct pass_row *p = &job->cpu->pass->rows[row];
    float *key = (float *)job->cpu->scratch[thread].p; // [kv_lora + rope_dim]
    if (a->kv.mem.p) {
        store_latent(job, row, key);
    }
    const float of_row = growth_at(&a->growth, p->pos);
    for (int32_t h = 0; h < a->n_heads; h++) {
        const float growth = of_row * cpu_head_growth(&a->head_growth, h, p->pos);
        float *q = tensor_row(&a->q, row) + (int64_t)h * a->q_head;
        float *to = tensor_row(&a->q_out, row) + (int64_t)h * a->q_out_head + a->q_out_offset;
        memcpy(key, q + a->q_rope_offset, (size_t)a->rope_dim * sizeof *key);
        cpu_rotate(job->cpu, a->rope, p->pos, key);
        cpu_grow(key, a->rope_dim, growth);
        cpu_grow(q, a->q_rope_offset, growth);
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
