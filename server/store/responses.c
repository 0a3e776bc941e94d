// SPDX-License-Identifier: Apache-2.0
/* Stored responses, with what is needed to continue from them. */
#include "server/store/private.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All responses together may take 1 / PART_OF_STORE of the store, so that files and batches find
 * space. */
enum { PART_OF_STORE = 4 };

void stored_response_deinit(struct stored_response *r)
{
    buf_deinit(&r->input);
    buf_deinit(&r->output);
    buf_deinit(&r->body);
}

/* Deletes the oldest responses until `more` bytes fit. Summing up all sizes is cheap compared with
 * writing one response. */
static enum status make_room(struct store *s, int64_t more, struct err *err)
{
    const int64_t most = s->options.max_bytes / PART_OF_STORE;
    if (more > most) {
        return err_set(err, ERR_LIMIT, "the response is larger than %lld bytes", (long long)most);
    }
    TRY(db_run(s->db, err,
               "DELETE FROM responses WHERE row IN (SELECT row FROM (SELECT row,"
               " sum(bytes) OVER (ORDER BY row DESC) AS newer FROM responses) WHERE newer > ?)",
               "i", most - more));
    return OK;
}

/* The ids of the output's items. */
static enum status put_names(struct store *s, const char *owner, const struct stored_response *r,
                             struct err *err)
{
    for (size_t i = 0; i < r->n_outputs; i++) {
        TRY(db_run(s->db, err,
                   "INSERT OR IGNORE INTO response_items (owner, response, id) VALUES (?, ?, ?)",
                   "ttt", owner, r->id, r->outputs[i].id));
    }
    return OK;
}

struct putting {
    const char *owner;
    const struct stored_response *response;
};

/* Replaces a response of the same id; the oldest responses are deleted to make space. */
static enum status put(struct store *s, void *arg, struct err *err)
{
    const char *owner = ((struct putting *)arg)->owner;
    const struct stored_response *r = ((struct putting *)arg)->response;
    const int64_t bytes =
        (int64_t)(r->input.n_bytes + r->output.n_bytes + r->body.n_bytes + r->lost.n_bytes +
                  r->events.n_bytes + r->n_outputs * sizeof r->outputs->id);
    bool found;
    TRY(make_room(s, bytes, err));
    if (r->conversation[0]) { // it may have been deleted in the meantime
        TRY(store_conversation_append(s, owner, r->conversation, r->items, r->n_items,
                                      r->expires_at, &found, err));
    }
    TRY(db_run(s->db, err, "DELETE FROM responses WHERE owner = ? AND id = ?", "tt", owner, r->id));
    TRY(put_names(s, owner, r, err));
    return db_run(s->db, err,
                  "INSERT INTO responses"
                  " (id, owner, previous, created_at, expires_at, bytes, input, output, body, lost,"
                  " events, background) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                  "tttiiibbbbbi", r->id, owner, r->previous, r->created_at, r->expires_at, bytes,
                  (const void *)r->input.data, r->input.n_bytes, (const void *)r->output.data,
                  r->output.n_bytes, (const void *)r->body.data, r->body.n_bytes,
                  (const void *)r->lost.data, r->lost.n_bytes, (const void *)r->events.data,
                  r->events.n_bytes, (int64_t)r->background);
}

enum status store_response_put(struct store *s, const char *owner, const struct stored_response *r,
                               struct err *err)
{
    struct putting p = {.owner = owner, .response = r};
    return store_change(s, put, &p, err);
}

/* Copies bytes out of the row, whose memory ends with the query. */
static void take_bytes(struct db_rows *rows, int column, struct buf *out)
{
    size_t n;
    const void *bytes = db_bytes(rows, column, &n);
    buf_init(out, n + 1);
    buf_put(out, bytes, n);
}

/* Also reports whether the response is still running. */
bool store_response_find(struct store *s, const char *owner, const char *id,
                         struct stored_response *out, enum status *st, struct err *err)
{
    struct db_rows *rows;
    *out = (struct stored_response){0};
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT id, previous, created_at, expires_at, input, output, body,"
                   " background, length(lost) > 0 FROM responses WHERE owner = ? AND id = ?",
                   "tt", owner, id);
    bool found = *st == OK && db_next(rows);
    if (found) {
        snprintf(out->id, sizeof out->id, "%s", db_text(rows, 0));
        snprintf(out->previous, sizeof out->previous, "%s", db_text(rows, 1));
        out->created_at = db_int(rows, 2);
        out->expires_at = db_int(rows, 3);
        take_bytes(rows, 4, &out->input);
        take_bytes(rows, 5, &out->output);
        take_bytes(rows, 6, &out->body);
        out->background = db_int(rows, 7) != 0;
        out->runs = db_int(rows, 8) != 0;
    }
    if (*st == OK) {
        *st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    if (found && (out->input.failed || out->output.failed || out->body.failed)) {
        *st = err_set(err, ERR_NOMEM, "no memory for a response");
    }
    if (*st != OK) {
        stored_response_deinit(out);
        *out = (struct stored_response){0};
    }
    return found && *st == OK;
}

/* Appends the first column of a query's first row to out, and ends the query. Returns whether there
 * was a row. */
static bool take_first(struct db_rows *rows, struct buf *out, enum status *st, struct err *err)
{
    const bool found = *st == OK && db_next(rows);
    if (found) {
        size_t n;
        const void *bytes = db_bytes(rows, 0, &n);
        buf_put(out, bytes, n);
    }
    if (*st == OK) {
        *st = db_end(rows, err);
    }
    return found && *st == OK;
}

/* The events of a response that ran in the background, for clients that reconnect. */
bool store_response_events(struct store *s, const char *owner, const char *id, struct buf *out,
                           enum status *st, struct err *err)
{
    struct db_rows *rows = NULL;
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err, "SELECT events FROM responses WHERE owner = ? AND id = ?",
                   "tt", owner, id);
    const bool found = take_first(rows, out, st, err);
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Returns whether there was such a response. */
bool store_response_delete(struct store *s, const char *owner, const char *id, enum status *st,
                           struct err *err)
{
    pthread_mutex_lock(&s->lock);
    *st = db_run(s->db, err, "DELETE FROM responses WHERE owner = ? AND id = ?", "tt", owner, id);
    bool deleted = *st == OK && db_changes(s->db) > 0;
    pthread_mutex_unlock(&s->lock);
    return deleted;
}

bool store_item_find(struct store *s, const char *owner, const char *id, struct buf *out,
                     enum status *st, struct err *err)
{
    struct db_rows *rows = NULL;
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT output FROM response_items AS names JOIN responses"
                   " ON responses.owner = names.owner AND responses.id = response"
                   " WHERE names.owner = ? AND names.id = ?"
                   " UNION ALL SELECT text FROM items JOIN conversations"
                   " ON conversation = conversations.row WHERE owner = ? AND items.id = ? LIMIT 1",
                   "tttt", owner, id, owner, id);
    const bool found = take_first(rows, out, st, err);
    pthread_mutex_unlock(&s->lock);
    return found;
}
