// SPDX-License-Identifier: Apache-2.0
#include "engine/model/checkpoint_gguf.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/make.h"
#include "engine/model/config.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 256 };

/* ---- names -------------------------------------------------------------------------------- */

/* How a tensor is converted: renamed, keeping its suffix (".weight"); renamed without the suffix;
 * as a single row; as channels with an additional dimension; as one dimension; or split into one
 * tensor per expert (or per head), or into two, of which the second half of an expert's rows is
 * `up`, or into q, k and v. */
enum taken_as { AS_IT_IS, BARE, ONE_ROW, CHANNELS, FLAT, EXPERTS, EXPERT_PAIRS, QKV };

#define NAME(member) offsetof(struct tensor_names, member)
#define STATE(member) (offsetof(struct state_names, member) | OF_STATE)
#define OF_STATE ((size_t)1 << 30) // the member is one of struct state_names

/* Maps each GGUF tensor to its role in struct tensor_names. If a name has several roles, the first
 * one that the family has is used. */
static const struct role {
    const char *name;
    size_t member;
    enum taken_as as;
} roles[] = {
    {"token_embd", NAME(embed), AS_IT_IS},
    {"position_embd", NAME(positions), AS_IT_IS},
    {"token_embd_norm", NAME(final_norm), AS_IT_IS}, // LFM2's, whatever its name says
    {"output_norm", NAME(final_norm), AS_IT_IS},
    {"output", NAME(head), AS_IT_IS},
    {"blk.attn_norm", NAME(attn_norm), AS_IT_IS},
    {"blk.attn_norm_2", NAME(attn_norm), AS_IT_IS},
    {"blk.post_attention_norm", NAME(attn_post_norm), AS_IT_IS},
    {"blk.post_attention_norm", NAME(ffn_norm), AS_IT_IS},
    {"blk.ffn_norm", NAME(ffn_norm), AS_IT_IS},
    {"blk.post_ffw_norm", NAME(ffn_post_norm), AS_IT_IS},
    {"blk.attn_q", NAME(q), AS_IT_IS},
    {"blk.attn_k", NAME(k), AS_IT_IS},
    {"blk.attn_v", NAME(v), AS_IT_IS},
    {"blk.attn_qkv", NAME(qkv), AS_IT_IS},
    {"blk.attn_gate", NAME(attn_gate), AS_IT_IS},
    {"blk.attn_output", NAME(o), AS_IT_IS},
    {"blk.attn_out", NAME(o), AS_IT_IS},
    {"blk.attn_q_norm", NAME(q_norm), AS_IT_IS},
    {"blk.attn_k_norm", NAME(k_norm), AS_IT_IS},
    {"blk.attn_sinks", NAME(sinks), BARE},
    {"blk.attn_q_a", NAME(q_a), AS_IT_IS},
    {"blk.attn_q_a_norm", NAME(q_a_norm), AS_IT_IS},
    {"blk.attn_q_b", NAME(q_b), AS_IT_IS},
    {"blk.attn_kv_a_mqa", NAME(kv_a), AS_IT_IS},
    {"blk.attn_kv_a_norm", NAME(kv_a_norm), AS_IT_IS},
    {"blk.attn_kv_b", NAME(kv_b), AS_IT_IS},
    {"blk.attn_k_b", NAME(k_b), AS_IT_IS},
    {"blk.attn_v_b", NAME(v_b), AS_IT_IS},
    {"blk.indexer.attn_q_b", NAME(index_q), AS_IT_IS},
    {"blk.indexer.attn_k", NAME(index_k), AS_IT_IS},
    {"blk.indexer.k_norm", NAME(index_k_norm), AS_IT_IS},
    {"blk.indexer.proj", NAME(index_weights), AS_IT_IS},
    {"blk.ffn_gate", NAME(gate), AS_IT_IS},
    {"blk.ffn_up", NAME(up), AS_IT_IS},
    {"blk.ffn_up", NAME(gate_up), AS_IT_IS},
    {"blk.ffn_down", NAME(down), AS_IT_IS},
    {"blk.ffn_gate_inp", NAME(router), AS_IT_IS},
    {"blk.exp_probs_b", NAME(correction), BARE},
    {"blk.ffn_gate_exps", NAME(expert_gate), EXPERTS},
    {"blk.ffn_up_exps", NAME(expert_up), EXPERTS},
    {"blk.ffn_gate_up_exps", NAME(expert_gate), EXPERT_PAIRS},
    {"blk.ffn_down_exps", NAME(expert_down), EXPERTS},
    {"blk.ffn_gate_shexp", NAME(shared_gate), AS_IT_IS},
    {"blk.ffn_up_shexp", NAME(shared_up), AS_IT_IS},
    {"blk.ffn_up_shexp", NAME(shared_gate_up), AS_IT_IS},
    {"blk.ffn_down_shexp", NAME(shared_down), AS_IT_IS},
    {"blk.ffn_gate_inp_shexp", NAME(shared_router), ONE_ROW},
    {"blk.ffn_latent_down", NAME(latent_in), AS_IT_IS},
    {"blk.ffn_latent_up", NAME(latent_out), AS_IT_IS},
    {"blk.ffn_latent_in", NAME(latent_in), AS_IT_IS},
    {"blk.ffn_latent_out", NAME(latent_out), AS_IT_IS},
    {"blk.layer_output_scale", NAME(layer_scale), BARE},
    {"per_layer_token_embd", NAME(inputs_embed), AS_IT_IS},
    {"per_layer_model_proj", NAME(inputs_proj), AS_IT_IS},
    {"per_layer_proj_norm", NAME(inputs_norm), AS_IT_IS},
    {"blk.inp_gate", NAME(input_gate), AS_IT_IS},
    {"blk.proj", NAME(input_up), AS_IT_IS},
    {"blk.post_norm", NAME(input_post_norm), AS_IT_IS},
    {"altup_proj", NAME(stream_in), EXPERTS},
    {"altup_unembd_proj", NAME(stream_out), EXPERTS},
    {"blk.altup_router", NAME(stream_router), AS_IT_IS},
    {"blk.altup_router_norm", NAME(stream_router_norm), AS_IT_IS},
    {"blk.altup_predict_coef", NAME(stream_before), AS_IT_IS},
    {"blk.altup_correct_coef", NAME(stream_after), AS_IT_IS},
    {"blk.altup_correct_scale", NAME(stream_scale), BARE},
    {"blk.laurel_l", NAME(branch_down), AS_IT_IS},
    {"blk.laurel_r", NAME(branch_up), AS_IT_IS},
    {"blk.laurel_post_norm", NAME(branch_norm), AS_IT_IS},
    {"blk.pre_ffw_norm_2", NAME(experts_norm), AS_IT_IS},
    {"blk.post_ffw_norm_1", NAME(mlp_post_norm), AS_IT_IS},
    {"blk.post_ffw_norm_2", NAME(experts_post_norm), AS_IT_IS},
    {"blk.ffn_gate_inp.scale", NAME(router_norm), BARE},
    {"blk.ffn_down_exps.scale", NAME(expert_scale), BARE},
    {"blk.attn_qkv", STATE(qkv), AS_IT_IS},
    {"blk.attn_qkv", NAME(q), QKV},
    {"blk.attn_gate", STATE(z), AS_IT_IS},
    {"blk.attn_k", STATE(k), AS_IT_IS},
    {"blk.attn_v", STATE(v), AS_IT_IS},
    {"blk.ssm_in", STATE(qkvz), AS_IT_IS},
    {"blk.ssm_ba", STATE(ba), AS_IT_IS},
    {"blk.ssm_beta", STATE(b), AS_IT_IS},
    {"blk.ssm_alpha", STATE(a), AS_IT_IS},
    {"blk.ssm_conv1d", STATE(conv), CHANNELS},
    {"blk.ssm_conv1d_q", STATE(conv_q), CHANNELS},
    {"blk.ssm_conv1d_k", STATE(conv_k), CHANNELS},
    {"blk.ssm_conv1d_v", STATE(conv_v), CHANNELS},
    {"blk.ssm_f_a", STATE(f_a), AS_IT_IS},
    {"blk.ssm_f_a", STATE(f), AS_IT_IS},
    {"blk.ssm_f_b", STATE(f_b), AS_IT_IS},
    {"blk.ssm_g_a", STATE(g_a), AS_IT_IS},
    {"blk.ssm_g_a", STATE(g), AS_IT_IS},
    {"blk.ssm_g_b", STATE(g_b), AS_IT_IS},
    {"blk.ssm_a", STATE(a_log), BARE},
    {"blk.ssm_dt", STATE(dt_bias), BARE},
    {"blk.ssm_in", STATE(in), AS_IT_IS},
    {"blk.ssm_d", STATE(skip), BARE},
    {"blk.shortconv.in_proj", STATE(in), AS_IT_IS},
    {"blk.shortconv.conv", STATE(conv), CHANNELS},
    {"blk.shortconv.out_proj", STATE(out), AS_IT_IS},
    {"blk.ssm_norm", STATE(norm), FLAT},
    {"blk.ssm_out", STATE(out), AS_IT_IS},
};

/* Frequency divisors, which are already in the generated config, and similar tensors of older
 * files. */
static bool is_about_positions(const char *name)
{
    return strncmp(name, "rope_", 5) == 0 || strstr(name, ".attn_rot_embd") != NULL;
}

/* Encoders of images and sound, and layers that only draft, which Ollama's files have beside the
 * model. */
static bool is_beside_model(const char *name)
{
    static const char *const starts[] = {"v.", "a.", "mm.", "mtp.", "model.vision_tower."};
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        if (strncmp(name, starts[i], strlen(starts[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* A parsed name: "blk.12.attn_q.weight" is "blk.attn_q", 12 and ".weight". */
struct parsed {
    char base[MAX_NAME];
    int32_t layer; // -1: not in a layer
    const char *suffix;
    const char *layers; // as in struct tensor_names
};

/* "blk.N.BASE.SUFFIX" or "BASE.SUFFIX", where the suffix is weight or bias, or "blk.N.BASE", which
 * may end in ".scale". False for other names, which are not tensors of a model. */
static bool parse(const char *name, struct parsed *out)
{
    const char *rest = name, *dot;
    out->layer = -1;
    if (strncmp(name, "blk.", 4) == 0) {
        char *end;
        long layer = strtol(name + 4, &end, 10);
        if (end == name + 4 || *end != '.' || layer < 0 || layer >= MAX_LAYERS) {
            return false;
        }
        out->layer = (int32_t)layer;
        rest = end + 1;
    }
    dot = strrchr(rest, '.');
    if (out->layer >= 0 && (!dot || strcmp(dot, ".scale") == 0)) {
        dot = rest + strlen(rest);
    } else if (!dot || (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0)) {
        return false;
    }
    out->suffix = dot;
    snprintf(out->base, sizeof out->base, "%s%.*s", out->layer < 0 ? "" : "blk.", (int)(dot - rest),
             rest);
    return true;
}

/* The member of tensor_names that this GGUF name stands for, if the family has that member. */
static const struct role *find_role(const struct parsed *p, const struct tensor_names *names,
                                    const char **theirs)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        const char *name = NULL;
        const bool of_state = (roles[i].member & OF_STATE) != 0;
        const void *from = of_state ? (const void *)names->state : names;
        if (from) {
            memcpy(&name, (const char *)from + (roles[i].member & ~OF_STATE), sizeof name);
        }
        if (name && strcmp(roles[i].name, p->base) == 0) {
            *theirs = name;
            return &roles[i];
        }
    }
    return NULL;
}

/* ---- tensors ------------------------------------------------------------------------------ */

struct list {
    struct checkpoint_tensor *v;
    size_t n, cap;
};

static void put(struct list *list, const struct checkpoint_tensor *t, const char *name)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 256;
        list->v = xrealloc(list->v, list->cap * sizeof *list->v);
    }
    list->v[list->n] = *t;
    list->v[list->n++].name = xstrdup(name);
}

/* Block formats have the dtype U8 and a codec. The plain types are recognised by their names. */
static struct checkpoint_tensor describe(const struct gguf_tensor *g)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } plain[] = {{"F32", DT_F32}, {"F16", DT_F16}, {"BF16", DT_BF16}};
    struct checkpoint_tensor t = {.file = g->file,
                                  .n_dims = g->n_dims,
                                  .data = g->data,
                                  .n_bytes = g->n_bytes,
                                  .dtype = DT_U8};
    snprintf(t.dtype_name, sizeof t.dtype_name, "%s", g->type_name);
    memcpy(t.dims, g->dims, sizeof g->dims);
    t.blocks = block_format_find(g->type_name);
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(plain[i].name, g->type_name) == 0) {
            t.dtype = plain[i].dtype;
            t.dtype_known = true;
        }
    }
    return t;
}

/* Prefixes the names of a layer's tensors with "model.layers.12.", or the family's other word. */
static void full_name(char out[MAX_NAME], const struct parsed *p, const char *base,
                      const char *suffix)
{
    if (p->layer < 0) {
        snprintf(out, MAX_NAME, "%.200s%s", base, suffix);
    } else {
        snprintf(out, MAX_NAME, "model.%s%d.%.180s%s", or_text(p->layers, "layers."), p->layer,
                 base, suffix);
    }
}

/* Splits a tensor of contiguous experts, of whose rows it takes part `part` of n_parts; `base`
 * contains "%d" for the expert. */
static void put_experts(struct list *list, struct checkpoint_tensor t, const struct parsed *p,
                        const char *base, int32_t part, int32_t n_parts)
{
    int64_t n = t.dims[0];
    const char *mark = strstr(base, "%d");
    memmove(t.dims, t.dims + 1, (size_t)(t.n_dims - 1) * sizeof *t.dims);
    t.n_dims--;
    t.dims[0] /= n_parts;
    t.n_bytes /= (size_t)(n * n_parts);
    t.data += (size_t)part * t.n_bytes;
    for (int64_t e = 0; e < n; e++, t.data += (size_t)n_parts * t.n_bytes) {
        char numbered[MAX_NAME], name[MAX_NAME];
        snprintf(numbered, sizeof numbered, "%.*s%lld%s", (int)(mark - base), base, (long long)e,
                 mark + 2);
        full_name(name, p, numbered, p->suffix);
        put(list, &t, name);
    }
}

/* What the translation of tensors depends on. */
struct reader {
    const struct gguf *g;
    const struct tensor_names *names;
    char arch[GGUF_ARCH_BYTES];
    int32_t n_layers; // tensors of later layers are left out
    struct list list;
    struct err *err;
};

static enum status refuse(const struct reader *r, const struct gguf_tensor *g)
{
    return err_set(r->err, ERR_UNSUPPORTED,
                   "%.200s: tensor %.100s does not belong to the architecture %s", g->file, g->name,
                   r->arch);
}

static enum status take_experts(struct reader *r, const struct gguf_tensor *g,
                                const struct parsed *p, const char *base, bool in_pairs)
{
    const struct checkpoint_tensor t = describe(g);
    if (g->n_dims < 2 || g->dims[0] > MAX_EXPERTS ||
        (in_pairs && (g->n_dims != 3 || g->dims[1] % 2 != 0))) {
        return refuse(r, g);
    }
    put_experts(&r->list, t, p, base, 0, in_pairs ? 2 : 1);
    if (in_pairs) {
        put_experts(&r->list, t, p, r->names->expert_up, 1, 2);
    }
    return OK;
}

static double number_of_heads(const struct reader *r, const char *key, double otherwise)
{
    char full[96];
    snprintf(full, sizeof full, "%s.attention.%s", r->arch, key);
    gguf_get_number(r->g, full, &otherwise);
    return otherwise;
}

/* Splits the rows of a tensor into those of q, k and v. */
static enum status take_qkv(struct reader *r, const struct gguf_tensor *g, const struct parsed *p)
{
    const double heads = number_of_heads(r, "head_count", 0.0);
    const double kv = number_of_heads(r, "head_count_kv", heads);
    const bool usable = heads >= 1.0 && kv >= 1.0 && heads + 2.0 * kv < (double)INT32_MAX;
    const int64_t all = usable ? (int64_t)heads + 2 * (int64_t)kv : 1;
    struct checkpoint_tensor t = describe(g);
    const bool is_cut_between_blocks = g->n_dims > 1 || !t.blocks;
    if (!usable || g->dims[0] % all != 0 || !is_cut_between_blocks || !r->names->k ||
        !r->names->v) {
        return refuse(r, g);
    }
    const char *bases[] = {r->names->q, r->names->k, r->names->v};
    const int64_t parts[] = {(int64_t)heads, (int64_t)kv, (int64_t)kv};
    const size_t head_bytes = g->n_bytes / (size_t)all;
    for (size_t i = 0; i < 3; i++) {
        char name[MAX_NAME];
        t.dims[0] = g->dims[0] / all * parts[i];
        t.n_bytes = head_bytes * (size_t)parts[i];
        full_name(name, p, bases[i], p->suffix);
        put(&r->list, &t, name);
        t.data += t.n_bytes;
    }
    return OK;
}

/* Gives a tensor the dimensions that the loader expects. */
static void reshape(struct checkpoint_tensor *t, enum taken_as as)
{
    if (as == ONE_ROW && t->n_dims == 1) {
        t->n_dims = 2;
        t->dims[1] = t->dims[0];
        t->dims[0] = 1;
    }
    for (; as == CHANNELS && t->n_dims > 3 && t->dims[0] == 1; t->n_dims--) {
        memmove(t->dims, t->dims + 1, (size_t)(t->n_dims - 1) * sizeof *t->dims);
    }
    if (as == CHANNELS && t->n_dims == 2) {
        t->n_dims = 3;
        t->dims[2] = t->dims[1];
        t->dims[1] = 1;
    }
    for (; as == FLAT && t->n_dims > 1; t->n_dims--) {
        t->dims[0] *= t->dims[t->n_dims - 1];
    }
}

/* Which of several names of a norm the tensor has. In Falcon's files with two norms the second is
 * the one before attention, and the first is the MLP's; in others both read the only one. */
static void choose_norm(const struct reader *r, const struct parsed *p, const char **base,
                        char room[MAX_NAME])
{
    const bool two = gguf_find_tensor(r->g, "blk.0.attn_norm_2.weight") != NULL;
    if (!strchr(*base, '|')) {
        return;
    }
    if (!two) {
        *base = strrchr(*base, '|') + 1;
        return;
    }
    const char *names = strcmp(p->base, "blk.attn_norm") == 0 ? r->names->ffn_norm : *base;
    snprintf(room, MAX_NAME, "%.*s", (int)strcspn(names, "|"), names);
    *base = room;
}

/* Translates one tensor to the names of a safetensors checkpoint, so that the loader need not
 * distinguish the formats. A tensor without a role is an error, because dropping it would change
 * answers. */
static enum status take(struct reader *r, const struct gguf_tensor *g)
{
    struct parsed p = {.layer = -1, .layers = r->names->layers};
    const char *base = NULL;
    const struct role *role = NULL;
    const bool is_name = parse(g->name, &p);
    if (p.layer >= r->n_layers) {
        return OK; // of a layer that only drafts
    }
    if (is_name) {
        role = find_role(&p, r->names, &base);
    }
    if (!role) {
        const bool unused = is_about_positions(g->name) || is_beside_model(g->name);
        return unused ? OK : refuse(r, g);
    }
    if (role->as == QKV) {
        return take_qkv(r, g, &p);
    }
    if (role->as == EXPERTS || role->as == EXPERT_PAIRS || strstr(base, "%d")) {
        return take_experts(r, g, &p, base, role->as == EXPERT_PAIRS);
    }
    struct checkpoint_tensor t = describe(g);
    char name[MAX_NAME], room[MAX_NAME];
    choose_norm(r, &p, &base, room);
    reshape(&t, role->as);
    const char *suffix = p.suffix[0] ? p.suffix : ".weight"; // Falcon-H1's norms have none
    full_name(name, &p, base, role->as == BARE ? "" : suffix);
    put(&r->list, &t, name);
    return OK;
}

/* GGUF's names are replaced by those of a Hugging Face checkpoint, so that the loader needs only
 * one set of names. */
enum status checkpoint_gguf_read(const struct gguf *g, struct checkpoint_tensor **out, size_t *n,
                                 struct err *err)
{
    const char *model_type;
    struct reader r = {.g = g, .err = err};
    int32_t drafts;
    enum status st = gguf_architecture(g, r.arch, err);
    if (st == OK) {
        st = gguf_model_type(g, &model_type, err);
    }
    if (st == OK) {
        st = gguf_count_layers(g, &r.n_layers, &drafts, err);
    }
    if (st != OK) {
        *out = NULL;
        *n = 0;
        return err_prefix(err, st, "%.200s", gguf_path(g));
    }
    r.names = family_find(model_type)->names;
    if (drafts == 0) {
        r.n_layers = MAX_LAYERS; // layers that the key does not count are errors
    }
    for (size_t i = 0; i < gguf_n_tensors(g) && st == OK; i++) {
        st = take(&r, gguf_tensor_at(g, i));
    }
    *out = r.list.v;
    *n = r.list.n;
    return st;
}
