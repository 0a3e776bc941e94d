/* Ranks of one process: they meet at a barrier, and each does its share of the common work on all
 * ranks' memory. */
#include "cpu/cpu_internal.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct comm {
    int32_t n_ranks;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int32_t n_waiting;
    uint32_t round;
    bool broken; // a rank has left
    struct {
        const float *in;
        float *out;
        int64_t in_stride, out_stride;
    } ranks[]; // what each rank brings to the call in progress
};

struct comm *cpu_comm_create(int32_t n_ranks)
{
    ASSERT(n_ranks >= 1 && n_ranks <= 256);
    struct comm *c = xcalloc(1, sizeof *c + (size_t)n_ranks * sizeof c->ranks[0]);
    c->n_ranks = n_ranks;
    pthread_mutex_init(&c->mutex, NULL);
    pthread_cond_init(&c->changed, NULL);
    return c;
}

void cpu_comm_destroy(struct comm *comm)
{
    if (comm) {
        pthread_cond_destroy(&comm->changed);
        pthread_mutex_destroy(&comm->mutex);
        free(comm);
    }
}

/* False when a rank is gone, so that the others do not wait for it for ever. */
static bool meet(struct comm *c)
{
    pthread_mutex_lock(&c->mutex);
    uint32_t round = c->round;
    if (++c->n_waiting == c->n_ranks) {
        c->n_waiting = 0;
        c->round++;
        pthread_cond_broadcast(&c->changed);
    }
    while (c->round == round && !c->broken) {
        pthread_cond_wait(&c->changed, &c->mutex);
    }
    bool ok = c->round != round;
    pthread_mutex_unlock(&c->mutex);
    return ok;
}

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

/* The sum over ranks [first, first + n) of element `at` of their rows: a balanced tree. */
static float tree_sum(const struct comm *c, int32_t first, int32_t n, int64_t row, int64_t col)
{
    float open[16];
    int32_t level = 0;
    for (int32_t i = 0; i < n; i++) {
        open[level++] = c->ranks[first + i].in[row * c->ranks[first + i].in_stride + col];
        for (int32_t bits = i + 1; bits % 2 == 0; bits /= 2, level--) {
            open[level - 2] += open[level - 1];
        }
    }
    for (; level > 1; level--) { // a count of ranks that is no power of two
        open[level - 2] += open[level - 1];
    }
    return open[0];
}

bool cpu_comm_sum(struct cpu_backend *cpu, float *y, int64_t stride, int64_t n_rows, int64_t width)
{
    struct comm *c = cpu->options.comm;
    int32_t rank = cpu->base.rank;
    c->ranks[rank].in = y;
    c->ranks[rank].out = y;
    c->ranks[rank].in_stride = c->ranks[rank].out_stride = stride;
    if (!meet(c)) {
        return false;
    }
    /* This rank sums its own columns, and writes them to all. */
    int64_t first = width * rank / c->n_ranks, end = width * (rank + 1) / c->n_ranks;
    for (int64_t row = 0; row < n_rows; row++) {
        for (int64_t col = first; col < end; col++) {
            float sum = tree_sum(c, 0, c->n_ranks, row, col);
            for (int32_t r = 0; r < c->n_ranks; r++) {
                c->ranks[r].out[row * c->ranks[r].out_stride + col] = sum;
            }
        }
    }
    return meet(c);
}

bool cpu_comm_gather(struct cpu_backend *cpu, const float *in, int64_t in_stride, float *out,
                     int64_t out_stride, int64_t n_rows, int64_t width)
{
    struct comm *c = cpu->options.comm;
    int32_t rank = cpu->base.rank;
    c->ranks[rank].in = in;
    c->ranks[rank].in_stride = in_stride;
    if (!meet(c)) {
        return false;
    }
    for (int64_t row = 0; row < n_rows; row++) {
        for (int32_t r = 0; r < c->n_ranks; r++) {
            memcpy(out + row * out_stride + r * width, c->ranks[r].in + row * c->ranks[r].in_stride,
                   (size_t)width * sizeof *out);
        }
    }
    return meet(c);
}
