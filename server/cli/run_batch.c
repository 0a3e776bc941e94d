// SPDX-License-Identifier: Apache-2.0
/* `sluice run-batch MODEL -i IN -o OUT`: runs a batch job without a server. */
#include "server/cli/run_batch.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "server/cli/commands.h"
#include "server/cli/config_load.h"
#include "server/cli/local_engine.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LINES = 1 << 28, PLAN_THREADS = 4 };

/* Options of this command; the others are passed to the option table. */
struct arguments {
    const char *input, *output;
    bool ordered, resume, help;
    enum job_order order;
    char **rest; // passed to the option table
    int n_rest;
};

/* The state of one run, in the order in which its parts are opened. */
struct run_batch {
    struct local_engine local;
    struct arguments arguments;
    struct job_input in;
    int fd;
    struct job_lines lines;
    struct batch_output output;
    struct batch_report report;
};

static void usage(void)
{
    struct buf options;
    buf_init(&options, 1 << 20);
    config_help(&options);
    printf("usage: sluice run-batch MODEL -i IN -o OUT [--ordered] [--resume]\n"
           "                        [--group-order ORDER] [OPTIONS]\n"
           "\n"
           "Answers a file of requests. A line of IN is\n"
           "  {\"custom_id\": \"...\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", "
           "\"body\": {...}}\n"
           "and a line of OUT\n"
           "  {\"id\": \"...\", \"custom_id\": \"...\", \"response\": {\"status_code\": 200, ..., "
           "\"body\": {...}},\n"
           "   \"error\": null}\n"
           "in the order in which answers are completed. \"-\" is standard input or output.\n"
           "\n"
           "  -i, --input-file FILE\n"
           "  -o, --output-file FILE\n"
           "  --ordered               write OUT in the order of IN\n"
           "  --resume                continue an OUT that an earlier run has begun\n"
           "  --group-order ORDER     none: in the order of IN; sorted: by prompt; groups: prompts "
           "that\n"
           "                          begin alike, one after the other; ratio (default): groups,\n"
           "                          first those with the most output tokens per prompt token\n"
           "\n"
           "%s",
           or_empty(options.data));
    buf_deinit(&options);
}

/* ---- the command line ------------------------------------------------------------------------ */

/* Finds an order by its name in --help. */
static enum status read_order(const char *name, enum job_order *order, struct err *err)
{
    for (int i = 0; i < N_JOB_ORDERS; i++) {
        if (strcmp(job_order_names[i], name) == 0) {
            *order = (enum job_order)i;
            return OK;
        }
    }
    return err_set(err, ERR_INVALID,
                   "group-order: '%.40s' is not one of none, sorted, groups, ratio", name);
}

/* The value of an option, from "--name=value" or the next word; NULL: argv[*i] is another
 * option. */
static const char *value_of(const char *name, const char *letter, int argc, char **argv, int *i)
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n) == 0 && argv[*i][n] == '=') {
        return argv[*i] + n + 1;
    }
    if (strcmp(argv[*i], name) != 0 && strcmp(argv[*i], letter) != 0) {
        return NULL;
    }
    return *i + 1 < argc ? argv[++*i] : "";
}

static enum status read_arguments(int argc, char **argv, struct arguments *a, struct err *err)
{
    for (int i = 1; i < argc; i++) {
        const char *v;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->help = true;
        } else if (strcmp(argv[i], "--ordered") == 0) {
            a->ordered = true;
        } else if (strcmp(argv[i], "--resume") == 0) {
            a->resume = true;
        } else if ((v = value_of("--input-file", "-i", argc, argv, &i))) {
            a->input = v;
        } else if ((v = value_of("--output-file", "-o", argc, argv, &i))) {
            a->output = v;
        } else if ((v = value_of("--group-order", "--group-order", argc, argv, &i))) {
            TRY(read_order(v, &a->order, err));
        } else {
            a->rest[a->n_rest++] = argv[i];
        }
    }
    if (a->help) {
        return OK;
    }
    if (!a->input || !*a->input || !a->output || !*a->output) {
        return err_set(err, ERR_INVALID, "run-batch needs -i FILE and -o FILE; see --help");
    }
    if (a->resume && strcmp(a->output, "-") == 0) {
        return err_set(err, ERR_INVALID, "resume: standard output has no earlier answers");
    }
    return OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static enum status keep(void *arg, const struct batch_answer *answers, size_t n, struct err *err)
{
    struct run_batch *b = arg;
    return batch_output_put(&b->output, answers, n, err);
}

static void wake(void *arg)
{
    struct run_batch *b = arg;
    local_engine_wake(&b->local);
}

/* Reports all invalid lines; nothing runs if there are any. */
static enum status check_lines(struct run_batch *b, struct err *err)
{
    struct job_lines_limits limits = {.max_line_bytes = (size_t)b->local.config.max_body_bytes,
                                      .max_lines = MAX_LINES};
    TRY(job_lines_read(&b->in, &limits, &b->lines, err));
    for (int32_t i = 0; i < b->lines.n_errors; i++) {
        const struct line_error *e = &b->lines.errors[i];
        if (e->line == 0) {
            return err_set(err, ERR_INVALID, "%s: %s", b->arguments.input, e->message);
        }
        fprintf(stderr, "line %lld: %s\n", (long long)e->line, e->message);
    }
    int64_t n = (int64_t)b->lines.n_errors + b->lines.n_more_errors;
    if (n != 0) {
        return err_set(err, ERR_INVALID, "invalid lines of the input: %lld; nothing was run",
                       (long long)n);
    }
    return OK;
}

/* Ends the run. If answers are missing, the message says that --resume computes them. */
static enum status finish(struct run_batch *b, const struct job *j, struct err *err)
{
    struct job_progress p;
    job_progress(j, &p);
    batch_report_end(&b->report, j, stderr);
    if (p.n_answered == p.n_lines) {
        return OK;
    }
    const struct err *why = job_error(j);
    return err_set(err, ERR_IO, "%s; %d of %d requests have no answer: continue with --resume",
                   why ? why->text : "the job was stopped", p.n_lines - p.n_answered, p.n_lines);
}

/* The loop of the job. It ends when the job has ended, by itself or because of a signal. */
static enum status run(struct run_batch *b, struct err *err)
{
    struct job_options o = {.calls = &b->local.calls,
                            .input = b->in,
                            .lines = &b->lines,
                            .order = b->arguments.order,
                            .n_threads = PLAN_THREADS,
                            .keep = keep,
                            .wake = wake,
                            .arg = b};
    struct job *j = job_open(&o);
    bool watched = isatty(STDERR_FILENO);
    b->report = (struct batch_report){clock_now_ns(), clock_now_ns()};
    enum status st = OK;
    while (!job_turn(j)) {
        if (job_keep_error(j)) { // unlike a server, do not retry: the file will not become writable
            st = err_set(err, ERR_IO, "%s", job_keep_error(j)->text);
            job_stop(j, NULL, NULL);
            job_drop_answers(j);
            continue;
        }
        if (local_engine_wait(&b->local, -1, watched ? 1000 : -1)) {
            while (call_on_wake(&b->local.calls)) {
            }
        }
        if (watched) {
            batch_report_progress(&b->report, j, stderr);
        }
    }
    if (watched) {
        fprintf(stderr, "\r\033[K");
    }
    if (st == OK) {
        st = finish(b, j, err);
    }
    job_close(j);
    return st;
}

/* Checks all lines before the output is opened, so that invalid input overwrites nothing. */
static enum status run_files(struct run_batch *b, struct err *err)
{
    const struct arguments *a = &b->arguments;
    TRY(batch_input_open(a->input, &b->fd, &b->in, err));
    TRY(batch_check_output(b->fd, a->output, err));
    static const struct local_command command = {
        .name = "run-batch", .open_model = call_model_open, .offline = true};
    TRY(local_engine_open(&b->local, a->n_rest, a->rest, &command, err));
    TRY(check_lines(b, err));
    TRY(batch_output_open(&b->output, a->output, a->ordered, a->resume, &b->lines, err));
    enum status st = run(b, err);
    enum status closed = batch_output_close(&b->output, st == OK ? err : NULL);
    return st == OK ? closed : st;
}

/* The exit status is 0 only if every line has an answer. */
int cmd_run_batch(int argc, char **argv)
{
    struct err err = {""};
    struct run_batch *b = xcalloc(1, sizeof *b);
    b->arguments = (struct arguments){.order = JOB_ORDER_RATIO};
    b->arguments.rest = xcalloc((size_t)argc + 1, sizeof *b->arguments.rest);
    b->arguments.rest[b->arguments.n_rest++] = argv[0];
    b->fd = b->local.out = b->local.in = -1;
    int rc = 0;
    enum status st = read_arguments(argc, argv, &b->arguments, &err);
    if (st == OK && b->arguments.help) {
        usage();
    } else if (st == OK) {
        st = run_files(b, &err);
        batch_output_close(&b->output, NULL);
        rc = local_engine_close(&b->local, st == OK ? 0 : 1);
    }
    if (st != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        if (!rc) {
            rc = 1;
        }
    }
    job_lines_deinit(&b->lines);
    close(b->fd);
    free(b->arguments.rest);
    free(b);
    return rc;
}
