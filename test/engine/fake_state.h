// SPDX-License-Identifier: Apache-2.0
/* The recurrent state of the backend that hashes. A record is a hash of all tokens before a
 * boundary, a raw row a token; both lie where a backend would have them, with the positions that
 * they are of. So a row's hash is right only if its record is, and every row of its block. Thread:
 * as any backend. */
#ifndef SLUICE_TEST_FAKE_STATE_H
#define SLUICE_TEST_FAKE_STATE_H

#include "engine/device/ops.h"

struct fake_state;

/* Where a sequence has been: the token at a position of a lane, which the state must agree with. */
struct fake_history {
    int32_t (*token)(void *arg, int32_t lane, int32_t pos);
    void *arg;
};

struct fake_state *fake_state_open(const struct backend_limits *limits,
                                   const struct state_set_desc *desc, int32_t n_snapshots);
void fake_state_close(struct fake_state *s);

/* The number of copies that read what is not there. */
int32_t fake_state_copy(struct fake_state *s, int32_t n, const struct state_copy *copies);
void fake_state_move(struct fake_state *s, int32_t n, const struct slot_move *moves);

/* The pass's rows with these tokens: a hash of each row's path as the state has it, 0 where that
 * does not hold together. */
void fake_state_rows(struct fake_state *s, const struct pass *pass, const int32_t *tokens,
                     const struct fake_history *history, uint64_t *hashes);

/* The hash of no tokens, and that of one more. */
enum { FAKE_EMPTY = 7 };
uint64_t fake_hash_step(uint64_t h, int32_t token);

#endif
