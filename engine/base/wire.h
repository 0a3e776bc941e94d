// SPDX-License-Identifier: Apache-2.0
/* TCP between the processes of one server, for everything that is not HTTP: byte streams on which
 * every wait has a deadline (on the monotonic clock). The caller defines what the bytes mean. A
 * stream that has failed stays failed; close it.
 * Thread: any for each call; one sender and one receiver per stream at a time. wire_break any. */
#ifndef SLUICE_BASE_WIRE_H
#define SLUICE_BASE_WIRE_H

#include "engine/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Listens on `host` only (an address or name of this machine), or with NULL on all interfaces; port
 * 0 picks a free port. The caller closes *out. */
enum status wire_listen(const char *host, int32_t port, int *out, int32_t *bound_port,
                        struct err *err);

/* The next connection, or ERR_TIMEOUT. `from` (may be NULL) gets the peer's address as text. */
enum status wire_accept(int listener, int64_t deadline_ns, int *fd, char *from, size_t from_bytes);

/* One attempt: ERR_IO if nobody answers there (which may change), ERR_INVALID for a bad name. */
enum status wire_connect(const char *host, int32_t port, int64_t deadline_ns, int *fd,
                         struct err *err);

/* Sends all n bytes, or returns ERR_TIMEOUT, or ERR_IO if the peer is gone. */
enum status wire_send(int fd, const void *bytes, size_t n_bytes, int64_t deadline_ns);
enum status wire_recv(int fd, void *bytes, size_t n_bytes, int64_t deadline_ns);

/* Reads what has arrived, at most n bytes; *got may be 0. ERR_IO if the peer is gone. */
enum status wire_read_some(int fd, void *bytes, size_t n_bytes, size_t *got);

/* Ends our direction and waits for the peer to close. Closing at once could lose what the peer has
 * not read yet. */
void wire_finish(int fd, int64_t deadline_ns);

/* Ends both directions, so that a wait in another thread returns ERR_IO. */
void wire_break(int fd);
void wire_close(int *fd); // also sets *fd to -1; accepts -1

#endif
