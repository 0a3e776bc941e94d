// SPDX-License-Identifier: Apache-2.0
/* Splits a model's text into reasoning, which stands at its beginning between two markers, and the
 * rest. Fed in pieces of any size; what it reports, joined, does not depend on how it was cut.
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
    REASONING_ANSWER,   // <think>, and the answer in <answer>
    REASONING_RESPONSE, // <think>, and the answer in <response>
    REASONING_THINK,
};

/* All names that options take, as reasoning_name tells them. */
#define REASONING_NAMES                                                                            \
    "cohere_command3|cohere_command4|deepseek_r1|deepseek_v3|deepseek_v4|ernie45|gemma4|glm45|"    \
    "glm47|granite|granite_thinking_parser|harmony|holo2|hunyuan_a13b|kimi_k2|kimi_k3|mimo|"       \
    "minimax_m2|minimax_m3|"                                                                       \
    "mistral|nemotron_v3|olmo3|openai_gptoss|poolside_v1|qwen3|seed_oss|step3|step3p5|think"

/* By its name in the configuration, or "none"; false if there is no such name. */
bool reasoning_find(const char *name, enum reasoning_kind *kind);
const char *reasoning_name(size_t i); // one at a time; NULL behind the last

/* Which reasoning a model with this chat template has; `template` may be NULL. */
enum reasoning_kind reasoning_for_template(const char *chat_template);

/* True if the prompt ends inside an opened reasoning block. */
bool reasoning_is_open(enum reasoning_kind kind, const char *prompt, size_t n_bytes);

/* What stands around reasoning and the answer. Lists end in NULL. */
struct reasoning_marks {
    const char *opens[3], *closes[3];
    const char *answer_opens[3], *answer_closes[3]; // around the answer, and no part of it
};
const struct reasoning_marks *reasoning_marks(enum reasoning_kind kind);

/* True if the prompt ends behind reasoning that it has closed: no more of it comes. */
bool reasoning_is_closed(enum reasoning_kind kind, const char *prompt, size_t n_bytes);

/* The text behind which the answer begins, if it is one text and nothing else is around the answer;
 * else NULL. */
const char *reasoning_end(enum reasoning_kind kind);

/* The parser that finds this reasoning, because it is a part of its form; NULL: a split does. */
const struct tool_parser *reasoning_parser(enum reasoning_kind kind);

/* True for a marker of the kind: shown to the split even where special tokens are skipped. */
bool reasoning_is_marker(enum reasoning_kind kind, const char *text);

struct reasoning_split {
    enum reasoning_kind kind;
    struct tool_sink sink; // on_reasoning, and on_text for the rest; neither is called for nothing
    struct buf held;       // not yet known to be reasoning or not
    size_t n_blank;        // of it, from its begin: white space that was looked at
    const char *const *enders; // words that end reasoning and are no part of it
    int state;
    bool is_inside; // what came last was reasoning
    bool in_answer;
};

/* `opened`: the prompt has the open marker. `enders`: a list that ends in NULL and outlives the
 * split, or NULL. */
void reasoning_split_init(struct reasoning_split *r, enum reasoning_kind kind, bool opened,
                          const char *const *enders, struct tool_sink sink);
void reasoning_split_deinit(struct reasoning_split *r); // accepts a zeroed struct
void reasoning_split_text(struct reasoning_split *r, const char *text, size_t n_bytes, bool final);

#endif
