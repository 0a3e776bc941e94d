// SPDX-License-Identifier: Apache-2.0
/* A file that keeps some space of the disk, so that deletions, which need space in the journal,
 * remain possible on a full disk. */
#include "server/store/reserve.h"

#include "engine/base/mem.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PARTS = 8 }; // the file grows by eighths, as far as the disk has space

void reserve_init(struct reserve *r, const char *path, int64_t bytes)
{
    *r = (struct reserve){.path = xstrdup(path), .bytes = bytes};
}

void reserve_deinit(struct reserve *r)
{
    free(r->path);
    r->path = NULL;
}

/* Allocates as many eighths as the disk has space for. */
bool reserve_take(struct reserve *r)
{
    struct stat st;
    int fd = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    r->held_bytes = fstat(fd, &st) == 0 ? st.st_size : 0;
    for (int64_t n = r->bytes; n > r->held_bytes; n -= r->bytes / PARTS) {
        if (posix_fallocate(fd, 0, n) == 0) {
            r->held_bytes = n;
        }
    }
    /* A failed attempt may have allocated a part of the space: give it back. */
    bool is_exact = ftruncate(fd, r->held_bytes) == 0;
    close(fd);
    return is_exact && r->held_bytes >= r->bytes;
}

void reserve_give(struct reserve *r)
{
    unlink(r->path);
    r->held_bytes = 0;
}
