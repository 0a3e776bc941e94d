// SPDX-License-Identifier: Apache-2.0
/* What a checkpoint's config says of quantisation: which modules, in which format. Read from
 * config.json's quantization_config or the files that older tools write beside it. What its methods
 * have in common is a list of rules, the first of which that fits a module's name decides.
 * Thread: any, once it is open. */
#ifndef SLUICE_ENGINE_MODEL_QUANT_H
#define SLUICE_ENGINE_MODEL_QUANT_H

#include "engine/model/formats.h"

struct quant;

/* *out is NULL if the folder's model is not quantised. */
enum status quant_open(const char *dir, struct quant **out, struct err *err);
void quant_close(struct quant *q); // accepts NULL

/* What the checkpoint asks the KV cache to be: "fp8", or words for messages where it is something
 * else; NULL: nothing. q may be NULL. */
const char *quant_kv_cache(const struct quant *q);

/* Reads a module's matrix; *found is false if its weights are stored as they are. Tensors are
 * trusted over lists, but a module that is quantised against its list is an error. m->scheme is set
 * here; `other` is the module's name in the model's own tree, as some lists have it. */
enum status quant_read(const struct quant *q, struct module *m, const char *other,
                       struct weight_part *out, bool *found);

/* The same without a checkpoint: dummy weights, in the format that the config gives the module. */
void quant_dummy(const struct quant *q, struct module *m, const char *other,
                 struct weight_part *out, bool *found);

#endif
