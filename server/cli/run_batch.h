// SPDX-License-Identifier: Apache-2.0
/* Input and output of `sluice run-batch`: its files, and the progress shown to a person.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_RUN_BATCH_H
#define SLUICE_SERVER_CLI_RUN_BATCH_H

#include "server/jobs/job.h"

#include <stdio.h>

/* ---- the input ------------------------------------------------------------------------------- */

/* Opens a file; "-" is standard input, which is copied to a temporary file, because a job reads its
 * input more than once. The caller closes *fd. */
enum status batch_input_open(const char *path, int *fd, struct job_input *in, struct err *err);

/* Refuses an output that is the input, which opening it would erase. */
enum status batch_check_output(int input, const char *path, struct err *err);

/* ---- the output ------------------------------------------------------------------------------ */

struct batch_output {
    FILE *file;
    bool ordered;
    /* For ordered output: answers waiting for earlier ones. */
    struct job_lines *lines;
    char **held; // [lines->n]
    int32_t n_written;
};

/* resume: keeps existing answers and marks their lines as done; removes an incomplete last line.
 * "-": standard output. */
enum status batch_output_open(struct batch_output *o, const char *path, bool ordered, bool resume,
                              struct job_lines *lines, struct err *err);
enum status batch_output_put(struct batch_output *o, const struct batch_answer *answers, size_t n,
                             struct err *err);
enum status batch_output_close(struct batch_output *o, struct err *err); // accepts a zeroed struct

/* ---- for a person ---------------------------------------------------------------------------- */

struct batch_report {
    int64_t t_start_ns, t_shown_ns;
};
/* Writes progress on a single line, which is overwritten at most once per second. */
void batch_report_progress(struct batch_report *r, const struct job *j, FILE *to);
/* Writes the table at the end. */
void batch_report_end(const struct batch_report *r, const struct job *j, FILE *to);

#endif
