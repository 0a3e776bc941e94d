// SPDX-License-Identifier: Apache-2.0
/* Converts the configuration to engine options, for every command that loads a model.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_ENGINE_CONFIG_H
#define SLUICE_SERVER_CLI_ENGINE_CONFIG_H

#include "server/config/config.h"

/* Reads config.json and reports reasons why the model cannot be loaded. It is fast, since it opens
 * neither weights nor devices. */
enum status engine_config_check(const struct config *c, struct err *err);

/* Copies the struct engine_options of the configuration, and sets the fields that no option sets;
 * strings are borrowed. Also chooses the device and waits for all nodes to join, which may take a
 * while. Pair it with devices_release, even after an error. */
enum status engine_config(const struct config *c, struct engine_options *out, struct err *err);

#endif
