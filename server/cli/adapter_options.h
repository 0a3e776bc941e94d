// SPDX-License-Identifier: Apache-2.0
/* --lora-modules: names and folders of adapters. Thread: main. */
#ifndef SLUICE_SERVER_CLI_ADAPTER_OPTIONS_H
#define SLUICE_SERVER_CLI_ADAPTER_OPTIONS_H

#include "server/config/config.h"

/* Fills the adapters of c->engine from c->lora_modules. Each entry is NAME=FOLDER, or vLLM's JSON
 * object with `name` and `path`. */
enum status adapter_options_read(struct config *c, struct err *err);
/* Folders of adapters given as ORG/NAME[@REVISION], from Hugging Face's cache or downloaded. */
enum status adapter_options_find(struct config *c, struct err *err);
void adapter_options_free(struct config *c);

#endif
