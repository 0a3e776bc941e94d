/* Collectives between ranks. NCCL is loaded when there is more than one rank, so that a machine
 * with one GPU need not have it. */
#include "cuda/cuda.h"
#include "cuda/cuda_backend.h"
#include "engine/base/mem.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdlib.h>

struct comm {
    void *library;
    ncclResult_t (*init_all)(ncclComm_t *, int, const int *);
    ncclResult_t (*destroy)(ncclComm_t);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
                               ncclComm_t, cudaStream_t);
    ncclResult_t (*all_gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
                               cudaStream_t);
    const char *(*error_string)(ncclResult_t);
    int32_t n_ranks;
    ncclComm_t *ranks;
};

static bool find_symbol(struct comm *c, const char *name, void *slot)
{
    void *p = dlsym(c->library, name);
    *(void **)slot = p;
    return p != NULL;
}

enum status cuda_comm_create(int32_t n_ranks, struct comm **out, struct err *err)
{
    *out = NULL;
    const int32_t n_devices = cuda_device_count();
    if (n_ranks < 1 || n_ranks > n_devices) {
        return err_set(err, ERR_INVALID, "%d ranks need as many GPUs; this machine has %d", n_ranks,
                       n_devices);
    }
    struct comm *c = xcalloc(1, sizeof *c);
    c->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!c->library) {
        const char *why = dlerror();
        free(c);
        return err_set(err, ERR_UNSUPPORTED, "several GPUs need NCCL: %s", why ? why : "");
    }
    if (!find_symbol(c, "ncclCommInitAll", &c->init_all) ||
        !find_symbol(c, "ncclCommDestroy", &c->destroy) ||
        !find_symbol(c, "ncclAllReduce", &c->all_reduce) ||
        !find_symbol(c, "ncclAllGather", &c->all_gather) ||
        !find_symbol(c, "ncclGetErrorString", &c->error_string)) {
        cuda_comm_destroy(c);
        return err_set(err, ERR_UNSUPPORTED, "this libnccl.so.2 lacks a function");
    }
    c->ranks = xcalloc((size_t)n_ranks, sizeof *c->ranks);
    int *devices = xcalloc((size_t)n_ranks, sizeof *devices);
    for (int32_t i = 0; i < n_ranks; i++) {
        devices[i] = i;
    }
    const ncclResult_t r = c->init_all(c->ranks, n_ranks, devices);
    free(devices);
    if (r != ncclSuccess) {
        err_set(err, ERR_DEVICE, "NCCL: %s", c->error_string(r));
        cuda_comm_destroy(c);
        return ERR_DEVICE;
    }
    c->n_ranks = n_ranks;
    *out = c;
    return OK;
}

void cuda_comm_destroy(struct comm *c)
{
    if (!c) {
        return;
    }
    for (int32_t i = 0; i < c->n_ranks; i++) {
        c->destroy(c->ranks[i]);
    }
    free(c->ranks);
    if (c->library) {
        dlclose(c->library);
    }
    free(c);
}

static ncclDataType_t nccl_type(enum dtype dtype)
{
    return dtype == DT_F32 ? ncclFloat32 : dtype == DT_BF16 ? ncclBfloat16 : ncclFloat16;
}

static enum status nccl_check(struct cuda *be, ncclResult_t r, const char *what)
{
    return cuda_check(be, r == ncclSuccess ? cudaSuccess : cudaErrorUnknown, what);
}

enum status cuda_comm_all_reduce(struct cuda *be, struct tensor y, int32_t n_rows, int32_t width)
{
    const struct comm *c = be->options.comm;
    const ncclComm_t rank = c->ranks[be->options.rank];
    if (y.stride == width) {
        return nccl_check(be,
                          c->all_reduce(y.mem.p, y.mem.p, (size_t)n_rows * (size_t)width,
                                        nccl_type(y.dtype), ncclSum, rank, be->stream),
                          "ncclAllReduce");
    }
    for (int32_t i = 0; i < n_rows; i++) {
        char *row = (char *)y.mem.p + (size_t)i * (size_t)y.stride * dtype_bytes(y.dtype);
        TRY(nccl_check(be,
                       c->all_reduce(row, row, (size_t)width, nccl_type(y.dtype), ncclSum, rank,
                                     be->stream),
                       "ncclAllReduce"));
    }
    return OK;
}

enum status cuda_comm_all_gather(struct cuda *be, const float *from, float *to, size_t n)
{
    const struct comm *c = be->options.comm;
    return nccl_check(be,
                      c->all_gather(from, to, n, ncclFloat32, c->ranks[be->options.rank],
                                    be->stream),
                      "ncclAllGather");
}
