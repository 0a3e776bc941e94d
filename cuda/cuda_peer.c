// SPDX-License-Identifier: Apache-2.0
/* All-reduce over ranks through peer memory, if all ranks are GPUs of this process that can access
 * each other's memory. A measurement at startup finds the best algorithm for each message size;
 * NCCL is one of the candidates. */
#include "cuda/cuda_peer.h"
#include "cuda/cuda_comm.h"
#include "cuda/kernels/kernels.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Limits of the kernels, and parameters of the measurement. */
enum {
    LARGEST_BYTES = 16 << 20, // larger messages go to NCCL, which is as fast for them
    MAX_ROW_BYTES = 64 << 10, // what the kernel can hold in registers
    CALLS = 10,               // number of calls in one captured graph
    ROUNDS = 5,
};

/* Waits until every rank of this process has called this function. Returns false after an abort. */
static bool meet(struct comm *c)
{
    const int64_t end = clock_now_ns() + CUDA_COMM_WAIT_S * 1000000000LL;
    const struct timespec deadline = {end / 1000000000, end % 1000000000};
    pthread_mutex_lock(&c->lock);
    const uint32_t round = c->round;
    if (++c->n_met == c->n_local) {
        c->n_met = 0;
        c->round++;
        pthread_cond_broadcast(&c->changed);
    }
    int rc = 0;
    while (c->round == round && !c->aborted && rc == 0) {
        rc = pthread_cond_timedwait(&c->changed, &c->lock, &deadline);
    }
    const bool ok = c->round != round;
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Each pair of devices must allow access. Enabling it twice is not an error. */
static bool reach_others(const struct cuda *be, const struct comm *c)
{
    const int32_t own = cuda_comm_device(c, be->options.rank);
    for (int32_t r = 0; r < c->n_local; r++) {
        int can = 0;
        if (r == own) {
            continue;
        }
        if (cudaDeviceCanAccessPeer(&can, own, r) != cudaSuccess || !can) {
            return false;
        }
        const cudaError_t e = cudaDeviceEnablePeerAccess(r, 0);
        (void)cudaGetLastError();
        if (e != cudaSuccess && e != cudaErrorPeerAccessAlreadyEnabled) {
            return false;
        }
    }
    return true;
}

/* Allocates a rank's own memory; the other ranks write to its areas. */
static enum status open_own(struct peers *p, uint64_t area_bytes)
{
    struct cuda *be = p->device;
    struct comm *c = be->options.comm;
    const int32_t own = cuda_comm_device(c, be->options.rank);
    void *state = NULL, *areas = NULL, *aborted = NULL;
    TRY(cuda_alloc(be, sizeof(struct peer_state), &state));
    TRY(cuda_alloc(be, PEER_AREAS * area_bytes, &areas));
    if (!p->aborted) {
        CUDA_TRY(be, cudaHostAlloc((void **)&p->aborted, sizeof *p->aborted, cudaHostAllocMapped));
        *p->aborted = 0;
        c->aborted_words[own] = p->aborted;
    }
    CUDA_TRY(be, cudaHostGetDevicePointer(&aborted, p->aborted, 0));
    CUDA_TRY(be, k_peer_clear(be->stream, areas, PEER_AREAS * area_bytes));
    CUDA_TRY(be, cudaStreamSynchronize(be->stream));
    p->view = (struct peer_view){.n_ranks = c->n_ranks,
                                 .rank = be->options.rank,
                                 .area_bytes = area_bytes,
                                 .state = state,
                                 .aborted = aborted};
    c->areas[own] = areas;
    return OK;
}

/* The bytes of a row of the model's hidden states; 0 if the kernel does not support it. */
static int64_t row_bytes_of(const struct peers *p)
{
    const int64_t n = (int64_t)p->hidden * (int64_t)dtype_bytes(p->device->options.dtype);
    if (n % 16 == 0 && n <= MAX_ROW_BYTES) {
        return n;
    }
    return 0;
}

/* All ranks must agree whether peer memory is used, so they meet before deciding. */
enum status peers_open(struct peers *p, struct cuda *device, const struct backend_limits *limits)
{
    struct cuda *be = device;
    struct comm *c = be->options.comm;
    p->device = device;
    p->max_rows = limits->max_rows;
    p->hidden = limits->hidden;
    const int64_t row_bytes = row_bytes_of(p);
    if (c->n_local != c->n_ranks || c->n_ranks > PEER_MAX_RANKS || row_bytes == 0) {
        return OK;
    }
    int64_t largest = (int64_t)p->max_rows * row_bytes;
    largest = lesser(largest, LARGEST_BYTES);
    const uint64_t area_bytes = 2 * (uint64_t)largest + PEER_MAX_RANKS * MAX_ROW_BYTES;
    const int32_t own = cuda_comm_device(c, be->options.rank);
    c->peer_ok[own] = reach_others(be, c) && open_own(p, area_bytes) == OK;
    if (!meet(c)) {
        return ERR_DEVICE;
    }
    bool all = true;
    for (int32_t r = 0; r < c->n_local; r++) {
        all = all && c->peer_ok[r];
        p->view.areas[r] = c->areas[r];
    }
    p->all = all;
    p->largest = largest;
    if (!all && own == 0) {
        log_info("the GPUs cannot reach each other's memory: NCCL does all sums over ranks");
    }
    return be->lost;
}

/* ---- one call -------------------------------------------------------------------------------- */

static bool aligned(struct tensor t, int32_t width)
{
    const size_t size = dtype_bytes(t.dtype);
    return ((uintptr_t)t.mem.p | (size_t)t.stride * size | (size_t)width * size) % 16 == 0;
}

/* Checks alignment, types and size. The norm must read the sum. */
static bool can_take(const struct peers *p, enum peer_way way, const struct reduce_args *r,
                     const struct norm_args *n)
{
    const int64_t row_bytes = (int64_t)r->width * (int64_t)dtype_bytes(r->y.dtype);
    if (!p->all || way == PEER_NONE || r->n_rows < 1 || row_bytes > MAX_ROW_BYTES ||
        (r->y.dtype != DT_F32 && r->y.dtype != DT_BF16 && r->y.dtype != DT_F16) ||
        !aligned(r->y, r->width) ||
        peer_bytes(way, p->view.n_ranks, r->n_rows, row_bytes) > p->view.area_bytes) {
        return false;
    }
    return !n || (n->x.dtype == r->y.dtype && aligned(n->x, r->width) && n->width == r->width &&
                  n->n_rows == r->n_rows && n->delta.mem.p == r->y.mem.p &&
                  n->delta.stride == r->y.stride &&
                  (!n->out.mem.p || (n->out.dtype == r->y.dtype && aligned(n->out, r->width))));
}

/* The size class of a message: class 0 is up to 4 KiB, and each further class twice as much. */
static int32_t class_of(int64_t n_bytes)
{
    int32_t k = 0;
    while (k < PEER_CLASSES - 1 && ((int64_t)4096 << k) < n_bytes) {
        k++;
    }
    return k;
}

/* One call of a kernel, on this rank. */
static enum status run_way(struct peers *p, enum peer_way way, const struct reduce_args *r,
                           const float *sum_bias, const struct norm_args *n, const float *weight,
                           const float *bias)
{
    struct cuda *be = p->device;
    if (be->options.comm->aborted) {
        return be->lost = ERR_DEVICE;
    }
    CUDA_TRY(be, k_peer_reduce(be->stream, way, &p->view, &r->y, sum_bias, n, weight, bias,
                               r->n_rows, r->width, 2 * be->n_sms));
    return OK;
}

/* Restricts the arguments to a range of rows. */
static void cut_rows(const struct reduce_args *r, const struct norm_args *n, int32_t first,
                     int32_t n_rows, struct reduce_args *r_out, struct norm_args *n_out)
{
    const size_t size = dtype_bytes(r->y.dtype), rows = (size_t)first;
    *r_out = *r;
    r_out->n_rows = n_rows;
    r_out->y.mem = dmem_at(r->y.mem, rows * (size_t)r->y.stride * size);
    if (n) {
        *n_out = *n;
        n_out->n_rows = n_rows;
        n_out->delta.mem = r_out->y.mem;
        n_out->x.mem = dmem_at(n->x.mem, rows * (size_t)n->x.stride * size);
        if (n->out.mem.p) {
            n_out->out.mem = dmem_at(n->out.mem, rows * (size_t)n->out.stride * size);
        }
    }
}

/* Large messages are left to NCCL. In deterministic mode they are divided instead. */
bool peers_reduce(struct peers *p, const struct reduce_args *r, const float *sum_bias,
                  const struct norm_args *n, const float *weight, const float *bias,
                  enum status *st)
{
    const struct cuda *be = p->device;
    if (!p->all || r->n_rows < 1 || r->width < 1) {
        return false;
    }
    const int64_t row_bytes = (int64_t)r->width * (int64_t)dtype_bytes(r->y.dtype);
    int32_t most = (int32_t)(p->largest / row_bytes);
    if (r->n_rows > most && !be->options.deterministic) {
        return false;
    }
    // In deterministic mode, divide messages that are too large for peer memory, because NCCL would
    // add in another order.
    most = lesser(most, r->n_rows);
    enum peer_way way = PEER_NONE;
    if (most > 0) {
        way = (enum peer_way)be->options.comm->ways[class_of(most * row_bytes)];
    }
    struct reduce_args part;
    struct norm_args norm_part;
    for (int32_t first = 0; first < r->n_rows; first += most) {
        cut_rows(r, n, first, lesser(r->n_rows - first, most), &part, &norm_part);
        if (!can_take(p, way, &part, n ? &norm_part : NULL)) {
            return false; // the first part was refused
        }
        *st = run_way(p, way, &part, sum_bias, n ? &norm_part : NULL, weight, bias);
        if (*st != OK) {
            break;
        }
    }
    return true;
}

/* Joins the logits through peer memory. False for many rows, whose logits do not fit into an
 * area. */
bool peers_join(struct peers *p, const struct logits_args *a, int32_t width, enum status *st)
{
    struct cuda *be = p->device;
    if (!p->all || a->n_out < 1 || width % 4 != 0 ||
        (((uintptr_t)a->local.mem.p | (uintptr_t)a->logits.mem.p) & 15) != 0 ||
        a->logits.stride % 4 != 0 ||
        peer_bytes(PEER_ONE_SHOT, p->view.n_ranks, a->n_out, (int64_t)width * 4) >
            p->view.area_bytes) {
        return false;
    }
    if (be->options.comm->aborted) {
        *st = be->lost = ERR_DEVICE;
        return true;
    }
    *st = cuda_check(be,
                     k_join_peers(be->stream, &p->view, a->local.mem.p, a->logits.mem.p,
                                  a->logits.stride, a->n_out, width, 2 * be->n_sms),
                     "join_peers");
    return true;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* A candidate for the measurement at startup. */
struct trial {
    struct reduce_args reduce;
    struct norm_args norm;
    enum peer_way way; // PEER_NONE: NCCL followed by the norm
};

/* Every candidate does the same work: a sum and its norm. */
static enum status run_trial(struct peers *p, const struct trial *t)
{
    struct cuda *be = p->device;
    if (t->way != PEER_NONE) {
        return run_way(p, t->way, &t->reduce, NULL, &t->norm, NULL, NULL);
    }
    TRY(cuda_comm_all_reduce(be, t->reduce.y, t->reduce.n_rows, t->reduce.width));
    CUDA_TRY(be, k_norm(be->stream, &t->norm, NULL, NULL, NULL, NULL));
    return OK;
}

static enum status capture_trial(struct peers *p, const struct trial *t, cudaGraphExec_t *exec)
{
    struct cuda *be = p->device;
    cudaGraph_t graph = NULL;
    enum status st = OK;
    CUDA_TRY(be, cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal));
    for (int32_t i = 0; i < CALLS && st == OK; i++) {
        st = run_trial(p, t);
    }
    // the capture must end even if a call has failed
    cudaError_t e = cudaStreamEndCapture(be->stream, &graph);
    if (st == OK) {
        if (e == cudaSuccess) {
            e = cudaGraphInstantiate(exec, graph, 0);
        }
        st = cuda_check(be, e, "capture of a sum over ranks");
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    return st;
}

static enum status time_rounds(struct cuda *be, cudaGraphExec_t exec, cudaEvent_t begin,
                               cudaEvent_t end, float *us)
{
    *us = 0.0f;
    for (int32_t i = 0; i <= ROUNDS; i++) {
        float ms = 0.0f;
        if (!meet(be->options.comm)) {
            return be->lost = ERR_DEVICE;
        }
        CUDA_TRY(be, cudaGraphLaunch(exec, be->stream)); // makes sure that all ranks have arrived
        CUDA_TRY(be, cudaEventRecord(begin, be->stream));
        CUDA_TRY(be, cudaGraphLaunch(exec, be->stream));
        CUDA_TRY(be, cudaEventRecord(end, be->stream));
        CUDA_TRY(be, cudaStreamSynchronize(be->stream));
        CUDA_TRY(be, cudaEventElapsedTime(&ms, begin, end));
        const float each = ms * 1000.0f / CALLS;
        if (i == 1 || (i > 1 && each < *us)) {
            *us = each;
        }
    }
    return OK;
}

/* The microseconds per call in a captured graph, which is how the engine will run it: the best of
 * several rounds. */
static enum status time_trial(struct peers *p, const struct trial *t, float *us)
{
    struct cuda *be = p->device;
    cudaGraphExec_t exec = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    TRY(run_trial(p, t)); // a warm-up, in which libraries initialise
    CUDA_TRY(be, cudaStreamSynchronize(be->stream));
    enum status st = cuda_check(be, cudaEventCreate(&begin), "an event");
    if (st == OK) {
        st = cuda_check(be, cudaEventCreate(&end), "an event");
    }
    if (st == OK) {
        st = capture_trial(p, t, &exec);
    }
    if (st == OK) {
        st = time_rounds(be, exec, begin, end, us);
    }
    if (begin) {
        cudaEventDestroy(begin);
    }
    if (end) {
        cudaEventDestroy(end);
    }
    if (exec) {
        cudaGraphExecDestroy(exec);
    }
    return st;
}

/* A time for the log; a way that cannot take so many bytes was not measured. */
static const char *time_text(char text[16], float us)
{
    if (us > 0.0f) {
        snprintf(text, 16, "%.1f", (double)us);
    } else {
        snprintf(text, 16, "-");
    }
    return text;
}

/* The first rank's times decide for all ranks, because every rank must choose the same way. */
static enum status measure_class(struct peers *p, int32_t k, struct trial *t, char *line,
                                 size_t line_bytes)
{
    const struct cuda *be = p->device;
    struct comm *c = be->options.comm;
    const int64_t row_bytes = row_bytes_of(p), n_bytes = (int64_t)4096 << k;
    t->reduce.n_rows = (int32_t)(n_bytes / row_bytes > 0 ? n_bytes / row_bytes : 1);
    t->norm.n_rows = t->reduce.n_rows;
    if (t->reduce.n_rows > p->max_rows || t->reduce.n_rows * row_bytes > p->largest) {
        return OK;
    }
    float us[PEER_WAYS] = {0};
    for (int32_t way = 0; way < PEER_WAYS; way++) {
        t->way = (enum peer_way)way;
        if (way == PEER_NONE || can_take(p, t->way, &t->reduce, &t->norm)) {
            TRY(time_trial(p, t, &us[way]));
        }
    }
    if (cuda_comm_device(c, be->options.rank) == 0) {
        int32_t best = PEER_NONE;
        for (int32_t way = 0; way < PEER_WAYS; way++) {
            if (us[way] > 0.0f && us[way] < us[best]) {
                best = way;
            }
        }
        c->ways[k] = (uint8_t)best;
        const size_t n = strlen(line);
        char text[PEER_WAYS][16];
        snprintf(line + n, line_bytes - n, "%s%d KiB: %s / %s / %s", n > 0 ? ", " : "",
                 (int)(n_bytes >> 10), time_text(text[PEER_ONE_SHOT], us[PEER_ONE_SHOT]),
                 time_text(text[PEER_TWO_SHOT], us[PEER_TWO_SHOT]),
                 time_text(text[PEER_NONE], us[PEER_NONE]));
    }
    return meet(c) ? OK : ERR_DEVICE;
}

/* Without measurements, chooses the way that moves the fewest bytes. */
static void choose_fixed(struct comm *c)
{
    for (int32_t k = 0; k < PEER_CLASSES; k++) {
        if (c->n_ranks == 2 || ((int64_t)4096 << k) <= 256 << 10) {
            c->ways[k] = PEER_ONE_SHOT;
        } else {
            c->ways[k] = PEER_TWO_SHOT;
        }
    }
}

enum status peers_measure(struct peers *p)
{
    struct cuda *be = p->device;
    struct comm *c = be->options.comm;
    const bool first = cuda_comm_device(c, be->options.rank) == 0;
    if (!p->all) {
        return OK;
    }
    if (first) {
        choose_fixed(c);
    }
    if (!meet(c)) {
        return ERR_DEVICE;
    }
    if (be->options.deterministic) { // so that the choice is the same in every run
        return OK;
    }
    void *memory[3] = {NULL};
    enum status st = OK;
    for (int32_t i = 0; i < 3 && st == OK; i++) {
        const size_t n_bytes = (size_t)p->largest;
        st = cuda_check(be, cudaMalloc(&memory[i], n_bytes), "memory to measure sums with");
        if (st == OK) {
            st = cuda_check(be, cudaMemsetAsync(memory[i], 0x3c, n_bytes, be->stream),
                            "memory to measure sums with");
        }
    }
    const struct tensor t[3] = {{{memory[0]}, be->options.dtype, p->hidden},
                                {{memory[1]}, be->options.dtype, p->hidden},
                                {{memory[2]}, be->options.dtype, p->hidden}};
    struct trial trial = {.reduce = {.y = t[0], .width = p->hidden},
                          .norm = {.x = t[1],
                                   .delta = t[0],
                                   .out = t[2],
                                   .width = p->hidden,
                                   .kind = NORM_RMS,
                                   .eps = 1e-5f,
                                   .delta_scale = 1.0f}};
    char line[1024] = "";
    for (int32_t k = 0; k < PEER_CLASSES && st == OK; k++) {
        st = measure_class(p, k, &trial, line, sizeof line);
    }
    if (first && st == OK) {
        log_info("sums over %d ranks with the norm, us, one-shot / two-shot / NCCL: %s", c->n_ranks,
                 line);
    }
    for (int32_t i = 0; i < 3; i++) {
        cudaFree(memory[i]);
    }
    return st;
}

void peers_close(struct peers *p)
{
    cudaFreeHost(p->aborted);
}
