// SPDX-License-Identifier: Apache-2.0
/* From what the operator has set to an engine that can be opened: one way for every command that
 * loads a model.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_ENGINE_CONFIG_H
#define SLUICE_SERVER_CLI_ENGINE_CONFIG_H

#include "engine/engine.h"
#include "server/config/config.h"

/* Reads config.json and says what speaks against loading: quick, and nothing is opened. */
enum status engine_config_check(const struct config *c, struct err *err);

/* The config's own struct engine_options, with what an opener adds to it; strings are borrowed. The
 * device is chosen too, and all nodes have met, which may take a while: pair with devices_release,
 * also after an error. */
enum status engine_config(const struct config *c, struct engine_options *out, struct err *err);

#endif
