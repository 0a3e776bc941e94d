// SPDX-License-Identifier: Apache-2.0
/* A rank's device: its stream, its memory, and its sticky error. All other files of this folder
 * build on it. A step is staged in pinned memory and copied in stream order. By the time a step's
 * data arrives, the previous step has read the device buffers, so these need no double buffering.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_DEVICE_H
#define SLUICE_CUDA_CUDA_DEVICE_H

#include "engine/device/ops.h"

#include <cuda_runtime_api.h>

struct cuda {
    struct backend base; // must be the first member
    struct backend_options options;
    enum status lost; // sticky
    int32_t sm, n_sms;
    char device_name[64];
    cudaStream_t stream;

    void **allocations; // everything that cuda_alloc returned, to be freed at close
    int32_t n_allocations, max_allocations;

    /* Used by cuda_weights.c and cuda_upload.c. */
    struct weight *weights;
    struct rope_table *ropes;
    size_t max_expanded_bytes; // the largest quantised matrix that products of many rows dequantise
    int64_t max_rounded_in;    // maximum number of inputs of a weight whose inputs are rounded; 0:
                               // there is none
    int32_t n_adapters;        // that every weight of adapters has
    int32_t max_adapter_sums;  // see adapter.h; 0: there are no adapters
    int64_t max_expert_width;  // ffn + hidden of the widest experts opened; 0: there are none
    struct upload *upload;
};

static inline struct cuda *cuda_of(struct backend *be)
{
    return (struct cuda *)be;
}

/* Returns OK, or the sticky ERR_DEVICE after logging the error. */
enum status cuda_check(struct cuda *be, cudaError_t e, const char *what);
#define CUDA_TRY(be, call) TRY(cuda_check((be), (call), #call))

/* Makes the rank's device current for the calling thread. Each rank has a thread, and the thread
 * that opens a backend need not be the one that runs it. */
enum status cuda_enter(struct cuda *be);

/* Zeroed device memory, freed at close. */
enum status cuda_alloc(struct cuda *be, size_t n_bytes, void **out);

/* Opens options.device and creates its stream. */
enum status cuda_device_open(struct cuda *be, struct err *err);
void cuda_device_close(struct cuda *be); // called last, after everything else is closed

/* An entry of the backend table. */
enum status cuda_facts(struct backend *base, struct backend_facts *out);
enum status cuda_alloc_op(struct backend *base, size_t n_bytes, struct dmem *out);
enum status cuda_write(struct backend *base, struct dmem to, const void *from, size_t n_bytes);
enum status cuda_read(struct backend *base, void *to, struct dmem from, size_t n_bytes);

#endif
