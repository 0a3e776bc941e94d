// SPDX-License-Identifier: Apache-2.0
/* SQLite, for use by the store: a database owned by one process, statements and their arguments in
 * one call, and error messages as sentences.
 * Thread: one at a time; the store's lock ensures that. */
#ifndef SLUICE_SERVER_STORE_DB_H
#define SLUICE_SERVER_STORE_DB_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct db;

/* path NULL: the database is in a temporary file that is deleted when the process ends. ERR_BUSY:
 * another process has it open. Committed changes survive the process and a power cut. PATH-reserve
 * holds disk space for db_make_room. */
enum status db_open(const char *path, int64_t max_bytes, struct db **out, struct err *err);
void db_close(struct db *db); // accepts NULL

/* Several statements without arguments. */
enum status db_script(struct db *db, const char *sql, struct err *err);

/* A statement that returns no rows. Outside of a transaction it uses db_make_room itself. `types`
 * has a letter for each parameter of the statement: t text (const char *, NULL is SQL NULL), i
 * int64_t, b bytes (const void *, size_t). ERR_LIMIT: the store's size limit is reached, or the
 * disk is full. */
enum status db_run(struct db *db, struct err *err, const char *sql, const char *types, ...);
int64_t db_changes(const struct db *db); // rows that the last db_run changed

/* | Iterates over rows:
 *
 *     struct db_rows *rows;
 *     TRY(db_query(db, &rows, err, "SELECT a, b FROM t WHERE c = ?", "i", c));
 *     while (db_next(rows)) { ... db_int(rows, 0) ... db_text(rows, 1) ... }
 *     return db_end(rows, err);
 *
 * Texts and bytes are valid until the next db_next. */
struct db_rows;
enum status db_query(struct db *db, struct db_rows **rows, struct err *err, const char *sql,
                     const char *types, ...);
bool db_next(struct db_rows *rows);
int64_t db_int(struct db_rows *rows, int column);      // 0 for NULL
const char *db_text(struct db_rows *rows, int column); // "" for NULL
const void *db_bytes(struct db_rows *rows, int column, size_t *n_bytes);
enum status db_end(struct db_rows *rows, struct err *err); // returns the error of any db_next

/* Everything between db_begin and db_commit is done completely or not at all. db_abort may be
 * called after any failure. */
enum status db_begin(struct db *db, struct err *err);
enum status db_commit(struct db *db, struct err *err);
void db_abort(struct db *db);

/* | Called after a transaction has failed and was aborted. True if the disk was full and there is
 * now space for another attempt. The attempt succeeds if the database need not grow: if it deletes
 * or updates rows, or fills pages that are free. Always followed by db_keep_room:
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
