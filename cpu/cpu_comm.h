// SPDX-License-Identifier: Apache-2.0
/* Internals of the communicator, private to this folder.
 * Thread: a rank owns its contribution until it meets the others; between two meetings the streams
 * belong to the first rank of the process. */
#ifndef SLUICE_CPU_COMM_H
#define SLUICE_CPU_COMM_H

#include "cpu/cpu_internal.h"

#include <pthread.h>
#include <stdatomic.h>

struct comm_part { // a rank's contribution to the current call
    const float *in;
    float *out;
    int64_t in_stride, out_stride;
};

enum { CPU_MAX_RANKS = 256 }; // 16 times the engine's limit (MAX_RANKS)

struct comm {
    int32_t n_ranks, first, n_local; // this process has ranks first to first + n_local - 1
    int32_t n_nodes, node;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int32_t n_waiting;
    uint32_t round;
    bool broken; // a rank has left, or the communicator was aborted

    int streams[CPU_MAX_RANKS]; // node 0: a stream per node; other nodes: only [0]; -1: none
    uint64_t n_calls;           // number of calls made over the streams
    float *room;                // buffer for data to and from other nodes
    size_t room_floats;
    struct comm_part ranks[]; // [n_ranks]
};

/* cpu_comm_nodes.c: opens the streams, and the two collectives between nodes. One thread of each
 * process calls the collectives after its ranks have met. False: a node is gone. */
enum status cpu_comm_connect(struct comm *c, const struct comm_place *place, struct err *err);
bool cpu_comm_sum_nodes(struct comm *c, int64_t n_rows, int64_t width);
bool cpu_comm_gather_nodes(struct comm *c, int64_t n_rows, int64_t width);

/* The sum of an element over all ranks, added up as a balanced tree. */
float cpu_comm_tree_sum(const struct comm *c, int64_t row, int64_t col); // cpu_comm_tree.c

#endif
