// SPDX-License-Identifier: Apache-2.0
/* The AMX kernels for any machine with AVX-512 and bf16: the source is compiled a second time with
 * emulated tile registers, so that its sums and bits are tested everywhere.
 *
 * Thread: any; each thread has its own tile registers. */
#ifndef SLUICE_TEST_AMX_EMULATED_H
#define SLUICE_TEST_AMX_EMULATED_H

#include "cpu/cpu_kernels.h"

/* NULL: this machine lacks AVX-512 with bf16. */
const struct cpu_kernels *op_amx_emulated(void);

#endif
