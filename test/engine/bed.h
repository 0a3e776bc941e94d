// SPDX-License-Identifier: Apache-2.0
/* Shared by tests of the engine: an engine on the fake backend, requests with their arrays, and
 * turns taken by hand.
 * Thread: one. */
#ifndef SLUICE_TEST_ENGINE_BED_H
#define SLUICE_TEST_ENGINE_BED_H

#include "engine/engine_state.h"
#include "test/check.h"
#include "test/engine/fake_backend.h"

enum { VOCAB = 384, MAX_REQUESTS = 80, MAX_PROMPT = 2400, MAX_OUT = 128 };

struct test_request {
    struct engine_request r;
    struct engine_output outputs[8];
    int32_t prompt[MAX_PROMPT], tokens[8][MAX_OUT];
};

struct bed {
    struct fake_control control;
    struct engine *e;
    int32_t n_done;
};

static struct test_request requests[MAX_REQUESTS];

/* Dummy weights and no thread: a test takes turns itself, so it is deterministic. */
static inline struct engine_options options_of(struct bed *b, int32_t block, int32_t n_blocks)
{
    return (struct engine_options){.model = "test/golden/llama-3",
                                   .load_format = "dummy",
                                   .open_backend = fake_open,
                                   .open_arg = &b->control,
                                   .no_thread = true,
                                   .block_size = block,
                                   .num_gpu_blocks_override = n_blocks,
                                   .enable_prefix_caching = true,
                                   .enable_chunked_prefill = true};
}

static inline bool start(struct bed *b, const struct engine_options *o)
{
    struct err err;
    enum status st = engine_open(o, &b->e, &err);
    if (st != OK) {
        CHECK_FAIL("open: %s", err.text);
    }
    return st == OK;
}

static inline void on_event(struct engine_request *r, void *arg)
{
    struct bed *b = arg;
    b->n_done += r->done;
}

/* Takes turns until n requests are done, at most max_turns; returns the turns taken. */
static inline int32_t run(struct bed *b, int32_t n, int32_t max_turns)
{
    int32_t turn = 0;
    for (; turn < max_turns && b->n_done < n; turn++) {
        engine_turn(b->e);
        scheduler_check(&b->e->scheduler);
        engine_drain(b->e, on_event, b);
    }
    CHECK_EQ(b->n_done, n);
    b->n_done = 0;
    return turn;
}

static inline void stop(struct bed *b)
{
    engine_stop_all(b->e);
    engine_drain(b->e, on_event, b);
    engine_close(b->e);
}

/* Makes request i with the prompt first, first + 1, ... (modulo 300). */
static inline struct test_request *make(int32_t i, int32_t first, int32_t n_prompt,
                                        int32_t max_tokens)
{
    struct test_request *q = &requests[i];
    memset(q, 0, sizeof *q);
    for (int32_t k = 0; k < n_prompt; k++) {
        q->prompt[k] = (first + k) % 300;
    }
    q->r.prompt = q->prompt;
    q->r.n_prompt = n_prompt;
    q->r.params = sampling_params_default();
    q->r.params.max_tokens = max_tokens;
    q->r.n = 1;
    q->r.outputs = q->outputs;
    for (int32_t s = 0; s < 8; s++) {
        q->outputs[s].tokens = q->tokens[s];
    }
    return q;
}

static inline void submit(struct bed *b, struct test_request *q)
{
    struct err err;
    enum status st = engine_submit(b->e, &q->r, &err);
    if (st != OK) {
        CHECK_FAIL("submit: %s", err.text);
    }
}

/* Checks that sample s of request i has n_tokens, all of them right. */
static inline void check_sample(int32_t i, int32_t s, int32_t n_tokens)
{
    const struct test_request *q = &requests[i];
    uint64_t seed = q->r.params.seed + (uint64_t)s;
    int32_t known[MAX_PROMPT + MAX_OUT], n = q->r.n_prompt;
    memcpy(known, q->prompt, sizeof q->prompt);
    CHECK_EQ(q->outputs[s].n_tokens, n_tokens);
    for (int32_t k = 0; k < q->outputs[s].n_tokens; k++, n++) {
        CHECK_EQ(q->tokens[s][k], fake_next(known, n, seed, VOCAB));
        known[n] = q->tokens[s][k];
    }
}

static inline void check_answer(int32_t i)
{
    check_sample(i, 0, requests[i].r.params.max_tokens);
}

#endif
