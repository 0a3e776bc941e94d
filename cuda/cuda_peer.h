// SPDX-License-Identifier: Apache-2.0
/* Sums over ranks through peer memory, where all ranks are GPUs of this process that can reach each
 * other. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_PEER_H
#define SLUICE_CUDA_CUDA_PEER_H

#include "cuda/all_reduce.h"
#include "cuda/cuda_device.h"

struct peers {
    struct cuda *device;
    int32_t max_rows, hidden; // of a pass, of the model
    bool all;                 // all ranks reach each other
    struct peer_view view;
    int64_t largest;   // bytes of a message
    uint32_t *aborted; // pinned
};

/* With several ranks, in setup: opens the memory, then measures. */
enum status peers_open(struct peers *p, struct cuda *device, const struct backend_limits *limits);
enum status peers_measure(struct peers *p);
void peers_close(struct peers *p);
/* False when NCCL is to bring the logits together. */
bool peers_join(struct peers *p, const struct logits_args *a, int32_t width, enum status *st);
/* False when this sum is NCCL's; sum_bias may be NULL; n NULL: without a norm. */
bool peers_reduce(struct peers *p, const struct reduce_args *r, const float *sum_bias,
                  const struct norm_args *n, const float *weight, const float *bias,
                  enum status *st);

#endif
