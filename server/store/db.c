// SPDX-License-Identifier: Apache-2.0
/* SQLite: opening, prepared statements, values, transactions, and recovery from a full disk. */
#include "server/store/db.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/store/reserve.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The log is checkpointed when it has LOG_PAGES pages (512 KiB), so the reserve is several times as
 * large as the log. Deleting a file of 512 MiB changes 130 pages. */
enum {
    PAGE_BYTES = 4096,
    MAX_STATEMENTS = 128,
    LOG_PAGES = 128,
    RESERVE_BYTES = 2 << 20,
    MORE_PAGES = 16, // how many pages the database may grow on a full disk: enough for a row or two
};

/* Statements stay prepared. They are found by the address of their text, since all texts are
 * constants of this folder. */
struct db {
    sqlite3 *handle;
    int64_t max_pages;
    struct reserve reserve; // only if there is a path; released while room_is_given
    bool is_full;           // the last failure was that the disk was full
    bool room_is_given;
    bool is_held; // the database may not grow: the disk has only the reserve's space left
    struct {
        const char *sql;
        sqlite3_stmt *statement;
    } kept[MAX_STATEMENTS];
    size_t n_kept;
};

/* The rows of a query; the statement is busy until db_end. */
struct db_rows {
    struct db *db;
    sqlite3_stmt *statement;
    int last; // SQLite's result of the last step
};

static bool is_quota(struct db *db, int code)
{
    int error = code == SQLITE_IOERR ? sqlite3_system_errno(db->handle) : 0;
    return error == EDQUOT || error == EFBIG;
}

/* Turns an error of SQLite into a message. A full disk and an exceeded quota are the same kind of
 * error: db_make_room may help. */
static enum status fail(struct db *db, int code, struct err *err)
{
    enum status st = ERR_IO;
    db->is_full = code == SQLITE_FULL || is_quota(db, code);
    if (db->is_full) {
        return err_set(err, ERR_LIMIT, "the store: %s", sqlite3_errstr(SQLITE_FULL));
    }
    if (code == SQLITE_TOOBIG || code == SQLITE_NOMEM) {
        st = ERR_LIMIT;
    } else if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
        st = ERR_BUSY;
    } else if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
        st = ERR_FORMAT;
    }
    return err_set(err, st, "the store: %s",
                   db->handle ? sqlite3_errmsg(db->handle) : sqlite3_errstr(code));
}

enum status db_script(struct db *db, const char *sql, struct err *err)
{
    int code = sqlite3_exec(db->handle, sql, NULL, NULL, NULL);
    if (code != SQLITE_OK) {
        return fail(db, code, err);
    }
    return OK;
}

static enum status set_max_pages(struct db *db, int64_t n_pages, struct err *err)
{
    char text[64];
    snprintf(text, sizeof text, "PRAGMA max_page_count = %lld", (long long)n_pages);
    return db_script(db, text, err);
}

/* Sets up a write-ahead log that is synced at each commit: a commit that returned is on the disk.
 * Exclusive mode is set before the file is first read: no other process can open the database, and
 * the index of the log is in our own memory instead of a shared file. */
static enum status settle(struct db *db, const char *path, struct err *err)
{
    char text[128];
    if (path) {
        TRY(db_script(db, "PRAGMA locking_mode = EXCLUSIVE;", err));
    }
    // Some systems overwrite deleted pages by default, which needs as much space as they have.
    snprintf(text, sizeof text,
             "PRAGMA page_size = %d; PRAGMA temp_store = MEMORY; PRAGMA secure_delete = FAST;",
             PAGE_BYTES);
    TRY(db_script(db, text, err));
    TRY(set_max_pages(db, db->max_pages, err));
    if (!path) {
        return db_script(db, "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;", err);
    }
    snprintf(text, sizeof text, "PRAGMA wal_autocheckpoint = %d; PRAGMA journal_size_limit = %d;",
             LOG_PAGES, 2 * LOG_PAGES * PAGE_BYTES);
    TRY(db_script(db, text, err));
    return db_script(db,
                     "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
                     "BEGIN EXCLUSIVE; COMMIT;",
                     err);
}

/* Called once the database is locked, so that no other process uses the reserve. */
static void open_reserve(struct db *db, const char *path)
{
    char name[4096 + 16];
    snprintf(name, sizeof name, "%s-reserve", path);
    reserve_init(&db->reserve, name, RESERVE_BYTES);
    reserve_take(&db->reserve);
}

/* max_bytes limits the number of pages, so that an upload cannot fill the disk. */
enum status db_open(const char *path, int64_t max_bytes, struct db **out, struct err *err)
{
    struct db *db = xcalloc(1, sizeof *db);
    *out = NULL;
    db->max_pages = greater(max_bytes / PAGE_BYTES, 64);
    int code = sqlite3_open_v2(or_empty(path), &db->handle,
                               SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX |
                                   SQLITE_OPEN_EXRESCODE,
                               NULL);
    enum status st = code == SQLITE_OK ? OK : fail(db, code & 0xFF, err);
    if (st == OK) {
        sqlite3_extended_result_codes(db->handle, 0);
        st = settle(db, path, err);
    }
    if (st != OK) {
        db_close(db);
        if (path) {
            return err_prefix(err, st, "%s", path);
        }
        return st;
    }
    if (path) {
        open_reserve(db, path);
    }
    *out = db;
    return OK;
}

void db_close(struct db *db)
{
    if (!db) {
        return;
    }
    for (size_t i = 0; i < db->n_kept; i++) {
        sqlite3_finalize(db->kept[i].statement);
    }
    sqlite3_close(db->handle);
    reserve_deinit(&db->reserve);
    free(db);
}

/* ---- a full disk -------------------------------------------------------------------------- */

/* The number that a pragma returns; 0 if it fails. */
static int64_t read_number(struct db *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t n = 0;
    if (sqlite3_prepare_v2(db->handle, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW) {
        n = sqlite3_column_int64(s, 0);
    }
    sqlite3_finalize(s);
    return n;
}

/* Releases the reserve and checkpoints the log, which frees its space. That suffices for changes
 * that need no new pages. The database may then grow by a few pages only, because growth would use
 * the reserve's space permanently. */
static void give_room(struct db *db)
{
    db->room_is_given = true;
    reserve_give(&db->reserve);
    sqlite3_wal_checkpoint_v2(db->handle, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    if (!db->is_held) {
        int64_t n_pages = read_number(db, "PRAGMA page_count") + MORE_PAGES;
        db->is_held = n_pages < db->max_pages && set_max_pages(db, n_pages, NULL) == OK;
    }
}

/* Once the reserve is complete again, the database may grow. */
static void take_reserve(struct db *db)
{
    if (reserve_take(&db->reserve) && db->is_held) {
        db->is_held = set_max_pages(db, db->max_pages, NULL) != OK;
    }
}

/* Called after an error. True if there is space now, and the operation should be repeated. */
bool db_make_room(struct db *db)
{
    if (!db->is_full || !db->reserve.path || db->room_is_given) {
        return false;
    }
    db->is_full = false;
    if (db->is_held) {
        take_reserve(db);
        if (!db->is_held) {
            return true; // others have freed space on the disk
        }
    }
    give_room(db);
    return true;
}

void db_keep_room(struct db *db)
{
    if (db->room_is_given) {
        db->room_is_given = false;
        take_reserve(db);
    }
}

/* ---- statements --------------------------------------------------------------------------- */

static enum status find_statement(struct db *db, const char *sql, sqlite3_stmt **out,
                                  struct err *err)
{
    for (size_t i = 0; i < db->n_kept; i++) {
        if (db->kept[i].sql == sql && !sqlite3_stmt_busy(db->kept[i].statement)) {
            *out = db->kept[i].statement;
            return OK;
        }
    }
    if (db->n_kept == MAX_STATEMENTS) {
        return err_set(err, ERR_LIMIT, "the store: too many statements");
    }
    int code = sqlite3_prepare_v3(db->handle, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    if (code != SQLITE_OK) {
        return fail(db, code, err);
    }
    db->kept[db->n_kept].sql = sql;
    db->kept[db->n_kept++].statement = *out;
    return OK;
}

/* Binds the caller's memory without copying: all arguments outlive the execution. */
static enum status bind(struct db *db, sqlite3_stmt *s, const char *types, va_list args,
                        struct err *err)
{
    int code = SQLITE_OK;
    for (int i = 0; types[i] && code == SQLITE_OK; i++) {
        if (types[i] == 't') {
            code = sqlite3_bind_text(s, i + 1, va_arg(args, const char *), -1, SQLITE_TRANSIENT);
        } else if (types[i] == 'i') {
            code = sqlite3_bind_int64(s, i + 1, va_arg(args, int64_t));
        } else {
            const void *bytes = va_arg(args, const void *);
            size_t n_bytes = va_arg(args, size_t);
            code = sqlite3_bind_blob64(s, i + 1, bytes, n_bytes, SQLITE_STATIC);
        }
    }
    if (code != SQLITE_OK) {
        return fail(db, code, err);
    }
    return OK;
}

static enum status start(struct db *db, const char *sql, const char *types, va_list args,
                         sqlite3_stmt **out, struct err *err)
{
    TRY(find_statement(db, sql, out, err));
    enum status st = bind(db, *out, types, args, err);
    if (st != OK) {
        sqlite3_clear_bindings(*out);
    }
    return st;
}

static enum status step_once(struct db *db, sqlite3_stmt *s, struct err *err)
{
    int code = sqlite3_step(s);
    enum status st = code == SQLITE_DONE || code == SQLITE_ROW ? OK : fail(db, code, err);
    sqlite3_reset(s);
    return st;
}

/* types: one letter for each value, i, t or b. Outside of a transaction a full disk is
 * handled here. */
enum status db_run(struct db *db, struct err *err, const char *sql, const char *types, ...)
{
    sqlite3_stmt *s;
    va_list args;
    va_start(args, types);
    enum status st = start(db, sql, types, args, &s, err);
    va_end(args);
    TRY(st);
    bool alone = sqlite3_get_autocommit(db->handle);
    st = step_once(db, s, err);
    while (st != OK && alone && db_make_room(db)) {
        st = step_once(db, s, err);
    }
    sqlite3_clear_bindings(s);
    if (alone) {
        db_keep_room(db);
    }
    return st;
}

int64_t db_changes(const struct db *db)
{
    return sqlite3_changes(db->handle);
}

enum status db_query(struct db *db, struct db_rows **rows, struct err *err, const char *sql,
                     const char *types, ...)
{
    sqlite3_stmt *s;
    va_list args;
    *rows = NULL;
    va_start(args, types);
    enum status st = start(db, sql, types, args, &s, err);
    va_end(args);
    TRY(st);
    *rows = xcalloc(1, sizeof **rows);
    **rows = (struct db_rows){.db = db, .statement = s, .last = SQLITE_ROW};
    return OK;
}

bool db_next(struct db_rows *rows)
{
    if (rows->last == SQLITE_ROW) {
        rows->last = sqlite3_step(rows->statement);
    }
    return rows->last == SQLITE_ROW;
}

int64_t db_int(struct db_rows *rows, int column)
{
    return sqlite3_column_int64(rows->statement, column);
}

const char *db_text(struct db_rows *rows, int column)
{
    const unsigned char *text = sqlite3_column_text(rows->statement, column);
    return text ? (const char *)text : "";
}

const void *db_bytes(struct db_rows *rows, int column, size_t *n_bytes)
{
    const void *bytes = sqlite3_column_blob(rows->statement, column);
    *n_bytes = (size_t)sqlite3_column_bytes(rows->statement, column);
    return bytes;
}

enum status db_end(struct db_rows *rows, struct err *err)
{
    bool good = rows->last == SQLITE_ROW || rows->last == SQLITE_DONE;
    enum status st = good ? OK : fail(rows->db, rows->last, err);
    sqlite3_reset(rows->statement);
    sqlite3_clear_bindings(rows->statement);
    free(rows);
    return st;
}

enum status db_begin(struct db *db, struct err *err)
{
    return db_script(db, "BEGIN IMMEDIATE", err);
}

enum status db_commit(struct db *db, struct err *err)
{
    return db_script(db, "COMMIT", err);
}

void db_abort(struct db *db)
{
    if (!sqlite3_get_autocommit(db->handle)) {
        sqlite3_exec(db->handle, "ROLLBACK", NULL, NULL, NULL);
    }
}

/* The size of the database without the free pages inside its file. */
int64_t db_size_bytes(struct db *db)
{
    struct db_rows *rows;
    int64_t pages = 0;
    if (db_query(db, &rows, NULL,
                 "SELECT page_count - freelist_count FROM pragma_page_count(), "
                 "pragma_freelist_count()",
                 "") == OK) {
        pages = db_next(rows) ? db_int(rows, 0) : 0;
        db_end(rows, NULL);
    }
    return pages * PAGE_BYTES;
}
