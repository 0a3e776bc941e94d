// SPDX-License-Identifier: Apache-2.0
/* Hidden states of a tiny model on any backend, compared with models that end after the layer: the
 * residual stream that those leave for their out rows must have the same bits.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_MODEL_HIDDEN_H
#define SLUICE_TEST_MODEL_HIDDEN_H

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/model/model.h"
#include "test/check.h"

enum { HIDDEN_ROWS = 9, HIDDEN_LEN = 64, HIDDEN_BLOCK = 16 };

/* A backend and the out rows of one run. */
struct hidden_case {
    const char *dir;
    struct backend *(*open)(void);
    const int32_t *out_rows;
    int32_t n_out;
};

/* A model on one backend. */
struct hidden_bed {
    struct model_config config;
    struct checkpoint *checkpoint;
    struct backend *be;
    struct model model;
};

/* The model's config and files. False: a failure that names the folder was reported. */
static inline bool hidden_files(struct hidden_bed *b, const struct hidden_case *c)
{
    struct err err = {""};
    enum status st = model_config_load(c->dir, &b->config, &err);
    if (st == OK) {
        st = checkpoint_open(c->dir, &b->checkpoint, &err);
    }
    if (st != OK) {
        CHECK_FAIL("%s: %s", c->dir, err.text);
    }
    return st == OK;
}

/* The first n_layers of the model; all, if 0. */
static inline bool hidden_open(struct hidden_bed *b, const struct hidden_case *c, int32_t n_layers,
                               int32_t max_hidden)
{
    struct err err = {""};
    memset(b, 0, sizeof *b);
    if (!hidden_files(b, c)) {
        return false;
    }
    b->be = c->open();
    const struct backend_ops *ops = b->be->ops;
    model_config_fit(&b->config, HIDDEN_LEN);
    if (n_layers > 0) {
        b->config.n_layers = n_layers;
    }
    b->config.n_kv_layers = 0;
    for (int32_t i = 0; i < b->config.n_layers; i++) {
        int32_t end = b->config.layers[i].kv + 1;
        b->config.n_kv_layers = greater(end, b->config.n_kv_layers);
    }
    struct backend_facts facts;
    CHECK_EQ(ops->facts(b->be, &facts), OK);
    const struct model_load_options load = {
        .config = &b->config, .checkpoint = b->checkpoint, .dtype = DT_F32, .n_ranks = 1};
    enum status st = model_load(&load, b->be, &b->model, &err);
    const struct backend_limits limits = {.max_rows = 32,
                                          .max_out_rows = 32,
                                          .max_lanes = 2,
                                          .max_len = HIDDEN_LEN,
                                          .max_blocks_per_lane = HIDDEN_LEN / HIDDEN_BLOCK,
                                          .n_blocks = 8,
                                          .block_tokens = HIDDEN_BLOCK,
                                          .vocab = b->config.vocab,
                                          .hidden = b->config.hidden,
                                          .n_steps = 1,
                                          .max_passes = 1};
    if (st == OK) {
        st = ops->setup(b->be, &limits, &err);
    }
    struct kv_layer layers[MAX_KV_LAYERS];
    model_kv_layers(&b->model, layers);
    const struct kv_set_desc kv = {
        .n_layers = b->config.n_kv_layers, .layers = layers, .dtype = DT_F32};
    if (st == OK) {
        st = ops->kv_open(b->be, 0, &kv, &err);
    }
    struct tensor logits = {.dtype = DT_F32, .stride = b->config.vocab};
    if (st == OK) {
        st = ops->alloc(b->be, 32 * (size_t)logits.stride * 4, &logits.mem);
    }
    b->model.max_hidden = max_hidden;
    if (st == OK) {
        st = model_setup(&b->model, 32, 32, logits, logits);
    }
    if (st != OK) {
        CHECK_FAIL("%s: %s", c->dir, err.text);
    }
    return st == OK;
}

static inline void hidden_close(struct hidden_bed *b)
{
    model_deinit(&b->model);
    b->be->ops->close(b->be);
    checkpoint_close(b->checkpoint);
}

/* One pass over a few rows in scattered blocks. */
static inline enum status hidden_run(struct hidden_bed *b, const struct hidden_case *c,
                                     struct hidden_layers asked)
{
    const struct backend_ops *ops = b->be->ops;
    static const int32_t blocks[] = {5, 2, 7, 0};
    struct pass_row rows[HIDDEN_ROWS];
    for (int32_t i = 0; i < HIDDEN_ROWS; i++) {
        rows[i] = (struct pass_row){.token = 3 + 17 * i % 200, .pos = i, .slot_pos = i};
    }
    const struct pass_seq seq = {.n_rows = HIDDEN_ROWS};
    const struct pass pass = {.model = -1,
                              .n_rows = HIDDEN_ROWS,
                              .rows = rows,
                              .n_seqs = 1,
                              .seqs = &seq,
                              .n_out = c->n_out,
                              .out_rows = c->out_rows,
                              .hidden = asked};
    struct pass_shape shape;
    CHECK_EQ(ops->step_begin(b->be, 0), OK);
    CHECK_EQ(ops->lane_blocks(b->be, 0, 0, HIDDEN_LEN / HIDDEN_BLOCK, blocks), OK);
    CHECK_EQ(ops->pass_begin(b->be, &pass, &shape), OK);
    const enum status st =
        model_forward(&b->model, &shape, (struct model_outputs){.logits = true, .hidden = asked});
    CHECK_EQ(ops->pass_end(b->be), OK);
    CHECK_EQ(ops->step_end(b->be), OK);
    struct pass_results results;
    CHECK_EQ(ops->step_wait(b->be, 0, &results, 1), OK);
    return st;
}

/* Elements [first, first + width) of each out row; the caller frees the result. */
static inline float *hidden_rows(struct hidden_bed *b, const struct hidden_case *c, struct tensor t,
                                 int32_t first, int32_t width)
{
    const size_t n = (size_t)c->n_out * (size_t)t.stride;
    float *all = xcalloc(n, sizeof *all), *out = xcalloc(n, sizeof *out);
    CHECK_EQ(t.dtype, DT_F32);
    CHECK_EQ(b->be->ops->read(b->be, all, t.mem, n * sizeof *all), OK);
    for (int32_t i = 0; i < c->n_out; i++) {
        memcpy(out + (size_t)i * (size_t)width, all + (size_t)i * (size_t)t.stride + first,
               (size_t)width * sizeof *out);
    }
    free(all);
    return out;
}

/* Checks several sets of layers, with and without the last one. */
static inline void hidden_check(const struct hidden_case *c)
{
    struct hidden_bed whole, part;
    struct hidden_layers asked = {.n = 0};
    if (!hidden_open(&whole, c, 0, MAX_HIDDEN_LAYERS)) {
        return;
    }
    const int32_t n_layers = whole.config.n_layers, hidden = whole.config.hidden;
    const size_t n_bytes = (size_t)c->n_out * (size_t)hidden * sizeof(float);
    const size_t logit_bytes = (size_t)c->n_out * (size_t)whole.config.vocab * sizeof(float);
    float *expected[MAX_LAYERS] = {NULL};
    for (int32_t i = 0; i < n_layers && hidden_open(&part, c, i + 1, 0); i++) {
        CHECK_EQ(hidden_run(&part, c, asked), OK);
        expected[i] = hidden_rows(&part, c, part.model.out_x, 0, hidden);
        hidden_close(&part);
    }
    CHECK_EQ(hidden_run(&whole, c, asked), OK);
    float *plain = hidden_rows(&whole, c, whole.model.logits, 0, whole.config.vocab);
    for (uint32_t set = 1; set < 1u << lesser(n_layers, 4); set++) {
        asked.n = 0;
        for (int32_t i = 0; i < n_layers; i++) {
            if (set >> i & 1) {
                asked.ids[asked.n++] = i;
            }
        }
        CHECK_EQ(hidden_run(&whole, c, asked), OK);
        for (int32_t i = 0; i < asked.n; i++) {
            float *got = hidden_rows(&whole, c, whole.model.hidden, i * hidden, hidden);
            CHECK_MEM(got, expected[asked.ids[i]], n_bytes);
            free(got);
        }
        float *logits = hidden_rows(&whole, c, whole.model.logits, 0, whole.config.vocab);
        CHECK_MEM(logits, plain, logit_bytes);
        free(logits);
    }
    CHECK_EQ(hidden_run(&whole, c, (struct hidden_layers){1, {n_layers}}), ERR_INVALID);
    CHECK_EQ(hidden_run(&whole, c, (struct hidden_layers){2, {1, 1}}), ERR_INVALID);
    for (int32_t i = 0; i < n_layers; i++) {
        free(expected[i]);
    }
    free(plain);
    hidden_close(&whole);
}

/* Families whose residual streams differ: pre-norm, norms after the sub-layers, both sub-layers at
 * once, MLA with experts; few rows and all of them. */
static inline void hidden_check_families(struct backend *(*open)(void))
{
    static const char *const dirs[] = {"test/golden/llama-3", "build/golden/gemma-2",
                                       "build/golden/olmo-2", "build/golden/stablelm-2",
                                       "build/golden/deepseek-v3"};
    static const int32_t some[] = {1, 4, 8}, all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++) {
        hidden_check(&(struct hidden_case){dirs[i], open, some, 3});
        hidden_check(&(struct hidden_case){dirs[i], open, all, HIDDEN_ROWS});
    }
}

#endif
