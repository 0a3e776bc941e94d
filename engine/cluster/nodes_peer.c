// SPDX-License-Identifier: Apache-2.0
/* One stream of the set: sends and receives frames, and detects silence and a closed stream. */
#include "engine/cluster/nodes_private.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/wire.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Keeps the first reason, since later ones are usually consequences of it. */
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

/* Each direction of each stream has its own key, so a frame is valid in no other place. */
static void make_key(const struct nodes *n, const struct stream_nonces *nonces, char from_zero,
                     struct hmac_sha256 *key)
{
    static const char what[] = "sluice frames";
    unsigned char made[SHA256_BYTES];
    hmac_sha256_key(key, n->token, strlen(n->token));
    hmac_sha256_add(key, what, sizeof what);
    hmac_sha256_add(key, &from_zero, 1);
    hmac_sha256_add(key, nonces, sizeof *nonces);
    hmac_sha256_end(key, made);
    hmac_sha256_key(key, made, sizeof made);
}

/* The proof of a frame, whose `head` is complete except for the proof. */
static void prove(const struct hmac_sha256 *key, uint64_t n_before, const struct frame_head *head,
                  const void *bytes, unsigned char proof[SHA256_BYTES])
{
    struct hmac_sha256 m = *key;
    hmac_sha256_add(&m, &n_before, sizeof n_before);
    hmac_sha256_add(&m, head, offsetof(struct frame_head, proof));
    hmac_sha256_add(&m, bytes, head->n_bytes);
    hmac_sha256_end(&m, proof);
}

/* Each direction has its own key, so a frame cannot be sent back to its sender. */
void nodes_set_peer(struct nodes *n, int32_t index, int32_t node, int fd,
                    const struct stream_nonces *nonces)
{
    struct peer *p = &n->peers[index];
    bool zero = n->place.node == 0;
    pthread_mutex_lock(&n->lock);
    make_key(n, nonces, zero, &p->sends);
    make_key(n, nonces, !zero, &p->receives);
    p->n_all_sent = p->n_all_received = 0;
    p->fd = fd;
    p->node = node;
    p->seen_ns = p->beat_ns = clock_now_ns();
    n->n_joined++;
    n->complete = n->place.node > 0 || n->n_joined == n->place.n_nodes - 1;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

/* Called with the send lock held. */
static enum status send_frame(struct peer *p, enum frame_kind kind, const void *bytes,
                              size_t n_bytes, int64_t deadline_ns)
{
    struct frame_head h = {(uint32_t)kind, (uint32_t)n_bytes, p->n_sent[kind]++, {0}};
    prove(&p->sends, p->n_all_sent++, &h, bytes, h.proof);
    enum status st = wire_send(p->fd, &h, sizeof h, deadline_ns);
    if (st == OK) {
        return wire_send(p->fd, bytes, n_bytes, deadline_ns);
    }
    return st;
}

/* The lock keeps frames of different threads from mixing in the stream. */
enum status nodes_send_frame(struct peer *p, enum frame_kind kind, const void *bytes,
                             size_t n_bytes, int64_t deadline_ns)
{
    if (n_bytes > MAX_FRAME_BYTES) {
        return ERR_LIMIT;
    }
    pthread_mutex_lock(&p->send_lock);
    enum status st = send_frame(p, kind, bytes, n_bytes, deadline_ns);
    pthread_mutex_unlock(&p->send_lock);
    return st;
}

/* ---- what arrives ------------------------------------------------------------------------- */

/* Dispatches a complete frame; false if it is invalid. */
static bool take_frame(struct nodes *n, struct peer *p)
{
    struct frame *f = p->partial;
    p->partial = NULL;
    p->have = 0;
    uint32_t kind = f->head.kind;
    unsigned char proof[SHA256_BYTES];
    prove(&p->receives, p->n_all_received++, &f->head, f->bytes, proof);
    bool known = sha256_equal(proof, f->head.proof);
    if (!known) {
        log_error("node %d: the sender of a frame does not know the token, or the frame was "
                  "changed on its way",
                  p->node);
    }
    bool good =
        known && kind >= FRAME_BEAT && kind <= FRAME_BYE && f->head.number == p->n_received[kind];
    if (good) {
        p->n_received[kind]++;
    }
    if (good && kind == FRAME_FAIL) {
        char text[400];
        size_t m = lesser(f->head.n_bytes, sizeof text - 1);
        memcpy(text, f->bytes, m);
        text[m] = '\0';
        nodes_lose(n, "says: ", text, p->node);
    }
    pthread_mutex_lock(&n->lock);
    bool keep = good && (kind == FRAME_SHARE || kind == FRAME_VALUE || kind == FRAME_STEP);
    if (keep && p->n_waiting == MAX_FRAMES_WAITING) {
        good = keep = false; // too far ahead for any node that works correctly
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

/* Reads what has arrived. False: the stream has ended or is invalid. */
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
            // The body's buffer grows with the bytes received, not with the announced size.
            p->partial_cap = lesser(p->head.n_bytes, 1 << 16);
            p->partial = xmalloc(sizeof *p->partial + p->partial_cap);
            p->partial->head = p->head;
            p->have = 0;
        }
        if (p->partial && p->have == p->partial_cap && p->have < p->head.n_bytes) {
            if (p->partial_cap < p->head.n_bytes / 2) {
                p->partial_cap = p->partial_cap * 2;
            } else {
                p->partial_cap = p->head.n_bytes;
            }
            p->partial = xrealloc(p->partial, sizeof *p->partial + p->partial_cap);
        }
        if (p->partial && p->have == p->head.n_bytes && !take_frame(n, p)) {
            return false;
        }
    }
}

/* A node that disconnects before all have joined may join again; after that the set is lost. */
static void peer_gone(struct nodes *n, struct peer *p, const char *how)
{
    if (n->ending) {
        p->said_bye = true;
        return;
    }
    if (!n->complete) {
        log_warn("node %d %s before all nodes had joined", p->node, how);
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

/* Checks a peer once: what has arrived, whether it is silent, and whether a heartbeat is due. */
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
    // If the lock is taken, a sender is active, which serves as a heartbeat.
    if (now - p->beat_ns >= NODE_BEAT_MS * 1000000LL && pthread_mutex_trylock(&p->send_lock) == 0) {
        p->beat_ns = now;
        enum status st = send_frame(p, FRAME_BEAT, NULL, 0, now + 1000000000);
        pthread_mutex_unlock(&p->send_lock);
        if (st != OK && !p->said_bye) {
            peer_gone(n, p, "accepts no data");
        }
    }
}
