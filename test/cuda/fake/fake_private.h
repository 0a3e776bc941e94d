// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of this folder. */
#ifndef SLUICE_TEST_FAKE_PRIVATE_H
#define SLUICE_TEST_FAKE_PRIVATE_H

#include "test/cuda/fake/fake_cuda.h"

enum { FAKE_MAX_DEVICES = 16 };

/* Every entry point takes the lock and asks fake_call whether this call must fail. */
void fake_lock(void);
void fake_unlock(void);
cudaError_t fake_call(void);
/* Never returns if the file $FAKE_CUDA_HANGS exists and names the call. Call it without the
 * lock. */
void fake_hang(const char *call);
__attribute__((format(printf, 1, 2))) void fake_complain(const char *format, ...);

/* Counts an object that must be destroyed later. */
void fake_born(void);
void fake_died(void);

size_t fake_memory_bytes(void);       // memory of each device
int32_t fake_most_shared_bytes(void); // the most shared memory of a block
bool fake_has_products(void);
int32_t fake_device(void); // current device of the calling thread
bool fake_chance(int32_t one_in);

/* fake_memory.c: an allocation, found by an address in it. */
struct fake_memory {
    char *at;
    size_t n_bytes;
    int32_t device; // -1: pinned memory of the host
    bool is_clean;  // nothing but zeroes was written to it
    struct fake_memory *next;
};
struct fake_memory *fake_find(const void *p);
/* Complains unless [p, p + n_bytes) lies in one allocation of the device. */
struct fake_memory *fake_on_device(const void *p, size_t n_bytes, const char *what);
size_t fake_free_bytes(int32_t device);
/* Memory that is not an allocation of the program's own. */
cudaError_t fake_take(int32_t device, size_t n_bytes);
void fake_put_back(int32_t device, size_t n_bytes);
void fake_memory_end(void);
/* from NULL: fills with the value. Memory that is already all zeroes is not filled with zeroes
 * again, so that its pages stay untouched. */
void fake_write(char *to, const char *from, int value, size_t n_bytes);

/* fake_stream.c: an operation in the queue of a stream. */
struct fake_op {
    enum { FAKE_COPY, FAKE_FILL, FAKE_EVENT, FAKE_WORK } kind;
    char *to;
    const char *from;
    size_t n_bytes;
    int value;
    uint64_t hash;  // hash of the bytes at `from`, if that is pinned memory
    char *snapshot; // copy of the bytes at `from`, if that is pageable memory; freed after the op
    cudaEvent_t event;
    bool is_emulated;
    dim3 grid;
    char args[FAKE_ARGS_BYTES];
};
/* Checks the stream, and appends the op to the stream or into the graph that is being captured. */
cudaError_t fake_enqueue(cudaStream_t stream, const struct fake_op *op);
void fake_run_all(void); // runs all ops of all streams
/* Whether a queued operation reads or writes this memory. */
bool fake_is_awaited(const void *p, size_t n_bytes);
/* True if a stream of the thread's device is being captured. The call is not allowed then: it
 * counts as a complaint, and the capture ends with an error. */
bool fake_ends_capture(const char *call);
void fake_stream_end(void);
/* An op of cuBLASLt: takes the lock. Its operands must be in the device's memory. */
cudaError_t fake_product(cudaStream_t stream, const void *const *operands, int32_t n);
void fake_count_replay(void);

/* fake_kernels.c */
void fake_emulate(const struct fake_op *op);
void fake_kernels_end(void);
void fake_count_kernel(void);

#endif
