// SPDX-License-Identifier: Apache-2.0
/* The names of tensors in checkpoints, which differ from those of the families. */
#include "engine/model/part.h"

#include <stdio.h>
#include <string.h>

/* The name that a tensor of a head's layer has in this checkpoint. */
const char *part_named(const struct loader *l, const char *name, char room[NAME_BYTES])
{
    static const char first[] = "model.layers.0.";
    if (!l->layer_name[0] || strncmp(name, first, sizeof first - 1) != 0) {
        return name;
    }
    snprintf(room, NAME_BYTES, "%s%.200s", l->layer_name, name + sizeof first - 1);
    return room;
}

/* Some families' modules are called otherwise in transformers than in files. It renames them when
 * it saves a model, but modelopt saves some under their inner names. */
const char *part_inner_name(const char *name, char room[NAME_BYTES])
{
    static const char *const names[][2] = {
        {".block_sparse_moe.", ".mlp."},
        {".self_attn.f_", ".self_attn.forget_gate.f_"},
        {".self_attn.A_log", ".self_attn.forget_gate.A_log"},
        {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *at = strstr(name, names[i][0]);
        if (at) {
            snprintf(room, NAME_BYTES, "%.*s%s%s", (int)(at - name), name, names[i][1],
                     at + strlen(names[i][0]));
            return room;
        }
    }
    return name;
}

/* Checkpoints differ in the prefixes of their names. The form found at the start applies to all
 * names. */
void part_full_name(const struct loader *l, const char *base, char out[NAME_BYTES])
{
    char room[NAME_BYTES], inner[NAME_BYTES];
    const char *name = part_named(l, base, room);
    if (l->inner_names) {
        name = part_inner_name(name, inner);
    }
    static const char layers[] = "layers.";
    const char *of_layers = l->c->names->layers;
    if (of_layers && strncmp(name, "model.", 6) == 0 &&
        strncmp(name + 6, layers, sizeof layers - 1) == 0) {
        snprintf(out, NAME_BYTES, "%s%s%s", l->form->model, of_layers, name + 5 + sizeof layers);
    } else if (strncmp(name, "model.", 6) == 0) {
        snprintf(out, NAME_BYTES, "%s%s", l->form->model, name + 6);
    } else {
        snprintf(out, NAME_BYTES, "%s%s", l->form->top, name);
    }
}

void part_layer_name(const char *base, int32_t layer, char out[NAME_BYTES])
{
    snprintf(out, NAME_BYTES, "model.layers.%d.%s", layer, base);
}

/* Replaces "%d" in the pattern by e. */
void part_numbered_name(const char *pattern, int32_t e, char out[NAME_BYTES])
{
    const char *mark = strstr(pattern, "%d");
    snprintf(out, NAME_BYTES, "%.*s%d%s", (int)(mark - pattern), pattern, e, mark + 2);
}
