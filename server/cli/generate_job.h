/* One line of `sluice generate --json`: a request for the engine, and its answer as JSON.
 * Thread: main. */
#ifndef SLUICE_SERVER_CLI_GENERATE_JOB_H
#define SLUICE_SERVER_CLI_GENERATE_JOB_H

#include "engine/base/arena.h"
#include "engine/base/buf.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"

struct generate_job {
    struct engine_request request; // first: the engine's events lead back here
    struct arena arena;
    struct err error; // text set: the line was refused
    bool failed, submitted;
    char unknown[64]; // a key that nobody reads, if there is one
};

struct generate_context {
    const struct engine_info *info;
    const struct tokenizer *tokenizer; // NULL: ids only
    const char *no_tokenizer;          // why it is NULL
};

/* Fills the job from a JSON object. On error `failed` and `error` are set. */
void generate_job_init(struct generate_job *job, const struct generate_context *cx,
                       const char *line, size_t n_bytes);
void generate_job_deinit(struct generate_job *job);

/* One JSON object and a newline: the answer of a done job, or {"error":...}. */
void generate_job_print(const struct generate_job *job, const struct generate_context *cx,
                        struct buf *out);

#endif
