// SPDX-License-Identifier: Apache-2.0
#include "server/call/labels.h"

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

/* The activation that sentence-transformers has written into the config, if there is one. */
static enum status read_activation(const struct json *config, struct labels *l, struct err *err)
{
    const char *own = json_get_string(json_get(config, "sentence_transformers"), "activation_fn");
    const char *name = own ? own : json_get_string(config, "sbert_ce_default_activation_function");
    const char *dot = name ? strrchr(name, '.') : NULL;
    if (!name) {
        return OK;
    }
    name = dot ? dot + 1 : name;
    if (strcmp(name, "Identity") == 0) {
        l->scores = LABELS_AS_THEY_ARE;
    } else if (strcmp(name, "Sigmoid") == 0) {
        l->scores = LABELS_SIGMOID;
    } else if (strcmp(name, "Softmax") == 0) {
        l->scores = LABELS_SOFTMAX;
    } else {
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: the classifier's activation '%.60s' is not supported", name);
    }
    return OK;
}

static enum status read_scores(const struct json *config, struct labels *l, struct err *err)
{
    const char *problem = or_empty(json_get_string(config, "problem_type"));
    l->scores = l->n == 1 ? LABELS_SIGMOID : LABELS_SOFTMAX;
    if (strcmp(problem, "regression") == 0) {
        l->scores = LABELS_AS_THEY_ARE;
    } else if (strcmp(problem, "multi_label_classification") == 0) {
        l->scores = LABELS_SIGMOID;
    } else if (strcmp(problem, "single_label_classification") != 0) {
        return read_activation(config, l, err);
    }
    return OK;
}

enum status labels_open(const char *dir, int32_t n, struct labels *out, struct err *err)
{
    struct json *config;
    *out = (struct labels){.n = n};
    if (n == 0) {
        return OK;
    }
    TRY(folder_json(dir, "config.json", MAX_CONFIG_BYTES, &config, err));
    out->names = xcalloc((size_t)n, sizeof *out->names);
    for (int32_t i = 0; i < n; i++) {
        char key[24], usual[32];
        snprintf(key, sizeof key, "%d", i);
        snprintf(usual, sizeof usual, "LABEL_%d", i);
        out->names[i] = xstrdup(or_text(json_get_string(json_get(config, "id2label"), key), usual));
    }
    const enum status st = read_scores(config, out, err);
    json_free(config);
    return st;
}

void labels_close(struct labels *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free(l->names[i]);
    }
    free(l->names);
    *l = (struct labels){0};
}

void labels_score(const struct labels *l, float *logits)
{
    const int32_t best = labels_best(l, logits);
    double sum = 0;
    const double high = (double)logits[best];
    for (int32_t i = 0; i < l->n; i++) {
        sum += exp((double)logits[i] - high);
    }
    for (int32_t i = 0; i < l->n; i++) {
        const double x = (double)logits[i];
        if (l->scores == LABELS_SIGMOID) {
            logits[i] = (float)(1 / (1 + exp(-x)));
        } else if (l->scores == LABELS_SOFTMAX) {
            logits[i] = (float)(exp(x - high) / sum);
        }
    }
}

int32_t labels_best(const struct labels *l, const float *scores)
{
    int32_t best = 0;
    for (int32_t i = 1; i < l->n; i++) {
        best = scores[i] > scores[best] ? i : best;
    }
    return best;
}
