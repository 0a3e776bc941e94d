// SPDX-License-Identifier: Apache-2.0
/* Copies weights from host memory (usually a map of the file, and so the page cache) to the device.
 * Threads copy and convert into pinned buffers; one buffer is sent while the next is filled. */
#include "cuda/cuda_upload.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BUFFERS = 4, MAX_THREADS = 12, BUFFER_BYTES = 16 << 20 };

/* The units for one buffer, [first, first + n), each produced by `fill`. */
struct job {
    upload_fill *fill;
    const void *source;
    char *to;
    size_t unit_bytes;
    int64_t first, n;
};

/* The threads and the caller share the units of a job. `generation` tells workers that there is a
 * new one. */
struct upload {
    void *buffers[N_BUFFERS];
    cudaEvent_t sent[N_BUFFERS];
    int32_t next_buffer;

    pthread_t threads[MAX_THREADS];
    int32_t n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    struct job job;
    uint64_t generation; // number of jobs so far, from which workers see that there is a new one
    int32_t n_running;
    bool stop;
};

/* Rounds to nearest, ties to even, with subnormals. */
static uint16_t float_to_half(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    const uint32_t sign = x >> 16 & 0x8000u, a = x & 0x7fffffffu;
    if (a >= 0x7f800000u) {
        return (uint16_t)(sign | 0x7c00u | (a > 0x7f800000u ? 0x200u : 0));
    }
    if (a >= 0x477ff000u) { // would round to infinity
        return (uint16_t)(sign | 0x7c00u);
    }
    if (a < 0x38800000u) { // subnormal in fp16, and so a multiple of 2^-24
        float magnitude;
        memcpy(&magnitude, &a, sizeof magnitude);
        // adding 2^23 rounds to nearest even at that unit
        const float scaled = magnitude * 16777216.0f + 8388608.0f;
        uint32_t bits;
        memcpy(&bits, &scaled, sizeof bits);
        return (uint16_t)(sign | (bits & 0x7ffu));
    }
    const uint32_t rounded = a + 0xfffu + (a >> 13 & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

/* NaN stays NaN, because the top bit of its fraction is set. */
static uint16_t float_to_bf16(float f)
{
    uint32_t x;
    memcpy(&x, &f, sizeof x);
    if ((x & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)(x >> 16 | 0x40u);
    }
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}

void cuda_store_number(void *to, enum dtype dtype, int64_t i, float f)
{
    if (dtype == DT_F32) {
        ((float *)to)[i] = f;
    } else {
        ((uint16_t *)to)[i] = dtype == DT_F16 ? float_to_half(f) : float_to_bf16(f);
    }
}

/* Converts any stored format, by way of fp32. */
static void convert_row(const struct weight_part *p, int64_t row, enum dtype dtype, char *to)
{
    float values[256];
    for (int64_t c = 0, n; c < p->n_cols; c += n) {
        n = lesser(p->n_cols - c, 256);
        weight_part_read(p, row, c, n, values);
        for (int64_t i = 0; i < n; i++) {
            cuda_store_number(to, dtype, c + i, values[i]);
        }
    }
}

/* The rows of a part, as units of an upload. */
struct part_rows {
    struct weight_part part;
    enum dtype dtype;
};

/* A row that is stored in the wanted type is copied unchanged. */
static void fill_row(const void *source, int64_t row, char *to)
{
    const struct part_rows *r = source;
    const void *stored = weight_part_stored(&r->part, r->dtype, row);
    if (stored) {
        memcpy(to, stored, (size_t)r->part.n_cols * dtype_bytes(r->dtype));
    } else {
        convert_row(&r->part, row, r->dtype, to);
    }
}

/* Divides the job's units into `count` shares and fills share number `index`. */
static void do_share(const struct job *job, int32_t index, int32_t count)
{
    const int64_t begin = job->n * index / count, end = job->n * (index + 1) / count;
    for (int64_t i = begin; i < end; i++) {
        job->fill(job->source, job->first + i, job->to + (size_t)i * job->unit_bytes);
    }
}

struct worker {
    struct upload *u;
    int32_t index;
};

/* The thread sleeps between jobs. */
static void *worker_main(void *arg)
{
    struct worker me = *(struct worker *)arg;
    free(arg);
    struct upload *u = me.u;
    uint64_t seen = 0;
    thread_name("upload");
    pthread_mutex_lock(&u->lock);
    while (!u->stop) {
        if (u->generation == seen) {
            pthread_cond_wait(&u->work, &u->lock);
            continue;
        }
        seen = u->generation;
        const struct job job = u->job;
        pthread_mutex_unlock(&u->lock);
        do_share(&job, me.index, u->n_threads + 1);
        pthread_mutex_lock(&u->lock);
        if (--u->n_running == 0) {
            pthread_cond_signal(&u->finished);
        }
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* Small jobs are not worth waking threads for. */
static void do_job(struct upload *u, const struct job *job)
{
    enum { FEW_BYTES = 128 << 10 };
    if (u->n_threads == 0 || (size_t)job->n * job->unit_bytes < FEW_BYTES) {
        do_share(job, 0, 1);
        return;
    }
    pthread_mutex_lock(&u->lock);
    u->job = *job;
    u->generation++;
    u->n_running = u->n_threads;
    pthread_cond_broadcast(&u->work);
    pthread_mutex_unlock(&u->lock);
    do_share(job, u->n_threads, u->n_threads + 1);
    pthread_mutex_lock(&u->lock);
    while (u->n_running > 0) {
        pthread_cond_wait(&u->finished, &u->lock);
    }
    pthread_mutex_unlock(&u->lock);
}

/* The processors are divided among the ranks of the machine. */
enum status cuda_upload_open(struct cuda *be)
{
    struct upload *u = xcalloc(1, sizeof *u);
    be->upload = u;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->work, NULL);
    pthread_cond_init(&u->finished, NULL);
    for (int32_t i = 0; i < N_BUFFERS; i++) {
        CUDA_TRY(be, cudaMallocHost(&u->buffers[i], BUFFER_BYTES));
        CUDA_TRY(be, cudaEventCreateWithFlags(&u->sent[i], cudaEventDisableTiming));
    }
    const long n = sysconf(_SC_NPROCESSORS_ONLN) / (be->options.n_ranks) - 1;
    int32_t wanted = n > MAX_THREADS ? MAX_THREADS : (int32_t)n;
    wanted = greater(0, wanted);
    int32_t n_started = 0;
    pthread_mutex_lock(&u->lock);
    for (int32_t i = 0; i < wanted; i++) {
        struct worker *w = xmalloc(sizeof *w);
        *w = (struct worker){u, n_started};
        if (pthread_create(&u->threads[n_started], NULL, worker_main, w) != 0) {
            free(w); // fewer threads only make uploads slower
            break;
        }
        n_started++;
    }
    u->n_threads = n_started;
    pthread_mutex_unlock(&u->lock);
    return OK;
}

void cuda_upload_close(struct cuda *be)
{
    struct upload *u = be->upload;
    if (!u) {
        return;
    }
    pthread_mutex_lock(&u->lock);
    u->stop = true;
    pthread_cond_broadcast(&u->work);
    pthread_mutex_unlock(&u->lock);
    for (int32_t i = 0; i < u->n_threads; i++) {
        pthread_join(u->threads[i], NULL);
    }
    for (int32_t i = 0; i < N_BUFFERS; i++) {
        cudaFreeHost(u->buffers[i]);
        if (u->sent[i]) {
            cudaEventDestroy(u->sent[i]);
        }
    }
    pthread_cond_destroy(&u->finished);
    pthread_cond_destroy(&u->work);
    pthread_mutex_destroy(&u->lock);
    free(u);
    be->upload = NULL;
}

/* A buffer is filled again only when its previous copy has ended. */
enum status cuda_upload_units(struct cuda *be, void *to, size_t unit_bytes, int64_t n_units,
                              upload_fill *fill, const void *source)
{
    struct upload *u = be->upload;
    const int64_t max_units = (int64_t)(BUFFER_BYTES / unit_bytes);
    if (max_units == 0) {
        return ERR_LIMIT;
    }
    for (int64_t first = 0; first < n_units; first += max_units) {
        const int64_t n = lesser(n_units - first, max_units);
        const int32_t b = u->next_buffer++ % N_BUFFERS;
        CUDA_TRY(be, cudaEventSynchronize(u->sent[b]));
        const struct job job = {fill, source, u->buffers[b], unit_bytes, first, n};
        do_job(u, &job);
        CUDA_TRY(be, cudaMemcpyAsync((char *)to + (size_t)first * unit_bytes, u->buffers[b],
                                     (size_t)n * unit_bytes, cudaMemcpyHostToDevice, be->stream));
        CUDA_TRY(be, cudaEventRecord(u->sent[b], be->stream));
    }
    return OK;
}

/* Uploads the part row by row, whatever its layout in the file. */
enum status cuda_upload_part(struct cuda *be, void *to, enum dtype dtype,
                             const struct weight_part *part)
{
    const size_t element = dtype_bytes(dtype);
    const int64_t max_cols = (int64_t)(BUFFER_BYTES / element);
    if (part->n_cols <= max_cols) {
        const struct part_rows rows = {*part, dtype};
        return cuda_upload_units(be, to, (size_t)part->n_cols * element, part->n_rows, fill_row,
                                 &rows);
    }
    /* A row longer than a buffer (a long vector, say) is sent in several pieces. */
    for (int64_t r = 0; r < part->n_rows; r++) {
        for (int64_t c = 0; c < part->n_cols; c += max_cols) {
            const int64_t n = lesser(part->n_cols - c, max_cols);
            const struct part_rows piece = {weight_part_slice(*part, r, 1, c, n), dtype};
            TRY(cuda_upload_units(be, (char *)to + (size_t)(r * part->n_cols + c) * element,
                                  (size_t)n * element, 1, fill_row, &piece));
        }
    }
    return OK;
}
