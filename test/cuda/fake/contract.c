// SPDX-License-Identifier: Apache-2.0
/* Linked with an op test of the GPU, which then runs on the fake device. All results are zero, so
 * the test's comparisons are ignored; its calls must keep the contract of a device. Reports at the
 * end. */
#include "cuda/cuda.h"
#include "test/cuda/fake/fake_cuda.h"

#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

static void tell(void)
{
    const struct fake_cuda_counts c = fake_cuda_counts();
    const char *complaint = fake_cuda_complaint();
    printf("%" PRId64 " calls, %" PRId64 " kernels: %s\n", c.calls, c.kernels,
           complaint ? complaint : "in order");
}

/* Large tensors come and go: memory that stays mapped is not cleared by the kernel each time. */
__attribute__((constructor)) static void begin(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    fake_cuda_reset(2, cuda_arch_runs(SLUICE_CUARCH, 90) ? 90 : 80, (size_t)1 << 34);
    atexit(tell);
}
