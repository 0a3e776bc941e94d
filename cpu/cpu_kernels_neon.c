// SPDX-License-Identifier: Apache-2.0
#if defined(__ARM_NEON)
#define KERNELS_NAME "NEON"
#define KERNELS_TABLE cpu_kernels_neon
#include "cpu/cpu_kernels_vec.h"
#else
typedef int cpu_kernels_neon_unused; // not for this machine
#endif
