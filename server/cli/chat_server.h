// SPDX-License-Identifier: Apache-2.0
/* The server that a chat uses: a running one, or one started for a model, which ends with the chat.
 * The latter listens on a Unix socket in a private folder, so it takes no port and no other user
 * can reach it.
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
    char name[256];  // the server's address, for display
    char model[256]; // the name of its model
    pid_t child;     // the server's process; 0: not started by us
    int log;         // descriptor of the child's log; -1: none
    char folder[96]; // folder of the child's socket; "": none
};

/* Finds or starts the server, and waits until it is ready or *interrupt is set (ERR_CANCELLED).
 * Call chat_server_close in every case. */
enum status chat_server_open(struct chat_server *s, const struct chat_options *o, bool terminal,
                             const volatile sig_atomic_t *interrupt, struct err *err);
void chat_server_close(struct chat_server *s);

/* True if the server was started by us and has ended, or ends within patience_ms (a broken
 * connection is noticed slightly before the end of its process); *err is then its last log line. */
bool chat_server_is_lost(struct chat_server *s, int patience_ms, struct err *err);

#endif
