// SPDX-License-Identifier: Apache-2.0
/* Words sent to and received from other ranks' GPUs; cuda/all_reduce.h describes the protocol.
 * Thread: device code. */
#ifndef SLUICE_CUDA_DEVICE_PEER_CUH
#define SLUICE_CUDA_DEVICE_PEER_CUH

#include "cuda/all_reduce.h"

#include <cuda_runtime.h>

__device__ __forceinline__ uint32_t sendable(uint32_t w)
{
    return w == PEER_ABSENT ? 0 : w;
}

__device__ __forceinline__ uint4 sendable(uint4 v)
{
    return make_uint4(sendable(v.x), sendable(v.y), sendable(v.z), sendable(v.w));
}

__device__ __forceinline__ void send(char *p, uint4 v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_arriving(const char *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ __forceinline__ bool has_come(uint4 v)
{
    return v.x != PEER_ABSENT && v.y != PEER_ABSENT && v.z != PEER_ABSENT && v.w != PEER_ABSENT;
}

/* Waits for 16 bytes. After an abort it returns arbitrary bytes, because nothing uses the
 * result. */
__device__ __forceinline__ uint4 receive(const char *p, const volatile uint32_t *aborted)
{
    uint4 v = load_arriving(p);
    for (uint32_t spins = 1; !has_come(v); spins++) {
        if ((spins & 0x3fff) == 0 && *aborted != 0) {
            break;
        }
        v = load_arriving(p);
    }
    return v;
}

/* The area that the current call uses, if read before next_call. */
__device__ __forceinline__ uint32_t area_of_call(const struct peer_state *state)
{
    return *(const volatile uint32_t *)&state->area;
}

/* The same, together with the bytes written into each area. This reads the whole state in one
 * memory access. */
__device__ __forceinline__ uint32_t state_of_call(const struct peer_state *state,
                                                  uint64_t (&used)[PEER_AREAS])
{
    const volatile struct peer_state *from = state;
    const uint32_t now = from->area;
#pragma unroll
    for (int i = 0; i < PEER_AREAS; i++) {
        used[i] = from->used[i];
    }
    return now;
}

/* used[area], read without moving the array from registers to memory. */
__device__ __forceinline__ uint64_t used_of(const uint64_t (&used)[PEER_AREAS], uint32_t area)
{
    static_assert(PEER_AREAS == 3, "one comparison per area");
    if (area == 0) {
        return used[0];
    }
    return area == 1 ? used[1] : used[2];
}

/* Clears n_bytes of area `before`, which the previous call used and the call after the next will
 * use. */
__device__ __forceinline__ void clear_area(const struct peer_view &peers, uint32_t before,
                                           uint64_t n_bytes)
{
    const uint4 absent = make_uint4(PEER_ABSENT, PEER_ABSENT, PEER_ABSENT, PEER_ABSENT);
    uint4 *to =
        reinterpret_cast<uint4 *>(peers.areas[peers.rank] + (uint64_t)before * peers.area_bytes);
    const uint64_t n = n_bytes / 16, step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        to[i] = absent;
    }
}

__device__ __forceinline__ void clear_before(const struct peer_view &peers, uint32_t now)
{
    const uint32_t before = (now + PEER_AREAS - 1) % PEER_AREAS;
    clear_area(peers, before, *(const volatile uint64_t *)&peers.state->used[before]);
}

__device__ __forceinline__ void move_on(struct peer_state *state, uint32_t now, uint64_t n_bytes)
{
    state->used[now] = n_bytes;
    state->ended = 0;
    state->area = (now + 1) % PEER_AREAS;
}

/* Called once per block, after all its threads have read the state. The last block to call it
 * advances the state to the next call. This happens early, so that the round trip to memory is not
 * at the end of the kernel. The next kernel sees the new state because it waits for this one. */
__device__ __forceinline__ void next_call(struct peer_state *state, uint32_t now, uint64_t n_bytes)
{
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&state->ended, 1u) == gridDim.x - 1) {
        move_on(state, now, n_bytes);
    }
}

#endif
