// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX512F__)
#define KERNELS_NAME "AVX-512"
#define KERNELS_TABLE cpu_kernels_avx512
#include "cpu/cpu_kernels_vec.h"
#else
typedef int cpu_kernels_avx512_unused; // not for this machine
#endif
