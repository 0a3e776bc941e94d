// SPDX-License-Identifier: Apache-2.0
/* The formats in which a quantised module's tensors are stored: each a row that makes a codec of
 * them. What belongs to which module is the config's affair (quant.h).
 * Thread: any. */
#ifndef SLUICE_ENGINE_MODEL_FORMATS_H
#define SLUICE_ENGINE_MODEL_FORMATS_H

#include "engine/model/checkpoint.h"

struct module_format;

/* How a module is quantised, as far as the config says it. */
struct quant_scheme {
    const struct module_format *format; // NULL: the module is left alone
    int32_t bits;                       // of a packed number
    int32_t group;                      // inputs that share a scale; 0: all of a row
    int32_t block_rows, block_cols;     // of a grid of scales; 0: none
    bool asymmetric;
    int32_t zero_offset;      // added to what is stored as zeros
    struct input_rule inputs; // but for what the module's tensors say
};

/* A module whose tensors are looked for. */
struct module {
    const struct checkpoint *checkpoint;
    const char *name; // in full, as the checkpoint has it
    /* Of its matrix. More than 1 expert: all of them are in one tensor. */
    int64_t n_experts, n_out, n_in;
    const struct quant_scheme *scheme;
    bool *taken; // by place in checkpoint_tensors, set for each tensor that is found; may be NULL
    struct err *err;
};

struct module_format {
    const char *name;   // as configs say it, and messages
    const char *values; // what follows the module's name in that of its quantised numbers
    enum status (*read)(const struct module *m, struct weight_codec *out);
    enum dtype number, scale; // as dummy weights have them; `number` I64: they are plain
};

const struct module_format *format_find(const char *name); // NULL if there is none

/* The module's tensor of this suffix; NULL if there is none. */
const struct checkpoint_tensor *module_tensor(const struct module *m, const char *suffix);

/* Whether the tensor holds weights as they are. */
bool tensor_is_plain(const struct checkpoint_tensor *t);

/* Whether the module's numbers are there in any of the formats; *which then is their tensor. */
bool module_is_quantised(const struct module *m, const struct checkpoint_tensor **which);

/* The module's matrix by its scheme's format. */
enum status module_read(const struct module *m, struct weight_part *out);
/* The same without a checkpoint: dummy weights whose codec says how they are stored; false: as
 * plain ones. */
bool module_dummy(const struct module *m, struct weight_part *out);

#endif
