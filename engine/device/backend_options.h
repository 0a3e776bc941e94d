// SPDX-License-Identifier: Apache-2.0
/* How a backend is opened. Thread: plain data. Compiles as C11 and C++17. */
#ifndef SLUICE_ENGINE_DEVICE_BACKEND_OPTIONS_H
#define SLUICE_ENGINE_DEVICE_BACKEND_OPTIONS_H

#include "engine/device/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct comm; // defined by the backend's folder

/* Options common to all backends: cpu_open (cpu/cpu.h), cuda_open (cuda/cuda.h). */
struct backend_options {
    int32_t device; // GPU index; unused by the CPU
    int32_t rank, n_ranks;
    struct comm *comm;  // communicator created by the backend's folder; NULL with one rank
    enum dtype dtype;   // of weights and KV: DT_BF16, DT_F16, or DT_F32 for exact work, where
                        // activations are fp32 and nothing is rounded between ops
    bool deterministic; // a row's bits do not depend on its batch, on drafts, on chunks or on the
                        // cache; always true on the CPU
    bool enforce_eager; // launch each op and capture no graphs; the CPU never captures
    int32_t threads;    // CPU: 0 means all cores
};

#endif
