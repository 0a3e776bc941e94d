// SPDX-License-Identifier: Apache-2.0
/* Checks whether a folder contains a model, and suggests what may have been meant. Paths that do
 * not exist are handled by model_choice.h.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_MODEL_FOLDER_H
#define SLUICE_SERVER_CLI_MODEL_FOLDER_H

#include "engine/base/status.h"

/* OK for a folder with config.json, or a GGUF file; otherwise the error says what is there
 * instead. */
enum status model_folder_check(const char *model, struct err *err);

#endif
