// SPDX-License-Identifier: Apache-2.0
/* Chooses the implementation of each product, and owns the memory that they need: cuBLASLt's plans,
 * its workspace, and the area for partial sums.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_GEMM_H
#define SLUICE_CUDA_CUDA_GEMM_H

#include "cuda/cuda_device.h"
#include "cuda/gemm.h"

struct plans; // defined in gemm_plans.c

struct gemms {
    struct cuda *device;
    struct plans *plans; // by shape
    void *workspace, *sums;
    size_t workspace_bytes;
    uint32_t *readers; // of struct input_norm
    void *expanded;    // a dequantised weight; valid for one product
    size_t expanded_bytes;
    struct { // rounded rows; valid for one product
        void *rows;
        float *scales;
        uint8_t *after_rows; // codes for a second product, written by a product that reads `rows`
        float *after_scales;
    } rounded;
    struct row_bests bests; // where the output head stores the best logits
};

enum status gemms_open(struct gemms *g, struct cuda *device);
enum status gemms_setup(struct gemms *g, int32_t vocab, int32_t max_rows);
void gemms_close(struct gemms *g);

/* If a->may_split is set, the product may be left as split-K partial sums, which *sums then
 * describes, instead of in y. There is only one area for them. In all other cases sums->n stays 0
 * and y is complete. sums may be NULL if may_split is not set. */
enum status cuda_gemm(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums);
/* True if x is multiplied as FP8 codes; *round describes how to compute them. In that case the
 * producer of x may write the codes itself just before the product, pass is_rounded, and leave x
 * unwritten. */
bool cuda_gemm_codes(struct gemms *g, const struct gemm_args *a, struct round_args *round);
/* True if cuda_gemm computes this product with x_is_gated. */
bool cuda_gemm_takes_gates(struct gemms *g, const struct gemm_args *a);
/* Computes a product and its activation in one kernel. False: no kernel supports this. */
bool cuda_gemm_gated(struct gemms *g, const struct gemm_args *a, enum status *st);
/* The output head for a pass that draws only from the first n_drawn ids. It also writes the best
 * logit of each band, which greedy draws read, and skips rows that only greedy draws read. False:
 * cuda_gemm must compute all logits. */
bool cuda_gemm_head(struct gemms *g, const struct gemm_args *a, int32_t n_drawn,
                    const struct pass_view *pass, struct logit_bests *bests, enum status *st);

#endif
