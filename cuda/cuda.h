// SPDX-License-Identifier: Apache-2.0
/* The CUDA backend. Present in the build when nvcc was found; whether a device is there is known
 * only at run time.
 * Thread: see engine/device/backend.h. */
#ifndef SLUICE_CUDA_CUDA_H
#define SLUICE_CUDA_CUDA_H

#include "engine/device/backend.h"

/* Number of usable devices; 0 when there is no driver. */
int32_t cuda_device_count(void);
/* Whether a build for these architectures, as in "80 90a", has code for devices of this compute
 * capability, as in 89: of its own major number, and no higher minor one. 9.0 takes 90a alone. */
bool cuda_arch_runs(const char *archs, int32_t sm);

enum status cuda_open(const struct backend_options *options, struct backend **out, struct err *err);

/* The common ground of the ranks of all nodes (NCCL); this process's are its devices 0, 1, ...
 * Waits for the other nodes. */
enum status cuda_comm_open(const struct comm_place *place, struct comm **out, struct err *err);
/* Any thread: collectives under way end, later ones fail, and no step gives results any more. */
void cuda_comm_abort(struct comm *comm);
void cuda_comm_destroy(struct comm *comm);

#endif
