// SPDX-License-Identifier: Apache-2.0
/* Passes adapters' matrices to the backend, beside the weights that they change: with the model,
 * and while it is in use. */
#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/adapter_fill.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANK_UNIT = 16,   // ranks are padded to a multiple of this
    MAX_RANKS = 2048, // of all modules of one weight; chosen, above what is published
};

/* ---- with the model -------------------------------------------------------------------------- */

/* The rank for which there must be room: that of the adapters that are loaded now, and of those
 * that may be loaded later. */
static int64_t rank_of(const struct loader *l, const struct adapter_layout *a)
{
    const struct model_load_options *o = l->options;
    const int32_t n = adapters_count(o->adapters);
    int64_t rank = o->n_adapters > n ? o->adapter_rank : 0;
    for (int32_t i = 0; i < n; i++) {
        const struct adapter_source from = {o->adapters, i, l->adapted};
        rank = greater(adapter_rank_in(a, &from), rank);
    }
    return (rank + RANK_UNIT - 1) / RANK_UNIT * RANK_UNIT;
}

/* Adjacent pieces of one module are one run. */
static struct adapter_pair find_runs(const struct adapter_layout *a)
{
    struct adapter_pair pair = {.n_runs = 0};
    int64_t at = 0;
    for (int32_t i = 0; i < a->n_pieces; at += a->pieces[i].n, i++) {
        if (i > 0 && strcmp(a->pieces[i].base, a->pieces[i - 1].base) == 0) {
            continue;
        }
        ASSERT(pair.n_runs < MAX_ADAPTER_RUNS);
        pair.runs[pair.n_runs++] = (struct adapter_run){
            (int32_t)at, adapter_layout_module(a, a->pieces[i].base) * (int32_t)a->rank};
    }
    return pair;
}

static enum status open_matrix(struct loader *l, const char *name, const float *values,
                               int64_t n_out, int64_t n_in, const struct weight **out)
{
    const int32_t n = l->options->n_adapters;
    const struct weight_part all = weight_part_plain(values, DT_F32, n * n_out, n_in, n_in);
    struct weight_desc d = {.name = name,
                            .kind = WEIGHT_ADAPTER,
                            .dtype = l->options->dtype,
                            .n_out = n_out,
                            .n_in = n_in,
                            .n_experts = n,
                            .n_parts = 1,
                            .parts = &all,
                            .k_segments = 1};
    return part_open(l, &d, out);
}

static void keep(struct model *m, const struct weight *of, struct adapter_pair pair,
                 struct adapter_layout *layout)
{
    enum { MORE = 64 };
    if (m->n_adapted % MORE == 0) {
        m->adapted = xrealloc(m->adapted, (size_t)(m->n_adapted + MORE) * sizeof *m->adapted);
    }
    m->adapted[m->n_adapted++] = (struct adapted_weight){of, pair, layout};
}

/* Opens the pair of a weight with all adapters; those that may be loaded later are zero. */
static enum status open_pair(struct loader *l, const struct adapter_layout *a,
                             struct adapter_pair *pair)
{
    const struct adapters *adapters = l->options->adapters;
    const size_t n = (size_t)l->options->n_adapters;
    const size_t down_floats = adapter_down_floats(a), up_floats = adapter_up_floats(a);
    float *down = xcalloc(n * down_floats, sizeof *down), *up = xcalloc(n * up_floats, sizeof *up);
    enum status st = OK;
    *pair = find_runs(a);
    for (int32_t i = 0; i < adapters_count(adapters) && st == OK; i++) {
        const struct adapter_source from = {adapters, i, l->adapted};
        st = adapter_check(a, &from, l->err);
        if (st == OK) {
            adapter_fill(a, &from, down + (size_t)i * down_floats, up + (size_t)i * up_floats);
        }
    }
    const char *name = a->pieces[0].base;
    if (st == OK) {
        st = open_matrix(l, name, down, a->n_modules * a->rank, a->n_cols, &pair->down);
    }
    if (st == OK) {
        st = open_matrix(l, name, up, a->n_out, a->rank, &pair->up);
    }
    free(down);
    free(up);
    return st;
}

enum status load_adapters(struct loader *l, const struct stack *s, const struct piece *pieces,
                          int64_t n_out, const struct weight *of)
{
    if (l->options->n_adapters == 0 || !s->adapts) {
        return OK;
    }
    struct adapter_layout *a = adapter_layout_make(s, pieces, n_out);
    struct adapter_pair pair;
    enum status st = OK;
    a->rank = rank_of(l, a);
    if (a->n_modules * a->rank > MAX_RANKS) {
        st = err_set(l->err, ERR_UNSUPPORTED,
                     "adapters of rank %lld are too large for %.160s, which is stored together "
                     "with %d other layers",
                     (long long)a->rank, adapters_tail(pieces[0].base), a->n_modules - 1);
    }
    if (st == OK && a->rank > 0) {
        st = open_pair(l, a, &pair);
    }
    if (st == OK && a->rank > 0) {
        keep(l->m, of, pair, a);
    } else {
        adapter_layout_free(a);
    }
    return st;
}

static int by_address(const void *a, const void *b)
{
    const uintptr_t x = (uintptr_t)((const struct adapted_weight *)a)->of;
    const uintptr_t y = (uintptr_t)((const struct adapted_weight *)b)->of;
    return (x > y) - (x < y);
}

enum status load_adapters_end(struct loader *l)
{
    struct model *m = l->m;
    if (m->n_adapted > 0) {
        qsort(m->adapted, (size_t)m->n_adapted, sizeof *m->adapted, by_address);
    }
    return adapters_check_used(l->options->adapters, l->adapted, l->err);
}

const struct adapter_pair *model_adapter_of(const struct model *m, const struct weight *w)
{
    const struct adapted_weight key = {.of = w}, *found = NULL;
    if (m->n_adapted > 0) {
        found = bsearch(&key, m->adapted, (size_t)m->n_adapted, sizeof key, by_address);
    }
    return found ? &found->pair : NULL;
}

/* ---- while the model is in use --------------------------------------------------------------- */

/* The modules of the only adapter of a list. */
static enum status check_used(const struct model *m, const struct adapters *adapters, bool *used,
                              struct err *err)
{
    const struct adapter_source from = {adapters, 0, used};
    for (int32_t i = 0; i < m->n_adapted; i++) {
        const struct adapter_layout *a = m->adapted[i].layout;
        const int64_t rank = adapter_rank_in(a, &from);
        TRY(adapter_check(a, &from, err));
        if (rank > a->rank) {
            return err_set(err, ERR_UNSUPPORTED,
                           "adapter '%.64s' has rank %lld in %.160s, where there is room for %lld: "
                           "see --max-lora-rank",
                           adapters_name(adapters, 0), (long long)rank,
                           adapters_tail(a->pieces[0].base), (long long)a->rank);
        }
    }
    return adapters_check_used(adapters, used, err);
}

static bool *no_modules(const struct adapters *adapters)
{
    return xcalloc((size_t)adapters_n_modules(adapters) + 1, sizeof(bool));
}

enum status model_check_adapter(const struct model *m, const struct adapters *adapters,
                                struct err *err)
{
    if (!m->be->ops->weight_adapter_set) {
        return err_set(err, ERR_UNSUPPORTED, "this device loads adapters only with the model");
    }
    bool *used = no_modules(adapters);
    const enum status st = check_used(m, adapters, used, err);
    free(used);
    return st;
}

enum status model_set_adapter(const struct model *m, const struct adapters *adapters, int32_t index)
{
    const struct backend_ops *ops = m->be->ops;
    bool *used = no_modules(adapters);
    const struct adapter_source from = {adapters, 0, used};
    enum status st = OK;
    for (int32_t i = 0; i < m->n_adapted && st == OK; i++) {
        const struct adapted_weight *w = &m->adapted[i];
        float *down = xcalloc(adapter_down_floats(w->layout), sizeof *down);
        float *up = xcalloc(adapter_up_floats(w->layout), sizeof *up);
        adapter_fill(w->layout, &from, down, up);
        st = ops->weight_adapter_set(m->be, w->pair.down, index, down);
        st = st == OK ? ops->weight_adapter_set(m->be, w->pair.up, index, up) : st;
        free(down);
        free(up);
    }
    free(used);
    return st;
}
