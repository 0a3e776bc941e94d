// SPDX-License-Identifier: Apache-2.0
/* Preloaded by test_torture.py. Makes one call of the program (or of some of its libraries) fail,
 * and reports at the end which memory the program has not freed. Environment:
 *
 *     TORTURE_FAIL     "allocation 17" or "system 17": the call that fails, counted from 1; 0: none
 *     TORTURE_FROM     libraries whose calls count too, "libsqlite3 libpcre2"
 *     TORTURE_EXEMPT   "START-END ...", places in the program whose allocations do not count
 *     TORTURE_ONLY     "START-END ...", the only places in the program that count (all)
 *     TORTURE_REPORT   a file for the report; rewritten at the end and at each SIGUSR2, after
 *                      which counting begins again at 1
 *
 * Exempt places are functions that abort by design. A call is attributed to the program or to a
 * library by its return address. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_RANGES = 256, N_SLOTS = 1 << 20 };

/* Addresses of code. */
struct range {
    uintptr_t from, to;
};

static struct range counted[MAX_RANGES], exempt[MAX_RANGES], program;
static int n_counted, n_exempt;
static long fail_allocation, fail_system;
static _Atomic long n_allocations, n_systems;
static const char *failed = "nothing";
static uintptr_t failed_at;
static _Atomic bool ready;

/* Whether an address lies in one of the ranges. */
static bool is_in(const struct range *r, int n, uintptr_t at)
{
    for (int i = 0; i < n; i++) {
        if (at >= r[i].from && at < r[i].to) {
            return true;
        }
    }
    return false;
}

static void report(bool all);

/* True if this call is the one that fails. It is reported before it fails, since the
 * program may crash in consequence. */
static bool is_due(_Atomic long *n, long which, const char *name, const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (!ready || !is_in(counted, n_counted, at) || ++*n != which) {
        return false;
    }
    failed = name;
    failed_at = at - program.from;
    report(false); // the program may end here
    return true;
}

/* ---- what the program has allocated -----------------------------------------------------------
 */

/* A hash table with open addresses of the program's live blocks; `by`: the caller. It
 * never allocates. */
static struct {
    _Atomic uintptr_t block; // 0: never used; 1: was freed
    uintptr_t by;
} slots[N_SLOTS];

static size_t hash(uintptr_t p)
{
    return (size_t)(p >> 4) * 0x9e3779b97f4a7c15u >> 44;
}

/* A lock-free table, since any thread may allocate. 0: a free slot; 1: a slot that is free again.
 */
static void remember(void *p, const void *caller)
{
    uintptr_t at = (uintptr_t)caller;
    if (!p || at < program.from || at >= program.to) {
        return;
    }
    for (size_t i = hash((uintptr_t)p), n = 0; n < N_SLOTS; i = (i + 1) % N_SLOTS, n++) {
        uintptr_t old = slots[i].block;
        if (old <= 1 && atomic_compare_exchange_strong(&slots[i].block, &old, (uintptr_t)p)) {
            slots[i].by = at - program.from;
            return;
        }
    }
}

/* A block that was not remembered is ignored: its search ends at the first free slot. */
static void forget(void *p)
{
    for (size_t i = hash((uintptr_t)p), n = 0; p && n < N_SLOTS; i = (i + 1) % N_SLOTS, n++) {
        if (slots[i].block == (uintptr_t)p) {
            slots[i].block = 1;
            return;
        }
        if (slots[i].block == 0) {
            return;
        }
    }
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

/* True if this allocation must fail. Only calls from counted code outside of exempt functions
 * count. */
static bool allocation_fails(const void *caller)
{
    if (is_in(exempt, n_exempt, (uintptr_t)caller) ||
        !is_due(&n_allocations, fail_allocation, "malloc", caller)) {
        return false;
    }
    errno = ENOMEM;
    return true;
}

#define CALLER __builtin_return_address(0)

void *malloc(size_t n)
{
    void *p = allocation_fails(CALLER) ? NULL : __libc_malloc(n);
    remember(p, CALLER);
    return p;
}

void *calloc(size_t n, size_t size)
{
    void *p = allocation_fails(CALLER) ? NULL : __libc_calloc(n, size);
    remember(p, CALLER);
    return p;
}

/* A failing realloc keeps the old block, as in C. */
void *realloc(void *old, size_t n)
{
    if (allocation_fails(CALLER)) {
        return NULL;
    }
    forget(old);
    void *p = __libc_realloc(old, n);
    remember(p, CALLER);
    return p;
}

void *aligned_alloc(size_t alignment, size_t n)
{
    void *p = allocation_fails(CALLER) ? NULL : __libc_memalign(alignment, n);
    remember(p, CALLER);
    return p;
}

void free(void *p)
{
    forget(p);
    __libc_free(p);
}

/* ---- the report -------------------------------------------------------------------------------
 */

/* Uses only system calls and snprintf, since allocations may fail. */
static void report(bool all)
{
    char text[256];
    const char *path = getenv("TORTURE_REPORT");
    int error = errno;
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0) {
        return;
    }
    int n = snprintf(text, sizeof text, "allocation %ld\nsystem %ld\nfailed %s %lx\n",
                     (long)n_allocations, (long)n_systems, failed, (unsigned long)failed_at);
    bool good = write(fd, text, (size_t)n) == n;
    for (size_t i = 0; all && i < N_SLOTS && good; i++) {
        if (slots[i].block > 1) {
            n = snprintf(text, sizeof text, "left %lx\n", (unsigned long)slots[i].by);
            good = write(fd, text, (size_t)n) == n;
        }
    }
    close(fd);
    errno = error;
}

static void report_all(void)
{
    report(true);
}

/* The script sends a signal to get a report at a place of its choice. */
static void on_signal(int number)
{
    (void)number;
    ready = false;
    report(true);
    n_allocations = n_systems = 0;
    ready = true;
}

/* Called for the program first, then for each library: their executable segments become
 * counted ranges. */
static int add_module(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *from = getenv("TORTURE_FROM");
    char copy[256] = "", *rest = NULL;
    int *n_seen = arg;
    (void)size;
    bool is_program = (*n_seen)++ == 0, wanted = is_program;
    if (from) {
        snprintf(copy, sizeof copy, "%s", from);
    }
    for (char *name = strtok_r(copy, " ", &rest); name && !wanted;
         name = strtok_r(NULL, " ", &rest)) {
        wanted = strstr(info->dlpi_name, name) != NULL;
    }
    for (int i = 0; i < info->dlpi_phnum && wanted && n_counted < MAX_RANGES; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_LOAD && h->p_flags & PF_X) {
            uintptr_t begin = info->dlpi_addr + h->p_vaddr;
            counted[n_counted++] = (struct range){begin, begin + h->p_memsz};
            if (is_program) {
                program = (struct range){info->dlpi_addr, begin + h->p_memsz};
            }
        }
    }
    return 0;
}

/* Returns the number of places. */
static int read_places(const char *text, struct range *ranges)
{
    unsigned long from, to;
    int n = 0, n_read;
    for (; text && n < MAX_RANGES && sscanf(text, "%lx-%lx %n", &from, &to, &n_read) >= 2;
         text += n_read) {
        ranges[n++] = (struct range){program.from + from, program.from + to};
    }
    return n;
}

/* Runs before main; without TORTURE_FAIL nothing is counted. */
__attribute__((constructor)) static void begin(void)
{
    int n_seen = 0;
    const char *fail = getenv("TORTURE_FAIL");
    if (!fail) {
        return;
    }
    sscanf(fail, "allocation %ld", &fail_allocation);
    sscanf(fail, "system %ld", &fail_system);
    dl_iterate_phdr(add_module, &n_seen);
    n_exempt = read_places(getenv("TORTURE_EXEMPT"), exempt);
    if (getenv("TORTURE_ONLY")) {
        n_counted = read_places(getenv("TORTURE_ONLY"), counted);
    }
    signal(SIGUSR2, on_signal);
    atexit(report_all);
    ready = true;
}

/* ---- system calls -----------------------------------------------------------------------------
 */

#define REAL(name)                                                                                 \
    static __typeof__(name) *real;                                                                 \
    if (!real) {                                                                                   \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                 \
    }

/* A function with these parameters that fails with `error` and returns `bad`. */
#define FAILS(type, name, bad, error, parameters, arguments)                                       \
    type name parameters                                                                           \
    {                                                                                              \
        REAL(name)                                                                                 \
        if (is_due(&n_systems, fail_system, #name, CALLER)) {                                      \
            errno = error;                                                                         \
            return bad;                                                                            \
        }                                                                                          \
        return real arguments;                                                                     \
    }

static int mode_of(int flags, va_list args)
{
    if (flags & (O_CREAT | O_TMPFILE)) {
        return va_arg(args, int);
    }
    return 0;
}

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        REAL(name)                                                                                 \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        int mode = mode_of(flags, args);                                                           \
        va_end(args);                                                                              \
        if (is_due(&n_systems, fail_system, #name, CALLER)) {                                      \
            errno = EMFILE;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        return real(path, flags, mode);                                                            \
    }

OPENS(open)
OPENS(open64)
FAILS(FILE *, fopen, NULL, EMFILE, (const char *path, const char *mode), (path, mode))
FAILS(FILE *, fopen64, NULL, EMFILE, (const char *path, const char *mode), (path, mode))
FAILS(DIR *, opendir, NULL, EMFILE, (const char *path), (path))
FAILS(int, mkdir, -1, ENOSPC, (const char *path, mode_t mode), (path, mode))
FAILS(int, unlink, -1, EIO, (const char *path), (path))
FAILS(int, rename, -1, EIO, (const char *from, const char *to), (from, to))
FAILS(int, stat, -1, EIO, (const char *path, struct stat *st), (path, st))
FAILS(int, stat64, -1, EIO, (const char *path, struct stat64 *st), (path, st))
FAILS(int, fstat, -1, EIO, (int fd, struct stat *st), (fd, st))
FAILS(int, fstat64, -1, EIO, (int fd, struct stat64 *st), (fd, st))
FAILS(ssize_t, read, -1, EIO, (int fd, void *bytes, size_t n), (fd, bytes, n))
FAILS(ssize_t, pread, -1, EIO, (int fd, void *bytes, size_t n, off_t at), (fd, bytes, n, at))
FAILS(ssize_t, pread64, -1, EIO, (int fd, void *bytes, size_t n, off64_t at), (fd, bytes, n, at))
/* A write that wakes a thread through a pipe never fails. */
ssize_t write(int fd, const void *bytes, size_t n)
{
    struct stat st;
    REAL(write)
    bool is_pipe = syscall(SYS_fstat, fd, &st) == 0 && S_ISFIFO(st.st_mode);
    if (!is_pipe && is_due(&n_systems, fail_system, "write", CALLER)) {
        errno = ENOSPC;
        return -1;
    }
    return real(fd, bytes, n);
}

FAILS(ssize_t, pwrite64, -1, ENOSPC, (int fd, const void *bytes, size_t n, off64_t at),
      (fd, bytes, n, at))
FAILS(ssize_t, writev, -1, ECONNRESET, (int fd, const struct iovec *iov, int n), (fd, iov, n))
FAILS(int, ftruncate, -1, EIO, (int fd, off_t n), (fd, n))
FAILS(int, ftruncate64, -1, EIO, (int fd, off64_t n), (fd, n))
FAILS(int, fsync, -1, EIO, (int fd), (fd))
FAILS(int, fdatasync, -1, EIO, (int fd), (fd))
FAILS(int, posix_fallocate, ENOSPC, ENOSPC, (int fd, off_t at, off_t n), (fd, at, n))
FAILS(void *, mmap, MAP_FAILED, ENOMEM,
      (void *at, size_t n, int protection, int flags, int fd, off_t from),
      (at, n, protection, flags, fd, from))
FAILS(void *, mmap64, MAP_FAILED, ENOMEM,
      (void *at, size_t n, int protection, int flags, int fd, off64_t from),
      (at, n, protection, flags, fd, from))
FAILS(int, mprotect, -1, ENOMEM, (void *at, size_t n, int protection), (at, n, protection))
FAILS(int, madvise, -1, EINVAL, (void *at, size_t n, int advice), (at, n, advice))
FAILS(int, socket, -1, EMFILE, (int domain, int type, int protocol), (domain, type, protocol))
FAILS(int, socketpair, -1, EMFILE, (int domain, int type, int protocol, int fds[2]),
      (domain, type, protocol, fds))
FAILS(int, bind, -1, EADDRINUSE, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
FAILS(int, listen, -1, EADDRINUSE, (int fd, int n), (fd, n))
FAILS(int, connect, -1, ECONNREFUSED, (int fd, const struct sockaddr *a, socklen_t n), (fd, a, n))
FAILS(int, accept4, -1, EMFILE, (int fd, struct sockaddr *a, socklen_t *n, int flags),
      (fd, a, n, flags))
FAILS(int, accept, -1, EMFILE, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
FAILS(ssize_t, send, -1, ECONNRESET, (int fd, const void *bytes, size_t n, int flags),
      (fd, bytes, n, flags))
FAILS(ssize_t, recv, -1, ECONNRESET, (int fd, void *bytes, size_t n, int flags),
      (fd, bytes, n, flags))
FAILS(ssize_t, sendmsg, -1, ECONNRESET, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
FAILS(int, getsockname, -1, ENOBUFS, (int fd, struct sockaddr *a, socklen_t *n), (fd, a, n))
FAILS(int, setsockopt, -1, ENOBUFS, (int fd, int level, int name, const void *v, socklen_t n),
      (fd, level, name, v, n))
FAILS(int, epoll_create1, -1, EMFILE, (int flags), (flags))
/* Only adding a descriptor needs memory. */
int epoll_ctl(int ep, int op, int fd, struct epoll_event *e)
{
    REAL(epoll_ctl)
    if (op == EPOLL_CTL_ADD && is_due(&n_systems, fail_system, "epoll_ctl", CALLER)) {
        errno = ENOMEM;
        return -1;
    }
    return real(ep, op, fd, e);
}

FAILS(int, poll, -1, ENOMEM, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms))
FAILS(int, epoll_wait, -1, EINTR, (int ep, struct epoll_event *e, int n, int ms), (ep, e, n, ms))
FAILS(int, pipe, -1, EMFILE, (int fds[2]), (fds))
FAILS(int, pipe2, -1, EMFILE, (int fds[2], int flags), (fds, flags))
FAILS(int, eventfd, -1, EMFILE, (unsigned value, int flags), (value, flags))
FAILS(int, dup, -1, EMFILE, (int fd), (fd))
FAILS(ssize_t, getrandom, -1, EINTR, (void *bytes, size_t n, unsigned flags), (bytes, n, flags))
FAILS(int, pthread_create, EAGAIN, EAGAIN,
      (pthread_t * t, const pthread_attr_t *a, void *(*run)(void *), void *arg), (t, a, run, arg))
