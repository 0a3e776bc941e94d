// SPDX-License-Identifier: Apache-2.0
/* Architectures by their names. Each is a table row with its name in Hugging Face's configs and the
 * mapping of its keys, in the file of its kind. To add an architecture, add a row;
 * engine/model/checkpoint_gguf.c maps its tensor names. */
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include <stdio.h>
#include <string.h>

static const struct arch_table *const tables[] = {&archs_dense,  &archs_plain, &archs_moe,
                                                  &archs_layers, &archs_mla,   &archs_hybrid,
                                                  &archs_classic};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

static enum status unknown_arch(const char *name, struct err *err)
{
    char known[900] = "";
    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n; i++) {
            const size_t at = strlen(known);
            if (!tables[t]->rows[i].is) { // the others share their names
                snprintf(known + at, sizeof known - at, "%s%s", text_if(at > 0, ", "),
                         tables[t]->rows[i].name);
            }
        }
    }
    return err_set(err, ERR_UNSUPPORTED, "general.architecture: '%.40s' is not one of %s", name,
                   known);
}

enum status maker_find_arch(const struct gguf *g, const struct arch **out, struct err *err)
{
    char name[GGUF_ARCH_BYTES];
    TRY(gguf_architecture(g, name, err));
    *out = NULL;
    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n && (!*out || !(*out)->is); i++) {
            const struct arch *row = &tables[t]->rows[i];
            if (strcmp(row->name, name) == 0 && (!row->is || row->is(g))) {
                *out = row;
            }
        }
    }
    return *out ? OK : unknown_arch(name, err);
}

enum status gguf_model_type(const struct gguf *g, const char **out, struct err *err)
{
    const struct arch *arch = NULL;
    TRY(maker_find_arch(g, &arch, err));
    *out = arch->model_type;
    return OK;
}
