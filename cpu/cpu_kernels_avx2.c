// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX2__)
#define KERNELS_NAME "AVX2"
#define KERNELS_TABLE cpu_kernels_avx2
#include "cpu/cpu_kernels_vec.h"
#else
typedef int cpu_kernels_avx2_unused; // not for this machine
#endif
