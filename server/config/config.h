/* What the operator has set, as plain data: a field for each option of the table in
 * server/cli/config_table.c, which has their meanings, bounds and defaults. Who reads an option
 * needs this header alone; how the values come here is server/cli/config_load.h.
 * Thread: any; written by main before the loop runs, read-only afterwards. */
#ifndef SLUICE_SERVER_CONFIG_CONFIG_H
#define SLUICE_SERVER_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct string_list {
    char **items;
    size_t n;
};

struct config {
    // model
    char *model; // folder with config.json
    struct string_list served_model_name;
    char *tokenizer;     // folder or tokenizer.json; NULL: the model's
    char *chat_template; // file, or the template itself; NULL: the model's
    char *default_chat_template_kwargs; // JSON object, or NULL
    char *generation_config;    // "auto", "vllm", or a folder
    char *override_generation_config; // JSON object, or NULL
    char *pooler_config; // "auto", "mean", "last", or vLLM's JSON object
    char *device, *dtype, *quantization, *load_format;
    int64_t max_model_len; // 0: the model's
    int64_t seed;
    // engine
    int64_t tensor_parallel_size, max_num_seqs, max_num_batched_tokens, block_size;
    int64_t kv_cache_memory_bytes, num_gpu_blocks_override, threads; // 0: chosen at start
    double gpu_memory_utilization;
    char *kv_cache_dtype;
    char *speculative_config; // JSON object, or NULL
    bool enable_prefix_caching, enable_chunked_prefill, deterministic, enforce_eager;
    int64_t pipeline_parallel_size, data_parallel_size; // known, and always 1
    // several processes for one model
    int64_t nnodes, node_rank, master_port; // nnodes 0, node_rank -1: the launcher's environment
    char *master_addr, *node_token;
    double node_timeout;
    // listening
    char *host, *uds, *root_path;
    int64_t port;
    struct string_list api_key, allowed_origins;
    char *api_key_file, *ssl_certfile, *ssl_keyfile;
    bool open_metrics; // /metrics without a key even when keys are set
    // limits
    int64_t max_connections, max_body_bytes, max_num_queued_reqs, max_num_queued_tokens;
    int64_t max_logprobs, max_n, max_stop, max_prompts, overload_status;
    double header_timeout, body_timeout, keep_alive_timeout, queue_timeout, request_timeout;
    double sse_keep_alive_interval, head_delay, drain_delay, shutdown_timeout;
    double stall_timeout, dead_timeout;
    // answers
    char *tool_call_parser, *reasoning_parser;
    bool clamp_max_tokens, strict_parameters, trust_request_chat_template, enable_force_include_usage;
    // the operator
    char *log_level;
    bool enable_log_requests;
    bool help, print_config; // print and exit
};

#endif
