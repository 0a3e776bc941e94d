// SPDX-License-Identifier: Apache-2.0
/* Tokens per second of the engine without a server, at given batch sizes and context lengths.
 * Sequences with distinct random prompts decode together. Each figure covers the time between two
 * moments; at each of them every sequence has generated a given number of tokens. */
#include "bench/engine/bench_engine.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/rng.h"
#include "engine/engine.h"
#include "engine/info.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LIST = 16, WARM_STEPS = 12, REPEATS = 3 };

struct list {
    int32_t n, v[MAX_LIST];
};

/* A prompt has n tokens; other prompts begin with the same n_shared tokens. */
struct prompt_shape {
    int32_t n_shared, n;
};

/* The settings of the measurement, and what wakes it up: the engine's callback sets `awake` under
 * `lock`, on the engine's thread. */
struct bench {
    struct engine *engine;
    const struct engine_info *info;
    struct list batches, contexts, prompts; // prompts: lengths for prefill
    struct prompt_shape cached;             // measures the prefix cache; n 0: not measured
    int32_t n_steps;
    float temperature;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool awake;
};

/* The requests of one measurement. */
struct load {
    int32_t n;
    struct engine_request *requests;
    struct engine_output *outputs;
};

static void wake(void *arg)
{
    struct bench *b = arg;
    pthread_mutex_lock(&b->lock);
    b->awake = true;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void on_event(struct engine_request *r, void *arg)
{
    (void)r;
    (void)arg;
}

/* Sleeps until the engine has news, so that the measurement itself costs the processors
 * nothing. */
static void wait_for_news(struct bench *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->awake) {
        pthread_cond_wait(&b->changed, &b->lock);
    }
    b->awake = false;
    pthread_mutex_unlock(&b->lock);
    engine_drain(b->engine, on_event, NULL);
}

/* ---- a load ------------------------------------------------------------------------------- */

/* Token k of prompt i. */
static int32_t prompt_token(const struct bench *b, int32_t i, int32_t k, uint64_t seed)
{
    return (int32_t)(rng_bits(seed, i, RNG_TEST, (uint32_t)k) % (uint32_t)b->info->vocab);
}

/* Prompt i begins with the same tokens at every length. So after a long prompt, the shorter ones
 * are in the prefix cache. */
static int32_t *make_prompt(const struct bench *b, int32_t i, int32_t n, uint64_t seed)
{
    int32_t *ids = xcalloc((size_t)n, sizeof *ids);
    for (int32_t k = 0; k < n; k++) {
        ids[k] = prompt_token(b, i, k, seed);
    }
    return ids;
}

static void load_free(struct load *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        free((void *)l->requests[i].prompt);
        free(l->outputs[i].tokens);
    }
    free(l->requests);
    free(l->outputs);
    *l = (struct load){0};
}

/* n requests of n_prompt tokens each, which generate exactly max_tokens, because stop ids are
 * ignored. */
static void load_make(struct bench *b, struct load *l, int32_t n, int32_t n_prompt,
                      int32_t max_tokens, uint64_t seed)
{
    *l = (struct load){.n = n,
                       .requests = xcalloc((size_t)n, sizeof *l->requests),
                       .outputs = xcalloc((size_t)n, sizeof *l->outputs)};
    for (int32_t i = 0; i < n; i++) {
        struct engine_request *r = &l->requests[i];
        r->prompt = make_prompt(b, i, n_prompt, seed);
        r->n_prompt = n_prompt;
        r->params = sampling_params_default();
        r->params.temperature = b->temperature;
        r->params.seed = (uint64_t)i;
        r->params.max_tokens = max_tokens;
        r->params.ignore_eos = true;
        r->n = 1;
        r->outputs = &l->outputs[i];
        l->outputs[i].tokens = xcalloc((size_t)max_tokens, sizeof *l->outputs[i].tokens);
    }
}

static enum status load_submit(struct bench *b, struct load *l, int32_t n, int32_t n_prompt,
                               int32_t max_tokens, uint64_t seed, struct err *err)
{
    load_make(b, l, n, n_prompt, max_tokens, seed);
    for (int32_t i = 0; i < n; i++) {
        TRY(engine_submit(b->engine, &l->requests[i], err));
    }
    return OK;
}

/* Total context tokens of all requests. */
static int64_t context_of(const struct load *l)
{
    int64_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        n += l->requests[i].n_prompt +
             atomic_load_explicit(&l->outputs[i].n_tokens, memory_order_acquire);
    }
    return n;
}

/* A step is complete once every sequence has its token. The engine's thread writes the counts, so
 * they are read with acquire. */
static int32_t fewest_tokens(const struct load *l)
{
    int32_t least = INT32_MAX;
    for (int32_t i = 0; i < l->n; i++) {
        const int32_t n = atomic_load_explicit(&l->outputs[i].n_tokens, memory_order_acquire);
        least = lesser(n, least);
    }
    return least;
}

/* An error of one request makes the figures meaningless. */
static bool has_failed(const struct load *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        if (l->requests[i].done && l->requests[i].error != OK) {
            return true;
        }
    }
    return false;
}

/* The time at which every request had at least n_tokens; 0 if one failed. */
static int64_t reach(struct bench *b, const struct load *l, int32_t n_tokens)
{
    while (fewest_tokens(l) < n_tokens) {
        wait_for_news(b);
        if (has_failed(l)) {
            return 0;
        }
    }
    return clock_now_ns();
}

/* Waits for the end of all requests. If one fails, the measurement fails with its error.
 */
static enum status finish(struct bench *b, struct load *l, struct err *err)
{
    for (int32_t i = 0; i < l->n; i++) {
        while (!l->requests[i].done) {
            wait_for_news(b);
        }
        if (l->requests[i].error != OK) {
            return err_set(err, l->requests[i].error, "%s", l->requests[i].error_text);
        }
    }
    return OK;
}

/* ---- figures ------------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The first sequences decode while the last are still in prefill, so the first must generate enough
 * tokens not to end before the last have been measured. The printed context is the mean over
 * sequences and steps. */
static enum status measure_decode(struct bench *b, int32_t batch, int32_t context, struct err *err)
{
    const int32_t half = REPEATS * b->n_steps / 2 + WARM_STEPS;
    const int32_t n_prompt = context > half ? context - half : 1;
    const int32_t mixed = b->info->mixed_rows, most = b->info->max_rows;
    const int32_t per_step = mixed < most ? (mixed + 1) / 2 : most; // of prompts, at least
    const int64_t prefill_steps = (int64_t)batch * n_prompt / per_step + WARM_STEPS;
    const int64_t max_tokens = REPEATS * b->n_steps + 2 * WARM_STEPS + 2 * prefill_steps;
    struct load l = {0};
    double ms[REPEATS];
    enum status st = load_submit(b, &l, batch, n_prompt, (int32_t)max_tokens, 1, err);
    int64_t before = st == OK ? reach(b, &l, WARM_STEPS) : 0;
    const int64_t context_before = st == OK ? context_of(&l) : 0;
    for (int32_t r = 0; st == OK && r < REPEATS; r++) {
        const int64_t now = reach(b, &l, WARM_STEPS + (r + 1) * b->n_steps);
        ms[r] = (double)(now - before) * 1e-6 / b->n_steps;
        before = now;
    }
    const int64_t context_after = st == OK ? context_of(&l) : 0;
    for (int32_t i = 0; st == OK && i < l.n; i++) {
        engine_cancel(b->engine, &l.requests[i]);
    }
    if (st == OK) {
        st = finish(b, &l, err);
    }
    if (st == OK) {
        qsort(ms, REPEATS, sizeof ms[0], compare_doubles);
        printf("decode   batch %4d at %5.0f: %8.3f ms a step (%.3f to %.3f) %9.1f tok/s\n", batch,
               (double)(context_before + context_after) / 2.0 / batch, ms[REPEATS / 2], ms[0],
               ms[REPEATS - 1], batch / ms[REPEATS / 2] * 1e3);
        fflush(stdout);
        load_free(&l);
    }
    return st;
}

/* Measures prompts that fill several whole steps. */
static enum status measure_prefill(struct bench *b, int32_t length, struct err *err)
{
    const int32_t per_step = greater(1, b->info->max_rows / length);
    const int32_t n = per_step * 6;
    double seconds[2];
    for (int32_t run = 0; run < 2; run++) { // the first run warms up; the second counts
        struct load l = {0};
        const int64_t start = clock_now_ns();
        enum status st =
            load_submit(b, &l, n, length, 1, 7 * (uint64_t)length + (uint64_t)run, err);
        const int64_t end = st == OK ? reach(b, &l, 1) : 0;
        if (st == OK) {
            st = finish(b, &l, err);
        }
        TRY(st);
        seconds[run] = (double)(end - start) * 1e-9;
        load_free(&l);
    }
    printf("prefill  %4d prompts of %5d: %8.1f ms %31.1f tok/s\n", n, length, seconds[1] * 1e3,
           (double)n * length / seconds[1]);
    fflush(stdout);
    return OK;
}

/* Milliseconds to the first token of prompt i; all prompts of one seed begin with the same
 * tokens. */
static enum status first_token_of(struct bench *b, int32_t i, uint64_t seed, double *ms,
                                  int32_t *n_cached, struct err *err)
{
    struct load l = {0};
    load_make(b, &l, 1, b->cached.n, 1, seed);
    int32_t *ids = (int32_t *)l.requests[0].prompt;
    for (int32_t k = b->cached.n_shared; k < b->cached.n; k++) {
        ids[k] = prompt_token(b, i + 1, k, seed);
    }
    const int64_t start = clock_now_ns();
    enum status st = engine_submit(b->engine, &l.requests[0], err);
    const int64_t end = st == OK ? reach(b, &l, 1) : 0;
    if (st == OK) {
        st = finish(b, &l, err);
    }
    *ms = (double)(end - start) * 1e-6;
    *n_cached = l.requests[0].n_cached;
    if (st == OK) {
        load_free(&l);
    }
    return st;
}

/* Measures the time to the first token of a prompt that is not in the prefix cache, and of a later
 * prompt with the same beginning. Requests run one at a time. The figures are medians over several
 * beginnings; the first one is a warm-up and does not count. */
static enum status measure_cached(struct bench *b, struct err *err)
{
    double miss[REPEATS + 1], hit[REPEATS + 1];
    int32_t n_cached = 0;
    for (int32_t r = 0; r <= REPEATS; r++) {
        const uint64_t seed = 100000 + (uint64_t)r;
        TRY(first_token_of(b, 0, seed, &miss[r], &n_cached, err));
        if (n_cached > 0) {
            return err_set(err, ERR_INVALID, "%d tokens of a new prompt are in the cache already",
                           n_cached);
        }
        TRY(first_token_of(b, 1, seed, &hit[r], &n_cached, err));
    }
    qsort(miss + 1, REPEATS, sizeof miss[0], compare_doubles);
    qsort(hit + 1, REPEATS, sizeof hit[0], compare_doubles);
    const double a = miss[1 + REPEATS / 2], c = hit[1 + REPEATS / 2];
    printf("cached   %d of %d tokens, %d shared: %.1f ms to the first token, %.1f without "
           "(%.3f)\n",
           n_cached, b->cached.n, b->cached.n_shared, c, a, c / a);
    fflush(stdout);
    return OK;
}

/* Long contexts first, so that the shorter ones find their prompts in the cache. */
static enum status measure_all(struct bench *b, struct err *err)
{
    printf("%s: %s, %zu MB of weights, %d blocks of %d\n", b->info->device, b->info->model_type,
           b->info->weight_bytes >> 20, b->info->n_blocks, b->info->block_tokens);
    for (int32_t c = b->contexts.n - 1; c >= 0; c--) {
        for (int32_t i = b->batches.n - 1; i >= 0; i--) {
            TRY(measure_decode(b, b->batches.v[i], b->contexts.v[c], err));
        }
    }
    for (int32_t i = 0; i < b->prompts.n; i++) {
        TRY(measure_prefill(b, b->prompts.v[i], err));
    }
    return b->cached.n > 0 ? measure_cached(b, err) : OK;
}

/* ---- the command -------------------------------------------------------------------------- */

static int compare_ints(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Parses "64,128,256" and sorts it in ascending order. */
static bool read_list(const char *text, struct list *out)
{
    out->n = 0;
    while (*text && out->n < MAX_LIST) {
        char *end;
        const long v = strtol(text, &end, 10);
        if (end == text || v < 1 || v > 1 << 20 || (*end != ',' && *end != '\0')) {
            return false;
        }
        out->v[out->n++] = (int32_t)v;
        text = *end == ',' ? end + 1 : end;
    }
    qsort(out->v, (size_t)out->n, sizeof out->v[0], compare_ints);
    return *text == '\0' && out->n > 0;
}

/* Parses "8192/9216": prompts of 9,216 tokens that share their first 8,192. */
static bool read_shape(const char *text, struct prompt_shape *out)
{
    char *end;
    const long n_shared = strtol(text, &end, 10);
    if (end == text || *end != '/') {
        return false;
    }
    const char *second = end + 1;
    const long n = strtol(second, &end, 10);
    if (end == second || *end != '\0' || n_shared < 1 || n <= n_shared || n > 1 << 20) {
        return false;
    }
    *out = (struct prompt_shape){(int32_t)n_shared, (int32_t)n};
    return true;
}

static int usage(int code)
{
    fprintf(
        code == 0 ? stdout : stderr,
        "usage: sluice bench-engine MODEL [--batch N,N...] [--context N,N...] [--prompt N,N...]\n"
        "    [--cached-prompt SHARED/N] [--steps N] [--temperature T] [OPTIONS of sluice serve]\n"
        "Tokens per second of decoding --batch sequences (64) at --context tokens (256), the\n"
        "median of three runs of --steps (32) steps, and of prefilling prompts of --prompt tokens\n"
        "(none). --cached-prompt 8192/9216 compares the time to the first token of prompts of\n"
        "9,216 tokens, with the first 8,192 in the prefix cache and with none. With\n"
        "--load-format dummy a folder with a config.json is enough.\n");
    return code;
}

/* Removes the command's own options from argv; the rest is for the option table. */
static bool take_options(struct bench *b, int argc, char **argv, int *n_rest, char **rest)
{
    struct {
        const char *name;
        struct list *list;
    } lists[] = {{"--batch", &b->batches}, {"--context", &b->contexts}, {"--prompt", &b->prompts}};
    for (int i = 0; i < argc; i++) {
        bool taken = false;
        for (size_t k = 0; k < sizeof lists / sizeof lists[0] && i + 1 < argc; k++) {
            if (strcmp(argv[i], lists[k].name) == 0) {
                if (!read_list(argv[++i], lists[k].list)) {
                    return false;
                }
                taken = true;
                break;
            }
        }
        if (!taken && strcmp(argv[i], "--cached-prompt") == 0 && i + 1 < argc) {
            if (!read_shape(argv[++i], &b->cached)) {
                return false;
            }
            taken = true;
        } else if (!taken && strcmp(argv[i], "--steps") == 0 && i + 1 < argc) {
            b->n_steps = (int32_t)strtol(argv[++i], NULL, 10);
            taken = true;
        } else if (!taken && strcmp(argv[i], "--temperature") == 0 && i + 1 < argc) {
            b->temperature = strtof(argv[++i], NULL);
            taken = true;
        }
        if (!taken) {
            rest[(*n_rest)++] = argv[i];
        }
    }
    return b->n_steps >= 1 && b->n_steps <= 4096 && b->temperature >= 0.0f;
}

/* Opens the engine for the remaining arguments `rest`, and measures. */
static enum status run(struct bench *b, int n_rest, char **rest, const struct engine_opener *opener,
                       struct engine_options *options, struct err *err)
{
    TRY(opener->configure(n_rest, rest, options, opener->arg, err));
    options->synthetic = true; // nobody reads the generated tokens
    options->wake = wake;
    options->callback_arg = b;
    if (options->max_num_mixed_tokens == 0) {
        /* Whole steps for prompts, beside decoding as well: all sequences of a batch must have
         * reached their context before the first has ended. */
        options->max_num_mixed_tokens = INT32_MAX;
    }
    TRY(engine_open(options, &b->engine, err));
    b->info = engine_info(b->engine);
    const int32_t most = b->batches.v[b->batches.n - 1];
    if (most > b->info->max_num_seqs) { // the rest would wait, and a step would seem that fast
        return err_set(err, ERR_INVALID,
                       "--batch %d is more than the %d sequences that run at the same time: add "
                       "--max-num-seqs %d",
                       most, b->info->max_num_seqs, most);
    }
    return measure_all(b, err);
}

/* Removes this benchmark's own options; the others configure the engine, as for the server. */
int bench_engine(int argc, char **argv, const struct engine_opener *opener)
{
    struct bench b = {.batches = {1, {64}}, .contexts = {1, {256}}, .n_steps = 32};
    char **rest = xcalloc((size_t)argc + 1, sizeof *rest);
    int n_rest = 0;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        free(rest);
        return usage(0);
    }
    if (!take_options(&b, argc, argv, &n_rest, rest)) {
        free(rest);
        return usage(2);
    }
    log_set_level(LOG_WARN);
    pthread_mutex_init(&b.lock, NULL);
    pthread_cond_init(&b.changed, NULL);
    struct engine_options options = {0};
    struct err err = {""};
    enum status st = run(&b, n_rest, rest, opener, &options, &err);
    if (st != OK) {
        fprintf(stderr, "sluice: %s\n", err.text[0] ? err.text : status_name(st));
    }
    engine_close(b.engine);
    opener->release(&options, opener->arg);
    free(rest);
    pthread_cond_destroy(&b.changed);
    pthread_mutex_destroy(&b.lock);
    return st != OK;
}
