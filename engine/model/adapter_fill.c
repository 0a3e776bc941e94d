// SPDX-License-Identifier: Apache-2.0
#include "engine/model/adapter_fill.h"

#include "engine/base/assert.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdlib.h>
#include <string.h>

int32_t adapter_layout_module(const struct adapter_layout *a, const char *base)
{
    for (int32_t i = 0; i < a->n_modules; i++) {
        if (strcmp(a->modules[i].base, base) == 0) {
            return i;
        }
    }
    return -1;
}

struct adapter_layout *adapter_layout_make(const struct stack *s, const struct piece *pieces,
                                           int64_t n_out)
{
    struct adapter_layout *a = xcalloc(1, sizeof *a);
    *a = (struct adapter_layout){.pieces = xcalloc((size_t)s->n, sizeof *a->pieces),
                                 .n_pieces = s->n,
                                 .n_out = n_out,
                                 .n_in = s->n_in,
                                 .first_col = s->first_col,
                                 .n_cols = s->n_cols};
    for (int32_t i = 0; i < s->n; i++) {
        a->pieces[i] = pieces[i];
        a->pieces[i].base = xstrdup(pieces[i].base);
        if (adapter_layout_module(a, pieces[i].base) < 0) {
            ASSERT(a->n_modules < MAX_ADAPTER_MODULES);
            a->modules[a->n_modules].base = a->pieces[i].base;
            a->modules[a->n_modules++].total_rows = pieces[i].total_rows;
        }
    }
    return a;
}

void adapter_layout_free(struct adapter_layout *a)
{
    for (int32_t i = 0; a && i < a->n_pieces; i++) {
        free((char *)(uintptr_t)a->pieces[i].base);
    }
    if (a) {
        free(a->pieces);
    }
    free(a);
}

/* Adapters have transformers' names of modules. */
static const struct adapter_module *find(const struct adapter_source *from, const char *base)
{
    int32_t number = 0;
    char room[NAME_BYTES];
    const struct adapters *a = from->adapters;
    const struct adapter_module *m = adapters_find(a, from->index, adapters_tail(base), &number);
    if (!m) {
        m = adapters_find(a, from->index, adapters_tail(part_inner_name(base, room)), &number);
    }
    if (m) {
        from->used[number] = true;
    }
    return m;
}

int64_t adapter_rank_in(const struct adapter_layout *a, const struct adapter_source *from)
{
    int64_t rank = 0;
    for (int32_t i = 0; i < a->n_modules; i++) {
        const struct adapter_module *m = find(from, a->modules[i].base);
        rank = greater(m ? m->rank : 0, rank);
    }
    return rank;
}

enum status adapter_check(const struct adapter_layout *a, const struct adapter_source *from,
                          struct err *err)
{
    for (int32_t i = 0; i < a->n_modules; i++) {
        const struct adapter_module *m = find(from, a->modules[i].base);
        const int64_t n_out = a->modules[i].total_rows;
        if (m && (m->down->dims[1] != a->n_in || m->up->dims[0] != n_out)) {
            return err_set(
                err, ERR_FORMAT,
                "adapter '%.64s' was made for another model: it changes %.160s from %lld to %lld "
                "values, but here the layer has %lld and %lld",
                adapters_name(from->adapters, from->index), m->name, (long long)m->down->dims[1],
                (long long)m->up->dims[0], (long long)a->n_in, (long long)n_out);
        }
    }
    return OK;
}

static struct weight_part matrix_of(const struct checkpoint_tensor *t)
{
    return weight_part_plain(t->data, t->dtype, t->dims[0], t->dims[1], t->dims[1]);
}

/* A: the columns of this rank's inputs. */
static void fill_down(const struct adapter_layout *a, const struct adapter_module *m, float *to)
{
    struct weight_part p =
        weight_part_slice(matrix_of(m->down), 0, m->rank, a->first_col, a->n_cols);
    for (int64_t r = 0; r < m->rank; r++) {
        weight_part_read(&p, r, 0, a->n_cols, to + r * a->n_cols);
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

void adapter_fill(const struct adapter_layout *a, const struct adapter_source *from, float *down,
                  float *up)
{
    for (int32_t i = 0; i < a->n_modules; i++) {
        const struct adapter_module *m = find(from, a->modules[i].base);
        float *rows = up;
        if (!m) {
            continue;
        }
        fill_down(a, m, down + i * a->rank * a->n_cols);
        for (int32_t k = 0; k < a->n_pieces; rows += a->pieces[k].n * a->rank, k++) {
            if (strcmp(a->pieces[k].base, a->modules[i].base) == 0) {
                fill_up(&a->pieces[k], a->rank, m, rows);
            }
        }
    }
}
