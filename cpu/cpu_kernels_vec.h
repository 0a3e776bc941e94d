// SPDX-License-Identifier: Apache-2.0
/* The vector kernels (cpu_vec_*.h, one file per purpose), compiled once per instruction set: a file
 * defines KERNELS_NAME and KERNELS_TABLE and includes this one. Every sum is in the order that
 * cpu_kernels.h promises; blocking over rows and columns only changes which sums advance together.
 * Thread: any. */
#include "cpu/cpu_vec_attention.h"
#include "cpu/cpu_vec_coded.h"
#include "cpu/cpu_vec_gemm.h"
#include "cpu/cpu_vec_peak.h"
#include "cpu/cpu_vec_rows.h"
#include "cpu/cpu_vec_sample.h"

const struct cpu_kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .gemm_bf16 = gemm_bf16,
    .gemm_f16 = gemm_f16,
    .gemm_f32 = gemm_f32,
#if defined(__AVX512BF16__)
    .bf16_rows = true,
#endif
    .pass_rows = BLOCK_ROWS,
    .few_k = 128,
    .round_bf16 = round_bf16,
    .round_f16 = round_f16,
    .decode_bf16 = decode_bf16,
    .decode_f16 = decode_f16,
    .add_scaled = add_scaled,
    .norm = norm,
    .dot = dot,
    .activate = activate,
    .rotate = rotate,
    .widen = widen,
    .encode = encode,
    .unpack = unpack,
    .fold = fold,
    .scores = scores,
    .weigh = weigh,
#if WORD_VALUES
    .words = &word_kernels,
#endif
    .max = max_of,
    .exp_sum = exp_sum,
    .softcap = softcap,
    .scale = scale_by,
    .argmax = argmax,
    .argmax_gumbel = argmax_gumbel,
    .exp_exact = exp_exact,
    .exp_total = exp_total,
    .read_all = read_all,
    .spin_fma = spin_fma,
    .fma_flops = 2.0 * SPIN_CHAINS * VEC,
#if defined(__AVX512BF16__)
    .spin_product = spin_product,
    .product_flops = 4.0 * SPIN_CHAINS * VEC,
#else
    .spin_product = spin_fma,
    .product_flops = 2.0 * SPIN_CHAINS * VEC,
#endif
};
