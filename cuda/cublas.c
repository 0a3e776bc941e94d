// SPDX-License-Identifier: Apache-2.0
/* The functions of cuBLASLt that are used, forwarded to the library, which the first call loads.
 * The library is half a gigabyte, and linking with it would cost every start of the program a tenth
 * of a second of processor time, whether or not it uses a GPU. */
#include "engine/base/log.h"
#include "engine/base/optional.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define LIBRARY "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

// clang-format off
#define CALLS(_)                                                                                       \
    _(cublasLtCreate, (cublasLtHandle_t *handle), (handle))                                            \
    _(cublasLtDestroy, (cublasLtHandle_t handle), (handle))                                            \
    _(cublasLtMatmulDescCreate, (cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,              \
                                 cudaDataType_t scale), (desc, compute, scale))                        \
    _(cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))                                  \
    _(cublasLtMatmulDescSetAttribute, (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attr, \
                                       const void *buf, size_t bytes), (desc, attr, buf, bytes))       \
    _(cublasLtMatrixLayoutCreate, (cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows,   \
                                   uint64_t cols, int64_t ld), (layout, type, rows, cols, ld))         \
    _(cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))                          \
    _(cublasLtMatrixLayoutSetAttribute, (cublasLtMatrixLayout_t layout,                                \
                                         cublasLtMatrixLayoutAttribute_t attr, const void *buf,        \
                                         size_t bytes), (layout, attr, buf, bytes))                    \
    _(cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t *preference), (preference))          \
    _(cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))          \
    _(cublasLtMatmulPreferenceSetAttribute, (cublasLtMatmulPreference_t preference,                    \
                                             cublasLtMatmulPreferenceAttributes_t attr,                \
                                             const void *buf, size_t bytes),                           \
      (preference, attr, buf, bytes))                                                                  \
    _(cublasLtMatmulAlgoGetHeuristic, (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,             \
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,             \
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,             \
                                       cublasLtMatmulPreference_t preference, int requested,           \
                                       cublasLtMatmulHeuristicResult_t *heuristicResults, int *count), \
      (handle, desc, a, b, c, d, preference, requested, heuristicResults, count))                      \
    _(cublasLtMatmul, (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,          \
                       const void *a, cublasLtMatrixLayout_t adesc, const void *b,                     \
                       cublasLtMatrixLayout_t bdesc, const void *beta, const void *c,                  \
                       cublasLtMatrixLayout_t cdesc, void *d, cublasLtMatrixLayout_t ddesc,            \
                       const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,                \
                       cudaStream_t stream),                                                           \
      (handle, desc, alpha, a, adesc, b, bdesc, beta, c, cdesc, d, ddesc, algo, workspace,             \
       bytes, stream))
// clang-format on

#define SLOT(name, parameters, arguments) __typeof__(&name) name;
static struct {
    CALLS(SLOT)
} real;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void *library, const char *name, void *slot)
{
    *(void **)slot = dlsym(library, name);
    if (!*(void **)slot) {
        log_error("this " LIBRARY " lacks %s", name);
    }
}

static void load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        log_error("the GPU backend needs cuBLASLt: %s", or_empty(why));
        return;
    }
#define FIND(name, parameters, arguments) find(library, #name, &real.name);
    CALLS(FIND)
}

/* Hidden, so that the library's own calls do not come here. */
#define FORWARD(name, parameters, arguments)                                                       \
    __attribute__((visibility("hidden"))) cublasStatus_t name parameters                           \
    {                                                                                              \
        pthread_once(&once, load);                                                                 \
        return real.name ? real.name arguments : CUBLAS_STATUS_NOT_INITIALIZED;                    \
    }
CALLS(FORWARD)
