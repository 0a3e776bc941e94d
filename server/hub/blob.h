// SPDX-License-Identifier: Apache-2.0
/* A blob being downloaded: blobs/HASH.sluice.incomplete, in parts that are downloaded concurrently.
 * The progress of each part is stored after the file's own bytes, so a download can resume after
 * any interruption; the final hash check verifies the whole file. A lock, the one that
 * huggingface_hub uses, keeps other processes out.
 * Thread: one owner; the check runs on a thread of its own. */
#ifndef SLUICE_SERVER_HUB_BLOB_H
#define SLUICE_SERVER_HUB_BLOB_H

#include "server/hub/private.h"

#include <pthread.h>
#include <stdatomic.h>

enum blob_check { BLOB_CHECKING, BLOB_GOOD, BLOB_BAD, BLOB_UNREADABLE };

struct blob {
    char path[PATH_MAX], incomplete[PATH_MAX];
    char hash[65];
    int64_t n_bytes, part_bytes;
    int64_t *got; // [n_parts], bytes received of each
    int32_t n_parts;
    int fd, lock_fd;
    pthread_t checker;
    bool checks;      // the thread of the hash check was started and must be joined
    atomic_int check; // enum blob_check
    char found[65];   // the hash that the check has computed
    struct err check_err;
};

/* True if the whole blob is in the cache. */
bool blob_exists(const char *path, int64_t n_bytes);

/* Disk space that the blob occupies already, complete or in part. */
int64_t blob_allocated(const char *path, int64_t n_bytes);

/* Takes the lock and opens what has been downloaded so far. ERR_BUSY: another process is
 * downloading it. The folders of the lock and the blob must exist. */
enum status blob_open(struct blob *b, const char *path, const char *lock, const char *hash,
                      int64_t n_bytes, struct err *err);
void blob_close(struct blob *b); // also releases the lock; accepts a zeroed struct with fd -1

/* Discards all parts; `whole`: continue with a single part, for servers without range support. */
enum status blob_start_over(struct blob *b, bool whole, struct err *err);

int64_t blob_part_bytes(const struct blob *b, int32_t part); // the length of this part
int64_t blob_got(const struct blob *b);                      // bytes received, of all parts

/* Appends to a part. */
enum status blob_write(struct blob *b, int32_t part, const void *bytes, size_t n_bytes,
                       struct err *err);

/* All parts are complete: starts the check; b->check has the result. */
enum status blob_check_start(struct blob *b, struct err *err);
void blob_check_join(struct blob *b);

/* After a successful check: renames it to its final name. */
enum status blob_finish(struct blob *b, struct err *err);

#endif
