// SPDX-License-Identifier: Apache-2.0
/* A program with the CUDA backend maps cuBLASLt when it is first called, and not before. Needs the
 * library, but no device. */
#include "test/check.h"

#include <stdio.h>
#include <string.h>

#ifdef SLUICE_CUDA
#include <cublasLt.h>

static bool is_mapped(void)
{
    char line[4096];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        found = found || strstr(line, "libcublasLt");
    }
    CHECK(maps != NULL);
    if (maps) {
        fclose(maps);
    }
    return found;
}

TEST(cublas_is_loaded_by_its_first_call)
{
    CHECK(!is_mapped());
    cublasLtMatrixLayout_t layout = NULL;
    CHECK_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 8, 4, 8), CUBLAS_STATUS_SUCCESS);
    CHECK(is_mapped());
    const int32_t n = 3;
    CHECK_EQ(
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n),
        CUBLAS_STATUS_SUCCESS);
    CHECK_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
}

#else

TEST(cublas_is_loaded_by_its_first_call)
{
    SKIP("built without CUDA");
}

#endif

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
