// SPDX-License-Identifier: Apache-2.0
/* A model's small files by name, from its folder or generated from the metadata of a GGUF file:
 * config.json, generation_config.json, tokenizer.json and tokenizer_config.json. A GGUF file has no
 * other files.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_FOLDER_H
#define SLUICE_ENGINE_GGUF_FOLDER_H

#include "engine/base/json.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* *is: the model is a single file rather than a folder. One that cannot be read is an error. */
enum status folder_is_file(const char *model, bool *is, struct err *err);

/* Also true for a file that cannot be read, so that reading it reports the reason. */
bool folder_has(const char *model, const char *name);

/* Like file_read and json_parse_file. */
enum status folder_read(const char *model, const char *name, size_t max_bytes, char **data,
                        size_t *n_bytes, struct err *err);
enum status folder_json(const char *model, const char *name, size_t max_bytes, struct json **root,
                        struct err *err);

#endif
