// SPDX-License-Identifier: Apache-2.0
/* Internals of engine/cluster/nodes.h: the streams, and admission. Not for other files.
 * Thread: as stated per field. */
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
    FRAME_FAIL, // text: why this node ends
    FRAME_BYE,  // node 0 shuts down cleanly
};

enum {
    NODE_PROTOCOL = 3, // incremented when anything below, the step format or a stream changes
    // Chosen: limit of the memory that a frame can make its receiver allocate.
    MAX_FRAME_BYTES = 1 << 30,
    // Chosen: steps come two at a time, so more waiting frames mean that nobody reads them.
    MAX_FRAMES_WAITING = 64,
    NODE_TALK_S = 5,  // time for an unauthenticated peer to identify itself
    MAX_PENDING = 32, // unauthenticated connections at a time
};

struct frame_head {
    uint32_t kind, n_bytes;
    uint64_t number; // index among the frames of this kind in this direction of the stream, from 0
    /* HMAC over the fields above, the body, and the number of earlier frames in this direction. The
     * key is derived from the token and both sides' random bytes. */
    unsigned char proof[SHA256_BYTES];
};

/* The random bytes that both sides drew for this stream. */
struct stream_nonces {
    uint64_t zero[2], other[2];
};

struct frame {
    struct frame *next;
    struct frame_head head;
    unsigned char bytes[];
};

/* The handshake before a node is admitted. Node 0 speaks first. */
struct greeting { // from node 0
    char magic[8];
    uint32_t protocol, unused;
    uint64_t nonce[2];
};
struct hello { // from the other node
    char magic[8];
    uint32_t protocol, node, n_nodes, identity_bytes; // the identity's text follows
    uint64_t nonce[2], proof[2];
};
struct welcome { // from node 0; with `refused`, a text follows
    char magic[8];
    uint32_t refused, text_bytes;
    uint64_t proof[2];
};
enum { MAX_REFUSAL_BYTES = 512 };

struct peer {
    int fd; // -1: not connected
    int32_t node;
    pthread_mutex_t send_lock;
    uint64_t n_sent[FRAME_BYE + 1], n_all_sent; // protected by send_lock
    struct hmac_sha256 sends, receives;         // keys, set at admission
    int64_t seen_ns, beat_ns;                   // used by the watcher only

    /* The frame being received; used by the watcher only. */
    struct frame_head head;
    size_t have; // bytes received of head, then of the body
    struct frame *partial;
    size_t partial_cap;
    uint64_t n_received[FRAME_BYE + 1], n_all_received;

    /* Frames waiting to be read; protected by nodes.lock. */
    struct frame *first, **end;
    int32_t n_waiting;
    _Atomic bool said_bye; // it said goodbye, or disconnected when it was allowed to
};

/* A connection that has not authenticated yet; used by the watcher only. */
struct pending {
    int fd;
    int64_t deadline_ns;
    uint64_t nonce[2]; // the challenge it must answer
    size_t have;
    char from[64];
    unsigned char bytes[sizeof(struct hello) + NODE_IDENTITY_BYTES];
};

struct nodes {
    struct node_place place;
    char *leader, *bind, *token, *identity;
    int listener; // -1 once all have joined
    struct pending *pending[MAX_PENDING];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct peer peers[MAX_NODES];        // node 0: indexed by node; others: [0] is node 0
    int32_t n_joined;                    // peers, without this node
    _Atomic bool complete, lost, ending; // set once, under lock
    bool stopping;
    struct err why;
    void (*on_lost)(void *arg);
    void *arg;
    bool on_lost_called;

    pthread_mutex_t call_lock; // held while on_lost runs
    pthread_t watcher;
    bool watcher_runs;
    struct frame *current; // the frame that nodes_next_step returned
};

/* nodes_peer.c: the streams themselves. They depend neither on admission nor on the watcher. */

/* From now on, `fd` is the stream of peer `index`, an admitted node. */
void nodes_set_peer(struct nodes *n, int32_t index, int32_t node, int fd,
                    const struct stream_nonces *nonces);

/* Any thread, without the lock. Marks the set as lost; the first reason given is kept. node: the
 * node at fault; -1: none. */
void nodes_lose(struct nodes *n, const char *what, const char *text, int32_t node);

/* Any thread. ERR_LIMIT: the bytes do not fit into a frame. */
enum status nodes_send_frame(struct peer *p, enum frame_kind kind, const void *bytes,
                             size_t n_bytes, int64_t deadline_ns);

/* Called repeatedly by the watcher: receives frames, detects silence, and sends heartbeats. */
void nodes_watch_peer(struct nodes *n, struct peer *p, bool readable);

/* nodes_join.c: builds on the streams. */

/* Node 0, watcher thread: accepts connections, reads their hellos, admits nodes. */
void nodes_admit(struct nodes *n);
void nodes_drop_pending(struct nodes *n);
/* Another node: connects, and waits to be admitted. */
enum status nodes_join(struct nodes *n, struct err *err);

#endif
