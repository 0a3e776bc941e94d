// SPDX-License-Identifier: Apache-2.0
/* The model families. Each is a row: the names of its tensors, and its differences from plain Llama
 * (pre-norm RMSNorm, SwiGLU, no biases, rope on whole heads). A new family is a row in the file of
 * its kind. */
#include "engine/base/optional.h"
#include "engine/model/family_parts.h"

#include <stdio.h>
#include <string.h>

static const struct family_table *const tables[] = {
    &families_dense,   &families_plain,    &families_gemma,     &families_moe,
    &families_sigmoid, &families_mla,      &families_recurrent, &families_mamba,
    &families_step,    &families_classic,  &families_minimax,   &families_longcat,
    &families_encoder, &families_ernie_vl, &families_next};
enum { N_TABLES = sizeof tables / sizeof tables[0] };

const struct family *family_find(const char *model_type)
{
    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n; i++) {
            if (strcmp(tables[t]->rows[i].model_type, model_type) == 0) {
                return &tables[t]->rows[i];
            }
        }
    }
    return NULL;
}

/* Names for error messages; the list is cut where the buffer ends. */
void family_list(char *out, size_t n_bytes)
{
    static const char rest[] = ", ...";
    size_t n = 0;
    out[0] = '\0';
    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n; i++) {
            const char *name = tables[t]->rows[i].model_type;
            if (n + strlen(name) + 2 + sizeof rest > n_bytes) {
                snprintf(out + n, n_bytes - n, "%s", rest);
                return;
            }
            n += (size_t)snprintf(out + n, n_bytes - n, "%s%s", text_if(n > 0, ", "), name);
        }
    }
}
