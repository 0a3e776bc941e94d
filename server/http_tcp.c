/* Apart from the others because the kernel's header and libc's cannot be included together, and
 * only the kernel's has the count of bytes. */
#include "server/http_tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

bool http_tcp_has_received(int fd)
{
    struct tcp_info info;
    socklen_t n = sizeof info;
    memset(&info, 0, sizeof info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 && info.tcpi_bytes_received > 0;
}
