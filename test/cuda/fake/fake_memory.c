// SPDX-License-Identifier: Apache-2.0
/* Allocations, and the copies and fills of streams. */
#include "engine/base/hash.h"
#include "test/cuda/fake/fake_private.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct fake_memory *all;

/* Returns the allocation that contains p. */
struct fake_memory *fake_find(const void *p)
{
    for (struct fake_memory *m = all; m; m = m->next) {
        if ((const char *)p >= m->at && (const char *)p < m->at + m->n_bytes) {
            return m;
        }
    }
    return NULL;
}

static bool reaches(const struct fake_memory *m, const void *p, size_t n_bytes)
{
    return n_bytes <= (size_t)(m->at + m->n_bytes - (const char *)p);
}

/* A kernel that gets an address of the host would fault on a device; here it is a
 * complaint. */
struct fake_memory *fake_on_device(const void *p, size_t n_bytes, const char *what)
{
    struct fake_memory *m = fake_find(p);
    if (!m || m->device < 0) {
        fake_complain("%s: an address that is not a device's", what);
        return NULL;
    }
    if (!reaches(m, p, n_bytes)) {
        fake_complain("%s: past the end of %zu bytes", what, m->n_bytes);
        return NULL;
    }
    return m;
}

static size_t others[FAKE_MAX_DEVICES]; // what other processes have taken
static size_t taken[FAKE_MAX_DEVICES];  // what is taken without an allocation: by graphs

/* A tenth is never free, as on a device whose context takes memory. */
size_t fake_free_bytes(int32_t device)
{
    size_t left = fake_memory_bytes() / 10 * 9 - others[device] - taken[device];
    for (const struct fake_memory *m = all; m; m = m->next) {
        if (m->device == device) {
            left -= m->n_bytes;
        }
    }
    const char *path = getenv("FAKE_CUDA_OTHERS");
    if (path && others[device] == 0 && access(path, F_OK) == 0) {
        others[device] = left;
        left = 0;
    }
    return left;
}

cudaError_t fake_take(int32_t device, size_t n_bytes)
{
    if (n_bytes > fake_free_bytes(device)) {
        return cudaErrorMemoryAllocation;
    }
    taken[device] += n_bytes;
    return cudaSuccess;
}

void fake_put_back(int32_t device, size_t n_bytes)
{
    taken[device] -= n_bytes;
}

/* Device memory is made of pages that take no memory until they are written. Pinned memory is on
 * the heap, where a sanitizer detects overruns. */
static void give(struct fake_memory *m)
{
    if (m->device >= 0) {
        m->at = mmap(NULL, m->n_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    } else {
        m->at = aligned_alloc(4096, (m->n_bytes + 4095) / 4096 * 4096);
    }
}

/* Devices' memory is mapped, so that large unused allocations cost nothing. */
static void take(struct fake_memory *m)
{
    if (m->device >= 0) {
        munmap(m->at, m->n_bytes);
    } else {
        free(m->at);
    }
    free(m);
}

/* Allocation during a capture spoils the capture, so it is a complaint even if it would
 * succeed. */
static cudaError_t allocate(void **out, size_t n_bytes, int32_t device)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (fake_ends_capture("memory is allocated") && e == cudaSuccess) {
        e = cudaErrorStreamCaptureUnsupported;
    }
    if (device >= 0 && n_bytes > fake_free_bytes(device)) {
        if (e == cudaSuccess) {
            e = cudaErrorMemoryAllocation;
        }
    }
    if (e == cudaSuccess && n_bytes > 0) {
        struct fake_memory *m = calloc(1, sizeof *m);
        m->n_bytes = n_bytes;
        m->device = device;
        m->is_clean = device >= 0;
        m->next = all;
        give(m);
        all = m;
        *out = m->at;
        fake_born();
    }
    fake_unlock();
    return e;
}

/* Waits for all work, as the real functions do. Memory of a lost device is released, too. */
static cudaError_t release(void *p, bool pinned)
{
    fake_lock();
    const cudaError_t e = fake_call();
    if (p) {
        fake_ends_capture("memory is freed");
    }
    fake_run_all();
    struct fake_memory **at = &all;
    while (*at && (*at)->at != p) {
        at = &(*at)->next;
    }
    struct fake_memory *m = *at;
    if (m && (m->device < 0) == pinned) {
        *at = m->next;
        take(m);
        fake_died();
    } else if (p) {
        fake_complain("memory is freed that was not allocated, or not in this way");
    }
    fake_unlock();
    return e;
}

/* Frees what is left; the leaks have already been counted. */
void fake_memory_end(void)
{
    while (all) {
        struct fake_memory *next = all->next;
        take(all);
        all = next;
    }
    memset(others, 0, sizeof others);
    memset(taken, 0, sizeof taken);
}

cudaError_t cudaMalloc(void **out, size_t n_bytes)
{
    return allocate(out, n_bytes, fake_device());
}

cudaError_t cudaFree(void *p)
{
    return release(p, false);
}

cudaError_t cudaMallocHost(void **out, size_t n_bytes)
{
    return allocate(out, n_bytes, -1);
}

cudaError_t cudaHostAlloc(void **out, size_t n_bytes, unsigned flags)
{
    (void)flags;
    return allocate(out, n_bytes, -1);
}

cudaError_t cudaFreeHost(void *p)
{
    return release(p, true);
}

/* Mapped memory of the host has one address for both. */
cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned flags)
{
    (void)flags;
    *out = host;
    fake_lock();
    const cudaError_t e = fake_call();
    fake_unlock();
    return e;
}

/* Whether all bytes are zeros. Memory that was never written to is not read. */
static bool is_zero(const char *p, size_t n_bytes)
{
    const struct fake_memory *m = fake_find(p);
    return (m && m->is_clean) || (p[0] == 0 && memcmp(p, p + 1, n_bytes - 1) == 0);
}

/* Zeros are not written to memory that has only zeros: weights of gigabytes stay unmapped, and so
 * do the tensors of tests that only check calls. */
void fake_write(char *to, const char *from, int value, size_t n_bytes)
{
    struct fake_memory *m = fake_find(to);
    const bool nothing = m && m->is_clean && (from ? is_zero(from, n_bytes) : value == 0);
    if (from && !nothing) {
        memmove(to, from, n_bytes);
    } else if (!nothing) {
        memset(to, value, n_bytes);
    }
    if (m && !nothing) {
        m->is_clean = false;
    }
}

/* ---- copies -------------------------------------------------------------------------------- */

/* Checks that the direction agrees with where both addresses lie. */
static bool check_copy(const void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDeviceToHost && !fake_on_device(to, n_bytes, "a copy's destination")) {
        return false;
    }
    if (kind != cudaMemcpyHostToDevice && !fake_on_device(from, n_bytes, "a copy's source")) {
        return false;
    }
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    const struct fake_memory *m = NULL;
    if (kind != cudaMemcpyDeviceToDevice) {
        m = fake_find(host);
    }
    if (m && (m->device >= 0 || !reaches(m, host, n_bytes))) {
        fake_complain(
            "a copy's host memory does not exist, or ends after its allocation of %zu bytes",
            m->n_bytes);
        return false;
    }
    return true;
}

/* Memory that is not pinned is read or written before the call returns. */
static cudaError_t copy_later(cudaStream_t stream, void *to, const void *from, size_t n_bytes,
                              enum cudaMemcpyKind kind)
{
    struct fake_op op = {.kind = FAKE_COPY, .to = to, .from = from, .n_bytes = n_bytes};
    const bool from_host = kind == cudaMemcpyHostToDevice, to_host = kind == cudaMemcpyDeviceToHost;
    if (!check_copy(to, from, n_bytes, kind)) {
        return cudaErrorInvalidValue;
    }
    if (from_host && !fake_find(from)) {
        op.snapshot = malloc(n_bytes);
        memcpy(op.snapshot, from, n_bytes);
    } else if (from_host) {
        op.hash = hash_bytes(from, n_bytes, 0);
    } else if (to_host && fake_find(to)) {
        memset(to, 0xa5, n_bytes); // poison: reading before the copy has run is noticed
    }
    const cudaError_t e = fake_enqueue(stream, &op);
    if (e != cudaSuccess) {
        free(op.snapshot);
    } else if (to_host && !fake_find(to)) {
        fake_run_all();
    }
    return e;
}

/* The copy runs later; asynchronous copies from pinned memory read it only then. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess && n_bytes > 0) {
        e = copy_later(stream, to, from, n_bytes, kind);
    }
    fake_unlock();
    return e;
}

/* Rows with a pitch; overlapping rows are reported as a complaint. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (width > to_pitch || width > from_pitch) {
        fake_complain("overlapping rows: %zu bytes each, at distances of %zu and %zu", width,
                      to_pitch, from_pitch);
        e = cudaErrorInvalidPitchValue;
    }
    for (size_t r = 0; r < height && e == cudaSuccess && width > 0; r++) {
        e = copy_later(stream, (char *)to + r * to_pitch, (const char *)from + r * from_pitch,
                       width, kind);
    }
    fake_unlock();
    return e;
}

/* No stream of this project synchronises with the default stream. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, enum cudaMemcpyKind kind)
{
    fake_lock();
    cudaError_t e = fake_call();
    fake_ends_capture("a copy is made outside of a stream");
    if (e == cudaSuccess && n_bytes > 0) {
        if (fake_is_awaited(to, n_bytes) || fake_is_awaited(from, n_bytes)) {
            fake_complain("a copy outside of a stream touches memory of a copy that waits in one");
        }
        if (check_copy(to, from, n_bytes, kind)) {
            fake_write(to, from, 0, n_bytes);
        } else {
            e = cudaErrorInvalidValue;
        }
    }
    fake_unlock();
    return e;
}

/* A fill is an op of the stream, too. */
cudaError_t cudaMemsetAsync(void *to, int value, size_t n_bytes, cudaStream_t stream)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess && !fake_on_device(to, n_bytes, "a fill")) {
        e = cudaErrorInvalidValue;
    }
    e = e == cudaSuccess
            ? fake_enqueue(stream,
                           &(struct fake_op){
                               .kind = FAKE_FILL, .to = to, .value = value, .n_bytes = n_bytes})
            : e;
    fake_unlock();
    return e;
}
