// SPDX-License-Identifier: Apache-2.0
/* The loop thread sleeps most of the time and must run at once when it wakes; on a busy machine it
 * would have to wait for the time slices of others, and tokens would be late. Since Linux 6.12 a
 * thread can request shorter slices, so that it preempts others sooner after a sleep; its share of
 * the CPU stays the same. */
#include "server/http/sched.h"

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's struct, which libc does not define before 2.41. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

enum { SLICE_NS = 100000 }; // the kernel's minimum

void http_sched_prefer_short_slices(void)
{
    struct attributes a = {0};
    if (syscall(SYS_sched_getattr, 0, &a, (unsigned)sizeof a, 0u) == 0 && a.policy == 0) {
        a.size = sizeof a;
        a.runtime_ns = SLICE_NS;
        syscall(SYS_sched_setattr, 0, &a, 0u); // older kernels ignore it, a sandbox may reject it
    }
}
