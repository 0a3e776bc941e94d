// SPDX-License-Identifier: Apache-2.0
/* Trees of /proc and /sys as machines and containers show them; which memory is committed. */
#include "cpu/cpu_internal.h"
#include "cpu/cpu_room.h"
#include "test/check.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MB = 1 << 20 };

static char root[] = "/tmp/sluice_room_XXXXXX";

/* Files of a tree in /tmp, which stands for /proc and /sys. */
static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", root, path);
    for (char *p = name + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(name, 0700);
        *p = '/';
    }
    FILE *f = fopen(name, "w");
    REQUIRE(f);
    fputs(text, f);
    fclose(f);
}

/* A new tree, with the memory of a machine and the groups of the process. */
static void begin(const char *groups)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %.40s/*", root);
    REQUIRE(system(command) == 0);
    put("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    1024000 kB\n");
    put("/proc/self/statm", "1000 500 100 1 0 1 0\n");
    put("/proc/self/cgroup", groups);
}

TEST(without_groups_the_machines_memory_counts)
{
    begin("");
    CHECK_EQ(cpu_room(root), (size_t)1000 * MB);
    CHECK_EQ(cpu_resident(root), 400 * (size_t)sysconf(_SC_PAGESIZE));
}

/* MemoryMax of a systemd unit: the limit is at the unit's path, not at the root. */
TEST(a_group_of_version_2_at_its_own_path)
{
    begin("0::/system.slice/sluice.service\n");
    put("/sys/fs/cgroup/memory.stat", "anon 5\n");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.max", "104857600\n");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.current", "52428800\n");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.stat",
        "anon 1\nactive_file 10485760\ninactive_file 10485760\n");
    CHECK_EQ(cpu_room(root), (size_t)70 * MB);
    put("/sys/fs/cgroup/system.slice/memory.max", "62914560\n"); // the slice has less memory left
                                                                 // than the unit
    put("/sys/fs/cgroup/system.slice/memory.current", "52428800\n");
    CHECK_EQ(cpu_room(root), (size_t)10 * MB);
    put("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    put("/sys/fs/cgroup/system.slice/sluice.service/memory.high", "62914560\n");
    CHECK_EQ(cpu_room(root), (size_t)30 * MB);
}

/* Version 1 has a path per controller; if more than the limit is in use, nothing is left. */
TEST(a_group_of_version_1)
{
    begin("5:devices:/\n4:cpu,memory:/docker/abc\n0::/\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "20971520\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.stat", "total_inactive_file 10485760\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "20971520\n");
    CHECK_EQ(cpu_room(root), (size_t)90 * MB);
}

/* In a container /proc has the host's path of the group, but the mount shows that group as its
 * root. */
TEST(a_container_in_the_hosts_namespace)
{
    begin("4:memory:/kubepods/pod1/abc\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
    CHECK_EQ(cpu_room(root), (size_t)100 * MB);
    begin("0::/../../elsewhere\n");
    put("/sys/fs/cgroup/memory.max", "52428800\n");
    put("/sys/fs/cgroup/memory.current", "0\n");
    CHECK_EQ(cpu_room(root), (size_t)50 * MB);
}

/* A group may be over its limit for a while. */
TEST(use_beyond_the_limit_leaves_nothing)
{
    begin("0::/a\n");
    put("/sys/fs/cgroup/a/memory.max", "1048576\n");
    put("/sys/fs/cgroup/a/memory.current", "2097152\n");
    CHECK_EQ(cpu_room(root), 0);
}

/* Lines that are not understood must not become a limit of 0. */
TEST(unreadable_lines_are_no_limit)
{
    begin("x\n0::\n4:memory\n3:memory:/none\n");
    CHECK_EQ(cpu_room(root), (size_t)1000 * MB);
    put("/proc/meminfo", "nothing\n");
    CHECK_EQ(cpu_room(root), SIZE_MAX);
}

/* How many percent of a new allocation's pages are there before it is used. */
static size_t share_committed(size_t n_bytes)
{
    struct cpu_backend cpu = {0};
    char *p = cpu_memory(&cpu, n_bytes);
    if (!p) {
        CHECK_FAIL("no memory");
        return 0;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), n = n_bytes / page;
    unsigned char *there = xcalloc(n, 1);
    char *first = (char *)(((uintptr_t)p + page - 1) & ~(uintptr_t)(page - 1));
    CHECK_EQ(mincore(first, (n - 1) * page, there), 0);
    size_t n_there = 0;
    for (size_t i = 0; i < n; i++) {
        n_there += there[i] & 1;
    }
    free(there);
    cpu_memory_free(&cpu, p);
    return 100 * (n_there + 1) / n;
}

/* The address space ends 300 MB after what is used now and what is left to others. */
TEST(memory_that_leaves_little_is_committed_at_once)
{
    enum { LARGE = 200 * MB, LEFT = 300 * MB, FOR_OTHERS = 64 * MB };
    if (cpu_free_bytes() < (size_t)3 * LARGE) {
        SKIP("this machine has too little memory");
    }
    CHECK(share_committed(LARGE) < 10);
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    REQUIRE(f && fscanf(f, "%zu", &pages) == 1);
    fclose(f);
    struct rlimit before, small;
    REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
    small = before;
    small.rlim_cur = pages * (size_t)sysconf(_SC_PAGESIZE) + LEFT + FOR_OTHERS;
    REQUIRE(setrlimit(RLIMIT_AS, &small) == 0);
    const size_t share = share_committed(LARGE);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    CHECK_EQ(share, 100);
}

#if defined(__SANITIZE_ADDRESS__)
/* A read past the end of an allocation ends the process, although ASan does not know about
 * mappings. */
TEST(asan_sees_the_end_of_an_allocation)
{
    struct cpu_backend cpu = {0};
    volatile char *p = cpu_memory(&cpu, 1000);
    REQUIRE(p);
    for (int past = 0; past < 2; past++) {
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            fclose(stderr);
            _exit(p[999 + past]); // 0
        }
        int status = 0;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status != 0, past);
    }
    cpu_memory_free(&cpu, (void *)p);
}
#endif

/* The tree is removed again, whatever the tests did. */
int main(int argc, char **argv)
{
    if (!mkdtemp(root)) {
        return 1;
    }
    int rc = check_main(argc, argv);
    char command[64];
    snprintf(command, sizeof command, "rm -rf %.40s", root);
    return system(command) == 0 ? rc : 1;
}
