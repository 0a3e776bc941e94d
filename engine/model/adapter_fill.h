// SPDX-License-Identifier: Apache-2.0
/* The arrangement of adapters' matrices beside one weight. A weight may stack several modules (q, k
 * and v; gate and up): their A are stacked, and their B have the order of the weight's rows, so one
 * pair of products serves them all.
 * Thread: any; constant once made. */
#ifndef SLUICE_ENGINE_MODEL_ADAPTER_FILL_H
#define SLUICE_ENGINE_MODEL_ADAPTER_FILL_H

#include "engine/model/adapter.h"
#include "engine/model/part.h"

enum { MAX_ADAPTER_MODULES = 8 }; // of one weight

struct adapter_layout {
    struct piece *pieces; // of the weight, with their own names
    int32_t n_pieces, n_modules;
    struct {
        const char *base;
        int64_t total_rows;
    } modules[MAX_ADAPTER_MODULES];
    int64_t n_out, n_in, first_col, n_cols; // n_in: of the modules; n_cols: this rank's inputs
    int64_t rank; // that each module has room for; 0: no adapter changes the weight
};

/* One of several adapters. used: indexed by the numbers of modules; set for those that are found.
 */
struct adapter_source {
    const struct adapters *adapters;
    int32_t index;
    bool *used;
};

struct adapter_layout *adapter_layout_make(const struct stack *s, const struct piece *pieces,
                                           int64_t n_out);
void adapter_layout_free(struct adapter_layout *a); // accepts NULL

/* The index of a module; -1: there is none of this name. */
int32_t adapter_layout_module(const struct adapter_layout *a, const char *base);
/* The largest rank that the adapter has in a module of this weight; 0: it does not change it. */
int64_t adapter_rank_in(const struct adapter_layout *a, const struct adapter_source *from);
/* Checks the sizes of the adapter's matrices, except for the ranks. */
enum status adapter_check(const struct adapter_layout *a, const struct adapter_source *from,
                          struct err *err);
/* Writes A and B of an adapter that was checked, B with the scale, into memory that is zero. */
void adapter_fill(const struct adapter_layout *a, const struct adapter_source *from, float *down,
                  float *up);

static inline size_t adapter_down_floats(const struct adapter_layout *a)
{
    return (size_t)(a->n_modules * a->rank * a->n_cols);
}

static inline size_t adapter_up_floats(const struct adapter_layout *a)
{
    return (size_t)(a->n_out * a->rank);
}

#endif
