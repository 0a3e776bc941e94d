// SPDX-License-Identifier: Apache-2.0
/* A request as plain data: what the body says, checked, with token ids and sampling parameters.
 * Made by prepare.h on a pool thread out of nothing but the body and the model.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CALL_REQUEST_H
#define SLUICE_SERVER_CALL_REQUEST_H

#include "engine/base/arena.h"
#include "engine/device/params.h"
#include "server/call/body.h"
#include "server/call/error.h"
#include "server/call/grammars.h"
#include "server/call/model.h"
#include "server/chat/output.h"
#include "server/store/store.h"

enum request_kind {
    KIND_CHAT,
    KIND_COMPLETIONS,
    KIND_EMBEDDINGS,
    KIND_RESPONSES,
    KIND_RESPONSES_INPUT_TOKENS,
    KIND_MESSAGES,
    KIND_COUNT_TOKENS,
    KIND_TOKENIZE,
    KIND_DETOKENIZE,
    KIND_GENERATE, // a line of `sluice generate`
    KIND_SCORE,
    KIND_RERANK,
    KIND_OLLAMA_CHAT,
    KIND_OLLAMA_GENERATE,
    KIND_OLLAMA_EMBED,
    KIND_NATIVE, // llama.cpp's
    KIND_INFILL,
    KIND_NATIVE_EMBED,
    KIND_TOKENS,                          // vLLM's: ids in, ids out
    KIND_CHAT_BATCH,                      // several conversations
    KIND_LABELS,                          // how likely each of some tokens is next
    KIND_CLASSIFY,                        // what a model that judges says of prompts
    KIND_POOLING,                         // embeddings in another form
    KIND_COHERE_EMBED,                    // Cohere's
    N_KINDS_WITH_FORM,                    // bodies of the others have a form of those above
    KIND_OLLAMA_LOAD = N_KINDS_WITH_FORM, // a chat or a prompt without messages or a text
    KIND_OLLAMA_OLD_EMBED,                // its `prompt` becomes the `input` of KIND_OLLAMA_EMBED
    KIND_APPLY_TEMPLATE,
    KIND_RENDER,            // the ids of a completion's prompts
    KIND_RENDER_CHAT,       // of a chat
    KIND_CHAT_INPUT_TOKENS, // how many those are
    KIND_INVOCATIONS,       // SageMaker's: becomes the kind whose members the body has
    KIND_LLAMA_CHAT,        // becomes a chat with `llama`
    KIND_EITHER_COMPLETION, // becomes OpenAI's, whose bodies name a model, or llama.cpp's
    N_REQUEST_KINDS,
};

/* What a body may look like, as bits: an endpoint's kind, but those of tokens and vectors may also
 * have messages. */
enum {
    FORM_CHAT = 1 << KIND_CHAT,
    FORM_COMPLETIONS = 1 << KIND_COMPLETIONS,
    FORM_EMBEDDINGS = 1 << KIND_EMBEDDINGS,
    FORM_RESPONSES = 1 << KIND_RESPONSES | 1 << KIND_RESPONSES_INPUT_TOKENS,
    FORM_MESSAGES = 1 << KIND_MESSAGES,
    FORM_COUNT_TOKENS = 1 << KIND_COUNT_TOKENS,
    FORM_TOKENIZE_TEXT = 1 << KIND_TOKENIZE,
    FORM_DETOKENIZE = 1 << KIND_DETOKENIZE,
    FORM_GENERATE = 1 << KIND_GENERATE,
    FORM_SCORE = 1 << KIND_SCORE,
    FORM_RERANK = 1 << KIND_RERANK,
    FORM_OLLAMA_CHAT = 1 << KIND_OLLAMA_CHAT,
    FORM_OLLAMA_GENERATE = 1 << KIND_OLLAMA_GENERATE,
    FORM_OLLAMA_EMBED = 1 << KIND_OLLAMA_EMBED,
    FORM_NATIVE = 1 << KIND_NATIVE,
    FORM_INFILL = 1 << KIND_INFILL,
    FORM_NATIVE_EMBED = 1 << KIND_NATIVE_EMBED,
    FORM_TOKENS = 1 << KIND_TOKENS,
    FORM_CHAT_BATCH = 1 << KIND_CHAT_BATCH,
    FORM_LABELS = 1 << KIND_LABELS,
    FORM_CLASSIFY = 1 << KIND_CLASSIFY,
    FORM_POOLING = 1 << KIND_POOLING,
    FORM_COHERE_EMBED = 1 << KIND_COHERE_EMBED,
    FORM_TOKENIZE_CHAT = 1 << N_KINDS_WITH_FORM,
    FORM_POOL_CHAT = 1 << (N_KINDS_WITH_FORM + 1),
};

/* One of several conversations. */
struct request_chat {
    const struct json *messages;
    const char *text; // the same as JSON
    size_t n_bytes;
};

enum {
    MAX_INPUTS = 2048, // OpenAI's bound of an embedding's inputs
    MAX_LABELS = 128,
};

enum vector_type { VECTOR_FLOAT, VECTOR_BINARY, VECTOR_UBINARY, VECTOR_BASE64, N_VECTOR_TYPES };
#define VECTOR_TYPES "float|binary|ubinary|base64"

struct request_prompt {
    const int32_t *ids;
    int32_t n;
    const char *text; // as given or rendered; NULL if ids were given, or it was cut
    size_t text_bytes;
    int32_t max_tokens;
    /* The text in stretches of one provenance, control tokens among them; NULL: it is one stretch.
     */
    const struct text_span *spans;
    size_t n_spans;
};

/* A file that is shown beside the one with a hole. */
struct fim_file {
    const char *name, *text;
    size_t n_bytes;
};

struct scored_text {
    const char *text;
    size_t n_bytes;
};

enum tool_mode {
    TOOLS_OFF,  // no calls are looked for
    TOOLS_AUTO, // text, calls, or both
    TOOLS_MUST, // a call
};

struct request_tool {
    const char *name;
    const char *schema; // of the parameters, as it stands in the body; NULL: none is said
    size_t schema_bytes;
    const char *text; // of a custom tool: the format of its text (chat/tools/writing.h)
    char place[64];   // where either is said: for errors
    bool custom, strict, allowed;
};

struct request {
    /* Input. */
    enum request_kind kind;
    const struct call_model *model;
    char *text; // the body; changed while it is read
    size_t n_bytes;
    uint64_t seed;       // for a request that gives none
    struct store *store; // of responses; NULL: none are kept
    const char *owner;   // whose responses it may see

    /* Result. */
    struct call_error error; // status 0: all is well
    bool generates, pools;   // by kind, see prepare.c; neither: only the prompts' ids are wanted
    unsigned form;           // one bit
    struct arena arena;      // holds what follows
    struct body body;
    const char *model_name;
    struct sampling_params params;
    bool max_shrinks; // n_predict: more tokens than the context has room for are as many as it has
    bool has_max_tokens, max_is_asked; // else as much as fits; else a default, cut to what fits
    int64_t max_tokens;
    int32_t n, best_of;
    bool beams; // use_beam_search, with n beams
    double length_penalty;
    struct request_prompt *prompts;
    size_t n_prompts;
    struct ids ids; // of prompts that were tokenised

    bool stream, include_usage, continuous_usage;
    bool echo, logprobs, return_token_ids, tokens_as_ids, parallel_tool_calls, include_reasoning;
    int32_t n_top; // top_logprobs, or completions' logprobs
    const char *suffix,
        *prefix; // of a text with a hole; NULL: none. The prompt follows the prefix
    size_t suffix_bytes, prefix_bytes;
    struct fim_file *files;
    size_t n_files;
    bool begun;                              // the prompt is what the hole begins with
    bool base64, normalize;                  // embeddings
    uint8_t embed_dtype, endianness;         // of base64 (packed.h)
    struct scored_text *queries, *documents; // score and rerank
    size_t n_queries, n_documents;
    int64_t max_query_tokens, max_doc_tokens, top_n; // 0: all
    bool activates, returns_documents, bare_list;
    /* llama.cpp's return_tokens, timings_per_token, return_progress, verbose */
    bool native_tokens, timings, tells_prompt, verbose, post_sampling;
    bool llama;                // asked for on a route that only llama.cpp has
    const struct json *fields; // of llama.cpp's answer: the members that are wanted; NULL: all
    const struct request_prompt *query; // labels: what stands beside each item
    bool item_first;
    unsigned vector_types;  // Cohere's: bits, by enum vector_type
    enum pool_kind pooling; // what is pooled, if it `pools`
    int64_t dimensions;     // 0: all
    bool token_strs;        // tokenize
    bool add_special, has_add_special;
    bool parse_special; // recognise special tokens in a prompt that is text (in messages: never)
    int64_t truncate;   // prompt tokens to keep; -1: the model's maximum; 0: all
    bool truncate_right;
    int32_t priority;
    bool background; // nobody waits for it
    const char *cache_salt, *user, *request_id;
    const struct cache_hint *hints; // [n_hints], kv_hints
    int32_t n_hints;
    const char *unknown; // the first member that no endpoint knows, and how many there are
    int n_unknown;
    double timeout_s;        // 0: none
    const char *detokenized; // detokenize
    size_t detokenized_bytes;

    struct output_options output;

    const char *constraint_param; // static text: the member that constrains the answer, or NULL
    struct grammar_source
        constraint;               // of the answer; what is compiled may be more (request_turn.c)
    struct kept_grammar *grammar; // compiled; NULL: none
    const char *constraint_after; // the text, one token, after which it begins; NULL: at once
    int32_t constraint_after_id;

    /* Chat, responses and messages. */
    struct request_chat *chats; // several; `messages` is then the first; or NULL
    size_t n_chats;
    const char *messages, *tools, *kwargs; // JSON text
    size_t messages_bytes, tools_bytes, kwargs_bytes;
    const struct json *tools_json;  // for the parsers
    struct json *own_tools;         // tools_json, where it was made here
    bool raw;                       // Ollama: the prompt is no message
    bool old_calls;                 // asked for with "functions": one call, as "function_call"
    struct request_tool *tool_list; // [n_tool_list], in the arena
    size_t n_tool_list;
    enum tool_mode tool_mode;
    const char *tool_param;       // what says it; static text
    int32_t n_past_calls;         // chat: calls in its messages
    bool narrows;                 // not all tools are allowed
    bool is_named;                // chat: one tool is asked for by its name
    const char *request_template; // trusted
    bool add_generation_prompt, continue_final_message;
    const char *echoed; // chat with echo: the last message, if it is the assistant's; or NULL
    size_t echoed_bytes;
    const char *effort;       // NULL: not said
    bool thinks, has_thinks;  // enable_thinking
    const char *instructions; // responses
    int n_stripped_lines;     // messages: of the system prompt (--strip-prompt-lines)
    bool stores;              // responses: it is kept
    bool tells_messages;      // responses: the whole prompt and answer, as text and ids
    bool detached;            // responses: it runs on without its client ("background")
    bool wants_events;        // of those: whether the client asked for a stream; all have one
    const char *previous;     // responses: the id of the one before; or NULL
    const char *conversation; // responses: its id; or NULL
    const char *items;        // responses: its own input items, as JSON texts joined by commas
    const char *history;      // responses: the items before those, as a JSON array; or NULL
    size_t items_bytes, history_bytes;
    const char *repeated; // what the answer repeats of the body, as JSON text
};

bool request_check_n_tools(struct request *r, const char *key, size_t n);

/* The custom tool of this name, NULL if there is none. */
const struct request_tool *request_custom_tool(const struct request *r, const char *name);

/* Out of memory for the request's own data: 413. */
bool request_too_large(struct request *r);

void request_deinit(struct request *r); // accepts a zeroed struct

#endif
