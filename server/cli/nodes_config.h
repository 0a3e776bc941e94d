// SPDX-License-Identifier: Apache-2.0
/* Several processes for one model: where this one stands among them, from options or from what
 * mpirun, srun and a Kubernetes LeaderWorkerSet set; and what must be the same on all.
 * Thread: any, before the engine opens. */
#ifndef SLUICE_SERVER_CLI_NODES_CONFIG_H
#define SLUICE_SERVER_CLI_NODES_CONFIG_H

#include "engine/base/buf.h"
#include "engine/cluster/nodes.h"
#include "server/config/config.h"

struct nodes_setting {
    struct node_place place; // n_nodes 1: this process alone
    char leader[256];        // what place.leader points to
    const char *from;        // who said so, for the log
};

/* `env` as in config_load. Options win, then LWS_*, then OMPI_COMM_WORLD_*, PMI_*, then SLURM_*.
 * The environment counts only with tensor-parallel-size above 1: else the processes are replicas.
 */
enum status nodes_setting_read(const struct config *c, char **env, struct nodes_setting *out,
                               struct err *err);

/* Lines "name: value": version, what the model folder holds, and every option that changes what a
 * rank does. Weights are told apart by their headers and by samples of their data. */
enum status nodes_identity(const struct config *c, struct buf *out, struct err *err);

#endif
