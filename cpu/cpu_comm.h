// SPDX-License-Identifier: Apache-2.0
/* The inside of the ranks' common ground. Not for other folders.
 * Thread: what a rank brings is its own until it meets the others; streams belong to the first rank
 * of the process between two meetings. */
#ifndef SLUICE_CPU_COMM_H
#define SLUICE_CPU_COMM_H

#include "cpu/cpu_internal.h"

#include <pthread.h>
#include <stdatomic.h>

struct comm_part { // what a rank brings to the call in progress
    const float *in;
    float *out;
    int64_t in_stride, out_stride;
};

enum { CPU_MAX_RANKS = 256 }; // chosen: 16 times what the engine takes (MAX_RANKS)

struct comm {
    int32_t n_ranks, first, n_local; // this process has ranks first .. first + n_local - 1
    int32_t n_nodes, node;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int32_t n_waiting;
    uint32_t round;
    bool broken; // a rank has left, or the set was aborted

    int streams[CPU_MAX_RANKS]; // node 0: by node; others: [0]; -1: none
    uint64_t n_calls;           // over the streams
    float *room;                // what came from other nodes, and goes to them
    size_t room_floats;
    struct comm_part ranks[]; // [n_ranks]
};

/* cpu_comm_nodes.c: opens the streams; and the two collectives between nodes, called by one thread
 * of each process when its ranks have met. False: a node is gone. */
enum status cpu_comm_connect(struct comm *c, const struct comm_place *place, struct err *err);
bool cpu_comm_sum_nodes(struct comm *c, int64_t n_rows, int64_t width);
bool cpu_comm_gather_nodes(struct comm *c, int64_t n_rows, int64_t width);

/* The sum over all ranks of an element: a balanced tree. */
float cpu_comm_tree_sum(const struct comm *c, int64_t row, int64_t col); // cpu_comm_tree.c

#endif
