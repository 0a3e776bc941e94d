// SPDX-License-Identifier: Apache-2.0
/* The inside of engine/cluster/nodes.h: the streams, and how a node is let in. Not for other files.
 * Thread: as said per field. */
#ifndef SLUICE_ENGINE_CLUSTER_NODES_PRIVATE_H
#define SLUICE_ENGINE_CLUSTER_NODES_PRIVATE_H

#include "engine/base/sha256.h"
#include "engine/cluster/nodes.h"

#include <pthread.h>
#include <stdatomic.h>

enum frame_kind {
    FRAME_BEAT = 1,
    FRAME_SHARE, // node 0's bytes
    FRAME_VALUE, // a node's int64 for `least`
    FRAME_STEP,
    FRAME_FAIL, // text: this node ends, and why
    FRAME_BYE,  // node 0 ends in order
};

enum {
    NODE_PROTOCOL = 2,         // changes with anything below, or with what a step looks like
    MAX_FRAME_BYTES = 1 << 30, // chosen: what one frame can make the other side take
    MAX_FRAMES_WAITING = 64,   // chosen: steps come two at a time; then nobody takes them
    NODE_TALK_S = 5,           // for a stranger to say who it is
    MAX_PENDING = 32,          // strangers at a time
};

struct frame_head {
    uint32_t kind, n_bytes;
    uint64_t number; // of the frames of this kind on this stream, from 0
    /* HMAC of all before, the body, and how many frames this direction had: under a key that comes
     * of the token and of what both sides drew for this stream. */
    unsigned char proof[SHA256_BYTES];
};

/* What both sides drew when they met. */
struct stream_nonces {
    uint64_t zero[2], other[2];
};

struct frame {
    struct frame *next;
    struct frame_head head;
    unsigned char bytes[];
};

/* What both sides say before a node is let in. Node 0 speaks first. */
struct greeting { // node 0
    char magic[8];
    uint32_t protocol, unused;
    uint64_t nonce[2];
};
struct hello { // the other node
    char magic[8];
    uint32_t protocol, node, n_nodes, identity_bytes; // the identity's text follows
    uint64_t nonce[2], proof[2];
};
struct welcome { // node 0; with `refused`, a text follows
    char magic[8];
    uint32_t refused, text_bytes;
    uint64_t proof[2];
};
enum { MAX_REFUSAL_BYTES = 512 };

struct peer {
    int fd; // -1: not there
    int32_t node;
    pthread_mutex_t send_lock;
    uint64_t n_sent[FRAME_BYE + 1], n_all_sent; // under send_lock
    struct hmac_sha256 sends, receives;         // keys, set when it joins
    int64_t seen_ns, beat_ns;                   // the watcher's

    /* The frame that is arriving: the watcher's. */
    struct frame_head head;
    size_t have; // bytes of head, then of the body
    struct frame *partial;
    size_t partial_cap;
    uint64_t n_received[FRAME_BYE + 1], n_all_received;

    /* Frames that wait to be read: under nodes.lock. */
    struct frame *first, **end;
    int32_t n_waiting;
    _Atomic bool said_bye; // or went when it was allowed to
};

/* A connection that has not proven itself. The watcher's. */
struct pending {
    int fd;
    int64_t deadline_ns;
    uint64_t nonce[2]; // that it must answer
    size_t have;
    char from[64];
    unsigned char bytes[sizeof(struct hello) + NODE_IDENTITY_BYTES];
};

struct nodes {
    struct node_place place;
    char *leader, *token, *identity;
    int listener; // -1 once all have come
    struct pending *pending[MAX_PENDING];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct peer peers[MAX_NODES];        // node 0: its index is the node; others: [0] is node 0
    int32_t n_joined;                    // peers, this node left out
    _Atomic bool complete, lost, ending; // set once, under lock
    bool stopping;
    struct err why;
    void (*on_lost)(void *arg);
    void *arg;
    bool told; // on_lost was called

    pthread_mutex_t call_lock; // held while on_lost runs
    pthread_t watcher;
    bool watcher_runs;
    struct frame *current; // what nodes_next_step has handed out
};

/* nodes_peer.c: the streams themselves. It knows neither how a node is let in nor who watches. */

/* The stream of a node that was let in is peer `index` from now on. */
void nodes_set_peer(struct nodes *n, int32_t index, int32_t node, int fd,
                    const struct stream_nonces *nonces);

/* Any thread, without the lock. The set is lost, and why; the first reason stays. node: whose fault
 * it is; -1: nobody's. */
void nodes_lose(struct nodes *n, const char *what, const char *text, int32_t node);

/* Any thread. ERR_LIMIT: more than a frame holds. */
enum status nodes_send_frame(struct peer *p, enum frame_kind kind, const void *bytes,
                             size_t n_bytes, int64_t deadline_ns);

/* The watcher, again and again: takes what has come, notices silence, and sends heartbeats. */
void nodes_watch_peer(struct nodes *n, struct peer *p, bool readable);

/* nodes_join.c: on top of the streams. */

/* Node 0, watcher thread: takes connections, reads what strangers say, lets nodes in. */
void nodes_admit(struct nodes *n);
void nodes_drop_pending(struct nodes *n);
/* Another node: connects, and is let in. */
enum status nodes_join(struct nodes *n, struct err *err);

#endif
