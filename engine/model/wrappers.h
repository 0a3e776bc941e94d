// SPDX-License-Identifier: Apache-2.0
/* Models whose language part is one of several: where its config is, which family it belongs to,
 * and which tensors are those of other parts. Thread: plain functions. */
#ifndef SLUICE_ENGINE_MODEL_WRAPPERS_H
#define SLUICE_ENGINE_MODEL_WRAPPERS_H

#include "engine/base/json.h"
#include "engine/base/status.h"

/* The config of the language part inside `root`, or `root` itself. */
struct json *wrapper_text(struct json *root);
/* The model_type of the language part of a wrapper whose text config does not name one that is a
 * family; NULL: not known. */
const char *wrapper_family(const char *model_type);
/* True if the head is tied whenever the text config says so, whatever the wrapper's own key. */
bool wrapper_heeds_inner_tie(const struct json *root);
/* Adds the sizes that wrappers' classes assume in a text config of this family, and refuses
 * wrappers whose language part is not a causal model. */
enum status wrapper_complete(const struct json *root, const char *family, struct json *text,
                             struct err *err);
/* True if the name belongs to a vision or audio encoder, which the engine does not use. */
bool wrapper_is_tower(const char *name);

#endif
