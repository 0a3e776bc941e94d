// SPDX-License-Identifier: Apache-2.0
/* Captured passes. The first pass with a key is launched normally (libraries load and choose their
 * kernels then), the second is captured, and later ones are replayed. The ops of a key never
 * change, because the key contains everything that determines them: the model, the counts, the
 * requested hidden states, the rows of sequences where there are few, the work of recurrent layers
 * and of adapters, and whether the draws belong to the graph. */
#include "cuda/cuda_graph.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_GRAPHS = 1024,
    RESERVE_BYTES = 32 << 20, // more than the largest graph takes
};

struct graph {
    struct graph_key key;
    int32_t n_seen;
    cudaGraphExec_t exec;
};

struct graphs {
    struct cuda *device;
    struct graph all[MAX_GRAPHS];
    int32_t n;
    struct graph *current; // graph of the current pass; NULL: it has none
    enum graph_use use;
    /* Used if other processes have taken the memory that the pool leaves: the captured pass has not
     * run yet, so it still needs a graph. */
    void *reserve;
    bool full; // the reserve is spent, so no more passes are captured
};

/* Pads n. The padded values are so few that each can have a graph, and so close together that
 * padding costs little. */
int32_t cuda_bucket(int32_t n)
{
    static const struct {
        int32_t most, step;
    } steps[] = {{4, 1}, {16, 4}, {128, 8}, {256, 16}, {INT32_MAX, 32}};
    int i = 0;
    while (n > steps[i].most) {
        i++;
    }
    const int32_t step = steps[i].step;
    return (n + step - 1) / step * step;
}

struct graphs *graphs_open(struct cuda *device)
{
    struct graphs *g = xcalloc(1, sizeof *g);
    g->device = device;
    if (!device->options.enforce_eager && cudaMalloc(&g->reserve, RESERVE_BYTES) != cudaSuccess) {
        (void)cudaGetLastError(); // loading the weights will report the lack of memory
        g->reserve = NULL;
    }
    return g;
}

void graphs_close(struct graphs *g)
{
    for (int32_t i = 0; g && i < g->n; i++) {
        if (g->all[i].exec) {
            cudaGraphExecDestroy(g->all[i].exec);
        }
    }
    if (g && g->reserve) {
        cudaFree(g->reserve);
    }
    free(g);
}

/* The entry of the key. If there is none it is added; NULL if there is no room for it. */
static struct graph *find(struct graphs *g, const struct graph_key *key)
{
    for (int32_t i = 0; i < g->n; i++) {
        if (memcmp(&g->all[i].key, key, sizeof *key) == 0) {
            return &g->all[i];
        }
    }
    if (g->n == MAX_GRAPHS) {
        return NULL;
    }
    g->all[g->n] = (struct graph){.key = *key};
    return &g->all[g->n++];
}

enum status graphs_begin(struct graphs *g, const struct graph_key *key, enum graph_use *use)
{
    struct graph *entry = find(g, key);
    g->current = entry;
    g->use = GRAPH_NONE;
    if (entry) {
        entry->n_seen += entry->n_seen < 3;
        if (entry->exec) {
            g->use = GRAPH_REPLAY;
        } else if (entry->n_seen >= 2 && !g->full) {
            CUDA_TRY(g->device,
                     cudaStreamBeginCapture(g->device->stream, cudaStreamCaptureModeThreadLocal));
            g->use = GRAPH_CAPTURE;
        }
    }
    *use = g->use;
    return OK;
}

/* True if a call that failed with e may be tried again; the reserve has then been freed for it. */
static bool spend_reserve(struct graphs *g, cudaError_t e)
{
    if (e != cudaErrorMemoryAllocation || !g->reserve) {
        return false;
    }
    (void)cudaGetLastError();
    (void)cudaFree(g->reserve);
    g->reserve = NULL;
    g->full = true;
    log_warn("device %d has no memory left, since other processes use it as well: no more passes "
             "are captured in graphs, which makes steps of few sequences slower",
             g->device->options.device);
    return true;
}

static enum status end_capture(struct graphs *g, struct graph *entry)
{
    cudaGraph_t graph = NULL;
    cudaError_t e = cudaStreamEndCapture(g->device->stream, &graph);
    if (e == cudaSuccess) {
        e = cudaGraphInstantiate(&entry->exec, graph, 0);
        if (spend_reserve(g, e)) {
            e = cudaGraphInstantiate(&entry->exec, graph, 0);
        }
    }
    if (graph) {
        cudaGraphDestroy(graph);
    }
    if (e != cudaSuccess) {
        /* The ops of this pass never ran, so it has no result. */
        return cuda_check(g->device, e, "capture of a pass");
    }
    return OK;
}

enum status graphs_end(struct graphs *g)
{
    struct graph *entry = g->current;
    const enum graph_use use = g->use;
    g->current = NULL;
    g->use = GRAPH_NONE;
    if (use == GRAPH_CAPTURE) {
        TRY(end_capture(g, entry));
    }
    if (use != GRAPH_NONE) {
        cudaError_t e =
            cudaGraphLaunch(entry->exec, g->device->stream); // the first one may allocate
        if (spend_reserve(g, e)) {
            e = cudaGraphLaunch(entry->exec, g->device->stream);
        }
        CUDA_TRY(g->device, e);
    }
    return OK;
}

void graphs_abort(struct graphs *g)
{
    if (!g) {
        return;
    }
    if (g->use == GRAPH_CAPTURE) {
        cudaGraph_t graph = NULL;
        (void)cudaStreamEndCapture(g->device->stream, &graph);
        if (graph) {
            cudaGraphDestroy(graph);
        }
    }
    g->current = NULL;
    g->use = GRAPH_NONE;
}
