// SPDX-License-Identifier: Apache-2.0
/* Products of int8 and int4 codes of keys and values with AMX's integer tiles.
 * Thread: any; products use the tile registers of their thread. */
#ifndef SLUICE_CPU_ATTENTION_TILES_H
#define SLUICE_CPU_ATTENTION_TILES_H

#include "cpu/cpu_kernels.h"

/* May be called if the processor has AMX with int8, which cpu_dispatch.c checks. See `scores`,
 * `words` and `multiplies_codes` of cpu_kernels.h. */
bool cpu_tiles_fit(const struct kv_pages *p);
void cpu_tiles_scores(const float *q, int64_t q_stride, int32_t m, const struct page_run *k,
                      int32_t dim, float *s, int64_t s_stride);
extern const struct word_kernels cpu_tiles_words;

#endif
