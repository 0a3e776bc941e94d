// SPDX-License-Identifier: Apache-2.0
/* The names of tensors in checkpoints, which differ from those of the families. */
#include "engine/model/part.h"

#include <stdio.h>
#include <stdlib.h>
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

/* The name with `to` in the place of `from`; the name itself if it has none. */
static const char *replaced(const char *name, const char *from, const char *to,
                            char room[NAME_BYTES])
{
    const char *at = strstr(name, from);
    if (!at) {
        return name;
    }
    snprintf(room, NAME_BYTES, "%.*s%s%s", (int)(at - name), name, to, at + strlen(from));
    return room;
}

/* Some families' modules are called otherwise in transformers than in files. It renames them when
 * it saves a model, but modelopt saves some under their inner names. */
const char *part_inner_name(const char *name, char room[NAME_BYTES])
{
    static const char *const names[][2] = {
        {".block_sparse_moe.", ".mlp."},
        {".self_attn.index_", ".self_attn.indexer."},
        {".self_attn.f_", ".self_attn.forget_gate.f_"},
        {".self_attn.A_log", ".self_attn.forget_gate.A_log"},
        {".self_attn.dt_bias", ".self_attn.forget_gate.dt_bias"},
        {".hc_attn_", ".attn_hc."},
        {".hc_ffn_", ".ffn_hc."},
    };
    const char *out = name;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && out == name; i++) {
        out = replaced(name, names[i][0], names[i][1], room);
    }
    return out;
}

/* Released files call some modules otherwise than transformers. A row applies to checkpoints with
 * the released name; of several for one name, the first does. */
static const struct {
    const char *name, *released;
} released[] = {
    {".self_attn.gate_proj", ".self_attn.linear_gate"},
    {".mlp.gate_proj", ".mlp.linear_gate"},
    {".mlp.shared_experts.gate_proj", ".mlp.shared_experts.linear_gate"},
    {".self_attn.sinks", ".self_attn.learnable_sink_param"},
    {".self_attn.qkv_proj", ".self_attn.qkv_proj.base_layer"},
    {".self_attn.o_proj", ".self_attn.o_proj.base_layer"},
    {".mlp.gate_up_proj", ".mlp.gate_up_proj.base_layer"},
    {".mlp.down_proj", ".mlp.down_proj.base_layer"},
    {".attn_hc.", ".hc_pre.hc_attn_layer.hc_"},
    {".attn_hc.", ".hc_attn_layer.hc_pre.hc_"},
    {".attn_hc.", ".hc_attn_layer.hc_"},
    {".ffn_hc.", ".hc_pre.hc_mlp_layer.hc_"},
    {".ffn_hc.", ".hc_mlp_layer.hc_pre.hc_"},
    {".ffn_hc.", ".hc_mlp_layer.hc_"},
    {".LayerNorm.weight", ".LayerNorm.gamma"}, // the first BERTs
    {".LayerNorm.bias", ".LayerNorm.beta"},
    {".hc_head.hc_", ".hc_pre.hc_head.hc_head_"},
    {".hc_head.hc_", ".hc_head.hc_pre.hc_head_"},
    {".hc_head.hc_", ".hc_head.hc_head_"},
};
enum { N_RELEASED = sizeof released / sizeof released[0] };
_Static_assert(N_RELEASED <= 32, "the loader has a bit for each row");

void part_find_released(struct loader *l)
{
    const struct checkpoint *ck = l->options->checkpoint;
    size_t n = 0;
    const struct checkpoint_tensor *all = ck ? checkpoint_tensors(ck, &n) : NULL;
    for (size_t i = 0; i < n; i++) {
        for (int32_t row = 0; row < N_RELEASED; row++) {
            const bool has = strstr(all[i].name, released[row].released) != NULL;
            l->released |= (uint32_t)has << row;
        }
    }
}

static const char *released_name(const struct loader *l, const char *name, char room[NAME_BYTES])
{
    const char *out = name;
    for (int32_t row = 0; row < N_RELEASED && out == name; row++) {
        if (l->released >> row & 1) {
            out = replaced(name, released[row].name, released[row].released, room);
        }
    }
    return out;
}

/* The name of a layer's tensor where two layers are one in checkpoints. */
static const char *paired_name(const struct loader *l, const char *name, char room[NAME_BYTES])
{
    static const char first[] = "model.layers.";
    if (!l->c->names->paired || strncmp(name, first, sizeof first - 1) != 0) {
        return name;
    }
    char *rest;
    const long layer = strtol(name + sizeof first - 1, &rest, 10);
    const size_t n = strcspn(rest, "#");
    snprintf(room, NAME_BYTES, "%s%ld%.*s", first, layer / 2, (int)n, rest);
    if (rest[n]) {
        const size_t at = strlen(room);
        snprintf(room + at, NAME_BYTES - at, "%ld%s", layer % 2, rest + n + 1);
    }
    return room;
}

/* Checkpoints differ in the prefixes of their names. The form found at the start applies to all
 * names. */
void part_full_name(const struct loader *l, const char *base, char out[NAME_BYTES])
{
    char room[NAME_BYTES], inner[NAME_BYTES], pair[NAME_BYTES];
    const char *name = paired_name(l, part_named(l, base, room), pair);
    if (l->inner_names) {
        name = part_inner_name(name, inner);
    } else if (l->released) {
        name = released_name(l, name, inner);
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
