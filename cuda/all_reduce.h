// SPDX-License-Identifier: Apache-2.0
/* All-reduce over the ranks of one process through peer memory: the kernel's parameters. Each rank
 * writes its rows into the other ranks' areas and polls its own area for theirs. A word that has
 * not arrived yet holds a bit pattern that no sender writes (PEER_ABSENT), so the protocol needs no
 * flags and no barriers.
 *
 * There are three areas, used in turn: call e writes and reads area e % 3, and clears the area of
 * call e - 1, which call e + 2 will use. A rank can start call e + 2 only after it has received
 * every row of call e + 1 from every rank. By then all ranks have finished call e, so the area that
 * call e + 2 writes has been cleared. Every rank makes the same calls in the same order.
 * Thread: plain data. Compiles as C11 and C++17. */
#ifndef SLUICE_CUDA_ALL_REDUCE_H
#define SLUICE_CUDA_ALL_REDUCE_H

#include <stddef.h>
#include <stdint.h>

enum { PEER_MAX_RANKS = 8, PEER_AREAS = 3 };
#define PEER_ABSENT 0x80000000u // -0.0f, or 16-bit (+0, -0): senders write +0 instead

/* The state of the protocol, in the rank's own device memory. Only the kernels touch it. */
struct peer_state {
    uint32_t area;             // area of the next call: calls use the areas in turn
    uint32_t ended;            // number of blocks of the current call that have read this struct
    uint64_t used[PEER_AREAS]; // bytes written into each area
};

struct peer_view {
    int32_t n_ranks, rank;
    char *areas[PEER_MAX_RANKS]; // for each rank [PEER_AREAS, area_bytes], at the addresses that
                                 // this device uses
    uint64_t area_bytes;
    struct peer_state *state;
    const uint32_t *aborted; // in mapped host memory: a nonzero value ends every wait
};

/* ONE_SHOT: each rank sends all its rows to every other rank, and each rank computes all sums.
 * TWO_SHOT: rows are owned round-robin; each rank sends a row to its owner, and the owner sends the
 * sum to all ranks. Both give the same bits. */
enum peer_way { PEER_NONE, PEER_ONE_SHOT, PEER_TWO_SHOT, PEER_WAYS };

#ifdef __CUDACC__
#define PEER_BOTH_SIDES __host__ __device__
#else
#define PEER_BOTH_SIDES
#endif

/* The bytes of an area that one call uses. row_bytes is a multiple of 16. */
PEER_BOTH_SIDES static inline uint64_t peer_bytes(enum peer_way way, int32_t n_ranks,
                                                  int64_t n_rows, int64_t row_bytes)
{
    int64_t owned = (n_rows + n_ranks - 1) / n_ranks;
    return (
        uint64_t)((way == PEER_ONE_SHOT ? (n_ranks - 1) * n_rows : (n_ranks - 1) * owned + n_rows) *
                  row_bytes);
}

#endif
