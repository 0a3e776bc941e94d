// SPDX-License-Identifier: Apache-2.0
/* What the kernel knows of a TCP connection.
 * Thread: any. */
#ifndef SLUICE_SERVER_HTTP_TCP_H
#define SLUICE_SERVER_HTTP_TCP_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the peer has sent anything at all, read by now or not. False for other sockets. */
bool http_tcp_has_received(int fd);

/* Bytes that have reached the peer since the connection began; -1 for other sockets. */
int64_t http_tcp_acked_bytes(int fd);

#endif
