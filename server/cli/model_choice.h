// SPDX-License-Identifier: Apache-2.0
/* Which model a command is to load: what its argument means, and what to offer who gave none.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_MODEL_CHOICE_H
#define SLUICE_SERVER_CLI_MODEL_CHOICE_H

#include "server/config/config.h"

/* Where no model was given: asks for one if there is a terminal and `may_ask`, else an error that
 * says what to give. */
enum status model_choose(struct config *c, bool may_ask, struct err *err);

/* A model that is no folder but ORG/NAME[@REVISION] becomes its folder in the cache, downloaded if
 * need be, and is served under its name. */
enum status model_find(struct config *c, struct err *err);

#endif
