// SPDX-License-Identifier: Apache-2.0
/* Whole files, maps, and what happens if a mapped file is truncated while it is read. */
#include "engine/base/file.h"
#include "engine/base/minmax.h"
#include "engine/base/write.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Accepts only regular files, because only their size can be trusted. */
static enum status open_regular(const char *path, int *fd, size_t *n_bytes, struct err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a pipe must not wait
                                                         // for a writer
    if (*fd < 0) {
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    struct stat info;
    if (fstat(*fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size < 0) {
        close(*fd);
        return err_set(err, ERR_IO, "%s: not a regular file", path);
    }
    *n_bytes = (size_t)info.st_size;
    return OK;
}

enum status file_read(const char *path, size_t max_bytes, char **data, size_t *n_bytes,
                      struct err *err)
{
    int fd;
    size_t size;
    TRY(open_regular(path, &fd, &size, err));
    if (size > max_bytes) {
        close(fd);
        return err_set(err, ERR_LIMIT, "%s: %zu bytes, more than the limit of %zu", path, size,
                       max_bytes);
    }
    char *bytes = malloc(size + 1);
    if (!bytes) {
        close(fd);
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", path, size);
    }
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            free(bytes);
            close(fd);
            return err_set(err, ERR_IO, "%s: %s", path, n < 0 ? strerror(errno) : "cut short");
        }
        done += (size_t)n;
    }
    close(fd);
    bytes[size] = '\0';
    *data = bytes;
    *n_bytes = size;
    return OK;
}

bool file_exists(const char *path)
{
    return access(path, R_OK) == 0;
}

bool file_is_absent(const char *path)
{
    return access(path, R_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

/* ---- maps --------------------------------------------------------------------------------- */

/* The current maps, read by the handler of SIGBUS, which arrives when a mapped file has been
 * truncated. A handler must not take locks, so a name stays where it was written. */
enum { MAX_NAMED_MAPS = 1024, MAX_MAP_NAME = 256 };

/* `data` 0 marks a free entry. `n_bytes` 0 hides an entry that is being written or removed: it is
 * set after the name, and cleared before the entry is freed. */
static struct named_map {
    _Atomic uintptr_t data;
    _Atomic size_t n_bytes;
    char path[MAX_MAP_NAME];
} named_maps[MAX_NAMED_MAPS];

/* Keeps the end of a long path, since that names the file. If all entries are taken, the map has no
 * name. */
static void name_map(const char *path, const struct file_map *map)
{
    for (int i = 0; i < MAX_NAMED_MAPS; i++) {
        struct named_map *m = &named_maps[i];
        uintptr_t nobody = 0;
        if (atomic_compare_exchange_strong(&m->data, &nobody, (uintptr_t)map->data)) {
            const size_t n = strlen(path), most = sizeof m->path - 1;
            memcpy(m->path, path + (n > most ? n - most : 0), lesser(most, n) + 1);
            atomic_store(&m->n_bytes, map->n_bytes);
            return;
        }
    }
}

/* Clears the size first, so that the handler never sees an address with another map's size. */
static void forget_map(const struct file_map *map)
{
    for (int i = 0; i < MAX_NAMED_MAPS; i++) {
        if (atomic_load(&named_maps[i].data) == (uintptr_t)map->data) {
            atomic_store(&named_maps[i].n_bytes, 0);
            atomic_store(&named_maps[i].data, 0);
            return;
        }
    }
}

/* SIGBUS within a map means that the file was truncated. For other causes the default action
 * follows. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    const uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; info->si_code == BUS_ADRERR && i < MAX_NAMED_MAPS; i++) {
        const struct named_map *m = &named_maps[i];
        if (at - atomic_load(&m->data) < atomic_load(&m->n_bytes)) {
            write_last("sluice: ");
            write_last(m->path);
            write_last(": can no longer be read: it was truncated, or its disk fails\n");
            _exit(1); // the thread can neither continue nor be unwound
        }
    }
    // Not one of our maps: the fault repeats with the default action.
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void file_maps_explain(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}

/* The descriptor can be closed at once, because the map keeps the file open. */
enum status file_map_open(const char *path, struct file_map *map, struct err *err)
{
    int fd;
    size_t size;
    TRY(open_regular(path, &fd, &size, err));
    void *p = size > 0 ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    int why = errno;
    close(fd);
    if (p == MAP_FAILED) {
        return err_set(err, ERR_IO, "%s: cannot be mapped: %s", path, strerror(why));
    }
    *map = (struct file_map){.data = p, .n_bytes = size};
    if (p) {
        name_map(path, map);
    }
    return OK;
}

void file_unmap(struct file_map *map)
{
    if (map->data) {
        forget_map(map);
        munmap((void *)map->data, map->n_bytes);
    }
    *map = (struct file_map){0};
}
