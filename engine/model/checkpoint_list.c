// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/model/checkpoint_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dtype_row {
    const char *name;
    size_t bits;
    bool known;
    enum dtype dtype;
} dtype_rows[] = {
    {"F32", 32, true, DT_F32},     {"BF16", 16, true, DT_BF16},   {"F16", 16, true, DT_F16},
    {"U8", 8, true, DT_U8},        {"I32", 32, true, DT_I32},     {"I64", 64, true, DT_I64},
    {"F64", 64, false, DT_U8},     {"I16", 16, false, DT_U8},     {"I8", 8, true, DT_I8},
    {"BOOL", 8, false, DT_U8},     {"F8_E4M3", 8, true, DT_E4M3}, {"F8_E5M2", 8, false, DT_U8},
    {"U16", 16, false, DT_U8},     {"U32", 32, false, DT_U8},     {"U64", 64, false, DT_U8},
    {"F8_E8M0", 8, true, DT_E8M0},
};

bool checkpoint_set_dtype(struct checkpoint_tensor *t, const char *name, size_t *bits)
{
    for (size_t i = 0; i < sizeof dtype_rows / sizeof dtype_rows[0]; i++) {
        const struct dtype_row *row = &dtype_rows[i];
        if (strcmp(row->name, name) == 0) {
            snprintf(t->dtype_name, sizeof t->dtype_name, "%s", name);
            t->dtype = row->dtype;
            t->dtype_known = row->known;
            *bits = row->bits;
            return true;
        }
    }
    return false;
}

void checkpoint_list_add(struct checkpoint_list *list, const struct checkpoint_tensor *t)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? list->cap * 2 : 256;
        list->v = xrealloc(list->v, list->cap * sizeof *list->v);
    }
    list->v[list->n++] = *t;
}

void checkpoint_list_free(struct checkpoint_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free((char *)list->v[i].name);
    }
    free(list->v);
    *list = (struct checkpoint_list){0};
}
