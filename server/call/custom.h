// SPDX-License-Identifier: Apache-2.0
/* Calls of custom tools: the model writes a function's arguments with a single string, and the
 * client receives that string.
 * Thread: any. */
#ifndef SLUICE_SERVER_CALL_CUSTOM_H
#define SLUICE_SERVER_CALL_CUSTOM_H

#include "engine/base/buf.h"

/* Appends the text of {"input": "..."}; for truncated arguments the part that is present. */
void custom_text(const struct buf *arguments, struct buf *out);

#endif
