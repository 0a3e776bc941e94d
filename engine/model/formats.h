// SPDX-License-Identifier: Apache-2.0
/* Storage formats of quantised modules. Each is a table row that builds a codec from the tensors of
 * a module. The config decides which module has which format (quant.h).
 * Thread: any. */
#ifndef SLUICE_ENGINE_MODEL_FORMATS_H
#define SLUICE_ENGINE_MODEL_FORMATS_H

#include "engine/model/checkpoint.h"

struct module_format;

/* How a module is quantised, according to the config. */
struct quant_scheme {
    const struct module_format *format; // NULL: the module is not quantised
    int32_t bits;                       // bits of a packed value
    int32_t group;                      // number of inputs that share a scale; 0: a whole row
    // Rows and columns that share a scale in a two-dimensional grid; 0: no grid.
    int32_t block_rows, block_cols;
    bool asymmetric;
    bool act_order;           // a tensor says which group each input belongs to
    bool inverse_scale;       // the values are divided by the tensor's scale
    int32_t zero_offset;      // added to each stored zero
    struct input_rule inputs; // defaults, which the module's tensors may override
};

/* An expert's matrix in tensors of all experts, [n_experts][n_rows][n_in]: rows from first_row on,
 * row_step apart. */
struct expert_place {
    const char *stack; // their name, to which suffixes are added; NULL: there are none
    int64_t expert, n_experts, first_row, row_step, n_rows;
    bool turned; // they are [n_experts][n_in][n_rows]
};

/* A module, and what is needed to find its tensors. */
struct module {
    const struct checkpoint *checkpoint;
    const char *name; // full name in the checkpoint
    /* Shape of its matrix. If n_experts is more than 1, one tensor holds all experts. */
    int64_t n_experts, n_out, n_in;
    struct expert_place place; // of what the module has no tensors of its own for
    const struct quant_scheme *scheme;
    bool *taken; // indexed like checkpoint_tensors; true for each tensor that is used; may be NULL
    struct err *err;
};

struct module_format {
    const char *name;   // name in configs and messages
    const char *values; // suffix of the tensor with the quantised values
    enum status (*read)(const struct module *m, struct weight_codec *out);
    enum dtype number, scale; // types for dummy weights; `number` I64: plain weights
};

const struct module_format *format_find(const char *name); // NULL if there is none

/* The module's tensor with this suffix; NULL if there is none. */
const struct checkpoint_tensor *module_tensor(const struct module *m, const char *suffix);

/* True if the tensor holds unquantised weights. */
bool tensor_is_plain(const struct checkpoint_tensor *t);

/* True if the module has quantised values in any of the formats; *which is their tensor. */
bool module_is_quantised(const struct module *m, const struct checkpoint_tensor **which);

/* Reads the module's matrix in its scheme's format; `values` is the tensor that
 * module_is_quantised found, whose name outlives m->name. */
enum status module_read(const struct module *m, const struct checkpoint_tensor *values,
                        struct weight_part *out);
/* Without a checkpoint: dummy weights with the codec that the format implies. False: the format's
 * weights are plain. */
bool module_dummy(const struct module *m, struct weight_part *out);

#endif
