// SPDX-License-Identifier: Apache-2.0
/* What becomes of a text's hidden states: how they are pooled, and the few small matrices that the
 * pooled vector then passes through. Those are the dense modules of sentence-transformers, or the
 * head of a classifier. They are applied on the host, where the pooled sums arrive.
 * Thread: plain data, constant once loaded; pooling_apply: one at a time. */
#ifndef SLUICE_ENGINE_MODEL_POOLING_H
#define SLUICE_ENGINE_MODEL_POOLING_H

#include "engine/base/status.h"
#include "engine/device/codec.h"
#include "engine/device/params.h"

struct loader;

enum pool_act { POOL_ACT_NONE, POOL_ACT_TANH, POOL_ACT_RELU, POOL_ACT_GELU, POOL_ACT_SILU };

/* By the name of transformers, or of torch's class without its module; any case. */
bool pool_act_named(const char *name, enum pool_act *out);

/* y = norm(act(x W^T + bias)); every vector is NULL if there is none. */
struct pool_step {
    int32_t n_in, n_out;
    float *columns; // [n_in, n_out]: the matrix, turned, so that sums need no order of their own
    float *bias, *norm, *norm_bias;
    enum pool_act act;
    float eps;
};

enum { MAX_POOL_STEPS = 8 }; // chosen

struct pooling {
    enum pool_kind kind; // POOL_NONE: the files say nothing
    int32_t n_labels;    // the results are logits of so many classes; 0: they are vectors
    int32_t n_steps;
    struct pool_step steps[MAX_POOL_STEPS];
    float *room[2]; // of the widest step
};

/* The width of the results, given that of the hidden states. */
int32_t pooling_width(const struct pooling *p, int32_t hidden);
/* x: [hidden]; out: [pooling_width]. */
void pooling_apply(const struct pooling *p, const float *x, int32_t hidden, float *out);
void pooling_deinit(struct pooling *p); // accepts a zeroed struct

/* Appends a step; it copies the parts, whose numbers are read row by row. bias, norm and norm_bias
 * may be NULL. */
struct pool_parts {
    const struct weight_part *matrix, *bias, *norm, *norm_bias;
};
enum status pooling_add(struct pooling *p, const struct pool_parts *parts, enum pool_act act,
                        float eps, struct err *err);

/* pooling_files.c: reads the pooling and the dense modules that the folder's modules.json lists, or
 * only the pooling of 1_Pooling if there is no list. Modules that would change the vectors and are
 * not supported are errors. `encoder`: the first row has seen the others, so that it can stand for
 * the text. */
enum status pooling_read_modules(const char *dir, int32_t hidden, bool encoder, struct pooling *p,
                                 struct err *err);

/* labels.c: the head of a classifier, from the model's own checkpoint. */
enum status load_labels(struct loader *l);

#endif
