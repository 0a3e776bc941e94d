// SPDX-License-Identifier: Apache-2.0
/* A CUDA runtime, cuBLASLt and NCCL without a device, to test the host's half of cuda/ where there
 * is no GPU. Memory is the host's, streams are late, kernels do nothing: every result is zero. What
 * is taken seriously is the contract: a copy runs when its stream is waited for or, by chance,
 * asked after, never at once; pinned memory must then be as it was when the copy was asked for; a
 * launch must be one that a device takes; an address must lie in what was allocated, on that
 * device. test/cuda/fake/sluice is the program on such a device: it is lost once the file
 * $FAKE_CUDA_LOST is there, and each wait for an event, or question after one, takes
 * $FAKE_CUDA_WAIT_US more. Thread: any; one lock. */
#ifndef SLUICE_TEST_FAKE_CUDA_H
#define SLUICE_TEST_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* From now on: up to 16 devices of a capability (80, 90) and memory each, of which nine tenths are
 * free, no failures, no counts; what was left of before is gone. */
void fake_cuda_reset(int32_t n_devices, int32_t sm, size_t memory_bytes);

/* The nth call from now (0: the next) that can fail does, with e; unless e is that memory is short,
 * its device never recovers: later calls for it fail, too. Negative: none. */
void fake_cuda_fail(int64_t nth, cudaError_t e);
bool fake_cuda_failed(void); // it has
/* cuBLASLt finds kernels, or (false) none for any product. */
void fake_cuda_has_products(bool yes);

/* What kernels whose name in the object file contains the word do, on the host, in the stream's
 * order; args points to copies of the launch's first arguments. One such word at a time; NULL:
 * none. */
enum { FAKE_ARGS_BYTES = 32 };
void fake_cuda_emulate(const char *word, size_t n_args, const size_t *arg_bytes,
                       void (*run)(dim3 grid, const void *const *args));

struct fake_cuda_counts {
    int64_t calls;   // that can fail
    int64_t replays; // launches of graphs
    int64_t kernels; // different ones that were launched
    int64_t left;    // allocations, streams, events, graphs and handles that live
};
struct fake_cuda_counts fake_cuda_counts(void);
/* Whether a kernel was launched whose name in the object file contains the word. */
bool fake_cuda_launched(const char *word);

/* Why the program would be wrong on a device: the first reason since the reset, or NULL. */
const char *fake_cuda_complaint(void);

#endif
