// SPDX-License-Identifier: Apache-2.0
/* What outlives a request: files, batches and their answers, responses and conversations, in one
 * SQLite database.
 * With a folder it is durable: when a call returns OK, what it did survives kill -9 and a power
 * cut, and happens whole or not at all. Without one it is temporary, bounded, and ends with the
 * process.
 *
 * Owners are texts that the caller makes of API keys; a look-up with an owner sees that owner's
 * things alone. Times are seconds since 1970, given by the caller.
 * Thread: any; calls take turns, and wait for the disk: not for the loop. */
#ifndef SLUICE_SERVER_STORE_STORE_H
#define SLUICE_SERVER_STORE_STORE_H

#include "engine/base/buf.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { STORE_ID_BYTES = 48, STORE_NAME_BYTES = 256 };

struct store;

struct store_options {
    const char *dir;        // made if it is not there; NULL: temporary
    int64_t max_bytes;      // of the database; more is refused with ERR_LIMIT
    int64_t max_file_bytes; // of one file
};

enum status store_open(const struct store_options *options, struct store **out, struct err *err);
void store_close(struct store *s); // accepts NULL

struct store_usage {
    int64_t bytes, max_bytes, n_files, n_batches;
    int64_t by_status[8]; // batches, by enum batch_status
};
enum status store_usage(struct store *s, struct store_usage *out, struct err *err);

/* Deletes files, responses and conversations whose time has come, and batches that ended before
 * `ended_before`. */
enum status store_expire(struct store *s, int64_t now, int64_t ended_before, struct err *err);

/* ---- files ---------------------------------------------------------------------------------- */

struct stored_file {
    char id[STORE_ID_BYTES], filename[STORE_NAME_BYTES], purpose[32];
    int64_t bytes, created_at, expires_at; // expires_at 0: never
};

/* A file in the making: nobody sees it before store_upload_end. Either end or drop it; what a dead
 * process left is gone at the next start. */
struct store_upload;
enum status store_upload_begin(struct store *s, struct store_upload **out, struct err *err);
enum status store_upload_write(struct store_upload *u, const void *bytes, size_t n_bytes,
                               struct err *err);
/* file: filename, purpose and times are read, id and bytes written. Ends the upload in any case. */
enum status store_upload_end(struct store_upload *u, const char *owner, struct stored_file *file,
                             struct err *err);
void store_upload_drop(struct store_upload *u); // accepts NULL

/* False, with OK in *st: the owner has no such file. */
bool store_file_find(struct store *s, const char *owner, const char *id, struct stored_file *out,
                     enum status *st, struct err *err);
/* Nor is one deleted that a batch reads which has not ended. */
bool store_file_delete(struct store *s, const char *owner, const char *id, enum status *st,
                       struct err *err);

struct store_page {
    const char *after; // the id before the page; NULL: from the start
    int64_t limit;
    bool oldest_first;
    const char *purpose; // of files; NULL: any
};
/* *files is the caller's to free. */
enum status store_file_list(struct store *s, const char *owner, const struct store_page *page,
                            struct stored_file **files, size_t *n, bool *has_more, struct err *err);

/* Appends up to max_bytes from `offset` on: nothing past the end. */
enum status store_file_read(struct store *s, const char *id, int64_t offset, size_t max_bytes,
                            struct buf *out, struct err *err);

/* ---- conversations --------------------------------------------------------------------------
 */

struct stored_conversation {
    char id[STORE_ID_BYTES];
    int64_t created_at, expires_at; // expires_at 0: never; it moves on with each that is added to
    char *metadata;                 // JSON text
};
void stored_conversation_deinit(struct stored_conversation *c);

enum { STORE_ITEM_ID_BYTES = 72 };

struct stored_item {
    char id[STORE_ITEM_ID_BYTES];
    struct buf text; // JSON, with the id
};
void stored_items_free(struct stored_item *items, size_t n);
/* A new one: the prefix and 24 random hex digits. */
void store_item_id(char id[STORE_ITEM_ID_BYTES], const char *prefix);

/* c: the times and metadata are read, the id is written. Conversations have a part of the store:
 * those that nobody has added to for the longest make room. */
enum status store_conversation_create(struct store *s, const char *owner,
                                      struct stored_conversation *c,
                                      const struct stored_item *items, size_t n, struct err *err);
/* False, with OK in *st: the owner has no such conversation (or no such item in it). */
bool store_conversation_find(struct store *s, const char *owner, const char *id,
                             struct stored_conversation *out, enum status *st, struct err *err);
bool store_conversation_describe(struct store *s, const char *owner, const char *id,
                                 const char *metadata, enum status *st, struct err *err);
bool store_conversation_delete(struct store *s, const char *owner, const char *id, enum status *st,
                               struct err *err);
bool store_conversation_add(struct store *s, const char *owner, const char *id,
                            const struct stored_item *items, size_t n, int64_t expires_at,
                            enum status *st, struct err *err);
struct store_page;
/* *items is the caller's (stored_items_free) in any case. */
bool store_conversation_items(struct store *s, const char *owner, const char *id,
                              const struct store_page *page, struct stored_item **items, size_t *n,
                              bool *has_more, enum status *st, struct err *err);
/* All of them, joined by commas. */
bool store_conversation_read(struct store *s, const char *owner, const char *id, struct buf *out,
                             enum status *st, struct err *err);
bool store_conversation_item(struct store *s, const char *owner, const char *id, const char *item,
                             struct stored_item *out, enum status *st, struct err *err);
bool store_conversation_item_delete(struct store *s, const char *owner, const char *id,
                                    const char *item, enum status *st, struct err *err);

/* ---- responses ------------------------------------------------------------------------------ */

enum { STORE_RESPONSE_ID_BYTES = 144 };

struct stored_response {
    char id[STORE_RESPONSE_ID_BYTES], previous[STORE_RESPONSE_ID_BYTES]; // previous "": none
    int64_t created_at, expires_at;                                      // expires_at 0: never
    struct buf input, output; // its own items as JSON texts, joined by commas
    struct buf body;          // the whole object
    /* Of one that runs in the background. While it does: the object that it becomes if this process
     * ends first. Afterwards: its events, framed, for who asks for them. Not filled by a look-up,
     * which says whether it runs. */
    struct buf lost, events;
    bool background, runs;
    /* Not filled by a look-up. The conversation, or "", that gets these items with it. */
    char conversation[STORE_ID_BYTES];
    const struct stored_item *items;
    size_t n_items;
};
void stored_response_deinit(struct stored_response *r); // accepts a zeroed struct

/* One of the same owner and id is replaced. Responses have a part of the store: the oldest make
 * room for new ones. */
enum status store_response_put(struct store *s, const char *owner, const struct stored_response *r,
                               struct err *err);
/* False, with OK in *st: the owner has no such response. The caller deinits what was found. */
bool store_response_find(struct store *s, const char *owner, const char *id,
                         struct stored_response *out, enum status *st, struct err *err);
/* The events of one that has ended, *out; none of one that did not run in the background. */
bool store_response_events(struct store *s, const char *owner, const char *id, struct buf *out,
                           enum status *st, struct err *err);
bool store_response_delete(struct store *s, const char *owner, const char *id, enum status *st,
                           struct err *err);

/* ---- batches -------------------------------------------------------------------------------- */

enum batch_status {
    BATCH_VALIDATING,
    BATCH_IN_PROGRESS,
    BATCH_FINALIZING,
    BATCH_COMPLETED,
    BATCH_FAILED,
    BATCH_EXPIRED,
    BATCH_CANCELLING,
    BATCH_CANCELLED,
    N_BATCH_STATUSES,
};
extern const char *const batch_status_names[N_BATCH_STATUSES];

static inline bool batch_has_ended(enum batch_status st)
{
    return st == BATCH_COMPLETED || st == BATCH_FAILED || st == BATCH_EXPIRED ||
           st == BATCH_CANCELLED;
}

struct stored_batch {
    char id[STORE_ID_BYTES], owner[STORE_NAME_BYTES], endpoint[64], window[16];
    char input_file[STORE_ID_BYTES], output_file[STORE_ID_BYTES], error_file[STORE_ID_BYTES];
    char model[STORE_NAME_BYTES];
    char *metadata, *errors; // JSON texts; NULL: none
    enum batch_status status;
    int64_t created_at, expires_at;
    int64_t output_expires_s; // its files do so long after they were made; 0: as the store's do
    int64_t since[N_BATCH_STATUSES]; // when each status began; 0: it never did
    int64_t n_total, n_completed, n_failed;
    int64_t input_tokens, cached_tokens, output_tokens;
};
void stored_batch_deinit(struct stored_batch *b); // accepts a zeroed struct

/* Writes the id; the batch begins as VALIDATING. */
enum status store_batch_create(struct store *s, struct stored_batch *b, struct err *err);
/* owner NULL: anybody's. */
bool store_batch_find(struct store *s, const char *owner, const char *id, struct stored_batch *out,
                      enum status *st, struct err *err);
/* owner NULL: anybody's. The caller deinits each and frees the list. */
enum status store_batch_list(struct store *s, const char *owner, const struct store_page *page,
                             struct stored_batch **batches, size_t *n, bool *has_more,
                             struct err *err);
/* Those that have not ended, oldest first: what a start goes on with. */
enum status store_batch_unfinished(struct store *s, struct stored_batch **batches, size_t *n,
                                   struct err *err);

/* From one of the statuses in `from` (bits by status) to `to`. False, with OK: it was in another.
 */
bool store_batch_move(struct store *s, const char *id, unsigned from, enum batch_status to,
                      int64_t now, enum status *st, struct err *err);
/* After validation: how many lines there are, and the model they name. A batch that is cancelled
 * meanwhile stays so. */
enum status store_batch_begin(struct store *s, const char *id, int64_t n_total, const char *model,
                              int64_t now, struct err *err);
/* Validation found errors (a JSON list); the batch has FAILED. */
enum status store_batch_fail(struct store *s, const char *id, const char *errors, int64_t now,
                             struct err *err);

/* The answer to a line of the input (counted from 0), as a line of the output without its end. */
struct batch_answer {
    int64_t line;
    bool failed;
    const char *text;
    size_t n_bytes;
    int64_t input_tokens, cached_tokens, output_tokens;
};
/* All of them in one transaction; an answer that is there already stays as it is. */
enum status store_batch_answer(struct store *s, const char *id, const struct batch_answer *answers,
                               size_t n, struct err *err);
/* A bit for each line that has an answer, from the lowest on; `bits` has (n_lines + 7) / 8 bytes.
 */
enum status store_batch_answered(struct store *s, const char *id, uint8_t *bits, int64_t n_lines,
                                 struct err *err);
/* Makes the output file of the answers that went well and the error file of the others, in the
 * order of the lines, and ends the batch as COMPLETED, EXPIRED or CANCELLED: all at once. */
enum status store_batch_finish(struct store *s, const char *id, enum batch_status end, int64_t now,
                               int64_t files_expire_at, struct err *err);

#endif
