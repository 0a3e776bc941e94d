// SPDX-License-Identifier: Apache-2.0
/* The set of nodes: opening it, the watcher thread, and what the nodes exchange. Lock order:
 * call_lock before lock. */
#include "engine/cluster/nodes_private.h"

#include "engine/base/assert.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/base/thread.h"
#include "engine/base/wire.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t seconds_from_now(int64_t s)
{
    return clock_now_ns() + s * 1000000000;
}

/* ---- the watcher -------------------------------------------------------------------------- */

/* The callback runs with call_lock held, so nodes_watch can wait until no earlier callback is
 * running. */
static void tell_owner(struct nodes *n)
{
    pthread_mutex_lock(&n->call_lock);
    pthread_mutex_lock(&n->lock);
    bool call = n->lost && !n->on_lost_called && n->on_lost;
    n->on_lost_called = n->on_lost_called || call;
    void (*on_lost)(void *arg) = n->on_lost;
    void *arg = n->arg;
    pthread_mutex_unlock(&n->lock);
    if (call) {
        on_lost(arg);
    }
    pthread_mutex_unlock(&n->call_lock);
}

static bool is_stopping(struct nodes *n)
{
    pthread_mutex_lock(&n->lock);
    bool stopping = n->stopping;
    pthread_mutex_unlock(&n->lock);
    return stopping;
}

/* The watcher reads all streams, sends heartbeats, and on node 0 admits nodes. It wakes at
 * least ten times a second. */
static void *watcher_main(void *arg)
{
    struct nodes *n = arg;
    thread_name("nodes");
    while (!is_stopping(n)) {
        struct pollfd fds[MAX_NODES + MAX_PENDING + 1];
        struct peer *who[MAX_NODES];
        nfds_t n_fds = 0;
        int32_t n_peers = 0;
        for (int32_t i = 0; i < MAX_NODES && !n->lost; i++) {
            if (n->peers[i].fd >= 0 && !n->peers[i].said_bye) {
                who[n_peers++] = &n->peers[i];
                fds[n_fds++] = (struct pollfd){.fd = n->peers[i].fd, .events = POLLIN};
            }
        }
        if (n->listener >= 0) {
            fds[n_fds++] = (struct pollfd){.fd = n->listener, .events = POLLIN};
            for (int32_t i = 0; i < MAX_PENDING; i++) {
                if (n->pending[i]) {
                    fds[n_fds++] = (struct pollfd){.fd = n->pending[i]->fd, .events = POLLIN};
                }
            }
        }
        poll(fds, n_fds, 100);
        for (int32_t i = 0; i < n_peers; i++) {
            nodes_watch_peer(n, who[i], fds[i].revents != 0);
        }
        if (n->listener >= 0) {
            nodes_admit(n);
            if (n->complete) { // nobody else is expected
                nodes_drop_pending(n);
                wire_close(&n->listener);
            }
        }
        tell_owner(n);
    }
    return NULL;
}

/* ---- opening and closing -------------------------------------------------------------------- */

/* Waits for `changed` with the lock held. False once the deadline has passed. */
static bool wait_changed(struct nodes *n, int64_t deadline_ns)
{
    struct timespec t = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    return pthread_cond_timedwait(&n->changed, &n->lock, &t) == 0 || clock_now_ns() < deadline_ns;
}

/* On failure the message names one node that is missing, and the caller closes the set. */
static enum status wait_for_all(struct nodes *n, struct err *err)
{
    int64_t end = seconds_from_now(n->place.join_timeout_s);
    pthread_mutex_lock(&n->lock);
    bool in_time = true;
    while (!n->complete && in_time) {
        in_time = wait_changed(n, end);
    }
    bool complete = n->complete;
    int32_t missing = 0;
    for (int32_t i = n->place.n_nodes - 1; i > 0; i--) {
        if (n->peers[i].fd < 0) {
            missing = i;
        }
    }
    pthread_mutex_unlock(&n->lock);
    if (!complete) {
        return err_set(err, ERR_TIMEOUT, "node %d of %d did not join within %d s", missing,
                       n->place.n_nodes, n->place.join_timeout_s);
    }
    return OK;
}

/* Waits on the condition use the monotonic clock, as all deadlines do. */
static void init(struct nodes *n, const struct node_place *place, const char *identity)
{
    *n = (struct nodes){.place = *place, .listener = -1};
    n->leader = xstrdup(or_empty(place->leader));
    n->bind = place->bind ? xstrdup(place->bind) : NULL;
    n->token = xstrdup(or_empty(place->token));
    n->identity = xstrdup(identity);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&n->lock, NULL);
    pthread_mutex_init(&n->call_lock, NULL);
    pthread_cond_init(&n->changed, &attr);
    pthread_condattr_destroy(&attr);
    for (int32_t i = 0; i < MAX_NODES; i++) {
        n->peers[i].fd = -1;
        n->peers[i].end = &n->peers[i].first;
        pthread_mutex_init(&n->peers[i].send_lock, NULL);
    }
}

/* Returns when all nodes have joined, or with the reason why they did not. */
enum status nodes_open(const struct node_place *place, const char *identity, struct nodes **out,
                       struct err *err)
{
    *out = NULL;
    if (place->n_nodes < 2 || place->n_nodes > MAX_NODES || place->node < 0 ||
        place->node >= place->n_nodes) {
        return err_set(err, ERR_INVALID, "node %d of %d: from 2 to %d nodes are possible",
                       place->node, place->n_nodes, MAX_NODES);
    }
    if (strlen(identity) > NODE_IDENTITY_BYTES) {
        return err_set(err, ERR_INVALID, "the options are too long to be compared among nodes");
    }
    struct nodes *n = xcalloc(1, sizeof *n);
    init(n, place, identity);
    int32_t port;
    enum status st = place->node == 0
                         ? wire_listen(place->bind, place->port, &n->listener, &port, err)
                         : nodes_join(n, err);
    if (st == OK && place->node == 0) {
        log_info("node 0 waits on port %d for %d more nodes", port, place->n_nodes - 1);
    }
    if (st == OK) {
        n->watcher_runs = pthread_create(&n->watcher, NULL, watcher_main, n) == 0;
        if (n->watcher_runs) {
            st = OK;
        } else {
            st = err_set(err, ERR_NOMEM, "no thread for the nodes");
        }
    }
    if (st == OK) {
        st = wait_for_all(n, err);
    }
    if (st != OK) {
        nodes_close(n);
        return st;
    }
    log_info("node %d of %d: all nodes have joined", place->node, place->n_nodes);
    *out = n;
    return OK;
}

/* Tells the other nodes that the shutdown is intended, so that they exit without an error. */
void nodes_goodbye(struct nodes *n)
{
    if (n->place.node > 0 || atomic_exchange(&n->ending, true) || n->lost) {
        return;
    }
    for (int32_t i = 1; i < MAX_NODES; i++) {
        if (n->peers[i].fd >= 0) {
            nodes_send_frame(&n->peers[i], FRAME_BYE, NULL, 0, seconds_from_now(1));
        }
    }
}

/* The watcher ends before its streams are closed. Node 0 waits until what it has sent has
 * arrived. */
void nodes_close(struct nodes *n)
{
    if (!n) {
        return;
    }
    nodes_goodbye(n);
    pthread_mutex_lock(&n->lock);
    n->stopping = true;
    pthread_mutex_unlock(&n->lock);
    if (n->watcher_runs) {
        pthread_join(n->watcher, NULL);
    }
    for (int32_t i = 1; i < MAX_NODES && n->place.node == 0 && !n->lost; i++) {
        if (n->peers[i].fd >= 0) {
            wire_finish(n->peers[i].fd, seconds_from_now(2));
        }
    }
    nodes_drop_pending(n);
    wire_close(&n->listener);
    for (int32_t i = 0; i < MAX_NODES; i++) {
        struct peer *p = &n->peers[i];
        wire_close(&p->fd);
        free(p->partial);
        while (p->first) {
            struct frame *f = p->first;
            p->first = f->next;
            free(f);
        }
        pthread_mutex_destroy(&p->send_lock);
    }
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    pthread_mutex_destroy(&n->call_lock);
    free(n->current);
    free(n->leader);
    free(n->bind);
    free(n->token);
    free(n->identity);
    free(n);
}

/* ---- collective calls and steps ------------------------------------------------------------- */

/* The next frame from the peer, which the caller frees; NULL: none within a second. ERR_IO: the set
 * is lost. ERR_CANCELLED: node 0 said goodbye. */
static enum status next_frame(struct nodes *n, struct peer *p, struct frame **out)
{
    const int64_t end = seconds_from_now(1);
    pthread_mutex_lock(&n->lock);
    bool in_time = true;
    while (!p->first && !p->said_bye && !n->lost && in_time) {
        in_time = wait_changed(n, end);
    }
    struct frame *f = n->lost ? NULL : p->first;
    enum status st = !f && p->said_bye ? ERR_CANCELLED : OK;
    if (n->lost) {
        st = ERR_IO;
    }
    if (f) {
        p->first = f->next;
        if (!p->first) {
            p->end = &p->first;
        }
        p->n_waiting--;
    }
    pthread_mutex_unlock(&n->lock);
    *out = f;
    return st;
}

static enum status lost_status(struct nodes *n, struct err *err)
{
    struct err why;
    if (nodes_lost(n, &why)) {
        return err_set(err, ERR_IO, "%s", why.text);
    }
    return err_set(err, ERR_IO, "node 0 has ended");
}

/* Receives a frame of this kind and size; otherwise the set is lost. */
static enum status expect(struct nodes *n, struct peer *p, enum frame_kind kind, void *bytes,
                          size_t n_bytes, struct err *err)
{
    struct frame *f = NULL;
    while (!f) { // the watcher enforces the deadline (NODE_SILENCE_S)
        if (next_frame(n, p, &f) != OK) {
            return lost_status(n, err);
        }
    }
    bool good = f->head.kind == (uint32_t)kind && f->head.n_bytes == n_bytes;
    if (good) {
        memcpy(bytes, f->bytes, n_bytes);
    }
    free(f);
    if (!good) {
        nodes_fail(n, "the nodes do not make the same calls");
        return lost_status(n, err);
    }
    return OK;
}

/* Sends a step to every other node. If a stream cannot accept it in time, the whole set is lost. */
static enum status send_all(struct nodes *n, enum frame_kind kind, const void *bytes,
                            size_t n_bytes)
{
    for (int32_t i = 1; i < n->place.n_nodes; i++) {
        if (n->lost || nodes_send_frame(&n->peers[i], kind, bytes, n_bytes,
                                        seconds_from_now(NODE_SILENCE_S)) != OK) {
            nodes_lose(n, "accepts no data", "", i);
            return ERR_IO;
        }
    }
    return OK;
}

/* Node 0's bytes arrive in the same order on all nodes, since every node makes the same
 * calls. */
enum status nodes_share(struct nodes *n, void *bytes, size_t n_bytes, struct err *err)
{
    if (n->place.node > 0) {
        return expect(n, &n->peers[0], FRAME_SHARE, bytes, n_bytes, err);
    }
    if (send_all(n, FRAME_SHARE, bytes, n_bytes) != OK) {
        return lost_status(n, err);
    }
    return OK;
}

/* Each node sends its value; node 0 computes the least one and returns it to all. */
enum status nodes_least(struct nodes *n, int64_t *value, struct err *err)
{
    if (n->place.node > 0) {
        if (nodes_send_frame(&n->peers[0], FRAME_VALUE, value, sizeof *value,
                             seconds_from_now(NODE_SILENCE_S)) != OK) {
            nodes_lose(n, "accepts no data", "", 0);
            return lost_status(n, err);
        }
    }
    for (int32_t i = 1; i < n->place.n_nodes && n->place.node == 0; i++) {
        int64_t theirs;
        TRY(expect(n, &n->peers[i], FRAME_VALUE, &theirs, sizeof theirs, err));
        *value = lesser(theirs, *value);
    }
    return nodes_share(n, value, sizeof *value, err);
}

enum status nodes_send_step(struct nodes *n, const void *bytes, size_t n_bytes)
{
    ASSERT(n->place.node == 0);
    return send_all(n, FRAME_STEP, bytes, n_bytes);
}

/* The frame's memory stays valid until the next call. */
enum status nodes_next_step(struct nodes *n, const void **bytes, size_t *n_bytes)
{
    ASSERT(n->place.node > 0);
    free(n->current);
    n->current = NULL;
    *bytes = NULL;
    TRY(next_frame(n, &n->peers[0], &n->current));
    if (!n->current) {
        return OK;
    }
    if (n->current->head.kind != FRAME_STEP) {
        return ERR_FORMAT;
    }
    *bytes = n->current->bytes;
    *n_bytes = n->current->head.n_bytes;
    return OK;
}

/* ---- any thread ----------------------------------------------------------------------------- */

/* Called by the node that fails first, so that other nodes learn the reason and do not just see a
 * broken stream. */
void nodes_fail(struct nodes *n, const char *why)
{
    bool was_lost = nodes_lost(n, NULL);
    nodes_lose(n, "", why, -1);
    int32_t first = n->place.node == 0, end = n->place.node == 0 ? n->place.n_nodes : 1;
    for (int32_t i = first; i < end && !was_lost; i++) {
        if (n->peers[i].fd >= 0) {
            nodes_send_frame(&n->peers[i], FRAME_FAIL, why, strlen(why), seconds_from_now(1));
        }
    }
}

bool nodes_lost(struct nodes *n, struct err *why)
{
    pthread_mutex_lock(&n->lock);
    bool lost = n->lost;
    if (lost && why) {
        *why = n->why;
    }
    pthread_mutex_unlock(&n->lock);
    return lost;
}

int32_t nodes_alive(struct nodes *n)
{
    pthread_mutex_lock(&n->lock);
    int32_t alive = n->lost ? n->n_joined : n->n_joined + 1;
    pthread_mutex_unlock(&n->lock);
    return alive;
}

/* If the set is already lost, the watcher calls on_lost soon. */
void nodes_watch(struct nodes *n, void (*on_lost)(void *arg), void *arg)
{
    pthread_mutex_lock(&n->call_lock);
    pthread_mutex_lock(&n->lock);
    n->on_lost = on_lost;
    n->arg = arg;
    pthread_mutex_unlock(&n->lock);
    pthread_mutex_unlock(&n->call_lock);
}

int32_t nodes_count(const struct nodes *n)
{
    return n->place.n_nodes;
}

int32_t nodes_rank(const struct nodes *n)
{
    return n->place.node;
}

const char *nodes_leader(const struct nodes *n)
{
    return n->leader;
}

const char *nodes_bind(const struct nodes *n)
{
    return n->bind;
}
