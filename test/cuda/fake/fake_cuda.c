// SPDX-License-Identifier: Apache-2.0
/* The global state, devices, and failures. */
#include "test/cuda/fake/fake_private.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One state for the process, protected by `lock`. The random numbers decide when streams
 * run. */
static struct {
    pthread_mutex_t lock;
    int32_t n_devices, sm;
    uint64_t random;
    int64_t fail_at;
    cudaError_t fail_with, lost[FAKE_MAX_DEVICES]; // lost: the error of all further calls
    bool failed, no_products, complained;
    char complaint[256];
    struct fake_cuda_counts counts;
    size_t memory_bytes;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER,
       .n_devices = 2,
       .sm = 90,
       .fail_at = -1,
       .memory_bytes = (size_t)1 << 34};

static _Thread_local int32_t device;
static _Thread_local cudaError_t last_error;

void fake_lock(void)
{
    pthread_mutex_lock(&g.lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&g.lock);
}

/* The first complaint is kept, since later ones usually follow from it. */
void fake_complain(const char *format, ...)
{
    if (g.complained) {
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(g.complaint, sizeof g.complaint, format, args);
    va_end(args);
    g.complained = true;
}

const char *fake_cuda_complaint(void)
{
    return g.complained ? g.complaint : NULL;
}

/* Starts afresh: devices of this architecture, nothing allocated, no failure planned. */
void fake_cuda_reset(int32_t n_devices, int32_t sm, size_t memory_bytes)
{
    fake_lock();
    g.n_devices = n_devices;
    g.sm = sm;
    g.memory_bytes = memory_bytes;
    g.fail_at = -1;
    memset(g.lost, 0, sizeof g.lost); // cudaSuccess
    g.failed = g.no_products = g.complained = false;
    last_error = cudaSuccess;
    device = 0;
    fake_stream_end();
    fake_memory_end();
    fake_kernels_end();
    g.counts = (struct fake_cuda_counts){0};
    fake_unlock();
}

void fake_cuda_fail(int64_t nth, cudaError_t e)
{
    fake_lock();
    g.fail_at = nth < 0 ? -1 : g.counts.calls + nth;
    g.fail_with = e;
    fake_unlock();
}

bool fake_cuda_failed(void)
{
    return g.failed;
}

void fake_cuda_has_products(bool yes)
{
    g.no_products = !yes;
}

size_t fake_memory_bytes(void)
{
    return g.memory_bytes;
}

bool fake_has_products(void)
{
    return !g.no_products;
}

struct fake_cuda_counts fake_cuda_counts(void)
{
    fake_lock();
    const struct fake_cuda_counts c = g.counts;
    fake_unlock();
    return c;
}

void fake_hang(const char *call)
{
    const char *path = getenv("FAKE_CUDA_HANGS");
    char named[64] = "";
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f) {
        return;
    }
    const bool hangs = fgets(named, sizeof named, f) && strstr(named, call);
    fclose(f);
    if (hangs) {
        for (;;) {
            pause();
        }
    }
}

/* For whole programs, which cannot call fake_cuda_fail: their device is lost once the file
 * exists. */
static bool is_told_to_fail(void)
{
    const char *path = getenv("FAKE_CUDA_LOST");
    return path && !g.failed && access(path, F_OK) == 0;
}

/* Counts a call, and fails if it is the chosen one. Called with the lock held. A lost device fails
 * at every later call, as a real one does. */
cudaError_t fake_call(void)
{
    if (is_told_to_fail()) {
        g.fail_at = g.counts.calls;
        g.fail_with = cudaErrorIllegalAddress;
    }
    cudaError_t e = g.lost[device];
    if (e == cudaSuccess && g.counts.calls == g.fail_at) {
        e = g.fail_with;
        g.failed = true;
        if (e == cudaErrorMemoryAllocation) {
            g.lost[device] = cudaSuccess;
        } else {
            g.lost[device] = e;
        }
    }
    g.counts.calls++;
    if (e != cudaSuccess) {
        last_error = e;
    }
    return e;
}

void fake_born(void)
{
    g.counts.left++;
}

void fake_died(void)
{
    g.counts.left--;
}

void fake_count_replay(void)
{
    g.counts.replays++;
}

void fake_count_kernel(void)
{
    g.counts.kernels++;
}

int32_t fake_device(void)
{
    return device;
}

bool fake_chance(int32_t one_in)
{
    g.random = g.random * 6364136223846793005u + 1442695040888963407u;
    return (g.random >> 33) % (uint64_t)one_in == 0;
}

/* ---- devices ------------------------------------------------------------------------------- */

/* The numbers of multiprocessors of H100 and A100. */
static int32_t n_sms(void)
{
    return g.sm == 90 ? 132 : 108;
}

int32_t fake_most_shared_bytes(void)
{
    return (g.sm == 90 ? 227 : 163) << 10;
}

static cudaError_t call(void)
{
    fake_lock();
    const cudaError_t e = fake_call();
    fake_unlock();
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    if (e == cudaErrorMemoryAllocation) {
        return "out of memory";
    }
    return "made up";
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last_error;
    last_error = g.lost[device];
    return e;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = g.n_devices;
    return call();
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return call();
}

/* The current device is a property of the thread. */
cudaError_t cudaSetDevice(int to)
{
    const cudaError_t e = call();
    if (e == cudaSuccess && (to < 0 || to >= g.n_devices)) {
        return cudaErrorInvalidDevice;
    }
    if (e == cudaSuccess) {
        device = to;
    }
    return e;
}

cudaError_t cudaGetDevice(int *out)
{
    *out = device;
    return call();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int of)
{
    (void)of;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "a fake");
    p->major = g.sm / 10;
    p->minor = g.sm % 10;
    p->multiProcessorCount = n_sms();
    p->totalGlobalMem = g.memory_bytes;
    return call();
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int of)
{
    (void)of;
    switch (which) {
    case cudaDevAttrMultiProcessorCount: *value = n_sms(); break;
    case cudaDevAttrComputeCapabilityMajor: *value = g.sm / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = g.sm % 10; break;
    default: fake_complain("the fake device has no attribute %d", (int)which);
    }
    return call();
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int of, int peer)
{
    *can = of != peer;
    return call();
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    (void)peer, (void)flags;
    return call();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    *total_bytes = g.memory_bytes;
    fake_lock();
    *free_bytes = fake_free_bytes(device);
    fake_unlock();
    return call();
}

/* ---- tensor maps --------------------------------------------------------------------------- */

/* Refuses what a driver would refuse, for the kind of maps that this project makes: elements of 16
 * bits or bytes, boxes as wide as the swizzle. */
static int encode_tiled(void *map, int type, uint32_t n_dims, void *base, const uint64_t *dims,
                        const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                        int interleave, int swizzle, int promotion, int fill)
{
    enum { BYTES = 0 }; // CU_TENSOR_MAP_DATA_TYPE_UINT8
    const uint32_t size = type == BYTES ? 1 : 2;
    (void)map, (void)steps, (void)interleave, (void)swizzle, (void)promotion;
    (void)fill;
    bool ok = (uintptr_t)base % 16 == 0 && n_dims >= 1 && n_dims <= 5 && box[0] * size <= 128 &&
              box[0] * size % 16 == 0;
    for (uint32_t i = 0; i < n_dims; i++) {
        ok = ok && dims[i] > 0 && dims[i] <= (uint64_t)1 << 32 && box[i] >= 1 && box[i] <= 256;
        ok = ok && (i == 0 || (strides[i - 1] % 16 == 0 && strides[i - 1] < (uint64_t)1 << 40));
    }
    fake_lock();
    if (!ok) {
        fake_complain("a tensor map that a driver would refuse");
    }
    fake_on_device(base, 1, "a tensor map");
    fake_unlock();
    return ok ? 0 : 1;
}

/* Only the one driver function that the backend asks for; anything else is a new
 * dependency. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    if (strcmp(name, "cuTensorMapEncodeTiled") != 0) {
        fake_complain("the fake driver has no function %s", name);
        return cudaErrorNotSupported;
    }
    int (*encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                  const uint32_t *, const uint32_t *, int, int, int, int) = encode_tiled;
    memcpy(entry, &encode, sizeof *entry);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
