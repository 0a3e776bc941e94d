// SPDX-License-Identifier: Apache-2.0
/* A model's small files by name, wherever they are: in its folder, or in the metadata of a GGUF
 * file, which are then written as config.json, generation_config.json, tokenizer.json and
 * tokenizer_config.json would have them. All other files a GGUF file lacks.
 * Thread: any. */
#ifndef SLUICE_ENGINE_GGUF_FOLDER_H
#define SLUICE_ENGINE_GGUF_FOLDER_H

#include "engine/base/json.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* Whether the model is one file and not a folder. */
bool folder_is_file(const char *model);

bool folder_has(const char *model, const char *name);

/* As file_read and json_parse_file. */
enum status folder_read(const char *model, const char *name, size_t max_bytes, char **data,
                        size_t *n_bytes, struct err *err);
enum status folder_json(const char *model, const char *name, size_t max_bytes, struct json **root,
                        struct err *err);

#endif
