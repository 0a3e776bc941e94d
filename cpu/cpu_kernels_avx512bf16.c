// SPDX-License-Identifier: Apache-2.0
#if defined(__AVX512BF16__)
#define KERNELS_NAME "AVX-512 with bf16"
#define KERNELS_TABLE cpu_kernels_avx512bf16
#include "cpu/cpu_kernels_vec.h"
#else
typedef int cpu_kernels_avx512bf16_unused; // not for this machine
#endif
