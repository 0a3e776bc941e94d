// SPDX-License-Identifier: Apache-2.0
/* All options are in one table, which also generates the help. Conditions on several options are
 * checked at the end. */
#include "bench/load/options.h"
#include "engine/base/optional.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const workload_names[] = {"random", "shared-prefix", "multi-turn",
                                      "agent",  "sharegpt",      NULL};
static const char *const order_names[] = {"round", "grouped", "shuffled", NULL};

enum kind { TEXT, INTEGER, REAL, FLAG, WORKLOAD, ORDER };

/* `help` begins with the value's name; two spaces separate it from the explanation. */
static const struct option {
    const char *name;
    enum kind kind;
    size_t offset;
    double min, max; // valid range of a number
    const char *help;
} options[] = {
#define AT(field) offsetof(struct bench_options, field)
    {"url", TEXT, AT(url), 0, 0, "URL  the server (http://127.0.0.1:8000)"},
    {"model", TEXT, AT(model), 0, 0,
     "NAME  the model (the first of /v1/models); requests take several, as A,B,C, in turn"},
    {"api-key", TEXT, AT(api_key), 0, 0, "KEY  bearer token (the environment's OPENAI_API_KEY)"},
    {"workload", WORKLOAD, AT(workload), 0, 0,
     "W  random, shared-prefix, multi-turn, agent or sharegpt (random)"},
    {"requests", INTEGER, AT(n_requests), 1, 1e7,
     "N  requests, or conversations (100; groups x members for shared-prefix; 16 agents)"},
    {"concurrency", INTEGER, AT(concurrency), 0, 60000,
     "N  at most this many requests at once; 0: no limit (8; no limit with --rate)"},
    {"rate", REAL, AT(rate), 1e-6, 1e6,
     "R  Poisson arrivals per second (without it: as fast as --concurrency allows)"},
    {"duration", REAL, AT(duration), 1e-3, 1e6,
     "S  start no more requests after this many seconds"},
    {"timeout", REAL, AT(timeout), 1e-3, 1e6, "S  time limit of a request (600)"},
    {"input-len", INTEGER, AT(input_len), 1, 1e7, "N  prompt tokens, or words (128)"},
    {"output-len", INTEGER, AT(output_len), 1, 1e7,
     "N  tokens to generate (64, agent: 128; sharegpt: the estimated length of the recorded "
     "answer)"},
    {"spread", REAL, AT(spread), 0, 3,
     "S  random: sigma of log-normal lengths around these means, up to four times the mean (0)"},
    {"groups", INTEGER, AT(groups), 1, 1e6, "N  shared-prefix: number of prefixes (8)"},
    {"members", INTEGER, AT(members), 1, 1e6, "N  shared-prefix: requests per prefix (8)"},
    {"prefix-len", INTEGER, AT(prefix_len), 1, 1e7,
     "N  tokens of the common prefix: shared-prefix (512); agent: of the system prompt (4096)"},
    {"suffix-len", INTEGER, AT(suffix_len), 1, 1e7,
     "N  shared-prefix: tokens of each request after the prefix (32)"},
    {"order", ORDER, AT(order), 0, 0,
     "O  shared-prefix: order of the groups' requests: round (robin), grouped or shuffled (round)"},
    {"turns", INTEGER, AT(turns), 1, 1000,
     "N  multi-turn: questions per conversation (4); agent: maximum of turns (60); the minimum is "
     "a third"},
    {"result-min", INTEGER, AT(result_min), 1, 1e6,
     "N  agent: fewest tokens of a tool's result (200)"},
    {"result-max", INTEGER, AT(result_max), 1, 1e6,
     "N  agent: most tokens of a tool's result (8000)"},
    {"think", REAL, AT(think), 0, 3600, "S  agent: mean time that a tool takes (1)"},
    {"dataset", TEXT, AT(dataset), 0, 0, "FILE  sharegpt: the JSON file"},
    {"text", FLAG, AT(text), 0, 0, "send prompts as words instead of token ids"},
    {"chat", FLAG, AT(chat), 0, 0, "use /v1/chat/completions (implies --text)"},
    {"no-ignore-eos", FLAG, AT(no_ignore_eos), 0, 0, "let the model end before --output-len"},
    {"temperature", REAL, AT(temperature), 0, 100,
     "T  temperature of every request (the server's default)"},
    {"vocab-size", INTEGER, AT(vocab), 200, 1e7,
     "N  draw random token ids from 100 to N - 1 (1000)"},
    {"seed", INTEGER, AT(seed), 0, 9e15, "N  seed of prompts and arrivals (0)"},
    {"ttft-limit", REAL, AT(ttft_limit_ms), 1e-3, 1e9,
     "MS  goodput: limit of the time to first token"},
    {"tpot-limit", REAL, AT(tpot_limit_ms), 1e-3, 1e9,
     "MS  goodput: limit of the time per token after the first"},
    {"write-batch", TEXT, AT(batch_path), 0, 0,
     "FILE  send nothing, but write the requests as lines of a batch file (needs --model)"},
    {"json", TEXT, AT(json_path), 0, 0,
     "FILE  write all figures, and those of each request, as JSON"},
    {"help", FLAG, AT(help), 0, 0, "this text"},
};

enum { N_OPTIONS = sizeof options / sizeof options[0] };

/* Prints the help from the table; two spaces in a text separate the value's name from the
 * explanation. */
void bench_options_help(void)
{
    printf("usage: sluice bench [OPTIONS]\n\n"
           "Sends load to a server that speaks the OpenAI API and prints what it measured.\n\n");
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const char *help = options[i].help, *two = strstr(help, "  ");
        char left[64];
        snprintf(left, sizeof left, "--%s %.*s", options[i].name,
                 two != NULL ? (int)(two - help) : 0, help);
        printf("  %-20s  %s\n", left, two != NULL ? two + 2 : help);
    }
    printf("\nTimes count from when a request was due, so they include waits for --concurrency.\n"
           "TTFT: to the first event with text. ITL: between such events. TPOT: from the first\n"
           "to the end of the answer, over the tokens after the first. E2E: to the end of the "
           "answer.\n");
}

/* An integer option rejects fractions; the error message gives the valid range. */
static enum status set_number(const struct option *opt, const char *value, void *at,
                              struct err *err)
{
    char *end;
    errno = 0;
    const double v = strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !isfinite(v)) {
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a number", opt->name, value);
    }
    if (v < opt->min || v > opt->max) {
        return err_set(err, ERR_INVALID, "--%s: %s is not within %g and %g", opt->name, value,
                       opt->min, opt->max);
    }
    if (opt->kind == REAL) {
        *(double *)at = v;
        return OK;
    }
    if (v != floor(v)) {
        return err_set(err, ERR_INVALID, "--%s: '%s' is not a whole number", opt->name, value);
    }
    *(int64_t *)at = (int64_t)v;
    return OK;
}

/* The error message lists the valid values. */
static enum status set_choice(const struct option *opt, const char *const *names, const char *value,
                              void *at, struct err *err)
{
    char all[128] = "";
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(value, names[i]) == 0) {
            *(int *)at = i;
            return OK;
        }
        const size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", text_if(i > 0, ", "), names[i]);
    }
    return err_set(err, ERR_INVALID, "--%s: '%s' is not one of %s", opt->name, value, all);
}

/* Stores a value in the struct, at the offset that the option's row gives. */
static enum status set(const struct option *opt, const char *value, struct bench_options *o,
                       struct err *err)
{
    void *at = (char *)o + opt->offset;
    if (opt->kind == INTEGER || opt->kind == REAL) {
        return set_number(opt, value, at, err);
    }
    if (opt->kind == TEXT) {
        *(const char **)at = value;
        return OK;
    }
    return set_choice(opt, opt->kind == ORDER ? order_names : workload_names, value, at, err);
}

/* Fills in defaults that do not depend on other options. */
static void settle_defaults(struct bench_options *o)
{
    const bool agent = o->workload == WORKLOAD_AGENT;
    int64_t *const values[] = {&o->n_requests, &o->turns, &o->prefix_len, &o->output_len};
    const int64_t others[] = {100, 4, 512, 0}, of_agents[] = {16, 60, 4096, 128};
    for (int i = 0; i < 4; i++) {
        if (*values[i] == 0) {
            *values[i] = agent ? of_agents[i] : others[i];
        }
    }
}

/* Fills in defaults that depend on other options. Rejects options that would have no effect. */
static enum status settle(struct bench_options *o, struct err *err)
{
    if ((o->workload == WORKLOAD_SHAREGPT) != (o->dataset != NULL)) {
        return err_set(err, ERR_INVALID,
                       o->dataset != NULL ? "--dataset goes with --workload sharegpt"
                                          : "--workload sharegpt needs --dataset FILE");
    }
    if (o->spread > 0 && o->workload != WORKLOAD_RANDOM) {
        return err_set(err, ERR_INVALID, "--spread goes with --workload random");
    }
    if (o->order != ORDER_ROUND && o->workload != WORKLOAD_SHARED_PREFIX) {
        return err_set(err, ERR_INVALID, "--order goes with --workload shared-prefix");
    }
    if (o->result_min > o->result_max) {
        return err_set(err, ERR_INVALID, "--result-min is above --result-max");
    }
    if (o->batch_path != NULL && (o->model == NULL || bench_has_turns(o))) {
        return err_set(err, ERR_INVALID,
                       o->model == NULL
                           ? "--write-batch needs --model NAME"
                           : "--write-batch cannot write turns that contain earlier answers");
    }
    if (o->workload == WORKLOAD_SHARED_PREFIX && o->n_requests == 0) {
        o->n_requests = o->groups * o->members;
        if (o->n_requests > 10000000) {
            return err_set(err, ERR_INVALID, "groups x members is more than 10000000");
        }
    }
    settle_defaults(o);
    if (o->concurrency < 0) {
        o->concurrency = o->rate > 0 ? 0 : 8;
    }
    if (bench_has_turns(o)) {
        o->chat = true; // the answer becomes part of the next question
    }
    o->text = o->text || o->chat || o->workload == WORKLOAD_SHAREGPT;
    if (o->api_key == NULL) {
        o->api_key = getenv("OPENAI_API_KEY");
    }
    if (o->api_key != NULL && strpbrk(o->api_key, "\r\n") != NULL) {
        return err_set(err, ERR_INVALID, "the API key contains a line break");
    }
    const enum status st = client_url_parse_base(o->url, &o->peer, err);
    if (st != OK) {
        return err_prefix(err, st, "--url");
    }
    return OK;
}

/* Every option takes one value, except for switches. */
enum status bench_options_parse(int argc, char **argv, struct bench_options *o, struct err *err)
{
    *o = (struct bench_options){
        .url = "http://127.0.0.1:8000",
        .input_len = 128,
        .groups = 8,
        .members = 8,
        .suffix_len = 32,
        .result_min = 200,
        .result_max = 8000,
        .think = 1,
        .concurrency = -1,
        .vocab = 1000,
        .timeout = 600,
        .temperature = -1.0,
    };
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "-h") == 0) {
            arg = "--help";
        }
        if (strncmp(arg, "--", 2) != 0) {
            return err_set(err, ERR_INVALID, "'%s' is not an option", arg);
        }
        const size_t n = strcspn(arg + 2, "=");
        const struct option *opt = NULL;
        for (size_t k = 0; k < N_OPTIONS; k++) {
            if (strlen(options[k].name) == n && strncmp(arg + 2, options[k].name, n) == 0) {
                opt = &options[k];
            }
        }
        if (opt == NULL) {
            return err_set(err, ERR_INVALID, "unknown option '%s'", arg);
        }
        const char *value = arg[2 + n] == '=' ? arg + 3 + n : NULL;
        if (opt->kind == FLAG) {
            if (value != NULL) {
                return err_set(err, ERR_INVALID, "--%s takes no value", opt->name);
            }
            *(bool *)((char *)o + opt->offset) = true;
            continue;
        }
        if (value == NULL && ++i == argc) {
            return err_set(err, ERR_INVALID, "--%s needs a value", opt->name);
        }
        TRY(set(opt, value != NULL ? value : argv[i], o, err));
    }
    if (!o->help) {
        return settle(o, err);
    }
    return OK;
}
