// SPDX-License-Identifier: Apache-2.0
/* Who makes which product, with what they need: plans of cuBLASLt, workspace, the area for sums.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_CUDA_GEMM_H
#define SLUICE_CUDA_CUDA_GEMM_H

#include "cuda/cuda_device.h"
#include "cuda/gemm.h"

struct plans; // cuda_gemm.c

struct gemms {
    struct cuda *device;
    struct plans *plans; // by shape
    void *workspace, *sums;
    size_t workspace_bytes;
    void *expanded; // a quantised weight's numbers, for one product
    size_t expanded_bytes;
    struct { // rows rounded for one product
        void *rows;
        float *scales;
    } rounded;
    struct row_bests bests; // where a head leaves them
};

enum status gemms_open(struct gemms *g, struct cuda *device);
enum status gemms_setup(struct gemms *g, int32_t vocab, int32_t max_rows);
void gemms_close(struct gemms *g);

/* With may_split y may be left as *sums instead, in the one area that there is for them; else, and
 * where sums->n stays 0, it is whole. sums may be NULL without may_split. */
enum status cuda_gemm(struct gemms *g, const struct gemm_args *a, struct sum_parts *sums);
/* Whether x is multiplied as codes, and what makes them: who makes x may do that itself, right
 * before the product with is_rounded, and leave x as it was. */
bool cuda_gemm_codes(struct gemms *g, const struct gemm_args *a, struct round_args *round);
/* A product with its activation in one kernel; false where there is none for it. */
bool cuda_gemm_gated(struct gemms *g, const struct gemm_args *a, enum status *st);
/* The output head, of whose logits draws of the pass among the first n_drawn ids are made and no
 * more, with the bests that greedy ones read; rows that these alone read are left as they were.
 * False where cuda_gemm is to make all logits. */
bool cuda_gemm_head(struct gemms *g, const struct gemm_args *a, int32_t n_drawn,
                    const struct pass_view *pass, struct logit_bests *bests, enum status *st);

#endif
