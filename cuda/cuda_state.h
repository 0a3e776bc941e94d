// SPDX-License-Identifier: Apache-2.0
/* State sets on the device. Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_STATE_H
#define SLUICE_CUDA_CUDA_STATE_H

#include "cuda/cuda_device.h"
#include "cuda/cuda_kv.h"
#include "cuda/cuda_lanes.h"
#include "cuda/state.h"

struct state_set {
    int32_t n_layers, n_slots; // 0: the set is not open
    struct state_view *layers;
    struct state_view *views; // copy of `layers` on the device
};

struct state_sets {
    struct cuda *device;
    int32_t max_lanes;
    struct state_set all[CUDA_MAX_SETS];
};

enum status cuda_state_bytes(struct backend *base, const struct state_set_desc *desc,
                             struct state_sizes *out);
enum status states_open(struct state_sets *s, int32_t index, const struct state_set_desc *desc,
                        int32_t n_snapshots, struct err *err);
void states_close(struct state_sets *s);
/* NULL if there is no such layer. */
const struct state_view *states_layer(const struct state_sets *s, int32_t set, int32_t layer);
enum status states_copy(struct state_sets *s, struct lanes *lanes, int32_t set, int32_t n,
                        const struct state_copy *copies);
/* The part of move_slots that concerns the set; does nothing if there is no such set. */
enum status states_move(struct state_sets *s, struct lanes *lanes, int32_t set, int32_t n,
                        const struct slot_move *moves);

#endif
