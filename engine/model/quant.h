// SPDX-License-Identifier: Apache-2.0
/* The quantisation of a checkpoint according to its config: which modules are quantised, and in
 * which formats. It is read from config.json's quantization_config, or from the files that older
 * tools write. Every method becomes a list of rules; the first rule that matches a module's name
 * decides.
 * Thread: any, once it is open. */
#ifndef SLUICE_ENGINE_MODEL_QUANT_H
#define SLUICE_ENGINE_MODEL_QUANT_H

#include "engine/model/formats.h"

struct quant;

/* *out is NULL if the model in the folder is not quantised. */
enum status quant_open(const char *dir, struct quant **out, struct err *err);
void quant_close(struct quant *q); // accepts NULL

/* The quant_method that the model's files declare, without reading it further; "": none. */
enum status quant_method_of(const char *dir, char *out, size_t n_bytes, struct err *err);
/* Whether `name` is this method, or another name of it, as --quantization may give it. */
bool quant_method_is(const char *method, const char *name);

/* The KV format that the checkpoint requests: "fp8", or for any other format a description for
 * messages. NULL: it requests none. q may be NULL. */
const char *quant_kv_cache(const struct quant *q);

/* Reads a module's matrix; *found becomes false if its weights are plain. Whether a module is
 * quantised is decided by its tensors, not by the config's lists of modules; but a quantised module
 * that a list excludes is an error. Sets m->scheme. `other` is the module's name in the model's own
 * tree, which some lists use. */
enum status quant_read(const struct quant *q, struct module *m, const char *other,
                       struct weight_part *out, bool *found);

/* Without a checkpoint: dummy weights in the format that the config gives the module. */
void quant_dummy(const struct quant *q, struct module *m, const char *other,
                 struct weight_part *out, bool *found);

#endif
