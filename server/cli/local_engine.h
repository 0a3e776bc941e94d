// SPDX-License-Identifier: Apache-2.0
/* An engine with its calls but without a server, for commands that read lines and exit.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_LOCAL_ENGINE_H
#define SLUICE_SERVER_CLI_LOCAL_ENGINE_H

#include "server/call/call.h"

struct local_engine {
    struct call_server calls; // its host has no pool: requests are prepared on this thread
    struct config config;
    struct engine_options options;
    int out, in; // a pipe that the engine writes to, so that poll can wait for it and for other
                 // descriptors
    atomic_bool awake; // the pipe contains a byte
};

/* What a command needs from its engine. */
struct local_command {
    const char *name; // for error messages
    /* call_model_open or call_model_open_prompts: loads the tokenizer. */
    enum status (*open_model)(struct call_model *m, const struct config *c,
                              const struct engine_info *info, struct err *err);
    bool offline; // see struct engine_options
};

/* Reads the options, and loads the model and its tokenizer. Call local_engine_close in any case. */
enum status local_engine_open(struct local_engine *l, int argc, char **argv,
                              const struct local_command *command, struct err *err);
/* Makes the next wait return at once. */
void local_engine_wake(struct local_engine *l);
/* Waits. True: the engine has news, and the caller must call call_on_wake. False: `fd` (-1: none)
 * is readable, or the time is over (-1: no limit). */
bool local_engine_wait(struct local_engine *l, int fd, int timeout_ms);
/* The exit code: `rc`, or 2 if the engine failed. */
int local_engine_close(struct local_engine *l, int rc);

#endif
