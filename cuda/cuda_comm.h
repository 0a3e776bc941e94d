// SPDX-License-Identifier: Apache-2.0
/* Internals of the communicator that the ranks share. Private to this folder.
 * Thread: as stated per field. */
#ifndef SLUICE_CUDA_CUDA_COMM_H
#define SLUICE_CUDA_CUDA_COMM_H

#include "cuda/cuda_device.h"

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    CUDA_MAX_RANKS = 16,
    CUDA_COMM_WAIT_S = 120,
    PEER_CLASSES = 13, // number of size classes of messages, doubling from 4 KiB to 16 MiB
};

struct nccl {
    void *library;
    ncclResult_t (*unique_id)(ncclUniqueId *);
    ncclResult_t (*init_rank)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*abort)(ncclComm_t);
    ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
    ncclResult_t (*all_gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
                               cudaStream_t);
    const char *(*error_string)(ncclResult_t);
};

struct comm {
    struct nccl nccl;
    int32_t n_ranks, first, n_local;  // this process has ranks first to first + n_local - 1
    ncclComm_t ranks[CUDA_MAX_RANKS]; // [n_local]
    _Atomic bool aborted;             // sticky: results computed from now on are invalid
    bool stuck;                       // a thread that opens a rank has never returned

    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t opened; // protected by lock
    ncclResult_t open_result;

    /* Peer memory; see cuda_peer.c. Each rank writes its own entries before all ranks meet at a
     * barrier, and reads the others' after it. */
    int32_t n_met;  // protected by lock
    uint32_t round; // protected by lock
    bool peer_ok[CUDA_MAX_RANKS];
    char *areas[CUDA_MAX_RANKS];
    uint32_t *aborted_words[CUDA_MAX_RANKS]; // words that waiting kernels poll
    uint8_t ways[PEER_CLASSES];              // enum peer_way
};

int32_t cuda_comm_device(const struct comm *c, int32_t rank); // for a rank of this process
bool cuda_comm_is_aborted(const struct cuda *be);
enum status cuda_comm_alive(struct cuda *be); // called only with several ranks
enum status cuda_comm_all_reduce(struct cuda *be, struct tensor y, int32_t n_rows, int32_t width);
enum status cuda_comm_all_gather(struct cuda *be, const float *from, float *to, size_t n);

#endif
