#include "server/devices.h"

#include "cpu/cpu.h"
#ifdef SLUICE_CUDA
#include "cuda/cuda.h"
#endif

#include <string.h>

static enum status open_cpu(const struct backend_options *options, struct backend **out,
                            struct err *err, void *arg)
{
    (void)arg;
    return cpu_open(options, out, err);
}

static void choose_cpu(struct engine_options *options)
{
    options->open_backend = open_cpu;
    if (options->n_ranks > 1) {
        options->backend.comm = cpu_comm_create(options->n_ranks);
    }
}

#ifdef SLUICE_CUDA
static enum status open_cuda(const struct backend_options *options, struct backend **out,
                             struct err *err, void *arg)
{
    (void)arg;
    return cuda_open(options, out, err);
}

static enum status choose_cuda(struct engine_options *options, struct err *err)
{
    int32_t n = cuda_device_count(), ranks = options->n_ranks > 1 ? options->n_ranks : 1;
    if (n < ranks) {
        return err_set(err, ERR_DEVICE, "%d CUDA devices were asked for, %d are there", ranks, n);
    }
    options->open_backend = open_cuda;
    return ranks > 1 ? cuda_comm_create(ranks, &options->backend.comm, err) : OK;
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
        return err_set(err, ERR_INVALID, "device: '%s' is not one of auto, cpu, cuda", name);
    }
    choose_cpu(options);
    return OK;
}

void devices_release(struct engine_options *options)
{
    if (!options->backend.comm) {
        return;
    }
#ifdef SLUICE_CUDA
    if (options->open_backend == open_cuda) {
        cuda_comm_destroy(options->backend.comm);
        return;
    }
#endif
    cpu_comm_destroy(options->backend.comm);
    options->backend.comm = NULL;
}
