// SPDX-License-Identifier: Apache-2.0
/* Preloaded into sluice by test_power_cut.py: distinguishes synced data from other data.
 *
 * The process sees the folder POWER_CUT_ROOT. POWER_CUT_DISK has the data that certainly survive a
 * power cut. A file's content gets there by fsync or fdatasync of that file, its name by fsync of
 * the folder. The test kills the process, randomly adds pages that were not synced, and continues
 * with the result. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const char *root, *disk;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The name under which the disk keeps the content of an open file. Inode numbers are reused, so the
 * time of birth is part of it. */
static bool key_of(int fd, char key[PATH_BYTES])
{
    struct statx s;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &s) != 0) {
        return false;
    }
    snprintf(key, PATH_BYTES, "%llu-%lld-%u", (unsigned long long)s.stx_ino,
             (long long)s.stx_btime.tv_sec, s.stx_btime.tv_nsec);
    return true;
}

/* True if fd is the root (then *is_root is set) or a file in it. */
static bool is_watched(int fd, bool *is_root)
{
    char link[64], path[PATH_BYTES];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = root ? readlink(link, path, sizeof path - 1) : -1;
    if (n <= 0) {
        return false;
    }
    path[n] = 0;
    const size_t n_root = strlen(root);
    *is_root = strcmp(path, root) == 0;
    return *is_root || (strncmp(path, root, n_root) == 0 && path[n_root] == '/');
}

/* Failures of this library end the process with a status of their own, so that no test can
 * pass because of them. */
static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "power_cut: %s: %s\n", what, strerror(errno));
        _exit(97);
    }
}

/* Writes all bytes at an offset. */
static void write_whole(int fd, const char *bytes, size_t n, off_t at)
{
    while (n > 0) {
        const ssize_t wrote = pwrite(fd, bytes, n, at);
        must(wrote > 0, "write");
        bytes += wrote;
        at += wrote;
        n -= (size_t)wrote;
    }
}

static int open_content(const char *key, int flags)
{
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof path, "%s/%s", disk, key);
    return open(path, flags | O_CLOEXEC, 0600);
}

/* Copies the file's present content to the disk's copy. */
static void keep_content(int fd)
{
    char key[PATH_BYTES], block[1 << 16];
    struct stat s;
    if (fstat(fd, &s) == 0 && S_ISDIR(s.st_mode)) {
        return; // only the names of folders are copied
    }
    must(key_of(fd, key), "statx");
    const int to = open_content(key, O_WRONLY | O_CREAT);
    must(to >= 0, key);
    char self[64];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    const int from = open(self, O_RDONLY | O_CLOEXEC); // fd itself may be write-only
    must(from >= 0, "open");
    off_t at = 0;
    ssize_t n;
    while ((n = pread(from, block, sizeof block, at)) > 0) {
        write_whole(to, block, (size_t)n, at);
        at += n;
    }
    must(n == 0 && ftruncate(to, at) == 0, "keep");
    close(from);
    close(to);
}

/* Copies the folder's present list of names. The new list replaces the old by rename, since the
 * process may be killed at any moment. */
static void keep_names(void)
{
    char path[PATH_BYTES], next[PATH_BYTES], key[PATH_BYTES];
    snprintf(path, sizeof path, "%s/names", disk);
    snprintf(next, sizeof next, "%s/names.next", disk);
    FILE *f = fopen(next, "we");
    DIR *d = opendir(root);
    must(f && d, "names");
    for (struct dirent *e; (e = readdir(d));) {
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        struct stat s;
        const bool is_there = fd >= 0 && fstat(fd, &s) == 0;
        if (is_there && S_ISREG(s.st_mode) && key_of(fd, key)) {
            fprintf(f, "%s %s\n", key, e->d_name);
        } else if (is_there && S_ISDIR(s.st_mode) && e->d_name[0] != '.') {
            fprintf(f, "folder %s\n", e->d_name);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    closedir(d);
    must(fclose(f) == 0 && rename(next, path) == 0, "names");
}

static void *real(const char *name)
{
    void *f = dlsym(RTLD_NEXT, name);
    must(f != NULL, name);
    return f;
}

/* Called for fsync and fdatasync: only synced data reach the disk's copy. */
static int sync_file(int fd, const char *name)
{
    bool is_root;
    if (!is_watched(fd, &is_root)) {
        return ((int (*)(int))real(name))(fd);
    }
    pthread_mutex_lock(&lock);
    usleep(5000); // takes as long as a disk, so that a cut finds unsynced data
    if (is_root) {
        keep_names();
    } else {
        keep_content(fd);
    }
    pthread_mutex_unlock(&lock);
    return 0; // the machine's own disk is not involved
}

int fsync(int fd)
{
    return sync_file(fd, "fsync");
}

int fdatasync(int fd)
{
    return sync_file(fd, "fdatasync");
}

/* Everything that exists at the start is on the disk. */
__attribute__((constructor)) static void start(void)
{
    const char *dir = getenv("POWER_CUT_ROOT");
    disk = getenv("POWER_CUT_DISK");
    DIR *d = dir && disk ? opendir(dir) : NULL;
    if (!d) {
        return;
    }
    static char real_root[PATH_BYTES];
    must(realpath(dir, real_root) != NULL, dir);
    root = real_root;
    for (struct dirent *e; (e = readdir(d));) {
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        struct stat s;
        if (fd >= 0 && fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) {
            keep_content(fd);
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    closedir(d);
    keep_names();
}
