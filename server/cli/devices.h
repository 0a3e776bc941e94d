// SPDX-License-Identifier: Apache-2.0
/* The devices that this build supports: the only place that names the backends. Thread: any. */
#ifndef SLUICE_SERVER_CLI_DEVICES_H
#define SLUICE_SERVER_CLI_DEVICES_H

#include "engine/options.h"

/* Stores the backend for `name` in the options ("cpu", "cuda", or NULL/"auto": cuda if a device is
 * present), together with the communicator of its ranks, which may be on several nodes. The
 * communicator and the connections between nodes exist until devices_release. */
enum status devices_choose(const char *name, struct engine_options *options, struct err *err);
void devices_release(struct engine_options *options);

#endif
