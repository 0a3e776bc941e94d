/* The state of the whole, devices, and failures. */
#include "test/fake/fake_private.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FUNCTIONS = 4096, MAX_DEVICES = 16 };

/* A kernel, as programs made by nvcc register it. */
struct function {
    const void *host;
    const char *name;
    int32_t dynamic_bytes[MAX_DEVICES]; // allowed
    bool is_launched;
};

static struct {
    pthread_mutex_t lock;
    int32_t n_devices, sm;
    uint64_t random;
    struct function functions[MAX_FUNCTIONS];
    int32_t n_functions;
    int64_t fail_at;
    cudaError_t fail_with, lost[MAX_DEVICES]; // lost: sticky
    bool failed, no_products, complained;
    char complaint[256];
    struct fake_cuda_counts counts;
    size_t memory_bytes;
    struct {
        const char *word; // NULL: none
        size_t n_args, arg_bytes[4];
        void (*run)(dim3 grid, const void *const *args);
    } emulated;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .n_devices = 2, .sm = 90, .fail_at = -1,
       .memory_bytes = (size_t)1 << 34};

static _Thread_local int32_t device;
static _Thread_local cudaError_t last_error;
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

void fake_lock(void)
{
    pthread_mutex_lock(&g.lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&g.lock);
}

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

void fake_cuda_reset(int32_t n_devices, int32_t sm, size_t memory_bytes)
{
    fake_lock();
    g.n_devices = n_devices;
    g.sm = sm;
    g.memory_bytes = memory_bytes;
    g.fail_at = -1;
    memset(g.lost, 0, sizeof g.lost); // cudaSuccess
    g.failed = g.no_products = g.complained = false;
    g.emulated.word = NULL;
    last_error = cudaSuccess;
    device = 0;
    fake_stream_end();
    fake_memory_end();
    g.counts = (struct fake_cuda_counts){0};
    for (int32_t i = 0; i < g.n_functions; i++) {
        memset(g.functions[i].dynamic_bytes, 0, sizeof g.functions[i].dynamic_bytes);
        g.functions[i].is_launched = false;
    }
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

/* Of a program that knows nothing of this: its device is lost when the file is there. */
static bool is_told_to_fail(void)
{
    const char *path = getenv("FAKE_CUDA_LOST");
    return path && !g.failed && access(path, F_OK) == 0;
}

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
        g.lost[device] = e == cudaErrorMemoryAllocation ? cudaSuccess : e;
    }
    g.counts.calls++;
    last_error = e != cudaSuccess ? e : last_error;
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

/* H100's and A100's. */
static int32_t n_sms(void)
{
    return g.sm == 90 ? 132 : 108;
}

static int32_t most_shared_bytes(void)
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
    return e == cudaErrorMemoryAllocation ? "out of memory" : "made up";
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

cudaError_t cudaSetDevice(int to)
{
    const cudaError_t e = call();
    if (e == cudaSuccess && (to < 0 || to >= g.n_devices)) {
        return cudaErrorInvalidDevice;
    }
    device = e == cudaSuccess ? to : device;
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
    default: fake_complain("the fake has no attribute %d of a device", (int)which);
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

/* What a driver refuses, of the kind that this project makes: 16-bit elements, boxes as wide as the
 * swizzle. */
static int encode_tiled(void *map, int type, uint32_t n_dims, void *base, const uint64_t *dims,
                        const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                        int interleave, int swizzle, int promotion, int fill)
{
    (void)map, (void)type, (void)steps, (void)interleave, (void)swizzle, (void)promotion;
    (void)fill;
    bool ok = (uintptr_t)base % 16 == 0 && n_dims >= 1 && n_dims <= 5 && box[0] * 2 <= 128 &&
              box[0] * 2 % 16 == 0;
    for (uint32_t i = 0; i < n_dims; i++) {
        ok = ok && dims[i] > 0 && dims[i] <= (uint64_t)1 << 32 && box[i] >= 1 && box[i] <= 256;
        ok = ok && (i == 0 || (strides[i - 1] % 16 == 0 && strides[i - 1] < (uint64_t)1 << 40));
    }
    fake_lock();
    if (!ok) {
        fake_complain("a tensor map that no driver makes");
    }
    fake_on_device(base, 1, "a tensor map");
    fake_unlock();
    return ok ? 0 : 1;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    if (strcmp(name, "cuTensorMapEncodeTiled") != 0) {
        fake_complain("the fake has no %s", name);
        return cudaErrorNotSupported;
    }
    int (*encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                  const uint32_t *, const uint32_t *, int, int, int, int) = encode_tiled;
    memcpy(entry, &encode, sizeof *entry);
    *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

/* ---- kernels ------------------------------------------------------------------------------- */

/* What nvcc's code calls: no header for C has them. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *of_device, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext,
                       size_t size, int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;
    (void)binary;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *of_device, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp)
{
    (void)handle, (void)of_device, (void)thread_limit, (void)tid, (void)bid, (void)block;
    (void)grid, (void)warp;
    if (g.n_functions == MAX_FUNCTIONS) {
        fprintf(stderr, "fake_cuda: more than %d kernels\n", MAX_FUNCTIONS);
        abort();
    }
    g.functions[g.n_functions++] = (struct function){.host = host, .name = name};
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext,
                       size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant;
    (void)global;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st *stream)
{
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(cudaStream_t *)stream = pushed.stream;
    return cudaSuccess;
}

static struct function *find_function(const void *host)
{
    for (int32_t i = 0; i < g.n_functions; i++) {
        if (g.functions[i].host == host) {
            return &g.functions[i];
        }
    }
    fake_complain("a kernel that is not registered");
    return NULL;
}

bool fake_cuda_launched(const char *word)
{
    for (int32_t i = 0; i < g.n_functions; i++) {
        if (g.functions[i].is_launched && strstr(g.functions[i].name, word)) {
            return true;
        }
    }
    return false;
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value)
{
    fake_lock();
    cudaError_t e = fake_call();
    struct function *f = find_function(host);
    if (e == cudaSuccess && f && which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > most_shared_bytes()) {
            fake_complain("%s: %d bytes of shared memory", f->name, value);
            e = cudaErrorInvalidValue;
        }
        f->dynamic_bytes[device] = value;
    }
    fake_unlock();
    return e;
}

static cudaError_t check_launch(struct function *f, dim3 grid, dim3 block, dim3 cluster,
                                size_t shared)
{
    enum { PLAIN_BYTES = 48 << 10, MAX_THREADS = 1024, MAX_YZ = 65535, MAX_CLUSTER = 8 };
    const uint64_t threads = (uint64_t)block.x * block.y * block.z;
    const uint64_t clustered = (uint64_t)cluster.x * cluster.y * cluster.z;
    const bool ok = grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y <= MAX_YZ &&
                    grid.z > 0 && grid.z <= MAX_YZ && threads > 0 && threads <= MAX_THREADS &&
                    block.z <= 64 && clustered > 0 && clustered <= MAX_CLUSTER &&
                    grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0;
    const size_t allowed = f->dynamic_bytes[device] > PLAIN_BYTES
                               ? (size_t)f->dynamic_bytes[device] : (size_t)PLAIN_BYTES;
    if (!ok || shared > allowed) {
        fake_complain("%s: a launch of (%u, %u, %u) blocks of %llu threads in clusters of %llu "
                      "with %zu bytes of %zu", f->name, grid.x, grid.y, grid.z,
                      (unsigned long long)threads, (unsigned long long)clustered, shared, allowed);
        return cudaErrorInvalidConfiguration;
    }
    return cudaSuccess;
}

void fake_cuda_emulate(const char *word, size_t n_args, const size_t *arg_bytes,
                       void (*run)(dim3 grid, const void *const *args))
{
    g.emulated.word = word;
    g.emulated.n_args = n_args;
    g.emulated.run = run;
    memcpy(g.emulated.arg_bytes, arg_bytes, n_args * sizeof *arg_bytes);
}

static void keep_args(struct fake_op *op, const struct function *f, dim3 grid, void **args)
{
    op->is_emulated = g.emulated.word && strstr(f->name, g.emulated.word);
    op->grid = grid;
    char *to = op->args;
    for (size_t i = 0; op->is_emulated && i < g.emulated.n_args; i++) {
        memcpy(to, args[i], g.emulated.arg_bytes[i]);
        to += g.emulated.arg_bytes[i];
    }
}

void fake_emulate(const struct fake_op *op)
{
    const void *args[4];
    const char *from = op->args;
    for (size_t i = 0; i < g.emulated.n_args; i++) {
        args[i] = from;
        from += g.emulated.arg_bytes[i];
    }
    g.emulated.run(op->grid, args);
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, dim3 cluster, size_t shared,
                          cudaStream_t stream, void **args)
{
    struct fake_op op = {.kind = FAKE_WORK};
    fake_lock();
    cudaError_t e = fake_call();
    struct function *f = find_function(host);
    e = e == cudaSuccess && !f ? cudaErrorInvalidDeviceFunction : e;
    e = e == cudaSuccess ? check_launch(f, grid, block, cluster, shared) : e;
    if (e == cudaSuccess) {
        keep_args(&op, f, grid, args);
        e = fake_enqueue(stream, &op);
    }
    if (e == cudaSuccess) {
        g.counts.kernels += !f->is_launched;
        f->is_launched = true;
    }
    fake_unlock();
    return e;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host)
{
    memcpy(kernel, &host, sizeof *kernel);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    return launch((const void *)kernel, grid, block, (dim3){1, 1, 1}, shared, stream, args);
}

/* What code of nvcc 12 calls instead. */
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return launch(host, grid, block, (dim3){1, 1, 1}, shared, stream, args);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    dim3 cluster = {1, 1, 1};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            cluster.x = config->attrs[i].val.clusterDim.x;
            cluster.y = config->attrs[i].val.clusterDim.y;
            cluster.z = config->attrs[i].val.clusterDim.z;
        }
    }
    return launch(host, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
                  config->stream, args);
}
