// SPDX-License-Identifier: Apache-2.0
/* A name and then its arguments as one JSON object, between markers:
 *     kimi_k2         <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}, where
 * the text before the arguments is also the call's id
 *     deepseek_v31    <...call begin>NAME<...sep>{...}
 *     deepseek_v3     <...call begin>function<...sep>NAME, then the object in a fence (V3, R1)
 *     solar_open      <|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{...}
 *     functionary_v31 <function=NAME>{...}</function>
 * The object is passed on as it arrives. */
#include "server/chat/tools/parser.h"

#include <ctype.h>
#include <string.h>

enum state { TEXT, SECTION, ID, ID_END, NAME, HEAD_END, ARGUMENTS, AFTER };

/* What differs between the formats; the rest is common to them. */
struct named_form {
    const char *opens[3];  // optional markers before all calls; NULL-terminated
    const char *close;     // optional marker after all calls
    const char *call;      // marker before a name
    const char *id_end;    // marker between an id, which may be empty, and a name; NULL: no id
    const char *arguments; // marker between a name and its arguments; white space may surround it
    const char *ends[3];   // markers that may follow the arguments; NULL-terminated
    bool has_id;           // the name is an id: functions.NAME:NUMBER
};

static const struct named_form *form_of(const struct tool_parse *p)
{
    return p->parser->form;
}

static bool begin_name(struct tool_parse *p)
{
    buf_clear(&p->name);
    buf_clear(&p->id);
    p->state = form_of(p)->id_end ? ID : NAME;
    return true;
}

/* Outside of calls. A call without the opening marker counts as well, since models leave it out. */
static bool text(struct tool_parse *p, bool final)
{
    const struct named_form *f = form_of(p);
    const char *const words[] = {f->call, f->opens[0], f->opens[1], NULL};
    int which;
    if (!tool_find(p, words, true, final, &which)) {
        return false;
    }
    p->state = SECTION;
    if (which == 0) {
        return begin_name(p);
    }
    return true;
}

/* After the marker that opens the section. */
static bool section(struct tool_parse *p, bool final)
{
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, form_of(p)->call, final);
    if (m == MATCH_YES) {
        p->scan += strlen(form_of(p)->call);
        return begin_name(p);
    }
    return m == MATCH_NO && tool_abandon(p, TEXT);
}

/* Reads a name or an id up to white space or a marker. */
static bool name(struct tool_parse *p)
{
    if (p->name.n_bytes == 0) {
        tool_skip_space(p);
    }
    for (; tool_n_held(p) > 0; p->scan++) {
        char c = *tool_held(p);
        bool ends = c == ' ' || c == '\n' || c == '\t' || c == '\r' || (c && strchr("<>`", c));
        if (ends && (p->name.n_bytes > 0 || p->state == ID)) {
            p->state = p->state == ID ? ID_END : HEAD_END;
            return true;
        }
        if (ends || (c >= '\0' && c < ' ') || p->name.failed) {
            return tool_abandon(p, TEXT);
        }
        buf_putc(&p->name, c);
    }
    return false;
}

/* functions.NAME:NUMBER is the id and NAME the name; without a number there is no id. */
static void split_id(struct tool_parse *p)
{
    static const char prefix[] = "functions.";
    const size_t n_prefix = sizeof prefix - 1;
    struct buf *whole = &p->id;
    buf_put(whole, p->name.data, p->name.n_bytes);
    size_t start = 0, end = whole->n_bytes;
    while (end > 0 && isdigit((unsigned char)whole->data[end - 1])) {
        end--;
    }
    bool numbered = end > 1 && end < whole->n_bytes && whole->data[end - 1] == ':';
    end = numbered ? end - 1 : whole->n_bytes;
    if (end > n_prefix && memcmp(whole->data, prefix, n_prefix) == 0) {
        start = n_prefix;
    }
    buf_clear(&p->name);
    buf_put(&p->name, whole->data + start, end - start);
    if (!numbered) {
        buf_clear(whole);
    }
}

/* Expects the marker between id and name. */
static bool id_end(struct tool_parse *p, bool final)
{
    const char *word = form_of(p)->id_end;
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, word, final);
    if (m != MATCH_YES) {
        return m == MATCH_NO && tool_abandon(p, TEXT);
    }
    p->scan += strlen(word);
    buf_put(&p->id, p->name.data, p->name.n_bytes);
    buf_clear(&p->name);
    p->state = NAME;
    return true;
}

/* Expects the marker between name and arguments. In formats with ids the text before it is the
 * id. */
static bool head_end(struct tool_parse *p, bool final)
{
    const struct named_form *f = form_of(p);
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, f->arguments, final);
    if (m != MATCH_YES) {
        return m == MATCH_NO && tool_abandon(p, TEXT);
    }
    p->scan += strlen(f->arguments);
    tool_commit(p);
    if (f->has_id) {
        split_id(p);
    }
    tool_begin(p, p->name.data, p->id.n_bytes > 0 ? p->id.data : "");
    tool_object_begin(p);
    p->state = ARGUMENTS;
    return true;
}

static bool arguments(struct tool_parse *p)
{
    if (!tool_object(p)) {
        return false;
    }
    tool_end(p);
    p->state = AFTER;
    return true;
}

/* After the arguments: drops the markers that close the call and the section. */
static bool after(struct tool_parse *p, bool final)
{
    const struct named_form *f = form_of(p);
    const char *const words[] = {f->close, f->ends[0], f->ends[1], NULL};
    tool_skip_space(p);
    if (tool_n_held(p) == 0) {
        return false;
    }
    enum tool_match m = tool_match(p, f->call, final);
    if (m == MATCH_YES) {
        p->scan += strlen(f->call);
        return begin_name(p);
    }
    bool closed = false;
    for (const char *const *w = words; m == MATCH_NO && *w; w++) {
        m = tool_match(p, *w, final);
        if (m == MATCH_YES) {
            p->scan += strlen(*w);
        }
        closed = m == MATCH_YES && *w == f->close;
    }
    if (m == MATCH_MAYBE) {
        return false;
    }
    tool_commit(p);
    p->state = m == MATCH_YES && !closed ? AFTER : TEXT;
    return true;
}

static bool step(struct tool_parse *p, bool final)
{
    switch (p->state) {
    case TEXT: return text(p, final);
    case SECTION: return section(p, final);
    case ID:
    case NAME: return name(p);
    case ID_END: return id_end(p, final);
    case HEAD_END: return head_end(p, final);
    case ARGUMENTS: return arguments(p);
    default: return after(p, final);
    }
}

static const char *const kimi_k2_opens[] = {"<|tool_calls_section_begin|>", NULL};
static const char *const kimi_k2_markers[] = {
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",          "<|tool_call_end|>",
    "<|tool_call_argument_begin|>", NULL,
};
static const struct named_form kimi_k2 = {
    .opens = {"<|tool_calls_section_begin|>"},
    .close = "<|tool_calls_section_end|>",
    .call = "<|tool_call_begin|>",
    .arguments = "<|tool_call_argument_begin|>",
    .ends = {"<|tool_call_end|>"},
    .has_id = true,
};
static const struct tool_writing kimi_k2_writing = {
    .open = "<|tool_calls_section_begin|>",
    .call = "<|tool_call_begin|>functions.",
    .name_end = ":%d<|tool_call_argument_begin|>",
    .call_end = "<|tool_call_end|>",
    .close = "<|tool_calls_section_end|>",
    .trigger = "<|tool_calls_section_begin|>",
    .bars = {"<|tool_call_begin|>"},
};
const struct tool_parser tool_parser_kimi_k2 = {
    .name = "kimi_k2",
    .step = step,
    .form = &kimi_k2,
    .markers = kimi_k2_markers,
    .ends_reasoning = kimi_k2_opens,
    .writing = &kimi_k2_writing,
};

/* DeepSeek's markers have full-width bars, and U+2581 for spaces. */
#define MARKER(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define SPACE "\xE2\x96\x81"
#define CALLS_BEGIN MARKER("tool" SPACE "calls" SPACE "begin")
#define CALLS_END MARKER("tool" SPACE "calls" SPACE "end")
#define CALL_BEGIN MARKER("tool" SPACE "call" SPACE "begin")
#define CALL_END MARKER("tool" SPACE "call" SPACE "end")
#define SEPARATOR MARKER("tool" SPACE "sep")

static const char *const deepseek_markers[] = {CALLS_BEGIN, CALLS_END, CALL_BEGIN,
                                               CALL_END,    SEPARATOR, NULL};
static const struct named_form deepseek_v31 = {
    .opens = {CALLS_BEGIN},
    .close = CALLS_END,
    .call = CALL_BEGIN,
    .arguments = SEPARATOR,
    .ends = {CALL_END},
};
static const struct tool_writing deepseek_v31_writing = {
    .open = CALLS_BEGIN,
    .call = CALL_BEGIN,
    .name_end = SEPARATOR,
    .call_end = CALL_END,
    .close = CALLS_END,
    .trigger = CALLS_BEGIN,
    .bars = {CALL_BEGIN},
};
const struct tool_parser tool_parser_deepseek_v31 = {
    .name = "deepseek_v31",
    .step = step,
    .form = &deepseek_v31,
    .markers = deepseek_markers,
    .writing = &deepseek_v31_writing,
};

static const struct named_form deepseek_v3 = {
    .opens = {CALLS_BEGIN},
    .close = CALLS_END,
    .call = CALL_BEGIN "function" SEPARATOR,
    .arguments = "```json",
    .ends = {"```", CALL_END},
};
static const struct tool_writing deepseek_v3_writing = {
    .open = CALLS_BEGIN,
    .call = CALL_BEGIN "function" SEPARATOR,
    .name_end = "\n```json\n",
    .call_end = "\n```" CALL_END,
    .between = "\n",
    .close = CALLS_END,
    .trigger = CALLS_BEGIN,
    .bars = {CALL_BEGIN},
};
const struct tool_parser tool_parser_deepseek_v3 = {
    .name = "deepseek_v3",
    .step = step,
    .form = &deepseek_v3,
    .markers = deepseek_markers,
    .writing = &deepseek_v3_writing,
};

static const char *const solar_open_markers[] = {
    "<|begin|>",          "<|tool_calls|>",    "<|tool_call:begin|>", "<|tool_call:name|>",
    "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>",           NULL,
};
static const struct named_form solar_open = {
    .opens = {"<|begin|>assistant<|tool_calls|>", "<|tool_calls|>"},
    .close = "<|calls|>",
    .call = "<|tool_call:begin|>",
    .id_end = "<|tool_call:name|>",
    .arguments = "<|tool_call:args|>",
    .ends = {"<|tool_call:end|>"},
};
static const struct tool_writing solar_open_writing = {
    .open = "<|tool_calls|>",
    .call = "<|tool_call:begin|>%d<|tool_call:name|>",
    .name_end = "<|tool_call:args|>",
    .call_end = "<|tool_call:end|>",
    .close = "<|calls|>",
    .trigger = "<|tool_calls|>",
    .bars = {"<|tool_call:begin|>"},
};
const struct tool_parser tool_parser_solar_open = {
    .name = "solar_open",
    .step = step,
    .form = &solar_open,
    .markers = solar_open_markers,
    .writing = &solar_open_writing,
};

static const char *const functionary_v31_markers[] = {NULL};
static const struct named_form functionary_v31 = {
    .close = "</function>",
    .call = "<function=",
    .arguments = ">",
};
static const struct tool_writing functionary_v31_writing = {
    .call = "<function=",
    .name_end = ">",
    .call_end = "</function>",
    .trigger = "<function=",
};
const struct tool_parser tool_parser_functionary_v31 = {
    .name = "functionary_v31",
    .step = step,
    .form = &functionary_v31,
    .markers = functionary_v31_markers,
    .writing = &functionary_v31_writing,
};
