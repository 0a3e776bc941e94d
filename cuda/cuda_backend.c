#include "cuda/cuda_backend.h"

#include "cuda/cuda.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int32_t cuda_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

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
    const size_t padded = (n_bytes + 511) / 256 * 256; // a vector may end past the last element
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
    return OK;
}

enum status cuda_alloc_op(struct backend *base, size_t n_bytes, struct dmem *out)
{
    return cuda_alloc(cuda_of(base), n_bytes, &out->p);
}

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

static void close_slots(struct cuda *be)
{
    for (int32_t i = 0; i < CUDA_MAX_STEPS; i++) {
        struct slot *s = &be->slots[i];
        cudaFreeHost(s->pinned);
        cudaFreeHost(s->draws);
        cudaFreeHost(s->pooled);
        if (s->done) {
            cudaEventDestroy(s->done);
        }
    }
}

enum status cuda_alive(struct backend *base)
{
    struct cuda *be = cuda_of(base);
    TRY(cuda_enter(be));
    const cudaError_t e = cudaStreamQuery(be->stream);
    TRY(cuda_check(be, e == cudaErrorNotReady ? cudaSuccess : e, "asked whether it lives"));
    if (be->options.n_ranks > 1 && cuda_comm_alive(be) != OK) {
        be->lost = ERR_DEVICE;
    }
    return be->lost;
}

void cuda_close(struct backend *base)
{
    struct cuda *be = cuda_of(base);
    if (!be) {
        return;
    }
    if (be->options.n_ranks > 1 && cuda_comm_is_aborted(be)) {
        return; // work may hang on the device, graphs refer to what was aborted: the process ends
    }
    if (be->stream) {
        cudaSetDevice(be->options.device);
        cuda_graph_abort(be); // a stream that still records cannot be waited for
        cudaStreamSynchronize(be->stream);
    }
    cuda_graphs_close(be);
    cuda_gemm_close(be);
    cuda_upload_close(be);
    close_slots(be);
    cudaFreeHost(be->aborted);
    for (int32_t i = 0; i < be->n_allocations; i++) {
        cudaFree(be->allocations[i]);
    }
    for (int32_t i = 0; i < CUDA_MAX_SETS; i++) {
        free(be->sets[i].layers);
    }
    for (struct weight *w = be->weights; w;) {
        struct weight *next = w->next;
        free(w);
        w = next;
    }
    for (struct rope_table *r = be->ropes; r;) {
        struct rope_table *next = r->next;
        free(r);
        r = next;
    }
    if (be->stream) {
        cudaStreamDestroy(be->stream);
    }
    (void)cudaGetLastError();
    free(be->allocations);
    free(be->patches);
    free(be->told);
    free(be);
}

bool cuda_arch_runs(const char *archs, int32_t sm)
{
    for (const char *p = archs; *p;) {
        char *end = NULL;
        const int32_t arch = (int32_t)strtol(p, &end, 10);
        const bool special = *end == 'a'; // for this very device
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

static enum status open_device(struct cuda *be, struct err *err)
{
    const int32_t n = cuda_device_count();
    if (n == 0) {
        int driver = 0;
        if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
            return err_set(err, ERR_DEVICE,
                           "no NVIDIA driver was found: use --device cpu, or "
                           "install the driver");
        }
        return err_set(err, ERR_DEVICE, "no NVIDIA GPU was found (the driver is there)");
    }
    if (be->options.device < 0 || be->options.device >= n) {
        return err_set(err, ERR_INVALID, "there is no GPU %d: this machine has %d",
                       be->options.device, n);
    }
    struct cudaDeviceProp prop;
    cudaError_t e = cudaSetDevice(be->options.device);
    e = e == cudaSuccess ? cudaGetDeviceProperties(&prop, be->options.device) : e;
    if (e != cudaSuccess) {
        return err_set(err, ERR_DEVICE, "GPU %d: %s", be->options.device, cudaGetErrorString(e));
    }
    be->sm = prop.major * 10 + prop.minor;
    be->n_sms = prop.multiProcessorCount;
    snprintf(be->device_name, sizeof be->device_name, "%.60s", prop.name);
    if (be->sm < 80) {
        return err_set(err, ERR_UNSUPPORTED,
                       "GPU %d (%s) has compute capability %d.%d; 8.0 is "
                       "the least that works",
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

enum status cuda_open(const struct backend_options *options, struct backend **out, struct err *err)
{
    *out = NULL;
    const enum dtype dtype = options->dtype;
    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) {
        return err_set(err, ERR_UNSUPPORTED, "the CUDA backend works in bf16, fp16 or fp32");
    }
    struct cuda *be = xcalloc(1, sizeof *be);
    be->options = *options;
    be->options.n_ranks = options->n_ranks < 1 ? 1 : options->n_ranks;
    if (be->options.n_ranks > 1) {
        be->options.device = options->comm ? cuda_comm_device(options->comm, options->rank) : 0;
    }
    be->base.ops = &cuda_ops;
    be->base.rank = options->rank;
    be->base.n_ranks = be->options.n_ranks;
    be->patches = xcalloc(CUDA_MAX_PATCHES, sizeof *be->patches);
    enum status st = open_device(be, err);
    if (st == OK && be->options.n_ranks > 1 && !options->comm) {
        st = err_set(err, ERR_INVALID, "%d ranks need a communicator", be->options.n_ranks);
    }
    if (st == OK && ((st = cuda_gemm_open(be)) != OK || (st = cuda_graphs_open(be)) != OK ||
                     (st = cuda_upload_open(be)) != OK)) {
        err_set(err, st, "GPU %d (%s) could not be set up: %s", options->device, be->device_name,
                status_name(st));
    }
    if (st == OK) {
        st = backend_check(&be->base, err);
    }
    if (st != OK) {
        cuda_close(&be->base);
        return st;
    }
    *out = &be->base;
    return OK;
}
