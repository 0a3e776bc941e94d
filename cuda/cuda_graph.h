// SPDX-License-Identifier: Apache-2.0
/* Captured passes: decides whether a pass is launched, captured or replayed.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_GRAPH_H
#define SLUICE_CUDA_CUDA_GRAPH_H

#include "cuda/cuda_device.h"
#include "cuda/few.h"
#include "cuda/state.h"

struct graphs;

enum graph_use { GRAPH_NONE, GRAPH_CAPTURE, GRAPH_REPLAY };
struct graph_key {
    int32_t model, set, n_rows, n_out, n_draws;
    struct few_pass few;
    int32_t adapted[2]; // items of rows and of out rows that have adapters
    int32_t draws_wait; // 1: the graph ends before the draws, which are launched individually
    struct state_work state;
    struct hidden_layers hidden; // entries from hidden.n on are zero
};
enum { GRAPH_MAX_ROWS = 512 };
int32_t cuda_bucket(int32_t n); // the number to which n is padded
struct graphs *graphs_open(struct cuda *device);
void graphs_close(struct graphs *g); // accepts NULL
enum status graphs_begin(struct graphs *g, const struct graph_key *key, enum graph_use *use);
/* Launches the graph that was just captured, or the one to replay. */
enum status graphs_end(struct graphs *g);
void graphs_abort(struct graphs *g); // ends a capture if one is in progress; accepts NULL

#endif
