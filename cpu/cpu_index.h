// SPDX-License-Identifier: Apache-2.0
/* Sparse attention. index_pick leaves in the backend (struct index_room) which keys each row has
 * picked, and attention reads copies of them.
 * Thread: a row's picks are written by one thread, and read-only during attention. */
#ifndef SLUICE_CPU_INDEX_H
#define SLUICE_CPU_INDEX_H

#include "cpu/cpu_internal.h"

/* Called for each set with indexers, after setup. */
enum status cpu_index_need(struct cpu_backend *cpu);

enum status cpu_index_store(struct backend *be, const struct index_store_args *a);
enum status cpu_index_pick(struct backend *be, const struct index_pick_args *a);

/* Copies the keys that a row has picked, numbers [first, end) of them, to consecutive pages: key
 * number i is token i % block_tokens of page i / block_tokens, and `to` is the page of `first`. At
 * most ATTN_CHUNK keys. index_gather_bytes: of these pages. */
void index_gather(const struct cpu_backend *cpu, const struct kv_pages *pages, int32_t row,
                  int32_t first, int32_t end, char *to);
size_t index_gather_bytes(const struct cpu_backend *cpu, const struct kv_pages *pages);

#endif
