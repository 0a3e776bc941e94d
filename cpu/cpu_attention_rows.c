// SPDX-License-Identifier: Apache-2.0
/* Helpers of attention items, used by vector code and matrix unit alike: the pages of keys, which
 * keys a row sees, and prefetching of the next queries. */
#include "cpu/cpu_attention.h"
#include "engine/base/minmax.h"

int32_t attn_pages(const struct attn_job *job, const struct attn_tile *t, int32_t first,
                   int32_t end, int32_t most, const char **pages)
{
    const struct cpu_backend *cpu = job->cpu;
    const struct kv_pages *p = job->pages;
    const int32_t tokens = cpu->limits.block_tokens, from = first / tokens * tokens;
    int32_t n = 0;
    if (t->gathers) {
        for (int32_t key = from; key < end && n < most; key += tokens) {
            pages[n++] = attn_page(job, t, key);
        }
        return n;
    }
    const int32_t *blocks = cpu_kv_table(cpu, p, t->seq->lane) + first / tokens;
    const char *head = p->base + (size_t)t->kv_head * p->head_bytes;
    for (int32_t key = from; key < end && n < most; key += tokens, n++) {
        ASSERT(blocks[n] >= 0 && blocks[n] < p->n_pages);
        pages[n] = head + (size_t)blocks[n] * p->block_bytes;
    }
    return n;
}

bool attn_tree_sees(const struct attn_job *job, int32_t row, int32_t node)
{
    const uint64_t *mask = job->cpu->pass->tree_mask + (int64_t)row * TREE_MASK_WORDS;
    return (mask[node / 64] >> (node % 64) & 1) != 0;
}

void attn_mask_row(const struct attn_job *job, const struct attn_tile *t, int32_t row, float *s,
                   int32_t begin, int32_t end)
{
    int32_t low = attn_first_key(job, job->cpu->pass->rows[row].pos);
    int32_t high = attn_end_key(job, t, row);
    attn_hide(s, 0, low < end ? low - begin : end - begin);
    attn_hide(s, high > begin ? high - begin : 0, end - begin);
}

void attn_tree_path(const struct attn_job *job, struct attn_tile *t, int32_t row, const float *s,
                    int32_t base, int32_t begin, int32_t n)
{
    const struct pass *pass = job->cpu->pass;
    int32_t low = attn_first_key(job, pass->rows[row].pos), n_past = t->seq->n_past;
    low = greater(low, begin);
    attn_hide(t->path, 0, n);
    for (int32_t key = low; key < n_past && key < begin + n; key++) {
        t->path[key - begin] = s[key - base];
    }
    for (int32_t node = 0; node < t->seq->n_rows; node++) {
        int32_t pos = pass->rows[t->seq->first_row + node].pos;
        if (pos >= low && pos < begin + n && attn_tree_sees(job, row, node)) {
            t->path[pos - begin] = s[n_past + node - base];
        }
    }
}

void attn_leave_path(const struct attn_job *job, const struct attn_tile *t, int32_t row, float *s,
                     int32_t base, int32_t begin, int32_t n, float other)
{
    const struct pass *pass = job->cpu->pass;
    int32_t low = attn_first_key(job, pass->rows[row].pos), n_past = t->seq->n_past;
    low = greater(low, begin);
    for (int32_t key = begin; key < n_past && key < begin + n; key++) {
        s[key - base] = t->path[key - begin];
    }
    const int32_t n_nodes = begin + n > n_past ? t->seq->n_rows : 0; // with slots in this chunk
    for (int32_t node = 0; node < n_nodes; node++) {
        int32_t pos = pass->rows[t->seq->first_row + node].pos;
        bool seen = pos >= low && pos < begin + n && attn_tree_sees(job, row, node);
        s[n_past + node - base] = seen ? t->path[pos - begin] : other;
    }
}

void attn_prefetch(const struct attn_job *job, struct attn_tile *t, int32_t n)
{
    struct attn_ahead *a = &t->ahead;
    for (int32_t i = 0; i < n && a->row < a->end; i++) {
        const char *row = (const char *)tensor_row(&job->a->q, a->row);
        __builtin_prefetch(row + a->first + a->at, 0, 2);
        a->at += 64;
        if (a->at >= a->n_bytes) {
            a->at = 0;
            a->row++;
        }
    }
}
