// SPDX-License-Identifier: Apache-2.0
/* Experts whose inputs are rounded to E4M3 before a product, because their format says so (struct
 * input_rule). On Hopper, if blocks of 128 x 128 weights and groups of 128 inputs have scales,
 * codes are multiplied by codes (moe/eight_sm90.cu). Otherwise the inputs are rounded, dequantised
 * again (moe/rounded.cu), and multiplied as those of other experts. Compiles as C11 and C++17.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_EXPERTS_H
#define SLUICE_CUDA_EXPERTS_H

#include "cuda/gemm.h"
#include "cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the inputs of one of the two products are rounded. */
struct expert_rounding {
    const struct input_rule *rule; // NULL: they are not
    const float *scales;           // [n_experts] stored scales; NULL: scales come from the rows
};
struct moe_rounding {
    struct expert_rounding up, down;
    bool has_blocks; // both weights have scales of 128 x 128 blocks (weight_blocks)
    void *x;         // room for rounded inputs of the first product, see moe_rounded_bytes
};

/* Bytes of moe_rounding.x for a call with n_rows rows; 0 if the first product's inputs are not
 * rounded. With stored scales, which differ by expert, it has a row for each pick, otherwise for
 * each row of x. */
size_t moe_rounded_bytes(const struct moe_ffn_args *a, const struct moe_rounding *r, int32_t hidden,
                         int32_t n_rows);
/* Rounds x into r->x. Rows of x must be aligned to 16 bytes. */
cudaError_t moe_round_x(cudaStream_t stream, const struct moe_ffn_args *a,
                        const struct moe_rounding *r, int32_t hidden);
/* Rounds the picks' activations (moe_scratch.act, sorted) in place. */
cudaError_t moe_round_act(cudaStream_t stream, const struct moe_ffn_args *a,
                          const struct moe_rounding *r, const struct moe_scratch *s);
/* k_moe_ffn (moe.cu) with rounded inputs. */
cudaError_t k_moe_ffn_rounded(cudaStream_t stream, const struct moe_ffn_args *a,
                              const struct moe_weights *w, const struct moe_rounding *r,
                              const struct moe_scratch *scratch, const int32_t *real,
                              int32_t row_offset);

/* moe/eight_sm90.cu: all of a call with codes, on Hopper, for any number of rows. `sm` and `n_sms`
 * describe the device; the other arguments are those of k_moe_sm90_takes and k_moe_ffn_sm90. */
bool k_moe_eight_takes(const struct moe_ffn_args *a, const struct moe_weights *w,
                       const struct moe_rounding *r, int32_t sm);
size_t k_moe_eight_scratch(const struct moe_ffn_args *a, int32_t hidden, int32_t n_rows);
cudaError_t k_moe_ffn_eight(cudaStream_t stream, const struct moe_ffn_args *a,
                            const struct moe_weights *w, const struct moe_rounding *r,
                            const float *gate, void *scratch, const int32_t *real,
                            int32_t row_offset, int32_t n_sms);

#ifdef __cplusplus
}
#endif
#endif
