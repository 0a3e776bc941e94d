// SPDX-License-Identifier: Apache-2.0
/* Lines of JSON on standard input and output, for commands that answer each line with one line.
 * Thread: any. */
#ifndef SLUICE_SERVER_CLI_JSON_LINE_H
#define SLUICE_SERVER_CLI_JSON_LINE_H

#include "engine/base/json_scan.h"

/* Called after the scan has returned a key; reads its value. If the value is not valid JSON, it may
 * return OK: the error is found at the next token. */
typedef enum status json_line_member(struct json_scan *sc, void *arg, struct err *err);

/* Reads a line: one object with nothing after it, nested at most `depth` deep. */
enum status json_line_read(const char *s, size_t n_bytes, int depth, json_line_member *member,
                           void *arg, struct err *err);

/* Reads the value of the member `name`, true or false. */
enum status json_line_flag(struct json_scan *sc, const char *name, bool *flag, struct err *err);

/* Appends {"error": text} and a line end. */
void json_line_put_error(struct buf *out, const char *text);

#endif
