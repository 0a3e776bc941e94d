// SPDX-License-Identifier: Apache-2.0
/* Collectives between ranks. NCCL is loaded only if there is more than one rank, so a machine with
 * one GPU does not need it. The ranks of one process are its devices 0, 1, ... in order. */
#include "cuda/cuda_comm.h"
#include "cuda/cuda.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the library ---------------------------------------------------------------------------- */

static bool find_symbol(struct nccl *n, const char *name, void *slot)
{
    void *p = dlsym(n->library, name);
    *(void **)slot = p;
    return p != NULL;
}

/* Loads NCCL at run time, because a machine with one GPU does not need it. */
static enum status load_nccl(struct nccl *n, struct err *err)
{
    // NVLink multicast can hang whole hosts, so it is opt-in.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    n->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!n->library) {
        const char *why = dlerror();
        return err_set(err, ERR_UNSUPPORTED, "several GPUs need NCCL: %s", or_empty(why));
    }
    bool all = find_symbol(n, "ncclGetUniqueId", &n->unique_id) &&
               find_symbol(n, "ncclCommInitRank", &n->init_rank) &&
               find_symbol(n, "ncclCommDestroy", &n->destroy) &&
               find_symbol(n, "ncclCommAbort", &n->abort) &&
               find_symbol(n, "ncclCommGetAsyncError", &n->async_error) &&
               find_symbol(n, "ncclAllReduce", &n->all_reduce) &&
               find_symbol(n, "ncclAllGather", &n->all_gather) &&
               find_symbol(n, "ncclGetErrorString", &n->error_string);
    if (!all) {
        return err_set(err, ERR_UNSUPPORTED, "this libnccl.so.2 lacks a function");
    }
    return OK;
}

/* ---- opening: a thread per rank, because each waits for all others --------------------------- */

/* Owned by the thread that opens, because opening may time out while that thread still runs. */
struct opener {
    struct comm *comm;
    int32_t local;
    ncclUniqueId id;
};

/* Each rank opens in a separate thread, because none of the calls returns before all ranks have
 * made theirs. */
static void *open_rank(void *arg)
{
    struct opener *o = arg;
    struct comm *c = o->comm;
    ncclResult_t r = ncclUnhandledCudaError;
    if (cudaSetDevice(o->local) == cudaSuccess) {
        r = c->nccl.init_rank(&c->ranks[o->local], c->n_ranks, o->id, c->first + o->local);
    }
    pthread_mutex_lock(&c->lock);
    c->opened++;
    if (r != ncclSuccess) {
        c->open_result = r;
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    free(o);
    return NULL;
}

/* If another node never connects, these threads stay blocked, and the process exits. */
static enum status open_ranks(struct comm *c, const ncclUniqueId *id, struct err *err)
{
    int64_t end = clock_now_ns() + CUDA_COMM_WAIT_S * 1000000000LL;
    struct timespec deadline = {end / 1000000000, end % 1000000000};
    for (int32_t i = 0; i < c->n_local; i++) {
        struct opener *o = xmalloc(sizeof *o);
        *o = (struct opener){.comm = c, .local = i, .id = *id};
        pthread_t thread; // the thread owns o, which may already be freed
        if (pthread_create(&thread, NULL, open_rank, o) != 0) {
            free(o);
            c->stuck = true; // the threads that were started before are already waiting
            return err_set(err, ERR_NOMEM, "no thread for NCCL");
        }
        pthread_detach(thread);
    }
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (c->opened < c->n_local && c->open_result == ncclSuccess && rc == 0) {
        rc = pthread_cond_timedwait(&c->changed, &c->lock, &deadline);
    }
    bool all = c->opened == c->n_local;
    ncclResult_t r = c->open_result;
    pthread_mutex_unlock(&c->lock);
    c->stuck = !all;
    if (!all && r == ncclSuccess) {
        return err_set(err, ERR_TIMEOUT, "NCCL: not all ranks met within %d s", CUDA_COMM_WAIT_S);
    }
    if (r != ncclSuccess) {
        return err_set(err, ERR_DEVICE, "NCCL: %s", c->nccl.error_string(r));
    }
    return OK;
}

/* The other nodes learn node 0's id through the caller's channel. */
static enum status open_nccl(struct comm *c, const struct comm_place *place, struct err *err)
{
    ncclUniqueId id;
    memset(&id, 0, sizeof id);
    TRY(load_nccl(&c->nccl, err));
    if (place->node == 0) {
        const ncclResult_t r = c->nccl.unique_id(&id);
        if (r != ncclSuccess) {
            return err_set(err, ERR_DEVICE, "NCCL: %s", c->nccl.error_string(r));
        }
    }
    if (place->n_nodes > 1) {
        TRY(place->share(&id, sizeof id, place->share_arg, err));
    }
    return open_ranks(c, &id, err);
}

/* Fails unless this process has a device for each of its ranks. */
enum status cuda_comm_open(const struct comm_place *place, struct comm **out, struct err *err)
{
    *out = NULL;
    const int32_t n_devices = cuda_device_count();
    int32_t n_local = 0;
    if (place->n_nodes > 0) {
        n_local = place->n_ranks / place->n_nodes;
    }
    if (n_local < 1 || n_local * place->n_nodes != place->n_ranks || n_local > n_devices ||
        n_local > CUDA_MAX_RANKS) {
        return err_set(err, ERR_INVALID, "%d ranks on %d nodes; this one has %d GPUs",
                       place->n_ranks, place->n_nodes, n_devices);
    }
    struct comm *c = xcalloc(1, sizeof *c);
    c->n_ranks = place->n_ranks;
    c->first = place->node * n_local;
    c->n_local = n_local;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    const enum status st = open_nccl(c, place, err);
    if (st != OK) {
        cuda_comm_destroy(c);
        return st;
    }
    *out = c;
    return OK;
}

/* After an abort the communicators are already gone. A stuck one is left to the exit of the
 * process. */
void cuda_comm_destroy(struct comm *c)
{
    if (!c || c->stuck) {
        return;
    }
    for (int32_t i = 0; i < c->n_local && !c->aborted; i++) {
        if (c->ranks[i]) {
            c->nccl.destroy(c->ranks[i]);
        }
    }
    if (c->nccl.library && !c->aborted) {
        dlclose(c->nccl.library);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- abort and failure ----------------------------------------------------------------------- */

/* Takes effect once. Kernels that wait for other ranks poll a word, so their waits end, too. */
void cuda_comm_abort(struct comm *c)
{
    if (atomic_exchange(&c->aborted, true)) {
        return;
    }
    log_warn("the ranks' collectives are aborted");
    for (int32_t i = 0; i < c->n_local; i++) {
        if (c->aborted_words[i]) {
            *(volatile uint32_t *)c->aborted_words[i] = 1;
        }
    }
    pthread_mutex_lock(&c->lock); // cuda_comm_alive queries the ranks that still exist
    for (int32_t i = 0; i < c->n_local; i++) {
        if (c->ranks[i]) {
            c->nccl.abort(c->ranks[i]);
        }
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

bool cuda_comm_is_aborted(const struct cuda *be)
{
    return be->options.comm && atomic_load(&be->options.comm->aborted);
}

int32_t cuda_comm_device(const struct comm *c, int32_t rank)
{
    return rank - c->first;
}

/* NCCL reports failures of other ranks asynchronously. */
enum status cuda_comm_alive(struct cuda *be)
{
    struct comm *c = be->options.comm;
    ncclResult_t r = ncclSuccess;
    pthread_mutex_lock(&c->lock);
    const bool is_there =
        !c->aborted &&
        c->nccl.async_error(c->ranks[cuda_comm_device(c, be->options.rank)], &r) == ncclSuccess;
    pthread_mutex_unlock(&c->lock);
    if (!is_there) {
        return ERR_DEVICE;
    }
    if (r != ncclSuccess && r != ncclInProgress) {
        log_error("rank %d: NCCL: %s", be->options.rank, c->nccl.error_string(r));
        return ERR_DEVICE;
    }
    return OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static ncclDataType_t nccl_type(enum dtype dtype)
{
    switch (dtype) {
    case DT_F32: return ncclFloat32;
    case DT_BF16: return ncclBfloat16;
    default: return ncclFloat16;
    }
}

/* Like cuda_check, for NCCL's errors. */
static enum status nccl_check(struct cuda *be, ncclResult_t r, const char *what)
{
    if (r != ncclSuccess && be->lost == OK) {
        log_error("rank %d: %s: %s", be->options.rank, what,
                  be->options.comm->nccl.error_string(r));
        be->lost = ERR_DEVICE;
    }
    return be->lost;
}

/* Uses one call if the rows are adjacent, otherwise one per row. */
enum status cuda_comm_all_reduce(struct cuda *be, struct tensor y, int32_t n_rows, int32_t width)
{
    const struct comm *c = be->options.comm;
    if (c->aborted) {
        return be->lost = ERR_DEVICE;
    }
    ncclComm_t rank = c->ranks[cuda_comm_device(c, be->options.rank)];
    const ncclDataType_t type = nccl_type(y.dtype);
    const bool whole = y.stride == width;
    for (int32_t i = 0; i < (whole ? 1 : n_rows); i++) {
        char *row = (char *)y.mem.p + (size_t)i * (size_t)y.stride * dtype_bytes(y.dtype);
        const size_t n = (size_t)width * (whole ? (size_t)n_rows : 1);
        TRY(nccl_check(be, c->nccl.all_reduce(row, row, n, type, ncclSum, rank, be->stream),
                       "ncclAllReduce"));
    }
    return OK;
}

enum status cuda_comm_all_gather(struct cuda *be, const float *from, float *to, size_t n)
{
    const struct comm *c = be->options.comm;
    if (c->aborted) {
        return be->lost = ERR_DEVICE;
    }
    return nccl_check(be,
                      c->nccl.all_gather(from, to, n, ncclFloat32,
                                         c->ranks[cuda_comm_device(c, be->options.rank)],
                                         be->stream),
                      "ncclAllGather");
}
