// SPDX-License-Identifier: Apache-2.0
/* Preloaded into front_server by test_http_faults.py: now and then a system call of the server's
 * own code fails with an error that the kernel may return. Calls of libmicrohttpd and libuv
 * (recognised by their flags) are left alone, since their error handling is not under test. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static unsigned long long state = 88172645463325252u;

/* xorshift64; the order of calls varies with timing, so runs are alike, not equal. */
static int one_in(unsigned n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n == 0;
}

ssize_t send(int fd, const void *bytes, size_t n, int flags);
/* Short sends are common under load, and easy to get wrong. */
ssize_t send(int fd, const void *bytes, size_t n, int flags)
{
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real) {
        real = (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    }
    // Our own sends are the ones with MSG_DONTWAIT. Short sends and EAGAIN are frequent,
    // so that the code that handles them is tested; resets are rare, or no response would complete.
    if (flags & MSG_DONTWAIT) {
        if (one_in(10)) {
            errno = one_in(2) ? EAGAIN : EINTR;
            return -1;
        }
        if (one_in(300)) {
            errno = one_in(2) ? ECONNRESET : EPIPE;
            return -1;
        }
        if (n > 1 && one_in(10)) {
            n = one_in(2) ? 1 : n / 2;
        }
    }
    return real(fd, bytes, n, flags);
}

/* Errors that accept4 is documented to return. */
int accept4(int fd, struct sockaddr *addr, socklen_t *n_addr, int flags)
{
    static int (*real)(int, struct sockaddr *, socklen_t *, int);
    if (!real) {
        real = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    }
    if (one_in(12)) {
        static const int errors[] = {EMFILE, ENFILE, ENOMEM, ECONNABORTED, EINTR, EPROTO, EAGAIN};
        errno = errors[state / 7 % (sizeof errors / sizeof errors[0])];
        return -1;
    }
    return real(fd, addr, n_addr, flags);
}

int epoll_ctl(int ep, int op, int fd, struct epoll_event *e)
{
    static int (*real)(int, int, int, struct epoll_event *);
    if (!real) {
        real = (int (*)(int, int, int, struct epoll_event *))dlsym(RTLD_NEXT, "epoll_ctl");
    }
    // Only registrations of sockets that wait for a hang-up may fail.
    if (e && e->events & EPOLLRDHUP && !(e->events & EPOLLIN) && one_in(60)) {
        errno = ENOMEM;
        return -1;
    }
    return real(ep, op, fd, e);
}
