// SPDX-License-Identifier: Apache-2.0
/* What the server is doing, as numbers that /status.json tells and the page plots, and those of the
 * last minutes, so that a page shows them as soon as it is opened.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_STATUS_H
#define SLUICE_SERVER_API_STATUS_H

#include "server/http/http.h"

#include <stddef.h>

struct api;

/* STATUS_SECONDS of history. The columns are named in status.c. */
enum { STATUS_SECONDS = 300, N_STATUS_COLUMNS = 14 };

struct status_sample {
    double value[N_STATUS_COLUMNS];
};

struct status_history {
    struct status_sample samples[STATUS_SECONDS]; // a ring
    size_t n_taken;                               // since the start; the next goes to n % size
    struct http_timer timer;
};

/* Takes a sample each second from now on. */
void status_watch(struct api *a);

#endif
