// SPDX-License-Identifier: Apache-2.0
/* Reads a checkpoint's tensors by name, whole or this rank's slice, and passes them to the backend
 * as weights. Private to the files that load a model.
 * Thread: the rank's owner. */
#ifndef SLUICE_ENGINE_MODEL_PART_H
#define SLUICE_ENGINE_MODEL_PART_H

#include "engine/model/model.h"
#include "engine/model/quant.h"
#include "engine/model/requantise.h"

enum { NAME_BYTES = 256 };

/* The prefixes of names in a checkpoint: `model` replaces the leading "model." of a family's names,
 * and `top` precedes its other names. */
struct name_form {
    const char *model, *top;
};

struct loader {
    const struct model_load_options *options;
    const struct model_config *c;
    struct model *m;
    struct backend *be;
    struct err *err;
    const struct name_form *form; // the form that this checkpoint's names have
    bool inner_names;             // those of transformers' modules, where its files have others
    uint32_t released;            // bits: the rows of part_names.c that its names have
    char layer_name[32];          // for a head: what replaces "model.layers.0."; otherwise ""
    const struct quant *quant;    // NULL: the weights are not quantised
    struct requantise requantise; // quantises plain matrices while they are loaded
    float *ones, *zeros;
    size_t n_const;
    bool round_inputs; // round the inputs of products with weights that require it
    bool *taken;   // indexed like checkpoint_tensors; true for tensors that the model has requested
    bool *adapted; // indexed by the numbers of adapters' modules: true for those that have been
                   // found in the model
    uint64_t seed;
};

enum { MAX_STACK = 4 };

/* Rows [first, first + n) of one tensor, as a piece of a stacked matrix. */
struct piece {
    const char *base; // without ".weight"
    int64_t total_rows, first, n;
};

/* Heads of `from` elements in a tensor become heads of `to`; the elements after them are zero. to
 * 0: they stay as they are. All other numbers of a stack count the elements after this. */
struct head_room {
    int64_t from, to;
};

struct stack {
    struct piece pieces[MAX_STACK];
    // Several pieces, instead of the single ones above; pieces of one tensor are adjacent.
    const struct piece *list;
    int32_t n;
    int64_t n_in, first_col, n_cols; // the columns to read; n_in is the tensor's width
    bool bias;
    int32_t n_unbiased; // number of pieces at the end that have none, although the others do
    bool stays_plain;   // --quantization does not apply: routers, heads
    bool turned;        // the tensors are [in, out], unless they are quantised
    bool adapts;        // adapters may change it; whoever multiplies by it passes its pair
    int32_t k_segments;
    struct column_runs runs; // of the tensors' columns
    struct head_room values; // of the rows of the third piece; then nothing adapts
    struct head_room cols;   // of the only piece
};

/* All these functions take the family's names, whatever the form of the checkpoint's names, and
 * without ".weight" except for part_of. part_exists: true if the module exists, quantised or
 * not. */
bool part_exists(const struct loader *l, const char *base);
/* Marks tensors under this name as used, so that part_report_unused ignores them. */
void part_pass_over(struct loader *l, const char *base);
bool part_has(const struct loader *l, const char *name); // a tensor with exactly this name
void part_find_form(struct loader *l);
void part_find_released(struct loader *l); // part_names.c
/* part_named: the name that a tensor of a head's layer has. part_full_name: also as this checkpoint
 * has it. */
const char *part_named(const struct loader *l, const char *name, char room[NAME_BYTES]);
/* The name of the module in transformers, if its tensors are called otherwise in files; else the
 * same name. */
const char *part_inner_name(const char *name, char room[NAME_BYTES]);
void part_full_name(const struct loader *l, const char *base, char out[NAME_BYTES]);
/* The name of the embedding, or of the head if the file has the two tied matrices only as that. */
const char *part_embed_name(const struct loader *l);
/* The dtype of the stored embedding; `otherwise` if it is unsupported. */
enum dtype part_embed_dtype(const struct loader *l, enum dtype otherwise);
/* True if one matrix serves as embedding and head. */
bool part_head_is_tied(struct loader *l);
/* Loads the output head, or this rank's share of it. stays_plain: as in struct stack. */
enum status part_head(struct loader *l, const char *base, bool stays_plain);
/* True if the model has no output head: encoders have none, and others may be saved without it if
 * it is not the embedding. */
bool part_is_headless(const struct loader *l);
/* Reports tensors that nobody requested. Those of other modalities and of draft modules are
 * ignored; others cause a warning, because config.json may describe another model than the files
 * contain. */
void part_report_unused(const struct loader *l);
void part_layer_name(const char *base, int32_t layer, char out[NAME_BYTES]);
void part_numbered_name(const char *pattern, int32_t e, char out[NAME_BYTES]);
/* Finds a tensor and checks its shape; *out is all of it. For dummy weights, *out is a part without
 * data. */
enum status part_of(struct loader *l, const char *name, const int64_t *dims, int32_t n_dims,
                    struct weight_part *out);
/* Reads a tensor that is a single positive number. *out is 0 if there is no such tensor, or if it
 * has more elements. */
enum status part_number(struct loader *l, const char *name, float *out);
/* The matrix of a module, [n_out][n_in], quantised or not. */
enum status part_matrix(struct loader *l, const char *base, int64_t n_out, int64_t n_in,
                        struct weight_part *out);
/* The matrices of all experts, stacked, if a single quantised tensor holds them. */
enum status part_quantised_experts(struct loader *l, const char *base, int64_t n_experts,
                                   int64_t n_out, int64_t n_in, struct weight_part *out,
                                   bool *found);

/* The matrix of one expert, of which tensors of all experts have the scales, and perhaps the
 * values. */
enum status part_expert(struct loader *l, const char *base, const struct expert_place *place,
                        int64_t n_out, int64_t n_in, struct weight_part *out);

/* Quantises a plain matrix if the options require it. Pass the result to the backend before
 * requantise_clear frees it. */
void part_requantise(struct loader *l, struct weight_part *p);

enum status part_open(struct loader *l, struct weight_desc *d, const struct weight **out);
void part_dummy_vector(struct loader *l, struct weight_part *p, bool one);
enum status part_open_vector(struct loader *l, const char *name, const struct weight_part *p,
                             const struct weight **out);
enum status part_vector(struct loader *l, const char *base, const char *suffix, int64_t n,
                        const struct weight **out);
/* A norm over `hidden` elements; ones if the model's norms have no weights. less_one: the stored
 * weights are those of the norm minus one. */
enum status part_norm(struct loader *l, const char *base, bool less_one, const struct weight **out);
/* part_linear.c: the pieces of a stack as one weight, with its bias and its adapters. */
enum status part_linear(struct loader *l, const struct stack *s, enum dtype dtype,
                        const struct weight **out);

/* The number of segments into which this rank divides K (struct weight_desc). */
int32_t part_segments(const struct loader *l, int64_t units_of_rank);

/* A table whose rows are looked up, of at least n_rows rows. */
enum status part_table(struct loader *l, const char *base, int64_t n_rows, int64_t width,
                       const struct weight **out);
/* The tensor with exactly this name, of any dtype; NULL if there is none. */
const struct checkpoint_tensor *part_raw(const struct loader *l, const char *name);

/* adapter_load.c: the adapters of the weight that has these pieces. load_adapters_end: after the
 * last weight; refuses adapters that change anything else. */
enum status load_adapters(struct loader *l, const struct stack *s, const struct piece *pieces,
                          int64_t n_out, const struct weight *of);
enum status load_adapters_end(struct loader *l);

/* embedding.c: the tables of tokens, positions and types of tokens, and the norm of their sum. */
enum status load_embedding(struct loader *l);

/* head.c: a draft head's weights, except its layer. */
enum status load_head(struct loader *l);

/* hyper.c: hyper-connections, of a layer and at the end. */
enum status load_hyper(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_end_hyper(struct loader *l);

/* indexer.c: the weights of a layer's indexer; the rows of its queries that this rank has; whether
 * these have a product of their own, since their input is not that of q. Some files contain an
 * indexer for layers that have the picks of another: indexer_pass_over. */
enum status load_indexer(struct loader *l, int32_t layer, struct layer_weights *w);
struct piece indexer_queries(const struct model_config *c, const struct layer_share *share,
                             const char *name);
bool indexer_q_is_apart(const struct model_config *c);
void indexer_pass_over(struct loader *l, int32_t layer);

/* attention.c, recurrent.c, ffn.c and act.c: the parts of a layer. */
enum status load_attention(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_recurrent(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_ffn(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_acts(struct loader *l, int32_t layer, struct layer_weights *w);
/* The width of an expert's input and output. */
static inline int64_t part_experts_width(const struct model_config *c)
{
    return c->moe_latent > 0 ? c->moe_latent : c->hidden;
}
/* expert_biases.c: the biases of this rank's parts of the experts, as [n_experts] parts of these
 * arrays. stacked: one tensor holds the matrices of all experts. */
enum status load_expert_biases(struct loader *l, int32_t layer, bool stacked, float *gate_up,
                               float *down, struct weight_part *gate_up_parts,
                               struct weight_part *down_parts);
/* streams.c: what a layer has for several streams, and its low-rank branch; and the products before
 * and after all layers. */
enum status load_streams(struct loader *l, int32_t layer, struct layer_weights *w);
enum status load_stream_ends(struct loader *l);

#endif
