// SPDX-License-Identifier: Apache-2.0
/* Whom a chat speaks to: a server that runs, or one of our own that is started for a model and ends
 * with the chat. It listens on a Unix socket in a private folder, so no port is taken and nobody
 * else reaches it.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_CHAT_SERVER_H
#define SLUICE_SERVER_CLI_CHAT_SERVER_H

#include "engine/base/status.h"
#include "server/cli/chat_options.h"
#include "server/client/client.h"

#include <signal.h>
#include <sys/types.h>

struct chat_server {
    struct client_peer peer;
    const char *key;
    char name[256];  // where it is, for people
    char model[256]; // the model's name there
    pid_t child;     // 0: not ours
    int log;         // what the child says; -1: none
    char folder[96]; // of the socket; "": none
};

/* Finds or starts it and waits until it is ready, or *interrupt is set (ERR_CANCELLED). The caller
 * ends with chat_server_close in every case. */
enum status chat_server_open(struct chat_server *s, const struct chat_options *o, bool terminal,
                             const volatile sig_atomic_t *interrupt, struct err *err);
void chat_server_close(struct chat_server *s);

/* True if the server was ours and has ended, or ends within patience_ms (a broken connection is
 * seen a little earlier than the end of its process); *err then says what it said last. */
bool chat_server_is_lost(struct chat_server *s, int patience_ms, struct err *err);

#endif
