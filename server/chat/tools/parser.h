// SPDX-License-Identifier: Apache-2.0
/* Finds tool calls in a model's text. One file per format, and a table of them in parser.c. A
 * parser is fed text in pieces of any size and reports content, calls and argument text through a
 * sink; the concatenated output does not depend on the pieces. Text that only resembles a call is
 * reported as content. If reasoning is part of the format, the parser reports it, too.
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
    void (*on_text)(void *arg, const char *text, size_t n_bytes); // text of the content
    void (*on_reasoning)(void *arg, const char *text, size_t n_bytes);
    /* A call begins; id is empty unless the model gave one. */
    void (*on_call)(void *arg, const char *name, const char *id);
    /* More of the arguments' JSON text. */
    void (*on_arguments)(void *arg, const char *text, size_t n_bytes);
    void *arg;
};

enum { TOOL_NAME_MAX_BYTES = 256 };

/* The byte that stands for the first marker of an exact parser; the next bytes stand for its other
 * markers. These bytes never occur in UTF-8. */
enum { TOOL_MARK = 0xf8 };

/* Parses one object {"name": ..., "arguments": ...} byte by byte. */
struct json_call {
    unsigned char state, field, value;
    bool in_string, escape, has_name, has_arguments, begun, bad;
    bool only_known; // a name that no tool of the request has is an error
    bool needs_both; // report the call only when its arguments have begun, too
    bool whole;      // report it only when the object is complete
    bool by_key;     // the object is {NAME: ARGUMENTS}
    int depth;
    struct buf key, name, id, arguments; // raw JSON
};

/* How to read a bare value. TOOL_VALUE_JSON: as JSON if it is valid, otherwise as a string. */
enum tool_value { TOOL_VALUE_BY_SCHEMA, TOOL_VALUE_TEXT, TOOL_VALUE_JSON };

struct tool_parser;

struct tool_parse {
    const struct tool_parser *parser;
    const struct json *tools; // borrowed array of {"function": {...}}; NULL: calls are off
    struct tool_sink sink;
    struct buf held; // text from `at` on has not been reported
    size_t at, scan; // [at, scan) was examined, and is held because it may still turn out to be
                     // content
    size_t n_seen;   // bytes from `at` on that need not be searched again; after tool_find they are
                     // white space
    int state, n_calls, n_parameters;
    bool in_call; // a call has begun and not ended
    bool cut;     // the text was cut off: a call that has no arguments may lack them
    bool drops;   // held text is the beginning of markup that was cut off: it is no content
    int depth;    // nesting of brackets, in parsers that count them
    char quote;
    bool escape;
    bool in_list;               // tagged: a list is open
    enum tool_value value_type; // xml: how to read the current parameter's value
    uint64_t nest;              // gemma4: one bit per level, set for an object
    bool is_first;              // gemma4: nothing precedes it in its list or object
    bool in_reasoning, fresh, has_text, has_reasoning; // harmony; fresh: the message has no text
                                                       // yet
    int otherwise; // harmony: the state to continue in if the text is not a call
    bool in_items; // harmony: has_text and has_reasoning refer to the last run of one kind
    struct json_call call;
    struct buf name, id;
};

struct tool_parser {
    const char *name;
    /* Takes one step if the held text suffices for it, and returns whether it did. `final`: no more
     * text will come. */
    bool (*step)(struct tool_parse *p, bool final);
    const void *form; // parameters of `step`, if several formats share it
    /* Special tokens that must reach the parser; NULL-terminated. */
    const char *const *markers;
    /* Each marker is passed as one byte, TOOL_MARK plus its index; there may be 8. The same letters
     * in other tokens are ordinary text, since a model may write about its own format, or quote its
     * user. */
    bool exact;
    const char *reasoning; // the marker that opens reasoning; NULL: reasoning is not part of the
                           // format
    /* Words that end unclosed reasoning because they open a call; may be NULL. */
    const char *const *ends_reasoning;
    const struct tool_writing *writing; // NULL: calls cannot be forced in this format
};

/* All names that options accept, as enumerated by tool_parser_name. */
#define TOOL_PARSER_NAMES                                                                          \
    "apertus|cohere_command3|cohere_command4|deepseek_v3|deepseek_v31|deepseek_v32|"               \
    "deepseek_v4|dots|ernie45|functiongemma|functionary_v31|functionary_v32|gemma4|gigachat3|"     \
    "gigachat35|glm45|glm47|granite|granite-20b-fc|granite4|harmony|hermes|hunyuan_a13b|"          \
    "hy_v3|inkling|internlm|jamba|kimi_k2|kimi_k3|lfm2|ling3|llama3_json|llama4_json|"             \
    "llama4_pythonic|longcat|mimo|minicpm5|minimax_m2|minimax_m3|mistral|muse|muse_glimmer|"       \
    "nemotron_json|"                                                                               \
    "olmo3|openai|phi4_mini_json|poolside_v1|pythonic|qwen3_coder|qwen3_json|qwen3_xml|"           \
    "seed_oss|solar_open|solar_open2|step3|step3p5|xlam"

/* The parser of this name or alias; NULL if there is none. */
const struct tool_parser *tool_parser_find(const char *name);
/* Enumerates the names; NULL after the last. */
const char *tool_parser_name(size_t i);

/* The parser for a model with this chat template; NULL if the template does not support tools. */
const struct tool_parser *tool_parser_for_template(const char *chat_template);

void tool_parse_init(struct tool_parse *p, const struct tool_parser *parser,
                     const struct json *tools, struct tool_sink sink);
void tool_parse_deinit(struct tool_parse *p); // accepts a zeroed struct
void tool_parse_text(struct tool_parse *p, const char *text, size_t n_bytes);
void tool_parse_finish(struct tool_parse *p); // reports everything held back
/* The same where a message ends, and the next one begins. */
void tool_parse_next(struct tool_parse *p);

/* ---- for the parsers (emit.c, value.c) --------------------------------------------------------
 */

extern const struct tool_parser tool_parser_apertus, tool_parser_cohere_command3,
    tool_parser_deepseek_v3, tool_parser_deepseek_v31, tool_parser_deepseek_v32,
    tool_parser_deepseek_v4, tool_parser_dots, tool_parser_functionary_v31,
    tool_parser_functionary_v32, tool_parser_functiongemma, tool_parser_gemma4,
    tool_parser_gigachat3, tool_parser_gigachat35, tool_parser_glm45, tool_parser_granite,
    tool_parser_granite_20b_fc, tool_parser_harmony, tool_parser_hermes, tool_parser_hunyuan_a13b,
    tool_parser_hy_v3, tool_parser_inkling, tool_parser_internlm, tool_parser_kimi_k2,
    tool_parser_kimi_k3, tool_parser_lfm2, tool_parser_llama3_json, tool_parser_longcat,
    tool_parser_minicpm5, tool_parser_minimax_m2, tool_parser_minimax_m3, tool_parser_mistral,
    tool_parser_muse, tool_parser_nemotron_json, tool_parser_olmo3, tool_parser_phi4_mini_json,
    tool_parser_pythonic, tool_parser_qwen3_coder, tool_parser_seed_oss, tool_parser_solar_open,
    tool_parser_solar_open2, tool_parser_step3, tool_parser_xlam;

const char *tool_held(const struct tool_parse *p); // the held text from `scan` on
size_t tool_n_held(const struct tool_parse *p);

/* Whether the text at `scan` starts with the word (MATCH_YES), or may do so when more text arrives
 * (MATCH_MAYBE, never if final). */
enum tool_match { MATCH_NO, MATCH_MAYBE, MATCH_YES };
enum tool_match tool_match(const struct tool_parse *p, const char *word, bool final);

/* Reports text up to the first of `words` (NULL-terminated) as content and moves `scan` past that
 * word, while `at` stays at its start; *which is its index. False: no word so far (or none at all,
 * if final). With `trim`, `at` stays before the white space in front of the word: it is dropped if
 * the word begins a call, and content otherwise. */
bool tool_find(struct tool_parse *p, const char *const *words, bool trim, bool final, int *which);

void tool_skip_space(struct tool_parse *p); // moves `scan` past white space
void tool_commit(struct tool_parse *p);     // `at` = `scan`: the text was not content
void tool_give_up(struct tool_parse *p);    // [at, scan) was content
/* Reports [at, end) as content; after a call, white space alone is dropped. */
void tool_report(struct tool_parse *p, size_t end);

void tool_begin(struct tool_parse *p, const char *name, const char *id);
void tool_arguments(struct tool_parse *p, const char *text, size_t n_bytes);
void tool_end(struct tool_parse *p);
/* For text that does not continue like a call: ends the call in progress, or if there is none
 * reports the held text as content. The next state is `state`. Always returns true, which
 * transitions return in turn. */
bool tool_abandon(struct tool_parse *p, int state);

/* Advances depth, quote and escape by one byte of a JSON object; true if that closes it. */
bool tool_closes(struct tool_parse *p, char c);

/* Streams one JSON object; true when it is complete, or if there is none. */
void tool_object_begin(struct tool_parse *p);
bool tool_object(struct tool_parse *p);

/* Follows a schema's $ref within `root`. */
const struct json *tool_resolve(const struct json *root, const struct json *schema);
/* Writes bare text as the JSON value that the schema wants, or as a string if the schema does not
 * say. */
void tool_put_value(const struct json *root, const struct json *schema, const char *s, size_t n,
                    struct buf *out);
/* Writes a Python literal as JSON; false if the text is none: then *out has part of it. */
bool tool_literal(const char *s, size_t n, struct buf *out);
/* tool_root: the schema of the parameters of the function `p->name`. The others: the schema and the
 * value of the parameter `p->id`. */
const struct json *tool_root(const struct tool_parse *p);
const struct json *tool_schema(const struct tool_parse *p);
void tool_parameter(struct tool_parse *p, const char *text, size_t n_bytes, enum tool_value type);
void tool_end_parameters(struct tool_parse *p); // also ends the call
/* tool_abandon for calls with parameters: complete parameters are kept. If the text ends within the
 * call, an unfinished parameter is dropped. */
bool tool_abandon_parameters(struct tool_parse *p, int state);
bool tool_cut_parameters(struct tool_parse *p, int state);

/* The function object of the tool with this name; NULL if the request has none. */
const struct json *tool_function(const struct json *tools, const char *name);

enum json_call_result { CALL_MORE, CALL_DONE, CALL_BAD };
void json_call_reset(struct json_call *c, bool needs_both, bool whole);
void json_call_deinit(struct json_call *c);
/* For an invalid call: reports its text as content, or ends the call if it was reported already. */
void json_call_drop(struct tool_parse *p);
/* Consumes text from `scan`; commits once the call has begun. */
enum json_call_result json_call_step(struct json_call *c, struct tool_parse *p);

#endif
