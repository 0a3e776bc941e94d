// SPDX-License-Identifier: Apache-2.0
/* Reading a checkpoint's tensors by name, whole or this rank's slice of them, and handing them to
 * the backend as weights. For the files that load a model, not for others. Thread: the rank's
 * owner. */
#ifndef SLUICE_ENGINE_MODEL_PART_H
#define SLUICE_ENGINE_MODEL_PART_H

#include "engine/model/model.h"
#include "engine/model/quant.h"
#include "engine/model/requantise.h"

enum { NAME_BYTES = 256 };

/* What a checkpoint writes for the "model." that begins a family's name, and before other names. */
struct name_form {
    const char *model, *top;
};

struct loader {
    const struct model_load_options *options;
    const struct model_config *c;
    struct model *m;
    struct backend *be;
    struct err *err;
    const struct name_form *form; // this checkpoint's
    char layer_name[32];          // of a head: what it writes for "model.layers.0."; else ""
    const struct quant *quant;    // NULL: its weights are stored as they are
    struct requantise requantise; // plain matrices, while they load
    float *ones, *zeros;
    size_t n_const;
    bool round_inputs; // as quantised weights ask for it
    bool *taken;       // by place in checkpoint_tensors: what the model has asked for
    uint64_t seed;
};

enum { MAX_STACK = 3 };

/* Rows [first, first + n) of one tensor, as a piece of a stacked matrix. */
struct piece {
    const char *base; // without ".weight"
    int64_t total_rows, first, n;
};

struct stack {
    struct piece pieces[MAX_STACK];
    const struct piece *list; // instead of these, where there are more; pieces of a tensor together
    int32_t n;
    int64_t n_in, first_col, n_cols; // columns taken; n_in is the tensor's
    bool bias;
    bool stays_plain; // --quantization leaves it alone: routers, heads
    int32_t k_segments;
};

/* Names are a family's, whatever the checkpoint's form, and, but for part_of, without ".weight".
 * Whether the module is there, quantised or not. */
bool part_exists(const struct loader *l, const char *base);
/* What lies under this name is no part of the model, and nothing is to be said of it. */
void part_pass_over(struct loader *l, const char *base);
bool part_has(const struct loader *l, const char *name); // a tensor of that very name
void part_find_form(struct loader *l);
/* What the embedding is stored in; `otherwise` if that is nothing that we compute in. */
enum dtype part_embed_dtype(const struct loader *l, enum dtype otherwise);
/* Whether one matrix is the embedding and the head. */
bool part_head_is_tied(struct loader *l);
/* A model that was saved without its head, and whose head is not the embedding. */
bool part_is_headless(const struct loader *l);
/* Tells of tensors that nobody asked for: those of other modalities and of drafts are passed over;
 * of any else it warns, since config.json may tell of another model than the files. */
void part_report_unused(const struct loader *l);
void part_layer_name(const char *base, int32_t layer, char out[NAME_BYTES]);
void part_numbered_name(const char *pattern, int32_t e, char out[NAME_BYTES]);
/* A whole tensor, its shape checked; of dummy weights a part without data. */
enum status part_of(struct loader *l, const char *name, const int64_t *dims, int32_t n_dims,
                    struct weight_part *out);
/* A positive number by itself; 0 if there is none, or more than one. */
enum status part_number(struct loader *l, const char *name, float *out);
/* The matrix of a module, [n_out][n_in], quantised or not. */
enum status part_matrix(struct loader *l, const char *base, int64_t n_out, int64_t n_in,
                        struct weight_part *out);
/* Those of all experts, one below the other, if a quantised tensor has them so. */
enum status part_quantised_experts(struct loader *l, const char *base, int64_t n_experts,
                                   int64_t n_out, int64_t n_in, struct weight_part *out,
                                   bool *found);

/* Quantises a plain matrix if the options ask for it; it is to be opened before requantise_clear.
 */
void part_requantise(struct loader *l, struct weight_part *p);

enum status part_open(struct loader *l, struct weight_desc *d, const struct weight **out);
void part_dummy_vector(struct loader *l, struct weight_part *p, bool one);
enum status part_open_vector(struct loader *l, const char *name, const struct weight_part *p,
                             const struct weight **out);
enum status part_vector(struct loader *l, const char *base, const char *suffix, int64_t n,
                        const struct weight **out);
enum status part_linear(struct loader *l, const struct stack *s, enum dtype dtype,
                        const struct weight **out);

/* Into how many segments this rank cuts K (struct weight_desc). */
int32_t part_segments(const struct loader *l, int64_t units_of_rank);

/* A table of a row for each id. */
enum status part_table(struct loader *l, const char *base, int64_t width,
                       const struct weight **out);
/* What is stored under that very name, of whatever type; NULL: nothing. */
const struct checkpoint_tensor *part_raw(const struct loader *l, const char *name);

/* head.c: a draft head's weights, but for its layer. */
enum status load_head(struct loader *l);

/* attention.c, recurrent.c and ffn.c: the parts of a layer. */
enum status load_attention(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_recurrent(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_ffn(struct loader *l, int32_t layer, struct layer_weights *w);

#endif
