// SPDX-License-Identifier: Apache-2.0
/* Opens a rank: its device, then everything that does not depend on the limits. */
#include "cuda/cuda.h"
#include "cuda/cuda_backend.h"
#include "cuda/cuda_comm.h"
#include "cuda/cuda_upload.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

static enum status open_owners(struct cuda_backend *be)
{
    TRY(gemms_open(&be->gemms, &be->device));
    be->graphs = graphs_open(&be->device);
    return cuda_upload_open(&be->device);
}

enum status cuda_open(const struct backend_options *options, struct backend **out, struct err *err)
{
    *out = NULL;
    const enum dtype dtype = options->dtype;
    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) {
        return err_set(err, ERR_UNSUPPORTED, "the CUDA backend works in bf16, fp16 or fp32");
    }
    struct cuda_backend *be = xcalloc(1, sizeof *be);
    struct cuda *device = &be->device;
    device->options = *options;
    device->options.n_ranks = greater(1, options->n_ranks);
    if (device->options.n_ranks > 1) {
        if (options->comm) {
            device->options.device = cuda_comm_device(options->comm, options->rank);
        } else {
            device->options.device = 0;
        }
    }
    device->base.ops = &cuda_ops;
    device->base.rank = options->rank;
    device->base.n_ranks = device->options.n_ranks;
    enum status st = cuda_device_open(device, err);
    if (st == OK && device->options.n_ranks > 1 && !options->comm) {
        st = err_set(err, ERR_INVALID, "%d ranks need a communicator", device->options.n_ranks);
    }
    if (st == OK && (st = open_owners(be)) != OK) {
        err_set(err, st, "GPU %d (%s) could not be set up: %s", options->device,
                device->device_name, status_name(st));
    }
    if (st == OK) {
        st = backend_check(&device->base, err);
    }
    if (st != OK) {
        cuda_close(&device->base);
        return st;
    }
    *out = &device->base;
    return OK;
}
