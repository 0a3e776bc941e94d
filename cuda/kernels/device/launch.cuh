// SPDX-License-Identifier: Apache-2.0
/* Launches with programmatic dependent launch: a kernel's blocks may be set up while the kernel
 * before it still runs. So every kernel here calls pdl_wait() before it touches memory that the
 * kernel before it writes, in every block (a grid that ended without waiting would let its
 * successor pass a predecessor that still runs). pdl_trigger() comes right after the wait. Norms,
 * sums over ranks of up to 32 rows, attention's join of more and attention_few.cu of more trigger
 * before: the product after them is one of gemm_small.cu or gemm_wide.cu, whose blocks each need a
 * multiprocessor to themselves, so that they move in as the last product's blocks leave. Those
 * two's computing threads do, too (cuda/README.md, "Rules for kernels"). What the kernel before
 * last wrote is therefore there only after a kernel that waits before it triggers. Devices before
 * sm_90 ignore both. Thread: the rank's owner. */
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

/* 90 or more: the attribute is set. Asked once per process: every device of one is alike. */
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

/* In clusters of `cluster` blocks along x; more than one: sm_90 or later, and it divides grid.x. */
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
    config.numAttrs = launch_sm() < 90 ? 0 : cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, P(std::forward<A>(args))...);
}

template <typename... P, typename... A>
static inline cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                 cudaStream_t stream, A &&...args)
{
    return launch_clusters(1, kernel, grid, block, smem, stream, std::forward<A>(args)...);
}

#endif
