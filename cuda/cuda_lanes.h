// SPDX-License-Identifier: Apache-2.0
/* The lanes' state on the device, and what a step stages for it in pinned memory.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_LANES_H
#define SLUICE_CUDA_CUDA_LANES_H

#include "cuda/cuda_device.h"
#include "cuda/kernels/kernels.h"

enum { CUDA_MAX_PATCHES = 8192 }; // between two flushes

/* What a step has staged, in host memory of its slot. */
struct staging {
    char *pinned;
    size_t used_bytes, flushed_bytes; // staged; of which sent
};

struct lanes {
    struct cuda *device;
    int32_t max_lanes, n_blocks, vocab;
    int32_t history_stride, blocks_stride, allowed_stride;
    int32_t *history, *blocks; // device memory, and so on
    struct lane_params *params;
    uint32_t *allowed;
    char *staged; // the mirror of a slot's pinned memory
    size_t staged_bytes;
    struct staging *staging; // of the step in hand; NULL between steps
    struct patch *patches;
    int32_t n_patches;
    int32_t *told; // [max_lanes]: where the history ends that patches bring to a lane
};

/* One lane more than there are, for padding, and n_more tables, of which all entries are the trash
 * page. */
enum status lanes_open(struct lanes *l, struct cuda *device, const struct backend_limits *limits,
                       int32_t n_more);
enum status lanes_open_staging(struct lanes *l, size_t n_bytes);
void lanes_close(struct lanes *l);

/* A step begins: its staging memory is empty. It ends with a flush. */
void lanes_begin(struct lanes *l, struct staging *staging);
enum status lanes_end(struct lanes *l);

enum status lanes_tokens(struct lanes *l, int32_t lane, int32_t first_pos, int32_t n,
                         const int32_t *tokens);
enum status lanes_blocks(struct lanes *l, int32_t lane, int32_t first, int32_t n,
                         const int32_t *blocks);
enum status lanes_params(struct lanes *l, int32_t lane, const struct sampling_params *params);
/* Sends what the lanes' updates have staged. */
enum status lanes_flush(struct lanes *l);
/* Stages n bytes and sends them with what came before: *device is where they will be. */
enum status lanes_send(struct lanes *l, const void *from, size_t n_bytes, void **device);
/* Room for n bytes that the caller sends itself, in the step's staging memory: behind a flush,
 * since what is there is waited for and dropped where they do not fit. NULL: the device is lost. */
char *lanes_room(struct lanes *l, size_t n_bytes);
void lanes_use_room(struct lanes *l, size_t n_bytes); // so much of it is, and is sent

#endif
