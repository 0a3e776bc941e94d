// SPDX-License-Identifier: Apache-2.0
/* A rank's device: its stream, its memory, and the error that is sticky. All other files of this
 * folder stand on it. A step is staged in pinned memory and travels in stream order, so device
 * buffers that a step fills need no second copy: the step before has read them by then.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_DEVICE_H
#define SLUICE_CUDA_CUDA_DEVICE_H

#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

struct cuda {
    struct backend base; // first
    struct backend_options options;
    enum status lost; // sticky
    int32_t sm, n_sms;
    char device_name[64];
    cudaStream_t stream;

    void **allocations; // everything from cuda_alloc, for close
    int32_t n_allocations, max_allocations;

    /* cuda_weights.c, cuda_upload.c */
    struct weight *weights;
    struct rope_table *ropes;
    size_t max_expanded_bytes; // of a quantised matrix that products of many rows expand
    int64_t max_rounded_in;    // inputs of a weight that wants them rounded; 0: none does
    int64_t max_expert_width;  // ffn + hidden of the widest experts opened, 0: none
    struct upload *upload;
};

static inline struct cuda *cuda_of(struct backend *be)
{
    return (struct cuda *)be;
}

/* OK, or the sticky ERR_DEVICE after a line in the log. */
enum status cuda_check(struct cuda *be, cudaError_t e, const char *what);
#define CUDA_TRY(be, call) TRY(cuda_check((be), (call), #call))

/* Makes the rank's device the calling thread's: each rank has a thread, and the thread that opens a
 * backend need not be the one that runs it. */
enum status cuda_enter(struct cuda *be);

/* Zeroed device memory that lives until close. */
enum status cuda_alloc(struct cuda *be, size_t n_bytes, void **out);

/* options.device, and its stream. */
enum status cuda_device_open(struct cuda *be, struct err *err);
void cuda_device_close(struct cuda *be); // after all else

/* Of the table. */
enum status cuda_facts(struct backend *be, struct backend_facts *out);
enum status cuda_alloc_op(struct backend *be, size_t n_bytes, struct dmem *out);
enum status cuda_write(struct backend *be, struct dmem to, const void *from, size_t n_bytes);
enum status cuda_read(struct backend *be, void *to, struct dmem from, size_t n_bytes);

#endif
