// SPDX-License-Identifier: Apache-2.0
/* The options of engine_open. Thread: plain data. */
#ifndef SLUICE_ENGINE_OPTIONS_H
#define SLUICE_ENGINE_OPTIONS_H

#include "engine/base/status.h"
#include "engine/device/backend_options.h"

#include <stdbool.h>
#include <stdint.h>

struct backend;
struct nodes; // engine/cluster/nodes.h

enum { MAX_ADAPTERS = 64 }; // chosen

/* The operator's options, with the names and meanings of the command line. The option table
 * (server/cli/config_table.c) defines the accepted values. With 0 or NULL the engine chooses at
 * startup, as described for each option. */
struct engine_options {
    const char *model;         // folder with config.json
    const char *hf_overrides;  // JSON object merged over config.json, or NULL
    const char *load_format;   // "dummy": reads only config.json and generates random weights
    const char *check_weights; // "off", "sampled", "full": how much of the checkpoint is checked
    const char *dtype; // of weights and KV, spelled as in config.json; "auto": the checkpoint's
    const char *quantization;   // NULL: none; "fp8" or "int4": quantise plain weights
    const char *kv_cache_dtype; // known to kv_choice_find, or "auto": as the checkpoint says
    const char *activation_quantization; // "none": do not round inputs of quantised weights
    int32_t max_model_len;               // 0: the model's own limit, as far as memory allows
    int32_t max_num_seqs;                // lanes; 0: 256 (CPU: 64; offline on a GPU: up to 1,024)
    int32_t max_num_batched_tokens;      // rows per step; 0: 8192 (CPU: 2048)
    int32_t max_num_mixed_tokens;        // rows per step that also decodes; 0: all (CPU: 256, more
                                         // for mixtures)
    int32_t block_size;                  // tokens of a KV block; 0: the backend's preference
    int32_t prefix_match_unit; // tokens; must divide block_size; 0: 16, or block_size if 16 does
                               // not divide it
    int32_t num_gpu_blocks_override; // KV blocks; 0: from memory
    int64_t kv_cache_memory_bytes;   // 0: from gpu_memory_utilization
    double gpu_memory_utilization;   // share of free device memory for everything; 0: 0.9 (CPU:
                                     // 0.4)
    /* For models with recurrent state. state_snapshots: number of snapshots in the prefix cache; 0:
     * as memory allows, below 0: none. mamba_cache_mode: the same in vLLM's terms ("none" or
     * another mode). mamba_block_size: tokens between snapshots; 0: 512. */
    int32_t state_snapshots;
    const char *mamba_cache_mode;
    int32_t mamba_block_size;
    /* For models with layers that see only a window. window_pages: number of their own pages; 0: as
     * memory allows. disable_hybrid_kv_cache_manager: none, so they keep all tokens. */
    int32_t window_pages;
    int32_t window_rows; // rows for which each sequence has pages; 0: 512
    bool disable_hybrid_kv_cache_manager;
    bool enable_prefix_caching, enable_chunked_prefill;
    bool disable_cascade_attn; // read a shared prefix once per sequence
    /* A request whose prefix is cached may overtake earlier ones. While an
     * earlier request waits, overtakers may compute this many prompt tokens. 0: none; below 0: as
     * many as take 10 s. */
    int64_t prefix_overtake_tokens;
    const char *speculative_config; // JSON in vLLM's format; NULL: none
    /* Low-rank adapters, at most MAX_ADAPTERS: names for messages, and folders that PEFT wrote. */
    const char *const *adapter_names, *const *adapter_dirs;
    int32_t n_adapters;
    int32_t spare_adapters;       // places for adapters that are loaded later (engine_set_adapter)
    int32_t max_lora_rank;        // the largest rank of those
    int32_t tensor_parallel_size; // ranks over all nodes; 0: 1
    // Device and operator's options; the engine sets dtype and ranks.
    struct backend_options backend;

    /* Set by the caller of engine_open. */
    int32_t max_waiting; // sequences in the queue; 0: 4096
    bool offline;        // throughput matters and the latency of single answers does not
    bool synthetic;      // the caller knows that synthetic acceptance generates meaningless text
    /* Opens the backend of rank `rank`; called once per rank. */
    enum status (*open_backend)(const struct backend_options *options, struct backend **out,
                                struct err *err, void *arg);
    void *open_arg;
    struct nodes *nodes; // the processes that share the ranks; NULL: this process only
    /* Makes the ranks' collectives (those of backend.comm) fail; called from any thread. NULL: the
     * ranks have none. */
    void (*abort_ranks)(struct comm *comm);
    void (*on_lost)(void *arg); // called with callback_arg, on any thread, when another node is
                                // lost; may be NULL
    void (*on_progress)(double share, const char *what, void *arg); // while loading; may be NULL
    /* Called by the engine thread once the outbox has become non-empty; if the device is idle then,
     * after the next step has been submitted. */
    void (*wake)(void *arg);
    void *callback_arg;
    bool no_thread;      // for tests: the caller runs the turns (engine_state.h)
    int32_t state_block; // for tests: positions between state boundaries; 0: STATE_BLOCK
};

#endif
