// SPDX-License-Identifier: Apache-2.0
/* TCP between the processes of one set: the room of sockets for everything that is not HTTP. Plain
 * byte streams whose every wait has a deadline; what the bytes mean is the caller's.
 * Deadlines are on the monotonic clock. A stream that failed stays failed: close it.
 * Thread: each call any; one sender and one receiver of a stream at a time. wire_break any. */
#ifndef SLUICE_BASE_WIRE_H
#define SLUICE_BASE_WIRE_H

#include "engine/base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Listens on `host` alone, an address or name of this machine, or with NULL on all that it has;
 * port 0 takes a free one. *fd is the caller's to close. */
enum status wire_listen(const char *host, int32_t port, int *fd, int32_t *bound_port,
                        struct err *err);

/* The next connection, or ERR_TIMEOUT. `from` (may be NULL) gets the peer's address as text. */
enum status wire_accept(int listener, int64_t deadline_ns, int *fd, char *from, size_t from_bytes);

/* One try: ERR_IO when nobody answers there (which may change), ERR_INVALID for a bad name. */
enum status wire_connect(const char *host, int32_t port, int64_t deadline_ns, int *fd,
                         struct err *err);

/* All n bytes, or ERR_TIMEOUT, or ERR_IO when the other side has gone. */
enum status wire_send(int fd, const void *bytes, size_t n_bytes, int64_t deadline_ns);
enum status wire_recv(int fd, void *bytes, size_t n_bytes, int64_t deadline_ns);

/* What has arrived, at most n bytes: *got may be 0. ERR_IO when the other side has gone. */
enum status wire_read_some(int fd, void *bytes, size_t n_bytes, size_t *got);

/* Ends our direction and waits for the other side to close: closed at once, what it has not yet
 * read could be lost. */
void wire_finish(int fd, int64_t deadline_ns);

/* Ends both directions, so that a wait in another thread returns ERR_IO. */
void wire_break(int fd);
void wire_close(int *fd); // and sets it to -1; accepts -1

#endif
