// SPDX-License-Identifier: Apache-2.0
/* Lists of ids, and the function by which all models append to them. A full list is an error. */
#include "engine/base/minmax.h"
#include "engine/tokenizer/impl.h"

#include <stdlib.h>

void ids_init(struct ids *ids, size_t max)
{
    *ids = (struct ids){.max = max};
}

void ids_deinit(struct ids *ids)
{
    free(ids->v);
    *ids = (struct ids){0};
}

static bool ids_grow(struct ids *ids)
{
    size_t cap = ids->cap ? 2 * ids->cap : 256;
    cap = lesser(ids->max, cap);
    if (cap == ids->cap || cap > SIZE_MAX / sizeof *ids->v) {
        return false;
    }
    int32_t *v = realloc(ids->v, cap * sizeof *v);
    if (!v) {
        return false;
    }
    ids->v = v;
    ids->cap = cap;
    return true;
}

bool ids_put(struct ids *ids, int32_t id)
{
    if (ids->n == ids->cap && !ids_grow(ids)) {
        return false;
    }
    ids->v[ids->n++] = id;
    return true;
}

/* A full list is an error of the request; a failed allocation is one of the server. */
enum status emit(struct scratch *sc, int32_t id)
{
    if (!ids_put(sc->out, id)) {
        if (sc->out->n < sc->out->max) {
            return err_set(sc->err, ERR_NOMEM, "no memory for a text's tokens");
        }
        return err_set(sc->err, ERR_LIMIT, "the text has more than %zu tokens", sc->out->max);
    }
    return OK;
}
