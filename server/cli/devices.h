// SPDX-License-Identifier: Apache-2.0
/* The devices that this build can compute on: the only place that names the backends.
 * Thread: any. */
#ifndef SLUICE_SERVER_CLI_DEVICES_H
#define SLUICE_SERVER_CLI_DEVICES_H

#include "engine/engine.h"

/* The backend for `name` ("cpu", "cuda", or NULL/"auto": cuda where a device is present), set into
 * the options together with what its ranks share, among the options' nodes too. The memory behind
 * it, and the nodes, live until devices_release. */
enum status devices_choose(const char *name, struct engine_options *options, struct err *err);
void devices_release(struct engine_options *options);

#endif
