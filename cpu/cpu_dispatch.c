// SPDX-License-Identifier: Apache-2.0
/* Chooses the kernels that this machine can run. */
#include "cpu/cpu_attention_tiles.h"
#include "cpu/cpu_gemm_amx.h"
#include "cpu/cpu_kernels.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

#include <cpuid.h>

static struct cpu_kernels amx_table; // the AVX-512 table with AMX for products
static bool has_amx;
static pthread_once_t amx_once = PTHREAD_ONCE_INIT;

/* Arguments of arch_prctl, in Linux 5.16 and later. */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

/* AMX needs a processor that supports it, and the kernel's permission to use its large
 * registers. */
static void find_amx(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1) ||
        syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) != 0) {
        return;
    }
    amx_table = cpu_kernels_avx512bf16;
    amx_table.name = "AMX";
    amx_table.gemm_bf16 = cpu_gemm_bf16_amx;
    amx_table.tiled = true;
    amx_table.blocks = &cpu_amx_blocks;
    amx_table.unit = &cpu_amx_unit;
    if (d >> 25 & 1) {
        amx_table.multiplies_codes = cpu_tiles_fit;
        amx_table.scores = cpu_tiles_scores;
        amx_table.words = &cpu_tiles_words;
    }
    amx_table.pass_rows = 16;
    amx_table.few_k = 256;
    amx_table.spin_product = cpu_spin_amx;
    amx_table.product_flops = 4 * 2.0 * 16 * 16 * 32;
    has_amx = true;
}

/* clang before 15 does not know this name in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

const struct cpu_kernels *cpu_kernels_best(void)
{
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) {
        pthread_once(&amx_once, find_amx);
        return has_amx ? &amx_table : &cpu_kernels_avx512bf16;
    }
    if (avx512) {
        return &cpu_kernels_avx512;
    }
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    return avx2 ? &cpu_kernels_avx2 : &cpu_kernels_scalar;
}

#elif defined(__ARM_NEON)

const struct cpu_kernels *cpu_kernels_best(void)
{
    return &cpu_kernels_neon;
}

#else

const struct cpu_kernels *cpu_kernels_best(void)
{
    return &cpu_kernels_scalar;
}

#endif
