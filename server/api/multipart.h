// SPDX-License-Identifier: Apache-2.0
/* multipart/form-data (RFC 7578), read where it lies: parts are found one after the other, and
 * nothing is copied but their names. Bounded: see the limits below; what passes one is an error.
 * Thread: any, one owner. */
#ifndef SLUICE_SERVER_API_MULTIPART_H
#define SLUICE_SERVER_API_MULTIPART_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { MULTIPART_MAX_PARTS = 32, MULTIPART_MAX_HEAD = 8192, MULTIPART_NAME_BYTES = 256 };

struct multipart {
    char delimiter[80]; // "\r\n--" and the boundary
    const char *at, *end;
    int n_parts;
    bool over;
};

struct multipart_part {
    char name[MULTIPART_NAME_BYTES];
    char filename[MULTIPART_NAME_BYTES]; // "" if it has none; as the client says it, so no path
    bool has_filename;
    const char *bytes;
    size_t n_bytes;
};

/* The body must outlive the reader. An error: the type is another one or has no good boundary, or
 * the body does not begin with it. */
enum status multipart_open(struct multipart *m, const char *content_type, const char *body,
                           size_t n_bytes, struct err *err);
/* The next part; m->over instead of one when all have been. */
enum status multipart_next(struct multipart *m, struct multipart_part *part, struct err *err);

#endif
