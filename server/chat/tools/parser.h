// SPDX-License-Identifier: Apache-2.0
/* Finds tool calls in a model's text. One file per form and a table of them in parser.c. A
 * parser is fed text in pieces of any size and reports content, calls and argument text through a
 * sink; what it reports, joined, does not depend on how the text was cut. Text that only looks like
 * a call comes out as content. Where reasoning is a part of the form, the parser reports it, too.
 * Thread: one owner per parse; the table is constant. */
#ifndef SLUICE_SERVER_CHAT_TOOLS_PARSER_H
#define SLUICE_SERVER_CHAT_TOOLS_PARSER_H

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "server/chat/tools/writing.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tool_sink {
    void (*on_text)(void *arg, const char *text, size_t n_bytes); // the content
    void (*on_reasoning)(void *arg, const char *text, size_t n_bytes);
    /* A call begins; id is empty unless the model gave one. */
    void (*on_call)(void *arg, const char *name, const char *id);
    /* More of the arguments' JSON text. */
    void (*on_arguments)(void *arg, const char *text, size_t n_bytes);
    void *arg;
};

enum { TOOL_NAME_MAX_BYTES = 256 };

/* The byte that stands for an exact parser's first marker; the others follow. No UTF-8 has it. */
enum { TOOL_MARK = 0xf8 };

/* Reads one object {"name": ..., "arguments": ...} byte by byte. */
struct json_call {
    unsigned char state, field, value;
    bool in_string, escape, has_name, has_arguments, begun, bad;
    bool needs_both; // begin only when the arguments have started too
    bool whole;      // report only when the object is complete
    int depth;
    struct buf key, name, id, arguments; // raw JSON
};

/* What a bare value is: JSON only if it reads as such. */
enum tool_value { TOOL_VALUE_BY_SCHEMA, TOOL_VALUE_TEXT, TOOL_VALUE_JSON };

struct tool_parser;

struct tool_parse {
    const struct tool_parser *parser;
    const struct json *tools; // array of {"function": {...}}; borrowed; NULL: none are wanted
    struct tool_sink sink;
    struct buf held; // text from `at` on is not reported yet
    size_t at, scan; // [at, scan) was looked at, and is kept in case it is content after all
    size_t n_seen;   // from `at` on: what was looked at; by tool_find, and then it is white space
    int state, n_calls, n_parameters;
    bool in_call; // begun and not ended
    int depth;    // of brackets, where a parser counts them
    char quote;
    bool escape;
    bool in_list;               // tagged: a list is open
    enum tool_value value_type; // xml: of the parameter that is read
    uint64_t nest;              // gemma4: a bit for each level, set for an object
    bool is_first;              // gemma4: nothing stands before it in its list or object
    bool in_reasoning, fresh, has_text, has_reasoning; // harmony: fresh is a message without text
    int otherwise; // harmony: the state of a text if it is no call
    bool in_items; // harmony: has_text and has_reasoning are of the last run of one kind
    struct json_call call;
    struct buf name, id;
};

struct tool_parser {
    const char *name;
    /* Takes what can be decided; true if something was. `final`: no more text will come. */
    bool (*step)(struct tool_parse *p, bool final);
    const void *form; // the row of the step's own table, where several forms share it
    /* Tokens that must reach the parser although they are special; NULL-terminated. */
    const char *const *markers;
    /* Each comes as one byte, TOOL_MARK and its index: the same letters in other tokens are text,
     * which a model may well write about its own form, or repeat after its user. 8 at most. */
    bool exact;
    const char *reasoning; // what opens it, in that form; NULL: it is no part of the form
    /* Words that end reasoning which nobody closed, since they open a call; may be NULL. */
    const char *const *ends_reasoning;
    const struct tool_writing *writing; // NULL: calls cannot be asked for in this form
};

/* All names that options take, as tool_parser_name tells them. */
#define TOOL_PARSER_NAMES                                                                          \
    "cohere_command3|cohere_command4|deepseek_v3|deepseek_v31|deepseek_v32|deepseek_v4|ernie45|"   \
    "gemma4|gigachat3|glm45|glm47|granite|granite4|harmony|hermes|hunyuan_a13b|internlm|jamba|"    \
    "kimi_k2|kimi_k3|lfm2|llama3_json|llama4_json|llama4_pythonic|longcat|minicpm5|minimax_m2|"    \
    "minimax_m3|mistral|nemotron_json|olmo3|openai|phi4_mini_json|poolside_v1|pythonic|"           \
    "qwen3_coder|qwen3_json|qwen3_xml|seed_oss|step3p5"

/* By one of its names; NULL if there is none. */
const struct tool_parser *tool_parser_find(const char *name);
/* The names, one at a time; NULL behind the last. */
const char *tool_parser_name(size_t i);

/* The parser for a model with this chat template; NULL if the template knows no tools. */
const struct tool_parser *tool_parser_for_template(const char *chat_template);

void tool_parse_init(struct tool_parse *p, const struct tool_parser *parser,
                     const struct json *tools, struct tool_sink sink);
void tool_parse_deinit(struct tool_parse *p); // accepts a zeroed struct
void tool_parse_text(struct tool_parse *p, const char *text, size_t n_bytes);
void tool_parse_finish(struct tool_parse *p); // reports all that is held

/* ---- for the parsers (emit.c, value.c) --------------------------------------------------------
 */

extern const struct tool_parser tool_parser_cohere_command3, tool_parser_deepseek_v3,
    tool_parser_deepseek_v31, tool_parser_deepseek_v32, tool_parser_deepseek_v4, tool_parser_gemma4,
    tool_parser_gigachat3, tool_parser_glm45, tool_parser_granite, tool_parser_harmony,
    tool_parser_hermes, tool_parser_hunyuan_a13b, tool_parser_internlm, tool_parser_kimi_k2,
    tool_parser_kimi_k3, tool_parser_llama3_json, tool_parser_longcat, tool_parser_minicpm5,
    tool_parser_minimax_m2, tool_parser_minimax_m3, tool_parser_mistral, tool_parser_nemotron_json,
    tool_parser_olmo3, tool_parser_phi4_mini_json, tool_parser_pythonic, tool_parser_qwen3_coder,
    tool_parser_seed_oss;

const char *tool_held(const struct tool_parse *p); // text from `scan` on
size_t tool_n_held(const struct tool_parse *p);

/* The text at `scan` begins with word (MATCH_YES), could still (MATCH_MAYBE, not when final). */
enum tool_match { MATCH_NO, MATCH_MAYBE, MATCH_YES };
enum tool_match tool_match(const struct tool_parse *p, const char *word, bool final);

/* Reports text up to the first of `words` (NULL-terminated) as content and moves `scan` behind that
 * word while `at` stays at its start; *which tells which. False: none yet, or never when final.
 * With `trim`, `at` stays before the white space in front of the word: it is dropped if that was a
 * call, and content if it was not. */
bool tool_find(struct tool_parse *p, const char *const *words, bool trim, bool final, int *which);

void tool_skip_space(struct tool_parse *p); // moves `scan`
void tool_commit(struct tool_parse *p);     // `at` = `scan`: the text was not content
void tool_give_up(struct tool_parse *p);    // [at, scan) was content
/* Reports [at, end) as content; what follows a call counts only if it is more than space. */
void tool_report(struct tool_parse *p, size_t end);

void tool_begin(struct tool_parse *p, const char *name, const char *id);
void tool_arguments(struct tool_parse *p, const char *text, size_t n_bytes);
void tool_end(struct tool_parse *p);

/* Takes one more byte of a JSON object into depth, quote and escape; true if that closes it. */
bool tool_closes(struct tool_parse *p, char c);

/* Passes one JSON object on as it comes; true when it is complete, or when there is none. */
void tool_object_begin(struct tool_parse *p);
bool tool_object(struct tool_parse *p);

/* What a schema's $ref leads to, within `root`. */
const struct json *tool_resolve(const struct json *root, const struct json *schema);
/* Bare text as the JSON value that the schema wants; a string if it says nothing. */
void tool_put_value(const struct json *root, const struct json *schema, const char *s, size_t n,
                    struct buf *out);
/* The parameters of the function that `name` names; of the one that `id` names its schema, and its
 * value. */
const struct json *tool_root(const struct tool_parse *p);
const struct json *tool_schema(const struct tool_parse *p);
void tool_parameter(struct tool_parse *p, const char *text, size_t n_bytes, enum tool_value type);
void tool_end_parameters(struct tool_parse *p); // and the call

/* The function object of a tool of this name, NULL if the request has none. */
const struct json *tool_function(const struct json *tools, const char *name);

enum json_call_result { CALL_MORE, CALL_DONE, CALL_BAD };
void json_call_reset(struct json_call *c, bool needs_both, bool whole);
void json_call_deinit(struct json_call *c);
/* A call that turned out bad: content after all, or cut short if it was reported already. */
void json_call_drop(struct tool_parse *p);
/* Takes from `scan`; commits once the call has begun. */
enum json_call_result json_call_step(struct json_call *c, struct tool_parse *p);

#endif
