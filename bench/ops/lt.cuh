// SPDX-License-Identifier: Apache-2.0
/* Products of cuBLASLt, with which the benches compare those of this project.
 * Thread: one. */
#ifndef SLUICE_BENCH_LT_CUH
#define SLUICE_BENCH_LT_CUH

#include "bench/ops/bench.cuh"

#include <cublasLt.h>

/* A product planned by cuBLASLt for one shape. */
struct lt_product {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulHeuristicResult_t plan;
};

inline cublasLtHandle_t lt;
enum { LT_WORKSPACE = 32 << 20 };

#define LT(call)                                                                                   \
    do {                                                                                           \
        const cublasStatus_t lt_status = (call);                                                   \
        if (lt_status != CUBLAS_STATUS_SUCCESS) {                                                  \
            printf("%s: %d\n", #call, (int)lt_status);                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline void lt_start()
{
    LT(cublasLtCreate(&lt));
}

/* Takes the first algorithm that cuBLASLt suggests, as a program without tuning would. */
static inline struct lt_product lt_open(int m, int n, int k)
{
    struct lt_product p;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace = LT_WORKSPACE;
    cublasLtMatmulPreference_t preference;
    int found = 0;
    LT(cublasLtMatmulDescCreate(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                      sizeof transposed));
    LT(cublasLtMatrixLayoutCreate(&p.w, CUDA_R_16BF, k, n, k));
    LT(cublasLtMatrixLayoutCreate(&p.x, CUDA_R_16BF, k, m, k));
    LT(cublasLtMatrixLayoutCreate(&p.y, CUDA_R_16BF, n, m, n));
    LT(cublasLtMatmulPreferenceCreate(&preference));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &workspace, sizeof workspace));
    LT(cublasLtMatmulAlgoGetHeuristic(lt, p.desc, p.w, p.x, p.y, p.y, preference, 1, &p.plan,
                                      &found));
    LT(cublasLtMatmulPreferenceDestroy(preference));
    return p;
}

/* Issues cuBLASLt's product, with which all timings here are compared. */
static inline void lt_issue(const struct lt_product &p, const void *w, const void *x, void *y,
                            void *workspace, cudaStream_t stream)
{
    const float one = 1.0f, zero = 0.0f;
    LT(cublasLtMatmul(lt, p.desc, &one, w, p.w, x, p.x, &zero, y, p.y, y, p.y, &p.plan.algo,
                      workspace, LT_WORKSPACE, stream));
}

#endif
