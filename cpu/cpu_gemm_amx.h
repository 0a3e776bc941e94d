// SPDX-License-Identifier: Apache-2.0
/* Products on AMX, for machines that have it (cpu_dispatch.c checks). Each call configures the tile
 * registers of its thread and releases them.
 * Thread: any. */
#ifndef SLUICE_CPU_GEMM_AMX_H
#define SLUICE_CPU_GEMM_AMX_H

#include "cpu/cpu_kernels.h"

void cpu_gemm_bf16_amx(const void *a, int64_t a_stride, int32_t m, const void *w, int32_t panels,
                       int64_t k, float *c, bool first);

extern const struct block_unit cpu_amx_blocks;

/* Runs n rounds of four products of 16 x 16 x 32 in registers, for cpu_peaks. */
float cpu_spin_amx(int64_t n);

#endif
