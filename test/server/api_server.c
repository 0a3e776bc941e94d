// SPDX-License-Identifier: Apache-2.0
/* `sluice serve` on a scripted engine, for tests of the whole server: the same server, config and
 * tokenizer, with this file in place of engine.c. Environment variables:
 *
 *     FAKE_SCRIPTS  a file; line N holds the ids that a request with seed N gets, then eos
 *     FAKE_STEP_US  time of a step (2000)      FAKE_GROUP  tokens of a step (1)
 *     FAKE_LANES    samples at once (64)       FAKE_QUEUE  requests in all (4096)
 *     FAKE_LOAD_MS  time that loading takes (0)         FAKE_EOS   another id that ends a sample
 *     FAKE_CONTEXT  the context length (2048)  FAKE_MODEL_TYPE  the family (fake)
 *
 * Without a script a sample repeats its prompt. Seeds 1001 to 1003: the engine hangs, dies, or
 * fails that request. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/engine.h"
#include "engine/info.h"
#include "engine/options.h"
#include "server/cli/commands.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_REQUESTS = 12288, MAX_SCRIPTS = 256, SEED_HANG = 1001, SEED_DIE, SEED_FAIL };

/* A request in the engine; slots before `n` are in use. `news`: there is something to
 * report. */
struct slot {
    struct engine_request *r;
    bool cancelled, stopped[1024], ended, news;
};

struct script {
    int32_t *ids;
    int32_t n;
};

/* An engine without a model: requests in slots, one thread, tokens from scripts. */
struct engine {
    struct engine_options options;
    struct engine_info info;
    struct engine_stats stats;
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    struct slot slots[MAX_REQUESTS];
    int n, n_news, next_drained, lanes, queue, group; // next_drained: where draining goes on
    useconds_t step_us;
    bool quit, hangs;
    struct script scripts[MAX_SCRIPTS];
    int n_scripts;
};

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    if (text) {
        return atoi(text);
    }
    return otherwise;
}

/* Reads the scripts: the ids for a seed are on the line of that number. */
static void read_scripts(struct engine *e, const char *path)
{
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    while (f && getline(&line, &cap, f) > 0 && e->n_scripts < MAX_SCRIPTS) {
        struct script *s = &e->scripts[e->n_scripts++];
        char *at = line, *end;
        for (long id; id = strtol(at, &end, 10), end != at; at = end) {
            s->ids = xrealloc(s->ids, (size_t)(s->n + 1) * sizeof s->ids[0]);
            s->ids[s->n++] = (int32_t)id;
        }
    }
    free(line);
    if (f) {
        fclose(f);
    }
}

/* Log-probabilities that tests can predict: -0.5 for the token, and 1 less for each further
 * alternative. */
static void put_logprobs(struct token_logprobs *lp, int32_t n_top, int32_t id)
{
    lp->logprob = -0.5f;
    lp->n_top = n_top;
    for (int32_t i = 0; i < n_top; i++) {
        lp->top_ids[i] = i == 0 ? id : i;
        lp->top_logprobs[i] = -0.5f - (float)i;
    }
}

/* Without a script the prompt is repeated. */
static int32_t next_token(const struct engine *e, const struct engine_request *r, int32_t t)
{
    if (r->params.seed < (uint64_t)e->n_scripts) {
        const struct script *s = &e->scripts[r->params.seed];
        return t < s->n ? s->ids[t] : e->info.eos[0];
    }
    return r->prompt[t % r->n_prompt];
}

static bool is_stop(const struct engine_request *r, int32_t id)
{
    for (int32_t i = 0; i < r->params.n_stop_ids; i++) {
        if (r->params.stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Generates up to `group` tokens for one sample. True if the sample continues. */
static bool advance(struct engine *e, struct slot *s, int32_t k)
{
    struct engine_request *r = s->r;
    struct engine_output *o = &r->outputs[k];
    if (o->finish) {
        return false;
    }
    int32_t finish = s->stopped[k] ? FINISH_STOP : FINISH_NONE;
    if (s->cancelled) {
        finish = FINISH_CANCELLED;
    }
    for (int i = 0; i < e->group && finish == FINISH_NONE; i++) {
        int32_t t = o->n_tokens;
        if (t >= r->params.max_tokens) {
            finish = FINISH_LENGTH;
            break;
        }
        int32_t id = next_token(e, r, t);
        o->tokens[t] = id;
        if (o->logprobs) {
            put_logprobs(&o->logprobs[t], r->params.top_logprobs, id);
        }
        atomic_store(&o->n_tokens, t + 1);
        e->stats.generated_tokens++;
        if (is_stop(r, id)) {
            finish = FINISH_STOP;
        } else if (t + 1 == r->params.max_tokens) {
            finish = FINISH_LENGTH;
        }
        o->stop_id = finish == FINISH_STOP ? id : -1;
    }
    if (finish != FINISH_NONE) {
        atomic_store(&o->finish, finish);
    }
    return finish == FINISH_NONE;
}

static void announce(struct engine *e, struct slot *s)
{
    e->n_news += !s->news;
    s->news = true;
}

/* Adds a request to the counts of those that wait or run, or takes it away (by -1). */
static void count(struct engine *e, const struct engine_request *r, int by)
{
    if (r->t_scheduled_ns == 0) {
        e->stats.n_waiting += by * r->n;
        e->stats.waiting_tokens += by * r->n_prompt;
    } else {
        e->stats.n_running += by * r->n;
        e->stats.n_blocks_held += by;
    }
}

/* Fails a request as if the device were lost. */
static void fail(struct slot *s)
{
    s->r->error = ERR_DEVICE;
    snprintf(s->r->error_text, sizeof s->r->error_text, "told to fail");
    for (int32_t k = 0; k < s->r->n; k++) {
        atomic_store(&s->r->outputs[k].finish, FINISH_ERROR);
    }
}

/* One step for a request: usage that tests can predict (half of the prompt counts as
 * cached), then tokens or a failure. */
static void step(struct engine *e, struct slot *s)
{
    struct engine_request *r = s->r;
    int64_t now_ns = clock_now_ns();
    if (r->t_scheduled_ns == 0) {
        count(e, r, -1);
        r->t_scheduled_ns = now_ns;
        count(e, r, 1);
        r->n_cached = r->n_prompt / 2;
        for (int32_t i = 1; r->prompt_logprobs && i < r->n_prompt; i++) {
            put_logprobs(&r->prompt_logprobs[i], r->params.prompt_top_logprobs, r->prompt[i]);
        }
    }
    bool live = false;
    if (r->params.seed == SEED_HANG) {
        e->hangs = true;
        return;
    }
    if (r->params.seed == SEED_DIE) {
        e->stats.state = ENGINE_FAILED;
    }
    if (r->params.seed == SEED_FAIL || r->params.seed == SEED_DIE) {
        fail(s);
    } else if (r->pool != POOL_NONE) {
        for (int32_t i = 0; i < e->info.hidden; i++) {
            r->pooled[i] = (float)(r->prompt[i % r->n_prompt] + i);
        }
    } else {
        for (int32_t k = 0; k < r->n; k++) {
            live = advance(e, s, k) || live;
        }
    }
    if (!r->t_first_token_ns) {
        r->t_first_token_ns = now_ns;
    }
    announce(e, s);
    s->ended = !live;
    r->t_done_ns = now_ns;
}

/* The engine thread. The lock is not held while the step's time passes, so requests can be
 * submitted and cancelled. */
static void *run(void *arg)
{
    struct engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->quit) {
        if (e->n == 0 || e->hangs) {
            pthread_cond_wait(&e->more, &e->lock);
            continue;
        }
        int lanes = 0;
        for (int i = 0; i < e->n; i++) {
            struct slot *s = &e->slots[i];
            if (!s->ended && (lanes < e->lanes || s->cancelled)) {
                lanes += s->r->n;
                step(e, s);
            }
        }
        e->stats.n_steps += !e->hangs;
        e->stats.n_rows += lanes;
        e->stats.step_sizes[lanes > 1] += !e->hangs;
        pthread_mutex_unlock(&e->lock);
        e->options.wake(e->options.callback_arg);
        usleep(e->step_us);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- engine.h ---------------------------------------------------------------------------------
 */

enum status engine_check(const struct engine_options *options, struct err *err)
{
    (void)options, (void)err; // the tests' config.json has nothing to check
    return OK;
}

/* Loading reports its progress in steps of 10 ms, for tests of /health while a model
 * loads. */
enum status engine_open(const struct engine_options *options, struct engine **out, struct err *err)
{
    struct engine *e = xcalloc(1, sizeof *e);
    (void)err;
    e->options = *options;
    e->info = (struct engine_info){
        .model_type = "fake",
        .kv_cache_dtype = "float32",
        .vocab = 4096,
        .hidden = 8,
        .pooled_width = 8,
        .max_model_len = number("FAKE_CONTEXT", 2048),
        .block_tokens = 16,
        .match_unit = 16,
        .n_blocks = 100,
        .max_num_seqs = number("FAKE_LANES", 64),
        .max_sequences = MAX_REQUESTS,
        .n_eos = 1,
        .eos = {2},
        .device = "fake",
        .defaults = sampling_params_default(),
    };
    if (getenv("FAKE_MODEL_TYPE")) {
        snprintf(e->info.model_type, sizeof e->info.model_type, "%s", getenv("FAKE_MODEL_TYPE"));
    }
    if (number("FAKE_EOS", 0) > 0) {
        e->info.eos[e->info.n_eos++] = number("FAKE_EOS", 0);
    }
    e->lanes = number("FAKE_LANES", 64);
    e->queue = number("FAKE_QUEUE", 4096);
    e->group = number("FAKE_GROUP", 1);
    e->step_us = (useconds_t)number("FAKE_STEP_US", 2000);
    e->stats.n_blocks = 100;
    e->stats.n_blocks_idle = 3;
    if (getenv("FAKE_SCRIPTS")) {
        read_scripts(e, getenv("FAKE_SCRIPTS"));
    }
    for (int i = 0, ms = number("FAKE_LOAD_MS", 0); i < ms; i += 10) {
        options->on_progress((double)i / ms, "weights", options->callback_arg);
        usleep(10000);
    }
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->more, NULL);
    pthread_create(&e->thread, NULL, run, e);
    *out = e;
    return OK;
}

const struct engine_info *engine_info(const struct engine *e)
{
    return &e->info;
}

void engine_add_eos(struct engine *e, int32_t id)
{
    (void)e, (void)id; // answers continue after the tokenizer's end token
}

/* The limit of the queue is set by the test. */
enum status engine_submit(struct engine *e, struct engine_request *r, struct err *err)
{
    (void)err;
    pthread_mutex_lock(&e->lock);
    enum status st = e->n < e->queue && e->n < MAX_REQUESTS ? OK : ERR_BUSY;
    if (st == OK) {
        e->slots[e->n] = (struct slot){.r = r};
        e->n++;
        r->t_submit_ns = clock_now_ns();
        count(e, r, 1);
        e->stats.prompt_tokens += r->n_prompt;
        pthread_cond_signal(&e->more);
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

static struct slot *find(struct engine *e, const struct engine_request *r)
{
    for (int i = 0; i < e->n; i++) {
        if (e->slots[i].r == r) {
            return &e->slots[i];
        }
    }
    return NULL;
}

void engine_cancel(struct engine *e, struct engine_request *r)
{
    pthread_mutex_lock(&e->lock);
    struct slot *s = find(e, r);
    if (s) {
        s->cancelled = true;
    }
    pthread_mutex_unlock(&e->lock);
}

/* Stops only one sample of the request. */
void engine_stop(struct engine *e, struct engine_request *r, int32_t sample)
{
    pthread_mutex_lock(&e->lock);
    struct slot *s = find(e, r);
    if (s) {
        s->stopped[sample] = true;
    }
    pthread_mutex_unlock(&e->lock);
}

/* Events are collected under the lock and reported without it, since callbacks submit and
 * cancel. */
bool engine_drain_some(struct engine *e, int max,
                       void (*on_event)(struct engine_request *r, void *arg), void *arg)
{
    static struct engine_request *news[MAX_REQUESTS];
    int n = 0;
    pthread_mutex_lock(&e->lock);
    int at = e->next_drained; // where the last drain ended, so that each has its turn
    for (int left = e->n; left > 0 && n < max; left--) {
        at = at < e->n ? at : 0;
        struct slot *s = &e->slots[at++];
        if (!s->news) {
            continue;
        }
        news[n++] = s->r;
        s->news = false;
        e->n_news--;
        if (s->ended) {
            s->r->done = true;
            count(e, s->r, -1);
            e->slots[--at] = e->slots[--e->n];
        }
    }
    e->next_drained = at;
    const bool more = e->n_news > 0;
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < n; i++) {
        on_event(news[i], arg);
    }
    return more;
}

/* The numbers that metrics and the status page need. */
void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    pthread_mutex_unlock(&e->lock);
}

void engine_reset_prefix_cache(struct engine *e)
{
    (void)e;
}

enum status engine_set_adapter(struct engine *e, int32_t adapter, const char *name, const char *dir,
                               struct err *err)
{
    (void)e;
    (void)adapter;
    (void)name;
    (void)dir;
    return err_set(err, ERR_UNSUPPORTED, "the scripted engine has no adapters");
}

/* Every unfinished request ends as cancelled. */
void engine_stop_all(struct engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->quit = true;
    pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    for (int i = 0; i < e->n; i++) {
        announce(e, &e->slots[i]);
        e->slots[i].cancelled = e->slots[i].ended = true;
        for (int32_t k = 0; k < e->slots[i].r->n; k++) {
            advance(e, &e->slots[i], k);
        }
    }
}

void engine_close(struct engine *e)
{
    for (int i = 0; i < e->n_scripts; i++) {
        free(e->scripts[i].ids);
    }
    free(e);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    return cmd_serve(argc, argv);
}
