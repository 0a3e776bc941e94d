// SPDX-License-Identifier: Apache-2.0
/* Streams, events and graphs. */
#include "engine/base/hash.h"
#include "engine/base/minmax.h"
#include "test/cuda/fake/fake_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ops {
    struct fake_op *v;
    int32_t n, max;
};

struct CUgraph_st {
    struct ops ops;
};

enum { GRAPH_BYTES = 1 << 20 }; // of a device's memory

struct CUgraphExec_st {
    struct ops ops;
    int32_t device;
};

/* An event is complete when no record of it waits in a stream. */
struct CUevent_st {
    int32_t n_waited; // number of its records that have not run
    int32_t device;
    bool is_timed, is_recorded;
};

/* A queue of ops that have been issued and have not run; during a capture ops go to the
 * graph. */
struct CUstream_st {
    struct ops ops;
    cudaGraph_t graph; // the graph that is being captured, or NULL
    bool is_spoilt;    // a call that a capture does not allow was made during this one
    int32_t device;
    struct CUstream_st *next;
};

static struct CUstream_st *streams;

/* Queues only grow. */
static void add(struct ops *ops, const struct fake_op *op)
{
    if (ops->n == ops->max) {
        ops->max = ops->max * 2 + 64;
        ops->v = realloc(ops->v, (size_t)ops->max * sizeof *ops->v);
    }
    ops->v[ops->n++] = *op;
}

/* Ops may own a copy of what they were given. */
static void ops_deinit(struct ops *ops)
{
    for (int32_t i = 0; i < ops->n; i++) {
        free(ops->v[i].snapshot);
    }
    free(ops->v);
    *ops = (struct ops){0};
}

/* A stream that was destroyed, or is used on another device, is a complaint. */
static struct CUstream_st *find_stream(cudaStream_t stream)
{
    struct CUstream_st *s = streams;
    while (s && s != stream) {
        s = s->next;
    }
    if (!s) {
        fake_complain("a stream that does not exist");
    } else if (s->device != fake_device()) {
        fake_complain("a stream of device %d is used on device %d", s->device, fake_device());
        return NULL;
    }
    return s;
}

/* Appends the op to the graph during a capture, otherwise to the stream. */
cudaError_t fake_enqueue(cudaStream_t stream, const struct fake_op *op)
{
    struct CUstream_st *s = find_stream(stream);
    if (!s) {
        return cudaErrorInvalidResourceHandle;
    }
    add(s->graph ? &s->graph->ops : &s->ops, op);
    return cudaSuccess;
}

/* Runs one op. A copy from pinned memory has a hash of the bytes that it should find there: if they
 * differ, the host has changed them too early. */
static void run(struct fake_op *op)
{
    const char *from = op->snapshot ? op->snapshot : op->from;
    switch (op->kind) {
    case FAKE_COPY:
        if (op->hash && hash_bytes(from, op->n_bytes, 0) != op->hash) {
            fake_complain("pinned memory was written again before it was copied");
        }
        fake_write(op->to, from, 0, op->n_bytes);
        break;
    case FAKE_FILL: fake_write(op->to, NULL, op->value, op->n_bytes); break;
    case FAKE_EVENT: op->event->n_waited--; break;
    case FAKE_WORK:
        if (op->is_emulated) {
            fake_emulate(op);
        }
        break;
    }
    free(op->snapshot);
    op->snapshot = NULL;
}

/* Runs the first n ops, in order. */
static void run_some(struct CUstream_st *s, int32_t n)
{
    n = lesser(n, s->ops.n);
    if (n == 0) {
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        run(&s->ops.v[i]);
    }
    s->ops.n -= n;
    memmove(s->ops.v, s->ops.v + n, (size_t)s->ops.n * sizeof *s->ops.v);
}

void fake_run_all(void)
{
    for (struct CUstream_st *s = streams; s; s = s->next) {
        run_some(s, s->ops.n);
    }
}

static bool overlap(const void *a, size_t n_a, const void *b, size_t n_b)
{
    return a && b && (const char *)a < (const char *)b + n_b &&
           (const char *)b < (const char *)a + n_a;
}

/* Whether an op that has not run reads or writes this memory; freeing it then is an error. */
bool fake_is_awaited(const void *p, size_t n_bytes)
{
    for (struct CUstream_st *s = streams; s; s = s->next) {
        for (int32_t i = 0; i < s->ops.n; i++) {
            const struct fake_op *op = &s->ops.v[i];
            if (overlap(op->to, op->n_bytes, p, n_bytes) ||
                (!op->snapshot && overlap(op->from, op->n_bytes, p, n_bytes))) {
                return true;
            }
        }
    }
    return false;
}

/* Called by functions that a capture does not allow. */
bool fake_ends_capture(const char *call)
{
    bool ends = false;
    for (struct CUstream_st *s = streams; s; s = s->next) {
        if (s->graph && s->device == fake_device()) {
            fake_complain("%s while a graph is captured", call);
            ends = s->is_spoilt = true;
        }
    }
    return ends;
}

/* Streams that were not destroyed. */
void fake_stream_end(void)
{
    while (streams) {
        struct CUstream_st *s = streams;
        streams = s->next;
        ops_deinit(&s->ops);
        if (s->graph) {
            ops_deinit(&s->graph->ops);
            free(s->graph);
        }
        free(s);
    }
}

/* ---- streams ------------------------------------------------------------------------------- */

/* The default stream's implicit waits would hide missing ones, so streams must not have
 * them. */
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    fake_lock();
    const cudaError_t e = fake_call();
    if (flags != cudaStreamNonBlocking) {
        fake_complain("a stream that waits for the default stream");
    }
    if (e == cudaSuccess) {
        struct CUstream_st *s = calloc(1, sizeof *s);
        s->device = fake_device();
        s->next = streams;
        streams = *out = s;
        fake_born();
    }
    fake_unlock();
    return e;
}

/* What was issued still runs, as on a device. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    fake_lock();
    const cudaError_t e = fake_call();
    struct CUstream_st **at = &streams;
    while (*at && *at != stream) {
        at = &(*at)->next;
    }
    if (*at) {
        *at = stream->next;
        run_some(stream, stream->ops.n);
        ops_deinit(&stream->ops);
        if (stream->graph) {
            fake_complain("a stream is destroyed while a graph is captured");
            ops_deinit(&stream->graph->ops);
            free(stream->graph);
        }
        free(stream);
        fake_died();
    }
    fake_unlock();
    return e;
}

/* Runs some of the queued operations, at random all. A stream that is being captured cannot be
 * queried. */
static cudaError_t look(struct CUstream_st *s, bool all)
{
    if (!s) {
        return cudaErrorInvalidResourceHandle;
    }
    if (s->graph) {
        fake_complain("a stream is waited for or queried while a graph is captured");
        s->is_spoilt = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    run_some(s, all || fake_chance(8) ? s->ops.n : s->ops.n / 2);
    return s->ops.n == 0 ? cudaSuccess : cudaErrorNotReady;
}

/* Waiting runs all ops; a query may run some of them, at random. */
static cudaError_t look_at_stream(cudaStream_t stream, bool all)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess) {
        e = look(find_stream(stream), all);
    }
    fake_unlock();
    return e;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return look_at_stream(stream, true);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return look_at_stream(stream, false);
}

/* Products of cuBLASLt, as an op that does nothing, once its operands were checked. */
cudaError_t fake_product(cudaStream_t stream, const void *const *operands, int32_t n)
{
    fake_lock();
    cudaError_t e = fake_call();
    for (int32_t i = 0; i < n && e == cudaSuccess; i++) {
        if (fake_on_device(operands[i], 1, "a product")) {
            e = cudaSuccess;
        } else {
            e = cudaErrorInvalidValue;
        }
    }
    e = e == cudaSuccess ? fake_enqueue(stream, &(struct fake_op){.kind = FAKE_WORK}) : e;
    fake_unlock();
    return e;
}

/* ---- events -------------------------------------------------------------------------------- */

/* Only events with timing may be asked for a time. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    fake_lock();
    const cudaError_t e = fake_call();
    if (e == cudaSuccess) {
        *out = calloc(1, sizeof **out);
        (*out)->device = fake_device();
        (*out)->is_timed = !(flags & cudaEventDisableTiming);
        fake_born();
    }
    fake_unlock();
    return e;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

/* Ops that wait for the event run before it is gone. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    fake_lock();
    const cudaError_t e = fake_call();
    fake_run_all(); // an op may refer to it
    free(event);
    fake_died();
    fake_unlock();
    return e;
}

/* An op of the stream: the event is complete when the stream comes to it. */
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess && event->device != fake_device()) {
        fake_complain("an event of device %d is recorded on device %d", event->device,
                      fake_device());
        e = cudaErrorInvalidResourceHandle;
    }
    e = e == cudaSuccess
            ? fake_enqueue(stream, &(struct fake_op){.kind = FAKE_EVENT, .event = event})
            : e;
    if (e == cudaSuccess) {
        event->n_waited++;
        event->is_recorded = true;
    }
    fake_unlock();
    return e;
}

/* The number of operations in the stream up to the event's last record. */
static int32_t n_before(const struct CUstream_st *s, const struct CUevent_st *event)
{
    int32_t n = s->ops.n;
    while (n > 0 && s->ops.v[n - 1].event != event) {
        n--;
    }
    return n;
}

/* An event that was never recorded counts as complete. */
static cudaError_t look_at_event(cudaEvent_t event, bool all)
{
    const char *us = getenv("FAKE_CUDA_WAIT_US");
    fake_hang("event");
    if (us) {
        usleep((useconds_t)atoi(us));
    }
    fake_lock();
    cudaError_t e = fake_call();
    if (fake_ends_capture("an event is waited for or queried") && e == cudaSuccess) {
        e = cudaErrorStreamCaptureUnsupported;
    }
    for (struct CUstream_st *s = streams; e == cudaSuccess && s; s = s->next) {
        const int32_t n = n_before(s, event);
        run_some(s, all || fake_chance(8) ? n : n / 2);
    }
    if (e == cudaSuccess && event->n_waited > 0) {
        e = cudaErrorNotReady;
    }
    fake_unlock();
    return e;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return look_at_event(event, true);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return look_at_event(event, false);
}

/* Returns 0 ms if both events support timing. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    fake_lock();
    const cudaError_t e = fake_call();
    if (!begin->is_timed || !end->is_timed || !begin->is_recorded || !end->is_recorded ||
        begin->n_waited > 0 || end->n_waited > 0) {
        fake_complain("a time between events that have none");
    }
    *ms = 1.0f;
    fake_unlock();
    return e;
}

/* ---- graphs -------------------------------------------------------------------------------- */

/* Captures do not nest; what was issued before stays in the stream. */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    fake_lock();
    cudaError_t e = fake_call();
    struct CUstream_st *s = e == cudaSuccess ? find_stream(stream) : NULL;
    if (s && s->graph) {
        fake_complain("a capture begins within another");
        e = cudaErrorIllegalState;
    } else if (s) {
        s->graph = calloc(1, sizeof *s->graph);
    }
    fake_unlock();
    return e;
}

/* A capture ends even on a lost device. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    fake_lock();
    cudaError_t e = fake_call();
    struct CUstream_st *s = find_stream(stream);
    *out = NULL;
    if (s && s->graph && s->is_spoilt && e == cudaSuccess) {
        e = cudaErrorStreamCaptureInvalidated;
    }
    if (s && s->graph && e == cudaSuccess) {
        *out = s->graph;
        fake_born();
    } else if (s && s->graph) {
        ops_deinit(&s->graph->ops);
        free(s->graph);
    } else if (e == cudaSuccess) {
        fake_complain("the end of a capture that did not begin");
        e = cudaErrorIllegalState;
    }
    if (s) {
        s->graph = NULL;
        s->is_spoilt = false;
    }
    fake_unlock();
    return e;
}

/* The graph's ops are copied, so it may be destroyed. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess) {
        e = fake_take(fake_device(), GRAPH_BYTES);
    }
    if (e == cudaSuccess) {
        *out = calloc(1, sizeof **out);
        (*out)->device = fake_device();
        for (int32_t i = 0; i < graph->ops.n; i++) {
            struct fake_op op = graph->ops.v[i];
            if (op.snapshot) {
                fake_complain("a graph copies from memory that is not pinned");
                op.snapshot = NULL;
            }
            add(&(*out)->ops, &op);
        }
        fake_born();
    }
    fake_unlock();
    return e;
}

/* All ops of the graph enter the stream at once. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    fake_lock();
    cudaError_t e = fake_call();
    if (e == cudaSuccess && exec->device != fake_device()) {
        fake_complain("a graph of device %d is launched on device %d", exec->device, fake_device());
        e = cudaErrorInvalidResourceHandle;
    }
    for (int32_t i = 0; i < exec->ops.n && e == cudaSuccess; i++) {
        struct fake_op op = exec->ops.v[i];
        if (op.hash) {
            op.hash = hash_bytes(op.from, op.n_bytes, 0); // the content at the time of the launch
        }
        e = fake_enqueue(stream, &op);
    }
    fake_count_replay();
    fake_unlock();
    return e;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    fake_lock();
    const cudaError_t e = fake_call();
    ops_deinit(&graph->ops);
    free(graph);
    fake_died();
    fake_unlock();
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    fake_lock();
    const cudaError_t e = fake_call();
    fake_put_back(exec->device, GRAPH_BYTES);
    ops_deinit(&exec->ops);
    free(exec);
    fake_died();
    fake_unlock();
    return e;
}
