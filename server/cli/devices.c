// SPDX-License-Identifier: Apache-2.0
/* Chooses the backend, CUDA if a device is present and otherwise the CPU, and the communicator for
 * several ranks. */
#include "server/cli/devices.h"

#include "cpu/cpu.h"
#include "engine/base/minmax.h"
#include "engine/cluster/nodes.h"
#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#endif

#include <string.h>

static enum status share(void *bytes, size_t n_bytes, void *arg, struct err *err)
{
    return nodes_share(arg, bytes, n_bytes, err);
}

static bool is_lost(void *arg, struct err *why)
{
    return arg && nodes_lost(arg, why);
}

/* The position of this process among all nodes. n_ranks counts the ranks of all nodes; each node
 * has the same number. */
static struct comm_place place_of(const struct engine_options *o)
{
    return (struct comm_place){
        .n_ranks = greater(o->tensor_parallel_size, 1),
        .n_nodes = o->nodes ? nodes_count(o->nodes) : 1,
        .node = o->nodes ? nodes_rank(o->nodes) : 0,
        .leader = o->nodes ? nodes_leader(o->nodes) : NULL,
        .bind = o->nodes ? nodes_bind(o->nodes) : NULL,
        .share = share,
        .is_lost = is_lost,
        .share_arg = o->nodes,
    };
}

static enum status open_cpu(const struct backend_options *options, struct backend **out,
                            struct err *err, void *arg)
{
    (void)arg;
    return cpu_open(options, out, err);
}

/* Chooses the CPU. The ranks are threads of this process or, with several nodes, of one process per
 * node. */
static enum status choose_cpu(struct engine_options *options, struct err *err)
{
    struct comm_place place = place_of(options);
    options->open_backend = open_cpu;
    options->abort_ranks = cpu_comm_abort;
    if (place.n_ranks > 1) {
        return cpu_comm_open(&place, &options->backend.comm, err);
    }
    return OK;
}

#ifdef SLUICE_CUDA
static enum status open_cuda(const struct backend_options *options, struct backend **out,
                             struct err *err, void *arg)
{
    (void)arg;
    return cuda_open(options, out, err);
}

/* Chooses CUDA, with one device for each local rank. */
static enum status choose_cuda(struct engine_options *options, struct err *err)
{
    struct comm_place place = place_of(options);
    int32_t n = cuda_device_count(), ranks = place.n_ranks / place.n_nodes;
    if (n < ranks) {
        return err_set(err, ERR_DEVICE, "%d CUDA devices were requested, but there are %d", ranks,
                       n);
    }
    options->open_backend = open_cuda;
    options->abort_ranks = cuda_comm_abort;
    if (place.n_ranks > 1) {
        return cuda_comm_open(&place, &options->backend.comm, err);
    }
    return OK;
}

static bool cuda_is_there(void)
{
    return cuda_device_count() > 0;
}
#else
static enum status choose_cuda(struct engine_options *options, struct err *err)
{
    (void)options;
    return err_set(err, ERR_UNSUPPORTED, "this build has no CUDA (nvcc was not found)");
}

static bool cuda_is_there(void)
{
    return false;
}
#endif

enum status devices_choose(const char *name, struct engine_options *options, struct err *err)
{
    bool automatic = !name || strcmp(name, "auto") == 0;
    if (automatic ? cuda_is_there() : strcmp(name, "cuda") == 0) {
        return choose_cuda(options, err);
    }
    if (!automatic && strcmp(name, "cpu") != 0) {
        return err_set(err, ERR_INVALID, "device: '%.40s' is not one of auto, cpu, cuda", name);
    }
    return choose_cpu(options, err);
}

/* The communicator and the connections between nodes outlive the engine, so they are
 * released after it. */
void devices_release(struct engine_options *options)
{
    struct comm *comm = options->backend.comm;
    options->backend.comm = NULL;
#ifdef SLUICE_CUDA
    if (comm && options->open_backend == open_cuda) {
        cuda_comm_destroy(comm);
        comm = NULL;
    }
#endif
    cpu_comm_destroy(comm);
    nodes_close(options->nodes);
    options->nodes = NULL;
}
