// SPDX-License-Identifier: Apache-2.0
/* Batches in the database: their states, the answers of their lines, and the files made from the
 * answers. */
#include "server/store/private.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const batch_status_names[N_BATCH_STATUSES] = {
    "validating", "in_progress", "finalizing", "completed",
    "failed",     "expired",     "cancelling", "cancelled",
};

#define BATCH_COLUMNS                                                                              \
    "id, owner, endpoint, window, input_file, output_file, error_file, model, metadata, errors,"   \
    " status, created_at, expires_at, n_total, n_completed, n_failed, input_tokens,"               \
    " cached_tokens, output_tokens, output_expires_s, row"

void stored_batch_deinit(struct stored_batch *b)
{
    free(b->metadata);
    free(b->errors);
    b->metadata = b->errors = NULL;
}

static char *text_or_null(const char *text)
{
    if (text[0]) {
        return xstrdup(text);
    }
    return NULL;
}

static void copy_text(char *to, size_t n_bytes, struct db_rows *rows, int column)
{
    snprintf(to, n_bytes, "%s", db_text(rows, column));
}

/* Copies a row of BATCH_COLUMNS to b, and returns its row number. */
static int64_t take_batch(struct db_rows *rows, struct stored_batch *b)
{
    *b = (struct stored_batch){.status = (enum batch_status)db_int(rows, 10)};
    copy_text(b->id, sizeof b->id, rows, 0);
    copy_text(b->owner, sizeof b->owner, rows, 1);
    copy_text(b->endpoint, sizeof b->endpoint, rows, 2);
    copy_text(b->window, sizeof b->window, rows, 3);
    copy_text(b->input_file, sizeof b->input_file, rows, 4);
    copy_text(b->output_file, sizeof b->output_file, rows, 5);
    copy_text(b->error_file, sizeof b->error_file, rows, 6);
    copy_text(b->model, sizeof b->model, rows, 7);
    b->metadata = text_or_null(db_text(rows, 8));
    b->errors = text_or_null(db_text(rows, 9));
    b->created_at = db_int(rows, 11);
    b->expires_at = db_int(rows, 12);
    b->n_total = db_int(rows, 13);
    b->n_completed = db_int(rows, 14);
    b->n_failed = db_int(rows, 15);
    b->input_tokens = db_int(rows, 16);
    b->cached_tokens = db_int(rows, 17);
    b->output_tokens = db_int(rows, 18);
    b->output_expires_s = db_int(rows, 19);
    return db_int(rows, 20);
}

/* Reads when the batch entered each of its states. */
static enum status take_times(struct store *s, int64_t row, struct stored_batch *b, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT status, at FROM batch_times WHERE batch = ?", "i",
                 row));
    while (db_next(rows)) {
        int64_t status = db_int(rows, 0);
        if (status >= 0 && status < N_BATCH_STATUSES) {
            b->since[status] = db_int(rows, 1);
        }
    }
    return db_end(rows, err);
}

/* ---- creating and finding ----------------------------------------------------------------- */

/* Also makes the batch's id. */
static enum status create_batch(struct store *s, struct stored_batch *b, struct err *err)
{
    store_make_id(b->id, "batch_");
    b->status = BATCH_VALIDATING;
    return db_run(
        s->db, err,
        "INSERT INTO batches (id, owner, endpoint, window, input_file, output_file,"
        " error_file, model, metadata, errors, status, created_at, expires_at, n_total,"
        " n_completed, n_failed, input_tokens, cached_tokens, output_tokens, output_expires_s)"
        " VALUES (?, ?, ?, ?, ?, '', '', '', ?, '', ?, ?, ?, 0, 0, 0, 0, 0, 0, ?)",
        "ttttttiiii", b->id, b->owner, b->endpoint, b->window, b->input_file, b->metadata,
        (int64_t)b->status, b->created_at, b->expires_at, b->output_expires_s);
}

enum status store_batch_create(struct store *s, struct stored_batch *b, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    enum status st = create_batch(s, b, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* One row more than the limit is read, to know whether there is another page. */
static enum status list_batches(struct store *s, struct db_rows *rows, int64_t limit,
                                struct stored_batch **batches, size_t *n, bool *has_more,
                                struct err *err)
{
    size_t cap = 0;
    int64_t *places = NULL;
    while (db_next(rows)) {
        if ((int64_t)*n == limit) {
            *has_more = true;
            break;
        }
        if (*n == cap) {
            cap = cap ? 2 * cap : 16;
            *batches = xrealloc(*batches, cap * sizeof **batches);
            places = xrealloc(places, cap * sizeof *places);
        }
        places[*n] = take_batch(rows, &(*batches)[*n]);
        ++*n;
    }
    enum status st = db_end(rows, err);
    for (size_t i = 0; i < *n && st == OK; i++) {
        st = take_times(s, places[i], &(*batches)[i], err);
    }
    free(places);
    return st;
}

/* owner NULL: the batch of any owner, for the code that runs batches. */
bool store_batch_find(struct store *s, const char *owner, const char *id, struct stored_batch *out,
                      enum status *st, struct err *err)
{
    struct db_rows *rows;
    struct stored_batch *list = NULL;
    size_t n = 0;
    bool more = false;
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT " BATCH_COLUMNS " FROM batches WHERE id = ?1"
                   " AND (?2 IS NULL OR owner = ?2)",
                   "tt", id, owner);
    if (*st == OK) {
        *st = list_batches(s, rows, 1, &list, &n, &more, err);
    }
    pthread_mutex_unlock(&s->lock);
    if (n == 1) {
        *out = list[0];
    }
    free(list);
    return n == 1 && *st == OK;
}

/* Pages are ordered by row number, which grows with time. */
enum status store_batch_list(struct store *s, const char *owner, const struct store_page *page,
                             struct stored_batch **batches, size_t *n, bool *has_more,
                             struct err *err)
{
    struct db_rows *rows;
    *batches = NULL;
    *n = 0;
    *has_more = false;
    pthread_mutex_lock(&s->lock);
    enum status st = db_query(s->db, &rows, err,
                              "SELECT " BATCH_COLUMNS " FROM batches"
                              " WHERE (?1 IS NULL OR owner = ?1)"
                              " AND (?2 IS NULL OR row < (SELECT row FROM batches WHERE id = ?2))"
                              " ORDER BY row DESC LIMIT ?3",
                              "tti", owner, page->after, page->limit + 1);
    if (st == OK) {
        st = list_batches(s, rows, page->limit, batches, n, has_more, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* The batches that are continued after a restart. */
enum status store_batch_unfinished(struct store *s, struct stored_batch **batches, size_t *n,
                                   struct err *err)
{
    struct db_rows *rows;
    bool more = false;
    *batches = NULL;
    *n = 0;
    pthread_mutex_lock(&s->lock);
    enum status st = db_query(s->db, &rows, err,
                              "SELECT " BATCH_COLUMNS " FROM batches"
                              " WHERE status NOT IN " ENDED_STATUSES " ORDER BY row",
                              "");
    if (st == OK) {
        st = list_batches(s, rows, INT64_MAX, batches, n, &more, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ---- life cycle --------------------------------------------------------------------------- */

/* Called within a transaction. */
static enum status set_status(struct store *s, const char *id, enum batch_status to, int64_t now,
                              struct err *err)
{
    TRY(db_run(s->db, err, "UPDATE batches SET status = ? WHERE id = ?", "it", (int64_t)to, id));
    return db_run(s->db, err,
                  "INSERT OR IGNORE INTO batch_times (batch, status, at)"
                  " SELECT row, ?, ? FROM batches WHERE id = ?",
                  "iit", (int64_t)to, now, id);
}

/* A change of state that is only allowed from some states. */
struct move {
    const char *id;
    unsigned from;
    enum batch_status to;
    int64_t now;
    bool moved;
};

/* Reading and writing are one transaction, so a cancellation and an end cannot both
 * succeed. */
static enum status move_batch(struct store *s, void *arg, struct err *err)
{
    struct move *m = arg;
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT status FROM batches WHERE id = ?", "t", m->id));
    m->moved = db_next(rows) && (m->from & 1u << (unsigned)db_int(rows, 0)) != 0;
    TRY(db_end(rows, err));
    if (m->moved) {
        return set_status(s, m->id, m->to, m->now, err);
    }
    return OK;
}

bool store_batch_move(struct store *s, const char *id, unsigned from, enum batch_status to,
                      int64_t now, enum status *st, struct err *err)
{
    struct move m = {.id = id, .from = from, .to = to, .now = now};
    *st = store_change(s, move_batch, &m, err);
    return m.moved && *st == OK;
}

struct begin {
    const char *id, *model;
    int64_t n_total, now;
};

/* The status becomes IN_PROGRESS; the number of lines is known now. */
static enum status begin_batch(struct store *s, void *arg, struct err *err)
{
    const struct begin *b = arg;
    TRY(db_run(s->db, err, "UPDATE batches SET n_total = ?, model = ? WHERE id = ?", "itt",
               b->n_total, b->model, b->id));
    struct move m = {
        .id = b->id, .from = 1u << BATCH_VALIDATING, .to = BATCH_IN_PROGRESS, .now = b->now};
    return move_batch(s, &m, err);
}

enum status store_batch_begin(struct store *s, const char *id, int64_t n_total, const char *model,
                              int64_t now, struct err *err)
{
    struct begin b = {.id = id, .model = model, .n_total = n_total, .now = now};
    return store_change(s, begin_batch, &b, err);
}

struct failure {
    const char *id, *errors;
    int64_t now;
};

static enum status fail_batch(struct store *s, void *arg, struct err *err)
{
    const struct failure *f = arg;
    TRY(db_run(s->db, err, "UPDATE batches SET errors = ? WHERE id = ?", "tt", f->errors, f->id));
    return set_status(s, f->id, BATCH_FAILED, f->now, err);
}

enum status store_batch_fail(struct store *s, const char *id, const char *errors, int64_t now,
                             struct err *err)
{
    struct failure f = {.id = id, .errors = errors, .now = now};
    return store_change(s, fail_batch, &f, err);
}

/* ---- answers ------------------------------------------------------------------------------ */

/* Answers that are stored in one transaction. */
struct answering {
    const char *id;
    const struct batch_answer *answers;
    size_t n;
};

/* Finds the row number of a batch, by which other tables refer to it. */
static enum status find_row(struct store *s, const char *id, int64_t *row, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT row FROM batches WHERE id = ?", "t", id));
    bool found = db_next(rows);
    *row = found ? db_int(rows, 0) : 0;
    TRY(db_end(rows, err));
    if (!found) {
        return err_set(err, ERR_INVALID, "there is no batch %s", id);
    }
    return OK;
}

/* INSERT OR IGNORE: an answer that is already stored is kept, and is not counted again. So a job
 * may repeat answers after a crash. */
static enum status put_answers(struct store *s, void *arg, struct err *err)
{
    const struct answering *a = arg;
    int64_t row, n_completed = 0, n_failed = 0, input = 0, cached = 0, output = 0;
    TRY(find_row(s, a->id, &row, err));
    for (size_t i = 0; i < a->n; i++) {
        const struct batch_answer *one = &a->answers[i];
        TRY(db_run(s->db, err,
                   "INSERT OR IGNORE INTO answers (batch, line, failed, text) VALUES (?, ?, ?, ?)",
                   "iiib", row, one->line, (int64_t)one->failed, (const void *)one->text,
                   one->n_bytes));
        if (db_changes(s->db) == 0) {
            continue; // it already has an answer
        }
        n_failed += one->failed;
        n_completed += !one->failed;
        input += one->input_tokens;
        cached += one->cached_tokens;
        output += one->output_tokens;
    }
    return db_run(s->db, err,
                  "UPDATE batches SET n_completed = n_completed + ?, n_failed = n_failed + ?,"
                  " input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?,"
                  " output_tokens = output_tokens + ? WHERE row = ?",
                  "iiiiii", n_completed, n_failed, input, cached, output, row);
}

enum status store_batch_answer(struct store *s, const char *id, const struct batch_answer *answers,
                               size_t n, struct err *err)
{
    struct answering a = {.id = id, .answers = answers, .n = n};
    return store_change(s, put_answers, &a, err);
}

/* A bit for each line that has an answer. */
enum status store_batch_answered(struct store *s, const char *id, uint8_t *bits, int64_t n_lines,
                                 struct err *err)
{
    struct db_rows *rows;
    int64_t row;
    memset(bits, 0, ((size_t)n_lines + 7) / 8);
    pthread_mutex_lock(&s->lock);
    enum status st = find_row(s, id, &row, err);
    if (st == OK) {
        st = db_query(s->db, &rows, err, "SELECT line FROM answers WHERE batch = ?", "i", row);
    }
    if (st == OK) {
        while (db_next(rows)) {
            int64_t line = db_int(rows, 0);
            if (line >= 0 && line < n_lines) {
                bits[line / 8] |= (uint8_t)(1u << line % 8);
            }
        }
        st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ---- the end ------------------------------------------------------------------------------ */

/* What finish_batch writes in one transaction. */
struct finish {
    const char *id;
    enum batch_status end;
    int64_t now, files_expire_at;
};

/* Writes a file of the failed answers, or of the others. If there are no such answers, no file is
 * made, and its id is empty. */
static enum status write_answers(struct store *s, int64_t row, bool failed, const char *owner,
                                 struct stored_file *file, struct err *err)
{
    struct chunk_writer w = {0};
    struct db_rows *rows;
    bool begun = false;
    TRY(db_query(s->db, &rows, err,
                 "SELECT text FROM answers WHERE batch = ? AND failed = ? ORDER BY line", "ii", row,
                 (int64_t)failed));
    enum status st = OK;
    while (st == OK && db_next(rows)) {
        size_t n_bytes;
        const void *text = db_bytes(rows, 0, &n_bytes);
        if (!begun) {
            st = chunks_begin(&w, s, err);
            begun = true;
        }
        if (st == OK) {
            st = chunks_write(&w, text, n_bytes, err);
        }
        if (st == OK) {
            st = chunks_write(&w, "\n", 1, err);
        }
    }
    enum status end = db_end(rows, st == OK ? err : NULL);
    if (st == OK) {
        st = end;
    }
    if (st == OK && begun) {
        st = chunks_end(&w, owner, file, err);
    }
    buf_deinit(&w.rest);
    return st;
}

/* Moves the answers from their rows to files and ends the batch, in one transaction. */
static enum status finish_batch(struct store *s, void *arg, struct err *err)
{
    const struct finish *f = arg;
    struct stored_file good = {
        .purpose = "batch_output", .created_at = f->now, .expires_at = f->files_expire_at};
    struct stored_file bad = good;
    char owner[STORE_NAME_BYTES];
    struct db_rows *rows;
    int64_t row;
    snprintf(good.filename, sizeof good.filename, "%s_output.jsonl", f->id);
    snprintf(bad.filename, sizeof bad.filename, "%s_error.jsonl", f->id);
    TRY(find_row(s, f->id, &row, err));
    TRY(db_query(s->db, &rows, err, "SELECT owner FROM batches WHERE row = ?", "i", row));
    snprintf(owner, sizeof owner, "%s", db_next(rows) ? db_text(rows, 0) : "");
    TRY(db_end(rows, err));
    TRY(write_answers(s, row, false, owner, &good, err));
    TRY(write_answers(s, row, true, owner, &bad, err));
    TRY(db_run(s->db, err, "UPDATE batches SET output_file = ?, error_file = ? WHERE row = ?",
               "tti", good.id, bad.id, row));
    TRY(db_run(s->db, err, "DELETE FROM answers WHERE batch = ?", "i", row));
    return set_status(s, f->id, f->end, f->now, err);
}

enum status store_batch_finish(struct store *s, const char *id, enum batch_status end, int64_t now,
                               int64_t files_expire_at, struct err *err)
{
    struct finish f = {.id = id, .end = end, .now = now, .files_expire_at = files_expire_at};
    return store_change(s, finish_batch, &f, err);
}
