#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status open_regular(const char *path, int *fd, size_t *n_bytes, struct err *err)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a pipe would be waited for
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
    return OK;
}

void file_unmap(struct file_map *map)
{
    if (map->data) {
        munmap((void *)map->data, map->n_bytes);
    }
    *map = (struct file_map){0};
}
