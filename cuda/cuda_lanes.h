// SPDX-License-Identifier: Apache-2.0
/* The lanes' state on the device, and what a step stages for it in pinned memory.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_LANES_H
#define SLUICE_CUDA_CUDA_LANES_H

#include "cuda/cuda_device.h"
#include "cuda/kernels/kernels.h"

enum { CUDA_MAX_PATCHES = 8192 }; // maximum between two flushes

/* The data that a step has staged in its slot's host memory. */
struct staging {
    char *pinned;
    size_t used_bytes, flushed_bytes; // bytes that are staged, and how many of them have been sent
};

struct lanes {
    struct cuda *device;
    int32_t max_lanes, n_blocks, n_pages, vocab; // n_pages: of windowed layers
    int32_t history_stride, blocks_stride, allowed_stride;
    int32_t *history, *blocks; // in device memory, like the following
    int32_t *pages;            // the tables of windowed layers, like `blocks`; NULL: there are none
    struct lane_params *params;
    uint32_t *allowed;
    char *staged; // device copy of a slot's pinned memory
    size_t staged_bytes;
    struct staging *staging; // staging of the current step; NULL between steps
    struct patch *patches;
    int32_t n_patches;
    int32_t *pending_end; // [max_lanes]: for each lane, the end of the history that pending patches
                          // write
};

/* Opens one more lane, for padding rows, and n_more extra block tables. All entries of these name
 * the trash page. */
enum status lanes_open(struct lanes *l, struct cuda *device, const struct backend_limits *limits,
                       int32_t n_more);
enum status lanes_open_staging(struct lanes *l, size_t n_bytes);
void lanes_close(struct lanes *l);

/* Starts a step with empty staging memory. The step ends with a flush. */
void lanes_begin(struct lanes *l, struct staging *staging);
enum status lanes_end(struct lanes *l);

enum status lanes_tokens(struct lanes *l, int32_t lane, int32_t first_pos, int32_t n,
                         const int32_t *tokens);
enum status lanes_blocks(struct lanes *l, int32_t lane, int32_t first, int32_t n,
                         const int32_t *blocks);
enum status lanes_pages(struct lanes *l, int32_t lane, int32_t first, int32_t n,
                        const int32_t *pages);
enum status lanes_params(struct lanes *l, int32_t lane, const struct sampling_params *params);
/* Sends the staged updates of the lanes. */
enum status lanes_flush(struct lanes *l);
/* Stages n bytes and sends them, with everything staged before. *device becomes their address on
 * the device. */
enum status lanes_send(struct lanes *l, const void *from, size_t n_bytes, void **device);
/* Room for n bytes in the step's staging memory; the caller copies them to the device itself. Call
 * this after a flush: if the bytes do not fit, it waits for the stream and reuses the memory of the
 * data staged so far. NULL: the device is lost. */
char *lanes_room(struct lanes *l, size_t n_bytes);
/* Marks the first n_bytes of that room as used and sent. */
void lanes_use_room(struct lanes *l, size_t n_bytes);

#endif
