// SPDX-License-Identifier: Apache-2.0
/* | Data that outlives a request: files, batches and their answers, responses and conversations, in
 * one SQLite database. With a folder it is durable: when a call returns OK, its changes survive
 * kill -9 and a power cut, and every call takes effect completely or not at all. Without a folder
 * it is temporary, limited in size, and ends with the process.
 *
 * Owners are strings that the caller derives from API keys; a lookup with an owner only finds that
 * owner's data. Times are seconds since 1970, given by the caller.
 * Thread: any; calls are serialised and wait for the disk, so do not call from the event loop. */
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
    const char *dir;   // created if missing; NULL: temporary
    int64_t max_bytes; // largest size of the database; calls that need more fail with ERR_LIMIT
    int64_t max_file_bytes; // largest size of one file
};

enum status store_open(const struct store_options *options, struct store **out, struct err *err);
void store_close(struct store *s); // accepts NULL

struct store_usage {
    int64_t bytes, max_bytes, n_files, n_batches;
    int64_t by_status[8]; // numbers of batches, by enum batch_status
};
enum status store_usage(struct store *s, struct store_usage *out, struct err *err);

/* Deletes expired files, responses and conversations, and batches that ended before
 * `ended_before`. */
enum status store_expire(struct store *s, int64_t now, int64_t ended_before, struct err *err);

/* ---- files ---------------------------------------------------------------------------------- */

struct stored_file {
    char id[STORE_ID_BYTES], filename[STORE_NAME_BYTES], purpose[32];
    int64_t bytes, created_at, expires_at; // expires_at 0: never
};

/* An upload in progress: not visible before store_upload_end. Either end or drop it; uploads of a
 * dead process are deleted at the next start. */
struct store_upload;
enum status store_upload_begin(struct store *s, struct store_upload **out, struct err *err);
enum status store_upload_write(struct store_upload *u, const void *bytes, size_t n_bytes,
                               struct err *err);
/* Reads filename, purpose and times from *file, and writes its id and size there. Ends the upload,
 * even on failure. */
enum status store_upload_end(struct store_upload *u, const char *owner, struct stored_file *file,
                             struct err *err);
void store_upload_drop(struct store_upload *u); // accepts NULL

/* False, with OK in *st, if the owner has no such file. */
bool store_file_find(struct store *s, const char *owner, const char *id, struct stored_file *out,
                     enum status *st, struct err *err);
/* The same for deleting. A file that an unfinished batch reads is not deleted either. */
bool store_file_delete(struct store *s, const char *owner, const char *id, enum status *st,
                       struct err *err);

struct store_page {
    const char *after; // the page begins after this id; NULL: at the start
    int64_t limit;
    bool oldest_first;
    const char *purpose; // lists only files with this purpose; NULL: all
};
/* The caller frees *files. */
enum status store_file_list(struct store *s, const char *owner, const struct store_page *page,
                            struct stored_file **files, size_t *n, bool *has_more, struct err *err);

/* Appends up to max_bytes from `offset` on; nothing if that is past the end. */
enum status store_file_read(struct store *s, const char *id, int64_t offset, size_t max_bytes,
                            struct buf *out, struct err *err);

/* ---- conversations --------------------------------------------------------------------------
 */

struct stored_conversation {
    char id[STORE_ID_BYTES];
    int64_t created_at, expires_at; // expires_at 0: never; each addition extends it
    char *metadata;                 // JSON text
};
void stored_conversation_deinit(struct stored_conversation *c);

enum { STORE_ITEM_ID_BYTES = 72 };

struct stored_item {
    char id[STORE_ITEM_ID_BYTES];
    struct buf text; // JSON, including the id
};
void stored_items_free(struct stored_item *items, size_t n);
/* A new id: the prefix and 24 random hex digits. */
void store_item_id(char id[STORE_ITEM_ID_BYTES], const char *prefix);

/* Reads the times and metadata from *c, and writes its id there. Conversations may take a fixed
 * share of the store: those that have been unchanged for the longest are deleted to make room for
 * new ones. */
enum status store_conversation_create(struct store *s, const char *owner,
                                      struct stored_conversation *c,
                                      const struct stored_item *items, size_t n, struct err *err);
/* False, with OK in *st, if the owner has no such conversation (or no such item in it). */
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
/* The caller calls stored_items_free on *items in any case. */
bool store_conversation_items(struct store *s, const char *owner, const char *id,
                              const struct store_page *page, struct stored_item **items, size_t *n,
                              bool *has_more, enum status *st, struct err *err);
/* All items, separated by commas. */
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
    struct buf input, output; // the response's own items as JSON, separated by commas
    struct buf body;          // the response object as JSON
    /* For a response that runs in the background. While it runs: the object that replaces it if
     * this process ends first. Afterwards: its events, framed for replay. A lookup does not fill
     * these; it reports whether the response is running. */
    struct buf lost, events;
    bool background, runs;
    /* The conversation to which these items are added, or "". A lookup does not fill it. */
    char conversation[STORE_ID_BYTES];
    const struct stored_item *items;
    size_t n_items;
    /* The output's items, by whose ids a response can be found. Lookups do not fill this in. */
    const struct stored_item *outputs;
    size_t n_outputs;
};
void stored_response_deinit(struct stored_response *r); // accepts a zeroed struct

/* Replaces a response with the same owner and id. Responses may take a fixed share of the store:
 * the oldest are deleted to make room for new ones. */
enum status store_response_put(struct store *s, const char *owner, const struct stored_response *r,
                               struct err *err);
/* False, with OK in *st, if the owner has no such response. If found the caller deinits it. */
bool store_response_find(struct store *s, const char *owner, const char *id,
                         struct stored_response *out, enum status *st, struct err *err);
/* The events of a response that has ended; *out stays empty if it did not run in the background. */
bool store_response_events(struct store *s, const char *owner, const char *id, struct buf *out,
                           enum status *st, struct err *err);
bool store_response_delete(struct store *s, const char *owner, const char *id, enum status *st,
                           struct err *err);
/* Appends items, separated by commas, one of which has this id: a single item of a conversation, or
 * all output items of a response. */
bool store_item_find(struct store *s, const char *owner, const char *id, struct buf *out,
                     enum status *st, struct err *err);

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
_Static_assert(sizeof((struct store_usage *)NULL)->by_status == N_BATCH_STATUSES * sizeof(int64_t),
               "a number for each status");
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
    char *metadata, *errors; // JSON; NULL: none
    enum batch_status status;
    int64_t created_at, expires_at;
    int64_t output_expires_s; // how long its files are kept; 0: the server's retention applies
    int64_t since[N_BATCH_STATUSES]; // when each status began; 0: never
    int64_t n_total, n_completed, n_failed;
    int64_t input_tokens, cached_tokens, output_tokens;
};
void stored_batch_deinit(struct stored_batch *b); // accepts a zeroed struct

/* Writes the id; the initial status is VALIDATING. */
enum status store_batch_create(struct store *s, struct stored_batch *b, struct err *err);
/* owner NULL: of any owner. */
bool store_batch_find(struct store *s, const char *owner, const char *id, struct stored_batch *out,
                      enum status *st, struct err *err);
/* owner NULL: of any owner. The caller deinits each element and frees the list. */
enum status store_batch_list(struct store *s, const char *owner, const struct store_page *page,
                             struct stored_batch **batches, size_t *n, bool *has_more,
                             struct err *err);
/* All batches that have not ended, oldest first: a restarted server continues these. */
enum status store_batch_unfinished(struct store *s, struct stored_batch **batches, size_t *n,
                                   struct err *err);

/* Changes the status from one of those in `from` (bits by status) to `to`. False, with OK, if it
 * had another status. */
bool store_batch_move(struct store *s, const char *id, unsigned from, enum batch_status to,
                      int64_t now, enum status *st, struct err *err);
/* After validation: the number of lines, and the model that they name. A batch that has been
 * cancelled in the meantime stays cancelled. */
enum status store_batch_begin(struct store *s, const char *id, int64_t n_total, const char *model,
                              int64_t now, struct err *err);
/* Validation found errors (a JSON list); the status becomes FAILED. */
enum status store_batch_fail(struct store *s, const char *id, const char *errors, int64_t now,
                             struct err *err);

/* The answer to a line of the input (counted from 0), as a line of the output without its
 * newline. */
struct batch_answer {
    int64_t line;
    bool failed;
    const char *text;
    size_t n_bytes;
    int64_t input_tokens, cached_tokens, output_tokens;
};
/* Stores answers in one transaction. Existing answers are not replaced. */
enum status store_batch_answer(struct store *s, const char *id, const struct batch_answer *answers,
                               size_t n, struct err *err);
/* A bit for each answered line, starting with the lowest; `bits` has (n_lines + 7) / 8 bytes. */
enum status store_batch_answered(struct store *s, const char *id, uint8_t *bits, int64_t n_lines,
                                 struct err *err);
/* Writes the output file with the successful answers and the error file with the others, in the
 * order of the lines, and ends the batch as COMPLETED, EXPIRED or CANCELLED, all in one
 * transaction. */
enum status store_batch_finish(struct store *s, const char *id, enum batch_status end, int64_t now,
                               int64_t files_expire_at, struct err *err);

#endif
