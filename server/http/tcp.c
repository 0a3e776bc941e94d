// SPDX-License-Identifier: Apache-2.0
/* This is a separate file because <linux/tcp.h>, which has the byte counter, cannot be included
 * together with libc's <netinet/tcp.h>. */
#include "server/http/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

static bool get_info(int fd, struct tcp_info *info)
{
    socklen_t n = sizeof *info;
    memset(info, 0, sizeof *info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &n) == 0;
}

bool http_tcp_has_received(int fd)
{
    struct tcp_info info;
    return get_info(fd, &info) && info.tcpi_bytes_received > 0;
}

int64_t http_tcp_acked_bytes(int fd)
{
    struct tcp_info info;
    if (get_info(fd, &info)) {
        return (int64_t)info.tcpi_bytes_acked;
    }
    return -1;
}
