// SPDX-License-Identifier: Apache-2.0
/* Memory of heads and runs. */
#include "engine/grammar/mask_shared.h"

size_t head_bytes(const struct masks *m, const struct head *h)
{
    return (h->words ? m->vocab->n_words * sizeof *h->words : 0) + h->n_ids * sizeof *h->ids +
           h->n_ends * sizeof *h->ends;
}

/* Heads refer to nodes of the vocabulary's trie, not to states. So they outlive masks, but not the
 * tables of expressions. */
void heads_free(struct masks *m)
{
    for (uint32_t i = 0; i < m->n_heads; i++) {
        m->bytes -= head_bytes(m, &m->heads[i]);
        free(m->heads[i].words);
        free(m->heads[i].ids);
        free(m->heads[i].ends);
    }
    m->n_heads = 0;
}

size_t run_bytes(const struct masks *m, const struct mask_run *r)
{
    size_t n = counts_bytes(&r->tokens, m->vocab);
    for (uint32_t i = 0; i < r->n_exits; i++) {
        n += sizeof *r->exits + r->exits[i].n * sizeof *r->exits[i].v;
    }
    return n;
}

void runs_free(struct masks *m)
{
    for (uint32_t i = 0; i < m->n_runs; i++) {
        struct mask_run *r = &m->runs[i];
        m->bytes -= run_bytes(m, r);
        for (uint32_t k = 0; k < r->n_exits; k++) {
            free(r->exits[k].v);
        }
        free(r->exits);
        counts_free(&r->tokens);
    }
    m->n_runs = 0;
}

void mask_shared_drop(struct masks *m)
{
    m->shared_dropped = true;
    heads_free(m);
    runs_free(m);
    if (m->now.bases.n > 0) { // the mask being built may refer to heads
        m->now.bases.n += MASK_BASES;
    }
}
