// SPDX-License-Identifier: Apache-2.0
/* cuBLASLt: counts descriptors, and checks that the operands of products are in device memory. */
#include "test/cuda/fake/fake_private.h"

#include <cublasLt.h>
#include <stdlib.h>

static cublasStatus_t status_of(cudaError_t e)
{
    if (e == cudaSuccess) {
        return CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_EXECUTION_FAILED;
}

static cublasStatus_t set(void)
{
    fake_lock();
    const cudaError_t e = fake_call();
    fake_unlock();
    return status_of(e);
}

/* Objects are only counted: what was created must be destroyed. */
static cublasStatus_t create(void **out)
{
    fake_lock();
    const cudaError_t e = fake_call();
    if (e == cudaSuccess) {
        *out = calloc(1, 1);
        fake_born();
    }
    fake_unlock();
    return status_of(e);
}

/* A second destruction would free twice, which the sanitizers report. */
static cublasStatus_t destroy(void *what)
{
    if (!what) {
        fake_complain("a cuBLASLt object that is NULL is destroyed");
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    free(what);
    fake_lock();
    fake_died();
    fake_unlock();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return create((void **)handle);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return destroy(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    (void)compute, (void)scale;
    return create((void **)desc);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    return destroy(desc);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t n_bytes)
{
    (void)desc, (void)attribute, (void)value, (void)n_bytes;
    return set();
}

/* The only property of a layout that is checked here: columns must not overlap. */
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride)
{
    (void)type, (void)cols;
    if (stride < (int64_t)rows) {
        fake_complain("columns of %llu elements overlap: they begin every %lld",
                      (unsigned long long)rows, (long long)stride);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return create((void **)layout);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t n_bytes)
{
    (void)layout, (void)attribute, (void)value, (void)n_bytes;
    return set();
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    return create((void **)preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t n_bytes)
{
    (void)preference, (void)attribute, (void)value, (void)n_bytes;
    return set();
}

/* Can be told to find no algorithm for products, which the backend must report. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *results, int *found)
{
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference;
    *found = fake_has_products() && wanted > 0;
    if (*found) {
        results[0] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
    }
    return set();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle, (void)desc, (void)alpha, (void)a_layout, (void)b_layout, (void)beta;
    (void)c_layout, (void)d_layout, (void)algo, (void)workspace_bytes;
    const void *const operands[] = {a, b, c, d, workspace};
    return status_of(fake_product(stream, operands, 5));
}
