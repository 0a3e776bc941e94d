// SPDX-License-Identifier: Apache-2.0
/* All-reduce over ranks through peer memory, if all ranks are GPUs of this process with access to
 * each other's memory.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_PEER_H
#define SLUICE_CUDA_CUDA_PEER_H

#include "cuda/all_reduce.h"
#include "cuda/cuda_device.h"

struct peers {
    struct cuda *device;
    int32_t max_rows, hidden; // maximum number of rows of a pass; width of the model
    bool all;                 // every rank can access every other's memory
    struct peer_view view;
    int64_t largest;   // maximum number of bytes of a message
    uint32_t *aborted; // pinned host memory
};

/* For setup with several ranks: allocates the memory, then measures. */
enum status peers_open(struct peers *p, struct cuda *device, const struct backend_limits *limits);
enum status peers_measure(struct peers *p);
void peers_close(struct peers *p);
/* False if NCCL must gather the logits. */
bool peers_join(struct peers *p, const struct logits_args *a, int32_t width, enum status *st);
/* False if NCCL must do this sum. sum_bias may be NULL; n NULL: no norm. */
bool peers_reduce(struct peers *p, const struct reduce_args *r, const float *sum_bias,
                  const struct norm_args *n, const float *weight, const float *bias,
                  enum status *st);

#endif
