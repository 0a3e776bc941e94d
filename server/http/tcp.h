// SPDX-License-Identifier: Apache-2.0
/* Information from the kernel about a TCP connection. Thread: any. */
#ifndef SLUICE_SERVER_HTTP_TCP_H
#define SLUICE_SERVER_HTTP_TCP_H

#include <stdbool.h>
#include <stdint.h>

/* True if the peer has sent anything, read or not. False for other sockets. */
bool http_tcp_has_received(int fd);

/* Bytes that the peer has acknowledged since the connection began; -1 for other sockets. */
int64_t http_tcp_acked_bytes(int fd);

#endif
