// SPDX-License-Identifier: Apache-2.0
/* Parses JSON into template values: 1 and 1.0 stay distinct, integers keep all their digits,
 * objects keep their order, and every string keeps its provenance.
 * Thread: one owner (of the runtime). */
#ifndef SLUICE_SERVER_CHAT_JINJA_JSON_H
#define SLUICE_SERVER_CHAT_JINJA_JSON_H

#include "server/chat/jinja/eval.h"

/* Strings may point into `text`, which must outlive the render. `what` names it in errors. */
bool jinja_from_json(struct jrt *rt, const char *text, size_t n_bytes, enum jprov prov,
                     const char *what, struct jv *out);

#endif
