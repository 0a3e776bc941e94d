// SPDX-License-Identifier: Apache-2.0
/* A backend without arithmetic: the next token is a hash of the prefix, which is read slot by slot
 * through the lane's block table. The right answer is known in advance, and a wrong slot, row, mask
 * or history changes it. Slots store token and position; slots without an owner are poisoned.
 * Thread: as for any backend. */
#ifndef SLUICE_TEST_FAKE_BACKEND_H
#define SLUICE_TEST_FAKE_BACKEND_H

#include "engine/device/ops.h"

struct fake_control {
    int32_t fail_at_step; // the number of the step_begin that fails; 0: none
    int32_t n_steps;      // steps begun
    int32_t n_unread;     // steps begun and not waited for
    int32_t most_unread;
    int64_t n_rows;
    int64_t n_padded_rows, n_padded_out; // sums over all passes, with padding
    int64_t n_multiplied;                // sum of the rows of all products
    int32_t max_rows_seen;
    bool timed; // busy_ns gets the time spent in hashing
    int64_t busy_ns;
    int64_t n_moves;                 // slots that were moved
    bool no_memory;                  // weights do not fit
    int64_t n_masked;                // draws that had a mask
    int64_t n_waited;                // passes that waited for their draws
    bool perfect;                    // draft models are never wrong
    int32_t broken_after;            // rows after this token have no logits; 0: none
    bool garbage;                    // draft models propose random children
    int32_t n_wrong;                 // reads of slots with an unexpected token
    int64_t n_state_copies, n_keeps; // copies of states, and states kept in passes
    size_t lane_bytes;               // size of a lane's state; 0: small
    int64_t n_windows;               // passes of layers with a window and pages of their own
    int32_t lose_copy;               // this copy of states (counted from 1) is lost once; 0: none
};

/* `arg` is a struct fake_control. */
enum status fake_open(const struct backend_options *options, struct backend **out, struct err *err,
                      void *arg);

/* The token that follows tokens[0 .. n) under this seed. */
int32_t fake_next(const int32_t *tokens, int32_t n, uint64_t seed, int32_t vocab);

/* The token under a mask: the first allowed id in an order that depends on the token, or the token
 * itself if no id is allowed. */
int32_t fake_allowed(int32_t token, const uint32_t *mask, int32_t vocab);

/* The fake's log-probability of tokens[n - 1] after tokens[0 .. n - 1). */
float fake_logprob(const int32_t *tokens, int32_t n);

#endif
