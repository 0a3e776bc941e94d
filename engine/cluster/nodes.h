// SPDX-License-Identifier: Apache-2.0
/* The set of processes ("nodes") that serve one model together: node 0 plans and serves, every
 * other one executes the steps it is sent. One TCP stream leads from each node to node 0. It
 * carries the admission (who may join, and that both mean the same model), small common values,
 * numbered steps, and heartbeats both ways. Tensors travel elsewhere: that is the backend's
 * business.
 *
 * A node that goes, is silent for NODE_SILENCE_S, or says that it failed ends the whole set: the
 * state "lost" is sticky, every wait returns, and `on_lost` is called once. Nothing is mended: a
 * supervisor starts the set again.
 *
 * A stranger is refused: both sides prove that they know the token (SipHash over the other's random
 * bytes), and neither reads more than a fixed number of bytes before that. Every frame after it
 * bears a proof of its own (HMAC-SHA256), so that nothing can be put into the stream or changed in
 * it; but it is not encrypted, and what the backends send beside it bears none: both belong on a
 * private network.
 * Thread: nodes_open and the collective calls (share, least) from one thread; the rest as said. */
#ifndef SLUICE_ENGINE_CLUSTER_NODES_H
#define SLUICE_ENGINE_CLUSTER_NODES_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_NODES = 16,      // chosen; MAX_RANKS is as much
    NODE_BEAT_MS = 1000, // between heartbeats
    NODE_SILENCE_S = 8,  // without any and the node is lost; chosen: a busy host may miss a few
};

struct node_place {
    int32_t n_nodes, node;
    const char *leader; // address of node 0
    const char *bind;   // the one address on which node 0 listens; NULL: all that it has
    int32_t port;
    const char *token; // may be empty: then only the protocol keeps strangers out
    int32_t join_timeout_s;
};

struct nodes;

/* Node 0 waits for all others, another node until it was let in; both at most join_timeout_s.
 * `identity`: lines that must be the same on every node, at most NODE_IDENTITY_BYTES. A node that
 * differs is refused, and told in which line; node 0 goes on waiting. */
enum { NODE_IDENTITY_BYTES = 16384 };
enum status nodes_open(const struct node_place *place, const char *identity, struct nodes **out,
                       struct err *err);

/* Node 0, before it takes its devices down: the others end in order, too, and may go from now on.
 * Nothing when the set is lost. */
void nodes_goodbye(struct nodes *n);
void nodes_close(struct nodes *n); // node 0 says goodbye if it has not; accepts NULL

int32_t nodes_count(const struct nodes *n);
int32_t nodes_rank(const struct nodes *n);
const char *nodes_leader(const struct nodes *n);

/* Collective: every node makes the same calls in the same order. share: node 0's bytes go to all;
 * least: *value becomes the least of all nodes' values. */
enum status nodes_share(struct nodes *n, void *bytes, size_t n_bytes, struct err *err);
enum status nodes_least(struct nodes *n, int64_t *value, struct err *err);

/* Node 0's engine thread: hands a step to every other node. */
enum status nodes_send_step(struct nodes *n, const void *bytes, size_t n_bytes);

/* The others' engine thread: waits for the next step; *bytes is valid until the next call, and NULL
 * if none came within a second. ERR_CANCELLED: node 0 said goodbye. ERR_IO: the set is lost.
 * ERR_FORMAT: a number is missing. */
enum status nodes_next_step(struct nodes *n, const void **bytes, size_t *n_bytes);

/* Any thread. Tells the others why this node ends, and ends the set here. */
void nodes_fail(struct nodes *n, const char *why);

/* Any thread. How many nodes are there, this one included; when the set is lost, why. */
bool nodes_lost(struct nodes *n, struct err *why);
int32_t nodes_alive(struct nodes *n);

/* `on_lost` is called once, on a thread of nodes' own, also when the set is lost already. NULL:
 * stop calling; when that returns, no call is under way. */
void nodes_watch(struct nodes *n, void (*on_lost)(void *arg), void *arg);

#endif
