// SPDX-License-Identifier: Apache-2.0
/* One request of `sluice generate`: a call, and its answer until it is printed. Thread: main. */
#ifndef SLUICE_SERVER_CLI_GENERATE_JOB_H
#define SLUICE_SERVER_CLI_GENERATE_JOB_H

#include "server/call/call.h"

struct generate_job {
    struct call call;  // must be the first member
    struct buf answer; // one line; the caller frees it when the job is done
    bool over, failed;
    bool has_begun;   // some text has been written to a person
    char unknown[64]; // an unknown key of the request; "": none
};

/* Starts a zeroed job from a JSON object; the server's host has no pool. to_person: writes text
 * to standard output as it is generated, if the line requests a stream, and errors to standard
 * error. */
void generate_job_start(struct generate_job *job, struct call_server *s, const char *line,
                        size_t n_bytes, bool to_person);

#endif
