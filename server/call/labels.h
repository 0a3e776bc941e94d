// SPDX-License-Identifier: Apache-2.0
/* The classes of a model that classifies texts: their names, and how its logits become
 * probabilities, by the rules of vLLM.
 * Thread: any, once opened. */
#ifndef SLUICE_SERVER_CALL_LABELS_H
#define SLUICE_SERVER_CALL_LABELS_H

#include "engine/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum label_scores { LABELS_SIGMOID, LABELS_SOFTMAX, LABELS_AS_THEY_ARE };

struct labels {
    int32_t n; // 0: the model does not classify
    char **names;
    enum label_scores scores;
};

/* Reads the model's config.json. n: the number of logits that the model gives; 0: *out is empty. */
enum status labels_open(const char *dir, int32_t n, struct labels *out, struct err *err);
void labels_close(struct labels *l); // accepts a zeroed struct

/* Turns logits into scores, in place, unless they are wanted as they are. */
void labels_score(const struct labels *l, float *logits);

/* The class with the highest score; the first of equals. */
int32_t labels_best(const struct labels *l, const float *scores);

#endif
