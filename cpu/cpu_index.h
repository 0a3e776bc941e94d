// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: the keys that rows attend to, as bits. index_pick leaves them in the backend
 * (struct index_room), and attention reads them.
 * Thread: a row's bits are written by one thread, and read-only during attention. */
#ifndef SLUICE_CPU_INDEX_H
#define SLUICE_CPU_INDEX_H

#include "cpu/cpu_internal.h"

/* Called for each set with indexers, after setup. */
enum status cpu_index_need(struct cpu_backend *cpu);

enum status cpu_index_store(struct backend *be, const struct index_store_args *a);
enum status cpu_index_pick(struct backend *be, const struct index_pick_args *a);

/* Whether the row attends to the key in a slot of its lane that it sees. `bits`: key_picks.p */
static inline bool index_picked(const struct cpu_backend *cpu, const uint64_t *bits, int32_t row,
                                int32_t slot)
{
    return (bits[(int64_t)row * cpu->index.n_words + slot / 64] >> (slot % 64) & 1) != 0;
}

/* Whether one of the rows [row, row + n_rows) attends to a slot of [begin, end). Slots beside them,
 * in the same words, may count, too. */
static inline bool index_picked_any(const struct cpu_backend *cpu, const uint64_t *bits,
                                    int32_t row, int32_t n_rows, int32_t begin, int32_t end)
{
    uint64_t any = 0;
    for (int32_t r = row; r < row + n_rows && begin < end; r++) {
        const uint64_t *of_row = bits + (int64_t)r * cpu->index.n_words;
        for (int32_t w = begin / 64; w <= (end - 1) / 64; w++) {
            any |= of_row[w];
        }
    }
    return any != 0;
}

#endif
