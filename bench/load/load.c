// SPDX-License-Identifier: Apache-2.0
/* The requests of each workload. All randomness is counter-based (Philox), from the seed and the
 * request's number, so a body does not depend on the order in which requests are sent. */
#include "bench/load/load.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/rng.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Random streams. A shared prefix and a suffix use different ones, so their tokens differ. */
enum {
    STREAM_OWN = 10,
    STREAM_PREFIX,
    STREAM_SHUFFLE,
    STREAM_INPUT_LEN,
    STREAM_OUTPUT_LEN,
    STREAM_TURNS,
    STREAM_THINK,
    STREAM_RESULT_LEN
};
enum { MAX_TURNS = 1000 }; // limit of the turns of a unit
enum { MAX_SPREAD = 4 };   // upper limit of a length, as a multiple of the mean
enum { FIRST_ID = 100 };   // lower ids are special or byte tokens in most vocabularies
enum { MAX_LINE_BYTES = 64 << 20 };
enum { MAX_DATASET_BYTES = 1 << 30, MAX_DATASET_VALUES = 1 << 26 };

double bench_load_uniform(int64_t seed, uint32_t stream, int64_t n)
{
    const struct rng_block b =
        rng_philox((uint64_t)seed, (uint32_t)n, stream, (uint32_t)((uint64_t)n >> 32), 1);
    return rng_uniform(b.v[0]);
}

/* Log-normal around the mean, truncated at MAX_SPREAD times the mean. */
static int64_t varied(const struct bench_load *load, uint32_t stream, int64_t unit, int64_t mean)
{
    const double sigma = load->o->spread;
    if (sigma <= 0.0) {
        return mean;
    }
    const double u = bench_load_uniform(load->o->seed, stream, 2 * unit);
    const double v = bench_load_uniform(load->o->seed, stream, 2 * unit + 1);
    const double normal = sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
    const double n = (double)mean * exp(sigma * normal - sigma * sigma / 2.0);
    const double most = (double)(MAX_SPREAD * mean);
    if (n < 1.0) {
        return 1;
    }
    return (int64_t)lesser(n, most);
}

/* n random tokens of a stream: as ids, or as text of two-letter words, each about one token. */
static void put_tokens(const struct bench_load *load, uint32_t stream, int64_t which, int64_t n,
                       struct buf *out)
{
    const uint32_t span = (uint32_t)(load->o->vocab - FIRST_ID);
    struct rng_block b = {{0}};
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 == 0) {
            b = rng_philox((uint64_t)load->o->seed, (uint32_t)(i / 4), stream, (uint32_t)which, 0);
        }
        const uint32_t r = (uint32_t)(((uint64_t)b.v[i % 4] * span) >> 32);
        if (load->o->text) {
            // Two letters and a space: about one token in common vocabularies.
            buf_putc(out, (char)('a' + r % 26));
            buf_putc(out, (char)('a' + r / 26 % 26));
            buf_putc(out, ' ');
        } else {
            buf_put_int(out, FIRST_ID + (int64_t)r);
            buf_putc(out, ',');
        }
    }
}

/* The place of request `unit` in the round-robin order of the groups; this place modulo the number
 * of groups is its group. */
static int64_t place_of(const struct bench_load *load, int64_t unit)
{
    const struct bench_options *o = load->o;
    const int64_t n = o->groups * o->members, in_round = unit % n;
    switch (o->order) {
    case ORDER_GROUPED:
        return unit - in_round + in_round % o->members * o->groups + in_round / o->members;
    case ORDER_SHUFFLED: return unit - in_round + load->shuffled[in_round];
    case ORDER_ROUND: break;
    }
    return unit;
}

/* Agents have different numbers of turns, uniformly distributed from a third of --turns to --turns.
 */
int64_t bench_load_turns(const struct bench_load *load, int64_t unit)
{
    const struct bench_options *o = load->o;
    if (o->workload != WORKLOAD_AGENT) {
        return bench_has_turns(o) ? o->turns : 1;
    }
    const int64_t least = (o->turns + 2) / 3;
    const double u = bench_load_uniform(o->seed, STREAM_TURNS, unit);
    return least + (int64_t)(u * (double)(o->turns - least + 1));
}

/* Exponentially distributed: most tools are fast, a few are slow. */
int64_t bench_load_think_ns(const struct bench_load *load, int64_t unit, int64_t turn)
{
    if (load->o->workload != WORKLOAD_AGENT) {
        return 0;
    }
    const double u = bench_load_uniform(load->o->seed, STREAM_THINK, unit * MAX_TURNS + turn);
    return (int64_t)(-log(u) * load->o->think * 1e9);
}

/* Length of a tool's result, log-uniform. */
static int64_t result_len(const struct bench_load *load, int64_t which)
{
    const double least = (double)load->o->result_min, most = (double)load->o->result_max;
    const double u = bench_load_uniform(load->o->seed, STREAM_RESULT_LEN, which);
    return (int64_t)(least * pow(most / least, u));
}

/* The contents of the prompt: words, or ids separated by commas. */
static void put_prompt(const struct bench_load *load, int64_t unit, int64_t turn, struct buf *out)
{
    const struct bench_options *o = load->o;
    if (o->workload == WORKLOAD_SHARED_PREFIX) {
        unit = place_of(load, unit);
        put_tokens(load, STREAM_PREFIX, unit % o->groups, o->prefix_len, out);
        put_tokens(load, STREAM_OWN, unit, o->suffix_len, out);
    } else if (o->workload == WORKLOAD_AGENT && turn > 0) {
        const int64_t which = unit * MAX_TURNS + turn;
        put_tokens(load, STREAM_OWN, which, result_len(load, which), out);
    } else {
        put_tokens(load, STREAM_OWN, unit * MAX_TURNS + turn,
                   varied(load, STREAM_INPUT_LEN, unit, o->input_len), out);
    }
    out->data[--out->n_bytes] = '\0'; // remove the last comma or space
}

/* A recorded prompt, or random text. */
static void put_text_prompt(const struct bench_load *load, int64_t unit, int64_t turn,
                            struct buf *out)
{
    if (load->o->workload == WORKLOAD_SHAREGPT) {
        const char *text = load->items[(size_t)unit % load->n_items].prompt;
        buf_put_json(out, text, strlen(text));
        return;
    }
    buf_putc(out, '"');
    put_prompt(load, unit, turn, out);
    buf_putc(out, '"');
}

/* All agents share one system prompt. */
static void put_system(const struct bench_load *load, struct buf *history)
{
    buf_puts(history, "{\"role\":\"system\",\"content\":\"");
    put_tokens(load, STREAM_PREFIX, 0, load->o->prefix_len, history);
    buf_puts(history, "\"}");
}

void bench_load_answer(struct buf *history, const char *raw, size_t n_bytes)
{
    buf_puts(history, ",{\"role\":\"assistant\",\"content\":\"");
    buf_put(history, raw, n_bytes);
    buf_puts(history, "\"}");
}

/* Units take the names of a list in turn. */
static void put_model(const struct bench_load *load, int64_t unit, struct buf *body)
{
    int64_t n = 1;
    for (const char *at = load->model; (at = strchr(at, ',')) != NULL; at++) {
        n++;
    }
    const char *name = load->model;
    for (int64_t i = 0; i < unit % n; i++) {
        name = strchr(name, ',') + 1;
    }
    buf_put_json(body, name, strcspn(name, ","));
}

/* With --chat the history holds the conversation so far, with the server's own answers. */
void bench_load_body(const struct bench_load *load, int64_t unit, int64_t turn, struct buf *history,
                     struct buf *body)
{
    const struct bench_options *o = load->o;
    buf_puts(body, "{\"model\":");
    put_model(load, unit, body);
    if (o->chat) {
        if (o->workload == WORKLOAD_AGENT && turn == 0) {
            put_system(load, history);
        }
        if (history->n_bytes > 0) {
            buf_puts(history, ",{\"role\":\"user\",\"content\":");
        } else {
            buf_puts(history, "{\"role\":\"user\",\"content\":");
        }
        put_text_prompt(load, unit, turn, history);
        buf_putc(history, '}');
        buf_puts(body, ",\"messages\":[");
        buf_put(body, history->data, history->n_bytes);
        buf_putc(body, ']');
    } else if (o->text) {
        buf_puts(body, ",\"prompt\":");
        put_text_prompt(load, unit, turn, body);
    } else {
        buf_puts(body, ",\"prompt\":[");
        put_prompt(load, unit, turn, body);
        buf_putc(body, ']');
    }
    int64_t output_len = o->output_len > 0 ? o->output_len : 64;
    if (o->workload == WORKLOAD_SHAREGPT && o->output_len == 0) {
        output_len = load->items[(size_t)unit % load->n_items].output_len;
    }
    output_len = varied(load, STREAM_OUTPUT_LEN, unit, output_len);
    buf_printf(body, ",\"max_tokens\":%lld", (long long)output_len);
    if (o->temperature >= 0.0) {
        buf_printf(body, ",\"temperature\":%g", o->temperature);
    }
    if (!o->no_ignore_eos) {
        buf_puts(body, ",\"ignore_eos\":true");
    }
    buf_puts(body,
             o->batch_path ? "}" : ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
}

/* The same requests as lines of OpenAI's batch format. */
enum status bench_load_write_batch(const struct bench_load *load, const char *path, struct err *err)
{
    const struct bench_options *o = load->o;
    FILE *f = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    if (f == NULL) {
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    struct buf line, history;
    buf_init(&line, MAX_LINE_BYTES);
    buf_init(&history, MAX_LINE_BYTES);
    bool good = true;
    for (int64_t i = 0; i < o->n_requests && good; i++) {
        buf_clear(&line);
        buf_clear(&history);
        buf_printf(&line, "{\"custom_id\":\"%lld\",\"method\":\"POST\",\"url\":\"%s\",\"body\":",
                   (long long)i, o->chat ? "/v1/chat/completions" : "/v1/completions");
        bench_load_body(load, i, 0, &history, &line);
        buf_puts(&line, "}\n");
        good = !line.failed && fwrite(line.data, 1, line.n_bytes, f) == line.n_bytes;
    }
    good = fflush(f) == 0 && good;
    good = (f == stdout || fclose(f) == 0) && good;
    buf_deinit(&line);
    buf_deinit(&history);
    if (!good) {
        return err_set(err, ERR_IO, "%s could not be written", path);
    }
    return OK;
}

/* ---- ShareGPT ---- */

/* The text of a turn in a ShareGPT conversation, if it has this role; roles are spelt in two
 * ways. */
static const char *turn_text(const struct json *turn, const char *role, const char *other)
{
    const char *from = json_get_string(turn, "from");
    if (from == NULL || (strcmp(from, role) != 0 && strcmp(from, other) != 0)) {
        return NULL;
    }
    const char *value = json_get_string(turn, "value");
    if (value != NULL && value[0] != '\0') {
        return value;
    }
    return NULL;
}

/* The first question and its answer form one request, as in other load generators. */
static void take_items(struct bench_load *load, const struct json *root)
{
    for (const struct json *c = json_first(root); c != NULL; c = json_next(c)) {
        const struct json *question = json_first(json_get(c, "conversations"));
        const struct json *answer = NULL;
        if (question != NULL) {
            answer = json_next(question);
        }
        const char *q = turn_text(question, "human", "user");
        const char *a = turn_text(answer, "gpt", "assistant");
        if (q != NULL && a != NULL) {
            struct sharegpt_item *item = &load->items[load->n_items++];
            item->prompt = xstrdup(q);
            item->output_len = (int64_t)(strlen(a) + 3) / 4; // about four bytes per token
        }
    }
}

/* Only the beginning of each conversation is used: its first question, and the length of
 * the answer. */
static enum status read_dataset(struct bench_load *load, const char *path, struct err *err)
{
    char *data;
    size_t n_bytes;
    TRY(file_read(path, MAX_DATASET_BYTES, &data, &n_bytes, err));
    const struct json_limits limits = {.max_values = MAX_DATASET_VALUES};
    struct json *root;
    enum status st = json_parse(data, n_bytes, &limits, &root, err);
    free(data);
    if (st != OK) {
        return err_prefix(err, st, "%s", path);
    }
    if (json_is(root, JSON_ARRAY)) {
        load->items = xcalloc(json_count(root) + 1, sizeof *load->items);
        take_items(load, root);
    }
    json_free(root);
    if (load->n_items == 0) {
        return err_set(err, ERR_FORMAT, "%s: no conversation with a human's question and an answer",
                       path);
    }
    for (size_t i = load->n_items - 1; i > 0; i--) {
        const double u = bench_load_uniform(load->o->seed, STREAM_SHUFFLE, (int64_t)i);
        const size_t k = (size_t)(u * (double)(i + 1));
        const struct sharegpt_item item = load->items[i];
        load->items[i] = load->items[k];
        load->items[k] = item;
    }
    return OK;
}

/* Fisher-Yates with the run's seed: a random order of the requests of all groups. */
static void shuffle_units(struct bench_load *load)
{
    const int64_t n = load->o->groups * load->o->members;
    load->shuffled = xcalloc((size_t)n, sizeof *load->shuffled);
    for (int64_t i = 0; i < n; i++) {
        const double u = bench_load_uniform(load->o->seed, STREAM_SHUFFLE, i);
        const int64_t k = (int64_t)(u * (double)(i + 1));
        load->shuffled[i] = load->shuffled[k];
        load->shuffled[k] = i;
    }
}

/* Prompts come from the dataset, if there is one; otherwise they are generated from the seed. */
enum status bench_load_init(struct bench_load *load, const struct bench_options *o,
                            const char *model, struct err *err)
{
    *load = (struct bench_load){.o = o, .model = model};
    if (o->order == ORDER_SHUFFLED) {
        shuffle_units(load);
    }
    if (o->dataset != NULL) {
        return read_dataset(load, o->dataset, err);
    }
    return OK;
}

void bench_load_deinit(struct bench_load *load)
{
    for (size_t i = 0; i < load->n_items; i++) {
        free(load->items[i].prompt);
    }
    free(load->items);
    free(load->shuffled);
}
