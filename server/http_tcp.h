/* What the kernel knows of a TCP connection.
 * Thread: any. */
#ifndef SLUICE_SERVER_HTTP_TCP_H
#define SLUICE_SERVER_HTTP_TCP_H

#include <stdbool.h>

/* Whether the peer has sent anything at all, read by now or not. False for other sockets. */
bool http_tcp_has_received(int fd);

#endif
