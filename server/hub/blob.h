// SPDX-License-Identifier: Apache-2.0
/* One blob while it is downloaded: blobs/HASH.sluice.incomplete, in parts that come beside each
 * other. How much of each part is there stands behind the file's own bytes, so that a download goes
 * on after a cut, whatever cut it; what it says is believed only as far as the hash agrees in the
 * end. A lock, the same that huggingface_hub takes, keeps other processes out.
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
    int64_t *got; // [n_parts], bytes of each that are there
    int32_t n_parts;
    int fd, lock_fd;
    pthread_t checker;
    bool checks;      // the thread is to be joined
    atomic_int check; // enum blob_check
    char found[65];   // the hash that it has
    struct err check_err;
};

/* Is the whole blob in the cache? */
bool blob_exists(const char *path, int64_t n_bytes);

/* Bytes of the disk that it has already, whole or in part. */
int64_t blob_allocated(const char *path, int64_t n_bytes);

/* Takes the lock and opens what has come so far. ERR_BUSY: another process downloads it now. The
 * lock's folder and the blob's exist. */
enum status blob_open(struct blob *b, const char *path, const char *lock, const char *hash,
                      int64_t n_bytes, struct err *err);
void blob_close(struct blob *b); // and lets the lock go; accepts a zeroed struct with fd -1

/* Empty parts; `whole`: one, for a server that knows no ranges. */
enum status blob_start_over(struct blob *b, bool whole, struct err *err);

int64_t blob_part_bytes(const struct blob *b, int32_t part); // its length
int64_t blob_got(const struct blob *b);                      // of all parts

/* Appends to a part. */
enum status blob_write(struct blob *b, int32_t part, const void *bytes, size_t n_bytes,
                       struct err *err);

/* All parts are there: starts the check; b->check says how it went. */
enum status blob_check_start(struct blob *b, struct err *err);
void blob_check_join(struct blob *b);

/* After a good check: gives it its name. */
enum status blob_finish(struct blob *b, struct err *err);

#endif
