// SPDX-License-Identifier: Apache-2.0
#include "server/call/members.h"

#include "server/call/readers.h"

#include <string.h>

enum {
    TOKENIZE = FORM_TOKENIZE_TEXT | FORM_TOKENIZE_CHAT,
    NATIVE = FORM_NATIVE | FORM_INFILL,
    OLLAMA = FORM_OLLAMA_CHAT | FORM_OLLAMA_GENERATE,
    CHATS = FORM_CHAT | FORM_CHAT_BATCH | FORM_TOKENIZE_CHAT | FORM_OLLAMA_CHAT,
    MESSAGES = FORM_MESSAGES | FORM_COUNT_TOKENS,
    TALKS = CHATS | FORM_RESPONSES | MESSAGES | OLLAMA,
    DRAWS = FORM_CHAT | FORM_CHAT_BATCH | FORM_COMPLETIONS | FORM_RESPONSES | MESSAGES |
            FORM_GENERATE | OLLAMA | NATIVE | FORM_TOKENS,
    SERVED = TALKS | FORM_COMPLETIONS | FORM_EMBEDDINGS | FORM_OLLAMA_EMBED | NATIVE |
             FORM_NATIVE_EMBED | TOKENIZE | FORM_DETOKENIZE | FORM_TOKENS, // by a server
    PAIRS = FORM_SCORE | FORM_RERANK,
    POOLED = FORM_CLASSIFY | FORM_POOLING | FORM_POOL_CHAT,
    SCORES = PAIRS | FORM_LABELS | POOLED | FORM_COHERE_EMBED, // what draws no text
    VECTORS = FORM_EMBEDDINGS | FORM_POOLING | FORM_POOL_CHAT,
    WITH_TOOLS = CHATS & ~FORM_CHAT_BATCH,
    SERVES = SERVED | SCORES,
    ALL = SERVED | FORM_GENERATE,
};

#define KEPT(field)                                                                                \
    .offset = offsetof(struct request, field), .size = sizeof(((struct request *)NULL)->field)
#define FLAG(field) .flag = offsetof(struct request, field)
#define MOST(field) .most = offsetof(struct config, field)

#define BOOL(field) .type = MEMBER_BOOL, KEPT(field)
#define INT(field, min_, max_) .type = MEMBER_INT, .min = min_, .max = max_, KEPT(field)
#define INT_TO(field, min_, most_) .type = MEMBER_INT, .min = min_, MOST(most_), KEPT(field)
#define REAL(field, low_, high_) .type = MEMBER_REAL, .low = low_, .high = high_, KEPT(field)
#define STRING(field) .type = MEMBER_STRING, KEPT(field)
#define CHOICE(field, words) .type = MEMBER_CHOICE, .choices = words, KEPT(field)
#define LENGTH INT(max_tokens, 1, INT32_MAX), FLAG(max_is_asked)
#define HAND(type_, function) .type = MEMBER_##type_, .read = function
#define IGNORED(type_) .type = MEMBER_##type_, .use = MEMBER_IGNORED
#define REFUSED(type_, off_) .type = MEMBER_##type_, .use = MEMBER_REFUSED, .off = off_
#define WITH(type_, key_) .type = MEMBER_##type_, .with = key_

/* Values that ask for nothing: of what the API itself refuses, and of other servers' members. */
static const char nothing[] = "false|[]|{}";
static const char empty[] = "false|\"\"|[]|{}";

#define EFFORTS "none|minimal|low|medium|high|xhigh"
/* Pieces of JSON schemas; ' stands for the quotation mark. */
#define PART                                                                                       \
    "{'type':'object','required':['type','text'],'properties':{'type':{'enum':['text',"            \
    "'input_text','output_text']},'text':{'type':'string'}}}"
#define PARTS "{'type':'array','items':" PART "}"
#define CHAT_CALLS                                                                                 \
    "'tool_calls':{'type':'array','items':{'type':'object','required':['function'],'properties':{" \
    "'id':{'type':'string'},'function':{'type':'object','required':['name','arguments'],"          \
    "'properties':{'name':{'type':'string'},'arguments':{'type':['string','object']}}}}}}"
/* Other roles are taken where the chat template has a place for them. */
#define CHAT_MESSAGES                                                                              \
    "'minItems':1,'items':{'anyOf':[{'type':'object','required':['role','content'],'properties':{" \
    "'role':{'enum':['developer','system','user']},'content':{'anyOf':[{'type':'string'}," PARTS   \
    "]},'name':{'type':'string'}}},{'type':'object','required':['role','content'],'properties':{"  \
    "'role':{'const':'assistant'},'content':{'anyOf':[{'type':['string','null']}," PARTS           \
    "]}," CHAT_CALLS "}},{'type':'object','required':['role','content','tool_call_id'],"           \
    "'properties':{'role':{'const':'tool'},'content':{'anyOf':[{'type':'string'}," PARTS           \
    "]},'tool_call_id':{'type':'string'}}}]}"
#define ITEMS                                                                                      \
    "'anyOf':[{'type':'string'},{'type':'array','minItems':1,'items':{'anyOf':[{'type':'object',"  \
    "'required':['role','content'],'properties':{'type':{'const':'message'},'role':{'enum':["      \
    "'user','assistant','system','developer']},'content':{'anyOf':[{'type':'string'},{"            \
    "'type':'array','items':" PART "}]}}},"                                                        \
    "{'type':'object','required':['type'],'properties':{'type':{"                                  \
    "'enum':['function_call','function_call_output','reasoning']}}}]}}]"
#define FUNCTION                                                                                   \
    "'name':{'type':'string'},'description':{'type':'string'},'parameters':{'type':'object'}"
#define TOOLS                                                                                      \
    "'minItems':1,'maxItems':128,'items':{'type':'object','required':['function'],'properties':{"  \
    "'type':{'const':'function'},'function':{'type':'object','required':['name'],'properties':"    \
    "{" FUNCTION "}}}}"
#define FLAT_TOOLS                                                                                 \
    "'maxItems':128,'items':{'type':'object','required':['type','name'],'properties':{'type':{"    \
    "'const':'function'}," FUNCTION "}}"
#define SCHEMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['name','input_schema'],'properties':{"    \
    "'type':{'const':'custom'},'name':{'type':'string'},'description':{'type':'string'},"          \
    "'input_schema':{'type':'object'}}}"
#define TEXT_BLOCK                                                                                 \
    "{'type':'object','required':['type','text'],'properties':{'type':{'const':'text'},'text':{"   \
    "'type':'string'}}}"
#define SYSTEM "'anyOf':[{'type':['string','null']},{'type':'array','items':" TEXT_BLOCK "}]"
#define TURNS                                                                                      \
    "'minItems':1,'items':{'type':'object','required':['role','content'],'properties':{'role':{"   \
    "'enum':['user','assistant','system']},'content':{'anyOf':[{'type':'string'},{'type':"         \
    "'array','items':{'anyOf':[" TEXT_BLOCK ",{'type':'object','required':['type'],'properties':{" \
    "'type':{'enum':['tool_use','tool_result','thinking','redacted_thinking']}}}]}}]}}}"
#define FORMAT                                                                                     \
    "'required':['type'],'properties':{'type':{'enum':['text','json_object','json_schema']}}"
#define TEXT_OBJECT                                                                                \
    "{'type':'string','minLength':1},{'type':'object','required':['text'],'properties':{'text':{"  \
    "'type':'string','minLength':1}}}"
#define A_TEXT "'anyOf':[" TEXT_OBJECT "]"
#define TEXTS                                                                                      \
    "'anyOf':[{'type':'array','minItems':1,'maxItems':2048,'items':{'anyOf':[" TEXT_OBJECT         \
    "]}}," TEXT_OBJECT "]"
#define OLLAMA_TOOLS                                                                               \
    "'maxItems':128,'items':{'type':'object','required':['function'],'properties':{'type':{"       \
    "'const':'function'},'function':{'type':'object','required':['name'],'properties':{" FUNCTION  \
    "}}}}"
#define OLLAMA_MESSAGES                                                                            \
    "'items':{'type':'object','required':['role'],'properties':{'role':{'enum':['system','user',"  \
    "'assistant','tool']},'content':{'type':['string','null']},'thinking':{'type':['string',"      \
    "'null']},'tool_name':{'type':'string'}}}"
#define DIRECTIVE                                                                                  \
    "{'type':'object','required':['priority'],'additionalProperties':false,'properties':{"         \
    "'priority':{'type':'integer','minimum':0,'maximum':100},'duration':{'type':['number',"        \
    "'null'],'minimum':0,'maximum':2592000},'start':{'type':'integer','minimum':0},'end':{"        \
    "'type':['integer','null'],'minimum':1},'covers_output':{'type':'boolean'}}}"
#define KV_HINTS                                                                                   \
    "'required':['protocol_version','message_id','actions'],'properties':{'protocol_version':{"    \
    "'type':'string'},'message_id':{'type':'string'},'actions':{'type':'array','maxItems':16,"     \
    "'items':{'type':'object','required':['action_id','action_type','action_version','payload'],"  \
    "'properties':{'action_id':{'type':'string'},'action_type':{'type':'string'},"                 \
    "'action_version':{'type':'string'},'payload':{'type':'object','properties':{'scope':{"        \
    "'type':['string','null']},'directives':{'type':'array','maxItems':128,'items':" DIRECTIVE     \
    "}}}}}}}"
#define A_CHOICE "'enum':[null,'none','auto']"

const struct member members[] = {
    {"model", "A served name or nothing: the first one.", SERVES, HAND(STRING, read_model)},

    /* ---- sampling ---- */
    {"temperature", "Divides the scores; 0 takes the most likely token.", ALL,
     REAL(params.temperature, 0, (double)MAX_TEMPERATURE)},
    {"top_p", "Only the likeliest tokens that hold this much of the probability; 0: one token.",
     ALL, REAL(params.top_p, 0, 1)},
    {"min_p", "Only tokens at least this likely, as a part of the likeliest.", ALL,
     REAL(params.min_p, 0, 1)},
    {"frequency_penalty", "Taken off a token's score for each time it was generated.", ALL,
     REAL(params.frequency_penalty, -2, 2)},
    {"presence_penalty", "Taken off the score of each token that was generated.", ALL,
     REAL(params.presence_penalty, -2, 2)},
    {"repeat_penalty", "llama.cpp's name of repetition_penalty.", ALL,
     REAL(params.repetition_penalty, 1e-3, 1e3)},
    {"repetition_penalty", "Divides the scores of tokens of the prompt and the answer; 1: off.",
     ALL, REAL(params.repetition_penalty, 1e-3, 1e3)},
    {"top_k", "Only this many of the likeliest tokens; 0 and -1: all.", ALL,
     INT(params.top_k, -1, INT32_MAX), .check = check_top_k},
    {"random_seed", "Mistral's name of seed.", DRAWS, INT(params.seed, INT64_MIN, INT64_MAX)},
    {"seed", "The same seed gives the same answer.", ALL, INT(params.seed, INT64_MIN, INT64_MAX)},
    {"min_new_tokens", "SGLang's name of min_tokens.", DRAWS, INT(params.min_tokens, 0, INT32_MAX)},
    {"min_tokens", "Nothing ends the answer before this many tokens.", ALL,
     INT(params.min_tokens, 0, INT32_MAX)},
    {"num_speculative_tokens", "At most this many drafts in a step.", ALL,
     INT(params.num_speculative_tokens, 0, 128)},
    {"ignore_eos", "The model's own end tokens do not end the answer.", ALL,
     BOOL(params.ignore_eos)},
    {"no_stop_trim", "SGLang's name of include_stop_str_in_output.", DRAWS,
     BOOL(output.include_stop)},
    {"include_stop_str_in_output", "The answer keeps the stop string that ended it.", ALL,
     BOOL(output.include_stop)},
    {"stop", "Texts that end the answer.", ALL & ~MESSAGES, HAND(STRINGS, read_stop),
     MOST(max_stop)},
    {"stop_sequences", "Texts that end the answer.", MESSAGES, HAND(STRINGS, read_stop_sequences),
     MOST(max_stop)},
    {"stop_token_ids", "Tokens that end the answer.", ALL, HAND(IDS, read_stop_ids),
     .may_be_empty = true},
    {"logit_bias", "What is added to the scores of tokens, by id or by text, false: never.", NATIVE,
     HAND(ANY, read_bias),
     .schema = "'anyOf':[{'type':'object'},{'type':'array','maxItems':1024}]"},
    {"logit_bias", "What is added to the scores of tokens, by id.", ALL & ~NATIVE,
     HAND(OBJECT, read_bias),
     .schema = "'maxProperties':1024,'additionalProperties':{'type':'number','minimum':"
               "-100,'maximum':100}"},
    {"n_cmpl", "llama.cpp's name of n.", DRAWS & ~FORM_CHAT_BATCH, INT_TO(n, 1, max_n)},
    {"n", "How many answers.", ALL & ~FORM_CHAT_BATCH, INT_TO(n, 1, max_n)},
    {"n", "One answer for each conversation.", FORM_CHAT_BATCH, INT(n, 1, 1)},
    {"best_of", "1, or as many as n.", ALL, INT(best_of, 1, INT32_MAX), .check = check_best_of},
    {"prompt_logprobs", "Log probabilities of the prompt's tokens, and of this many others.",
     SERVED & ~MESSAGES, INT_TO(params.prompt_top_logprobs, -1, max_logprobs),
     .check = check_prompt_logprobs},
    {"allowed_token_ids", "No other tokens are drawn.", ALL, HAND(IDS, read_allowed)},

    /* ---- the answer's form ---- */
    {"stream", "The answer comes in events as it is made.", ALL & ~FORM_CHAT_BATCH, BOOL(stream)},
    {"stream_options", "Whether a stream has usage at its end, or in each event.", ALL,
     HAND(OBJECT, read_stream_options),
     .schema = "'properties':{'include_usage':{'type':['boolean','null']},"
               "'continuous_usage_stats':{'type':['boolean','null']}}"},
    {"return_token_ids", "The ids of the prompt's and the answer's tokens.", ALL,
     BOOL(return_token_ids)},
    {"return_tokens_as_token_ids", "Tokens of logprobs are written as token_id:N.", ALL,
     BOOL(tokens_as_ids)},
    {"skip_special_tokens", "Special tokens are left out of the text.", ALL,
     BOOL(output.skip_special)},
    {"add_special_tokens", "The tokenizer's own begin and end tokens are added to the prompt.",
     ALL | POOLED | FORM_LABELS, BOOL(add_special), FLAG(has_add_special)},
    {"parse_special", "Special tokens are recognised in a prompt that is text.", ALL,
     BOOL(parse_special)},
    {"truncate_prompt_tokens", "A longer prompt is cut to this many tokens; -1: to what fits.",
     ALL | SCORES, INT(truncate, -1, INT32_MAX)},
    {"truncation_side", "The end at which a prompt is cut.", ALL | SCORES,
     CHOICE(truncate_right, "left|right")},
    {"priority", "Lower goes first.", ALL | SCORES, INT(priority, INT32_MIN, INT32_MAX)},
    {"cache_salt", "Only requests of the same salt share cached prompts.", ALL | SCORES,
     STRING(cache_salt), .check = check_salt, .schema = "'minLength':1"},
    {"kv_hints", "How long the prompt should stay in the cache; a hint.", DRAWS,
     HAND(OBJECT, read_kv_hints), .schema = KV_HINTS},
    {"user", "A name for the log.", ALL | SCORES, STRING(user)},
    {"timeout", "Seconds after which the request ends with an error; fewer are taken, too.",
     ALL | SCORES, REAL(timeout_s, 0.001, 864000), .unlisted = true},
    {"store", "Nothing is stored.", ALL & ~FORM_RESPONSES, IGNORED(BOOL)},
    {"store", "Whether the response is kept for later.", FORM_RESPONSES, BOOL(stores)},
    {"metadata", "Responses repeat it.", ALL & ~MESSAGES, IGNORED(OBJECT)},
    {"metadata", "Its user_id is a name for the log.", MESSAGES, HAND(OBJECT, read_metadata)},
    {"service_tier", "There is one.", ALL, IGNORED(STRING)},
    {"safety_identifier", "Responses repeat it.", ALL, IGNORED(STRING)},
    {"prompt_cache_key", "Prompts are found in the cache without it.", ALL, IGNORED(STRING)},
    {"prompt_cache_retention", "The cache keeps what it has room for.", ALL, IGNORED(STRING)},
    {"verbosity", "A hint to models that know it.", ALL, IGNORED(STRING)},
    {"prediction", "A hint that would only save time.", ALL, IGNORED(OBJECT)},
    {"session_id", "Prompts are found in the cache without it.", ALL, IGNORED(STRING)},
    {"spaces_between_special_tokens", "Tokens are joined as the tokenizer has it.", ALL,
     IGNORED(BOOL)},
    {"moderation", "There is none.", ALL, IGNORED(ANY)},
    {"request_id", "The answer's id, where no x-request-id header says it.", ALL | SCORES,
     STRING(request_id), .check = check_request_id,
     .schema = "'pattern':'^[A-Za-z0-9._:-]{1,128}$'"},
    {"response_format", "What the answer is: any text, a JSON object, or JSON of a schema.", DRAWS,
     HAND(OBJECT, read_response_format), .schema = FORMAT},
    {"use_beam_search", "Beam search.", ALL, REFUSED(ANY, nothing)},
    {"structured_outputs",
     "vLLM's constraints: one of json, regex, choice, grammar, json_object, structural_tag.", DRAWS,
     HAND(OBJECT, read_structured_outputs)},
    {"guided_json", "vLLM's older name of structured_outputs.json.", DRAWS,
     HAND(ANY, read_guided_json)},
    {"guided_regex", "vLLM's older name of structured_outputs.regex.", DRAWS,
     HAND(STRING, read_guided_regex)},
    {"guided_choice", "vLLM's older name of structured_outputs.choice.", DRAWS,
     HAND(ARRAY, read_guided_choice)},
    {"guided_grammar", "vLLM's older name of structured_outputs.grammar.", DRAWS,
     HAND(STRING, read_guided_grammar)},
    {"prompt_embeds", "A prompt of hidden states.", ALL, REFUSED(ANY, nothing)},
    {"kv_transfer_params", "A prompt computed elsewhere.", ALL, REFUSED(ANY, nothing)},
    {"logits_processors", "Code for the sampler.", ALL, REFUSED(ANY, nothing)},
    {"watermark", "A watermark in the choice of tokens.", ALL, REFUSED(ANY, nothing)},
    {"repetition_detection", "An end to answers that go in circles.", ALL, REFUSED(ANY, nothing)},
    {"bad_words", "Words that do not appear in the answer.", SERVED, HAND(ARRAY, read_bad_words),
     .schema = "'maxItems':128,'items':{'type':'string','minLength':1}"},

    /* ---- chat ---- */
    {"messages", "Conversations, each answered by a choice.", FORM_CHAT_BATCH,
     HAND(ARRAY, read_chats), .required = true,
     .schema = "'minItems':1,'items':{'type':'array'," CHAT_MESSAGES "}"},
    {"messages", "The conversation so far.", CHATS & ~(OLLAMA | FORM_CHAT_BATCH),
     HAND(ARRAY, read_messages), .required = true, .schema = CHAT_MESSAGES},
    /* ---- messages ---- */
    {"messages", "The conversation so far, as turns of blocks.", MESSAGES, HAND(ARRAY, read_turns),
     .required = true, .schema = TURNS},
    {"system", "The system prompt: a text, or blocks of text.", MESSAGES, WITH(ANY, "messages"),
     .schema = SYSTEM},
    {"tools", "Tools that the model may call.", MESSAGES, HAND(ARRAY, read_schema_tools),
     .schema = SCHEMA_TOOLS},
    {"tool_choice", "Whether the model may call a tool.", MESSAGES, HAND(OBJECT, read_typed_choice),
     .schema = "'required':['type'],'properties':{'type':{'enum':['auto','none']}}"},
    {"output_config", "How much the model is to think: effort; the answer's format.", MESSAGES,
     HAND(OBJECT, read_output_config),
     .schema = "'properties':{'effort':{'enum':[null,'low','medium','high','xhigh','max']}}"},
    {"thinking", "Whether the model is to think; its budget is not kept.", MESSAGES,
     HAND(OBJECT, read_typed_thinking),
     .schema = "'required':['type'],'properties':{'type':{'enum':['enabled','adaptive',"
               "'between_tools','disabled']},'budget_tokens':{'type':'integer','minimum':1}}"},
    {"cache_control", "The cache keeps what it has room for.", MESSAGES, IGNORED(ANY)},
    {"context_management", "No turns are dropped.", MESSAGES, IGNORED(ANY)},
    {"inference_geo", "There is one place.", MESSAGES, IGNORED(ANY)},
    {"speed", "There is one.", MESSAGES, IGNORED(ANY)},
    {"diagnostics", "Cached tokens are in the usage.", MESSAGES, IGNORED(ANY)},
    {"user_profile_id", "There are no profiles.", MESSAGES, IGNORED(ANY)},
    {"workspace_id", "There are no workspaces.", MESSAGES, IGNORED(ANY)},
    {"betas", "They are a matter of headers.", MESSAGES, IGNORED(ANY)},
    {"container", "Tools that run here: there are none.", MESSAGES, REFUSED(ANY, empty)},
    {"thread", "A conversation that the server holds: it holds none.", MESSAGES,
     HAND(ANY, read_thread)},
    {"compaction", "A summary in place of an answer.", MESSAGES, REFUSED(ANY, nothing)},
    /* ---- responses ---- */
    {"previous_response_id", "The stored response that this one goes on from.", FORM_RESPONSES,
     HAND(STRING, read_previous)},
    {"background", "The response runs on without its client, who asks for it later.",
     FORM_RESPONSES, BOOL(detached)},
    {"conversation", "The stored conversation before the input, which the response is added to.",
     FORM_RESPONSES, HAND(ANY, read_conversation),
     .schema = "'anyOf':[{'type':['string','null']},{'type':'object','required':['id'],"
               "'properties':{'id':{'type':'string'}}}]"},
    {"prompt", "Prompts are not stored.", FORM_RESPONSES, REFUSED(ANY, nothing)},
    {"context_management", "No input items are dropped.", FORM_RESPONSES, REFUSED(ANY, nothing)},
    {"instructions", "A system message before the input.", FORM_RESPONSES, STRING(instructions)},
    {"input", "A user's text, or the items of the conversation so far.", FORM_RESPONSES,
     HAND(ANY, read_items), .required = true, .schema = ITEMS},
    /* ---- both ---- */
    {"tools", "Functions that the model may call.", WITH_TOOLS & ~OLLAMA, HAND(ARRAY, read_tools),
     .schema = TOOLS},
    {"tools", "Functions that the model may call.", FORM_OLLAMA_CHAT,
     HAND(ARRAY, read_ollama_tools), .schema = OLLAMA_TOOLS},
    {"functions", "An older form of tools; the answer has function_call.", WITH_TOOLS,
     WITH(ARRAY, "tools"),
     .schema = "'maxItems':128,'items':{'type':'object','required':['name'],"
               "'properties':{" FUNCTION "}}"},
    {"tools", "Functions that the model may call.", FORM_RESPONSES, HAND(ARRAY, read_flat_tools),
     .schema = FLAT_TOOLS},
    {"parallel_tool_calls", "Whether one answer may have several calls.", CHATS | FORM_RESPONSES,
     BOOL(parallel_tool_calls)},
    {"tool_choice", "Whether the model may call a tool.", WITH_TOOLS, HAND(ANY, read_tool_choice),
     .schema = A_CHOICE},
    {"function_call", "An older form of tool_choice.", WITH_TOOLS, WITH(ANY, "tool_choice"),
     .schema = A_CHOICE},
    {"tool_choice", "Whether the model may call a tool.", FORM_RESPONSES,
     HAND(ANY, read_flat_choice), .schema = A_CHOICE},
    {"reasoning_effort", "How much the model is to think.", TALKS, CHOICE(effort, EFFORTS "|max")},
    {"enable_thinking", "Whether the model is to think, where its template asks.", TALKS,
     BOOL(thinks), FLAG(has_thinks)},
    {"think", "Ollama's name of enable_thinking.", TALKS & ~OLLAMA, BOOL(thinks), FLAG(has_thinks)},
    {"think", "Whether the model is to think, or how much.", OLLAMA, HAND(ANY, read_think),
     .schema = "'enum':[null,true,false,'low','medium','high']"},
    {"thinking", "The same as an object: its type is enabled or disabled.", CHATS | FORM_RESPONSES,
     HAND(OBJECT, read_thinking),
     .schema = "'properties':{'type':{'enum':['enabled','disabled']}}"},
    {"chat_template", "A template in place of the model's (--trust-request-chat-template).",
     CHATS | FORM_POOL_CHAT, HAND(STRING, read_chat_template), .schema = "'enum':[null]"},
    {"add_generation_prompt", "The template ends with the beginning of the answer.",
     CHATS | FORM_POOL_CHAT, BOOL(add_generation_prompt)},
    {"continue_final_message", "The answer continues the last message.", CHATS | FORM_POOL_CHAT,
     BOOL(continue_final_message), .check = check_continue},
    {"include_reasoning", "Whether the answer has what the model thought.", CHATS,
     BOOL(include_reasoning)},
    {"text", "The answer's format.", FORM_RESPONSES, HAND(OBJECT, read_text_format),
     .schema = "'properties':{'format':{'type':'object'," FORMAT "}}"},
    {"reasoning", "How much the model is to think: effort.", CHATS | FORM_RESPONSES,
     HAND(OBJECT, read_reasoning),
     .schema = "'properties':{'effort':{'enum':[null,'none','minimal','low',"
               "'medium','high','xhigh']}}"},
    {"documents", "What the template may quote.", TALKS, WITH(ANY, "chat_template_kwargs")},
    {"chat_template_kwargs", "Further variables of the template.", TALKS | FORM_POOL_CHAT,
     HAND(OBJECT, read_template_variables)},
    {"modalities", "Text alone.", CHATS, HAND(ARRAY, read_modalities),
     .schema = "'items':{'const':'text'}"},
    {"audio", "An answer that is spoken.", CHATS, REFUSED(ANY, "")},
    {"web_search_options", "A search before the answer.", CHATS, REFUSED(ANY, "")},
    {"echo", "The answer begins with the last message, if that is the assistant's.", WITH_TOOLS,
     BOOL(echo)},
    {"logprobs", "The log probability of each token of the answer.",
     CHATS | FORM_RESPONSES | OLLAMA, BOOL(logprobs)},
    {"top_logprobs", "And of this many others; only with logprobs.", CHATS | OLLAMA,
     INT_TO(n_top, 0, max_logprobs), .check = check_top_logprobs},
    {"truncation", "No input items are dropped.", FORM_RESPONSES, HAND(STRING, read_truncation),
     .schema = "'enum':[null,'disabled']"},
    {"include", "What else the answer has: message.output_text.logprobs.", FORM_RESPONSES,
     HAND(ARRAY, read_include), .schema = "'items':{'type':'string'}"},
    {"top_logprobs", "Of this many other tokens in each place.", FORM_RESPONSES,
     INT_TO(n_top, 0, max_logprobs)},
    {"max_tool_calls", "Counts tools that run here: there are none.", FORM_RESPONSES, IGNORED(INT),
     .min = 1, .max = INT64_MAX},

    /* ---- completions ---- */
    {"suffix", "The text after the answer, for models with fill-in-the-middle tokens.",
     FORM_COMPLETIONS | FORM_OLLAMA_GENERATE, HAND(STRING, read_suffix)},
    {"echo", "The answer begins with the prompt.", FORM_COMPLETIONS, BOOL(echo)},
    {"logprobs", "The log probability of each token, and of this many others.", FORM_COMPLETIONS,
     HAND(INT, read_completion_logprobs), .min = 0, MOST(max_logprobs)},

    /* ---- the answer's length: of several names, the endpoint's own counts ---- */
    {"n_predict", "llama.cpp's name of max_tokens; -1: as much as fits.", DRAWS,
     HAND(INT, read_n_predict), .min = -2, .max = INT32_MAX},
    {"num_predict", "Ollama's name of max_tokens; -1: as much as fits.", DRAWS,
     HAND(INT, read_num_predict), .min = -2, .max = INT32_MAX},
    {"max_new_tokens", "TGI's name of max_tokens.", DRAWS, LENGTH},
    {"max_output_tokens", "The Responses API's name of max_tokens.", CHATS | FORM_COMPLETIONS,
     LENGTH},
    {"max_tokens", "An older name of max_completion_tokens.", CHATS | FORM_RESPONSES, LENGTH},
    {"max_tokens", "The longest answer, in tokens; null: as much as fits; 0: only with echo.",
     FORM_COMPLETIONS, HAND(INT, read_completion_max), .min = 0, .max = INT32_MAX},
    {"max_tokens", "The longest answer, in tokens; it ends where the context does.", FORM_MESSAGES,
     LENGTH, .required = true},
    {"max_tokens", "Nothing is answered.", FORM_COUNT_TOKENS, IGNORED(INT), .min = 0,
     .max = INT32_MAX},
    {"max_completion_tokens", "The longest answer, in tokens.", CHATS | FORM_RESPONSES, LENGTH},
    {"max_output_tokens", "The longest answer, in tokens.", FORM_RESPONSES, LENGTH},

    {"prompt", "What is to be continued.", FORM_COMPLETIONS, HAND(PROMPTS, read_prompt),
     MOST(max_prompts), .required = true},

    /* ---- ids in, ids out ---- */
    {"token_ids", "The prompt.", FORM_TOKENS, HAND(IDS, read_token_ids), .required = true},
    {"logprobs", "The log probability of each token, and the likeliest at its place, one at least.",
     FORM_TOKENS, HAND(INT, read_completion_logprobs), .min = 0, MOST(max_logprobs)},
    {"max_tokens", "The longest answer, in tokens.", FORM_TOKENS, LENGTH},
    {"detokenize", "Answers are ids; false only without stop strings.", FORM_TOKENS,
     HAND(BOOL, read_detokenize)},
    {"features", "Images and sound.", FORM_TOKENS, REFUSED(ANY, nothing)},

    /* ---- a line of `sluice generate` ---- */
    {"logprobs", "true, or the log probabilities of this many others, too.", FORM_GENERATE,
     HAND(ANY, read_line_logprobs)},
    {"prompt_logprobs", "The same of the prompt's tokens.", FORM_GENERATE,
     HAND(ANY, read_line_prompt_logprobs)},
    {"max_tokens", "The longest answer, in tokens; 0: only scores.", FORM_GENERATE,
     INT(max_tokens, 0, INT32_MAX), FLAG(has_max_tokens)},
    {"bad_words", "Words, or arrays of ids, that do not appear in the answer.", FORM_GENERATE,
     HAND(ARRAY, read_line_bad_words)},
    {"prompt", "What is to be continued.", FORM_GENERATE, HAND(STRING, read_line_prompt)},
    {"prompt_token_ids", "The same as ids.", FORM_GENERATE, WITH(IDS, "prompt")},
    {"pool", "No answer, but a vector of the prompt: mean or last.", FORM_GENERATE,
     HAND(CHOICE, read_pool), .choices = "mean|last"},

    /* ---- embeddings ---- */
    {"encoding_format", "Numbers, or their bytes.", VECTORS, CHOICE(base64, "float|base64")},
    {"dimensions", "Only as many as the model has.", VECTORS, INT(dimensions, 1, INT32_MAX),
     .check = check_dimensions, .is_dimension = true},
    {"normalize", "Whether a vector has length 1.", VECTORS, BOOL(normalize)},
    {"use_activation", "vLLM's name of normalize.", VECTORS, HAND(BOOL, read_use_activation)},
    {"embd_normalize", "llama.cpp's norm: 2 is length 1, -1 is none.", VECTORS,
     HAND(INT, read_embd_normalize), .schema = "'enum':[null,-1,2]"},
    {"input", "What becomes vectors, one each.", FORM_EMBEDDINGS | FORM_POOLING,
     HAND(PROMPTS, read_input), .max = MAX_INPUTS, .mixes = true, .required = true},

    /* ---- llama.cpp's ---- */
    {"prompt", "What is to be continued: texts, ids, both mixed, or a list of such.", FORM_NATIVE,
     HAND(PROMPTS, read_native_prompt), MOST(max_prompts), .mixes = true, .required = true,
     .may_be_empty = true},
    {"input_prefix", "What is in front of the hole.", FORM_INFILL, WITH(STRING, "input_suffix"),
     .required = true},
    {"input_extra", "Files that are shown beside it.", FORM_INFILL, WITH(ARRAY, "input_suffix"),
     .schema = "'items':{'type':'object','required':['text'],'properties':{'text':{'type':'string'}"
               ",'filename':{'type':'string'}}}"},
    {"prompt", "What the answer begins with.", FORM_INFILL, WITH(STRING, "input_suffix")},
    {"input_suffix", "What is behind the hole.", FORM_INFILL, HAND(STRING, read_hole),
     .required = true},
    {"input", "What becomes vectors: texts, ids, both mixed, or a list of such.", FORM_NATIVE_EMBED,
     HAND(PROMPTS, read_mixed_input), .max = MAX_INPUTS, .mixes = true, .required = true},
    {"content", "Another name of input.", FORM_NATIVE_EMBED, WITH(ANY, "input")},
    {"embd_normalize", "llama.cpp's norm: 2 is length 1, -1 is none.", FORM_NATIVE_EMBED,
     HAND(INT, read_embd_normalize), .schema = "'enum':[null,-1,2]"},

    /* ---- Ollama's ---- */
    {"messages", "The conversation so far; without any the model is loaded.", FORM_OLLAMA_CHAT,
     HAND(ARRAY, read_ollama_messages), .schema = OLLAMA_MESSAGES},
    {"raw", "The prompt is a text to be continued, and no message.", FORM_OLLAMA_GENERATE,
     BOOL(raw)},
    {"system", "The system prompt.", FORM_OLLAMA_GENERATE, WITH(STRING, "prompt")},
    {"prompt", "What is answered; without one the model is loaded.", FORM_OLLAMA_GENERATE,
     HAND(STRING, read_generated_prompt)},
    {"template", "A template in place of the model's.", OLLAMA, REFUSED(ANY, empty)},
    {"context", "Tokens of an earlier answer.", FORM_OLLAMA_GENERATE, REFUSED(ANY, empty)},
    {"width", "Of an image.", FORM_OLLAMA_GENERATE, REFUSED(ANY, "0")},
    {"height", "Of an image.", FORM_OLLAMA_GENERATE, REFUSED(ANY, "0")},
    {"steps", "Of an image.", FORM_OLLAMA_GENERATE, REFUSED(ANY, "0")},
    {"truncate", "Whether an input that is too long is cut; else it is an error.",
     FORM_OLLAMA_EMBED, HAND(BOOL, read_truncates)},
    {"dimensions", "Only as many as the model has.", FORM_OLLAMA_EMBED,
     INT(dimensions, 1, INT32_MAX), .check = check_dimensions, .is_dimension = true},
    {"input", "What becomes vectors, one each.", FORM_OLLAMA_EMBED, HAND(PROMPTS, read_input),
     .max = MAX_INPUTS, .required = true},
    {"penalize_newline", "Whether penalties are for line ends, too.", OLLAMA, REFUSED(ANY, "true")},
    {"num_keep", "No context is shifted.", OLLAMA, IGNORED(ANY)},
    {"num_batch", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"num_gpu", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"main_gpu", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"num_thread", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"numa", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"use_mmap", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"use_mlock", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"low_vram", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"f16_kv", "It is a setting of the server.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"logits_all", "Nothing is returned of it.", OLLAMA | FORM_OLLAMA_EMBED, IGNORED(ANY)},

    /* ---- pairs of texts ---- */
    {"instruction", "What the pairs are judged by, where the model's form has a place for it.",
     PAIRS, WITH(STRING, "chat_template_kwargs")},
    {"chat_template_kwargs", "Variables of the form in which pairs are written.", PAIRS,
     HAND(OBJECT, read_instruction)},
    {"max_tokens_per_query", "A longer query is cut to this many tokens; 0: none is.", PAIRS,
     INT(max_query_tokens, 0, INT32_MAX)},
    {"max_tokens_per_doc", "A longer document is cut to this many tokens; 0: none is.", PAIRS,
     INT(max_doc_tokens, 0, INT32_MAX)},
    {"use_activation", "Whether a judged score is a probability from 0 to 1.", PAIRS,
     BOOL(activates)},
    {"top_n", "Only so many of the best documents; 0: all.", FORM_RERANK, INT(top_n, 0, INT32_MAX)},
    {"return_documents", "Whether the answer has the documents.", FORM_RERANK,
     BOOL(returns_documents)},
    {"return_text", "TEI's name of return_documents.", FORM_RERANK, BOOL(returns_documents)},
    {"query", "What the documents are ranked for.", FORM_RERANK, WITH(ANY, "documents"),
     .required = true, .schema = A_TEXT},
    {"texts", "TEI's name of documents; the answer is then a list.", FORM_RERANK,
     WITH(ANY, "documents"), .schema = TEXTS},
    {"documents", "What is ranked.", FORM_RERANK, HAND(ANY, read_documents), .required = true,
     .schema = TEXTS},
    {"text_1", "One text, or as many as text_2 has.", FORM_SCORE, HAND(ANY, read_score_texts),
     .required = true, .schema = TEXTS},
    {"text_2", "The texts that it is scored against.", FORM_SCORE, WITH(ANY, "text_1"),
     .required = true, .schema = TEXTS},
    {"queries", "Another name of text_1.", FORM_SCORE, WITH(ANY, "text_1"), .schema = TEXTS},
    {"documents", "Another name of text_2.", FORM_SCORE, WITH(ANY, "text_1"), .schema = TEXTS},
    {"items", "Another name of text_2.", FORM_SCORE, WITH(ANY, "text_1"), .schema = TEXTS},
    {"data_1", "Another name of text_1.", FORM_SCORE, WITH(ANY, "text_1"), .schema = TEXTS},
    {"data_2", "Another name of text_2.", FORM_SCORE, WITH(ANY, "text_1"), .schema = TEXTS},

    /* ---- classes, pooling, labels, Cohere's ---- */
    {"messages", "A conversation, in place of an input.", FORM_POOL_CHAT,
     HAND(ARRAY, read_messages), .required = true, .schema = CHAT_MESSAGES},
    {"input", "What is classified.", FORM_CLASSIFY, HAND(PROMPTS, read_input), .max = MAX_INPUTS,
     .mixes = true, .required = true},
    {"use_activation", "Whether what a judge says is a probability from 0 to 1.", FORM_CLASSIFY,
     HAND(BOOL, read_use_activation)},
    {"task", "What is pooled: embed, or classify of a model that judges.",
     FORM_POOLING | FORM_POOL_CHAT, HAND(STRING, read_task), .schema = "'enum':[null,'embed']"},
    {"query", "The text before each item.", FORM_LABELS, HAND(PROMPTS, read_label_query), .max = 1,
     .required = true},
    {"items", "Each is a prompt, together with the query.", FORM_LABELS,
     HAND(PROMPTS, read_label_items), .max = MAX_INPUTS, .required = true, .may_be_empty = true},
    {"label_token_ids", "Tokens of which is asked how likely they follow; the first one is scored.",
     FORM_LABELS, HAND(IDS, read_labels), .required = true,
     .schema = "'minItems':1,'maxItems':128"},
    {"apply_softmax", "Whether the score is the share among these tokens; else among all.",
     FORM_LABELS, BOOL(activates)},
    {"item_first", "The query stands behind each item.", FORM_LABELS, BOOL(item_first)},
    {"input_type", "Prompts for kinds of inputs: there are none.", FORM_COHERE_EMBED,
     HAND(STRING, read_input_type), .schema = "'enum':[null]"},
    {"embedding_types", "Which forms of the vectors are answered.", FORM_COHERE_EMBED,
     HAND(ARRAY, read_vector_types), .schema = "'items':{'enum':['float','base64']}"},
    {"truncate", "The end at which a text that is too long is cut, or NONE.", FORM_COHERE_EMBED,
     HAND(CHOICE, read_cohere_truncate), .choices = "NONE|END|START"},
    {"max_tokens", "A longer text is cut to this many tokens.", FORM_COHERE_EMBED,
     WITH(INT, "truncate"), .min = 1, .max = INT32_MAX},
    {"output_dimension", "Only as many as the model has.", FORM_COHERE_EMBED,
     INT(dimensions, 1, INT32_MAX), .check = check_dimensions, .is_dimension = true},
    {"images", "Images.", FORM_COHERE_EMBED, REFUSED(ANY, empty)},
    {"inputs", "Inputs of several parts.", FORM_COHERE_EMBED, REFUSED(ANY, empty),
     .why = "Use 'texts'."},
    {"texts", "What becomes vectors, one each.", FORM_COHERE_EMBED, HAND(ARRAY, read_embed_texts),
     .required = true,
     .schema = "'minItems':1,'maxItems':2048,'items':{'type':'string','minLength':1}"},

    /* ---- the tokenizer ---- */
    {"content", "llama.cpp's name of prompt.", FORM_TOKENIZE_TEXT, WITH(STRING, "prompt")},
    {"prompt", "What becomes tokens.", FORM_TOKENIZE_TEXT, HAND(PROMPTS, read_one_prompt), .max = 1,
     .may_be_empty = true},
    {"add_special", "llama.cpp's name of add_special_tokens.", TOKENIZE,
     HAND(BOOL, read_add_special)},
    {"with_pieces", "llama.cpp's name of return_token_strs.", TOKENIZE, BOOL(token_strs)},
    {"return_token_strs", "The tokens as texts, too.", TOKENIZE, BOOL(token_strs)},
    {"tokens", "What becomes text.", FORM_DETOKENIZE, HAND(IDS, read_tokens), .required = true,
     .may_be_empty = true},

    /* ---- what other servers take: constraints ---- */
    {"grammar", "llama.cpp's constraint: GBNF.", DRAWS, HAND(STRING, read_grammar)},
    {"json_schema", "llama.cpp's and SGLang's constraint.", DRAWS, HAND(ANY, read_json_schema)},
    {"regex", "SGLang's constraint.", DRAWS, HAND(STRING, read_regex)},
    {"ebnf", "SGLang's constraint: GBNF.", DRAWS, HAND(STRING, read_ebnf)},
    {"structural_tag", "SGLang's constraint: xgrammar's structural tags.", DRAWS,
     HAND(ANY, read_structural_tag)},
    {"format", "Ollama's constraint: \\\"json\\\", or a JSON schema.", DRAWS,
     HAND(ANY, read_ollama_format),
     .schema = "'anyOf':[{'type':'object'},{'enum':[null,'','json']}]"},
    {"output_format", "An older place of output_config.format.", DRAWS,
     HAND(OBJECT, read_output_format)},
    {"guided_decoding_backend", "It says how a constraint is kept.", DRAWS, IGNORED(ANY)},
    {"guided_whitespace_pattern", "What may stand between the tokens of guided_json.", DRAWS,
     HAND(STRING, read_guided_space)},

    /* ---- adapters ---- */
    {"lora", "llama.cpp's adapters.", DRAWS, REFUSED(ANY, empty)},
    {"lora_path", "SGLang's adapter.", DRAWS, REFUSED(ANY, empty)},
    {"lora_request", "vLLM's adapter.", DRAWS, REFUSED(ANY, empty)},
    {"adapter_id", "TGI's adapter.", DRAWS, REFUSED(ANY, empty)},

    /* ---- samplers ---- */
    {"repeat_last_n", "How far back penalties look; only -1, or where there are none.", DRAWS,
     HAND(INT, read_repeat_window), .min = -1, .max = INT32_MAX},
    {"typical_p", "Locally typical sampling; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"tfs_z", "Tail-free sampling; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"tfs", "Tail-free sampling; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"top_a", "Top-A sampling; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"top_n_sigma", "Top-n-sigma sampling; -1: off.", DRAWS, REFUSED(ANY, "-1|0")},
    {"xtc_probability", "Exclusion of top choices; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"dynatemp_range", "A temperature that varies; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"mirostat", "Mirostat; 0: off.", DRAWS, REFUSED(ANY, "0|false")},
    {"mirostat_mode", "Mirostat; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"dry_multiplier", "A penalty of repetition; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"no_repeat_ngram_size", "A ban of repetition; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"encoder_repetition_penalty", "A penalty of the prompt; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"eta_cutoff", "Eta sampling; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"epsilon_cutoff", "Epsilon sampling; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"smoothing_factor", "Quadratic sampling; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"penalty_alpha", "Contrastive search; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"guidance_scale", "Guidance by a second prompt; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"negative_prompt", "Guidance by a second prompt.", DRAWS, REFUSED(ANY, empty)},
    {"num_beams", "Beam search; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"length_penalty", "Beam search; 1: off.", DRAWS, REFUSED(ANY, "1")},
    {"early_stopping", "Beam search.", DRAWS, REFUSED(ANY, "false")},
    {"do_sample", "False would be temperature 0.", DRAWS, REFUSED(ANY, "true")},
    {"samplers", "The order of samplers.", DRAWS, REFUSED(ANY, empty)},
    {"min_keep", "Tokens that samplers leave; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"penalize_nl", "Whether penalties are for line ends, too; false only where there are none.",
     DRAWS, HAND(BOOL, read_penalize_nl)},
    {"adaptive_target", "A target of probability; -1: off.", DRAWS, REFUSED(ANY, "-1")},
    {"custom_logit_processor", "Code for the sampler.", DRAWS, REFUSED(ANY, empty)},
    {"custom_params", "Parameters of such code.", DRAWS, REFUSED(ANY, empty)},
    {"vllm_xargs", "Parameters of such code.", DRAWS, REFUSED(ANY, empty)},
    {"safe_prompt", "A system message of the server's own.", DRAWS, REFUSED(ANY, "false")},
    {"mirostat_tau", "Nothing without mirostat.", DRAWS, IGNORED(ANY)},
    {"mirostat_eta", "Nothing without mirostat.", DRAWS, IGNORED(ANY)},
    {"xtc_threshold", "Nothing without xtc_probability.", DRAWS, IGNORED(ANY)},
    {"dynatemp_exponent", "Nothing without dynatemp_range.", DRAWS, IGNORED(ANY)},
    {"dry_base", "Nothing without dry_multiplier.", DRAWS, IGNORED(ANY)},
    {"dry_allowed_length", "Nothing without dry_multiplier.", DRAWS, IGNORED(ANY)},
    {"dry_penalty_last_n", "Nothing without dry_multiplier.", DRAWS, IGNORED(ANY)},
    {"dry_sequence_breakers", "Nothing without dry_multiplier.", DRAWS, IGNORED(ANY)},
    {"adaptive_decay", "Nothing without adaptive_target.", DRAWS, IGNORED(ANY)},
    {"smoothing_curve", "Nothing without smoothing_factor.", DRAWS, IGNORED(ANY)},

    /* ---- ends and lengths ---- */
    {"stop_sequences", "Anthropic's name of stop.", DRAWS & ~MESSAGES, REFUSED(ANY, empty),
     .why = "Use 'stop'."},
    {"stop_regex", "SGLang's stop by pattern.", DRAWS, REFUSED(ANY, empty)},
    {"n_indent", "An end by indentation; 0: off.", DRAWS, REFUSED(ANY, "0")},
    {"t_max_predict_ms", "An end by time.", DRAWS, REFUSED(ANY, "0|-1"), .why = "Use 'timeout'."},
    {"truncate", "TGI's name of truncate_prompt_tokens.", DRAWS, REFUSED(ANY, "false"),
     .why = "Use 'truncate_prompt_tokens'."},

    /* ---- reasoning ---- */
    {"thinking_token_budget", "A bound of the reasoning; -1: none.", DRAWS, REFUSED(ANY, "-1")},
    {"thinking_budget", "A bound of the reasoning; -1: none.", DRAWS, REFUSED(ANY, "-1")},
    {"thinking_budget_tokens", "A bound of the reasoning; -1: none.", DRAWS, REFUSED(ANY, "-1")},
    {"reasoning_budget", "A bound of the reasoning; -1: none.", DRAWS, REFUSED(ANY, "-1")},
    {"separate_reasoning", "Reasoning is apart from the text.", DRAWS, REFUSED(ANY, "true")},
    {"stream_reasoning", "Reasoning is streamed as it comes.", DRAWS, REFUSED(ANY, "true")},
    {"reasoning_format", "Reasoning is apart from the text.", DRAWS,
     REFUSED(ANY, "\"auto\"|\"deepseek\"")},

    /* ---- the answer's form ---- */
    {"logprob_token_ids", "Log probabilities of chosen tokens.", DRAWS, REFUSED(ANY, nothing)},
    {"n_probs", "The log probability of each token, and of this many others.", NATIVE,
     HAND(INT, read_n_probs), .min = 0, MOST(max_logprobs)},
    {"n_probs", "llama.cpp's log probabilities.", DRAWS & ~NATIVE, REFUSED(ANY, "0"),
     .why = "Use 'logprobs'."},
    {"post_sampling_probs", "Probabilities behind the samplers.", DRAWS, REFUSED(ANY, "false")},
    {"top_n_tokens", "TGI's log probabilities.", DRAWS, REFUSED(ANY, "0"),
     .why = "Use 'logprobs'."},
    {"return_logprob", "SGLang's log probabilities.", DRAWS, REFUSED(ANY, "false"),
     .why = "Use 'logprobs'."},
    {"flat_logprobs", "Another form of log probabilities.", DRAWS, REFUSED(ANY, "false")},
    {"return_hidden_states", "Hidden states.", DRAWS, REFUSED(ANY, "false")},
    {"return_tokens", "The ids of the answer's tokens.", NATIVE, BOOL(native_tokens)},
    {"return_tokens", "llama.cpp's token ids.", DRAWS & ~NATIVE, REFUSED(ANY, "false"),
     .why = "Use 'return_token_ids'."},
    {"return_full_text", "TGI's name of echo.", DRAWS, REFUSED(ANY, "false"), .why = "Use 'echo'."},
    {"return_prompt_text", "The prompt as a text.", DRAWS, REFUSED(ANY, "false")},
    {"details", "TGI's details.", DRAWS, REFUSED(ANY, "false")},
    {"response_fields", "Only these members of the answer; a/b is one within another.", NATIVE,
     HAND(ARRAY, read_response_fields), .schema = "'items':{'type':'string'}"},
    {"response_fields", "A choice of the answer's members.", DRAWS & ~NATIVE,
     REFUSED(ANY, nothing)},
    {"enable_response_messages", "vLLM's messages of a response.", DRAWS, REFUSED(ANY, "false")},
    {"previous_input_messages", "vLLM's messages of a response.", DRAWS, REFUSED(ANY, nothing)},
    {"parse_tool_calls", "Tool calls are found in the text.", DRAWS, REFUSED(ANY, "true")},

    /* ---- inputs ---- */
    {"ec_transfer_params", "Inputs computed elsewhere.", DRAWS, REFUSED(ANY, empty)},
    {"bootstrap_host", "A prompt computed elsewhere.", DRAWS, REFUSED(ANY, empty)},
    {"input_embeds", "A prompt of hidden states.", DRAWS, REFUSED(ANY, empty)},
    {"images", "Images.", DRAWS, REFUSED(ANY, empty)},
    {"image_data", "Images.", DRAWS, REFUSED(ANY, empty)},
    {"video_data", "Videos.", DRAWS, REFUSED(ANY, empty)},
    {"audio_data", "Sound.", DRAWS, REFUSED(ANY, empty)},
    {"mm_processor_kwargs", "Nothing without images.", DRAWS, IGNORED(ANY)},
    {"media_io_kwargs", "Nothing without images.", DRAWS, IGNORED(ANY)},

    /* ---- objects whose members belong at the top level ---- */
    {"options", "Parameters that are read like members of the body.", OLLAMA | FORM_OLLAMA_EMBED,
     IGNORED(OBJECT)},
    {"options", "Ollama's parameters.", DRAWS & ~OLLAMA, REFUSED(ANY, empty),
     .why = "Its members belong at the top level."},
    {"parameters", "TGI's parameters.", DRAWS, REFUSED(ANY, empty),
     .why = "Its members belong at the top level."},
    {"sampling_params", "Parameters that are read like members of the body.", FORM_TOKENS,
     IGNORED(OBJECT)},
    {"sampling_params", "SGLang's parameters.", DRAWS & ~FORM_TOKENS, REFUSED(ANY, empty),
     .why = "Its members belong at the top level."},
    {"generation_config", "Parameters in a form of their own.", DRAWS, REFUSED(ANY, empty),
     .why = "Its members belong at the top level."},
    {"extra_body", "What a client library would have unpacked.", DRAWS, REFUSED(ANY, empty),
     .why = "Its members belong at the top level."},

    /* ---- what only costs or saves time, or names the request ---- */
    {"cache_prompt", "The cache is for all prompts.", DRAWS, IGNORED(ANY)},
    {"id_slot", "There are no slots.", DRAWS, IGNORED(ANY)},
    {"n_keep", "No context is shifted.", DRAWS, IGNORED(ANY)},
    {"n_discard", "No context is shifted.", DRAWS, IGNORED(ANY)},
    {"num_ctx", "The context is as the server has it.", DRAWS | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"keep_alive", "The model stays loaded.", DRAWS | FORM_OLLAMA_EMBED, IGNORED(ANY)},
    {"data_parallel_rank", "There is one rank.", DRAWS, IGNORED(ANY)},
    {"timings_per_token", "How long prompt and answer took so far is in each event.",
     NATIVE | FORM_CHAT | FORM_COMPLETIONS | FORM_RESPONSES, BOOL(timings)},
    {"timings_per_token", "Times are in the metrics.",
     DRAWS & ~(NATIVE | FORM_CHAT | FORM_COMPLETIONS | FORM_RESPONSES), IGNORED(ANY)},
    {"return_progress", "How much of the prompt is computed is told as it is.",
     NATIVE | FORM_CHAT | FORM_COMPLETIONS | FORM_RESPONSES, BOOL(tells_prompt)},
    {"return_progress", "There is no news of a prompt.",
     DRAWS & ~(NATIVE | FORM_CHAT | FORM_COMPLETIONS | FORM_RESPONSES), IGNORED(ANY)},
    {"verbose", "llama.cpp's own answer is in it, too, with the prompt: __verbose.",
     FORM_CHAT | FORM_COMPLETIONS, BOOL(verbose)},
    {"verbose", "Answers have no further details.", DRAWS & ~(FORM_CHAT | FORM_COMPLETIONS),
     IGNORED(ANY)},
    {"sse_ping_interval", "It is a setting of the server.", DRAWS, IGNORED(ANY)},
    {"stream_interval", "Events come as tokens do.", DRAWS, IGNORED(ANY)},
    {"rid", "The answer's id is x-request-id or request_id.", DRAWS, IGNORED(ANY)},

    /* ---- members of other endpoints that would change the answer ---- */
    {"system", "Of messages.", DRAWS & ~(MESSAGES | FORM_OLLAMA_GENERATE), REFUSED(ANY, empty),
     .why = "Use a message of role 'system'."},
    {"output_config", "Of messages.", DRAWS & ~MESSAGES, REFUSED(ANY, empty)},
    {"mcp_servers", "Tools that run here: there are none.", DRAWS, REFUSED(ANY, empty)},
    {"stop", "Chat's.", MESSAGES, REFUSED(ANY, empty), .why = "Use 'stop_sequences'."},
    {"logprobs", "Chat's.", MESSAGES | NATIVE, REFUSED(ANY, "false|0")},
    {"prompt_logprobs", "Chat's.", MESSAGES, REFUSED(ANY, "false|0")},
    {"top_logprobs", "Chat's.", FORM_COMPLETIONS, REFUSED(ANY, "0|false"),
     .why = "Use 'logprobs'."},
    {"top_logprobs", "Chat's.", MESSAGES, REFUSED(ANY, "0|false")},
    {"tools", "Chat's.", FORM_COMPLETIONS | FORM_CHAT_BATCH, REFUSED(ANY, nothing)},
    {"functions", "Chat's.", FORM_COMPLETIONS | FORM_CHAT_BATCH | FORM_RESPONSES | MESSAGES,
     REFUSED(ANY, nothing)},
    {"tool_choice", "Chat's.", FORM_CHAT_BATCH, REFUSED(ANY, "\"none\"|\"auto\"")},
    {"function_call", "Chat's.", FORM_CHAT_BATCH, REFUSED(ANY, "\"none\"|\"auto\"")},
    {"stream", "Several conversations are answered as a whole.", FORM_CHAT_BATCH,
     REFUSED(ANY, "false")},
    {"echo", "Chat's.", FORM_CHAT_BATCH, REFUSED(ANY, "false")},
    {"echo", "Completions'.", TALKS & ~CHATS, REFUSED(ANY, "false")},
    {"suffix", "Completions'.", TALKS & ~FORM_OLLAMA_GENERATE, REFUSED(ANY, empty)},
    {"instructions", "Of responses.", FORM_CHAT | FORM_COMPLETIONS | MESSAGES, REFUSED(ANY, empty)},
    {"previous_response_id", "Of responses.", FORM_CHAT | FORM_COMPLETIONS | MESSAGES,
     REFUSED(ANY, empty)},
    {"conversation", "Of responses.", FORM_CHAT | FORM_COMPLETIONS | MESSAGES, REFUSED(ANY, empty)},
    {"background", "Of responses.", FORM_CHAT | FORM_COMPLETIONS | MESSAGES, REFUSED(ANY, empty)},
};
const size_t n_members = sizeof members / sizeof members[0];

const struct member *member_find(const char *key, unsigned form)
{
    for (size_t i = 0; i < n_members; i++) {
        if ((members[i].forms & form) && strcmp(members[i].key, key) == 0) {
            return &members[i];
        }
    }
    return NULL;
}

int64_t member_max(const struct member *m, const struct config *config)
{
    int64_t most = m->max;
    if (m->most > 0) {
        memcpy(&most, (const char *)config + m->most, sizeof most);
    }
    return most;
}
