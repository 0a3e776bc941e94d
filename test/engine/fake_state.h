// SPDX-License-Identifier: Apache-2.0
/* The recurrent state of the fake backend. A record is a hash of all tokens before a boundary, and
 * a raw row is a token; both are stored where a real backend stores them, with their positions. So
 * a row's hash is right only if its record and every row of its block are.
 * Thread: as for any backend. */
#ifndef SLUICE_TEST_FAKE_STATE_H
#define SLUICE_TEST_FAKE_STATE_H

#include "engine/device/ops.h"

struct fake_state;

/* The token at each position of a lane, with which the state must agree. */
struct fake_history {
    int32_t (*token)(void *arg, int32_t lane, int32_t pos);
    void *arg;
};

struct fake_state *fake_state_open(const struct backend_limits *limits,
                                   const struct state_set_desc *desc, int32_t n_snapshots);
void fake_state_close(struct fake_state *s);

/* Returns the number of copies whose source is empty. */
int32_t fake_state_copy(struct fake_state *s, int32_t n, const struct state_copy *copies);
void fake_state_move(struct fake_state *s, int32_t n, const struct slot_move *moves);

/* For each row of the pass a hash of its path according to the state; 0 if the state is
 * inconsistent. */
void fake_state_rows(struct fake_state *s, const struct pass *pass, const int32_t *tokens,
                     const struct fake_history *history, uint64_t *hashes);

/* FAKE_EMPTY is the hash of no tokens; fake_hash_step adds one token to a hash. */
enum { FAKE_EMPTY = 7 };
uint64_t fake_hash_step(uint64_t h, int32_t token);

#endif
