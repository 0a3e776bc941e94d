// SPDX-License-Identifier: Apache-2.0
/* The output of `sluice generate`: a line of JSON with token ids and fp32 log-probabilities with
 * nine digits; in a stream only the text.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_GENERATE_LINE_H
#define SLUICE_SERVER_CLI_GENERATE_LINE_H

#include "server/call/format.h"

extern const struct call_format generate_line_format; // for calls of KIND_GENERATE

/* {"error":"..."} and a newline. */
void generate_line_put_error(struct buf *out, const char *text);

#endif
