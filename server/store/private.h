// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of the store. */
#ifndef SLUICE_SERVER_STORE_PRIVATE_H
#define SLUICE_SERVER_STORE_PRIVATE_H

#include "server/store/db.h"
#include "server/store/store.h"

#include <pthread.h>

/* A list in SQL of the statuses for which batch_has_ended is true. */
#define ENDED_STATUSES "(3, 4, 5, 7)"
_Static_assert(BATCH_COMPLETED == 3 && BATCH_FAILED == 4 && BATCH_EXPIRED == 5 &&
                   BATCH_CANCELLED == 7,
               "ENDED_STATUSES names them by number");

/* Excludes files that unfinished batches read: these are not deleted. */
#define NOT_USED                                                                                   \
    " AND id NOT IN (SELECT input_file FROM batches WHERE status NOT IN " ENDED_STATUSES ")"

/* Bytes of a file in one row: few, so that reading a line reads little else. */
enum { CHUNK_BYTES = 1 << 16 };

struct store {
    pthread_mutex_t lock; // held during any use of db
    struct db *db;
    struct store_options options;
};

/* Runs `change` in a transaction, with the lock held: it is done completely or not at all. If the
 * disk is full, it is repeated with the space of the database's reserve. */
enum status store_change(struct store *s,
                         enum status (*change)(struct store *, void *, struct err *), void *arg,
                         struct err *err);

/* "file-" or another prefix with 24 random hex digits. */
void store_make_id(char id[STORE_ID_BYTES], const char *prefix);

/* Call it within a transaction, with the lock held. */
enum status store_conversation_append(struct store *s, const char *owner, const char *id,
                                      const struct stored_item *items, size_t n, int64_t expires_at,
                                      bool *found, struct err *err);

/* Writes content chunk by chunk; the caller holds the lock. */
struct chunk_writer {
    struct store *store;
    int64_t file, n_chunks, n_bytes;
    struct buf rest; // bytes of an incomplete chunk
};
enum status chunks_begin(struct chunk_writer *w, struct store *s, struct err *err);
enum status chunks_write(struct chunk_writer *w, const void *bytes, size_t n_bytes,
                         struct err *err);
/* Ends the content and makes the file visible, with this owner and name. */
enum status chunks_end(struct chunk_writer *w, const char *owner, struct stored_file *file,
                       struct err *err);

#endif
