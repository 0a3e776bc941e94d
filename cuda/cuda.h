// SPDX-License-Identifier: Apache-2.0
/* The CUDA backend. It is compiled in if nvcc was found; whether a device exists is known only at
 * run time.
 * Thread: see engine/device/backend.h. */
#ifndef SLUICE_CUDA_CUDA_H
#define SLUICE_CUDA_CUDA_H

#include "engine/device/backend.h"

/* Number of usable devices; 0 if there is no driver. */
int32_t cuda_device_count(void);
/* True if a build for these architectures ("80 90a") has code for a device of this compute
 * capability (such as 89): the same major number and no higher minor number. 9.0 needs 90a. */
bool cuda_arch_runs(const char *archs, int32_t sm);

enum status cuda_open(const struct backend_options *options, struct backend **out, struct err *err);

/* Connects the ranks of all nodes (NCCL). This process's ranks are its devices 0, 1, ... Waits for
 * the other nodes. */
enum status cuda_comm_open(const struct comm_place *place, struct comm **out, struct err *err);
/* Any thread. Ends collectives in progress; later ones fail, and no step returns results any
 * more. */
void cuda_comm_abort(struct comm *comm);
void cuda_comm_destroy(struct comm *comm);

#endif
