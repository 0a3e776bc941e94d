/* The program's commands: each is one cmd_*.c file and one row of the table in main.c.
 * A command gets its own arguments (argv[0] is the command's name) and returns the exit code.
 * Thread: main. */
#ifndef SLUICE_SERVER_COMMANDS_H
#define SLUICE_SERVER_COMMANDS_H

#include "engine/engine.h"

int cmd_serve(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_version(int argc, char **argv);
int cmd_render(int argc, char **argv);

/* For engine_options.open_backend: opens the device that `arg` names ("cpu", "cuda", or "auto" for
 * CUDA where there is a device). In main.c, the one file that knows the backends. */
enum status open_backend(const struct backend_options *options, struct backend **out,
                         struct err *err, void *arg);

#endif
