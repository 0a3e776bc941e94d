// SPDX-License-Identifier: Apache-2.0
/* A backend without arithmetic: the next token is a hash of the prefix, read slot by slot through
 * the lane's block table, so that each right answer is known in advance and a wrong slot, row, mask
 * or history shows. Slots remember token and position; what nobody owns is poisoned. Thread: as any
 * backend. */
#ifndef SLUICE_TEST_FAKE_BACKEND_H
#define SLUICE_TEST_FAKE_BACKEND_H

#include "engine/device/ops.h"

struct fake_control {
    int32_t fail_at_step; // step_begin number that fails; 0: none
    int32_t n_steps;      // begun
    int64_t n_rows;
    int64_t n_padded_rows, n_padded_out; // as passes were begun
    int64_t n_multiplied;                // rows, by every product that took them
    int32_t max_rows_seen;
    bool timed; // busy_ns gets the time spent in hashing
    int64_t busy_ns;
    int64_t n_moves;                 // of slots
    bool no_memory;                  // for weights
    int64_t n_masked;                // draws that had a mask
    int64_t n_waited;                // passes whose draws came later
    bool perfect;                    // draft models are never wrong
    int32_t broken_after;            // rows behind this token have no logits; 0: none
    bool garbage;                    // draft models propose children without sense
    int32_t n_wrong;                 // reads of slots that hold something else
    int64_t n_state_copies, n_keeps; // of states
    size_t lane_bytes;               // of a lane's state; 0: few
    int32_t lose_copy;               // so many-th copy of states is not made, for once; 0: none
};

/* `arg` is a struct fake_control. */
enum status fake_open(const struct backend_options *options, struct backend **out, struct err *err,
                      void *arg);

/* The token that follows tokens[0 .. n) under this seed. */
int32_t fake_next(const int32_t *tokens, int32_t n, uint64_t seed, int32_t vocab);

/* What becomes of that token under a mask: the first id that it allows from a place that the token
 * tells; the token itself where it allows none. */
int32_t fake_allowed(int32_t token, const uint32_t *mask, int32_t vocab);

/* The log-probability that the fake gives to tokens[n - 1] behind tokens[0 .. n - 1). */
float fake_logprob(const int32_t *tokens, int32_t n);

#endif
