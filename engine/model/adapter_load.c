// SPDX-License-Identifier: Apache-2.0
/* Passes adapters' matrices to the backend, beside the weights that they change. A weight may stack
 * several modules (q, k and v; gate and up): their A are stacked, and their B have the order of the
 * weight's rows, so one pair of products serves them all. */
#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/adapter.h"
#include "engine/model/part.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_MODULES = 8,  // of one weight
    RANK_UNIT = 16,   // ranks are padded to a multiple of this
    MAX_RANKS = 2048, // of all modules of one weight; chosen, above what is published
};

/* The modules of a weight, and the largest rank that one of them has in an adapter. */
struct pair_plan {
    struct {
        const char *base;
        int64_t total_rows;
    } modules[MAX_MODULES];
    int32_t n;
    int64_t rank; // 0: no adapter changes the weight
};

/* Adapters have transformers' names of modules. */
static const struct adapter_module *find(const struct loader *l, int32_t adapter, const char *base)
{
    int32_t number = 0;
    char room[NAME_BYTES];
    const struct adapters *a = l->options->adapters;
    const struct adapter_module *m = adapters_find(a, adapter, adapters_tail(base), &number);
    if (!m) {
        m = adapters_find(a, adapter, adapters_tail(part_inner_name(base, room)), &number);
    }
    if (m) {
        l->adapted[number] = true;
    }
    return m;
}

/* The index of a module; -1: there is none yet. */
static int32_t module_of(const struct pair_plan *plan, const char *base)
{
    for (int32_t i = 0; i < plan->n; i++) {
        if (strcmp(plan->modules[i].base, base) == 0) {
            return i;
        }
    }
    return -1;
}

static struct pair_plan plan_of(const struct loader *l, const struct stack *s,
                                const struct piece *pieces)
{
    struct pair_plan plan = {.n = 0};
    for (int32_t i = 0; i < s->n; i++) {
        if (module_of(&plan, pieces[i].base) >= 0) {
            continue;
        }
        ASSERT(plan.n < MAX_MODULES);
        plan.modules[plan.n].base = pieces[i].base;
        plan.modules[plan.n++].total_rows = pieces[i].total_rows;
        for (int32_t a = 0; a < adapters_count(l->options->adapters); a++) {
            const struct adapter_module *found = find(l, a, pieces[i].base);
            plan.rank = greater(found ? found->rank : 0, plan.rank);
        }
    }
    plan.rank = (plan.rank + RANK_UNIT - 1) / RANK_UNIT * RANK_UNIT;
    return plan;
}

/* Adjacent pieces of one module are one run. */
static void find_runs(const struct stack *s, const struct piece *pieces,
                      const struct pair_plan *plan, struct adapter_pair *pair)
{
    int64_t at = 0;
    for (int32_t i = 0; i < s->n; at += pieces[i].n, i++) {
        if (i > 0 && strcmp(pieces[i].base, pieces[i - 1].base) == 0) {
            continue;
        }
        ASSERT(pair->n_runs < MAX_ADAPTER_RUNS);
        pair->runs[pair->n_runs++] = (struct adapter_run){
            (int32_t)at, module_of(plan, pieces[i].base) * (int32_t)plan->rank};
    }
}

static enum status check_shapes(const struct loader *l, int32_t adapter,
                                const struct adapter_module *m, int64_t n_out, int64_t n_in)
{
    const int64_t have_in = m->down->dims[1], have_out = m->up->dims[0];
    if (have_in == n_in && have_out == n_out) {
        return OK;
    }
    return err_set(
        l->err, ERR_FORMAT,
        "adapter '%.64s' was made for another model: it changes %.160s from %lld to %lld "
        "values, but here the layer has %lld and %lld",
        adapters_name(l->options->adapters, adapter), m->name, (long long)have_in,
        (long long)have_out, (long long)n_in, (long long)n_out);
}

static struct weight_part matrix_of(const struct checkpoint_tensor *t)
{
    return weight_part_plain(t->data, t->dtype, t->dims[0], t->dims[1], t->dims[1]);
}

/* A: the columns of this rank's inputs. */
static void fill_down(const struct stack *s, const struct adapter_module *m, float *to)
{
    struct weight_part p =
        weight_part_slice(matrix_of(m->down), 0, m->rank, s->first_col, s->n_cols);
    for (int64_t r = 0; r < m->rank; r++) {
        weight_part_read(&p, r, 0, s->n_cols, to + r * s->n_cols);
    }
}

/* B: the rows of one piece, scaled. */
static void fill_up(const struct piece *piece, int64_t rank, const struct adapter_module *m,
                    float *to)
{
    struct weight_part p = weight_part_slice(matrix_of(m->up), piece->first, piece->n, 0, m->rank);
    for (int64_t i = 0; i < piece->n; i++) {
        float *row = to + i * rank;
        weight_part_read(&p, i, 0, m->rank, row);
        for (int64_t r = 0; r < m->rank; r++) {
            row[r] *= m->scale;
        }
    }
}

static enum status fill_adapter(const struct loader *l, const struct stack *s,
                                const struct piece *pieces, const struct pair_plan *plan,
                                int32_t adapter, float *down, float *up)
{
    for (int32_t i = 0; i < plan->n; i++) {
        const struct adapter_module *m = find(l, adapter, plan->modules[i].base);
        float *rows = up;
        if (!m) {
            continue;
        }
        TRY(check_shapes(l, adapter, m, plan->modules[i].total_rows, s->n_in));
        fill_down(s, m, down + i * plan->rank * s->n_cols);
        for (int32_t k = 0; k < s->n; rows += pieces[k].n * plan->rank, k++) {
            if (strcmp(pieces[k].base, plan->modules[i].base) == 0) {
                fill_up(&pieces[k], plan->rank, m, rows);
            }
        }
    }
    return OK;
}

static enum status open_matrix(struct loader *l, const char *name, const float *values,
                               int64_t n_out, int64_t n_in, const struct weight **out)
{
    const int32_t n = adapters_count(l->options->adapters);
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

static void keep(struct model *m, const struct weight *of, struct adapter_pair pair)
{
    enum { MORE = 64 };
    if (m->n_adapted % MORE == 0) {
        m->adapted = xrealloc(m->adapted, (size_t)(m->n_adapted + MORE) * sizeof *m->adapted);
    }
    m->adapted[m->n_adapted++] = (struct adapted_weight){of, pair};
}

enum status load_adapters(struct loader *l, const struct stack *s, const struct piece *pieces,
                          int64_t n_out, const struct weight *of)
{
    const size_t n = (size_t)adapters_count(l->options->adapters);
    if (n == 0 || !s->adapts) {
        return OK;
    }
    const struct pair_plan plan = plan_of(l, s, pieces);
    if (plan.rank == 0) {
        return OK;
    }
    if (plan.n * plan.rank > MAX_RANKS) {
        return err_set(l->err, ERR_UNSUPPORTED,
                       "adapters of rank %lld are too large for %.160s, which is stored together "
                       "with %d other layers",
                       (long long)plan.rank, adapters_tail(pieces[0].base), plan.n - 1);
    }
    const size_t down_floats = (size_t)(plan.n * plan.rank * s->n_cols);
    const size_t up_floats = (size_t)(n_out * plan.rank);
    float *down = xcalloc(n * down_floats, sizeof *down), *up = xcalloc(n * up_floats, sizeof *up);
    struct adapter_pair pair = {.n_runs = 0};
    find_runs(s, pieces, &plan, &pair);
    enum status st = OK;
    for (size_t a = 0; a < n && st == OK; a++) {
        st = fill_adapter(l, s, pieces, &plan, (int32_t)a, down + a * down_floats,
                          up + a * up_floats);
    }
    if (st == OK) {
        st = open_matrix(l, pieces[0].base, down, plan.n * plan.rank, s->n_cols, &pair.down);
    }
    if (st == OK) {
        st = open_matrix(l, pieces[0].base, up, n_out, plan.rank, &pair.up);
    }
    if (st == OK) {
        keep(l->m, of, pair);
    }
    free(down);
    free(up);
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
