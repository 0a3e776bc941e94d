// SPDX-License-Identifier: Apache-2.0
/* Sums and gathers between processes. Each process sends the rows of its ranks to node 0, which
 * combines them and sends back the result. Intended for tests and small sets of CPUs: the bits are
 * those of a single process, but the speed is that of the network. */
#include "cpu/cpu_comm.h"

#include "cpu/cpu.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { CALL_SUM = 1, CALL_GATHER };

struct call_head { // lets both ends check that they are in the same call
    uint64_t number;
    uint32_t kind, unused;
    uint64_t n_floats;
};

static int64_t deadline_ns(void)
{
    return clock_now_ns() + CPU_COMM_WAIT_S * 1000000000LL;
}

/* ---- the streams --------------------------------------------------------------------------- */

static const char accepted = 'y'; // node 0's answer to an introduction

/* Node 0's port, and the secret by which it recognises a node. */
struct meeting_point {
    uint64_t secret[2];
    int32_t port, unused;
};

struct introduction {
    uint64_t secret[2];
    int32_t node, unused;
};

enum { WATCH_MS = 200 }; // how often a waiting node checks for lost nodes

/* Returns OK if the caller should go on waiting. */
static enum status keep_waiting(const struct comm_place *place, int64_t end_ns, struct err *err)
{
    struct err why;
    if (place->is_lost && place->is_lost(place->share_arg, &why)) {
        return err_set(err, ERR_IO, "%s", why.text);
    }
    return clock_now_ns() < end_ns ? OK : ERR_TIMEOUT;
}

static int64_t moment_ns(void)
{
    return clock_now_ns() + WATCH_MS * 1000000LL;
}

/* Accepts a stream only if it presents the secret that node 0 has shared, and confirms this to the
 * sender. */
static enum status take_nodes(struct comm *c, const struct comm_place *place, int listener,
                              const struct meeting_point *p, struct err *err)
{
    int64_t end = deadline_ns();
    for (int32_t missing = c->n_nodes - 1; missing > 0;) {
        int fd;
        char from[64];
        struct introduction who;
        if (wire_accept(listener, moment_ns(), &fd, from, sizeof from) != OK) {
            enum status st = keep_waiting(place, end, err);
            if (st == ERR_TIMEOUT) {
                err_set(err, st, "%d nodes did not open their stream for sums", missing);
            }
            TRY(st);
            continue;
        }
        bool good = wire_recv(fd, &who, sizeof who, clock_now_ns() + 2000000000LL) == OK &&
                    memcmp(who.secret, p->secret, sizeof who.secret) == 0 && who.node > 0 &&
                    who.node < c->n_nodes && c->streams[who.node] < 0 &&
                    wire_send(fd, &accepted, 1, moment_ns()) == OK;
        if (!good) {
            log_warn("refused a connection from %s: it is not a rank of this model", from);
            wire_close(&fd);
            continue;
        }
        c->streams[who.node] = fd;
        missing--;
    }
    return OK;
}

/* Connects to node 0 and waits for its answer. Without the answer, this node would not notice that
 * node 0 has closed the stream. */
static enum status introduce(struct comm *c, const struct comm_place *place,
                             const struct meeting_point *p, struct err *err)
{
    int64_t end = deadline_ns();
    struct introduction me = {{p->secret[0], p->secret[1]}, c->node, 0};
    TRY(wire_connect(place->leader, p->port, end, &c->streams[0], err));
    enum status st = wire_send(c->streams[0], &me, sizeof me, end);
    char answer = 0;
    while (st == OK && answer == 0) {
        st = wire_recv(c->streams[0], &answer, 1, moment_ns());
        if (st == ERR_TIMEOUT) {
            st = keep_waiting(place, end, err);
        }
    }
    if (st != OK || answer != accepted) {
        return err_set(err, ERR_IO, "node 0 rejected this node's stream for sums");
    }
    return OK;
}

/* The other nodes learn node 0's port and secret through the caller's channel. */
enum status cpu_comm_connect(struct comm *c, const struct comm_place *place, struct err *err)
{
    struct meeting_point p = {.port = 0};
    int listener = -1;
    if (c->node == 0) {
        TRY(wire_listen(place->bind, 0, &listener, &p.port, err));
        if (getrandom(p.secret, sizeof p.secret, 0) != (ssize_t)sizeof p.secret) {
            p.secret[0] = (uint64_t)clock_now_ns();
        }
    }
    enum status st = place->share(&p, sizeof p, place->share_arg, err);
    if (st == OK && c->node == 0) {
        st = take_nodes(c, place, listener, &p, err);
    } else if (st == OK) {
        st = introduce(c, place, &p, err);
    }
    wire_close(&listener);
    return st;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Memory for a call. It grows to the size of the largest call. */
static float *room_for(struct comm *c, size_t n_floats)
{
    if (n_floats > c->room_floats) {
        c->room = xrealloc(c->room, n_floats * sizeof *c->room);
        c->room_floats = n_floats;
    }
    return c->room;
}

static bool send_floats(struct comm *c, int32_t stream, uint32_t kind, const float *v, size_t n)
{
    struct call_head h = {c->n_calls, kind, 0, n};
    return wire_send(c->streams[stream], &h, sizeof h, deadline_ns()) == OK &&
           wire_send(c->streams[stream], v, n * sizeof *v, deadline_ns()) == OK;
}

/* Calls are numbered, so that ranks that make different calls are noticed. */
static bool recv_floats(struct comm *c, int32_t stream, uint32_t kind, float *v, size_t n)
{
    struct call_head h;
    if (wire_recv(c->streams[stream], &h, sizeof h, deadline_ns()) != OK) {
        return false;
    }
    if (h.number != c->n_calls || h.kind != kind || h.n_floats != n) {
        log_error("ranks do not make the same calls");
        return false;
    }
    return wire_recv(c->streams[stream], v, n * sizeof *v, deadline_ns()) == OK;
}

/* Packs the rows of this process's ranks contiguously. */
static void pack(const struct comm *c, int64_t n_rows, int64_t width, float *out)
{
    for (int32_t r = c->first; r < c->first + c->n_local; r++) {
        for (int64_t row = 0; row < n_rows; row++, out += width) {
            memcpy(out, c->ranks[r].in + row * c->ranks[r].in_stride, (size_t)width * sizeof *out);
        }
    }
}

/* Copies `from` [n_rows, width] into every local rank's output at column `col`. */
static void spread(const struct comm *c, const float *from, int64_t n_rows, int64_t width,
                   int64_t col)
{
    for (int32_t r = c->first; r < c->first + c->n_local; r++) {
        for (int64_t row = 0; row < n_rows; row++) {
            memcpy(c->ranks[r].out + row * c->ranks[r].out_stride + col, from + row * width,
                   (size_t)width * sizeof *from);
        }
    }
}

/* On node 0: receives the rows of the other nodes' ranks into the buffer after node 0's own
 * rows. */
static bool collect(struct comm *c, uint32_t kind, int64_t n_rows, int64_t width, float *room)
{
    size_t each = (size_t)(n_rows * width), local = each * (size_t)c->n_local;
    for (int32_t node = 1; node < c->n_nodes; node++) {
        float *at = room + (size_t)node * local;
        if (!recv_floats(c, node, kind, at, local)) {
            return false;
        }
        for (int32_t i = 0; i < c->n_local; i++) {
            struct comm_part *p = &c->ranks[node * c->n_local + i];
            p->in = at + (size_t)i * each;
            p->in_stride = width;
        }
    }
    return true;
}

static bool answer(struct comm *c, uint32_t kind, const float *v, size_t n)
{
    for (int32_t node = 1; node < c->n_nodes; node++) {
        if (!send_floats(c, node, kind, v, n)) {
            return false;
        }
    }
    return true;
}

/* Node 0 computes the tree of sums over all ranks, so the order of additions does not depend on how
 * ranks are divided among nodes. */
bool cpu_comm_sum_nodes(struct comm *c, int64_t n_rows, int64_t width)
{
    size_t each = (size_t)(n_rows * width), local = each * (size_t)c->n_local;
    float *room = room_for(c, each * (size_t)c->n_ranks), *sums = room;
    bool ok = true;
    if (c->node > 0) {
        pack(c, n_rows, width, room);
        ok = send_floats(c, 0, CALL_SUM, room, local) && recv_floats(c, 0, CALL_SUM, sums, each);
    } else {
        // The part of the buffer for node 0's own rows is free for the sums.
        ok = collect(c, CALL_SUM, n_rows, width, room);
        for (int64_t row = 0; row < n_rows && ok; row++) {
            for (int64_t col = 0; col < width; col++) {
                sums[row * width + col] = cpu_comm_tree_sum(c, row, col);
            }
        }
        ok = ok && answer(c, CALL_SUM, sums, each);
    }
    c->n_calls++;
    if (ok) {
        spread(c, sums, n_rows, width, 0);
    }
    return ok;
}

/* Node 0 collects the parts in the order of the ranks and sends all of them to every node. */
bool cpu_comm_gather_nodes(struct comm *c, int64_t n_rows, int64_t width)
{
    size_t each = (size_t)(n_rows * width), local = each * (size_t)c->n_local;
    float *room = room_for(c, each * (size_t)c->n_ranks);
    bool ok = true;
    if (c->node > 0) {
        pack(c, n_rows, width, room);
        ok = send_floats(c, 0, CALL_GATHER, room, local) &&
             recv_floats(c, 0, CALL_GATHER, room, each * (size_t)c->n_ranks);
    } else {
        pack(c, n_rows, width, room);
        ok = collect(c, CALL_GATHER, n_rows, width, room) &&
             answer(c, CALL_GATHER, room, each * (size_t)c->n_ranks);
    }
    c->n_calls++;
    for (int32_t r = 0; r < c->n_ranks && ok; r++) {
        spread(c, room + (size_t)r * each, n_rows, width, r * width);
    }
    return ok;
}
