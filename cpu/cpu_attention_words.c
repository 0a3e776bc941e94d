// SPDX-License-Identifier: Apache-2.0
/* The second half of a chunk whose V is multiplied as integers (struct word_kernels): the softmax,
 * which leaves words in place of scores, and the sums of values. */
#include "cpu/cpu_attention.h"
#include "engine/base/minmax.h"

#include <math.h>

/* The maximum number of a run's pages, which have at least two tokens. */
enum { RUN_PAGES = (ATTN_CHUNK + MAX_TREE_NODES) / 2 + 2 };

/* The softmax of a row of a tree. Its sum is formed in the order of positions. */
static void soften_path(const struct attn_job *job, struct attn_tile *t, int32_t row, float *s,
                        int32_t n, int32_t base, int32_t begin, float *max, float *sum)
{
    int32_t n_path = (int32_t)round_up(t->seq->n_past + t->seq->n_rows - begin, 2 * PANEL);
    n_path = lesser(n_path, ATTN_CHUNK);
    attn_tree_path(job, t, row, s, base, begin, n_path);
    attn_leave_path(job, t, row, s, base, begin, n_path, -INFINITY);
    job->words->soften(s, n, t->scales, t->logs, max, sum);
    *sum = job->words->sum(t->path, n_path, *max);
}

void attn_words_chunk(const struct attn_job *job, struct attn_tile *t, int32_t base, int32_t first,
                      int32_t end, int32_t begin, float *max, float *sum)
{
    const char *pages[RUN_PAGES];
    const int32_t tokens = job->cpu->limits.block_tokens, key = first / tokens * tokens;
    const int32_t n = (int32_t)round_up(end - base, 2 * PANEL), at = key - base;
    struct page_run run = {.plane = &job->pages->v,
                           .pages = pages,
                           .first = first - key,
                           .end = end - key,
                           .is_near = t->is_near,
                           .ahead = &t->next};
    run.n_pages = attn_pages(job, t, key, end, RUN_PAGES, pages);
    job->words->scales(&run, t->scales + at, t->logs + at);
    for (int32_t i = 0; i < t->n_vectors; i++) {
        float *s = t->s + i * t->s_stride;
        const int32_t row = t->row + i / t->n_heads;
        if (job->a->softcap != 0.0f) {
            job->cpu->kernels->softcap(s + (first - base), job->a->softcap, end - first);
        }
        attn_hide(s, 0, first - base);
        attn_hide(s, end - base, n);
        if (t->seq->tree) {
            soften_path(job, t, row, s, n, base, begin, &max[i], &sum[i]);
            continue;
        }
        attn_mask_row(job, t, row, s + (first - base), first, end);
        job->words->soften(s, n, t->scales, t->logs, &max[i], &sum[i]);
    }
    job->words->weigh((const int16_t *)(const void *)t->s + at, 2 * t->s_stride, t->n_vectors, &run,
                      t->chunk);
}
