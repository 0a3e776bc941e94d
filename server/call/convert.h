// SPDX-License-Identifier: Apache-2.0
/* Converts requests of other APIs to chat requests: their messages and tools become the JSON text
 * that chat templates read.
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_CONVERT_H
#define SLUICE_SERVER_CALL_CONVERT_H

#include "server/call/request.h"

void convert_text(struct buf *out, const char *text); // writes a JSON string
void convert_node(struct buf *out, const struct json *node);

/* Writes a tool that has name, description and schema at the same level; index: its place in the
 * list. */
void convert_tool(struct buf *out, const struct json *tool, size_t index, const char *schema_key);

/* An input item of a response in the stored format: messages in their long form, others
 * unchanged. */
void convert_item(struct buf *out, const struct json *item);
void convert_item_but_id(struct buf *out, const struct json *item);

/* Stores the finished array in the request. False: r->error is set. */
bool convert_keep_messages(struct request *r, struct buf *array);
bool convert_keep_tools(struct request *r, struct buf *array);

#endif
