// SPDX-License-Identifier: Apache-2.0
/* Writing without and with a limit on each wait. */
#include "engine/base/write.h"
#include "engine/base/minmax.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum {
    RETRY_MS = 200,
    LAST_PATIENCE_MS = 500,
    SAFE_WRITE_BYTES = 4096, // PIPE_BUF: a pipe that poll reports writable accepts this much at
                             // once
};

/* Returns what could not be written. */
size_t write_all(int fd, const char *text, size_t n_bytes)
{
    while (n_bytes > 0) {
        ssize_t n = write(fd, text, n_bytes);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd wait = {.fd = fd, .events = POLLOUT};
            poll(&wait, 1, RETRY_MS);
            continue;
        }
        if (n <= 0) {
            break;
        }
        text += n;
        n_bytes -= (size_t)n;
    }
    return n_bytes;
}

/* Gives up when the descriptor accepts nothing for patience_ms. */
void write_bounded(int fd, const char *text, size_t n_bytes, int patience_ms)
{
    while (n_bytes > 0) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        if (poll(&wait, 1, patience_ms) <= 0) {
            return;
        }
        ssize_t n = write(fd, text, lesser(n_bytes, SAFE_WRITE_BYTES));
        if (n <= 0) {
            return;
        }
        text += n;
        n_bytes -= (size_t)n;
    }
}

void write_last(const char *text)
{
    int saved = errno;
    write_bounded(STDERR_FILENO, text, strlen(text), LAST_PATIENCE_MS);
    errno = saved;
}
