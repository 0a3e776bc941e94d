// SPDX-License-Identifier: Apache-2.0
/* Files in chunks of fixed size, so that parts can be read and large files need no large
 * allocation. */
#include "server/store/private.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- content in chunks -------------------------------------------------------------------- */

/* The file's row exists from the start, but is not `ready`, so that nobody sees an upload that was
 * cut off. */
enum status chunks_begin(struct chunk_writer *w, struct store *s, struct err *err)
{
    *w = (struct chunk_writer){.store = s};
    buf_init(&w->rest, CHUNK_BYTES);
    TRY(db_run(s->db, err, "INSERT INTO files (ready) VALUES (0)", ""));
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT last_insert_rowid()", ""));
    w->file = db_next(rows) ? db_int(rows, 0) : 0;
    return db_end(rows, err);
}

static enum status write_chunk(struct chunk_writer *w, struct err *err)
{
    enum status st =
        db_run(w->store->db, err, "INSERT INTO chunks (file, n, data) VALUES (?, ?, ?)", "iib",
               w->file, w->n_chunks, (const void *)w->rest.data, w->rest.n_bytes);
    w->n_chunks++;
    buf_clear(&w->rest);
    return st;
}

/* Collects bytes into chunks; called within a transaction or with the lock held. */
enum status chunks_write(struct chunk_writer *w, const void *bytes, size_t n_bytes, struct err *err)
{
    const char *at = bytes;
    while (n_bytes > 0) {
        size_t room = CHUNK_BYTES - w->rest.n_bytes, n = lesser(n_bytes, room);
        buf_put(&w->rest, at, n);
        if (w->rest.failed) {
            return err_set(err, ERR_NOMEM, "no memory for a file");
        }
        w->n_bytes += (int64_t)n;
        at += n;
        n_bytes -= n;
        if (w->rest.n_bytes == CHUNK_BYTES) {
            TRY(write_chunk(w, err));
        }
    }
    return OK;
}

/* The file becomes visible. */
enum status chunks_end(struct chunk_writer *w, const char *owner, struct stored_file *file,
                       struct err *err)
{
    if (w->rest.n_bytes > 0) {
        TRY(write_chunk(w, err));
    }
    file->bytes = w->n_bytes;
    store_make_id(file->id, "file-");
    return db_run(w->store->db, err,
                  "UPDATE files SET id = ?, owner = ?, filename = ?, purpose = ?, bytes = ?,"
                  " created_at = ?, expires_at = ?, ready = 1 WHERE row = ?",
                  "ttttiiii", file->id, owner, file->filename, file->purpose, file->bytes,
                  file->created_at, file->expires_at, w->file);
}

/* ---- uploads ------------------------------------------------------------------------------ */

struct store_upload {
    struct chunk_writer writer;
};

enum status store_upload_begin(struct store *s, struct store_upload **out, struct err *err)
{
    struct store_upload *u = xcalloc(1, sizeof *u);
    pthread_mutex_lock(&s->lock);
    enum status st = chunks_begin(&u->writer, s, err);
    pthread_mutex_unlock(&s->lock);
    if (st != OK) {
        buf_deinit(&u->writer.rest);
        free(u);
        u = NULL;
    }
    *out = u;
    return st;
}

/* The lock is held for one piece at a time, so that others can use the store during an upload. */
enum status store_upload_write(struct store_upload *u, const void *bytes, size_t n_bytes,
                               struct err *err)
{
    struct store *s = u->writer.store;
    if ((int64_t)n_bytes > s->options.max_file_bytes - u->writer.n_bytes) {
        return err_set(err, ERR_LIMIT, "the file is larger than %lld bytes",
                       (long long)s->options.max_file_bytes);
    }
    pthread_mutex_lock(&s->lock);
    enum status st = chunks_write(&u->writer, bytes, n_bytes, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

static void release(struct store_upload *u)
{
    buf_deinit(&u->writer.rest);
    free(u);
}

enum status store_upload_end(struct store_upload *u, const char *owner, struct stored_file *file,
                             struct err *err)
{
    struct store *s = u->writer.store;
    pthread_mutex_lock(&s->lock);
    enum status st = chunks_end(&u->writer, owner, file, err);
    pthread_mutex_unlock(&s->lock);
    if (st != OK) {
        store_upload_drop(u);
        return st;
    }
    release(u);
    return OK;
}

/* If the deletion fails, the next start of the server removes the rest. */
void store_upload_drop(struct store_upload *u)
{
    if (!u) {
        return;
    }
    struct store *s = u->writer.store;
    pthread_mutex_lock(&s->lock);
    db_run(s->db, NULL, "DELETE FROM chunks WHERE file = ?", "i", u->writer.file);
    db_run(s->db, NULL, "DELETE FROM files WHERE row = ?", "i", u->writer.file);
    pthread_mutex_unlock(&s->lock);
    release(u);
}

/* ---- files -------------------------------------------------------------------------------- */

#define FILE_COLUMNS "id, filename, purpose, bytes, created_at, expires_at"

static void take_file(struct db_rows *rows, struct stored_file *f)
{
    snprintf(f->id, sizeof f->id, "%s", db_text(rows, 0));
    snprintf(f->filename, sizeof f->filename, "%s", db_text(rows, 1));
    snprintf(f->purpose, sizeof f->purpose, "%s", db_text(rows, 2));
    f->bytes = db_int(rows, 3);
    f->created_at = db_int(rows, 4);
    f->expires_at = db_int(rows, 5);
}

bool store_file_find(struct store *s, const char *owner, const char *id, struct stored_file *out,
                     enum status *st, struct err *err)
{
    struct db_rows *rows;
    bool found = false;
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT " FILE_COLUMNS " FROM files WHERE id = ? AND owner = ? AND ready", "tt",
                   id, owner);
    if (*st == OK) {
        found = db_next(rows);
        if (found) {
            take_file(rows, out);
        }
        *st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    return found && *st == OK;
}

struct deletion {
    const char *owner, *id;
    bool found;
};

/* A file that a batch still reads is not deleted (NOT_USED). */
static enum status delete_file(struct store *s, void *arg, struct err *err)
{
    struct deletion *d = arg;
    TRY(db_run(s->db, err,
               "DELETE FROM chunks WHERE file ="
               " (SELECT row FROM files WHERE id = ? AND owner = ? AND ready" NOT_USED ")",
               "tt", d->id, d->owner));
    TRY(db_run(s->db, err, "DELETE FROM files WHERE id = ? AND owner = ? AND ready" NOT_USED, "tt",
               d->id, d->owner));
    d->found = db_changes(s->db) > 0;
    return OK;
}

bool store_file_delete(struct store *s, const char *owner, const char *id, enum status *st,
                       struct err *err)
{
    struct deletion d = {.owner = owner, .id = id};
    *st = store_change(s, delete_file, &d, err);
    return d.found && *st == OK;
}

/* Reads one row more than the page, to see whether there is a next page. An unknown `after` gives
 * an empty page. */
enum status store_file_list(struct store *s, const char *owner, const struct store_page *page,
                            struct stored_file **files, size_t *n, bool *has_more, struct err *err)
{
    static const char down[] = "SELECT " FILE_COLUMNS " FROM files WHERE owner = ?1 AND ready"
                               " AND (?2 IS NULL OR purpose = ?2)"
                               " AND (?3 IS NULL OR row < (SELECT row FROM files WHERE id = ?3))"
                               " ORDER BY row DESC LIMIT ?4";
    static const char up[] = "SELECT " FILE_COLUMNS " FROM files WHERE owner = ?1 AND ready"
                             " AND (?2 IS NULL OR purpose = ?2)"
                             " AND (?3 IS NULL OR row > (SELECT row FROM files WHERE id = ?3))"
                             " ORDER BY row LIMIT ?4";
    struct db_rows *rows;
    size_t cap = 0;
    *files = NULL;
    *n = 0;
    *has_more = false;
    pthread_mutex_lock(&s->lock);
    enum status st = db_query(s->db, &rows, err, page->oldest_first ? up : down, "ttti", owner,
                              page->purpose, page->after, page->limit + 1);
    while (st == OK && db_next(rows)) {
        if ((int64_t)*n == page->limit) {
            *has_more = true;
            break;
        }
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            *files = xrealloc(*files, cap * sizeof **files);
        }
        take_file(rows, &(*files)[(*n)++]);
    }
    if (st == OK) {
        st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Reads whole chunks from the one that contains the offset. */
enum status store_file_read(struct store *s, const char *id, int64_t offset, size_t max_bytes,
                            struct buf *out, struct err *err)
{
    struct db_rows *rows;
    pthread_mutex_lock(&s->lock);
    enum status st = db_query(s->db, &rows, err,
                              "SELECT data FROM chunks WHERE file ="
                              " (SELECT row FROM files WHERE id = ? AND ready) AND n >= ?"
                              " ORDER BY n",
                              "ti", id, offset / CHUNK_BYTES);
    size_t skip = (size_t)(offset % CHUNK_BYTES);
    while (st == OK && max_bytes > 0 && db_next(rows)) {
        size_t n_bytes;
        const char *data = db_bytes(rows, 0, &n_bytes);
        skip = lesser(skip, n_bytes);
        size_t n = lesser(n_bytes - skip, max_bytes);
        buf_put(out, data + skip, n);
        max_bytes -= n;
        skip = 0;
    }
    if (st == OK) {
        st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    if (st == OK && out->failed) {
        return err_set(err, ERR_NOMEM, "no memory for a file");
    }
    return st;
}
