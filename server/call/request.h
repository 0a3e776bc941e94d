// SPDX-License-Identifier: Apache-2.0
/* A request as plain data: the checked content of the body, with token ids and sampling parameters.
 * It is made on a pool thread (prepare.h) and depends only on the body and the model.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_CALL_REQUEST_H
#define SLUICE_SERVER_CALL_REQUEST_H

#include "engine/base/arena.h"
#include "engine/device/params.h"
#include "engine/schedule/request.h"
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
    KIND_NATIVE, // llama.cpp's completion
    KIND_INFILL,
    KIND_NATIVE_EMBED,
    KIND_TOKENS,        // vLLM's: ids in, ids out
    KIND_CHAT_BATCH,    // several conversations
    KIND_LABELS,        // the probabilities of given tokens as the next one
    KIND_CLASSIFY,      // the class that a classifier gives to prompts
    KIND_POOLING,       // embeddings in another form
    KIND_COHERE_EMBED,  // Cohere's
    KIND_DERENDER_CHAT, // ids that another server generated become a chat's answer
    KIND_DERENDER,      // or one of completions
    KIND_SYSTEMONE,     // questions about a state, answered by the probabilities of labels
    KIND_DECISIONS,     // the same in another form
    N_KINDS_WITH_FORM,  // the kinds below use the forms of those above
    KIND_OLLAMA_LOAD = N_KINDS_WITH_FORM, // an Ollama request without messages or prompt, which
                                          // only loads the model
    KIND_OLLAMA_OLD_EMBED,                // its `prompt` becomes the `input` of KIND_OLLAMA_EMBED
    KIND_APPLY_TEMPLATE,
    KIND_RENDER,            // renders a completion's prompts to ids
    KIND_RENDER_CHAT,       // renders a chat to ids
    KIND_RENDER_RESPONSE,   // or the input of a response
    KIND_RENDER_MESSAGE,    // or the turns of a message
    KIND_COHERE_CHAT,       // Cohere's chat, whose body becomes that of a chat
    KIND_RENDER_COHERE,     // renders it
    KIND_COMPACT,           // shortens a response's input: its user messages and a summary
    KIND_CHAT_INPUT_TOKENS, // counts a chat's ids
    KIND_INVOCATIONS,       // SageMaker's: becomes another kind, by the body's members
    KIND_LLAMA_CHAT,        // becomes a chat with `llama`
    KIND_EITHER_EMBED,      // becomes llama.cpp's if each token has a vector, else OpenAI's
    KIND_EITHER_COMPLETION, // becomes OpenAI's if the body names a model, else llama.cpp's
    N_REQUEST_KINDS,
};

/* The forms that a body may have, as bits: one per kind of endpoint; endpoints for tokens and for
 * vectors have a second form with messages. */
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
    FORM_DERENDER_CHAT = 1 << KIND_DERENDER_CHAT,
    FORM_DERENDER = 1 << KIND_DERENDER,
    FORM_SYSTEMONE = 1 << KIND_SYSTEMONE,
    FORM_DECISIONS = 1 << KIND_DECISIONS,
    FORM_TOKENIZE_CHAT = 1 << N_KINDS_WITH_FORM,
    FORM_POOL_CHAT = 1 << (N_KINDS_WITH_FORM + 1),
    FORM_CONTEXT = 1 << (N_KINDS_WITH_FORM + 2), // the parse_context of FORM_TOKENS
    N_FORMS = N_KINDS_WITH_FORM + 3,
};
_Static_assert(N_FORMS <= 31, "forms are bits of an int: struct member and request.form need 64");

/* What /inference/v1/generate returns: ids alone, with their text, or with the parsed message. */
enum output_mode { OUTPUT_TOKENS, OUTPUT_TEXT, OUTPUT_DERENDER };
#define OUTPUT_MODES "tokens|text|derender"

/* One of several conversations. */
struct request_chat {
    const struct json *messages;
    const char *text; // the messages as JSON text
    size_t n_bytes;
};

enum {
    MAX_INPUTS = 2048, // OpenAI's limit for the inputs of one request
    MAX_LABELS = 128,
};

enum vector_type { VECTOR_FLOAT, VECTOR_BINARY, VECTOR_UBINARY, VECTOR_BASE64, N_VECTOR_TYPES };
#define VECTOR_TYPES "float|binary|ubinary|base64"

struct request_prompt {
    const int32_t *ids;
    int32_t n;
    const char *text; // the text as given or rendered; NULL if ids were given or the text was
                      // truncated
    size_t text_bytes;
    const int32_t *offsets; // [2 * n]: the first character of each token and the one after it; or
                            // NULL
    int32_t max_tokens;
    /* The text divided by provenance: control tokens, template text, the client's text. NULL: it is
     * not divided. */
    const struct text_span *spans;
    size_t n_spans;
    /* The second text of a pair that is one prompt; NULL: there is none. second_at: the first token
     * of the second type (engine_request.second). */
    const char *second;
    size_t second_bytes;
    int32_t second_at;
};

/* An input of embeddings: one prompt, or several if the input is longer than the context. */
struct request_input {
    size_t first, n;
};

/* A further file in a fill-in-the-middle prompt, as context. */
struct fim_file {
    const char *name, *text;
    size_t n_bytes;
};

struct scored_text {
    const char *text;
    size_t n_bytes;
};

enum tool_mode {
    TOOLS_OFF,  // no tools, or none may be called: calls are left out
    TOOLS_AUTO, // the answer is text, calls, or both
    TOOLS_MUST, // the answer must be a call
};

struct request_tool {
    const char *name;
    const char *schema; // schema of the parameters, as written in the body; NULL: not given
    size_t schema_bytes;
    const char *text; // for a custom tool: the format of its text (chat/tools/writing.h)
    char place[64];   // where `schema` or `text` was given: for errors
    bool custom, strict, allowed;
};

/* A tool of a namespace: the name that the model knows, the namespace, and the tool's own name. */
struct request_namespaced {
    const char *flat, *space, *name;
};

struct request {
    /* Input. */
    enum request_kind kind;
    const struct call_model *model;
    char *text; // the body; changed while it is read
    size_t n_bytes;
    uint64_t seed;       // used if the request has no seed
    struct store *store; // where responses are stored, or NULL
    const char *owner;   // owner of the responses that it may read

    /* Result. */
    struct call_error error; // status 0: no error
    bool generates, pools; // what prompts are used for, by kind (prepare.c); if neither, only their
                           // ids are needed
    unsigned form;         // one of the bits above
    struct arena arena;    // memory of the members below
    struct body body;
    const char *model_name;
    int32_t adapter; // as in engine_request
    struct sampling_params params;
    bool max_shrinks; // a value that exceeds the context is reduced rather than refused (n_predict)
    bool shifts, prompt_cut; // the context may shift (shifts.h); a prompt that was too long was cut
    int64_t n_keep, n_discard;
    int64_t repeat_window;             // the last tokens that penalties should consider; 0: all
    bool has_max_tokens, max_is_asked; // neither: as many as fit; only the first: a default, which
                                       // is reduced to what fits
    int64_t max_tokens;
    int32_t n, best_of;
    bool beams; // use_beam_search; there are n beams
    double length_penalty;
    struct request_prompt *prompts;
    size_t n_prompts;
    struct request_input *inputs; // [n_inputs]; NULL: each prompt is an input
    size_t n_inputs;
    struct ids ids; // the ids of prompts that were given as text

    bool stream, include_usage, continuous_usage;
    bool echo, logprobs, return_token_ids, tokens_as_ids, parallel_tool_calls, include_reasoning;
    bool hides_metadata;         // the answer must not show the reasoning's tokens either
    uint8_t output_mode;         // generate: enum output_mode
    bool wants_offsets;          // render: the places of the tokens are asked for
    bool returns_prompt;         // generate: prompt_token_ids are asked for
    struct body context;         // generate: the parse_context
    int32_t n_scored;            // generate: rows of params.prompt_logprob_ids
    struct id_list given_prompt; // chat: kv_transfer_params.prompt_token_ids; n 0: none
    const char *prompt_text;     // the text of a prompt of ids, if the answer is parsed
    size_t prompt_text_bytes;
    int32_t n_top; // top_logprobs, or completions' logprobs
    const char *suffix,
        *prefix; // for fill-in-the-middle, or NULL; the prompt follows the prefix
    size_t suffix_bytes, prefix_bytes;
    struct fim_file *files;
    size_t n_files;
    bool begun;                              // the prompt is the beginning of the text in the gap
    bool base64, normalize;                  // how embeddings are returned
    uint8_t embed_dtype, endianness;         // format of base64 (packed.h)
    struct scored_text *queries, *documents; // score and rerank
    size_t n_queries, n_documents;
    int64_t max_query_tokens, max_doc_tokens, top_n; // limits; 0: none
    bool activates, returns_documents, bare_list;
    /* llama.cpp's return_tokens, timings_per_token, return_progress, verbose */
    bool native_tokens, timings, tells_prompt, verbose, post_sampling;
    bool llama;                         // a chat that is answered like llama.cpp's
    const struct json *fields;          // members of llama.cpp's answer to return; NULL: all
    const struct request_prompt *query; // labels: combined with each item
    bool item_first;
    unsigned vector_types;  // Cohere's: bits, by enum vector_type
    enum pool_kind pooling; // how hidden states are pooled, if `pools`
    int64_t dimensions;     // length of the vectors; 0: the model's
    bool token_strs;        // tokenize: also return the tokens' texts
    bool add_special, has_add_special;
    bool parse_special; // recognise special tokens in text prompts (never in messages)
    int64_t truncate;   // prompt tokens to keep; -1: the model's maximum; 0: all
    bool truncate_right;
    int32_t priority;
    bool background; // no client waits for the answer
    const char *cache_salt, *user, *request_id;
    const struct cache_hint *hints; // [n_hints]: from kv_hints
    int32_t n_hints;
    const char *unknown; // the first member that no endpoint knows, of n_unknown
    int n_unknown;
    double timeout_s;        // time limit in the body; 0: none
    const char *detokenized; // detokenize: the text
    size_t detokenized_bytes;

    struct output_options output;

    int64_t thinking_budget;      // tokens of reasoning; -1: any number
    const char *thinking_param;   // the member that sets the budget, static text; NULL: none does
    bool thinking_is_hint;        // models without reasoning ignore the budget
    const char *thinking_message; // text before the forced end of reasoning; NULL: the server's
    size_t thinking_message_bytes;
    struct thinking_limit *thinking;  // [n_prompts]; NULL: no limit
    const char *constraint_param;     // static text: the member that constrains the answer, or NULL
    struct grammar_source constraint; // source for the answer; `grammar` may also cover the text
                                      // around it (request_turn.c)
    struct kept_grammar *grammar;     // compiled; NULL: none
    const char *constraint_after;     // the constraint begins after this text, which is one token;
                                      // NULL: at once
    int32_t constraint_after_id;

    /* Chat, responses and messages. */
    struct request_chat *chats; // several conversations (`messages` is the first), or NULL
    size_t n_chats;
    const char *messages, *tools, *kwargs; // JSON text
    size_t messages_bytes, tools_bytes, kwargs_bytes;
    const struct json *tools_json; // the tools as a tree, for the parsers
    struct json *own_tools;        // tools_json, if it was generated
    struct json *flat_tools;       // responses: the tools under flat names; NULL: no namespaces
    struct request_namespaced *namespaced; // [n_namespaced]
    size_t n_namespaced;
    bool raw;                       // Ollama: the prompt is not a message
    bool old_calls;                 // the body has "functions": one call, as "function_call"
    struct request_tool *tool_list; // [n_tool_list], in the arena
    size_t n_tool_list;
    enum tool_mode tool_mode;
    const char *tool_param;       // the member that sets tool_mode, static text
    int32_t n_past_calls;         // chat: number of calls in its messages
    bool narrows;                 // only some of the tools are allowed
    bool is_named;                // chat: the client selected one tool by name
    const char *request_template; // the request's own chat template, which the operator allows; or
                                  // NULL
    size_t request_template_bytes;
    bool add_generation_prompt, continue_final_message;
    const char *echoed; // chat with echo: the last message, if from the assistant; or NULL
    size_t echoed_bytes;
    const char *effort;          // effort of reasoning; NULL: not given
    bool thinks, has_thinks;     // enable_thinking
    const char *instructions;    // responses: the system's message
    int n_stripped_lines;        // messages: removed from the system prompt (--strip-prompt-lines)
    bool stores;                 // responses: the response is stored
    bool tells_messages;         // responses: include the prompt and the answer as text and ids
    bool detached;               // responses: it continues without its client ("background")
    bool wants_events;           // if detached: the client asked for a stream; events are recorded
                                 // in any case
    struct derender *derender;   // the ids to derender (derender.h); NULL: none
    struct decisions *decisions; // the questions (decisions.h); NULL: none
    const char *previous;        // responses: id of the previous response; or NULL
    const char *conversation;    // responses: id of the conversation; or NULL
    const char *items;           // responses: the request's own input items, as JSON texts joined
                                 // by commas; to be compacted: all messages of the user
    const char *history;         // responses: the earlier items, as a JSON array; or NULL
    size_t items_bytes, history_bytes;
    const char *repeated; // members of the body that the answer repeats, as JSON text
};

bool request_check_n_tools(struct request *r, const char *key, size_t n);

/* The tool of a namespace by the name that the model knows, NULL if there is none. */
const struct request_namespaced *request_namespaced(const struct request *r, const char *flat);

/* The custom tool of this name, NULL if there is none. */
const struct request_tool *request_custom_tool(const struct request *r, const char *name);

/* Out of memory for the request's own data: 413. */
bool request_too_large(struct request *r);

void request_deinit(struct request *r); // accepts a zeroed struct

#endif
