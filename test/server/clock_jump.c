// SPDX-License-Identifier: Apache-2.0
/* Preloaded into the server by scripts/chaos: shifts the wall clock by the seconds in the file
 * CLOCK_JUMP_FILE (eight bytes, little endian), and jumps when they change. Monotonic clocks are
 * not affected. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

/* Mapped once; the file's writer changes the time of all processes at once. */
static int64_t offset_s(void)
{
    static const volatile int64_t *offset;
    static const int64_t none;
    if (!offset) {
        const char *path = getenv("CLOCK_JUMP_FILE");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *at;
        if (fd < 0) {
            at = MAP_FAILED;
        } else {
            at = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
        }
        offset = at == MAP_FAILED ? &none : at;
    }
    return *offset;
}

/* Only the wall clock is shifted; time limits use the monotonic one. */
int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) {
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    }
    int rc = real(id, out);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        out->tv_sec += offset_s();
    }
    return rc;
}

time_t time(time_t *out)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    (void)zone;
    struct timespec now = {0};
    int rc = clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = (suseconds_t)(now.tv_nsec / 1000);
    return rc;
}
