// SPDX-License-Identifier: Apache-2.0
/* Ranks of one process. They meet at a barrier, and each does a share of the common work on the
 * memory of all ranks. If there are several processes, the first rank of each exchanges data over
 * TCP. */
#include "cpu/cpu_comm.h"

#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/wire.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A mutex and a condition variable serve as a barrier that can be broken. */
static struct comm *create(int32_t n_ranks, int32_t first, int32_t n_local)
{
    ASSERT(n_ranks >= 1 && n_ranks <= CPU_MAX_RANKS);
    struct comm *c = xcalloc(1, sizeof *c + (size_t)n_ranks * sizeof c->ranks[0]);
    c->n_ranks = n_ranks;
    c->first = first;
    c->n_local = n_local;
    c->n_nodes = 1;
    for (int32_t i = 0; i < CPU_MAX_RANKS; i++) {
        c->streams[i] = -1;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    return c;
}

struct comm *cpu_comm_create(int32_t n_ranks)
{
    return create(n_ranks, 0, n_ranks);
}

/* If there are several nodes, their first ranks connect to each other over TCP. */
enum status cpu_comm_open(const struct comm_place *place, struct comm **out, struct err *err)
{
    *out = NULL;
    if (place->n_nodes < 1 || place->n_ranks < 1 || place->n_ranks > CPU_MAX_RANKS ||
        place->n_ranks % place->n_nodes != 0 || place->node < 0 || place->node >= place->n_nodes) {
        return err_set(err, ERR_INVALID, "%d ranks cannot be divided evenly among %d nodes",
                       place->n_ranks, place->n_nodes);
    }
    int32_t n_local = place->n_ranks / place->n_nodes;
    struct comm *c = create(place->n_ranks, place->node * n_local, n_local);
    c->n_nodes = place->n_nodes;
    c->node = place->node;
    enum status st = place->n_nodes > 1 ? cpu_comm_connect(c, place, err) : OK;
    if (st != OK) {
        cpu_comm_destroy(c);
        return st;
    }
    *out = c;
    return OK;
}

/* Called after all ranks have left. */
void cpu_comm_destroy(struct comm *comm)
{
    if (comm) {
        for (int32_t i = 0; i < CPU_MAX_RANKS; i++) {
            wire_close(&comm->streams[i]);
        }
        pthread_cond_destroy(&comm->changed);
        pthread_mutex_destroy(&comm->mutex);
        free(comm->room);
        free(comm);
    }
}

/* Wakes all waiting ranks, in this process and on other nodes. All later calls fail. */
void cpu_comm_abort(struct comm *c)
{
    pthread_mutex_lock(&c->mutex);
    c->broken = true;
    for (int32_t i = 0; i < c->n_nodes && c->n_nodes > 1; i++) {
        wire_break(c->streams[i]);
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mutex);
}

/* Waits for all ranks. Returns false if a rank is gone or late, so that the others do not wait for
 * ever. */
static bool meet(struct comm *c)
{
    int64_t end = clock_now_ns() + CPU_COMM_WAIT_S * 1000000000LL;
    struct timespec deadline = {end / 1000000000, end % 1000000000};
    pthread_mutex_lock(&c->mutex);
    uint32_t round = c->round;
    if (++c->n_waiting == c->n_local && !c->broken) {
        c->n_waiting = 0;
        c->round++;
        pthread_cond_broadcast(&c->changed);
    }
    while (c->round == round && !c->broken) {
        if (pthread_cond_timedwait(&c->changed, &c->mutex, &deadline) != 0 &&
            clock_now_ns() >= end) {
            c->broken = true;
            pthread_cond_broadcast(&c->changed);
        }
    }
    bool ok = c->round != round;
    pthread_mutex_unlock(&c->mutex);
    return ok;
}

/* A rank that closes breaks the barrier, so that others do not wait for it. */
void cpu_comm_leave(struct cpu_backend *cpu)
{
    struct comm *c = cpu->options.comm;
    if (c && cpu->base.n_ranks > 1) {
        pthread_mutex_lock(&c->mutex);
        c->broken = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->mutex);
    }
}

/* One thread of the process exchanges data with the other nodes once all its ranks have arrived. */
static bool with_nodes(struct comm *c, int32_t rank, int64_t n_rows, int64_t width,
                       bool (*work)(struct comm *c, int64_t n_rows, int64_t width))
{
    if (rank == c->first && !work(c, n_rows, width)) {
        cpu_comm_abort(c);
        return false;
    }
    return meet(c);
}

/* Each rank sums a share of the columns as a tree in a fixed order, so the result has the same bits
 * on all ranks. The ranks meet before reading and after writing. */
bool cpu_comm_sum(struct cpu_backend *cpu, float *y, int64_t stride, int64_t n_rows, int64_t width)
{
    struct comm *c = cpu->options.comm;
    int32_t rank = cpu->base.rank;
    c->ranks[rank] = (struct comm_part){y, y, stride, stride};
    if (!meet(c)) {
        return false;
    }
    if (c->n_nodes > 1) {
        return with_nodes(c, rank, n_rows, width, cpu_comm_sum_nodes);
    }
    /* This rank sums its own columns and writes them to all ranks. */
    int64_t first = width * rank / c->n_ranks, end = width * (rank + 1) / c->n_ranks;
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t col = first; col < end; col++) {
            float sum = cpu_comm_tree_sum(c, row, col);
            for (int32_t r = 0; r < c->n_ranks; r++) {
                c->ranks[r].out[row * c->ranks[r].out_stride + col] = sum;
            }
        }
    }
    return meet(c);
}

/* Each rank copies the parts of all ranks into its own output. */
bool cpu_comm_gather(struct cpu_backend *cpu, const float *in, int64_t in_stride, float *out,
                     int64_t out_stride, int64_t n_rows, int64_t width)
{
    struct comm *c = cpu->options.comm;
    int32_t rank = cpu->base.rank;
    c->ranks[rank] = (struct comm_part){in, out, in_stride, out_stride};
    if (!meet(c)) {
        return false;
    }
    if (c->n_nodes > 1) {
        return with_nodes(c, rank, n_rows, width, cpu_comm_gather_nodes);
    }
    for (int64_t row = 0; row < n_rows; row++) {
        for (int32_t r = 0; r < c->n_ranks; r++) {
            memcpy(out + row * out_stride + r * width, c->ranks[r].in + row * c->ranks[r].in_stride,
                   (size_t)width * sizeof *out);
        }
    }
    return meet(c);
}
