// SPDX-License-Identifier: Apache-2.0
/* `sluice chat [MODEL|URL]`: a conversation on the terminal, or through a pipe with one question
 * per line. */
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/nearest.h"
#include "engine/base/optional.h"
#include "server/cli/chat_answer.h"
#include "server/cli/chat_options.h"
#include "server/cli/chat_server.h"
#include "server/cli/commands.h"
#include "server/cli/line.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_INPUT_BYTES = 8 << 20,
    MAX_BODY_BYTES = 128 << 20,
    MAX_TOOLS_BYTES = 4 << 20,
    EXIT_INTERRUPTED = 130,
    EXIT_TERMINATED = 143,
    LOST_MS = 500
};

/* A message, as JSON text for the request. */
struct message {
    char *json;
    bool of_user;
};

/* The state of the program: one conversation, the server that answers it, and the user's
 * input. Signal handlers only set `interrupted`. */
struct chat {
    struct chat_options options;
    struct chat_server server;
    struct line_reader *lines;
    bool terminal;      // a person reads and types: input and output are a terminal
    bool shows_colours; // the output is a terminal
    char *tools;        // JSON array; NULL: none
    struct message *messages;
    size_t n_messages, cap;
    struct buf input; // the current input
    int n_interrupts; // interrupts since the last message
    bool over;
    int exit_code;
};

static volatile sig_atomic_t interrupted, terminated;

/* SIGINT ends the current wait; SIGTERM and SIGHUP also end the chat. */
static void on_signal(int sig)
{
    interrupted = 1;
    terminated = terminated || sig != SIGINT;
}

/* True if the chat must end. Through a pipe, any interrupt ends it, because nobody is there to
 * continue it. */
static bool leaves(struct chat *c)
{
    if (!terminated && c->terminal) {
        return false;
    }
    c->over = true;
    c->exit_code = terminated ? EXIT_TERMINATED : EXIT_INTERRUPTED;
    return true;
}

/* If the output is a pipe, errors go to standard error, so that its reader does not mistake them
 * for an answer. */
static void say_error(const struct chat *c, const char *text)
{
    fflush(stdout);
    fprintf(stderr, c->terminal ? "error: %s\n" : "sluice chat: %s\n", text);
}

/* ---- the conversation ---------------------------------------------------------------------------
 */

static void drop_messages(struct chat *c, size_t n_kept)
{
    while (c->n_messages > n_kept) {
        free(c->messages[--c->n_messages].json);
    }
}

/* Takes ownership of the text. */
static void add_message(struct chat *c, char *json, bool of_user)
{
    if (c->n_messages == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 64;
        c->messages = xrealloc(c->messages, c->cap * sizeof *c->messages);
    }
    c->messages[c->n_messages++] = (struct message){json, of_user};
}

/* Writes a message of the request. call_id is given only for results of tools. */
static void put_message(struct buf *b, const char *role, const char *call_id, const char *text)
{
    buf_printf(b, "{\"role\":\"%s\",", role);
    if (call_id) {
        buf_puts(b, "\"tool_call_id\":");
        buf_put_json(b, call_id, strlen(call_id));
        buf_putc(b, ',');
    }
    buf_puts(b, "\"content\":");
    buf_put_json(b, text, strlen(text));
    buf_putc(b, '}');
}

static void add_text(struct chat *c, const char *role, const char *call_id, const char *text)
{
    struct buf b;
    buf_init(&b, MAX_BODY_BYTES);
    put_message(&b, role, call_id, text);
    add_message(c, b.data, !call_id);
}

/* Replaces a previous question that got no answer. */
static void ask(struct chat *c, const char *text)
{
    if (c->n_messages > 0 && c->messages[c->n_messages - 1].of_user) {
        drop_messages(c, c->n_messages - 1);
    }
    add_text(c, "user", NULL, text);
}

/* The request contains the whole conversation so far, because the server does not store it. */
static void put_body(const struct chat *c, struct buf *b)
{
    buf_puts(b, "{\"model\":");
    buf_put_json(b, c->server.model, strlen(c->server.model));
    buf_puts(b, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    chat_settings_put(&c->options.settings, b);
    if (c->tools) {
        buf_printf(b, ",\"tools\":%s", c->tools);
    }
    buf_puts(b, ",\"messages\":[");
    if (c->options.system) {
        put_message(b, "system", NULL, c->options.system);
    }
    for (size_t i = 0; i < c->n_messages; i++) {
        if (i || c->options.system) {
            buf_puts(b, ",");
        }
        buf_puts(b, c->messages[i].json);
    }
    buf_puts(b, "]}");
}

/* ---- an answer ----------------------------------------------------------------------------------
 */

/* Streams one answer. An interrupt ends the request by closing its connection, which frees
 * the engine. */
static enum status request_answer(struct chat *c, struct chat_answer *a, struct err *err)
{
    struct buf body;
    buf_init(&body, MAX_BODY_BYTES);
    put_body(c, &body);
    const struct client_request request = {.method = "POST",
                                           .path = "/v1/chat/completions",
                                           .key = c->server.key,
                                           .body = body.data,
                                           .stop = &interrupted};
    enum status st =
        body.failed ? err_set(err, ERR_LIMIT,
                              "the conversation is too long: /clear "
                              "begins a new one")
                    : client_call(&c->server.peer, &request, chat_answer_feed, a, &a->status, err);
    buf_deinit(&body);
    return st;
}

static enum line_result read_input(struct chat *c, const char *prompt);

/* Asks the user for the results of tool calls, because the chat executes nothing. False: the user
 * gave up. */
static bool read_results(struct chat *c, const struct chat_answer *a)
{
    for (int i = 0; i < a->n_calls; i++) {
        char prompt[64];
        snprintf(prompt, sizeof prompt, "result of %.40s> ",
                 a->calls[i].name.data ? a->calls[i].name.data : "?");
        if (read_input(c, prompt) != LINE_OK) {
            return false;
        }
        add_text(c, "tool", or_empty(a->calls[i].id.data), c->input.data);
    }
    return true;
}

/* Reports an error of the request. False if the conversation cannot continue from the answer. */
static bool settle(struct chat *c, const struct chat_answer *a, enum status st, struct err *err)
{
    struct err lost = {""};
    if (st == ERR_CANCELLED) {
        interrupted = 0;
        c->n_interrupts = 1;
        if (!leaves(c)) {
            puts("(stopped)");
        }
        return true; // the partial answer stays in the conversation
    }
    if (st == OK && a->error.n_bytes == 0) {
        return true;
    }
    if (st != OK && chat_server_is_lost(&c->server, LOST_MS, &lost)) {
        err_set(err, st, "the server has ended: %s", lost.text);
        c->over = true;
    }
    say_error(c, a->error.n_bytes > 0 ? a->error.data : err->text);
    c->exit_code = !c->terminal || c->over;
    return false;
}

/* Sends one request and shows its answer. True if tools were called and their results are known, so
 * that the model must be asked again. */
static bool answer_once(struct chat *c)
{
    struct chat_answer a;
    struct err err = {""};
    struct buf message;
    chat_answer_init(&a, c->shows_colours);
    const enum status st = request_answer(c, &a, &err);
    chat_answer_end(&a);
    const size_t n_before = c->n_messages;
    bool again = false;
    buf_init(&message, MAX_BODY_BYTES);
    if (settle(c, &a, st, &err) && chat_answer_put(&a, &message) && !message.failed) {
        add_message(c, message.data, false);
        message.data = NULL;
        again = a.n_calls > 0 && st == OK && read_results(c, &a);
        if (a.n_calls > 0 && !again) {
            drop_messages(c, n_before); // no template accepts a call without its result
        }
    }
    buf_deinit(&message);
    chat_answer_deinit(&a);
    return again;
}

static void answer(struct chat *c)
{
    c->n_interrupts = 0;
    while (answer_once(c)) {
    }
}

/* ---- commands -----------------------------------------------------------------------------------
 */

static void do_help(struct chat *c, const char *arg);

static void do_clear(struct chat *c, const char *arg)
{
    (void)arg;
    drop_messages(c, 0);
    puts("The conversation is empty.");
}

static void do_system(struct chat *c, const char *arg)
{
    free(c->options.system);
    c->options.system = *arg ? xstrdup(arg) : NULL;
    puts(*arg ? "The system prompt is set." : "There is no system prompt now.");
}

/* /set NAME VALUE changes a sampling setting for the following answers. */
static void do_set(struct chat *c, const char *arg)
{
    char name[64], value[64];
    struct err err = {""};
    const int n = sscanf(arg, "%63s %63s", name, value);
    if (n == 1) {
        say_error(c,
                  "usage: /set NAME VALUE; the value 'default' leaves the setting to the server");
        return;
    }
    if (n == 2 && chat_settings_set(&c->options.settings, name, value, &err) != OK) {
        say_error(c, err.text);
        return;
    }
    struct buf text;
    buf_init(&text, 1 << 12);
    chat_settings_print(&c->options.settings, &text);
    printf("Set: %s\n", text.data);
    buf_deinit(&text);
}

/* /retry drops everything after the last question, and asks that question again. */
static void do_retry(struct chat *c, const char *arg)
{
    (void)arg;
    size_t n = c->n_messages;
    while (n > 0 && !c->messages[n - 1].of_user) {
        n--;
    }
    if (n == 0) {
        say_error(c, "there is no question yet");
        return;
    }
    drop_messages(c, n);
    answer(c);
}

static void do_quit(struct chat *c, const char *arg)
{
    (void)arg;
    c->over = true;
}

static const struct command {
    const char *name, *arguments, *help;
    void (*run)(struct chat *c, const char *arg);
} commands[] = {
    {"/help", "", "this list", do_help},
    {"/clear", "", "forget the conversation, but keep the system prompt", do_clear},
    {"/system", "TEXT", "set the system prompt; without TEXT, remove it", do_system},
    {"/set", "NAME VALUE",
     "set temperature, top_p, top_k, min_p, max_tokens or seed; without arguments, show them",
     do_set},
    {"/retry", "", "answer the last question again", do_retry},
    {"/quit", "", "end the chat (like Ctrl-D)", do_quit},
};

enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

static void do_help(struct chat *c, const char *arg)
{
    (void)c;
    (void)arg;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        printf("  %-8s%-11s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    }
    printf("A line that ends in \\ continues on the next one. Lines between \"\"\" and \"\"\" are "
           "one message.\n"
           "Ctrl-C stops an answer; a second Ctrl-C on an empty line ends the chat.\n");
}

/* A line that begins with '/' is a command; for an unknown one, the error suggests the nearest. */
static void run_command(struct chat *c, const char *line)
{
    const size_t n = strcspn(line, " \t\n");
    char name[32], text[128];
    snprintf(name, sizeof name, "%.*s", (int)lesser(n, 31), line);
    struct nearest nearest = {.typed = name, .n_bytes = strlen(name)};
    for (size_t i = 0; i < N_COMMANDS; i++) {
        nearest_try(&nearest, commands[i].name);
        if (strcmp(commands[i].name, name) == 0) {
            commands[i].run(c, line + n + strspn(line + n, " \t\n"));
            return;
        }
    }
    const char *meant = nearest_word(&nearest);
    if (meant) {
        snprintf(text, sizeof text, "there is no command %s; did you mean %s?", name, meant);
    } else {
        snprintf(text, sizeof text, "there is no command %s; /help lists them", name);
    }
    say_error(c, text);
}

/* ---- input --------------------------------------------------------------------------------------
 */

/* Appends lines until one ends with `"""`. */
static enum line_result read_block(struct chat *c, struct buf *line)
{
    for (;;) {
        const char *end = strstr(c->input.data, "\"\"\"");
        if (end) {
            c->input.n_bytes = (size_t)(end - c->input.data);
            c->input.data[c->input.n_bytes] = '\0';
            return LINE_OK;
        }
        const enum line_result got = line_read(c->lines, "... ", line);
        if (got != LINE_OK) {
            return got == LINE_END ? LINE_OK : got;
        }
        if (c->input.n_bytes) {
            buf_puts(&c->input, "\n");
        }
        buf_puts(&c->input, line->data);
    }
}

/* Reads one message, of one or several lines, into c->input. */
static enum line_result read_message(struct chat *c, const char *prompt, struct buf *line)
{
    buf_clear(&c->input);
    buf_puts(&c->input, "");
    enum line_result got = line_read(c->lines, prompt, line);
    if (got == LINE_OK && strncmp(line->data, "\"\"\"", 3) == 0) {
        buf_puts(&c->input, line->data + 3);
        return read_block(c, line);
    }
    while (got == LINE_OK && line->n_bytes > 0 && line->data[line->n_bytes - 1] == '\\') {
        line->data[line->n_bytes - 1] = '\n';
        buf_puts(&c->input, line->data);
        got = line_read(c->lines, "... ", line);
    }
    if (got == LINE_OK) {
        buf_puts(&c->input, line->data);
    }
    if (got == LINE_END && c->input.n_bytes > 0) {
        return LINE_OK;
    }
    return got;
}

/* Ctrl-C discards the input; pressed twice on an empty line it ends the chat. */
static void on_interrupted_input(struct chat *c, bool empty)
{
    interrupted = 0;
    c->n_interrupts += empty;
    if (leaves(c)) {
        return;
    }
    if (empty && c->n_interrupts > 1) {
        c->over = true;
    } else if (empty) {
        puts("(Ctrl-C again or /quit ends the chat)");
    }
}

/* Reads one message, which may have several lines. Input that is too long is discarded. */
static enum line_result read_input(struct chat *c, const char *prompt)
{
    struct buf line;
    buf_init(&line, MAX_INPUT_BYTES);
    enum line_result got = read_message(c, prompt, &line);
    if (got == LINE_END) {
        c->over = true;
    } else if (got != LINE_OK) {
        on_interrupted_input(c, got == LINE_INTERRUPTED_EMPTY && c->input.n_bytes == 0);
    } else if (line.failed || c->input.failed) {
        say_error(c, "the message is too long");
        got = LINE_INTERRUPTED;
    } else if (c->input.n_bytes > 0) {
        line_remember(c->lines, c->input.data);
    }
    buf_deinit(&line);
    return got;
}

/* ---- the chat as a whole --------------------------------------------------------------------- */

/* Runs until the input ends or a command ends the chat. Blank lines are skipped. */
static void converse(struct chat *c)
{
    if (c->terminal) {
        printf("%s, %s. /help lists the commands.\n", c->server.model, c->server.name);
    }
    while (!c->over) {
        if (read_input(c, "> ") != LINE_OK) {
            continue;
        }
        if (c->input.data[0] == '/') {
            run_command(c, c->input.data);
        } else if (c->input.data[strspn(c->input.data, " \t\n")]) {
            ask(c, c->input.data);
            answer(c);
        }
        fflush(stdout);
    }
}

/* The file contains the `tools` of a request. It is checked here, so that a mistake is reported
 * before the first question. */
static enum status read_tools(struct chat *c, struct err *err)
{
    size_t n;
    struct json *root = NULL;
    if (!c->options.tools_path) {
        return OK;
    }
    TRY(file_read(c->options.tools_path, MAX_TOOLS_BYTES, &c->tools, &n, err));
    enum status st = json_parse(c->tools, n, NULL, &root, err);
    if (st == OK && !json_is(root, JSON_ARRAY)) {
        st = err_set(err, ERR_INVALID, "it must be a JSON array, like `tools` in a request");
    }
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "%s", c->options.tools_path);
    }
    return OK;
}

static enum status prepare(struct chat *c, int argc, char **argv, struct err *err)
{
    TRY(chat_options_parse(argc, argv, &c->options, err));
    if (c->options.help) {
        return OK;
    }
    TRY(read_tools(c, err));
    return chat_server_open(&c->server, &c->options, c->terminal, &interrupted, err);
}

static void close_chat(struct chat *c)
{
    line_close(c->lines);
    chat_server_close(&c->server);
    drop_messages(c, 0);
    free(c->messages);
    free(c->tools);
    buf_deinit(&c->input);
    chat_options_deinit(&c->options);
}

/* Exit status: 0, 1 for an error, and 128 + the signal's number as shells expect it. */
int cmd_chat(int argc, char **argv)
{
    struct chat c = {.shows_colours = isatty(STDOUT_FILENO), .server.log = -1};
    struct err err = {""};
    const struct sigaction action = {.sa_handler = on_signal};
    c.terminal = c.shows_colours && isatty(STDIN_FILENO);
    buf_init(&c.input, MAX_INPUT_BYTES);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    const enum status st = prepare(&c, argc, argv, &err);
    if (st != OK) {
        fprintf(stderr, "sluice chat: %s\n", err.text);
        c.exit_code = st == ERR_INVALID ? 2 : 1;
        if (st == ERR_CANCELLED) {
            c.exit_code = EXIT_INTERRUPTED;
        }
    } else if (c.options.help) {
        chat_options_help();
    } else {
        c.lines = line_open(c.terminal, &interrupted);
        converse(&c);
    }
    close_chat(&c);
    return c.exit_code;
}
