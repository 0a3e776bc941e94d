// SPDX-License-Identifier: Apache-2.0
/* The set of processes ("nodes") that serve one model together. Node 0 plans and serves; every
 * other node executes the steps it is sent. One TCP stream connects each node to node 0. It
 * carries the admission of nodes (which also verifies that both sides run the same model), small
 * shared values, numbered steps, and heartbeats in both directions. Tensors take other paths,
 * which the backend owns.
 *
 * A node that disconnects, is silent for NODE_SILENCE_S, or reports a failure ends the whole
 * set: the state "lost" is sticky, every wait returns, and `on_lost` is called once. Nothing is
 * repaired; a supervisor restarts the set.
 *
 * Unknown peers are rejected: both sides prove that they know the token (SipHash over the
 * other's random bytes), and neither reads more than a fixed number of bytes before that. Every
 * later frame carries a proof of its own (HMAC-SHA256), so that nobody can insert or change
 * frames. The stream is not encrypted, and the backends' tensor traffic is not authenticated:
 * run both on a private network.
 * Thread: nodes_open and the collective calls (share, least) from one thread; the rest as
 * stated. */
#ifndef SLUICE_ENGINE_CLUSTER_NODES_H
#define SLUICE_ENGINE_CLUSTER_NODES_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_NODES = 16,      // chosen; equal to MAX_RANKS
    NODE_BEAT_MS = 1000, // between heartbeats
    NODE_SILENCE_S = 8,  // silence after which a node is lost; chosen: a busy host may miss a few
                         // heartbeats
};

struct node_place {
    int32_t n_nodes, node;
    const char *leader; // address of node 0
    const char *bind;   // the one address on which node 0 listens; NULL: all interfaces
    int32_t port;
    const char *token; // may be empty; then only the protocol itself rejects unknown peers
    int32_t join_timeout_s;
};

struct nodes;

/* Node 0 waits until all others have joined; any other node waits until it is admitted. Both wait
 * for at most join_timeout_s. `identity`: lines that must be the same on every node, at most
 * NODE_IDENTITY_BYTES. A node whose identity differs is rejected with a message that quotes the
 * differing line; node 0 keeps waiting. */
enum { NODE_IDENTITY_BYTES = 16384 };
enum status nodes_open(const struct node_place *place, const char *identity, struct nodes **out,
                       struct err *err);

/* Node 0, before it closes its devices: the other nodes shut down cleanly, and may disconnect from
 * now on. Does nothing if the set is lost. */
void nodes_goodbye(struct nodes *n);
void nodes_close(struct nodes *n); // node 0 says goodbye first if it has not; accepts NULL

int32_t nodes_count(const struct nodes *n);
int32_t nodes_rank(const struct nodes *n);
const char *nodes_leader(const struct nodes *n);
const char *nodes_bind(const struct nodes *n); // NULL: all interfaces

/* Collective: every node makes the same calls in the same order. share: all nodes get node 0's
 * bytes. least: *value becomes the minimum over all nodes. */
enum status nodes_share(struct nodes *n, void *bytes, size_t n_bytes, struct err *err);
enum status nodes_least(struct nodes *n, int64_t *value, struct err *err);

/* Node 0's engine thread: sends a step to every other node. */
enum status nodes_send_step(struct nodes *n, const void *bytes, size_t n_bytes);

/* The other nodes' engine threads: wait for the next step. *bytes is valid until the next call; it
 * is NULL if no step came within a second. ERR_CANCELLED: node 0 said goodbye. ERR_IO: the set is
 * lost. ERR_FORMAT: a step is missing. */
enum status nodes_next_step(struct nodes *n, const void **bytes, size_t *n_bytes);

/* Any thread. Tells the other nodes why this node ends, and ends the set here. */
void nodes_fail(struct nodes *n, const char *why);

/* Any thread. nodes_lost: true if the set is lost, with the reason. nodes_alive: the number of
 * nodes, including this one. */
bool nodes_lost(struct nodes *n, struct err *why);
int32_t nodes_alive(struct nodes *n);

/* `on_lost` is called once, on a thread of this module, even if the set is already lost. NULL
 * removes the callback: when nodes_watch returns, no call is in progress. */
void nodes_watch(struct nodes *n, void (*on_lost)(void *arg), void *arg);

#endif
