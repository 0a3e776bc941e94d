// SPDX-License-Identifier: Apache-2.0
/* `sluice serve` on the nodes that do not serve HTTP.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_SERVE_NODE_H
#define SLUICE_SERVER_CLI_SERVE_NODE_H

#include "server/config/config.h"

/* Returns after node 0 ends: 0; 1 if the node could not start, 2 if another node or a device was
 * lost. */
int serve_node(const struct config *c);

#endif
