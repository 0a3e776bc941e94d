// SPDX-License-Identifier: Apache-2.0
/* A CUDA runtime, cuBLASLt and NCCL without a device, to test the host side of cuda/ on machines
 * without a GPU. Memory is in the host, streams run late, kernels do nothing, and all results are
 * zero. The contract is checked: a copy runs when its stream is waited for or, at random, queried,
 * never at once; pinned memory must not change before that; a launch must be valid on a device; an
 * address must be inside an allocation of that device. test/cuda/fake/sluice is the program on such
 * a device: the device is lost once the file $FAKE_CUDA_LOST exists; other processes have taken all
 * free memory once the file $FAKE_CUDA_OTHERS exists; once the file $FAKE_CUDA_HANGS exists, the
 * calls that it names ("event", "collective", "health", "abort") never return; and each wait for an
 * event, and each query of one, takes $FAKE_CUDA_WAIT_US longer. Thread: any; one lock. */
#ifndef SLUICE_TEST_FAKE_CUDA_H
#define SLUICE_TEST_FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

/* Starts afresh: up to 16 devices with this capability (80, 90) and memory, nine tenths of it free.
 * No failures, counts at zero, earlier objects forgotten. */
void fake_cuda_reset(int32_t n_devices, int32_t sm, size_t memory_bytes);

/* Makes the nth call from now (0: the next) that can fail return e. Except for lack of memory, its
 * device does not recover: later calls for it fail, too. Negative: none fails. */
void fake_cuda_fail(int64_t nth, cudaError_t e);
bool fake_cuda_failed(void); // whether that call has failed
/* Whether cuBLASLt finds kernels for products; false: for none. */
void fake_cuda_has_products(bool yes);

/* Emulates kernels whose name in the object file contains the word, on the host, in the stream's
 * order. args points to copies of the launch's first arguments. One word at a time; NULL: none. */
enum { FAKE_ARGS_BYTES = 32 };
void fake_cuda_emulate(const char *word, size_t n_args, const size_t *arg_bytes,
                       void (*run)(dim3 grid, const void *const *args));

struct fake_cuda_counts {
    int64_t calls;   // calls that can fail
    int64_t replays; // launches of graphs
    int64_t kernels; // number of different kernels launched
    int64_t left;    // allocations, streams, events, graphs and handles not yet destroyed
};
struct fake_cuda_counts fake_cuda_counts(void);
/* Whether a kernel was launched whose name in the object file contains the word. */
bool fake_cuda_launched(const char *word);

/* The first violation of the contract since the reset; NULL: none. */
const char *fake_cuda_complaint(void);

#endif
