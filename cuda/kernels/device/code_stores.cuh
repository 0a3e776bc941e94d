// SPDX-License-Identifier: Apache-2.0
/* Stores 8-bit codes made from wgmma's results, 16 bytes at a time. Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_CODE_STORES_CUH
#define SLUICE_CUDA_DEVICE_CODE_STORES_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Four lanes share a row of 128 codes; lane t of them gets 32 adjacent codes and stores them at its
 * `to`, if valid. words[i] has the lane's codes of features 16 i + 2 t, + 1 and, in its upper half,
 * 8 features further on. Called by all lanes of a warp. */
__device__ __forceinline__ void store_codes(uint8_t *to, const uint32_t (&words)[8], bool valid)
{
    const bool is_upper = threadIdx.x & 2, is_odd = threadIdx.x & 1;
    uint32_t from[4][2]; // the words for this lane, from lane t ^ i
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t near[2], far[2];
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const uint32_t low = words[2 * b + i], high = words[2 * (b + 2) + i];
            near[b] = is_upper ? high : low;
            far[b] = __shfl_xor_sync(0xffffffffu, is_upper ? low : high, 2);
        }
        from[0][i] = is_odd ? near[1] : near[0];
        from[1][i] = __shfl_xor_sync(0xffffffffu, is_odd ? near[0] : near[1], 1);
        from[2][i] = is_odd ? far[1] : far[0];
        from[3][i] = __shfl_xor_sync(0xffffffffu, is_odd ? far[0] : far[1], 1);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t a = is_odd ? from[1][i] : from[0][i], b = is_odd ? from[0][i] : from[1][i];
        const uint32_t c = is_odd ? from[3][i] : from[2][i], d = is_odd ? from[2][i] : from[3][i];
        const uint32_t l0 = is_upper ? c : a, l1 = is_upper ? d : b;
        const uint32_t l2 = is_upper ? a : c, l3 = is_upper ? b : d;
        if (valid) {
            *(uint4 *)(to + 16 * i) =
                make_uint4(__byte_perm(l0, l1, 0x5410), __byte_perm(l2, l3, 0x5410),
                           __byte_perm(l0, l1, 0x7632), __byte_perm(l2, l3, 0x7632));
        }
    }
}

#endif
