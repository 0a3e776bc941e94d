// SPDX-License-Identifier: Apache-2.0
/* Whether there is a model in a folder, and what somebody may have meant who gave another one. A
 * path that is no folder at all is model_choice's. Thread: main. */
#ifndef SLUICE_SERVER_CLI_MODEL_FOLDER_H
#define SLUICE_SERVER_CLI_MODEL_FOLDER_H

#include "engine/base/status.h"

/* A folder with config.json, or a GGUF file; else a sentence that says what is there instead. */
enum status model_folder_check(const char *model, struct err *err);

#endif
