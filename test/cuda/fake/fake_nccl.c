// SPDX-License-Identifier: Apache-2.0
/* libnccl.so.2 for programs on the fake device. Ranks do not communicate and nothing is summed, but
 * every call can fail, and operands must be in device memory. */
#include "test/cuda/fake/fake_private.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm {
    int32_t rank;
};

static ncclResult_t result_of(cudaError_t e)
{
    if (e == cudaSuccess) {
        return ncclSuccess;
    }
    return ncclUnhandledCudaError;
}

/* An id is only passed on to ncclCommInitRank. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    memset(id, 7, sizeof *id);
    fake_lock();
    const cudaError_t e = fake_call();
    fake_unlock();
    return result_of(e);
}

/* A real one waits for all ranks; tests of that need devices. */
ncclResult_t ncclCommInitRank(ncclComm_t *out, int n_ranks, ncclUniqueId id, int rank)
{
    (void)n_ranks, (void)id;
    fake_lock();
    const cudaError_t e = fake_call();
    if (e == cudaSuccess) {
        *out = malloc(sizeof **out);
        (*out)->rank = rank;
        fake_born();
    }
    fake_unlock();
    return result_of(e);
}

/* Both ways to end a communicator. */
static ncclResult_t end(ncclComm_t comm)
{
    fake_lock();
    free(comm);
    fake_died();
    fake_unlock();
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    fake_hang("abort");
    return end(comm);
}

/* Errors of a collective are reported here, later than the collective; so this call counts as one
 * that can fail. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    (void)comm;
    fake_hang("health");
    fake_lock();
    *out = result_of(fake_call());
    fake_unlock();
    return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    (void)n, (void)type, (void)op, (void)comm;
    fake_hang("collective");
    return result_of(fake_product(stream, (const void *const[]){from, to}, 2));
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    (void)n, (void)type, (void)comm;
    fake_hang("collective");
    return result_of(fake_product(stream, (const void *const[]){from, to}, 2));
}

const char *ncclGetErrorString(ncclResult_t r)
{
    return r == ncclSuccess ? "no error" : "made up";
}
