// SPDX-License-Identifier: Apache-2.0
/* Conversations: items in the order in which they were added. */
#include "server/store/private.h"

#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All conversations together may take this fraction of the store: 1 / PART_OF_STORE. */
enum { PART_OF_STORE = 4 };

void stored_conversation_deinit(struct stored_conversation *c)
{
    free(c->metadata);
    c->metadata = NULL;
}

/* Deletes the conversations that have been unchanged for the longest, until `more` bytes fit. */
static enum status make_room(struct store *s, int64_t row, int64_t more, struct err *err)
{
    const int64_t most = s->options.max_bytes / PART_OF_STORE;
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT bytes FROM conversations WHERE row = ?", "i", row));
    int64_t own = db_next(rows) ? db_int(rows, 0) : 0;
    TRY(db_end(rows, err));
    if (own + more > most) {
        return err_set(err, ERR_LIMIT, "the conversation is larger than %lld bytes",
                       (long long)most);
    }
    TRY(db_run(s->db, err,
               "DELETE FROM conversations WHERE row IN (SELECT row FROM (SELECT row,"
               " sum(bytes) OVER (ORDER BY touched DESC, row DESC) AS newer FROM conversations"
               " WHERE row <> ?) WHERE newer > ?)",
               "ii", row, most - own - more));
    return db_run(s->db, err,
                  "DELETE FROM items WHERE conversation NOT IN (SELECT row FROM conversations)",
                  "");
}

/* *row is 0 if the owner has no such conversation. */
static enum status find_row(struct store *s, const char *owner, const char *id, int64_t *row,
                            struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT row FROM conversations WHERE owner = ? AND id = ?",
                 "tt", owner, id));
    *row = db_next(rows) ? db_int(rows, 0) : 0;
    return db_end(rows, err);
}

/* Adds items and the bytes that they take; the oldest conversations make room first. */
static enum status add_to(struct store *s, int64_t row, const struct stored_item *items, size_t n,
                          int64_t expires_at, struct err *err)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        bytes += (int64_t)items[i].text.n_bytes;
    }
    TRY(make_room(s, row, bytes, err));
    for (size_t i = 0; i < n; i++) {
        TRY(db_run(s->db, err,
                   "INSERT OR REPLACE INTO items (conversation, id, text) VALUES (?, ?, ?)", "itb",
                   row, items[i].id, (const void *)items[i].text.data, items[i].text.n_bytes));
    }
    return db_run(s->db, err,
                  "UPDATE conversations SET expires_at = ?,"
                  " bytes = 64 + (SELECT coalesce(sum(length(text)), 0) FROM items"
                  " WHERE conversation = ?),"
                  " touched = (SELECT max(touched) + 1 FROM conversations) WHERE row = ?",
                  "iii", expires_at, row, row);
}

/* Appends the items of a response at its end, within its transaction. A conversation that was
 * deleted meanwhile is not found, which is not an error. */
enum status store_conversation_append(struct store *s, const char *owner, const char *id,
                                      const struct stored_item *items, size_t n, int64_t expires_at,
                                      bool *found, struct err *err)
{
    int64_t row;
    TRY(find_row(s, owner, id, &row, err));
    *found = row != 0;
    if (row) {
        return add_to(s, row, items, n, expires_at, err);
    }
    return OK;
}

/* What a transaction adds: items and, if `created` is set, the conversation itself. */
struct addition {
    const char *owner, *id;
    struct stored_conversation *created; // the new conversation; NULL: the conversation exists
    const struct stored_item *items;
    size_t n;
    int64_t expires_at;
    bool found;
};

static enum status add(struct store *s, void *arg, struct err *err)
{
    struct addition *a = arg;
    return store_conversation_append(s, a->owner, a->id, a->items, a->n, a->expires_at, &a->found,
                                     err);
}

/* Creation and items in one transaction. */
static enum status create(struct store *s, void *arg, struct err *err)
{
    struct addition *a = arg;
    const struct stored_conversation *c = a->created;
    TRY(db_run(s->db, err,
               "INSERT INTO conversations (id, owner, created_at, expires_at, metadata, bytes,"
               " touched) VALUES (?, ?, ?, ?, ?, 64, 0)",
               "ttiit", c->id, a->owner, c->created_at, c->expires_at, c->metadata));
    return add(s, a, err);
}

enum status store_conversation_create(struct store *s, const char *owner,
                                      struct stored_conversation *c,
                                      const struct stored_item *items, size_t n, struct err *err)
{
    store_make_id(c->id, "conv_");
    struct addition a = {.owner = owner,
                         .id = c->id,
                         .created = c,
                         .items = items,
                         .n = n,
                         .expires_at = c->expires_at};
    return store_change(s, create, &a, err);
}

/* False without an error: there is no such conversation. */
bool store_conversation_add(struct store *s, const char *owner, const char *id,
                            const struct stored_item *items, size_t n, int64_t expires_at,
                            enum status *st, struct err *err)
{
    struct addition a = {
        .owner = owner, .id = id, .items = items, .n = n, .expires_at = expires_at};
    *st = store_change(s, add, &a, err);
    return a.found && *st == OK;
}

/* Looks up owner and id together, so that owners cannot find out each other's ids. */
bool store_conversation_find(struct store *s, const char *owner, const char *id,
                             struct stored_conversation *out, enum status *st, struct err *err)
{
    struct db_rows *rows;
    *out = (struct stored_conversation){0};
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT id, created_at, expires_at, metadata FROM conversations"
                   " WHERE owner = ? AND id = ?",
                   "tt", owner, id);
    bool found = *st == OK && db_next(rows);
    if (found) {
        snprintf(out->id, sizeof out->id, "%s", db_text(rows, 0));
        out->created_at = db_int(rows, 1);
        out->expires_at = db_int(rows, 2);
        out->metadata = xstrdup(db_text(rows, 3));
    }
    if (*st == OK) {
        *st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    return found && *st == OK;
}

/* True if the last statement, which changes at most one row, has found it. */
static bool changed(struct store *s, enum status *st)
{
    bool found = *st == OK && db_changes(s->db) > 0;
    pthread_mutex_unlock(&s->lock);
    return found;
}

/* Replaces the metadata, which is all that can be changed. */
bool store_conversation_describe(struct store *s, const char *owner, const char *id,
                                 const char *metadata, enum status *st, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    *st = db_run(s->db, err, "UPDATE conversations SET metadata = ? WHERE owner = ? AND id = ?",
                 "ttt", metadata, owner, id);
    return changed(s, st);
}

struct deletion {
    const char *owner, *id;
    bool found;
};

/* The items refer to the conversation's row number, which is read before the row is deleted. */
static enum status delete_all(struct store *s, void *arg, struct err *err)
{
    struct deletion *d = arg;
    int64_t row;
    TRY(find_row(s, d->owner, d->id, &row, err));
    d->found = row != 0;
    TRY(db_run(s->db, err, "DELETE FROM conversations WHERE row = ?", "i", row));
    return db_run(s->db, err, "DELETE FROM items WHERE conversation = ?", "i", row);
}

bool store_conversation_delete(struct store *s, const char *owner, const char *id, enum status *st,
                               struct err *err)
{
    struct deletion d = {.owner = owner, .id = id};
    *st = store_change(s, delete_all, &d, err);
    return d.found && *st == OK;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* The text is copied, since the row's memory ends with the query. */
static void take_item(struct db_rows *rows, struct stored_item *item)
{
    size_t n;
    const void *text = db_bytes(rows, 1, &n);
    snprintf(item->id, sizeof item->id, "%s", db_text(rows, 0));
    buf_init(&item->text, n + 1);
    buf_put(&item->text, text, n);
}

/* Finds where a page starts: after the item page->after, or at the beginning in the requested
 * order. */
static enum status find_start(struct store *s, int64_t row, const struct store_page *page,
                              int64_t *at, struct err *err)
{
    struct db_rows *rows;
    *at = page->oldest_first ? 0 : INT64_MAX;
    if (!page->after) {
        return OK;
    }
    TRY(db_query(s->db, &rows, err, "SELECT row FROM items WHERE conversation = ? AND id = ?", "it",
                 row, page->after));
    if (db_next(rows)) {
        *at = db_int(rows, 0);
    } else {
        *at = page->oldest_first ? INT64_MAX : 0; // an unknown id gives an empty page
    }
    return db_end(rows, err);
}

/* A page, in either order, beginning after the cursor's item. */
static enum status list(struct store *s, int64_t row, const struct store_page *page,
                        struct stored_item *items, size_t *n, bool *has_more, struct err *err)
{
    struct db_rows *rows;
    int64_t at;
    TRY(find_start(s, row, page, &at, err));
    TRY(db_query(s->db, &rows, err,
                 page->oldest_first
                     ? "SELECT id, text FROM items WHERE conversation = ? AND row > ?"
                       " ORDER BY row LIMIT ?"
                     : "SELECT id, text FROM items WHERE conversation = ? AND row < ?"
                       " ORDER BY row DESC LIMIT ?",
                 "iii", row, at, page->limit + 1));
    while (db_next(rows)) {
        if ((int64_t)*n == page->limit) {
            *has_more = true;
            break;
        }
        take_item(rows, &items[(*n)++]);
    }
    return db_end(rows, err);
}

/* False without an error if there is no such conversation. */
bool store_conversation_items(struct store *s, const char *owner, const char *id,
                              const struct store_page *page, struct stored_item **items, size_t *n,
                              bool *has_more, enum status *st, struct err *err)
{
    int64_t row = 0;
    *n = 0;
    *has_more = false;
    *items = xcalloc((size_t)page->limit + 1, sizeof **items);
    pthread_mutex_lock(&s->lock);
    *st = find_row(s, owner, id, &row, err);
    if (*st == OK && row) {
        *st = list(s, row, page, *items, n, has_more, err);
    }
    pthread_mutex_unlock(&s->lock);
    return row != 0 && *st == OK;
}

void stored_items_free(struct stored_item *items, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        buf_deinit(&items[i].text);
    }
    free(items);
}

/* All items as JSON text with commas between them. */
static enum status read_all(struct store *s, int64_t row, struct buf *out, struct err *err)
{
    struct db_rows *rows;
    TRY(db_query(s->db, &rows, err, "SELECT text FROM items WHERE conversation = ? ORDER BY row",
                 "i", row));
    while (db_next(rows)) {
        size_t n;
        const void *text = db_bytes(rows, 0, &n);
        if (out->n_bytes > 0) {
            buf_puts(out, ",");
        }
        buf_put(out, text, n);
    }
    return db_end(rows, err);
}

/* All items, in order, as a JSON list without brackets. */
bool store_conversation_read(struct store *s, const char *owner, const char *id, struct buf *out,
                             enum status *st, struct err *err)
{
    int64_t row = 0;
    pthread_mutex_lock(&s->lock);
    *st = find_row(s, owner, id, &row, err);
    if (*st == OK && row) {
        *st = read_all(s, row, out, err);
    }
    pthread_mutex_unlock(&s->lock);
    return row != 0 && *st == OK;
}

/* The conversation is checked together with the item, so that an owner cannot use the ids of other
 * owners' items. */
bool store_conversation_item(struct store *s, const char *owner, const char *id, const char *item,
                             struct stored_item *out, enum status *st, struct err *err)
{
    struct db_rows *rows;
    *out = (struct stored_item){0};
    pthread_mutex_lock(&s->lock);
    *st = db_query(s->db, &rows, err,
                   "SELECT items.id, text FROM items JOIN conversations"
                   " ON conversation = conversations.row"
                   " WHERE owner = ? AND conversations.id = ? AND items.id = ?",
                   "ttt", owner, id, item);
    bool found = *st == OK && db_next(rows);
    if (found) {
        take_item(rows, out);
    }
    if (*st == OK) {
        *st = db_end(rows, err);
    }
    pthread_mutex_unlock(&s->lock);
    return found && *st == OK;
}

bool store_conversation_item_delete(struct store *s, const char *owner, const char *id,
                                    const char *item, enum status *st, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    *st = db_run(s->db, err,
                 "DELETE FROM items WHERE id = ? AND conversation IN (SELECT row FROM conversations"
                 " WHERE owner = ? AND id = ?)",
                 "ttt", item, owner, id);
    return changed(s, st);
}
