// SPDX-License-Identifier: Apache-2.0
/* multipart/form-data (RFC 7578), parsed in place: parts are found one after the other, and only
 * their names are copied. Input beyond the limits below is an error.
 * Thread: any, one owner. */
#ifndef SLUICE_SERVER_API_MULTIPART_H
#define SLUICE_SERVER_API_MULTIPART_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { MULTIPART_MAX_PARTS = 32, MULTIPART_MAX_HEAD = 8192, MULTIPART_NAME_BYTES = 256 };

struct multipart {
    char delimiter[80]; // "\r\n--" followed by the boundary
    const char *at, *end;
    int n_parts;
    bool over;
};

struct multipart_part {
    char name[MULTIPART_NAME_BYTES];
    char filename[MULTIPART_NAME_BYTES]; // "" if there is none; as sent by the client, not a safe
                                         // path
    bool has_name, has_filename;
    const char *bytes;
    size_t n_bytes;
};

/* The body must outlive the reader. It is an error if the content type is not multipart/form-data
 * with a valid boundary, or if the body does not begin with the boundary. */
enum status multipart_open(struct multipart *m, const char *content_type, const char *body,
                           size_t n_bytes, struct err *err);
/* Reads the next part, or sets m->over after the last one. */
enum status multipart_next(struct multipart *m, struct multipart_part *part, struct err *err);

#endif
