// SPDX-License-Identifier: Apache-2.0
/* The kernels for AMX on any machine with AVX-512 and bf16: what is written for the tile registers
 * is compiled a second time with those emulated, so that its sums and its bits are tested
 * everywhere.
 *
 * Thread: any; the tile registers are a thread's own. */
#ifndef SLUICE_TEST_AMX_EMULATED_H
#define SLUICE_TEST_AMX_EMULATED_H

#include "cpu/cpu_kernels.h"

/* NULL: this machine lacks AVX-512 with bf16. */
const struct cpu_kernels *op_amx_emulated(void);

#endif
