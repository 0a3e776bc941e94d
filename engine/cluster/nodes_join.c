// SPDX-License-Identifier: Apache-2.0
/* Admission of nodes. Node 0 sends a greeting with random bytes. The node answers with its number,
 * its identity, random bytes of its own and a proof over all of that. Node 0 answers with a proof
 * over the node's random bytes, or with the reason for rejecting it. */
#include "engine/cluster/nodes_private.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

static const char magic[8] = {'s', 'l', 'u', 'i', 'c', 'e', 'n', '\n'};

/* ---- proofs ------------------------------------------------------------------------------- */

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012). */
static uint64_t siphash(const void *bytes, size_t n_bytes, const uint64_t key[2])
{
    const unsigned char *p = bytes;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL,
                     key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL};
    size_t left = n_bytes;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m = 0;
        for (int i = 7; i >= 0; i--) {
            m = m << 8 | p[i];
        }
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    uint64_t last = (uint64_t)n_bytes << 56;
    for (size_t i = 0; i < left; i++) {
        last |= (uint64_t)p[i] << (8 * i);
    }
    v[3] ^= last;
    sip_round(v);
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) {
        sip_round(v);
    }
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* A proof that only holders of the token can compute: 128 bits over `bytes`. */
static void prove(const struct nodes *n, const void *bytes, size_t n_bytes, uint64_t proof[2])
{
    static const uint64_t first[2] = {0x1f3a, 0x77c1}, second[2] = {0x90b2, 0x2e5d};
    size_t token_bytes = strlen(n->token);
    const uint64_t key[2] = {siphash(n->token, token_bytes, first),
                             siphash(n->token, token_bytes, second)};
    const uint64_t other[2] = {~key[1], key[0]};
    proof[0] = siphash(bytes, n_bytes, key);
    proof[1] = siphash(bytes, n_bytes, other);
}

static void draw_nonce(uint64_t nonce[2])
{
    if (getrandom(nonce, 2 * sizeof *nonce, 0) != (ssize_t)(2 * sizeof *nonce)) {
        struct timespec t; // fallback for kernels without getrandom: at least different each time
        clock_gettime(CLOCK_MONOTONIC, &t);
        nonce[0] = (uint64_t)t.tv_sec;
        nonce[1] = (uint64_t)t.tv_nsec;
    }
}

/* The proof of a hello covers node 0's nonce, the hello itself, and the identity. */
static void prove_hello(const struct nodes *n, const uint64_t nonce[2], const struct hello *h,
                        const char *identity, uint64_t proof[2])
{
    unsigned char text[2 * sizeof *nonce + sizeof *h + 8];
    struct hello bare = *h;
    bare.proof[0] = bare.proof[1] = 0;
    const uint64_t zero[2] = {0, 0};
    uint64_t digest = siphash(identity, h->identity_bytes, zero);
    memcpy(text, nonce, 2 * sizeof *nonce);
    memcpy(text + 2 * sizeof *nonce, &bare, sizeof bare);
    memcpy(text + 2 * sizeof *nonce + sizeof bare, &digest, sizeof digest);
    prove(n, text, sizeof text, proof);
}

static void prove_welcome(const struct nodes *n, const struct hello *h, uint32_t refused,
                          uint64_t proof[2])
{
    const uint64_t text[5] = {h->nonce[0], h->nonce[1], h->proof[0], h->proof[1], refused};
    prove(n, text, sizeof text, proof);
}

/* ---- node 0 ------------------------------------------------------------------------------- */

static void drop(struct nodes *n, int32_t i)
{
    wire_close(&n->pending[i]->fd);
    free(n->pending[i]);
    n->pending[i] = NULL;
}

void nodes_drop_pending(struct nodes *n)
{
    for (int32_t i = 0; i < MAX_PENDING; i++) {
        if (n->pending[i]) {
            drop(n, i);
        }
    }
}

/* Describes the first line in which two identities differ. */
static void say_difference(const char *theirs, const char *ours, int32_t node, char *out,
                           size_t n_bytes)
{
    while (*theirs && *ours) {
        size_t a = strcspn(theirs, "\n"), b = strcspn(ours, "\n");
        if (a != b || memcmp(theirs, ours, a) != 0) {
            snprintf(out, n_bytes, "node %d has '%.*s', node 0 has '%.*s'", node,
                     (int)lesser(a, 160), theirs, (int)lesser(b, 160), ours);
            return;
        }
        theirs += a + (theirs[a] == '\n');
        ours += b + (ours[b] == '\n');
    }
    snprintf(out, n_bytes, "node %d and node 0 do not have the same options", node);
}

/* Decides whether to admit the sender of a hello; an empty refusal admits it. */
static void check_hello(struct nodes *n, const struct hello *h, const char *identity, char *refusal,
                        size_t n_bytes)
{
    refusal[0] = '\0';
    if (h->n_nodes != (uint32_t)n->place.n_nodes) {
        snprintf(refusal, n_bytes, "node %u was started for %u nodes, node 0 for %d", h->node,
                 h->n_nodes, n->place.n_nodes);
    } else if (h->node == 0 || h->node >= h->n_nodes) {
        snprintf(refusal, n_bytes, "node %u of %u is not a valid number", h->node, h->n_nodes);
    } else if (n->peers[h->node].fd >= 0) {
        snprintf(refusal, n_bytes, "node %u has already joined", h->node);
    } else if (strcmp(identity, n->identity) != 0) {
        say_difference(identity, n->identity, (int32_t)h->node, refusal, n_bytes);
    }
}

/* The hello is complete: admits or rejects the node. */
static void answer(struct nodes *n, struct pending *p)
{
    struct hello h;
    memcpy(&h, p->bytes, sizeof h);
    char *identity = xstrndup((const char *)p->bytes + sizeof h, h.identity_bytes);
    uint64_t proof[2];
    prove_hello(n, p->nonce, &h, (const char *)p->bytes + sizeof h, proof);
    if (memcmp(proof, h.proof, sizeof proof) != 0) {
        log_warn("refused %s as a node: it does not know the token", p->from);
        free(identity);
        return;
    }
    char text[MAX_REFUSAL_BYTES];
    check_hello(n, &h, identity, text, sizeof text);
    struct welcome w = {.refused = text[0] != '\0', .text_bytes = (uint32_t)strlen(text)};
    memcpy(w.magic, magic, sizeof magic);
    prove_welcome(n, &h, w.refused, w.proof);
    int64_t deadline = clock_now_ns() + 1000000000;
    enum status st = wire_send(p->fd, &w, sizeof w, deadline);
    if (st == OK) {
        st = wire_send(p->fd, text, w.text_bytes, deadline);
    }
    if (w.refused) {
        log_error("refused %s: %s", p->from, text);
    } else if (st == OK) {
        log_info("node %u of %d has joined from %s", h.node, n->place.n_nodes, p->from);
        struct stream_nonces nonces = {{p->nonce[0], p->nonce[1]}, {h.nonce[0], h.nonce[1]}};
        nodes_set_peer(n, (int32_t)h.node, (int32_t)h.node, p->fd, &nonces);
        p->fd = -1;
    }
    free(identity);
}

/* Returns false once the connection has been admitted or rejected. */
static bool listen_to(struct nodes *n, struct pending *p, int64_t now_ns)
{
    size_t want = sizeof(struct hello), got = 0;
    for (;;) {
        struct hello h = {.identity_bytes = 0};
        if (p->have >= sizeof h) {
            memcpy(&h, p->bytes, sizeof h);
            if (h.identity_bytes > NODE_IDENTITY_BYTES) {
                return false;
            }
            want = sizeof h + h.identity_bytes;
        }
        size_t known = lesser(p->have, sizeof magic);
        if (memcmp(p->bytes, magic, known) != 0) {
            log_warn("refused a connection from %s: it is not a sluice node", p->from);
            return false;
        }
        if (p->have >= sizeof h && h.protocol != NODE_PROTOCOL) {
            log_error("refused %s: it runs another version of sluice", p->from);
            return false;
        }
        if (p->have == want) {
            answer(n, p);
            return false;
        }
        if (wire_read_some(p->fd, p->bytes + p->have, want - p->have, &got) != OK) {
            return false;
        }
        if (got == 0) {
            return now_ns < p->deadline_ns;
        }
        p->have += got;
    }
}

/* A slot for a new connection: a free one, or that of the connection silent for longest. */
static int32_t make_room(struct nodes *n)
{
    int32_t oldest = 0;
    for (int32_t i = 0; i < MAX_PENDING; i++) {
        if (!n->pending[i]) {
            return i;
        }
        if (n->pending[i]->deadline_ns < n->pending[oldest]->deadline_ns) {
            oldest = i;
        }
    }
    drop(n, oldest);
    return oldest;
}

/* Never waits. Accepts at most MAX_PENDING new connections per call; a new one may replace the
 * pending one that has been silent for longest. */
void nodes_admit(struct nodes *n)
{
    int fd;
    char from[64];
    int64_t now = clock_now_ns();
    for (int32_t i = 0;
         i < MAX_PENDING && wire_accept(n->listener, 0, &fd, from, sizeof from) == OK; i++) {
        struct pending *p = xcalloc(1, sizeof *p);
        *p = (struct pending){.fd = fd, .deadline_ns = now + NODE_TALK_S * 1000000000LL};
        snprintf(p->from, sizeof p->from, "%s", from);
        draw_nonce(p->nonce);
        n->pending[make_room(n)] = p;
        struct greeting g = {.protocol = NODE_PROTOCOL, .nonce = {p->nonce[0], p->nonce[1]}};
        memcpy(g.magic, magic, sizeof magic);
        if (wire_send(fd, &g, sizeof g, now) != OK) {
            p->deadline_ns = now;
        }
    }
    for (int32_t i = 0; i < MAX_PENDING; i++) {
        if (n->pending[i] && !listen_to(n, n->pending[i], now)) {
            drop(n, i);
        }
    }
}

/* ---- another node ------------------------------------------------------------------------- */

/* The joining node's half of the handshake. Both sides prove that they know the token; neither
 * sends it. */
static enum status handshake(struct nodes *n, int fd, struct stream_nonces *nonces, struct err *err)
{
    int64_t deadline = clock_now_ns() + NODE_TALK_S * 1000000000LL;
    struct greeting g;
    TRY(wire_recv(fd, &g, sizeof g, deadline));
    if (memcmp(g.magic, magic, sizeof magic) != 0 || g.protocol != NODE_PROTOCOL) {
        return err_set(err, ERR_INVALID,
                       "the process at %s port %d is not node 0 of this version of sluice",
                       n->leader, n->place.port);
    }
    struct hello h = {.protocol = NODE_PROTOCOL,
                      .node = (uint32_t)n->place.node,
                      .n_nodes = (uint32_t)n->place.n_nodes,
                      .identity_bytes = (uint32_t)strlen(n->identity)};
    memcpy(h.magic, magic, sizeof magic);
    draw_nonce(h.nonce);
    prove_hello(n, g.nonce, &h, n->identity, h.proof);
    *nonces = (struct stream_nonces){{g.nonce[0], g.nonce[1]}, {h.nonce[0], h.nonce[1]}};
    TRY(wire_send(fd, &h, sizeof h, deadline));
    TRY(wire_send(fd, n->identity, h.identity_bytes, deadline));
    struct welcome w;
    if (wire_recv(fd, &w, sizeof w, deadline) != OK) {
        // Node 0 answers every node that knows the token, but a node also gets no answer if node 0
        // shuts down while it connects.
        return err_set(err, ERR_IO, "node 0 did not let this node in: is the token the same?");
    }
    uint64_t proof[2];
    prove_welcome(n, &h, w.refused, proof);
    if (memcmp(w.magic, magic, sizeof magic) != 0 || memcmp(w.proof, proof, sizeof proof) != 0) {
        return err_set(err, ERR_INVALID, "the process at %s port %d does not know the token",
                       n->leader, n->place.port);
    }
    char text[MAX_REFUSAL_BYTES + 1] = "";
    if (w.text_bytes > MAX_REFUSAL_BYTES || wire_recv(fd, text, w.text_bytes, deadline) != OK) {
        return ERR_IO;
    }
    if (w.refused) {
        return err_set(err, ERR_INVALID, "node 0 refuses this node: %s", text);
    }
    return OK;
}

/* Node 0 may start later, so connecting is repeated until the deadline; a rejection is
 * final. */
enum status nodes_join(struct nodes *n, struct err *err)
{
    int64_t end = clock_now_ns() + n->place.join_timeout_s * 1000000000LL;
    for (;;) {
        int fd;
        int64_t now = clock_now_ns(), deadline = now + NODE_TALK_S * 1000000000LL;
        enum status st = wire_connect(n->leader, n->place.port, lesser(deadline, end), &fd, err);
        if (st == OK) {
            struct stream_nonces nonces;
            st = handshake(n, fd, &nonces, err);
            if (st == OK) {
                nodes_set_peer(n, 0, 0, fd, &nonces);
                return OK;
            }
            wire_close(&fd);
        }
        if (st != ERR_IO && st != ERR_TIMEOUT) {
            return st;
        }
        if (clock_now_ns() + 200000000 > end) {
            struct err last = *err;
            return err_set(err, ERR_TIMEOUT, "node 0 did not answer within %d s: %s",
                           n->place.join_timeout_s, last.text);
        }
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
}
