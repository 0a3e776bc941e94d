// SPDX-License-Identifier: Apache-2.0
/* What engine_info returns about the loaded model. Thread: plain data. */
#ifndef SLUICE_ENGINE_INFO_H
#define SLUICE_ENGINE_INFO_H

#include "engine/device/dtype.h"
#include "engine/device/params.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The loaded model; constant after engine_open, except for engine_add_eos. */
struct engine_info {
    char model_type[32];
    enum dtype dtype;
    int32_t vocab, hidden, max_model_len, block_tokens, n_blocks, max_num_seqs, max_rows,
        mixed_rows;
    int32_t
        match_unit; // a cached prefix ends with a block, or this many tokens (or a multiple) later
    // Maximum number of samples that wait or run at a time, over all requests.
    int32_t max_sequences;
    int32_t n_eos;
    int32_t eos[MAX_EOS];            // from generation_config.json, config.json and the tokenizer
    struct sampling_params defaults; // from generation_config.json
    char device[96];
    int64_t n_parameters;
    size_t weight_bytes, kv_bytes;
    int32_t n_window_pages; // of block_tokens tokens, for layers with a window; 0: they have none
                            // of their own
    int32_t n_snapshots;    // number of snapshots of recurrent state
    size_t state_bytes;
    const char *kv_cache_dtype; // the KV format, by its name on the command line
    int32_t n_ranks, n_nodes;
    bool headless; // the checkpoint has no output head, so only pooling requests are possible
    /* The width of pooled vectors, of classes if there are any (n_labels), and the pooling for
     * which the checkpoint was made; POOL_NONE: its files do not say. */
    int32_t pooled_width, n_labels;
    enum pool_kind pooling;
    bool encoder; // rows see each other: a prompt is one pass, and there are no tokens to generate
    bool pair_types;       // it tells the two texts of a pair apart by their types
    int32_t n_adapters;    // places of low-rank adapters, with those of options.spare_adapters
    int32_t n_spec_tokens; // maximum number of drafts per sequence and step; 0: no speculation
};

#endif
