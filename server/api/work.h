// SPDX-License-Identifier: Apache-2.0
/* Handlers that access the disk: `work` runs on the pool, the reply is made on the loop.
 * Thread: the loop, except for `work`. */
#ifndef SLUICE_SERVER_API_WORK_H
#define SLUICE_SERVER_API_WORK_H

#include "server/api/api.h"
#include "server/store/store.h"

struct api_work {
    struct api *api;
    struct store *store;
    struct http_request *req;
    /* From the request. Strings are valid until the reply. */
    char owner[40];             // owner of the files and batches that the request may access
    const char *id, *second_id; // parts of the path, or NULL
    const char *after, *purpose;
    bool oldest_first;
    int64_t limit;
    char *content_type, *body;
    size_t n_bytes;
    /* The answer: an error, or text. */
    struct call_error error;
    struct buf reply;
    const char *reply_type;     // Content-Type; NULL: JSON
    char batch[STORE_ID_BYTES]; // id of a new or cancelled batch; "": none
    void (*work)(struct api_work *w);
    void (*after_work)(struct api_work *w); // on the loop, before a successful reply; may be NULL
};

/* Called from a handler; takes the request. 501 if there is no store. */
void api_work_start(struct api *a, struct http_request *req, void (*work)(struct api_work *w),
                    void (*after_work)(struct api_work *w));
/* The same for a list: reads `after`, `limit` (1 to `most`; `otherwise` if the request gives none),
 * `order` and `purpose`. */
void api_work_start_list(struct api *a, struct http_request *req, void (*work)(struct api_work *w),
                         int64_t otherwise, int64_t most);

/* Ends a list's object after its last item. NULL: the list is empty. */
void api_put_page_end(struct buf *b, const char *first, const char *last, bool has_more);

/* Appends the `metadata` of a body, if present: up to 16 short strings. */
bool api_read_metadata(struct body *b, struct buf *out);

/* For `work`: the error for a failure of the store. */
void api_work_fail(struct api_work *w, enum status st, const struct err *err);
/* 404, "No such File object: ID". */
void api_work_missing(struct api_work *w, const char *object);

#endif
