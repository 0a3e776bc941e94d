// SPDX-License-Identifier: Apache-2.0
/* `sluice health [URL]`: exits with 0 if the server answers 200. For containers and scripts on
 * machines without curl. */
#include "engine/base/buf.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/cli/commands.h"
#include "server/client/client.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define TIMEOUT_S 5 // for the connection, and for each wait for bytes
#define DEFAULT_URL "http://127.0.0.1:8000/health"

enum { MAX_SHOWN_BYTES = 2048 };

/* Prints the server's answer, but at most a screenful. */
static void on_body(void *arg, const char *bytes, size_t n_bytes)
{
    struct buf *shown = arg;
    const size_t room = MAX_SHOWN_BYTES - shown->n_bytes;
    buf_put(shown, bytes, lesser(n_bytes, room));
}

static int usage(bool asked)
{
    fprintf(asked ? stdout : stderr,
            "usage: sluice health [URL]\n\n"
            "Exit code 0 if a GET of URL (%s) is answered with 200 within %d s.\n",
            DEFAULT_URL, TIMEOUT_S);
    return asked ? 0 : 2;
}

int cmd_health(int argc, char **argv)
{
    const char *url = argc == 2 ? argv[1] : DEFAULT_URL;
    struct client_peer peer;
    struct err err = {""};
    if (argc > 2 || strcmp(url, "--help") == 0 || client_url_parse(url, &peer, &err) != OK) {
        return usage(strcmp(url, "--help") == 0);
    }
    const struct client_request request = {
        .method = "GET", .path = peer.path[0] ? "" : "/health", .timeout_s = TIMEOUT_S};
    struct buf shown;
    int status;
    buf_init(&shown, MAX_SHOWN_BYTES + 1);
    const enum status st = client_call(&peer, &request, on_body, &shown, &status, &err);
    if (st != OK) {
        fprintf(stderr, "sluice health: %s: %s\n", url, err.text);
    } else {
        printf("%d %s\n", status, or_empty(shown.data));
    }
    buf_deinit(&shown);
    if (st == OK && status == 200) {
        return 0;
    }
    return 1;
}
