// SPDX-License-Identifier: Apache-2.0
/* Groups of forms, and macros for the parts of a row, which the tables of members use. */
#ifndef SLUICE_SERVER_CALL_MEMBERS_ROWS_H
#define SLUICE_SERVER_CALL_MEMBERS_ROWS_H

#include "server/call/members.h"
#include "server/call/members_schemas.h"
#include "server/call/readers.h"

enum {
    TOKENIZE = FORM_TOKENIZE_TEXT | FORM_TOKENIZE_CHAT,
    NATIVE = FORM_NATIVE | FORM_INFILL,
    OLLAMA = FORM_OLLAMA_CHAT | FORM_OLLAMA_GENERATE,
    CHATS = FORM_CHAT | FORM_CHAT_BATCH | FORM_TOKENIZE_CHAT | FORM_OLLAMA_CHAT,
    MESSAGES = FORM_MESSAGES | FORM_COUNT_TOKENS,
    TALKS = CHATS | FORM_RESPONSES | MESSAGES | OLLAMA,
    DRAWS = FORM_CHAT | FORM_CHAT_BATCH | FORM_COMPLETIONS | FORM_RESPONSES | MESSAGES |
            FORM_GENERATE | OLLAMA | NATIVE | FORM_TOKENS,
    SERVED = TALKS | FORM_COMPLETIONS | FORM_EMBEDDINGS | FORM_OLLAMA_EMBED | NATIVE |
             FORM_NATIVE_EMBED | TOKENIZE | FORM_DETOKENIZE | FORM_TOKENS, // all forms that a
                                                                           // server accepts
    PAIRS = FORM_SCORE | FORM_RERANK,
    POOLED = FORM_CLASSIFY | FORM_POOLING | FORM_POOL_CHAT,
    QUESTIONS = FORM_SYSTEMONE | FORM_DECISIONS,
    SCORES = PAIRS | FORM_LABELS | POOLED | FORM_COHERE_EMBED | QUESTIONS, // forms that generate no
                                                                           // text
    VECTORS = FORM_EMBEDDINGS | FORM_POOLING | FORM_POOL_CHAT,
    DERENDERS = FORM_DERENDER | FORM_DERENDER_CHAT,
    LISTS_LOGPROBS = FORM_CHAT | FORM_CHAT_BATCH | FORM_COMPLETIONS | FORM_TOKENS,
    BEAMS = FORM_CHAT | FORM_COMPLETIONS, // forms that allow beam search
    WITH_TOOLS = CHATS & ~FORM_CHAT_BATCH,
    SERVES = SERVED | SCORES,
    ALL = SERVED | FORM_GENERATE,
};

#define KEPT(field)                                                                                \
    .offset = offsetof(struct request, field), .size = sizeof(((struct request *)NULL)->field)
#define FLAG(field) .flag = offsetof(struct request, field)
#define MOST(field) .most = offsetof(struct config, field)

#define BOOL(field) .type = MEMBER_BOOL, KEPT(field)
#define INT(field, min_, max_) .type = MEMBER_INT, .min = min_, .max = max_, KEPT(field)
#define INT_TO(field, min_, most_) .type = MEMBER_INT, .min = min_, MOST(most_), KEPT(field)
#define SHARE .min = 0, MOST(max_logprobs), .is_share = true
#define SHARE_OF(field) .type = MEMBER_INT, SHARE, KEPT(field)
#define REAL(field, low_, high_) .type = MEMBER_REAL, .low = low_, .high = high_, KEPT(field)
#define STRING(field) .type = MEMBER_STRING, KEPT(field)
#define CHOICE(field, words) .type = MEMBER_CHOICE, .choices = words, KEPT(field)
#define LENGTH INT(max_tokens, 1, INT32_MAX), FLAG(max_is_asked)
#define HAND(type_, function) .type = MEMBER_##type_, .read = function
#define IGNORED(type_) .type = MEMBER_##type_, .use = MEMBER_IGNORED
#define REFUSED(type_, off_) .type = MEMBER_##type_, .use = MEMBER_REFUSED, .off = off_
#define WITH(type_, key_) .type = MEMBER_##type_, .with = key_

/* For MEMBER_REFUSED: the values of an unsupported member that request nothing. */
#define NOTHING "false|[]|{}"
#define EMPTY "false|\"\"|[]|{}"

/* Defines the table of a file, with its length. */
#define MEMBERS(name) const struct member_rows name = {rows, sizeof rows / sizeof rows[0]}

struct member_rows {
    const struct member *rows;
    size_t n;
};
extern const struct member_rows members_common, members_chat, members_input, members_foreign;

#endif
