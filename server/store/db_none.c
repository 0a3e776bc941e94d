// SPDX-License-Identifier: Apache-2.0
/* Replaces db.c in builds without SQLite: no database can be opened, so the other functions are
 * never called. */
#include "server/store/db.h"

#include "engine/base/assert.h"

#include <stddef.h>

enum status db_open(const char *path, int64_t max_bytes, struct db **out, struct err *err)
{
    (void)path;
    (void)max_bytes;
    *out = NULL;
    return err_set(err, ERR_UNSUPPORTED,
                   "this program was built without SQLite, which keeps files and batches");
}

void db_close(struct db *db)
{
    ASSERT(!db);
}

static enum status none(struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "there is no database");
}

enum status db_script(struct db *db, const char *sql, struct err *err)
{
    (void)db;
    (void)sql;
    return none(err);
}

enum status db_run(struct db *db, struct err *err, const char *sql, const char *types, ...)
{
    (void)db;
    (void)sql;
    (void)types;
    return none(err);
}

int64_t db_changes(const struct db *db)
{
    (void)db;
    return 0;
}

enum status db_query(struct db *db, struct db_rows **rows, struct err *err, const char *sql,
                     const char *types, ...)
{
    (void)db;
    (void)sql;
    (void)types;
    *rows = NULL;
    return none(err);
}

bool db_next(struct db_rows *rows)
{
    (void)rows;
    return false;
}

int64_t db_int(struct db_rows *rows, int column)
{
    (void)rows;
    (void)column;
    return 0;
}

const char *db_text(struct db_rows *rows, int column)
{
    (void)rows;
    (void)column;
    return "";
}

const void *db_bytes(struct db_rows *rows, int column, size_t *n_bytes)
{
    (void)rows;
    (void)column;
    *n_bytes = 0;
    return "";
}

enum status db_end(struct db_rows *rows, struct err *err)
{
    (void)rows;
    return none(err);
}

enum status db_begin(struct db *db, struct err *err)
{
    (void)db;
    return none(err);
}

enum status db_commit(struct db *db, struct err *err)
{
    (void)db;
    return none(err);
}

void db_abort(struct db *db)
{
    (void)db;
}

bool db_make_room(struct db *db)
{
    (void)db;
    return false;
}

void db_keep_room(struct db *db)
{
    (void)db;
}

int64_t db_size_bytes(struct db *db)
{
    (void)db;
    return 0;
}
