// SPDX-License-Identifier: Apache-2.0
/* `sluice generate MODEL`: the engine without a server. The continuation of a prompt on the command
 * line is printed as it is generated. With --json it reads and writes JSON lines: all requests run
 * concurrently, and answers are printed in input order. */
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/cli/commands.h"
#include "server/cli/config_load.h"
#include "server/cli/generate_job.h"
#include "server/cli/local_engine.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The program's state. `jobs` keeps the order of input, although requests end in any
 * order. */
struct generate {
    struct local_engine local;
    struct generate_job **jobs; // in input order
    size_t n_jobs, cap, n_printed;
    bool warned_unknown; // the warning about unknown keys was printed
};

/* Warns about an unknown key, which may be a typing error. It is not an error, because requests
 * written for servers may have more keys. */
static void note_unknown(struct generate *g, const struct generate_job *job)
{
    if (job->unknown[0] && !g->warned_unknown) {
        g->warned_unknown = true;
        log_warn("the unknown key '%s' is ignored", job->unknown);
    }
}

/* Prints finished answers in input order. */
static void print_done(struct generate *g)
{
    while (g->n_printed < g->n_jobs && g->jobs[g->n_printed]->over) {
        struct generate_job *job = g->jobs[g->n_printed];
        note_unknown(g, job);
        fwrite(or_empty(job->answer.data), 1, job->answer.n_bytes, stdout);
        buf_deinit(&job->answer);
        free(job);
        g->jobs[g->n_printed++] = NULL;
    }
    fflush(stdout);
}

/* Waits until the engine has news, or `fd` is readable. */
static void turn(struct generate *g, int fd)
{
    if (local_engine_wait(&g->local, fd, -1)) {
        while (call_on_wake(&g->local.calls)) {
        }
        print_done(g);
    }
}

/* Waits until the engine has accepted the pending requests, so that input is not read faster than
 * it can be processed. */
static void wait_for_room(struct generate *g)
{
    while (g->local.calls.queue) {
        turn(g, -1);
    }
}

/* Starts the request of a line, then waits until the engine's queue has room for another. */
static void add_line(struct generate *g, const char *line, size_t n_bytes)
{
    struct generate_job *job = xcalloc(1, sizeof *job);
    if (g->n_jobs == g->cap) {
        g->cap = g->cap ? g->cap * 2 : 256;
        g->jobs = xrealloc(g->jobs, g->cap * sizeof *g->jobs);
    }
    g->jobs[g->n_jobs++] = job;
    generate_job_start(job, &g->local.calls, line, n_bytes, false);
    wait_for_room(g);
}

/* Input that was read but not processed yet: less than a line. */
struct input {
    char *bytes;
    size_t n_bytes, cap;
    bool ended;
};

/* Reads once, after poll has reported input. EAGAIN and EINTR do not mean the end of input. */
static void read_more(struct input *in)
{
    enum { LEAST = 1 << 16 };
    if (in->cap - in->n_bytes < LEAST) {
        in->cap = in->cap ? 2 * in->cap : 2 * LEAST;
        in->bytes = xrealloc(in->bytes, in->cap);
    }
    ssize_t n = read(STDIN_FILENO, in->bytes + in->n_bytes, in->cap - in->n_bytes);
    if (n > 0) {
        in->n_bytes += (size_t)n;
    }
    in->ended = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

/* Makes requests of complete lines; the rest stays in the buffer. The first n_old bytes have
 * already been searched for a line end. */
static void take_lines(struct generate *g, struct input *in, size_t n_old)
{
    size_t from = 0, look = n_old;
    while (from < in->n_bytes) {
        char *end = memchr(in->bytes + look, '\n', in->n_bytes - look);
        if (!end && !in->ended) {
            break;
        }
        size_t n = (end ? (size_t)(end - in->bytes) + 1 : in->n_bytes) - from;
        const char *line = in->bytes + from;
        size_t blank = 0;
        while (blank < n && strchr(" \t\r\n", line[blank]) && line[blank]) {
            blank++;
        }
        if (blank < n) {
            add_line(g, line, n);
        }
        from = look = from + n;
    }
    in->n_bytes -= from;
    memmove(in->bytes, in->bytes + from, in->n_bytes);
}

static bool has_input(void)
{
    struct pollfd fd = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&fd, 1, 0) > 0;
}

/* Input, engine and output take turns on one thread. */
static void run_lines(struct generate *g)
{
    struct input in = {0};
    while (!in.ended || g->n_printed < g->n_jobs) {
        turn(g, in.ended ? -1 : STDIN_FILENO);
        if (!in.ended && has_input()) {
            size_t n_old = in.n_bytes;
            read_more(&in);
            take_lines(g, &in, n_old);
            print_done(g); // a rejected request causes no wake-up
        }
    }
    free(in.bytes);
}

/* Converts the prompt to a JSON line, so that both forms share the rest of the code. */
static int run_prompt(struct generate *g, const char *prompt, const char *max_tokens)
{
    struct buf line;
    buf_init(&line, 1 << 26);
    buf_puts(&line, "{\"prompt\": ");
    buf_put_json(&line, prompt, strlen(prompt));
    buf_printf(&line, ", \"max_tokens\": %s, \"stream\": true}", max_tokens);
    struct generate_job job = {0};
    generate_job_start(&job, &g->local.calls, line.data, line.n_bytes, true);
    buf_deinit(&line);
    while (!job.over) {
        turn(g, -1);
    }
    if (!job.failed) {
        putchar('\n');
    }
    return job.failed;
}

/* ---- the command line ---------------------------------------------------------------------- */

/* Arguments of this command; the rest is passed to the option table. */
struct arguments {
    bool json, help;
    const char *prompt, *max_tokens;
    char **rest; // passed to the option table
    int n_rest;
};

static void usage(void)
{
    struct buf options;
    buf_init(&options, 1 << 20);
    config_help(&options);
    printf("usage: sluice generate MODEL [PROMPT] [--max-tokens N] [--json] [OPTIONS]\n\n"
           "Continues PROMPT (or standard input) on standard output. With --json, reads one JSON\n"
           "object per line and writes one answer per line, in input order:\n"
           "  in   {\"prompt\": \"...\" or \"prompt_token_ids\": [...], \"max_tokens\": 20, "
           "\"temperature\": 0,\n"
           "        \"seed\": 1, \"n\": 1, \"logprobs\": 5, \"prompt_logprobs\": true, "
           "\"ignore_eos\": true, ...}\n"
           "  out  {\"outputs\": [{\"token_ids\": [...], \"text\": \"...\", ...}], "
           "\"usage\": {...}} or {\"error\": \"...\"}\n\n%s",
           or_empty(options.data));
    buf_deinit(&options);
}

/* Separates this command's arguments from the options. A word after an option without '=' is taken
 * for the option's value. */
static void split_arguments(int argc, char **argv, struct arguments *a)
{
    int n_plain = 0;
    for (int i = 1; i < argc; i++) {
        bool plain = argv[i][0] != '-';
        bool is_value = i > 1 && strncmp(argv[i - 1], "--", 2) == 0 &&
                        strchr(argv[i - 1], '=') == NULL && a->n_rest > 1 &&
                        a->rest[a->n_rest - 1] == argv[i - 1];
        if (strcmp(argv[i], "--json") == 0) {
            a->json = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->help = true;
        } else if (strcmp(argv[i], "--max-tokens") == 0) {
            a->max_tokens = i + 1 < argc ? argv[++i] : "";
        } else if (strncmp(argv[i], "--max-tokens=", 13) == 0) {
            a->max_tokens = argv[i] + 13;
        } else if (plain && !is_value && n_plain++ == 1) {
            a->prompt = argv[i];
        } else {
            a->rest[a->n_rest++] = argv[i];
        }
    }
}

static enum status no_prompt(struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "no prompt: pass it after the model or on standard input, or use --json with "
                   "one line of JSON per request");
}

static enum status check_arguments(const struct arguments *a, struct err *err)
{
    if (!a->json && !a->prompt && isatty(STDIN_FILENO)) {
        return no_prompt(err);
    }
    if (a->json && a->prompt) {
        return err_set(err, ERR_INVALID,
                       "with --json prompts are read from standard input; '%.100s' is not used",
                       a->prompt);
    }
    char *end;
    long n = strtol(a->max_tokens, &end, 10);
    if (end == a->max_tokens || *end || n < 0 || n > INT32_MAX) {
        return err_set(err, ERR_INVALID, "max-tokens: '%s' is not a number of tokens",
                       a->max_tokens);
    }
    return OK;
}

static char *read_stdin(void)
{
    struct buf all;
    buf_init(&all, 1 << 26);
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        buf_put(&all, chunk, n);
    }
    if (all.data) {
        return all.data;
    }
    return xstrdup("");
}

/* Exit status 1 if the prompt is empty or its request failed. */
static int run(struct generate *g, const struct arguments *a)
{
    if (a->json) {
        run_lines(g);
        return 0;
    }
    char *typed = a->prompt ? NULL : read_stdin();
    struct err err = {""};
    int rc = 1;
    if (typed && *typed == '\0') {
        no_prompt(&err);
        fprintf(stderr, "sluice: %s\n", err.text);
    } else {
        rc = run_prompt(g, typed ? typed : a->prompt, a->max_tokens);
    }
    free(typed);
    return rc;
}

int cmd_generate(int argc, char **argv)
{
    struct arguments a = {.max_tokens = "256"};
    a.rest = xcalloc((size_t)argc + 1, sizeof *a.rest);
    a.rest[a.n_rest++] = argv[0];
    split_arguments(argc, argv, &a);
    if (a.help) {
        usage();
        free(a.rest);
        return 0;
    }
    struct err err = {""};
    struct generate g = {0};
    enum status st = check_arguments(&a, &err);
    if (st != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        free(a.rest);
        return 1;
    }
    static const struct local_command command = {.name = "generate",
                                                 .open_model = call_model_open_prompts};
    st = local_engine_open(&g.local, a.n_rest, a.rest, &command, &err);
    int rc = st == OK ? run(&g, &a) : 1;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "sluice: the output could not be written\n");
        rc = 1;
    }
    if (st != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
    }
    rc = local_engine_close(&g.local, rc);
    free(g.jobs);
    free(a.rest);
    return rc;
}
