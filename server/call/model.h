// SPDX-License-Identifier: Apache-2.0
/* The served model: names, tokenizer, chat template, limits, defaults. Filled at startup, constant
 * once `ready`.
 * Thread: any, after `ready`. */
#ifndef SLUICE_SERVER_CALL_MODEL_H
#define SLUICE_SERVER_CALL_MODEL_H

#include "engine/info.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/call/fim.h"
#include "server/call/scoring.h"
#include "server/chat/output.h"
#include "server/chat/template.h"
#include "server/config/config.h"

struct grammars; // server/call/grammars.h

struct call_model {
    const struct config *config;
    const char *const *names; // accepted names; the first is the default and is not a path
    size_t n_names;
    struct call_adapters *adapters; // server/call/adapters.h
    bool any_name;                  // requests may name any model; this one answers
    bool is_llama;                  // follows llama.cpp's conventions where they differ from vLLM's
    char *folder_name;              // the last part of the model's path, which is the default name
    const char *text_dir;  // folder of the tokenizer's files: that of --tokenizer or the model's
    struct tokenizer *tok; // NULL: only token ids are supported
    struct err no_tok;     // why `tok` is NULL, if known
    struct grammars *grammars;      // cache of compiled grammars
    struct chat_template *template; // NULL: none
    bool system_first;              // it refuses system messages after other messages
    const struct engine_info *info;
    struct sampling_params defaults; // generation_config.json, overridden by the configuration
    bool has_default_max_tokens;
    enum reasoning_kind reasoning;
    const struct tool_parser *parser; // NULL: tool calls are reported as text
    enum pool_kind pooling;   // how embeddings are pooled, or the states that a classifier reads
    bool splits_inputs;       // inputs longer than the context are embedded in pieces
    int64_t max_embed_tokens; // limit of such an input
    bool normalize;           // embeddings have length 1, unless the request says otherwise
    struct scoring scoring;   // how pairs of texts are scored
    struct fim fim;           // tokens for fill-in-the-middle
    char *tokenizer_info;     // body of /tokenizer_info
    int64_t created;
    char fingerprint[24];
};

/* Checks that there is a tokenizer, before anything is loaded. */
enum status call_model_check(const struct config *config, struct err *err);

/* Loads tokenizer and template for a model that the engine has opened. */
enum status call_model_open(struct call_model *m, const struct config *config,
                            const struct engine_info *info, struct err *err);
/* The same for prompts only: without a chat template; a tokenizer that cannot be loaded is not an
 * error (no_tok). */
enum status call_model_open_prompts(struct call_model *m, const struct config *config,
                                    const struct engine_info *info, struct err *err);
void call_model_close(struct call_model *m); // accepts a zeroed struct

/* True if the model's reasoning stands between markers, so that a request can limit it
 * (request_thinking.c). */
bool call_model_limits_reasoning(const struct call_model *m);

/* model_names.c, as the following: fills in the names at startup. */
void call_model_make_names(struct call_model *m, const struct config *config);
/* The served name equal to `name`, of the model or of an adapter; NULL if there is none. NULL
 * selects the default. `tagged`: it may end with Ollama's tag, "NAME:latest". */
const char *call_model_name(const struct call_model *m, const char *name, bool tagged);
/* The same. *place: that of the adapter, which the caller has taken until it gives it back
 * (call_adapters_give); 0: the name is the model's. */
const char *call_model_take(const struct call_model *m, const char *name, bool tagged,
                            int32_t *place);

#endif
