// SPDX-License-Identifier: Apache-2.0
/* Several processes that serve one model: the place of this process among them, from options or
 * from the variables of mpirun, srun and Kubernetes LeaderWorkerSet, and everything that must be
 * the same in all of them.
 * Thread: any, before the engine opens. */
#ifndef SLUICE_SERVER_CLI_NODES_CONFIG_H
#define SLUICE_SERVER_CLI_NODES_CONFIG_H

#include "engine/base/buf.h"
#include "engine/cluster/nodes.h"
#include "server/config/config.h"

struct nodes_setting {
    struct node_place place; // n_nodes is 1 for a single process
    char leader[256];        // storage for place.leader
    const char *from;        // origin of the setting, for the log
};

/* `env` is as in config_load. Options take precedence, then LWS_*, OMPI_COMM_WORLD_*, PMI_*, and
 * SLURM_*. The environment is used only if tensor-parallel-size is above 1; otherwise the processes
 * are replicas. */
enum status nodes_setting_read(const struct config *c, char **env, struct nodes_setting *out,
                               struct err *err);

/* Writes lines "name: value" with the version, the contents of the model folder, and every option
 * that changes what a rank does. Weights are compared by their headers and samples of their
 * data. */
enum status nodes_identity(const struct config *c, struct buf *out, struct err *err);

#endif
