// SPDX-License-Identifier: Apache-2.0
/* /v1/files: the inputs and outputs of batches. */
#include "server/api/multipart.h"
#include "server/api/work.h"

#include "engine/base/clock.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WRITE_BYTES = 1 << 20, // bytes written at a time; other requests use the store in between
    LEAST_LIFE_S = 3600,
    MOST_LIFE_S = 2592000,
    MOST_LISTED = 10000,
};

/* Writes OpenAI's file object. */
static void put_file(struct buf *b, const struct stored_file *f)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"file\",\"bytes\":%lld,\"created_at\":%lld", f->id,
               (long long)f->bytes, (long long)f->created_at);
    if (f->expires_at > 0) {
        buf_printf(b, ",\"expires_at\":%lld", (long long)f->expires_at);
    } else {
        buf_puts(b, ",\"expires_at\":null");
    }
    buf_puts(b, ",\"filename\":");
    buf_put_json(b, f->filename, strlen(f->filename));
    buf_printf(b, ",\"purpose\":\"%s\",\"status\":\"processed\",\"status_details\":null}",
               f->purpose);
}

/* ---- upload ---------------------------------------------------------------------------------- */

/* The form's fields. */
struct form {
    struct multipart_part file, purpose, anchor, seconds;
};

static bool has(const struct multipart_part *p)
{
    return p->name[0] != '\0';
}

static bool is(const struct multipart_part *p, const char *text)
{
    return p->n_bytes == strlen(text) && memcmp(p->bytes, text, p->n_bytes) == 0;
}

/* Reads the parts of the form, which point into the body. Unknown ones are ignored, as in OpenAI's
 * API. */
static bool read_form(struct api_work *w, struct form *form)
{
    struct multipart m;
    struct multipart_part part;
    struct err err = {""};
    enum status st = multipart_open(&m, w->content_type, w->body, w->n_bytes, &err);
    while (st == OK) {
        st = multipart_next(&m, &part, &err);
        if (st != OK || m.over) {
            break;
        }
        struct multipart_part *to = NULL;
        if (strcmp(part.name, "file") == 0) {
            to = &form->file;
        }
        if (strcmp(part.name, "purpose") == 0) {
            to = &form->purpose;
        }
        if (strcmp(part.name, "expires_after[anchor]") == 0) {
            to = &form->anchor;
        }
        if (strcmp(part.name, "expires_after[seconds]") == 0) {
            to = &form->seconds;
        }
        if (to) {
            *to = part;
        }
    }
    if (st == ERR_UNSUPPORTED) {
        return call_error_set(&w->error, 415, "unsupported_media_type", NULL,
                              "The Content-Type must be multipart/form-data.");
    }
    return st == OK || call_error_set(&w->error, 400, "invalid_multipart", NULL, "%s", err.text);
}

/* Reads expires_after, which consists of two parts or none. */
static bool read_life(struct api_work *w, const struct form *form, int64_t *seconds)
{
    char text[24] = "";
    char *end = text;
    *seconds = w->api->data_retention_s;
    if (!has(&form->anchor) && !has(&form->seconds)) {
        return true;
    }
    if (!is(&form->anchor, "created_at")) {
        return call_error_set(&w->error, 400, "invalid_value", "expires_after.anchor",
                              "Invalid 'expires_after.anchor': expected 'created_at'.");
    }
    if (has(&form->seconds) && form->seconds.n_bytes < sizeof text) {
        memcpy(text, form->seconds.bytes, form->seconds.n_bytes);
        *seconds = strtoll(text, &end, 10);
    }
    if (end == text || *end || *seconds < LEAST_LIFE_S || *seconds > MOST_LIFE_S) {
        return call_error_set(&w->error, 400, "invalid_value", "expires_after.seconds",
                              "Invalid 'expires_after.seconds': expected a number from %d to %d.",
                              LEAST_LIFE_S, MOST_LIFE_S);
    }
    return true;
}

/* Checks that the required members are present, and that the server supports the purpose. */
static bool check_form(struct api_work *w, const struct form *form)
{
    if (!has(&form->file)) {
        return call_error_missing(&w->error, "file");
    }
    if (!has(&form->purpose)) {
        return call_error_missing(&w->error, "purpose");
    }
    if (!is(&form->purpose, BATCH_PURPOSE)) {
        return call_error_set(
            &w->error, 400, "unsupported_value", "purpose",
            "This server stores files only for batches: the purpose must be '" BATCH_PURPOSE "'.");
    }
    if ((int64_t)form->file.n_bytes > API_MAX_FILE_BYTES) {
        return call_error_set(&w->error, 413, "file_too_large", "file",
                              "The file has more than %lld bytes.", (long long)API_MAX_FILE_BYTES);
    }
    return true;
}

/* Names are only returned to clients, and never used as paths; control characters are removed. */
static void copy_name(char *to, size_t room, const char *name)
{
    size_t n = 0;
    for (; *name && n + 1 < room; name++) {
        to[n++] = (unsigned char)*name < 0x20 || *name == 0x7f ? '_' : *name;
    }
    to[n] = '\0';
}

/* Writes the content piece by piece, so that a large upload does not block the store for long. */
static enum status store_file(struct api_work *w, const struct form *form, struct stored_file *file,
                              struct err *err)
{
    struct store_upload *u;
    TRY(store_upload_begin(w->store, &u, err));
    const char *at = form->file.bytes;
    size_t left = form->file.n_bytes;
    while (left > 0) {
        size_t n = lesser(left, WRITE_BYTES);
        enum status st = store_upload_write(u, at, n, err);
        if (st != OK) {
            store_upload_drop(u);
            return st;
        }
        at += n;
        left -= n;
    }
    return store_upload_end(u, w->owner, file, err);
}

/* Creates a file from an upload. */
static void create(struct api_work *w)
{
    struct form form = {0};
    struct stored_file file = {.purpose = BATCH_PURPOSE, .created_at = clock_wall_sec()};
    struct err err = {""};
    int64_t life;
    if (!read_form(w, &form) || !check_form(w, &form) || !read_life(w, &form, &life)) {
        return;
    }
    copy_name(file.filename, sizeof file.filename, form.file.filename);
    file.expires_at = life > 0 ? file.created_at + life : 0;
    enum status st = store_file(w, &form, &file, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
        return;
    }
    put_file(&w->reply, &file);
}

void api_files_create(struct http_request *req, void *arg)
{
    api_work_start(arg, req, create, NULL);
}

/* ---- other routes ---------------------------------------------------------------------------- */

static void list(struct api_work *w)
{
    struct store_page page = {w->after, w->limit, w->oldest_first, w->purpose};
    struct stored_file *files;
    struct err err = {""};
    size_t n;
    bool has_more;
    enum status st = store_file_list(w->store, w->owner, &page, &files, &n, &has_more, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        buf_puts(&w->reply, "{\"object\":\"list\",\"data\":[");
        for (size_t i = 0; i < n; i++) {
            if (i) {
                buf_puts(&w->reply, ",");
            }
            put_file(&w->reply, &files[i]);
        }
        api_put_page_end(&w->reply, n > 0 ? files[0].id : NULL, n > 0 ? files[n - 1].id : NULL,
                         has_more);
    }
    free(files);
}

void api_files_list(struct http_request *req, void *arg)
{
    api_work_start_list(arg, req, list, MOST_LISTED, MOST_LISTED);
}

/* False with an error: not found, or the store failed. */
static bool find(struct api_work *w, struct stored_file *f)
{
    struct err err = {""};
    enum status st;
    if (store_file_find(w->store, w->owner, w->id, f, &st, &err)) {
        return true;
    }
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else {
        api_work_missing(w, "File");
    }
    return false;
}

static void get(struct api_work *w)
{
    struct stored_file f;
    if (find(w, &f)) {
        put_file(&w->reply, &f);
    }
}

void api_file_get(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get, NULL);
}

/* Replies with the file's bytes, without a more precise type, since none is stored. */
static void get_content(struct api_work *w)
{
    struct stored_file f;
    struct err err = {""};
    if (!find(w, &f)) {
        return;
    }
    w->reply_type = "application/octet-stream";
    enum status st = store_file_read(w->store, f.id, 0, (size_t)f.bytes, &w->reply, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
    }
}

void api_file_content(struct http_request *req, void *arg)
{
    api_work_start(arg, req, get_content, NULL);
}

/* A file that a running batch reads cannot be deleted. */
static void delete_one(struct api_work *w)
{
    struct err err = {""};
    enum status st;
    struct stored_file f;
    if (!find(w, &f)) {
        return;
    }
    bool deleted = store_file_delete(w->store, w->owner, f.id, &st, &err);
    if (st != OK) {
        api_work_fail(w, st, &err);
    } else if (!deleted) {
        call_error_set(&w->error, 409, "file_in_use", "id",
                       "A batch that has not ended reads this file; cancel the batch first.");
    } else {
        buf_printf(&w->reply, "{\"id\":\"%s\",\"object\":\"file\",\"deleted\":true}", f.id);
    }
}

void api_file_delete(struct http_request *req, void *arg)
{
    api_work_start(arg, req, delete_one, NULL);
}
