// SPDX-License-Identifier: Apache-2.0
/* The options of `sluice bench`, parsed and checked.
 * Thread: plain data. */
#ifndef SLUICE_BENCH_LOAD_OPTIONS_H
#define SLUICE_BENCH_LOAD_OPTIONS_H

#include "engine/base/status.h"
#include "server/client/client.h"

#include <stdbool.h>
#include <stdint.h>

/* The kinds of requests; options.c describes each one. */
enum workload {
    WORKLOAD_RANDOM,
    WORKLOAD_SHARED_PREFIX,
    WORKLOAD_MULTI_TURN,
    WORKLOAD_AGENT,
    WORKLOAD_SHAREGPT
};

/* The order of requests from different groups: round-robin, group by group, or shuffled. */
enum group_turns { ORDER_ROUND, ORDER_GROUPED, ORDER_SHUFFLED };

struct bench_options {
    const char *url, *model, *api_key, *json_path, *dataset;
    const char *batch_path;  // if set, writes the requests to this batch file and sends none
    struct client_peer peer; // host and port from the URL
    enum workload workload;
    enum group_turns order;
    bool text; // prompts are text instead of token ids
    bool chat; // use /v1/chat/completions
    bool no_ignore_eos;
    bool help;
    int64_t n_requests, input_len, output_len, groups, members, prefix_len, suffix_len, turns;
    int64_t result_min, result_max; // agent: tokens of a tool's result
    int64_t concurrency;            // 0: unlimited
    int64_t vocab, seed;
    double rate;        // requests (or conversations) per second; 0: as fast as concurrency allows
    double duration;    // seconds after which no request starts; 0: no limit
    double timeout;     // seconds per request
    double think;       // agent: mean seconds of a tool call
    double spread;      // random: sigma of the log-normal lengths; 0: all lengths are equal
    double temperature; // negative: the server's default
    double ttft_limit_ms, tpot_limit_ms; // targets of goodput; 0: none
};

extern const char *const workload_names[]; // by enum workload

/* True if a unit is a conversation: later requests contain earlier answers. */
static inline bool bench_has_turns(const struct bench_options *o)
{
    return o->workload == WORKLOAD_MULTI_TURN || o->workload == WORKLOAD_AGENT;
}

enum status bench_options_parse(int argc, char **argv, struct bench_options *o, struct err *err);
void bench_options_help(void); // to standard output

#endif
