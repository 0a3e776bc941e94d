// SPDX-License-Identifier: Apache-2.0
/* The server's activity as numbers, which /status.json returns and the page plots. Their history of
 * the last minutes is kept, so that the page can show it as soon as it is opened.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_API_STATUS_H
#define SLUICE_SERVER_API_STATUS_H

#include "server/http/http.h"

#include <stddef.h>

struct api;

/* The history has STATUS_SECONDS samples, one per second. status.c names the columns. */
enum { STATUS_SECONDS = 300, N_STATUS_COLUMNS = 14 };

struct status_sample {
    double value[N_STATUS_COLUMNS];
};

struct status_history {
    struct status_sample samples[STATUS_SECONDS]; // a ring
    size_t n_taken; // samples taken since startup; the next one is stored at n_taken %
                    // STATUS_SECONDS
    struct http_timer timer;
};

/* Starts taking a sample each second. */
void status_watch(struct api *a);

#endif
