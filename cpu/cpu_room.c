// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_room.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* The number after `key` at the start of a line. SIZE_MAX if there is no number, as with "max". */
static size_t read_number(const char *path, const char *key)
{
    char line[256];
    size_t value = SIZE_MAX, key_bytes = strlen(key);
    FILE *f = fopen(path, "r");
    while (f && value == SIZE_MAX && fgets(line, sizeof line, f)) {
        const char *at = line + key_bytes;
        if (strncmp(line, key, key_bytes) == 0) {
            at += strspn(at, " ");
        }
        if (strncmp(line, key, key_bytes) == 0 && *at >= '0' && *at <= '9') {
            value = (size_t)strtoull(at, NULL, 10);
        }
    }
    if (f) {
        fclose(f);
    }
    return value;
}

static size_t least(size_t a, size_t b)
{
    return lesser(a, b);
}

static size_t above(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

/* ---- control groups ---------------------------------------------------------------------------
 */

/* The two versions of cgroups have different names for the same things. */
struct group_version {
    const char *mount, *limits[2], *used, *cached[2];
};

static const struct group_version versions[] = {
    {"/sys/fs/cgroup",
     {"memory.max", "memory.high"},
     "memory.current",
     {"active_file ", "inactive_file "}},
    {"/sys/fs/cgroup/unified",
     {"memory.max", "memory.high"},
     "memory.current",
     {"active_file ", "inactive_file "}},
    {"/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes", NULL},
     "memory.usage_in_bytes",
     {"total_active_file ", "total_inactive_file "}},
};
enum { V2, V2_HYBRID, V1 };

static size_t read_of_group(const char *group, const char *file, const char *key)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return read_number(path, key);
}

static size_t room_of_group(const struct group_version *v, const char *group)
{
    size_t limit = SIZE_MAX, used = read_of_group(group, v->used, ""), cached = 0;
    for (int i = 0; i < 2 && v->limits[i]; i++) {
        limit = least(limit, read_of_group(group, v->limits[i], ""));
    }
    if (limit == SIZE_MAX || used == SIZE_MAX) {
        return SIZE_MAX;
    }
    for (int i = 0; i < 2; i++) {
        size_t n = read_of_group(group, "memory.stat", v->cached[i]);
        if (n != SIZE_MAX) {
            cached += n;
        }
    }
    return above(limit, above(used, cached));
}

/* A container that shares the host's cgroup namespace may see only its own group, mounted as if it
 * were the root, while its path is the one on the host. So leading components of the path that do
 * not exist are dropped. */
static const char *visible_path(const char *mount, const char *path)
{
    char group[PATH_MAX];
    struct stat st;
    while (*path) {
        snprintf(group, sizeof group, "%s%s", mount, path);
        if (stat(group, &st) == 0 && S_ISDIR(st.st_mode)) {
            break;
        }
        const char *next = strchr(path + 1, '/');
        path = or_empty(next);
    }
    return path;
}

/* The least free memory of the group and all groups above it. */
static size_t room_of_path(const char *root, const struct group_version *v, const char *path)
{
    char mount[PATH_MAX], group[2 * PATH_MAX];
    size_t room = SIZE_MAX;
    snprintf(mount, sizeof mount, "%s%s", root, v->mount);
    bool outside = strncmp(path, "/..", 3) == 0; // the group is outside this namespace
    snprintf(group, sizeof group, "%s%s", mount, outside ? "" : visible_path(mount, path));
    size_t n_mount = strlen(mount);
    while (strlen(group) >= n_mount) {
        room = least(room, room_of_group(v, group));
        char *last = strrchr(group, '/');
        if (!last) {
            break;
        }
        *last = '\0';
    }
    return room;
}

/* A line of /proc/self/cgroup is "0::/path" in version 2, and for instance "4:cpu,memory:/path" in
 * version 1. */
static size_t room_of_line(const char *root, char *line)
{
    line[strcspn(line, "\n")] = '\0';
    char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
    if (!path) {
        return SIZE_MAX;
    }
    *kinds++ = *path++ = '\0';
    if (!*kinds) {
        return least(room_of_path(root, &versions[V2], path),
                     room_of_path(root, &versions[V2_HYBRID], path));
    }
    for (char *rest = kinds, *kind; (kind = strsep(&rest, ",")) != NULL;) {
        if (strcmp(kind, "memory") == 0) {
            return room_of_path(root, &versions[V1], path);
        }
    }
    return SIZE_MAX;
}

static size_t room_of_groups(const char *root)
{
    char name[PATH_MAX], line[PATH_MAX];
    size_t room = SIZE_MAX;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "r");
    while (f && fgets(line, sizeof line, f)) {
        room = least(room, room_of_line(root, line));
    }
    if (f) {
        fclose(f);
    }
    return room;
}

/* ---- the process ------------------------------------------------------------------------------
 */

/* The first three numbers of statm, in bytes: the address space, the resident set, and the part of
 * the resident set that is backed by files. */
static bool read_sizes(const char *root, size_t sizes[3])
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/proc/self/statm", root);
    FILE *f = fopen(name, "r");
    bool good = f && fscanf(f, "%zu %zu %zu", &sizes[0], &sizes[1], &sizes[2]) == 3;
    if (f) {
        fclose(f);
    }
    for (int i = 0; good && i < 3; i++) {
        sizes[i] *= (size_t)sysconf(_SC_PAGESIZE);
    }
    return good;
}

static size_t room_of_address_space(const char *root)
{
    enum { FOR_OTHERS = 64 << 20 }; // for the stacks and heap of threads that are created later
    struct rlimit r;
    size_t sizes[3];
    if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY || !read_sizes(root, sizes)) {
        return SIZE_MAX;
    }
    return above((size_t)r.rlim_cur, sizes[0] + FOR_OTHERS);
}

size_t cpu_resident(const char *root)
{
    size_t sizes[3];
    return read_sizes(root, sizes) ? above(sizes[1], sizes[2]) : 0;
}

size_t cpu_room(const char *root)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    size_t kb = read_number(name, "MemAvailable:");
    size_t machine = kb == SIZE_MAX ? SIZE_MAX : kb * 1024;
    return least(least(machine, room_of_groups(root)), room_of_address_space(root));
}
