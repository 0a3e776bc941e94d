// SPDX-License-Identifier: Apache-2.0
/* Sums over the ranks of one process through peer memory: what the kernel is told. A rank pushes
 * its rows into the others' areas and waits until theirs have come into its own; a word that has
 * not come yet holds a bit pattern that no sender sends, so there are no flags and no barriers.
 *
 * Areas are used in turn, three of them: call number e writes and reads area e % 3, and clears the
 * one that call e - 1 used, which call e + 2 will use. A rank can begin call e + 2 only when it has
 * all rows of call e + 1 of all ranks, that is when their calls e have ended: so what it then
 * writes has been cleared. Every rank makes the same calls in the same order.
 * Thread: plain data. Compiles as C11 and C++17. */
#ifndef SLUICE_CUDA_ALL_REDUCE_H
#define SLUICE_CUDA_ALL_REDUCE_H

#include <stddef.h>
#include <stdint.h>

enum { PEER_MAX_RANKS = 8, PEER_AREAS = 3 };
#define PEER_ABSENT 0x80000000u // fp32's -0, a pair of 16-bit 0 and -0: sent as zero instead

/* In a rank's own device memory; the kernels' alone. */
struct peer_state {
    uint32_t area;             // of the call that comes next: calls use the areas in turn
    uint32_t ended;            // blocks of the call under way that have read this
    uint64_t used[PEER_AREAS]; // bytes that were written into an area
};

struct peer_view {
    int32_t n_ranks, rank;
    char *areas[PEER_MAX_RANKS]; // [PEER_AREAS, area_bytes] of each rank, as this device sees them
    uint64_t area_bytes;
    struct peer_state *state;
    const uint32_t *aborted; // host memory, mapped: not 0 ends all waits
};

/* ONE_SHOT: each rank sends all its rows to all, and all do all sums. TWO_SHOT: rows have owners in
 * turn; a rank sends each row to its owner, who sends the sum to all. The sums have the same
 * bits. */
enum peer_way { PEER_NONE, PEER_ONE_SHOT, PEER_TWO_SHOT, PEER_WAYS };

#ifdef __CUDACC__
#define PEER_BOTH_SIDES __host__ __device__
#else
#define PEER_BOTH_SIDES
#endif

/* Bytes of an area that a call uses; row_bytes is a multiple of 16. */
PEER_BOTH_SIDES static inline uint64_t peer_bytes(enum peer_way way, int32_t n_ranks,
                                                  int64_t n_rows, int64_t row_bytes)
{
    int64_t owned = (n_rows + n_ranks - 1) / n_ranks;
    return (
        uint64_t)((way == PEER_ONE_SHOT ? (n_ranks - 1) * n_rows : (n_ranks - 1) * owned + n_rows) *
                  row_bytes);
}

#endif
