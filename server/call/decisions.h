// SPDX-License-Identifier: Apache-2.0
/* Questions with a few possible answers, each of which is a label of one token: the probabilities
 * of the labels as the first token of a reply answer the question (vLLM's /v1/systemone and
 * /v1/decisions). Each question is a prompt of its own.
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_DECISIONS_H
#define SLUICE_SERVER_CALL_DECISIONS_H

#include "engine/base/json.h"

#include <stddef.h>
#include <stdint.h>

enum {
    LABEL_A = 0, // 26 letters
    LABEL_YES = 26,
    LABEL_NO,
    LABEL_0, // 10 digits
    N_LABELS = LABEL_0 + 10,
    MAX_QUESTIONS = 64,
    MAX_OPTIONS = 26,
    MAX_LEVELS = 10,
};

enum question_type { QUESTION_CHOICE, QUESTION_NOUL, QUESTION_PREDICATE, QUESTION_SCORE };

struct question_option {
    const char *name, *description; // as in the prompt; description NULL: none
    const struct json *value;       // as in the body; NULL: the name
};

struct question {
    const struct json *spec; // its object in the body; the key is its id
    enum question_type type;
    const char *instructions; // "": none
    struct question_option options[MAX_OPTIONS];
    int n_options;
    int first_label; // of the first option; the others follow
};

struct decisions {
    const char *state, *instructions; // what the questions are about; a system message or NULL
    size_t state_bytes;
    struct question *questions; // [n_questions]
    size_t n_questions;
    int32_t ids[N_LABELS];   // the tokens of the labels that are used, in their order
    int32_t place[N_LABELS]; // where a label is among these; -1: unused
    int32_t n_ids;
};

#endif
