// SPDX-License-Identifier: Apache-2.0
/* Calls of custom tools: what the model writes is a function's arguments with one text in them, and
 * what a client sees is that text.
 * Thread: any. */
#ifndef SLUICE_SERVER_CALL_CUSTOM_H
#define SLUICE_SERVER_CALL_CUSTOM_H

#include "engine/base/buf.h"

/* Appends the text of {"input": "..."}; of arguments that were cut off, what there is of it. */
void custom_text(const struct buf *arguments, struct buf *out);

#endif
