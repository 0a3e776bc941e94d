// SPDX-License-Identifier: Apache-2.0
/* One request of `sluice generate`: a call, and its answer until its turn to be printed comes.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_GENERATE_JOB_H
#define SLUICE_SERVER_CLI_GENERATE_JOB_H

#include "server/call/call.h"

struct generate_job {
    struct call call;  // first
    struct buf answer; // a line; the caller frees it when the job is over
    bool over, failed;
    bool has_begun;   // to a person: some of the text is out
    char unknown[64]; // a key that nobody reads, if there is one
};

/* Starts a zeroed job with a JSON object; the server's host has no pool. to_person: the text goes
 * to standard output as it grows, if the line asks for a stream, and errors to standard error. */
void generate_job_start(struct generate_job *job, struct call_server *s, const char *line,
                        size_t n_bytes, bool to_person);

#endif
