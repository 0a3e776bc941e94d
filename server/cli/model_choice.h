// SPDX-License-Identifier: Apache-2.0
/* Which model a command loads: the meaning of its argument, and the choices to offer if no model
 * was given.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_MODEL_CHOICE_H
#define SLUICE_SERVER_CLI_MODEL_CHOICE_H

#include "server/config/config.h"

/* If no model was given: asks for one if there is a terminal and `may_ask`; otherwise returns an
 * error that says what to pass. */
enum status model_choose(struct config *c, bool may_ask, struct err *err);

/* Resolves ORG/NAME[@REVISION] to its folder in the cache, downloading it if needed; it is served
 * under that name. Folders are left unchanged. */
enum status model_find(struct config *c, struct err *err);

#endif
