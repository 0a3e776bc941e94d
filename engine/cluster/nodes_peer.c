/* One stream of the set: a peer comes, frames go out and arrive, it falls silent or goes. */
#include "engine/cluster/nodes_private.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/wire.h"

#include <stdlib.h>
#include <string.h>

void nodes_lose(struct nodes *n, const char *what, const char *text, int32_t node)
{
    pthread_mutex_lock(&n->lock);
    bool first = !n->lost;
    if (first) {
        n->lost = true;
        if (node >= 0) {
            err_set(&n->why, ERR_IO, "node %d %s%s", node, what, text);
        } else {
            err_set(&n->why, ERR_IO, "%s%s", what, text);
        }
    }
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (first) {
        log_error("the set of nodes is lost: %s", n->why.text);
    }
}

void nodes_set_peer(struct nodes *n, int32_t index, int32_t node, int fd)
{
    struct peer *p = &n->peers[index];
    pthread_mutex_lock(&n->lock);
    p->fd = fd;
    p->node = node;
    p->seen_ns = p->beat_ns = clock_now_ns();
    n->n_joined++;
    n->complete = n->place.node > 0 || n->n_joined == n->place.n_nodes - 1;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

enum status nodes_send_frame(struct peer *p, enum frame_kind kind, const void *bytes,
                             size_t n_bytes, int64_t deadline_ns)
{
    if (n_bytes > MAX_FRAME_BYTES) {
        return ERR_LIMIT;
    }
    pthread_mutex_lock(&p->send_lock);
    struct frame_head h = {(uint32_t)kind, (uint32_t)n_bytes, p->n_sent[kind]++};
    enum status st = wire_send(p->fd, &h, sizeof h, deadline_ns);
    st = st == OK ? wire_send(p->fd, bytes, n_bytes, deadline_ns) : st;
    pthread_mutex_unlock(&p->send_lock);
    return st;
}

/* ---- what arrives ------------------------------------------------------------------------- */

/* Puts a whole frame where it belongs; false if the stream makes no sense. */
static bool take_frame(struct nodes *n, struct peer *p)
{
    struct frame *f = p->partial;
    p->partial = NULL;
    p->have = 0;
    uint32_t kind = f->head.kind;
    bool good = kind >= FRAME_BEAT && kind <= FRAME_BYE && f->head.number == p->n_received[kind];
    if (good) {
        p->n_received[kind]++;
    }
    if (good && kind == FRAME_FAIL) {
        char text[400];
        size_t m = f->head.n_bytes < sizeof text - 1 ? f->head.n_bytes : sizeof text - 1;
        memcpy(text, f->bytes, m);
        text[m] = '\0';
        nodes_lose(n, "says: ", text, p->node);
    }
    pthread_mutex_lock(&n->lock);
    bool keep = good && (kind == FRAME_SHARE || kind == FRAME_VALUE || kind == FRAME_STEP);
    if (keep && p->n_waiting == MAX_FRAMES_WAITING) {
        good = keep = false; // no node runs that far ahead
    }
    if (keep) {
        f->next = NULL;
        *p->end = f;
        p->end = &f->next;
        p->n_waiting++;
    }
    p->said_bye = p->said_bye || (good && kind == FRAME_BYE);
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
    if (!keep) {
        free(f);
    }
    return good;
}

/* Reads what has come. False: the stream has ended or makes no sense. */
static bool read_peer(struct nodes *n, struct peer *p)
{
    for (;;) {
        size_t got = 0;
        enum status st;
        if (!p->partial) {
            st = wire_read_some(p->fd, (char *)&p->head + p->have, sizeof p->head - p->have, &got);
        } else {
            st = wire_read_some(p->fd, p->partial->bytes + p->have, p->partial_cap - p->have, &got);
        }
        if (st != OK) {
            return false;
        }
        if (got == 0) {
            return true;
        }
        p->seen_ns = clock_now_ns();
        p->have += got;
        if (!p->partial && p->have == sizeof p->head) {
            if (p->head.n_bytes > MAX_FRAME_BYTES) {
                return false;
            }
            // The body's memory grows with what arrives, not with what was promised.
            p->partial_cap = p->head.n_bytes < 1 << 16 ? p->head.n_bytes : 1 << 16;
            p->partial = xmalloc(sizeof *p->partial + p->partial_cap);
            p->partial->head = p->head;
            p->have = 0;
        }
        if (p->partial && p->have == p->partial_cap && p->have < p->head.n_bytes) {
            p->partial_cap = p->partial_cap < p->head.n_bytes / 2 ? p->partial_cap * 2
                                                                 : p->head.n_bytes;
            p->partial = xrealloc(p->partial, sizeof *p->partial + p->partial_cap);
        }
        if (p->partial && p->have == p->head.n_bytes && !take_frame(n, p)) {
            return false;
        }
    }
}

/* A node that goes before all have come may come again; later the set is lost. */
static void peer_gone(struct nodes *n, struct peer *p, const char *how)
{
    if (n->ending) {
        p->said_bye = true;
        return;
    }
    if (!n->complete) {
        log_warn("node %d %s before all nodes had come", p->node, how);
        pthread_mutex_lock(&n->lock);
        wire_close(&p->fd);
        free(p->partial);
        p->partial = NULL;
        p->have = 0;
        memset(p->n_sent, 0, sizeof p->n_sent);
        memset(p->n_received, 0, sizeof p->n_received);
        n->n_joined--;
        pthread_mutex_unlock(&n->lock);
        return;
    }
    nodes_lose(n, how, "", p->node);
}

void nodes_watch_peer(struct nodes *n, struct peer *p, bool readable)
{
    int64_t now = clock_now_ns();
    if (readable && !read_peer(n, p)) {
        if (!p->said_bye) {
            peer_gone(n, p, "has gone");
        }
        return;
    }
    if (now - p->seen_ns > NODE_SILENCE_S * 1000000000LL && !p->said_bye) {
        peer_gone(n, p, "is silent");
        return;
    }
    // A sender that holds the lock is saying more than a heartbeat does.
    if (now - p->beat_ns >= NODE_BEAT_MS * 1000000LL && pthread_mutex_trylock(&p->send_lock) == 0) {
        p->beat_ns = now;
        struct frame_head h = {FRAME_BEAT, 0, p->n_sent[FRAME_BEAT]++};
        enum status st = wire_send(p->fd, &h, sizeof h, now + 1000000000);
        pthread_mutex_unlock(&p->send_lock);
        if (st != OK && !p->said_bye) {
            peer_gone(n, p, "does not listen");
        }
    }
}
