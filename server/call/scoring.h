// SPDX-License-Identifier: Apache-2.0
/* How two texts are scored: by the cosine of their embeddings, by a classifier that reads the pair,
 * or by a model that answers with one of two tokens, as Qwen3-Reranker does with "yes" and "no".
 * Thread: any, once the model is open. */
#ifndef SLUICE_SERVER_CALL_SCORING_H
#define SLUICE_SERVER_CALL_SCORING_H

#include "engine/info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/call/labels.h"
#include "server/chat/template.h"
#include "server/config/config.h"

struct scoring {
    struct labels labels;       // of a classifier
    bool judges;                // answers with a token
    int32_t answers[2];         // the ids of yes and no
    struct chat_template *pair; // formats a pair, given as messages with the roles query and
                                // document, and the variable `instruction`
};

/* `template` is the model's own, which may support pairs; NULL: none. */
enum status scoring_open(struct scoring *s, const struct config *config,
                         const struct tokenizer *tok, const struct chat_template *template,
                         const struct engine_info *info, struct err *err);
void scoring_close(struct scoring *s); // accepts a zeroed struct

#endif
