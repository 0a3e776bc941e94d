// SPDX-License-Identifier: Apache-2.0
/* The program's commands: each is a file and a row of the table in main.c. A command gets its own
 * arguments (argv[0] is its name) and returns the exit code.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_COMMANDS_H
#define SLUICE_SERVER_CLI_COMMANDS_H

int cmd_serve(int argc, char **argv);
int cmd_bench_engine(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_grammar(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_run_batch(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_render(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_remove(int argc, char **argv);
int cmd_quantize(int argc, char **argv);
int cmd_health(int argc, char **argv);

#endif
