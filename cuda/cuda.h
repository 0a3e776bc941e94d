/* The CUDA backend. Present in the build when nvcc was found; whether a device is there is known
 * only at run time.
 * Thread: see engine/backend.h. */
#ifndef SLUICE_CUDA_CUDA_H
#define SLUICE_CUDA_CUDA_H

#include "engine/backend.h"

/* Number of usable devices; 0 when there is no driver. */
int32_t cuda_device_count(void);

enum status cuda_open(const struct backend_options *options, struct backend **out,
                      struct err *err);

/* The common ground of n ranks, devices 0 .. n - 1 of this process (NCCL). */
enum status cuda_comm_create(int32_t n_ranks, struct comm **out, struct err *err);
void cuda_comm_destroy(struct comm *comm);

/* `sluice bench-ops --device cuda`: prints the time of each op at an 8B Llama's shapes and those of
 * a mixture of many small experts, with made-up weights: microseconds, bandwidth, arithmetic rate,
 * and the share of what a large copy and a large product reach in the same run. `only` (or NULL):
 * lines that contain it. */
enum status cuda_bench(const struct backend_options *options, const char *only, struct err *err);

#endif
