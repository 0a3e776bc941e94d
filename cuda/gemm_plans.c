// SPDX-License-Identifier: Apache-2.0
/* Products by cuBLASLt, whose plans are cached by shape. */
#include "cuda/gemm_plans.h"
#include "engine/base/hash.h"
#include "engine/base/mem.h"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum { N_PLANS = 4096, PROBES = 8 };

/* Everything that a plan depends on. Keys are compared as bytes, so a key must be zeroed before it
 * is filled in. */
struct plan_key {
    int32_t n_rows, n_out, n_in, x_stride, y_stride, w_stride, n_batch;
    int32_t x_dtype, w_dtype, y_dtype, flags; // flags: 1: bias; 2: accumulate
    int32_t scaled; // for E4M3 only. 1: scales per row; 2: scales per block
    int64_t x_batch, w_batch, y_batch;
};

struct plan {
    struct plan_key key;
    bool used, none; // none: cuBLASLt has no kernel for this key
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
};

struct plans {
    cublasLtHandle_t handle;
    struct plan table[N_PLANS];
};

enum status gemm_plans_open(struct gemms *g)
{
    g->plans = xcalloc(1, sizeof *g->plans);
    if (cublasLtCreate(&g->plans->handle) != CUBLAS_STATUS_SUCCESS) {
        return cuda_check(g->device, cudaErrorUnknown, "cublasLtCreate");
    }
    return OK;
}

static void plan_deinit(struct plan *p)
{
    if (p->op) {
        cublasLtMatmulDescDestroy(p->op);
    }
    if (p->a) {
        cublasLtMatrixLayoutDestroy(p->a);
    }
    if (p->b) {
        cublasLtMatrixLayoutDestroy(p->b);
    }
    if (p->d) {
        cublasLtMatrixLayoutDestroy(p->d);
    }
    memset(p, 0, sizeof *p);
}

void gemm_plans_close(struct gemms *g)
{
    if (!g->plans) {
        return;
    }
    for (int32_t i = 0; i < N_PLANS; i++) {
        if (g->plans->table[i].used) {
            plan_deinit(&g->plans->table[i]);
        }
    }
    if (g->plans->handle) {
        cublasLtDestroy(g->plans->handle);
    }
    free(g->plans);
    g->plans = NULL;
}

static cudaDataType_t data_type(int32_t dtype)
{
    switch (dtype) {
    case DT_E4M3: return CUDA_R_8F_E4M3;
    case DT_F32: return CUDA_R_32F;
    case DT_BF16: return CUDA_R_16BF;
    default: return CUDA_R_16F;
    }
}

/* A row-major [rows, cols] matrix is a column-major [cols, rows] matrix. */
static bool layout_init(cublasLtMatrixLayout_t *l, int32_t dtype, int64_t rows, int64_t cols,
                        int64_t stride, int32_t n_batch, int64_t batch_stride)
{
    bool ok = cublasLtMatrixLayoutCreate(l, data_type(dtype), (uint64_t)cols, (uint64_t)rows,
                                         stride) == CUBLAS_STATUS_SUCCESS;
    if (ok && n_batch > 1) {
        ok = cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n_batch,
                                              sizeof n_batch) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &batch_stride,
                                              sizeof batch_stride) == CUBLAS_STATUS_SUCCESS;
    }
    return ok;
}

static bool set_scales(struct plan *p, const struct product_scales *s)
{
    return cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &s->w,
                                          sizeof s->w) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &s->x,
                                          sizeof s->x) == CUBLAS_STATUS_SUCCESS;
}

static bool op_init(struct plan *p, const struct plan_key *k, const struct product_scales *s)
{
    const cublasOperation_t transpose = CUBLAS_OP_T;
    if (cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                       sizeof transpose) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    if (k->scaled) {
        const cublasLtMatmulMatrixScale_t of_w = k->scaled == 1
                                                     ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                     : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
        const cublasLtMatmulMatrixScale_t of_x = k->scaled == 1
                                                     ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                     : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
        if (cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_w,
                                           sizeof of_w) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_x,
                                           sizeof of_x) != CUBLAS_STATUS_SUCCESS ||
            !set_scales(p, s)) {
            return false;
        }
    }
    if (k->flags & 1) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const cudaDataType_t type = data_type(k->y_dtype);
        return cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof epilogue) == CUBLAS_STATUS_SUCCESS &&
               cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                              sizeof type) == CUBLAS_STATUS_SUCCESS;
    }
    return true;
}

static bool choose(struct gemms *g, struct plan *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) {
        return false;
    }
    const size_t workspace = g->workspace_bytes;
    const uint32_t alignment = 16; // gemm_on_cublas rejects weaker alignment
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof workspace);
    const cublasLtMatmulPreferenceAttributes_t which[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        cublasLtMatmulPreferenceSetAttribute(preference, which[i], &alignment, sizeof alignment);
    }
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;
    const cublasStatus_t st = cublasLtMatmulAlgoGetHeuristic(
        g->plans->handle, p->op, p->a, p->b, p->d, p->d, preference, 1, &result, &n);
    cublasLtMatmulPreferenceDestroy(preference);
    if (st != CUBLAS_STATUS_SUCCESS || n == 0) {
        return false;
    }
    p->algo = result.algo;
    return true;
}

static struct plan *find_plan(struct gemms *g, const struct plan_key *key,
                              const struct product_scales *s)
{
    const uint64_t h = hash_bytes(key, sizeof *key, 0);
    struct plan *p = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        p = &g->plans->table[(h + i) % N_PLANS];
        if (!p->used || memcmp(&p->key, key, sizeof *key) == 0) {
            break;
        }
        p = NULL;
    }
    if (!p) {
        p = &g->plans->table[h % N_PLANS];
        plan_deinit(p);
    }
    if (!p->used) {
        p->used = true;
        p->key = *key;
        p->none = !(op_init(p, key, s) &&
                    layout_init(&p->a, key->w_dtype, key->n_out, key->n_in, key->w_stride,
                                key->n_batch, key->w_batch) &&
                    layout_init(&p->b, key->x_dtype, key->n_rows, key->n_in, key->x_stride,
                                key->n_batch, key->x_batch) &&
                    layout_init(&p->d, key->y_dtype, key->n_rows, key->n_out, key->y_stride,
                                key->n_batch, key->y_batch) &&
                    choose(g, p));
    }
    return p;
}

static int32_t weight_stride(const struct gemm_args *a)
{
    return a->w_stride ? a->w_stride : a->n_in;
}

static bool is_aligned(const struct gemm_args *a)
{
    const size_t x = dtype_bytes(a->x_dtype), w = dtype_bytes(a->w_dtype);
    const size_t y = dtype_bytes(a->y_dtype);
    return ((uintptr_t)a->x | (uintptr_t)a->weight | (uintptr_t)a->y | (size_t)a->x_stride * x |
            (size_t)weight_stride(a) * w | (size_t)a->y_stride * y | (size_t)a->x_batch * x |
            (size_t)a->w_batch * w | (size_t)a->y_batch * y) %
               16 ==
           0;
}

/* The bias in the dtype of y, which cuBLASLt requires. */
static const void *bias_for(const struct gemm_args *a)
{
    return a->y_dtype == DT_F32 ? a->bias : a->bias_act;
}

/* NULL if cuBLASLt has no kernel for this product. */
static struct plan *plan_of(struct gemms *g, const struct gemm_args *a)
{
    const struct product_scales *s = a->scales;
    if (a->x_dtype != a->w_dtype || (a->bias && (!bias_for(a) || a->n_batch > 1)) ||
        !is_aligned(a)) {
        return NULL;
    }
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.n_rows = a->n_rows;
    key.n_out = a->n_out;
    key.n_in = a->n_in;
    key.x_stride = a->x_stride;
    key.y_stride = a->y_stride;
    key.w_stride = weight_stride(a);
    key.n_batch = a->n_batch;
    key.x_dtype = (int32_t)a->x_dtype;
    key.w_dtype = (int32_t)a->w_dtype;
    key.y_dtype = (int32_t)a->y_dtype;
    key.flags = (a->bias ? 1 : 0) | (a->accumulate ? 2 : 0);
    key.scaled = s ? 1 + (s->n_blocks > 0) : 0;
    key.x_batch = a->x_batch;
    key.w_batch = a->w_batch;
    key.y_batch = a->y_batch;
    struct plan *p = find_plan(g, &key, s);
    return p->none ? NULL : p;
}

bool gemm_plans_take(struct gemms *g, const struct gemm_args *a)
{
    return plan_of(g, a) != NULL;
}

bool gemm_on_cublas(struct gemms *g, const struct gemm_args *a, cudaError_t *e)
{
    const struct product_scales *s = a->scales;
    struct plan *p = plan_of(g, a);
    if (!p) {
        return false;
    }
    const float one = 1.0f, beta = a->accumulate ? 1.0f : 0.0f;
    if (a->bias) {
        const void *bias = bias_for(a);
        cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                       sizeof bias);
    }
    if (s) {
        set_scales(p, s);
    }
    const cublasStatus_t st = cublasLtMatmul(g->plans->handle, p->op, &one, a->weight, p->a, a->x,
                                             p->b, &beta, a->y, p->d, a->y, p->d, &p->algo,
                                             g->workspace, g->workspace_bytes, g->device->stream);
    *e = st == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
    return true;
}
