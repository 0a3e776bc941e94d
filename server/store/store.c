// SPDX-License-Identifier: Apache-2.0
/* The store: one database with one lock. Every function may block on the disk, so the
 * server calls them on its pool. */
#include "server/store/private.h"

#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Rows of files with ready = 0 are uploads in progress. */
static const char schema[] =
    "CREATE TABLE IF NOT EXISTS files ("
    " row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner TEXT, filename TEXT,"
    " purpose TEXT, bytes INTEGER, created_at INTEGER, expires_at INTEGER, ready INTEGER NOT NULL);"
    "CREATE TABLE IF NOT EXISTS chunks ("
    " file INTEGER, n INTEGER, data BLOB, PRIMARY KEY (file, n)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS batches ("
    " row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner TEXT, endpoint TEXT,"
    " window TEXT, input_file TEXT, output_file TEXT, error_file TEXT, model TEXT, metadata TEXT,"
    " errors TEXT, status INTEGER, created_at INTEGER, expires_at INTEGER, n_total INTEGER,"
    " n_completed INTEGER, n_failed INTEGER, input_tokens INTEGER, cached_tokens INTEGER,"
    " output_tokens INTEGER, output_expires_s INTEGER);"
    "CREATE TABLE IF NOT EXISTS batch_times ("
    " batch INTEGER, status INTEGER, at INTEGER, PRIMARY KEY (batch, status)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS answers ("
    " batch INTEGER, line INTEGER, failed INTEGER, text BLOB,"
    " PRIMARY KEY (batch, line)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS responses ("
    " row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, owner TEXT, previous TEXT,"
    " created_at INTEGER, expires_at INTEGER, bytes INTEGER, input BLOB, output BLOB, body BLOB,"
    " lost BLOB, events BLOB, background INTEGER, UNIQUE (owner, id));"
    "CREATE TABLE IF NOT EXISTS conversations ("
    " row INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, owner TEXT, created_at INTEGER,"
    " expires_at INTEGER, metadata TEXT, bytes INTEGER, touched INTEGER, UNIQUE (owner, id));"
    "CREATE TABLE IF NOT EXISTS items ("
    " row INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER, id TEXT, text BLOB,"
    " UNIQUE (conversation, id));"
    "CREATE TABLE IF NOT EXISTS response_items ("
    " owner TEXT, response TEXT, id TEXT, PRIMARY KEY (owner, response, id)) WITHOUT ROWID;"
    "CREATE INDEX IF NOT EXISTS response_item_ids ON response_items (owner, id);"
    "CREATE INDEX IF NOT EXISTS item_ids ON items (id);"
    "CREATE TRIGGER IF NOT EXISTS response_ends_items AFTER DELETE ON responses BEGIN"
    " DELETE FROM response_items WHERE owner = old.owner AND response = old.id; END;"
    "CREATE INDEX IF NOT EXISTS response_bytes ON responses (row, bytes);"
    "CREATE INDEX IF NOT EXISTS response_ends ON responses (expires_at);"
    "DELETE FROM chunks WHERE file IN (SELECT row FROM files WHERE ready = 0);"
    "DELETE FROM files WHERE ready = 0;";

/* 96 random bits: ids cannot be guessed, and need no counter. */
void store_make_id(char id[STORE_ID_BYTES], const char *prefix)
{
    unsigned char random[12];
    size_t n = (size_t)snprintf(id, STORE_ID_BYTES, "%s", prefix);
    while (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
    }
    for (size_t i = 0; i < sizeof random && n + 2 < STORE_ID_BYTES; i++) {
        n += (size_t)snprintf(id + n, STORE_ID_BYTES - n, "%02x", random[i]);
    }
}

/* Runs `change` in one transaction, which is rolled back if it fails. */
static enum status attempt(struct store *s,
                           enum status (*change)(struct store *, void *, struct err *), void *arg,
                           struct err *err)
{
    enum status st = db_begin(s->db, err);
    if (st == OK) {
        st = change(s, arg, err);
    }
    if (st == OK) {
        st = db_commit(s->db, err);
    }
    db_abort(s->db);
    return st;
}

/* Makes a change, and repeats it with the reserve's space if the disk was full. Afterwards the
 * reserve is allocated again. */
enum status store_change(struct store *s,
                         enum status (*change)(struct store *, void *, struct err *), void *arg,
                         struct err *err)
{
    pthread_mutex_lock(&s->lock);
    enum status st = attempt(s, change, arg, err);
    while (st != OK && db_make_room(s->db)) {
        st = attempt(s, change, arg, err);
    }
    db_keep_room(s->db);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Adds columns that databases of older versions lack. */
static enum status add_columns(struct store *s, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err,
                 "SELECT count(*) FROM pragma_table_info('responses') WHERE name = 'lost'", ""));
    bool has = db_next(rows) && db_int(rows, 0) > 0;
    TRY(db_end(rows, err));
    if (!has) {
        return db_script(s->db,
                         "ALTER TABLE responses ADD COLUMN lost BLOB;"
                         "ALTER TABLE responses ADD COLUMN events BLOB;"
                         "ALTER TABLE responses ADD COLUMN background INTEGER;",
                         err);
    }
    return OK;
}

/* Creates what is missing. Responses that were running when an earlier process ended are replaced
 * by the object `lost`, which was stored for that case. */
static enum status make_tables(struct store *s, void *arg, struct err *err)
{
    (void)arg;
    TRY(db_script(s->db, schema, err));
    TRY(add_columns(s, err));
    return db_script(s->db, "UPDATE responses SET body = lost, lost = NULL WHERE length(lost) > 0;",
                     err);
}

void store_item_id(char id[STORE_ITEM_ID_BYTES], const char *prefix)
{
    _Static_assert((int)STORE_ITEM_ID_BYTES >= (int)STORE_ID_BYTES, "an id has room");
    store_make_id(id, prefix);
}

/* Makes the folder if it is missing. SQLite syncs the folder, but a new folder's own name is in its
 * parent, so that is synced here. As in SQLite, failing to open the parent is not an error. */
static enum status make_folder(const char *dir, struct err *err)
{
    if (mkdir(dir, 0700) != 0) {
        return errno == EEXIST ? OK : err_set(err, ERR_IO, "%s: %s", dir, strerror(errno));
    }
    char parent[4096];
    snprintf(parent, sizeof parent, "%s/..", dir);
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return OK;
}

/* Opens the database in the folder. It is locked, so that two servers cannot share it. */
static enum status open_folder(struct store *s, const char *dir, struct err *err)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/sluice.db", dir);
    if (n < 0 || (size_t)n >= sizeof path) {
        return err_set(err, ERR_INVALID, "the path of the data folder is too long");
    }
    TRY(make_folder(dir, err));
    enum status st = db_open(path, s->options.max_bytes, &s->db, err);
    if (st == ERR_BUSY) {
        return err_set(err, st, "%s is used by another server; give each one a folder of its own",
                       dir);
    }
    return st;
}

/* Without a folder the data are temporary and end with the process. */
enum status store_open(const struct store_options *options, struct store **out, struct err *err)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->options = *options;
    s->options.dir = NULL; // the caller's string, which may not outlive this call
    pthread_mutex_init(&s->lock, NULL);
    enum status st = options->dir ? open_folder(s, options->dir, err)
                                  : db_open(NULL, options->max_bytes, &s->db, err);
    if (st == OK) {
        st = store_change(s, make_tables, NULL, err);
    }
    if (st != OK) {
        store_close(s);
        s = NULL;
    }
    *out = s;
    return st;
}

void store_close(struct store *s)
{
    if (s) {
        db_close(s->db);
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
}

static enum status count_rows(struct store *s, const char *sql, int64_t *n, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, sql, ""));
    *n = db_next(rows) ? db_int(rows, 0) : 0;
    return db_end(rows, err);
}

static enum status count_batches(struct store *s, struct store_usage *out, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT status, count(*) FROM batches GROUP BY status", ""));
    while (db_next(rows)) {
        int64_t status = db_int(rows, 0);
        if (status >= 0 && status < N_BATCH_STATUSES) {
            out->by_status[status] = db_int(rows, 1);
            out->n_batches += db_int(rows, 1);
        }
    }
    return db_end(rows, err);
}

_Static_assert(N_BATCH_STATUSES == 8, "store_usage.by_status");

enum status store_usage(struct store *s, struct store_usage *out, struct err *err)
{
    *out = (struct store_usage){.max_bytes = s->options.max_bytes};
    pthread_mutex_lock(&s->lock);
    out->bytes = db_size_bytes(s->db);
    enum status st = count_rows(s, "SELECT count(*) FROM files WHERE ready", &out->n_files, err);
    if (st == OK) {
        st = count_batches(s, out, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

struct expiry {
    int64_t now, ended_before;
};

/* Deletes what has expired: files, batches, responses and conversations. */
static enum status expire(struct store *s, void *arg, struct err *err)
{
    const struct expiry *e = arg;
    TRY(db_run(s->db, err,
               "DELETE FROM chunks WHERE file IN (SELECT row FROM files"
               " WHERE ready AND expires_at > 0 AND expires_at <= ?" NOT_USED ")",
               "i", e->now));
    TRY(db_run(s->db, err,
               "DELETE FROM files WHERE ready AND expires_at > 0 AND expires_at <= ?" NOT_USED, "i",
               e->now));
    TRY(db_run(s->db, err, "DELETE FROM responses WHERE expires_at > 0 AND expires_at <= ?", "i",
               e->now));
    TRY(db_run(s->db, err,
               "DELETE FROM batches WHERE row IN (SELECT batch FROM batch_times"
               " WHERE status IN " ENDED_STATUSES " AND at < ?)",
               "i", e->ended_before));
    TRY(db_run(s->db, err, "DELETE FROM conversations WHERE expires_at > 0 AND expires_at <= ?",
               "i", e->now));
    return db_script(s->db,
                     "DELETE FROM items WHERE conversation NOT IN (SELECT row FROM conversations);"
                     "DELETE FROM batch_times WHERE batch NOT IN (SELECT row FROM batches);"
                     "DELETE FROM answers WHERE batch NOT IN (SELECT row FROM batches);",
                     err);
}

enum status store_expire(struct store *s, int64_t now, int64_t ended_before, struct err *err)
{
    struct expiry e = {.now = now, .ended_before = ended_before};
    return store_change(s, expire, &e, err);
}
