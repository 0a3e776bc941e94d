// SPDX-License-Identifier: Apache-2.0
/* The operator's configuration as plain data: a field per option of the table in
 * server/cli/config_table.c, which documents meanings, bounds and defaults. Code that reads options
 * needs only this header; config_load (server/cli/config_load.h) sets the fields. They are named
 * like their options.
 * Thread: any; main writes it before the loop runs, read-only afterwards. */
#ifndef SLUICE_SERVER_CONFIG_CONFIG_H
#define SLUICE_SERVER_CONFIG_CONFIG_H

#include "engine/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct string_list {
    char **items;
    size_t n;
};

struct config {
    struct engine_options engine; // options that the engine reads: model, sizes, memory, drafts
    // model
    struct string_list served_model_name, tags;
    struct string_list lora_modules; // as given; `engine` has their names and folders
    int32_t max_loras;
    const char *revision;      // of a model given by name; NULL: the revision in that name, or main
    const char *tokenizer;     // folder or tokenizer.json; NULL: the model's
    bool skip_tokenizer_init;  // requests and answers are token ids only
    const char *chat_template; // file, or the template itself; NULL: the model's
    const char *default_chat_template_kwargs; // JSON object, or NULL
    const char *generation_config;            // "auto", "vllm", or a folder
    const char *override_generation_config;   // JSON object, or NULL
    const char *pooler_config;                // "auto", "mean", "last", or vLLM's JSON object
    const char *device;
    const char *scoring; // "auto", "embeddings", "yes-no"
    int64_t seed;
    int64_t pipeline_parallel_size, data_parallel_size; // accepted for vLLM's command lines, and
                                                        // always 1
    // several processes for one model
    int64_t nnodes, node_rank, master_port; // nnodes 0, node_rank -1: as the launcher says
    const char *master_addr, *node_token;
    bool no_node_token;
    double node_timeout;
    // listening
    const char *host, *uds, *root_path;
    int64_t port;
    struct string_list api_key, allowed_origins, allowed_hosts;
    const char *api_key_file, *ssl_certfile, *ssl_keyfile, *ssl_min_version;
    bool request_priority; // requests may set a priority
    int64_t key_min_priority, key_max_priority, key_requests_per_minute, key_tokens_per_minute;
    int64_t key_concurrent;
    double key_queue_share, key_cache_share;
    bool cache_salt_by_key;
    bool disable_fastapi_docs, allow_credentials;
    struct string_list disable_routes;
    bool open_metrics; // /metrics without a key even when keys are set
    // limits
    int64_t max_connections, max_connections_per_address, max_body_bytes, max_num_queued_reqs,
        max_num_queued_tokens;
    int64_t max_logprobs, max_n, max_stop, max_prompts, overload_status;
    double header_timeout, body_timeout, keep_alive_timeout, queue_timeout, request_timeout;
    double sse_keep_alive_interval, head_delay, drain_delay, shutdown_timeout;
    double stall_timeout, dead_timeout;
    // files and batches
    const char *data_dir; // NULL: nothing survives a restart
    int64_t data_max_bytes;
    double data_retention; // 0: keep for ever
    // answers
    const char *conventions; // "vllm" or "llama.cpp"
    const char *tool_call_parser, *reasoning_parser;
    bool clamp_max_tokens, strict_parameters, trust_request_chat_template;
    bool enable_force_include_usage, exclude_tools_when_tool_choice_none;
    bool return_tokens_as_token_ids, verbose, enable_per_request_metrics;
    bool context_shift;
    int64_t context_keep;                 // tokens of a prompt that a shift keeps; -1: all
    int64_t reasoning_budget;             // tokens; -1: any number
    const char *reasoning_budget_message; // or NULL
    const char *reasoning_config;         // vLLM's JSON object, or NULL
    const char *reasoning_effort_map;     // JSON object of texts, or NULL
    struct string_list strip_prompt_lines;
    // the operator
    const char *log_level;
    bool enable_log_requests, enable_log_probes;
    bool help, print_config; // print and exit
};

#endif
