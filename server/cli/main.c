// SPDX-License-Identifier: Apache-2.0
/* The table of commands. The only file that is not linked into the tests. */
#include "bench/load/bench.h"
#include "bench/ops/command.h"
#include "engine/base/file.h"
#include "engine/base/nearest.h"
#include "engine/base/words.h"
#include "server/cli/commands.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"generate", cmd_generate, "continue a prompt, without a server"},
    {"run-batch", cmd_run_batch, "answer a file of requests, without a server"},
#ifndef SLUICE_NO_HTTP
    {"serve", cmd_serve, "serve a model over HTTP, with OpenAI's API"},
    {"chat", cmd_chat, "chat in the terminal, with a model or a server"},
    {"bench", cmd_bench, "measure an OpenAI-compatible server under load"},
#endif
    {"pull", cmd_pull, "download a model by name into the cache"},
    {"list", cmd_list, "show the models in the cache"},
    {"remove", cmd_remove, "delete a model from the cache"},
    {"quantize", cmd_quantize, "write a quantised copy of a model folder"},
    {"bench-ops", cmd_bench_ops, "time a device's operations on dummy weights"},
    {"bench-engine", cmd_bench_engine, "measure a model's tokens per second, without a server"},
    {"tokenize", cmd_tokenize, "convert text to token ids and back, as JSON lines"},
    {"grammar", cmd_grammar, "check texts against a schema or grammar, as JSON lines"},
    {"health", cmd_health, "check a server's health; the exit code is the result"},
    {"version", cmd_version, "print the version"},
    {"render", cmd_render, "render chat requests with a model folder's template"},
};

static void usage(FILE *out)
{
    fprintf(out, "usage: sluice COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(out, "  %-13s %s\n", commands[i].name, commands[i].help);
    }
    fprintf(out, "\n'sluice COMMAND --help' shows a command's options.\n");
}

static int unknown(const char *name)
{
    struct nearest nearest = {.typed = name, .n_bytes = strlen(name)};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        nearest_try(&nearest, commands[i].name);
    }
    const char *meant = nearest_word(&nearest);
    fprintf(stderr, "sluice: unknown command '%s'", name);
    if (meant) {
        fprintf(stderr, "; did you mean '%s'?", meant);
    }
    fprintf(stderr, "\n\n");
    usage(stderr);
    return 2;
}

/* True if --help is among the arguments: a command then prints its help, whatever else is given. */
static bool asks_for_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            return true;
        }
    }
    return false;
}

static int run_command(const struct command *command, int argc, char **argv)
{
    if (asks_for_help(argc, argv)) {
        char help[] = "--help", *words[] = {argv[1], help, NULL};
        return command->run(2, words);
    }
    return command->run(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    file_maps_explain();
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (words_find("--help|-h|help", argv[1]) >= 0) {
        usage(stdout);
        return 0;
    }
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return run_command(&commands[i], argc, argv);
        }
    }
    return unknown(argv[1]);
}
