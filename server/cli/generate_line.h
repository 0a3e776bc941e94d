// SPDX-License-Identifier: Apache-2.0
/* What `sluice generate` answers: a line of JSON with the engine's own numbers, token ids and log
 * probabilities of fp32 with nine digits; in a stream the text alone.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_GENERATE_LINE_H
#define SLUICE_SERVER_CLI_GENERATE_LINE_H

#include "server/call/format.h"

extern const struct call_format generate_line_format; // of calls of the kind KIND_GENERATE

/* {"error":"..."} and a newline. */
void generate_line_put_error(struct buf *out, const char *text);

#endif
