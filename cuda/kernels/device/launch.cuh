// SPDX-License-Identifier: Apache-2.0
/* Launches with programmatic dependent launch (PDL): a kernel's blocks may start while the
 * preceding kernel still runs. Two rules follow.
 *
 * Every block of every kernel calls pdl_wait() before it touches memory that the preceding kernel
 * writes. (A grid that finished without waiting would let its successor overtake a predecessor that
 * still runs.)
 *
 * pdl_trigger() normally comes right after the wait. Exceptions that trigger before it: norms,
 * activations that write codes, the rounding of inputs, sums over ranks of up to 32 rows, and, with
 * more than 32 rows, attention's join, few.cu and few_fixed.cu. The product after them is one of
 * gemm/single.cu, gemm/small.cu, gemm/wide.cu or gemm/eight.cu, whose blocks need a multiprocessor
 * each, so they start as the previous product's blocks leave. The computing threads of these
 * products trigger early, too (cuda/README.md, "Rules for kernels"). The scores of few rows of a
 * mixture (moe/few.cu, moe/scores.cu with a norm), the picks of others (moe/route.cu) and adapters
 * of few rows (gemm/adapter_down.cu) trigger first, so that the next kernel's code is there.
 *
 * Hence before its wait a kernel may read the output of the kernel before last only if the
 * preceding kernel waits before it triggers.
 *
 * Devices before sm_90 ignore both calls.
 * Thread: the rank's owner. */
#ifndef SLUICE_CUDA_DEVICE_LAUNCH_CUH
#define SLUICE_CUDA_DEVICE_LAUNCH_CUH

#include <cuda_runtime.h>
#include <utility>

__device__ __forceinline__ void pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The compute capability; from 90 on launches set the PDL attribute. Queried once per process,
 * because all devices of a process are of the same kind. */
static inline int launch_sm()
{
    static const int sm = [] {
        int device = 0, major = 0, minor = 0;
        if (cudaGetDevice(&device) != cudaSuccess ||
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) !=
                cudaSuccess ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) !=
                cudaSuccess) {
            return 0;
        }
        return major * 10 + minor;
    }();
    return sm;
}

static inline int32_t n_multiprocessors()
{
    static const int32_t n_sms = [] {
        int device = 0, n = 0;
        return cudaGetDevice(&device) == cudaSuccess &&
                       cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device) ==
                           cudaSuccess
                   ? n
                   : 1;
    }();
    return n_sms;
}

/* Launches in clusters of `cluster` blocks along x, which must divide grid.x. More than one block
 * per cluster needs sm_90 or later. */
template <typename... P, typename... A>
static inline cudaError_t launch_clusters(unsigned cluster, void (*kernel)(P...), dim3 grid,
                                          dim3 block, size_t smem, cudaStream_t stream, A &&...args)
{
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) {
        return cudaSuccess;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    if (launch_sm() < 90) {
        config.numAttrs = 0;
    }
    return cudaLaunchKernelEx(&config, kernel, P(std::forward<A>(args))...);
}

template <typename... P, typename... A>
static inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                 cudaStream_t stream, A &&...args)
{
    return launch_clusters(1, kernel, grid, block, smem, stream, std::forward<A>(args)...);
}

#endif
