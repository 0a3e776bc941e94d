// SPDX-License-Identifier: Apache-2.0
/* Sparse attention. index_pick leaves in the backend (struct index_room) which keys each row has
 * picked, and attention reads copies of them.
 * Thread: a row's picks are written by one thread, and read-only during attention. */
#ifndef SLUICE_CPU_INDEX_H
#define SLUICE_CPU_INDEX_H

#include "cpu/cpu_internal.h"

/* Called for each index layer, after setup. */
enum status cpu_index_need(struct cpu_backend *cpu, const struct kv_layer *layer);

enum status cpu_index_store(struct backend *be, const struct index_store_args *a);
enum status cpu_index_pick(struct backend *be, const struct index_pick_args *a);

/* cpu_index_gather.c: copies the keys and values that a row has picked for a KV head, numbers
 * [first, end) of them, to consecutive pages of one head: key number i is token i % block_tokens of
 * page i / block_tokens, and `to` is the page of `first`. At most ATTN_CHUNK keys.
 * index_gather_bytes: of these pages. */
void index_gather(const struct cpu_backend *cpu, const struct kv_pages *pages, int32_t row,
                  int32_t kv_head, int32_t first, int32_t end, char *to);
size_t index_gather_bytes(const struct cpu_backend *cpu, const struct kv_pages *pages);

static inline const struct pass_seq *index_seq(const struct cpu_backend *cpu, int32_t row)
{
    return &cpu->pass->seqs[cpu->row_seq[row]];
}

/* True if the row sees the key of a slot below index_end. Only in a tree it does not see all of
 * them, and only there a key's slot may differ from its position. */
static inline bool index_sees(const struct cpu_backend *cpu, int32_t row, int32_t slot)
{
    const struct pass_seq *seq = index_seq(cpu, row);
    const int32_t node = slot - seq->n_past;
    if (!seq->tree || node < 0) {
        return true;
    }
    const uint64_t *mask = cpu->pass->tree_mask + (int64_t)row * TREE_MASK_WORDS;
    return (mask[node / 64] >> (node % 64) & 1) != 0;
}

/* The slots [0, end) contain all keys that the row sees. */
static inline int32_t index_end(const struct cpu_backend *cpu, int32_t row)
{
    const struct pass_seq *seq = index_seq(cpu, row);
    return seq->n_past + (seq->tree ? seq->n_rows : row - seq->first_row + 1);
}

#endif
