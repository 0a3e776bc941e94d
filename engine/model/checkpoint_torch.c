// SPDX-License-Identifier: Apache-2.0
/* The tensors of a file of torch.save, whose names are those of safetensors files. */
#include "engine/base/mem.h"
#include "engine/model/checkpoint_files.h"

#include <string.h>

_Static_assert((int)TORCH_MAX_DIMS == (int)CHECKPOINT_MAX_DIMS, "the same limit for all files");

enum status checkpoint_torch_read(struct shard *s, struct checkpoint_list *list, struct err *err)
{
    TRY(torch_open(&s->map, s->path, &s->torch, err));
    for (size_t i = 0; i < torch_n_tensors(s->torch); i++) {
        const struct torch_tensor *t = torch_tensor_at(s->torch, i);
        struct checkpoint_tensor out = {
            .file = s->path, .n_dims = t->n_dims, .data = t->data, .n_bytes = t->n_bytes};
        size_t bits;
        if (!checkpoint_set_dtype(&out, t->dtype_name, &bits)) {
            return err_set(err, ERR_UNSUPPORTED, "%s: tensor %s: its dtype is unknown", s->path,
                           t->name);
        }
        memcpy(out.dims, t->dims, sizeof out.dims);
        out.name = xstrdup(t->name);
        checkpoint_list_add(list, &out);
    }
    return OK;
}
