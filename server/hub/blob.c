// SPDX-License-Identifier: Apache-2.0
#include "server/hub/blob.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limits of a part's size. Each part is downloaded over one connection; a small file also gets a
 * few parts. */
enum { MIN_PART_BYTES = 1 << 20, MAX_PART_BYTES = 64 << 20, FEW_PARTS = 8 };

/* Trailer after the file's bytes: this word, the length of a part, and the bytes received of each
 * part. */
#define TRAILER_MAGIC 0x31706574756C73LL

static int64_t trailer_at(const struct blob *b, int32_t part)
{
    return b->n_bytes + 8 * (2 + (int64_t)part);
}

static int64_t size_of_parts(int64_t n_bytes, bool whole)
{
    if (whole) {
        return n_bytes > 0 ? n_bytes : 1;
    }
    const int64_t fair = n_bytes / FEW_PARTS / MIN_PART_BYTES * MIN_PART_BYTES;
    const int64_t least = greater(fair, MIN_PART_BYTES);
    return lesser(least, MAX_PART_BYTES);
}

bool blob_exists(const char *path, int64_t n_bytes)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == n_bytes;
}

/* Bytes that a download need not allocate again. The incomplete file has holes, so its blocks are
 * counted instead of its length. */
int64_t blob_allocated(const char *path, int64_t n_bytes)
{
    char incomplete[PATH_MAX];
    struct stat info;
    if (blob_exists(path, n_bytes)) {
        return n_bytes;
    }
    if (hub_path(incomplete, NULL, "%s.sluice.incomplete", path) != OK ||
        stat(incomplete, &info) != 0) {
        return 0;
    }
    const int64_t there = (int64_t)info.st_blocks * 512;
    return lesser(there, n_bytes);
}

/* Only one process at a time may download a blob. ERR_BUSY: another one does. */
static enum status take_lock(struct blob *b, const char *lock, struct err *err)
{
    b->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (b->lock_fd < 0) {
        return err_set(err, ERR_IO, "%.300s: %s", lock, strerror(errno));
    }
    if (flock(b->lock_fd, LOCK_EX | LOCK_NB) == 0) {
        return OK;
    }
    if (errno == EWOULDBLOCK) {
        return ERR_BUSY;
    }
    return err_set(err, ERR_IO, "%.300s: no lock: %s", lock, strerror(errno));
}

static void set_parts(struct blob *b, int64_t part_bytes)
{
    b->part_bytes = part_bytes;
    b->n_parts = (int32_t)((b->n_bytes + part_bytes - 1) / part_bytes);
    free(b->got);
    b->got = xcalloc((size_t)b->n_parts + 1, sizeof *b->got);
}

/* True if the file has a matching trailer. */
static bool read_trailer(struct blob *b)
{
    int64_t head[2];
    struct stat info;
    if (pread(b->fd, head, sizeof head, b->n_bytes) != sizeof head || head[0] != TRAILER_MAGIC ||
        (head[1] != size_of_parts(b->n_bytes, false) &&
         head[1] != size_of_parts(b->n_bytes, true))) {
        return false;
    }
    set_parts(b, head[1]);
    const size_t n = (size_t)b->n_parts * sizeof *b->got;
    bool fits = fstat(b->fd, &info) == 0 && info.st_size == trailer_at(b, b->n_parts) &&
                pread(b->fd, b->got, n, trailer_at(b, 0)) == (ssize_t)n;
    for (int32_t i = 0; i < b->n_parts && fits; i++) {
        fits = b->got[i] >= 0 && b->got[i] <= blob_part_bytes(b, i);
    }
    return fits;
}

/* A full disk has its own error, since the user can do something about it. */
static enum status write_at(const struct blob *b, const void *bytes, size_t n_bytes, int64_t at,
                            struct err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(b->fd, (const char *)bytes + done, n_bytes - done, at + (int64_t)done);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            const int why = n < 0 ? errno : ENOSPC;
            const bool full = why == ENOSPC || why == EDQUOT;
            return err_set(
                err, ERR_IO, "%.300s: %s%s", b->incomplete, strerror(why),
                full ? "; free disk space and try again: the download continues where it stopped"
                     : "");
        }
        done += (size_t)n;
    }
    return OK;
}

enum status blob_start_over(struct blob *b, bool whole, struct err *err)
{
    set_parts(b, size_of_parts(b->n_bytes, whole));
    const int64_t head[2] = {TRAILER_MAGIC, b->part_bytes};
    if (ftruncate(b->fd, 0) != 0 || ftruncate(b->fd, trailer_at(b, b->n_parts)) != 0) {
        return err_set(err, ERR_IO, "%.300s: %s", b->incomplete, strerror(errno));
    }
    return write_at(b, head, sizeof head, b->n_bytes, err);
}

/* Opens the file of an earlier attempt, if there is one. The number of bytes that each part has so
 * far is stored in the same file, after the data. */
enum status blob_open(struct blob *b, const char *path, const char *lock, const char *hash,
                      int64_t n_bytes, struct err *err)
{
    memset(b, 0, sizeof *b);
    b->n_bytes = n_bytes;
    b->fd = b->lock_fd = -1;
    snprintf(b->hash, sizeof b->hash, "%s", hash);
    TRY(hub_path(b->path, err, "%s", path));
    TRY(hub_path(b->incomplete, err, "%s.sluice.incomplete", path));
    TRY(take_lock(b, lock, err));
    if (blob_exists(path, n_bytes)) { // another process has completed it meanwhile
        return OK;
    }
    b->fd = open(b->incomplete, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (b->fd < 0) {
        return err_set(err, ERR_IO, "%.300s: %s", b->incomplete, strerror(errno));
    }
    if (!read_trailer(b)) {
        return blob_start_over(b, false, err);
    }
    return OK;
}

void blob_close(struct blob *b)
{
    blob_check_join(b);
    if (b->fd >= 0) {
        close(b->fd);
    }
    if (b->lock_fd >= 0) {
        close(b->lock_fd);
    }
    b->fd = b->lock_fd = -1;
    free(b->got);
    b->got = NULL;
    b->n_parts = 0;
}

int64_t blob_part_bytes(const struct blob *b, int32_t part)
{
    const int64_t left = b->n_bytes - part * b->part_bytes;
    return lesser(left, b->part_bytes);
}

int64_t blob_got(const struct blob *b)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < b->n_parts; i++) {
        sum += b->got[i];
    }
    return sum;
}

/* Appends to a part. The count is written after the bytes, so that after a crash it never counts
 * bytes that are missing. */
enum status blob_write(struct blob *b, int32_t part, const void *bytes, size_t n_bytes,
                       struct err *err)
{
    int64_t *got = &b->got[part];
    if ((int64_t)n_bytes > blob_part_bytes(b, part) - *got) {
        return err_set(err, ERR_FORMAT, "the server sent more bytes than were requested");
    }
    TRY(write_at(b, bytes, n_bytes, part * b->part_bytes + *got, err));
    *got += (int64_t)n_bytes;
    return write_at(b, got, sizeof *got, trailer_at(b, part), err);
}

/* ---- the check ------------------------------------------------------------------------------- */

/* Runs on its own thread, since hashing gigabytes would hold up the other downloads. The data is
 * synced before the blob gets its name. */
static void *check(void *arg)
{
    struct blob *b = arg;
    enum status st = hub_hash(b->fd, b->n_bytes, b->hash, b->found, &b->check_err);
    if (st == OK && fdatasync(b->fd) != 0) { // once a blob has its name, its bytes must be on disk
        st = err_set(&b->check_err, ERR_IO, "%s", strerror(errno));
    }
    enum blob_check result = BLOB_BAD;
    if (strcmp(b->found, b->hash) == 0) {
        result = BLOB_GOOD;
    }
    atomic_store(&b->check, st == OK ? result : BLOB_UNREADABLE);
    return NULL;
}

enum status blob_check_start(struct blob *b, struct err *err)
{
    atomic_store(&b->check, BLOB_CHECKING);
    int rc = pthread_create(&b->checker, NULL, check, b);
    b->checks = rc == 0;
    if (rc != 0) {
        return err_set(err, ERR_NOMEM, "no thread to check a file: %s", strerror(rc));
    }
    return OK;
}

void blob_check_join(struct blob *b)
{
    if (b->checks) {
        pthread_join(b->checker, NULL);
        b->checks = false;
    }
}

enum status blob_finish(struct blob *b, struct err *err)
{
    if (ftruncate(b->fd, b->n_bytes) != 0 || rename(b->incomplete, b->path) != 0) {
        return err_set(err, ERR_IO, "%.300s: %s", b->path, strerror(errno));
    }
    return OK;
}
