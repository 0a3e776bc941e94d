// SPDX-License-Identifier: Apache-2.0
/* Overrides of config.json members by the operator (--hf-overrides). Thread: plain data. */
#ifndef SLUICE_ENGINE_MODEL_OVERRIDES_H
#define SLUICE_ENGINE_MODEL_OVERRIDES_H

#include "engine/base/json.h"

/* `text` is a JSON object, or NULL for none. */
enum status model_config_override(struct json *config, const char *text, struct err *err);

#endif
