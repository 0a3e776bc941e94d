// SPDX-License-Identifier: Apache-2.0
/* Finds tensors by name, checks and slices them, and passes them to the backend. */
#include "engine/model/part.h"
#include "engine/base/optional.h"
#include "engine/model/check.h"
#include "engine/model/wrappers.h"

#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct checkpoint_tensor *part_find(const struct loader *l, const char *name)
{
    const struct checkpoint *ck = l->options->checkpoint;
    if (!ck) {
        return NULL;
    }
    char full[NAME_BYTES];
    part_full_name(l, name, full);
    size_t n;
    const struct checkpoint_tensor *t = checkpoint_find(ck, full);
    if (t && l->taken) {
        l->taken[t - checkpoint_tensors(ck, &n)] = true;
    }
    return t;
}

const struct checkpoint_tensor *part_raw(const struct loader *l, const char *name)
{
    return part_find(l, name);
}

static bool is_computed_in(const struct checkpoint_tensor *t)
{
    return t->dtype_known && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
}

/* Of two tied matrices, some files have only the one that is called the head. */
const char *part_embed_name(const struct loader *l)
{
    const struct tensor_names *names = l->c->names;
    const bool only_head = l->options->checkpoint && l->c->tied && !part_exists(l, names->embed) &&
                           part_exists(l, names->head);
    return only_head ? names->head : names->embed;
}

enum dtype part_embed_dtype(const struct loader *l, enum dtype otherwise)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", part_embed_name(l));
    const struct checkpoint_tensor *embed = part_find(l, name);
    if (embed && is_computed_in(embed)) {
        return embed->dtype;
    }
    return otherwise;
}

/* The config decides, unless the files contradict it: a stored head that differs from the embedding
 * is used, and if no head is stored, the embedding is used. */
bool part_head_is_tied(struct loader *l)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", l->c->names->embed);
    const struct checkpoint_tensor *embed = part_find(l, name);
    snprintf(name, sizeof name, "%s.weight", l->c->names->head);
    const struct checkpoint_tensor *head = part_find(l, name);
    if (!head && part_exists(l, l->c->names->head)) {
        return false; // the head is a quantised module
    }
    if (!embed || !head || !l->c->tied) {
        return l->c->tied || (embed && !head && !l->c->untied);
    }
    if (head->dtype == embed->dtype && head->n_bytes == embed->n_bytes &&
        memcmp(head->data, embed->data, head->n_bytes) == 0) {
        return true;
    }
    if (l->options->rank == 0) {
        log_warn("%s: tensor %s is not the embedding, so it is the head, although config.json says "
                 "tie_word_embeddings",
                 head->file, head->name);
    }
    return false;
}

bool part_is_headless(const struct loader *l)
{
    return l->c->bidirectional ||
           (l->form->model[0] == '\0' && l->c->untied && !part_exists(l, l->c->names->head));
}

enum purpose { OF_THE_MODEL, OF_IMAGE_OR_SOUND, OF_DRAFTS, DERIVED, N_PURPOSES };

/* The purpose of an unused tensor, guessed from part of its name. */
static enum purpose purpose_of(const struct loader *l, const char *name)
{
    if (strstr(name, "rotary_emb.inv_freq") || strstr(name, "embeddings.position_ids") ||
        check_is_mask(name)) {
        return DERIVED; // old files store them, although they can be computed
    }
    // Adapters beside a model's weights are those of its other modalities.
    if (wrapper_is_tower(name) || strstr(name, ".lora_A.") || strstr(name, ".lora_B.")) {
        return OF_IMAGE_OR_SOUND;
    }
    for (const char *at = name; *at; at += strcspn(at, "."), at += *at == '.') {
        const size_t n = strcspn(at, ".");
        int32_t layer = 0;
        if (n == 6 && strncmp(at, "layers", n) == 0 && at[n]) {
            layer = atoi(at + n + 1);
        }
        bool is_module = layer >= l->c->n_layers && layer - l->c->n_layers < l->c->n_draft_layers;
        if (is_module || strncmp(at, "mtp.", 4) == 0 || strncmp(at, "mtp_", 4) == 0) {
            return OF_DRAFTS;
        }
    }
    return OF_THE_MODEL;
}

/* Reports unused tensors by purpose. Those of the model itself cause a warning, because something
 * may be missing. */
void part_report_unused(const struct loader *l)
{
    size_t n, unused[N_PURPOSES] = {0};
    const struct checkpoint_tensor *all = checkpoint_tensors(l->options->checkpoint, &n);
    const struct checkpoint_tensor *first = NULL;
    for (size_t i = 0; i < n; i++) {
        if (l->taken[i]) {
            continue;
        }
        enum purpose purpose = purpose_of(l, all[i].name);
        if (purpose == OF_THE_MODEL && !first) {
            first = &all[i];
        }
        unused[purpose]++;
    }
    if (unused[OF_IMAGE_OR_SOUND] > 0) {
        log_info("%zu tensors of images and sound are ignored: the server processes only text",
                 unused[OF_IMAGE_OR_SOUND]);
    }
    if (unused[OF_DRAFTS] > 0) {
        log_info("%zu tensors of draft layers are ignored", unused[OF_DRAFTS]);
    }
    if (first) {
        log_warn("%zu tensors of the checkpoint do not belong to the model that config.json "
                 "describes, such as %s in %s",
                 unused[OF_THE_MODEL], first->name, first->file);
    }
}

static struct module module_of(const struct loader *l, const char *full)
{
    return (struct module){.checkpoint = l->options->checkpoint,
                           .name = full,
                           .n_experts = 1,
                           .taken = l->taken,
                           .err = l->err};
}

bool part_exists(const struct loader *l, const char *base)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", base);
    if (part_find(l, name)) {
        return true;
    }
    const struct checkpoint_tensor *values;
    part_full_name(l, base, name);
    struct module m = module_of(l, name);
    return l->quant && l->options->checkpoint && module_is_quantised(&m, &values);
}

/* ---- the form of names -------------------------------------------------------------------- */

/* Multimodal wrappers put the language part under a prefix. Models that were saved without a head
 * (transformers' AutoModel) lack "model.". */
static const struct name_form forms[] = {
    {"model.", ""},
    {"language_model.model.", "language_model."},
    {"model.language_model.", ""},
    {"model.text_model.", ""}, // Idefics, SmolVLM
    {"thinker.model.", "thinker."},
    {"thinker.model.language_model.", "thinker."},
    {"backbone.", ""}, // Nemotron-H
    {"language_model.backbone.", "language_model."},
    {"bert.", ""},
    {"roberta.", ""},
    {"distilbert.", ""},
    {"nomic_bert.", ""},
    {"new.", ""}, // GTE, as released
    {"gte.", ""},
    {"transformer.", ""}, // GPT-2 and its kin
    {"gpt_neox.", ""},
    {"biogpt.", ""},
    {"model.decoder.", ""}, // OPT
    {"decoder.", ""},
    {"", ""},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* True if a layer has this module under its inner name only. */
static bool is_inner(struct loader *l, const char *base, int32_t layer)
{
    char name[NAME_BYTES], room[NAME_BYTES];
    if (!base) {
        return false;
    }
    part_layer_name(base, layer, name);
    if (part_inner_name(name, room) == name || part_exists(l, name)) {
        return false;
    }
    l->inner_names = true;
    const bool found = part_exists(l, name);
    l->inner_names = false;
    return found;
}

/* The mixtures and the indexers tell which names a checkpoint has. */
static bool has_inner_names(struct loader *l)
{
    const struct tensor_names *names = l->c->names;
    bool found = false;
    for (int32_t i = 0; i < l->c->n_layers && !found; i++) {
        found = is_inner(l, names->router, i) || is_inner(l, names->index_q, i);
    }
    return found;
}

/* Finds the form of names with a tensor that every model has: the embedding, or if it is stored
 * only as the head, the final norm. */
static void find_prefix(struct loader *l)
{
    const struct tensor_names *names = l->c->names;
    const char *sure;
    if (l->c->head.may_lack_embed) {
        sure = names->final_norm;
    } else {
        sure = names->embed;
    }
    for (size_t i = 0; i < 2 * N_FORMS; i++) {
        l->form = &forms[i % N_FORMS];
        if (part_exists(l, or_empty(i < N_FORMS ? sure : names->final_norm))) {
            return;
        }
    }
    l->form = &forms[0]; // only used in messages from now on
}

void part_find_form(struct loader *l)
{
    find_prefix(l);
    l->inner_names = has_inner_names(l);
    part_find_released(l);
}

/* Marks as used those tensors that are deliberately not loaded. */
void part_pass_over(struct loader *l, const char *base)
{
    char full[NAME_BYTES];
    size_t n;
    part_full_name(l, base, full);
    const struct checkpoint_tensor *all = NULL;
    if (l->taken) {
        all = checkpoint_tensors(l->options->checkpoint, &n);
    }
    for (size_t i = 0; all && i < n; i++) {
        const size_t m = strlen(full);
        l->taken[i] = l->taken[i] || (strncmp(all[i].name, full, m) == 0 && all[i].name[m] == '.');
    }
}

bool part_has(const struct loader *l, const char *name)
{
    return part_find(l, name) != NULL;
}

/* ---- parts -------------------------------------------------------------------------------- */

static enum status shape_error(const struct loader *l, const struct checkpoint_tensor *t,
                               const int64_t *dims, int32_t n)
{
    char want[128] = "", have[128] = "";
    for (int32_t i = 0; i < n; i++) {
        snprintf(want + strlen(want), sizeof want - strlen(want), "%s%lld", text_if(i, ", "),
                 (long long)dims[i]);
    }
    for (int32_t i = 0; i < t->n_dims; i++) {
        snprintf(have + strlen(have), sizeof have - strlen(have), "%s%lld", text_if(i, ", "),
                 (long long)t->dims[i]);
    }
    return err_set(l->err, ERR_FORMAT,
                   "%s: tensor %s has shape [%s], but config.json requires [%s]", t->file, t->name,
                   have, want);
}

/* A vector may have additional dimensions of 1, and a single number has none. */
static bool has_dims(const struct checkpoint_tensor *t, const int64_t *dims, int32_t n)
{
    int64_t n_elements = 1, longest = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        n_elements *= t->dims[i];
        longest = greater(t->dims[i], longest);
    }
    if (n == 1 && t->n_dims != 1) {
        return longest == dims[0] && n_elements == longest;
    }
    return t->n_dims == n && memcmp(t->dims, dims, sizeof *dims * (size_t)n) == 0;
}

/* Finds the tensor `name` and checks it against dims; *out describes all of it as rows of
 * `cols`. */
enum status part_of(struct loader *l, const char *name, const int64_t *dims, int32_t n_dims,
                    struct weight_part *out)
{
    int64_t rows = n_dims > 1 ? dims[0] : 1, cols = dims[n_dims - 1];
    for (int32_t i = 1; i < n_dims - 1; i++) {
        rows *= dims[i];
    }
    l->m->n_parameters += rows * cols;
    *out = weight_part_plain(NULL, l->options->dtype, rows, cols, cols);
    if (!l->options->checkpoint) {
        return OK;
    }
    const struct checkpoint_tensor *t = part_find(l, name);
    char full[NAME_BYTES];
    part_full_name(l, name, full);
    if (!t) {
        return err_set(l->err, ERR_FORMAT, "%s: there is no tensor %s",
                       checkpoint_where(l->options->checkpoint), full);
    }
    if (!is_computed_in(t) && !t->blocks) {
        return err_set(l->err, ERR_UNSUPPORTED, "%s: tensor %s is %s, which is not supported",
                       t->file, t->name, t->dtype_name);
    }
    if (!has_dims(t, dims, n_dims)) {
        return shape_error(l, t, dims, n_dims);
    }
    if (t->blocks) {
        *out = weight_part_blocks(t->data, t->blocks, rows, cols);
    } else {
        *out = weight_part_plain(t->data, t->dtype, rows, cols, cols);
    }
    return OK;
}

/* Reads a scale of one element; 0 if there is none. */
enum status part_number(struct loader *l, const char *name, float *out)
{
    *out = 0.0f;
    const struct checkpoint_tensor *t = part_find(l, name);
    if (!t || !tensor_is_plain(t) || t->n_bytes != dtype_bytes(t->dtype)) {
        return OK;
    }
    *out = dtype_load(t->data, t->dtype, 0);
    if (!isfinite(*out) || *out <= 0.0f) {
        return err_set(l->err, ERR_FORMAT, "%s: tensor %s is %g, which is not a valid scale",
                       t->file, t->name, (double)*out);
    }
    return OK;
}

/* Reads the matrices of a quantised module, n_experts of them stacked. */
static enum status read_quantised(struct loader *l, const char *base, int64_t n_experts,
                                  const struct expert_place *place, int64_t n_out, int64_t n_in,
                                  struct weight_part *out, bool *found)
{
    char full[NAME_BYTES], room[NAME_BYTES], stack[NAME_BYTES];
    part_full_name(l, base, full);
    base = part_named(l, base, room);
    struct module m = module_of(l, full);
    m.n_experts = n_experts;
    m.n_out = n_out;
    m.n_in = n_in;
    if (place) {
        part_full_name(l, place->stack, stack);
        m.place = *place;
        m.place.stack = stack;
    }
    // Heads are hardly ever quantised, although few configs say that they are not.
    if (!l->options->checkpoint) {
        *found = false;
        if (strcmp(base, l->c->names->head) != 0) {
            quant_dummy(l->quant, &m, base, out, found);
        }
    } else {
        TRY(quant_read(l->quant, &m, base, out, found));
    }
    if (*found && !l->round_inputs) {
        out->inputs = (struct input_rule){.numbers = INPUT_AS_IT_IS};
    }
    if (*found) {
        l->m->n_parameters += n_experts * n_out * n_in;
    }
    return OK;
}

/* A matrix, quantised or plain. */
enum status part_matrix(struct loader *l, const char *base, int64_t n_out, int64_t n_in,
                        struct weight_part *out)
{
    return part_expert(l, base, NULL, n_out, n_in, out);
}

enum status part_expert(struct loader *l, const char *base, const struct expert_place *place,
                        int64_t n_out, int64_t n_in, struct weight_part *out)
{
    bool found = false;
    if (l->quant) {
        TRY(read_quantised(l, base, 1, place, n_out, n_in, out, &found));
    }
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", base);
    return found ? OK : part_of(l, name, (int64_t[]){n_out, n_in}, 2, out);
}

enum status part_quantised_experts(struct loader *l, const char *base, int64_t n_experts,
                                   int64_t n_out, int64_t n_in, struct weight_part *out,
                                   bool *found)
{
    *found = false;
    if (l->quant) {
        return read_quantised(l, base, n_experts, NULL, n_out, n_in, out, found);
    }
    return OK;
}

void part_requantise(struct loader *l, struct weight_part *p)
{
    requantise_part(&l->requantise, p);
    if (!l->round_inputs) {
        p->inputs = (struct input_rule){.numbers = INPUT_AS_IT_IS};
    }
}

/* Adds advice to the error that a model does not fit. */
static enum status say_too_large(struct err *err)
{
    const struct err first = *err;
    return err_set(err, ERR_NOMEM,
                   "the model's weights do not fit the device's memory (%.200s); share "
                   "them among more devices with --tensor-parallel-size N, choose a device with "
                   "more free memory, or quantise them with --quantization fp8 or int4",
                   first.text);
}

/* Opens a weight in the backend. All weights are opened here. Each dummy weight has a different
 * seed. */
enum status part_open(struct loader *l, struct weight_desc *d, const struct weight **out)
{
    struct weight *w;
    d->dummy_seed = hash_mix(++l->seed);
    d->dummy_scale = 0.02f;
    const enum status st = l->be->ops->weight_open(l->be, d, &w, l->err);
    if (st != OK) {
        if (st == ERR_NOMEM) {
            return say_too_large(l->err);
        }
        return st;
    }
    l->m->weight_bytes += l->be->ops->weight_bytes(w);
    *out = w;
    return OK;
}

/* A constant vector, used where a dummy model has no data. */
void part_dummy_vector(struct loader *l, struct weight_part *p, bool one)
{
    size_t n = (size_t)(p->n_rows * p->n_cols);
    if (weight_part_is_dummy(p) && n <= l->n_const) {
        *p = weight_part_plain(one ? l->ones : l->zeros, DT_F32, p->n_rows, p->n_cols, p->n_cols);
    }
}

/* Vectors are f32 on every backend. */
enum status part_open_vector(struct loader *l, const char *name, const struct weight_part *p,
                             const struct weight **out)
{
    struct weight_part whole = *p;
    part_dummy_vector(l, &whole, strstr(name, "norm") || strstr(name, "scale"));
    struct weight_desc d = {.name = name,
                            .kind = WEIGHT_VECTOR,
                            .dtype = DT_F32,
                            .n_out = 1,
                            .n_in = p->n_rows * p->n_cols,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &whole,
                            .k_segments = 1};
    return part_open(l, &d, out);
}

/* Opens the vector `base` + suffix of n elements, whole. */
enum status part_vector(struct loader *l, const char *base, const char *suffix, int64_t n,
                        const struct weight **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", base, suffix);
    struct weight_part p;
    TRY(part_of(l, name, &n, 1, &p));
    return part_open_vector(l, name, &p, out);
}

enum status part_norm(struct loader *l, const char *base, bool less_one, const struct weight **out)
{
    const int64_t n = l->c->hidden;
    char name[NAME_BYTES];
    struct weight_part p;
    if (l->c->bare_norms) {
        p = weight_part_plain(l->ones, DT_F32, 1, n, n);
        return part_open_vector(l, base, &p, out);
    }
    if (!less_one) {
        return part_vector(l, base, ".weight", n, out);
    }
    snprintf(name, sizeof name, "%s.weight", base);
    TRY(part_of(l, name, &n, 1, &p));
    part_dummy_vector(l, &p, false);
    float *sum = xmalloc((size_t)n * sizeof *sum);
    for (int64_t i = 0; i < n; i++) {
        sum[i] = weight_part_get(&p, 0, i) + 1.0f;
    }
    p = weight_part_plain(sum, DT_F32, 1, n, n);
    const enum status st = part_open_vector(l, base, &p, out);
    free(sum);
    return st;
}

enum status part_table(struct loader *l, const char *base, int64_t n_rows, int64_t width,
                       const struct weight **out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.weight", base);
    struct weight_part table;
    TRY(part_of(l, name, (int64_t[]){n_rows, width}, 2, &table));
    struct weight_desc d = {.name = base,
                            .kind = WEIGHT_EMBED,
                            .dtype = l->options->dtype,
                            .n_out = n_rows,
                            .n_in = width,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = &table,
                            .k_segments = 1};
    return part_open(l, &d, out);
}
