// SPDX-License-Identifier: Apache-2.0
/* Separates reasoning from the answer. Text arrives in pieces of any size; the end of it that may
 * become a marker is held back. */
#include "server/chat/reasoning.h"
#include "engine/base/minmax.h"

#include <string.h>

enum state {
    BEFORE, // only white space so far: the open marker may come
    OPENED, // inside, only white space so far
    INSIDE,
    CLOSED, // after the close marker: drops newlines, and the marker that opens the answer
    ANSWER, // inside the answer's own markers
    REST,
};

/* A template is searched for these kinds in this order: the more specific come first. Lists are
 * NULL-terminated. */
static const struct kind {
    struct reasoning_marks marks;
    const char *ends[2];        // markers after the answer, which are not part of it
    const char *next;           // begins another message of the same turn; NULL: there is only one
    const char *sign, *without; // a template of this kind contains `sign` (NULL: the first opening
                                // marker) and not `without`
    const struct tool_parser *parser; // the parser that takes the text apart, if the markers are
                                      // part of that format
    bool is_shown;                    // reasoning is content, with its markers; chosen only by name
} kinds[] = {
    [REASONING_HARMONY] = {.marks.opens = {"<|channel|>analysis<|message|>"},
                           .parser = &tool_parser_harmony},
    [REASONING_GEMMA4] = {.marks.opens = {"<|channel>thought"}, .marks.closes = {"<channel|>"}},
    [REASONING_SEED_OSS] = {.marks.opens = {"<seed:think>"}, .marks.closes = {"</seed:think>"}},
    [REASONING_MINIMAX_M3] = {.marks.opens = {"<mm:think>"}, .marks.closes = {"</mm:think>"}},
    [REASONING_COHERE] = {.marks.opens = {"<|START_THINKING|>"},
                          .marks.closes = {"<|END_THINKING|>"},
                          .marks.answer_opens = {"<|START_RESPONSE|>", "<|START_TEXT|>"},
                          .marks.answer_closes = {"<|END_RESPONSE|>", "<|END_TEXT|>"}},
    [REASONING_KIMI_K3] = {.marks.opens = {"<|open|>think<|sep|>"},
                           .marks.closes = {"<|close|>think<|sep|>"},
                           .marks.answer_opens = {"<|open|>response<|sep|>"},
                           .marks.answer_closes = {"<|close|>response<|sep|>"},
                           .ends = {"<|close|>message<|sep|>"},
                           .sign = "<|open|>"},
    [REASONING_MISTRAL] = {.marks.opens = {"[THINK]"}, .marks.closes = {"[/THINK]"}},
    [REASONING_GRANITE] = {.marks.opens = {"Here is my thought process:",
                                           "Here's my thought process:"},
                           .marks.closes = {"Here is my response:", "Here's my response:"}},
    [REASONING_APERTUS] = {.marks.opens = {"<|inner_prefix|>"},
                           .marks.closes = {"<|inner_suffix|>"}},
    [REASONING_FUNCTIONARY] = {.marks.answer_opens = {"all\n"},
                               .sign = ">>>all",
                               .parser = &tool_parser_functionary_v32},
    [REASONING_SOLAR_OPEN] = {.marks.opens = {"<|think|>"},
                              .marks.closes = {"<|end|><|begin|>assistant"},
                              .marks.answer_opens = {"<|content|>"},
                              .marks.answer_closes = {"<|end|>", "<|flush|>"},
                              .sign = "<|begin|>assistant"},
    [REASONING_SOLAR_OPEN2] = {.marks.opens = {"<|think:start|>"},
                               .marks.closes = {"<|think:end|>"}},
    [REASONING_APRIEL] = {.marks.opens = {"Here are my reasoning steps:"},
                          .marks.closes = {"[BEGIN FINAL RESPONSE]"}},
    [REASONING_MUSE] = {.marks.opens = {"to=self<|message|>", " to=self<|message|>"},
                        .marks.closes = {"<|eom|><|start|>assistant"},
                        .marks.answer_opens = {" to=user<|message|>", "to=user<|message|>"},
                        .marks.answer_closes = {"<|eot|>", "<|eom|>"},
                        .next = "<|start|>assistant"},
    [REASONING_INKLING] = {.marks.opens = {"<|content_thinking|>"},
                           .marks.closes = {"<|end_message|><|message_model|>"},
                           .marks.answer_opens = {"<|content_text|>"},
                           .marks.answer_closes = {"<|end_message|>"},
                           .next = "<|message_model|>"},
    [REASONING_ANSWER] = {.marks.opens = {"<think>"},
                          .marks.closes = {"</think>"},
                          .marks.answer_opens = {"<answer>"},
                          .marks.answer_closes = {"</answer>"},
                          .sign = "<answer>"},
    [REASONING_RESPONSE] = {.marks.opens = {"<think>"},
                            .marks.closes = {"</think>"},
                            .marks.answer_opens = {"<response>"},
                            .marks.answer_closes = {"</response>"},
                            .sign = "<response>",
                            .without = "<minimax:"}, // in such templates the markers enclose a
                                                     // tool's answers
    [REASONING_SHOWN] = {.marks.opens = {"<think>"},
                         .marks.closes = {"</think>"},
                         .is_shown = true},
    [REASONING_THINK] = {.marks.opens = {"<think>"}, .marks.closes = {"</think>"}},
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* The names that options accept: vLLM's, "harmony", "think" and SGLang's "muse". */
static const struct {
    const char *name;
    enum reasoning_kind kind;
} names[] = {
    {"apertus", REASONING_APERTUS},
    {"apriel", REASONING_APRIEL},
    {"cohere_command3", REASONING_COHERE},
    {"cohere_command4", REASONING_COHERE},
    {"deepseek_r1", REASONING_THINK},
    {"deepseek_v3", REASONING_THINK},
    {"deepseek_v4", REASONING_THINK},
    {"ernie45", REASONING_RESPONSE},
    {"functionary_v32", REASONING_FUNCTIONARY},
    {"gemma4", REASONING_GEMMA4},
    {"gigachat35", REASONING_THINK},
    {"glm45", REASONING_THINK},
    {"glm47", REASONING_THINK},
    {"granite", REASONING_GRANITE},
    {"granite_thinking_parser", REASONING_THINK},
    {"harmony", REASONING_HARMONY},
    {"holo2", REASONING_THINK},
    {"hunyuan_a13b", REASONING_ANSWER},
    {"hy_v3", REASONING_THINK},
    {"inkling", REASONING_INKLING},
    {"kimi_k2", REASONING_THINK},
    {"kimi_k3", REASONING_KIMI_K3},
    {"ling3", REASONING_THINK},
    {"mimo", REASONING_THINK},
    {"minimax_m2", REASONING_THINK},
    {"minimax_m2_append_think", REASONING_SHOWN},
    {"minimax_m3", REASONING_MINIMAX_M3},
    {"mistral", REASONING_MISTRAL},
    {"muse", REASONING_MUSE},
    {"muse_glimmer", REASONING_MUSE},
    {"nemotron_v3", REASONING_THINK},
    {"olmo3", REASONING_THINK},
    {"openai_gptoss", REASONING_HARMONY},
    {"poolside_v1", REASONING_THINK},
    {"qwen3", REASONING_THINK},
    {"seed_oss", REASONING_SEED_OSS},
    {"solar_open", REASONING_SOLAR_OPEN},
    {"solar_open2", REASONING_SOLAR_OPEN2},
    {"step3", REASONING_THINK},
    {"step3p5", REASONING_THINK},
    {"think", REASONING_THINK},
};

enum { N_NAMES = sizeof names / sizeof names[0] };

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

const char *reasoning_name(size_t i)
{
    return i < N_NAMES ? names[i].name : NULL;
}

bool reasoning_find(const char *name, enum reasoning_kind *kind)
{
    *kind = REASONING_NONE;
    for (size_t i = 0; i < N_NAMES; i++) {
        if (strcmp(names[i].name, name) == 0) {
            *kind = names[i].kind;
            return true;
        }
    }
    return strcmp(name, "none") == 0;
}

static bool has_one(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strstr(text, *words)) {
            return true;
        }
    }
    return false;
}

/* The first kind whose markers the template contains; more specific kinds come first in
 * the table. */
enum reasoning_kind reasoning_for_template(const char *chat_template)
{
    for (int k = REASONING_NONE + 1; chat_template && k < N_KINDS; k++) {
        bool wanted = !kinds[k].sign || strstr(chat_template, kinds[k].sign);
        bool barred = kinds[k].without && strstr(chat_template, kinds[k].without);
        bool marked = !kinds[k].marks.opens[0] || has_one(chat_template, kinds[k].marks.opens) ||
                      has_one(chat_template, kinds[k].marks.closes);
        if (wanted && !barred && marked && !kinds[k].is_shown) {
            return (enum reasoning_kind)k;
        }
    }
    return REASONING_NONE;
}

/* True if the text ends with one of the words, apart from white space. */
static bool ends_with(const char *text, size_t n_bytes, const char *const *words)
{
    while (n_bytes > 0 && is_space(text[n_bytes - 1])) {
        n_bytes--;
    }
    for (; *words; words++) {
        size_t n = strlen(*words);
        if (n_bytes >= n && memcmp(text + n_bytes - n, *words, n) == 0) {
            return true;
        }
    }
    return false;
}

bool reasoning_is_open(enum reasoning_kind kind, const char *prompt, size_t n_bytes)
{
    return ends_with(prompt, n_bytes, kinds[kind].marks.opens);
}

bool reasoning_is_closed(enum reasoning_kind kind, const char *prompt, size_t n_bytes)
{
    return ends_with(prompt, n_bytes, kinds[kind].marks.closes);
}

const struct reasoning_marks *reasoning_marks(enum reasoning_kind kind)
{
    return &kinds[kind].marks;
}

const struct reasoning_channels *reasoning_channels(enum reasoning_kind kind)
{
    static const struct reasoning_channels harmony = {
        .opens = "<|channel|>analysis<|message|>",
        .closes = {"<|end|>", "<|call|>", "<|return|>"},
        .next = "<|end|><|start|>assistant",
        .answer = "<|channel|>final<|message|>",
    };
    return kind == REASONING_HARMONY ? &harmony : NULL;
}

/* For grammars that begin after reasoning: the word that ends it; NULL if there are several. */
const char *reasoning_end(enum reasoning_kind kind)
{
    const struct kind *k = &kinds[kind];
    if (k->marks.closes[1] || k->marks.answer_opens[0]) {
        return NULL;
    }
    return k->marks.closes[0];
}

const struct tool_parser *reasoning_parser(enum reasoning_kind kind)
{
    return kinds[kind].parser;
}

/* True if a marker contains this text: some markers consist of several tokens, with words between
 * them. */
static bool one_has(const char *const *words, const char *text)
{
    for (; *words; words++) {
        if (strstr(*words, text)) {
            return true;
        }
    }
    return false;
}

bool reasoning_is_marker(enum reasoning_kind kind, const char *text)
{
    const struct kind *k = &kinds[kind];
    return *text && (one_has(k->marks.opens, text) || one_has(k->marks.closes, text) ||
                     one_has(k->marks.answer_opens, text) ||
                     one_has(k->marks.answer_closes, text) || one_has(k->ends, text));
}

/* ---- the split ---- */

enum { HELD_MAX_BYTES = 16 << 20 }; // arbitrary: limit of white space or of a possible marker

void reasoning_split_init(struct reasoning_split *r, enum reasoning_kind kind, bool opened,
                          const char *const *enders, struct tool_sink sink)
{
    static const char *const none[] = {NULL};
    *r = (struct reasoning_split){.kind = kind, .state = REST, .sink = sink};
    r->enders = enders ? enders : none;
    buf_init(&r->held, HELD_MAX_BYTES);
    if (kinds[kind].is_shown) {
        buf_puts(&r->held, opened ? kinds[kind].marks.opens[0] : ""); // the prompt has it
    } else if (kind != REASONING_NONE && !kinds[kind].parser) {
        r->state = opened ? OPENED : BEFORE;
        r->next = kinds[kind].next;
    }
    r->is_inside = r->state == OPENED;
}

void reasoning_split_deinit(struct reasoning_split *r)
{
    buf_deinit(&r->held);
}

static void put_rest(struct reasoning_split *r, const char *text, size_t n_bytes)
{
    if (n_bytes > 0) {
        r->sink.on_text(r->sink.arg, text, n_bytes);
    }
}

/* Tells whether the held text has one of the words at position `at`. MATCH_YES: *n is its length.
 */
static enum tool_match begins(const struct reasoning_split *r, size_t at, const char *const *words,
                              bool final, size_t *n)
{
    enum tool_match m = MATCH_NO;
    size_t held = r->held.n_bytes - at;
    *n = 0;
    for (; held > 0 && *words; words++) {
        size_t n_word = strlen(*words);
        if (memcmp(r->held.data + at, *words, lesser(n_word, held)) != 0) {
            continue;
        }
        if (held >= n_word) {
            *n = n_word;
            return MATCH_YES;
        }
        if (!final) {
            m = MATCH_MAYBE;
        }
    }
    return m;
}

/* The same for the head of another message: `next`, and then one of the words, or the text's end.
 */
static enum tool_match begins_next(const struct reasoning_split *r, size_t at,
                                   const char *const *words, bool final, size_t *n)
{
    const char *const next[] = {r->next, NULL};
    enum tool_match m = begins(r, at, next, final, n);
    if (m == MATCH_YES && at + *n == r->held.n_bytes) {
        return final ? MATCH_YES : MATCH_MAYBE;
    }
    if (m == MATCH_YES) {
        size_t n_word;
        m = begins(r, at + *n, words, final, &n_word);
        *n += n_word;
    }
    return m;
}

static size_t spaces(struct reasoning_split *r)
{
    while (r->n_blank < r->held.n_bytes && is_space(r->held.data[r->n_blank])) {
        r->n_blank++;
    }
    return r->n_blank;
}

static void consume(struct reasoning_split *r, size_t n_bytes)
{
    buf_consume(&r->held, n_bytes);
    r->n_blank = 0;
}

/* Skips the marker that opens the answer or more reasoning, if it is at position `at`. False while
 * that is undecided. */
static bool at_answer(struct reasoning_split *r, size_t at, bool final)
{
    size_t n;
    enum tool_match m = begins(r, at, kinds[r->kind].ends, final, &n);
    if (m == MATCH_YES) {
        consume(r, at + n);
        r->state = REST;
        return true;
    }
    if (m == MATCH_NO && r->next) {
        m = begins(r, at, kinds[r->kind].marks.opens, final, &n);
        if (m == MATCH_YES) {
            consume(r, at + n);
            r->is_inside = true;
            r->state = OPENED;
            return true;
        }
    }
    if (m == MATCH_NO) {
        m = begins(r, at, kinds[r->kind].marks.answer_opens, final, &n);
    }
    if (m == MATCH_MAYBE) {
        return false;
    }
    if (m == MATCH_YES) {
        consume(r, at + n);
        r->in_answer = true;
    }
    r->state = m == MATCH_YES ? CLOSED : REST;
    return true;
}

/* States BEFORE and OPENED: skips white space, and the opening marker if it follows. True: continue
 * in the new state. */
static bool at_open(struct reasoning_split *r, bool final)
{
    size_t skip = spaces(r), n;
    if (skip == r->held.n_bytes && !final) {
        return false;
    }
    enum tool_match m = begins(r, skip, kinds[r->kind].marks.opens, final, &n);
    if (m == MATCH_MAYBE) {
        return false;
    }
    if (r->state == OPENED) { // some models repeat the marker that the prompt ends with
        consume(r, skip + n);
        r->state = m == MATCH_YES ? OPENED : INSIDE;
        return m != MATCH_YES || r->held.n_bytes > 0;
    }
    if (m == MATCH_YES) {
        consume(r, skip + n);
        r->is_inside = true;
        r->state = OPENED;
        return true;
    }
    return at_answer(r, skip, final);
}

/* Passes on text up to one of `words` or `more`, without the white space before it. True: one was
 * found, and the held text starts with it; the caller must drop its first *n bytes. */
static bool up_to(struct reasoning_split *r, const char *const *words, const char *const *more,
                  void (*report)(void *, const char *, size_t), bool final, size_t *n)
{
    size_t end = 0, i = r->n_blank;
    enum tool_match m = MATCH_NO;
    for (; i < r->held.n_bytes; i++) {
        m = begins(r, i, words, final, n);
        if (m == MATCH_NO) {
            m = begins(r, i, more, final, n);
            *n = 0; // words of `more` belong to the following text, so they are not dropped
        }
        if (m != MATCH_NO) {
            break;
        }
        if (!is_space(r->held.data[i])) {
            end = i + 1;
        }
    }
    if (end > 0) {
        report(r->sink.arg, r->held.data, end);
    }
    consume(r, m == MATCH_YES ? i : end);
    r->n_blank = m == MATCH_YES ? 0 : i - end;
    return m == MATCH_YES;
}

/* Where messages follow each other, a closing marker is the end of one and the beginning of the
 * next. Drops the former if the text ends there. */
static void drop_end(struct reasoning_split *r)
{
    const char *close = kinds[r->kind].marks.closes[0];
    const size_t n_end = strlen(close) - strlen(r->next);
    const char *found =
        r->held.n_bytes > 0 ? memmem(r->held.data, r->held.n_bytes, close, n_end) : NULL;
    if (found) {
        r->held.n_bytes = (size_t)(found - r->held.data);
        r->n_blank = lesser(r->n_blank, r->held.n_bytes);
    }
}

/* Reasoning ends at its close marker, or where a call begins. */
static bool inside(struct reasoning_split *r, bool final)
{
    size_t n;
    if (final && r->next) {
        drop_end(r);
    }
    if (!up_to(r, kinds[r->kind].marks.closes, r->enders, r->sink.on_reasoning, final, &n)) {
        return false;
    }
    consume(r, n);
    r->state = CLOSED;
    r->is_inside = false;
    return true;
}

/* The answer's own closing marker is dropped, with white space before it. */
static bool in_answer(struct reasoning_split *r, bool final)
{
    static const char *const none[] = {NULL};
    size_t n;
    if (!up_to(r, kinds[r->kind].marks.answer_closes, none, r->sink.on_text, final, &n)) {
        if (final) { // no marker follows, so the white space is text
            put_rest(r, r->held.data, r->held.n_bytes);
            consume(r, r->held.n_bytes);
        }
        return false;
    }
    consume(r, n);
    r->in_answer = false;
    r->state = CLOSED;
    return true;
}

static bool closed(struct reasoning_split *r, bool final)
{
    size_t skip = 0;
    while (skip < r->held.n_bytes && (r->held.data[skip] == '\n' || r->held.data[skip] == '\r')) {
        skip++;
    }
    consume(r, skip);
    if (r->held.n_bytes == 0) {
        return false;
    }
    if (r->in_answer) {
        r->state = ANSWER;
        return true;
    }
    return at_answer(r, 0, final);
}

/* Text that is neither reasoning nor an answer with markers, such as calls. Where messages follow
 * each other, it ends at the head of one that has either; in a call such a head is data. */
static bool rest(struct reasoning_split *r, bool final)
{
    const struct reasoning_marks *marks = &kinds[r->kind].marks;
    enum tool_match thinks = MATCH_NO, answers = MATCH_NO;
    size_t i = r->next ? 0 : r->held.n_bytes, n = 0;
    for (; i < r->held.n_bytes; i++) {
        thinks = begins_next(r, i, marks->opens, final, &n);
        if (thinks != MATCH_YES) {
            answers = begins_next(r, i, marks->answer_opens, final, &n);
        }
        if (thinks != MATCH_NO || answers != MATCH_NO) {
            break;
        }
    }
    put_rest(r, r->held.data, i);
    consume(r, i);
    if (thinks != MATCH_YES && answers != MATCH_YES) {
        return false;
    }
    if (r->in_call && *r->in_call) {
        put_rest(r, r->held.data, n);
    } else {
        r->is_inside = thinks == MATCH_YES;
        r->in_answer = !r->is_inside;
        r->state = r->is_inside ? OPENED : CLOSED;
    }
    consume(r, n);
    return true;
}

/* One transition. True if the held text may allow another. */
static bool step(struct reasoning_split *r, bool final)
{
    switch (r->state) {
    case BEFORE:
    case OPENED: return at_open(r, final);
    case INSIDE: return inside(r, final);
    case CLOSED: return closed(r, final);
    case ANSWER: return in_answer(r, final);
    default: return rest(r, final);
    }
}

/* Once the answer has begun, text passes through without being copied. */
void reasoning_split_text(struct reasoning_split *r, const char *text, size_t n_bytes, bool final)
{
    if (r->state == REST && r->held.n_bytes == 0 && !r->next) {
        put_rest(r, text, n_bytes);
        return;
    }
    buf_put(&r->held, text, n_bytes);
    while (step(r, final)) {
    }
}
