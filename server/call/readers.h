// SPDX-License-Identifier: Apache-2.0
/* What the rows of members.c call: readers of members that are no plain values, and checks of
 * values that were kept. Each gives false when r->error is set. And how a request of each endpoint
 * begins before its members are read, and is completed behind them.
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_READERS_H
#define SLUICE_SERVER_CALL_READERS_H

#include "server/call/request.h"

/* ---- what all endpoints share (request.c) -----------------------------------------------------
 */

void request_begin(struct api_request *r);
void request_end(struct api_request *r);

bool read_model(struct api_request *r);
bool check_top_k(struct api_request *r);
bool read_stop(struct api_request *r);
bool read_stop_sequences(struct api_request *r);
bool read_stop_ids(struct api_request *r);
bool read_bias(struct api_request *r);
bool check_best_of(struct api_request *r);
bool check_prompt_logprobs(struct api_request *r);
bool read_allowed(struct api_request *r);
bool read_repeat_window(struct api_request *r);
bool read_penalize_nl(struct api_request *r);
bool read_n_predict(struct api_request *r);
bool read_num_predict(struct api_request *r);
bool read_stream_options(struct api_request *r);
bool check_salt(struct api_request *r);
bool check_request_id(struct api_request *r);
bool read_bad_words(struct api_request *r);

/* ---- constraints (request_constraint.c) -------------------------------------------------------
 */

bool read_response_format(struct api_request *r);
bool read_text_format(struct api_request *r);
bool read_structured_outputs(struct api_request *r);
bool read_guided_json(struct api_request *r);
bool read_guided_space(struct api_request *r);
bool read_guided_regex(struct api_request *r);
bool read_guided_choice(struct api_request *r);
bool read_guided_grammar(struct api_request *r);
bool read_grammar(struct api_request *r);
bool read_json_schema(struct api_request *r);
bool read_regex(struct api_request *r);
bool read_ebnf(struct api_request *r);
bool read_structural_tag(struct api_request *r);
bool read_ollama_format(struct api_request *r);
bool read_output_format(struct api_request *r);
/* {"type": "json_schema", "schema"} at `path` of the member. */
bool request_read_output_format(struct api_request *r, const char *key, const char *path,
                                const struct json *format);

/* Behind all members and the prompt (request_turn.c): takes the grammar of what the output has to
 * be, if it has to be anything. */
bool request_constrain(struct api_request *r);

/* ---- chat (request_chat.c) --------------------------------------------------------------------
 */

void chat_begin(struct api_request *r);
bool chat_end(struct api_request *r);
/* One word: it may become part of the template's own. */
bool chat_is_role(const char *role);
/* Whether the rendered text has each role that is the client's own word; of a template that failed
 * there is none. */
bool chat_check_roles(struct api_request *r, const char *text, size_t n_bytes);

bool read_messages(struct api_request *r);
bool read_chat_template(struct api_request *r);
bool check_continue(struct api_request *r);
bool read_reasoning(struct api_request *r);
bool read_thinking(struct api_request *r);
bool read_template_variables(struct api_request *r);
bool read_modalities(struct api_request *r);
bool check_top_logprobs(struct api_request *r);

/* ---- tools (request_tools.c) ------------------------------------------------------------------
 */

bool read_tools(struct api_request *r); // of a chat; then of responses, of messages
bool read_flat_tools(struct api_request *r);
bool read_schema_tools(struct api_request *r);
bool read_tool_choice(struct api_request *r);
bool read_flat_choice(struct api_request *r);
bool read_typed_choice(struct api_request *r);

/* ---- completions, embeddings, tokenize, detokenize (request_completion.c) ---------------------
 */

void completion_begin(struct api_request *r);
bool completion_end(struct api_request *r);
void embeddings_begin(struct api_request *r);
bool embeddings_end(struct api_request *r);
void tokenize_begin(struct api_request *r);
bool tokenize_end(struct api_request *r);
bool detokenize_end(struct api_request *r);

bool read_completion_logprobs(struct api_request *r);
bool read_completion_max(struct api_request *r);
bool read_prompt(struct api_request *r);
bool check_dimensions(struct api_request *r);
bool read_embd_normalize(struct api_request *r);
bool read_input(struct api_request *r);
bool read_one_prompt(struct api_request *r);
bool read_add_special(struct api_request *r);
bool read_tokens(struct api_request *r);

/* A text behind the answer (request_fim.c): the prompts become those of a hole. */
bool read_suffix(struct api_request *r);
bool request_fill_hole(struct api_request *r);

/* Prompts of "prompt", "input" or "tokens": a string, strings, ids, lists of ids. */
bool request_read_prompts(struct api_request *r, const char *key, size_t max_prompts);

/* ---- llama.cpp's (request_native.c) -------------------------------------------------------------
 */

void native_begin(struct api_request *r);
void native_embed_begin(struct api_request *r);
void apply_begin(struct api_request *r);
bool native_end(struct api_request *r);
bool infill_end(struct api_request *r);

bool read_native_prompt(struct api_request *r);
bool read_mixed_input(struct api_request *r);
bool read_n_probs(struct api_request *r);
bool read_response_fields(struct api_request *r);
bool read_hole(struct api_request *r);

/* Prompts that may mix texts, ids and objects of text. bare_list: there is a list of them. */
bool request_read_mixed(struct api_request *r, const char *key, size_t most);

/* ---- Ollama's (request_ollama.c) ---------------------------------------------------------------
 */

void ollama_chat_begin(struct api_request *r);
void ollama_generate_begin(struct api_request *r);
void ollama_embed_begin(struct api_request *r);
bool ollama_end(struct api_request *r);
bool ollama_load_end(struct api_request *r);

bool read_ollama_messages(struct api_request *r);
bool read_ollama_tools(struct api_request *r);
bool read_generated_prompt(struct api_request *r);
bool read_think(struct api_request *r);
bool read_truncates(struct api_request *r);

/* ---- score and rerank (request_score.c) ---------------------------------------------------------
 */

void score_begin(struct api_request *r);
bool score_end(struct api_request *r);

bool read_documents(struct api_request *r);
bool read_score_texts(struct api_request *r);
bool read_instruction(struct api_request *r);

/* ---- a line of `sluice generate` (request_generate.c) -----------------------------------------
 */

void generate_begin(struct api_request *r);
bool generate_end(struct api_request *r);

bool read_line_logprobs(struct api_request *r);
bool read_line_prompt_logprobs(struct api_request *r);
bool read_line_bad_words(struct api_request *r);
bool read_line_prompt(struct api_request *r);
bool read_pool(struct api_request *r);

/* ---- messages (request_messages.c) ------------------------------------------------------------
 */

void messages_begin(struct api_request *r);
bool messages_end(struct api_request *r);

bool read_turns(struct api_request *r);
bool read_typed_thinking(struct api_request *r);
bool read_output_config(struct api_request *r);
bool read_metadata(struct api_request *r);

/* ---- responses (request_responses.c) ----------------------------------------------------------
 */

void responses_begin(struct api_request *r);
bool responses_end(struct api_request *r);

bool read_previous(struct api_request *r);     // request_history.c, with what is kept of the input
bool read_conversation(struct api_request *r); // likewise
bool read_items(struct api_request *r);
bool read_truncation(struct api_request *r);
bool read_include(struct api_request *r);

#endif
