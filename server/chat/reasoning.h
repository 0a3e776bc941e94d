// SPDX-License-Identifier: Apache-2.0
/* Splits a model's text into reasoning, which comes first and is enclosed in two markers, and the
 * rest. If the format has messages, reasoning may come again in a later one. Text is fed in pieces
 * of any size; the concatenated output does not depend on the pieces.
 * Thread: one owner per split; the table of kinds is constant. */
#ifndef SLUICE_SERVER_CHAT_REASONING_H
#define SLUICE_SERVER_CHAT_REASONING_H

#include "server/chat/tools/parser.h"

enum reasoning_kind {
    REASONING_NONE,
    REASONING_HARMONY,
    REASONING_GEMMA4,
    REASONING_SEED_OSS,
    REASONING_MINIMAX_M3,
    REASONING_COHERE,
    REASONING_KIMI_K3,
    REASONING_MISTRAL,
    REASONING_GRANITE,
    REASONING_APERTUS,
    REASONING_FUNCTIONARY, // none, but the answer follows its recipient
    REASONING_SOLAR_OPEN,
    REASONING_SOLAR_OPEN2,
    REASONING_APRIEL,
    REASONING_MUSE,
    REASONING_INKLING,
    REASONING_ANSWER,   // <think>, and the answer in <answer>
    REASONING_RESPONSE, // <think>, and the answer in <response>
    REASONING_SHOWN,    // <think>, which stays in the content
    REASONING_THINK,
};

/* All names that options accept, as enumerated by reasoning_name. */
#define REASONING_NAMES                                                                            \
    "apertus|apriel|cohere_command3|cohere_command4|deepseek_r1|deepseek_v3|deepseek_v4|"          \
    "ernie45|functionary_v32|gemma4|gigachat35|glm45|glm47|granite|granite_thinking_parser|"       \
    "harmony|holo2|hunyuan_a13b|hy_v3|inkling|kimi_k2|kimi_k3|ling3|mimo|minimax_m2|"              \
    "minimax_m2_append_think|minimax_m3|mistral|muse|muse_glimmer|nemotron_v3|olmo3|openai_"       \
    "gptoss|"                                                                                      \
    "poolside_v1|qwen3|seed_oss|solar_open|solar_open2|step3|step3p5|think"

/* Looks up a name, or "none". False: it is unknown. */
bool reasoning_find(const char *name, enum reasoning_kind *kind);
const char *reasoning_name(size_t i); // enumerates the names; NULL after the last

/* The kind of reasoning of a model with this chat template, which may be NULL. */
enum reasoning_kind reasoning_for_template(const char *chat_template);

/* True if the prompt ends inside an opened reasoning block. */
bool reasoning_is_open(enum reasoning_kind kind, const char *prompt, size_t n_bytes);

/* The markers around reasoning and the answer. Lists are NULL-terminated. */
enum { MOST_MARKS = 3 };
struct reasoning_marks {
    const char *opens[MOST_MARKS], *closes[MOST_MARKS];
    // enclose the answer, and are not part of it
    const char *answer_opens[MOST_MARKS], *answer_closes[MOST_MARKS];
};
const struct reasoning_marks *reasoning_marks(enum reasoning_kind kind);

/* Reasoning in messages of its own, between others: NULL if the kind has none. Each text is one or
 * more special tokens, with words between them. */
struct reasoning_channels {
    const char *opens, *closes[4];
    const char *next;   // ends a message of reasoning, and begins the next one
    const char *answer; // follows `next` if the next message is the answer
};
const struct reasoning_channels *reasoning_channels(enum reasoning_kind kind);

/* True if the prompt ends after closed reasoning, so that no more follows. */
bool reasoning_is_closed(enum reasoning_kind kind, const char *prompt, size_t n_bytes);

/* The marker after which the answer begins, if there is only one such marker and the answer has
 * none of its own; otherwise NULL. */
const char *reasoning_end(enum reasoning_kind kind);

/* The parser that extracts this reasoning as a part of its format; NULL: a reasoning_split does. */
const struct tool_parser *reasoning_parser(enum reasoning_kind kind);

/* True for a marker of this kind, which the split needs even if special tokens are skipped. */
bool reasoning_is_marker(enum reasoning_kind kind, const char *text);

struct reasoning_split {
    enum reasoning_kind kind;
    struct tool_sink sink; // reasoning goes to on_reasoning, all else to on_text; never called with
                           // empty text
    struct buf held;       // text that may still become a marker
    size_t n_blank;        // leading bytes of `held` known to be white space
    const char *const *enders; // words that end reasoning without being part of it
    const char *next;          // begins another message; NULL: the format has no messages
    const bool *in_call;       // true: the text so far ends within a call; may be NULL
    int state;
    bool is_inside; // the last text passed on was reasoning
    bool in_answer;
};

/* `opened`: the prompt contains the open marker. `enders`: a NULL-terminated list that outlives the
 * split, or NULL. */
void reasoning_split_init(struct reasoning_split *r, enum reasoning_kind kind, bool opened,
                          const char *const *enders, struct tool_sink sink);
void reasoning_split_deinit(struct reasoning_split *r); // accepts a zeroed struct
void reasoning_split_text(struct reasoning_split *r, const char *text, size_t n_bytes, bool final);

#endif
