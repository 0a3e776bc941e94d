// SPDX-License-Identifier: Apache-2.0
/* Kernels: registration by nvcc's code, checks of launches, and the emulation of one kernel by the
 * host. */
#include "test/cuda/fake/fake_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FUNCTIONS = 4096, MAX_ARGS = 4 };

/* A kernel as nvcc's code registers it before main. */
static struct function {
    const void *host;
    const char *name;
    int32_t dynamic_bytes[FAKE_MAX_DEVICES]; // the shared memory that it may use
    bool is_launched;
} functions[MAX_FUNCTIONS];
static int32_t n_functions;

/* The kernel that a function of the host emulates; its arguments are copied at launch. */
static struct {
    const char *word; // NULL: none
    size_t n_args, arg_bytes[MAX_ARGS];
    void (*run)(dim3 grid, const void *const *args);
} emulated;

/* <<<...>>> pushes its configuration; the launch function pops it, in the same thread. */
static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed;

/* Permissions for shared memory are per life; registrations stay. */
void fake_kernels_end(void)
{
    emulated.word = NULL;
    for (int32_t i = 0; i < n_functions; i++) {
        memset(functions[i].dynamic_bytes, 0, sizeof functions[i].dynamic_bytes);
        functions[i].is_launched = false;
    }
}

/* Called by nvcc's code; no C header declares them. */
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

/* nvcc defines the signature; only the address and the name are used. */
void __cudaRegisterFunction(void **handle, const char *host, char *of_device, const char *name,
                            int thread_limit, void *tid, void *bid, void *block, void *grid,
                            int *warp)
{
    (void)handle, (void)of_device, (void)thread_limit, (void)tid, (void)bid, (void)block;
    (void)grid, (void)warp;
    if (n_functions == MAX_FUNCTIONS) {
        fprintf(stderr, "fake_cuda: more than %d kernels\n", MAX_FUNCTIONS);
        abort();
    }
    functions[n_functions++] = (struct function){.host = host, .name = name};
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext,
                       size_t size, int constant, int global)
{
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant;
    (void)global;
}

/* The first half of a launch with <<<...>>>, as nvcc's code calls it. */
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

/* Finds a kernel by the address of its stub on the host, as the runtime does. */
static struct function *find_function(const void *host)
{
    for (int32_t i = 0; i < n_functions; i++) {
        if (functions[i].host == host) {
            return &functions[i];
        }
    }
    fake_complain("a kernel that is not registered");
    return NULL;
}

/* Since the last reset; `word` is a part of the mangled name. */
bool fake_cuda_launched(const char *word)
{
    for (int32_t i = 0; i < n_functions; i++) {
        if (functions[i].is_launched && strstr(functions[i].name, word)) {
            return true;
        }
    }
    return false;
}

/* More shared memory than a device has is an error here; on a device it would be one, too. */
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value)
{
    fake_lock();
    cudaError_t e = fake_call();
    struct function *f = find_function(host);
    if (e == cudaSuccess && f && which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > fake_most_shared_bytes()) {
            fake_complain("%s: %d bytes of shared memory", f->name, value);
            e = cudaErrorInvalidValue;
        }
        f->dynamic_bytes[fake_device()] = value;
    }
    fake_unlock();
    return e;
}

/* The limits of a launch that do not depend on the kernel's code. */
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
    size_t allowed;
    if (f->dynamic_bytes[fake_device()] > PLAIN_BYTES) {
        allowed = (size_t)f->dynamic_bytes[fake_device()];
    } else {
        allowed = (size_t)PLAIN_BYTES;
    }
    if (!ok || shared > allowed) {
        fake_complain("%s: a launch of (%u, %u, %u) blocks of %llu threads in clusters of %llu "
                      "with %zu bytes of %zu",
                      f->name, grid.x, grid.y, grid.z, (unsigned long long)threads,
                      (unsigned long long)clustered, shared, allowed);
        return cudaErrorInvalidConfiguration;
    }
    return cudaSuccess;
}

void fake_cuda_emulate(const char *word, size_t n_args, const size_t *arg_bytes,
                       void (*run)(dim3 grid, const void *const *args))
{
    emulated.word = word;
    emulated.n_args = n_args;
    emulated.run = run;
    memcpy(emulated.arg_bytes, arg_bytes, n_args * sizeof *arg_bytes);
}

/* Arguments live on the caller's stack, so they are copied before the launch returns. */
static void keep_args(struct fake_op *op, const struct function *f, dim3 grid, void **args)
{
    op->is_emulated = emulated.word && strstr(f->name, emulated.word);
    op->grid = grid;
    char *to = op->args;
    for (size_t i = 0; op->is_emulated && i < emulated.n_args; i++) {
        memcpy(to, args[i], emulated.arg_bytes[i]);
        to += emulated.arg_bytes[i];
    }
}

/* Runs the emulated kernel, when its stream comes to it. */
void fake_emulate(const struct fake_op *op)
{
    const void *args[MAX_ARGS];
    const char *from = op->args;
    for (size_t i = 0; i < emulated.n_args; i++) {
        args[i] = from;
        from += emulated.arg_bytes[i];
    }
    emulated.run(op->grid, args);
}

/* A launch is an op of its stream; nothing happens until the stream runs. */
static cudaError_t launch(const void *host, dim3 grid, dim3 block, dim3 cluster, size_t shared,
                          cudaStream_t stream, void **args)
{
    struct fake_op op = {.kind = FAKE_WORK};
    fake_lock();
    cudaError_t e = fake_call();
    struct function *f = find_function(host);
    if (e == cudaSuccess && !f) {
        e = cudaErrorInvalidDeviceFunction;
    }
    if (e == cudaSuccess) {
        e = check_launch(f, grid, block, cluster, shared);
    }
    if (e == cudaSuccess) {
        keep_args(&op, f, grid, args);
        e = fake_enqueue(stream, &op);
    }
    if (e == cudaSuccess) {
        if (!f->is_launched) {
            fake_count_kernel();
        }
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

/* Code of nvcc 12 calls this one instead. */
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return launch(host, grid, block, (dim3){1, 1, 1}, shared, stream, args);
}

/* Of a launch's attributes only one matters here: the size of clusters. */
static dim3 cluster_of(const cudaLaunchConfig_t *config)
{
    dim3 cluster = {1, 1, 1};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            cluster.x = config->attrs[i].val.clusterDim.x;
            cluster.y = config->attrs[i].val.clusterDim.y;
            cluster.z = config->attrs[i].val.clusterDim.z;
        }
    }
    return cluster;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    return launch(host, config->gridDim, config->blockDim, cluster_of(config),
                  config->dynamicSmemBytes, config->stream, args);
}

/* As many as an H200 has multiprocessors for; a device may have room for fewer, or for more. */
cudaError_t cudaOccupancyMaxActiveClusters(int *n, const void *host,
                                           const cudaLaunchConfig_t *config)
{
    enum { MULTIPROCESSORS = 132 };
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess && !find_function(host)) {
        e = cudaErrorInvalidDeviceFunction;
    }
    const dim3 cluster = cluster_of(config);
    *n = MULTIPROCESSORS / (int)(cluster.x * cluster.y * cluster.z);
    fake_unlock();
    return e;
}
