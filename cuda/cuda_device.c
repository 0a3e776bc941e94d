// SPDX-License-Identifier: Apache-2.0
/* The device: opening, allocations, copies, and the sticky failure. */
#include "cuda/cuda_device.h"

#include "cuda/cuda.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first error is logged and kept. Every later call returns it, because results after it are
 * invalid. */
enum status cuda_check(struct cuda *be, cudaError_t e, const char *what)
{
    if (e != cudaSuccess && be->lost == OK) {
        log_error("device %d is lost: %s: %s", be->options.device, what, cudaGetErrorString(e));
        be->lost = ERR_DEVICE;
    }
    return be->lost;
}

enum status cuda_enter(struct cuda *be)
{
    TRY(be->lost);
    CUDA_TRY(be, cudaSetDevice(be->options.device));
    return OK;
}

/* Without a driver the call fails. The error must not remain for later calls. */
int32_t cuda_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

/* All allocations live until the backend closes, so a list of them is enough. */
enum status cuda_alloc(struct cuda *be, size_t n_bytes, void **out)
{
    *out = NULL;
    TRY(cuda_enter(be));
    if (be->n_allocations == be->max_allocations) {
        be->max_allocations = be->max_allocations * 2 + 256;
        be->allocations =
            xrealloc(be->allocations, (size_t)be->max_allocations * sizeof *be->allocations);
    }
    void *p = NULL;
    // Vectorised reads may go past the last element.
    const size_t padded = (n_bytes + 511) / 256 * 256;
    if (padded < n_bytes) {
        return ERR_NOMEM;
    }
    const cudaError_t e = cudaMalloc(&p, padded);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return ERR_NOMEM;
    }
    CUDA_TRY(be, e);
    be->allocations[be->n_allocations++] = p;
    CUDA_TRY(be, cudaMemsetAsync(p, 0, padded, be->stream));
    *out = p;
    return OK;
}

/* The free memory as the driver reports it now; what other processes use is not free. */
enum status cuda_facts(struct backend *base, struct backend_facts *out)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_TRY(be, cudaMemGetInfo(&free_bytes, &total_bytes));
    memset(out, 0, sizeof *out);
    out->name = "cuda";
    snprintf(out->device, sizeof out->device, "%s (device %d, %.1f GiB)", be->device_name,
             be->options.device, (double)total_bytes / (1 << 30));
    out->act = out->residual = be->options.dtype;
    out->free_bytes = free_bytes;
    out->preferred_block_tokens = 64;
    out->async = true;
    out->plain_experts = true;
    out->rounds_inputs = be->options.dtype != DT_F32; // for FP8 inputs; see cuda_weights.c
    return OK;
}

enum status cuda_alloc_op(struct backend *base, size_t n_bytes, struct dmem *out)
{
    return cuda_alloc(cuda_of(base), n_bytes, &out->p);
}

/* Waits for the copy, so `from` may be freed. For loading and tests, not for steps. */
enum status cuda_write(struct backend *base, struct dmem to, const void *from, size_t n_bytes)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    CUDA_TRY(be, cudaMemcpyAsync(to.p, from, n_bytes, cudaMemcpyHostToDevice, be->stream));
    CUDA_TRY(be, cudaStreamSynchronize(be->stream));
    return OK;
}

enum status cuda_read(struct backend *base, void *to, struct dmem from, size_t n_bytes)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    CUDA_TRY(be, cudaMemcpyAsync(to, from.p, n_bytes, cudaMemcpyDeviceToHost, be->stream));
    CUDA_TRY(be, cudaStreamSynchronize(be->stream));
    return OK;
}

/* Whether this build has code for this device. The list of architectures comes from the build's
 * options. */
bool cuda_arch_runs(const char *archs, int32_t sm)
{
    for (const char *p = archs; *p;) {
        char *end = NULL;
        const int32_t arch = (int32_t)strtol(p, &end, 10);
        const bool special = *end == 'a'; // "90a" means code for exactly this architecture
        if (end == p) {
            return false;
        }
        if (special ? arch == sm : sm != 90 && arch / 10 == sm / 10 && arch <= sm) {
            return true;
        }
        end += special;
        p = end + strspn(end, " ");
    }
    return false;
}

/* Each reason for not having a device gives a different message. */
enum status cuda_device_open(struct cuda *be, struct err *err)
{
    const int32_t n = cuda_device_count();
    if (n == 0) {
        int driver = 0;
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
            return err_set(err, ERR_DEVICE,
                           "no NVIDIA driver was found: use --device cpu, or "
                           "install the driver");
        }
        return err_set(err, ERR_DEVICE, "no NVIDIA GPU was found, although a driver is installed");
    }
    if (be->options.device < 0 || be->options.device >= n) {
        return err_set(err, ERR_INVALID, "there is no GPU %d: this machine has %d",
                       be->options.device, n);
    }
    struct cudaDeviceProp prop;
    cudaError_t e = cudaSetDevice(be->options.device);
    if (e == cudaSuccess) {
        e = cudaGetDeviceProperties(&prop, be->options.device);
    }
    if (e != cudaSuccess) {
        return err_set(err, ERR_DEVICE, "GPU %d: %s", be->options.device, cudaGetErrorString(e));
    }
    be->sm = prop.major * 10 + prop.minor;
    be->n_sms = prop.multiProcessorCount;
    snprintf(be->device_name, sizeof be->device_name, "%.60s", prop.name);
    if (be->sm < 80) {
        return err_set(err, ERR_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d; at least 8.0 is required",
                       be->options.device, prop.name, prop.major, prop.minor);
    }
    if (!cuda_arch_runs(SLUICE_CUARCH, be->sm)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d, for which this build has no "
                       "code: it was made with CUARCH=\"%s\"",
                       be->options.device, prop.name, prop.major, prop.minor, SLUICE_CUARCH);
    }
    e = cudaStreamCreateWithFlags(&be->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) {
        return err_set(err, ERR_DEVICE, "GPU %d: %s", be->options.device, cudaGetErrorString(e));
    }
    return OK;
}

void cuda_device_close(struct cuda *be)
{
    for (int32_t i = 0; i < be->n_allocations; i++) {
        cudaFree(be->allocations[i]);
    }
    if (be->stream) {
        cudaStreamDestroy(be->stream);
    }
    (void)cudaGetLastError();
    free(be->allocations);
}
