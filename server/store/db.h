// SPDX-License-Identifier: Apache-2.0
/* SQLite, for the store alone: a database that one process owns, statements with their arguments in
 * one call, and errors as sentences.
 * Thread: one at a time; the store's lock sees to it. */
#ifndef SLUICE_SERVER_STORE_DB_H
#define SLUICE_SERVER_STORE_DB_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct db;

/* path NULL: a database that lives in a temporary file of its own and ends with the process.
 * ERR_BUSY: another process has it open. What is committed survives the process and a power cut.
 * Beside a path lies PATH-reserve, which holds room on the disk for db_make_room. */
enum status db_open(const char *path, int64_t max_bytes, struct db **out, struct err *err);
void db_close(struct db *db); // accepts NULL

/* Several statements without arguments. */
enum status db_script(struct db *db, const char *sql, struct err *err);

/* A statement that returns no rows. Outside of a transaction it does what db_make_room is for.
 * `types` has a letter for each of the statement's parameters, and says what follows: t text (const
 * char *, NULL is a null), i int64_t, b bytes (const void *, size_t). ERR_LIMIT: the store's size,
 * or the disk, is full. */
enum status db_run(struct db *db, struct err *err, const char *sql, const char *types, ...);
int64_t db_changes(const struct db *db); // rows that the last db_run changed

/* Rows, one by one:
 *
 *     struct db_rows *rows;
 *     TRY(db_query(db, &rows, err, "SELECT a, b FROM t WHERE c = ?", "i", c));
 *     while (db_next(rows)) { ... db_int(rows, 0) ... db_text(rows, 1) ... }
 *     return db_end(rows, err);
 *
 * Texts and bytes live until the next db_next. */
struct db_rows;
enum status db_query(struct db *db, struct db_rows **rows, struct err *err, const char *sql,
                     const char *types, ...);
bool db_next(struct db_rows *rows);
int64_t db_int(struct db_rows *rows, int column);      // 0 for a null
const char *db_text(struct db_rows *rows, int column); // "" for a null
const void *db_bytes(struct db_rows *rows, int column, size_t *n_bytes);
enum status db_end(struct db_rows *rows, struct err *err); // an error of any db_next shows here

/* All of what lies between happens, or nothing. db_abort may follow any failure. */
enum status db_begin(struct db *db, struct err *err);
enum status db_commit(struct db *db, struct err *err);
void db_abort(struct db *db);

/* After a transaction that failed and was aborted: whether there was no room on the disk, and now
 * is some for another attempt, which succeeds if it takes none for good: one that deletes or
 * updates, or uses what was deleted before. Afterwards, however it went, db_keep_room:
 *
 *     st = attempt();
 *     while (st != OK && db_make_room(db)) {
 *         st = attempt();
 *     }
 *     db_keep_room(db); */
bool db_make_room(struct db *db);
void db_keep_room(struct db *db);

int64_t db_size_bytes(struct db *db);

#endif
