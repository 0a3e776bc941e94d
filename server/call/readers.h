// SPDX-License-Identifier: Apache-2.0
/* The functions that rows of members_*.c refer to: readers of members that are not plain values,
 * and checks of stored values. Each returns false if it has set r->error. Also the functions of
 * each endpoint that set a request's defaults before its members are read (*_begin), and complete
 * it afterwards (*_end).
 * Thread: the request's owner. */
#ifndef SLUICE_SERVER_CALL_READERS_H
#define SLUICE_SERVER_CALL_READERS_H

#include "server/call/request.h"

/* ---- shared by all endpoints (request.c) -----------------------------------------------------
 */

void request_begin(struct request *r);
void request_end(struct request *r);

bool read_model(struct request *r);
bool check_top_k(struct request *r);
bool check_seed(struct request *r);
bool read_stop(struct request *r);
bool read_stop_sequences(struct request *r);
bool read_stop_ids(struct request *r);
bool read_bias(struct request *r);
bool request_ban_ends(struct request *r);
bool check_best_of(struct request *r);
bool check_prompt_logprobs(struct request *r);
bool request_read_share(struct request *r, const char *key, int64_t *v);
bool read_logprob_ids(struct request *r);
bool read_allowed(struct request *r);
bool read_repeat_window(struct request *r);
bool request_check_window(struct request *r, const struct request_prompt *p);
bool read_penalize_nl(struct request *r);
bool read_n_predict(struct request *r);
bool read_native_predict(struct request *r);
bool read_native_max(struct request *r);
bool read_max_tokens(struct request *r);
bool read_num_predict(struct request *r);
bool read_stream_options(struct request *r);
bool check_salt(struct request *r);
bool check_request_id(struct request *r);
bool read_kv_hints(struct request *r); // request_hints.c
bool read_bad_words(struct request *r);

/* ---- the length of reasoning (request_thinking.c) ---------------------------------------------
 */

bool read_thinking_token_budget(struct request *r);
bool read_thinking_budget(struct request *r);
bool read_thinking_budget_tokens(struct request *r);
bool read_reasoning_budget(struct request *r);
bool read_reasoning_budget_message(struct request *r);
/* The member budget_tokens of an object; it may be missing. */
bool read_budget_tokens(struct request *r, const struct json *thinking);
bool request_limit_thinking(struct request *r); // once the prompts are known

/* ---- constraints (request_constraint.c) -------------------------------------------------------
 */

bool read_response_format(struct request *r);
bool read_text_format(struct request *r);
bool read_structured_outputs(struct request *r);
bool read_guided_json(struct request *r);
bool read_guided_space(struct request *r);
bool read_guided_regex(struct request *r);
bool read_guided_choice(struct request *r);
bool read_guided_grammar(struct request *r);
bool read_grammar(struct request *r);
bool read_json_schema(struct request *r);
bool read_regex(struct request *r);
bool read_ebnf(struct request *r);
bool read_structural_tag(struct request *r);
bool read_ollama_format(struct request *r);
bool read_output_format(struct request *r);
/* Reads {"type": "json_schema", "schema"} at `path` of the member. */
bool request_read_output_format(struct request *r, const char *key, const char *path,
                                const struct json *format);

/* Called after all members and the prompt (request_turn.c): compiles the grammar of the output, if
 * the output is constrained. */
bool request_constrain(struct request *r);

/* ---- chat (request_chat.c) --------------------------------------------------------------------
 */

void chat_begin(struct request *r);
bool chat_end(struct request *r);
/* True if the role is a single word of letters, digits, '_' and '-': a template may write it inside
 * its control tokens. */
bool chat_is_role(const char *role);
/* Checks that the rendered text contains every role that is not one of the usual six; a template
 * may skip messages whose role it does not know. */
bool chat_check_roles(struct request *r, const struct json *messages, const char *text,
                      size_t n_bytes);

bool read_messages(struct request *r);
bool read_chats(struct request *r);
bool read_chat_template(struct request *r);
bool check_continue(struct request *r);
bool read_reasoning(struct request *r);
bool read_thinking(struct request *r);
bool read_template_variables(struct request *r);
bool read_modalities(struct request *r);
bool check_top_logprobs(struct request *r);

/* ---- tools (request_tools.c) ------------------------------------------------------------------
 */

bool read_tools(struct request *r); // of chats; the next two: of responses, of messages
bool read_flat_tools(struct request *r);
bool read_schema_tools(struct request *r);
bool read_tool_choice(struct request *r);
bool read_flat_choice(struct request *r);
bool read_typed_choice(struct request *r);

/* ---- completions, embeddings, tokenize, detokenize (request_completion.c) ---------------------
 */

void completion_begin(struct request *r);
bool completion_end(struct request *r);
void embeddings_begin(struct request *r);
bool embeddings_end(struct request *r);
void tokenize_begin(struct request *r);
bool tokenize_end(struct request *r);
bool detokenize_end(struct request *r);

bool read_completion_logprobs(struct request *r);
bool read_completion_max(struct request *r);
bool read_prompt(struct request *r);
bool check_dimensions(struct request *r);
bool read_embd_normalize(struct request *r);
bool read_one_prompt(struct request *r);
bool read_add_special(struct request *r);
bool read_tokens(struct request *r);

/* ---- classes, pooling, Cohere's (request_pooling.c), labels (request_labels.c) ------------------
 */

void vectors_begin(struct request *r); // for /v1/embeddings, where messages can be the prompt
void classify_begin(struct request *r);
bool classify_end(struct request *r);
void pooling_begin(struct request *r);
bool pooling_end(struct request *r);
void cohere_begin(struct request *r);
void labels_begin(struct request *r);
bool labels_end(struct request *r);

bool read_task(struct request *r);
bool read_embed_texts(struct request *r);
bool read_input_type(struct request *r);
bool read_vector_types(struct request *r);
/* request_pairs.c: appends the ids of a prompt of two texts. */
bool request_encode_pair(struct request *r, struct request_prompt *p);
bool read_cohere_truncate(struct request *r);
bool read_use_activation(struct request *r);
bool read_label_query(struct request *r);
bool read_label_items(struct request *r);
bool read_labels(struct request *r);

/* Requests the log probability of each of these tokens after each prompt; no text is generated
 * (request_score.c). */
void request_ask_each(struct request *r, const int32_t *answers, int32_t n);

/* Endpoints with ids in and ids out (request_tokens.c). */
void render_chat_begin(struct request *r);
void render_begin(struct request *r);
void tokens_begin(struct request *r);
bool tokens_end(struct request *r);
/* Long inputs of embeddings (request_chunks.c). `key`: the member that has them. */
int64_t request_input_limit(const struct request *r);
bool request_split_inputs(struct request *r, const char *key);
/* Finds the offsets of the tokens in the prompts' texts, if they are asked for
 * (request_offsets.c). */
bool request_find_offsets(struct request *r);

/* Namespaces of tools (request_namespaces.c). Replaces the list and its text if some tools are in
 * namespaces. flat_name: NULL if there is no memory. */
bool request_flatten_tools(struct request *r, const struct json **list, const char **text,
                           size_t *n_bytes);
const char *request_flat_name(struct request *r, const char *space, const char *name);

/* Decides whether the last message is continued (request_continue.c). */
bool request_continue_as_llama(struct request *r);

/* Rewrites the body of Cohere's chat as that of a chat (request_cohere_chat.c). */
void cohere_chat_begin(struct request *r);

/* /v1/systemone and /v1/decisions (request_decisions.c, request_decision_prompts.c) */
void decisions_begin(struct request *r);
bool decisions_end(struct request *r);
bool read_decision_state(struct request *r);
bool read_decision_input(struct request *r);
bool read_decision_instructions(struct request *r);
bool read_questions(struct request *r);
bool request_find_labels(struct request *r); // the ids of the labels, once the prompts are known

/* /derender (request_derender.c) */
bool read_generate_response(struct request *r);
bool read_generate_responses(struct request *r);
bool read_prompt_count(struct request *r);
bool read_prompt_counts(struct request *r);
bool read_chat_request(struct request *r);
bool read_generate_chunk(struct request *r);
bool read_prompt_id_list(struct request *r);
bool read_completion_request(struct request *r);
bool derender_end(struct request *r);
bool derender_chat_end(struct request *r);

bool read_token_ids(struct request *r);
void render_response_begin(struct request *r);
void render_message_begin(struct request *r);
bool read_parse_context(struct request *r);
bool read_scored_ids(struct request *r);
bool request_check_scores(struct request *r);
bool read_transfer(struct request *r);
bool request_use_given(struct request *r);          // the prompt is `given_prompt`
bool request_names_parser(const struct request *r); // rather than by the template
void request_hide_reasoning(struct request *r);
bool read_detokenize(struct request *r);

/* Reads `suffix`, the text that follows the answer (request_fim.c): prompts become
 * fill-in-the-middle prompts. */
bool read_suffix(struct request *r);
bool request_fill_hole(struct request *r);

/* Reads the prompts in "prompt", "input" or "tokens": a string, strings, ids, or lists of ids. */
bool request_read_prompts(struct request *r, const char *key, size_t max_prompts);
bool request_refuse_empty(struct request *r, const char *key); // sets an error if one of the
                                                               // prompts is empty

/* ---- llama.cpp's (request_native.c) -------------------------------------------------------------
 */

void native_begin(struct request *r);
void native_embed_begin(struct request *r);
void apply_begin(struct request *r);
bool native_end(struct request *r);
bool infill_end(struct request *r);

bool read_native_prompt(struct request *r);
bool read_mixed_input(struct request *r);
bool read_input(struct request *r); // reads the input of embeddings
bool read_n_probs(struct request *r);
bool read_response_fields(struct request *r);
bool read_hole(struct request *r);

/* Reads prompts that may mix texts, ids and objects with a text. r->bare_list: they were given as a
 * list. */
bool request_read_mixed(struct request *r, const char *key, size_t most);

/* ---- Ollama's (request_ollama.c) ---------------------------------------------------------------
 */

void ollama_chat_begin(struct request *r);
void ollama_generate_begin(struct request *r);
void ollama_embed_begin(struct request *r);
void ollama_old_embed_begin(struct request *r);
bool ollama_end(struct request *r);
bool ollama_load_end(struct request *r);

bool read_ollama_messages(struct request *r);
bool read_generated_prompt(struct request *r);
bool read_think(struct request *r);
bool read_truncates(struct request *r);

/* ---- score and rerank (request_score.c) ---------------------------------------------------------
 */

void score_begin(struct request *r);
bool score_end(struct request *r);

bool read_documents(struct request *r);
bool read_score_texts(struct request *r);
bool read_instruction(struct request *r);

/* ---- a line of `sluice generate` (request_generate.c) -----------------------------------------
 */

void generate_begin(struct request *r);
bool generate_end(struct request *r);

bool read_line_logprobs(struct request *r);
bool read_line_prompt_logprobs(struct request *r);
bool read_line_bad_words(struct request *r);
bool read_line_prompt(struct request *r);
bool read_pool(struct request *r);

/* ---- messages (request_messages.c) ------------------------------------------------------------
 */

void messages_begin(struct request *r);
bool messages_end(struct request *r);

bool read_turns(struct request *r);
bool read_typed_thinking(struct request *r);
bool read_output_config(struct request *r);
bool read_metadata(struct request *r);
bool read_thread(struct request *r);

/* ---- responses (request_responses.c) ----------------------------------------------------------
 */

void responses_begin(struct request *r);
bool responses_end(struct request *r);

/* For /v1/responses/compact; the conversation ends with the request for a summary. */
void compact_begin(struct request *r);
bool compact_end(struct request *r);
#define COMPACT_QUESTION                                                                           \
    "Summarise this conversation, so that it can be continued without its earlier messages: what " \
    "the user wants, what was decided and done, facts, names and figures that are still needed, "  \
    "and what is open. Write only the summary."
#define COMPACT_HEAD "Summary of the conversation so far:\n"

bool read_previous(struct request *r);     // this and the next are in request_history.c
bool read_conversation(struct request *r); // items of a conversation
bool read_items(struct request *r);
/* True for an item of the input that stands for a stored item. request_find_references: reads those
 * stored items, in the order of their references and with the body's stand-in for U+0000. The
 * caller frees *found, even after an error. */
bool request_is_reference(const struct json *item);
bool request_find_references(struct request *r, const struct json *input, struct json **found);
bool read_truncation(struct request *r);
bool read_include(struct request *r);

#endif
