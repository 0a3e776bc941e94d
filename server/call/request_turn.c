// SPDX-License-Identifier: Apache-2.0
/* The constraint on a request's whole output: the answer's constraint, calls that are forced or
 * must match their tools, and the model's own format around both (chat/turn.h). Compiled as the
 * last step of preparation. */
#include "engine/base/optional.h"
#include "server/call/readers.h"

#include "engine/base/json_scan.h"
#include "server/chat/turn.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BYTES = 16 << 20 };

struct plan {
    struct request *r;
    struct turn turn;
    struct tool_calls calls;
    struct buf answer, text;
};

/* Calls of this tool must match its schema. */
static bool has_to_match(const struct request *r, const struct request_tool *t)
{
    return t->allowed && (t->strict || r->tool_mode == TOOLS_MUST);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static const char *code_of(enum status st, enum grammar_kind kind)
{
    if (st == ERR_NOMEM) {
        return "unsupported_value";
    }
    switch (kind) {
    case GRAMMAR_SCHEMA: return "invalid_schema";
    case GRAMMAR_REGEX: return "invalid_regex";
    case GRAMMAR_GBNF:
    case GRAMMAR_LARK:
    case GRAMMAR_TAGS:
    case GRAMMAR_N_KINDS: break;
    }
    return "invalid_grammar";
}

static enum status compiles(const struct grammar_source *source, struct err *err)
{
    struct grammar *g = NULL;
    enum status st = grammar_compile(source, NULL, NULL, &g, err);
    grammar_free(g);
    return st;
}

static bool refuse_tool(struct request *r, const struct request_tool *tool, enum status st,
                        const char *why)
{
    return call_error_set(
        &r->error, 400, tool->custom ? code_of(st, GRAMMAR_LARK) : "invalid_function_parameters",
        tool->place, "Invalid %s '%.64s': %s",
        tool->custom ? "format of the tool" : "schema for function", tool->name, why);
}

/* False, with an error, if the tool's schema or format is rejected by itself. */
static bool check_tool(struct request *r, const struct request_tool *t)
{
    struct err err = {""};
    struct grammar_source source = {
        .kind = GRAMMAR_SCHEMA, .text = t->schema, .n_bytes = t->schema_bytes};
    if (t->custom) {
        source = (struct grammar_source){
            .kind = GRAMMAR_TAGS, .text = t->text, .n_bytes = strlen(t->text)};
    }
    enum status st = source.text ? compiles(&source, &err) : OK;
    return st == OK || refuse_tool(r, t, st, err.text);
}

/* The same for its arguments as the model's format writes them. */
static bool check_arguments(struct request *r, const struct tool_writing *w,
                            const struct request_tool *t)
{
    static const char part[] = "#/json_schema";
    const struct tool_to_write tool = {.schema = t->schema, .schema_bytes = t->schema_bytes};
    struct err err = {""};
    struct buf text;
    buf_init(&text, MAX_BYTES);
    tool_put_arguments(&text, w, &tool);
    const struct grammar_source source = {
        .kind = GRAMMAR_TAGS, .text = text.data, .n_bytes = text.n_bytes};
    enum status st = text.failed ? OK : compiles(&source, &err);
    buf_deinit(&text);
    if (st == OK) {
        return true;
    }
    char *why = err.text;
    if (strncmp(why, part, sizeof part - 1) == 0) { // the path within the schema
        why += sizeof part - 2;
        *why = '#';
    }
    return refuse_tool(r, t, st, why);
}

/* The whole grammar was rejected: reports the part that causes this, with its own path, if one can
 * be found. */
static bool blame(struct plan *p, enum status whole, const struct err *why)
{
    struct request *r = p->r;
    struct err err = {""};
    if (r->constraint_param) {
        enum status st = compiles(&r->constraint, &err);
        if (st != OK) {
            return call_error_set(&r->error, 400, code_of(st, r->constraint.kind),
                                  r->constraint_param, "Invalid '%s': %s", r->constraint_param,
                                  err.text);
        }
    }
    for (size_t i = 0; i < r->n_tool_list; i++) {
        if (!check_tool(r, &r->tool_list[i])) {
            return false;
        }
    }
    for (size_t i = 0; p->turn.calls && i < r->n_tool_list; i++) {
        const struct request_tool *t = &r->tool_list[i];
        if (t->schema && has_to_match(r, t) && !check_arguments(r, p->calls.writing, t)) {
            return false;
        }
    }
    const char *param = or_text(r->constraint_param, "tools");
    return call_error_set(&r->error, 400, code_of(whole, r->constraint.kind), param,
                          "Invalid '%s': %s", param, why->text);
}

/* ---- calls ------------------------------------------------------------------------------------
 */

/* True if the grammar must include calls. */
static bool watches_calls(const struct request *r)
{
    bool some = r->tool_mode == TOOLS_MUST;
    for (size_t i = 0; i < r->n_tool_list && r->tool_mode == TOOLS_AUTO; i++) {
        some |= r->tool_list[i].allowed && r->tool_list[i].strict;
    }
    return some || (r->tool_mode == TOOLS_AUTO && (r->narrows || r->constraint_param));
}

/* A call that is forced, or must match its tool, has to be one that the parser finds. */
static bool check_name(struct plan *p, const struct request_tool *t)
{
    struct request *r = p->r;
    const char *member = strrchr(t->place, '.');
    char place[sizeof t->place + 8];
    if (turn_can_call(r->model->parser, p->calls.writing, t->name)) {
        return true;
    }
    snprintf(place, sizeof place, "%.*s.name", (int)(member - t->place), t->place);
    return call_error_set(&r->error, 400, "invalid_value", place,
                          "Invalid '%s': in this model's format of calls, '%.64s' cannot be the "
                          "name of a tool, so calls of it can be neither forced nor constrained.",
                          place, t->name);
}

/* Forced calls and calls of strict tools must match the schema; the arguments of others can be any
 * object. */
static bool list_tools(struct plan *p)
{
    struct request *r = p->r;
    struct tool_to_write *list = arena_alloc(&r->arena, r->n_tool_list, sizeof *list);
    size_t n = 0;
    if (!list) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < r->n_tool_list; i++) {
        const struct request_tool *t = &r->tool_list[i];
        const bool must = has_to_match(r, t);
        if (!t->allowed) {
            continue;
        }
        if (must && !check_name(p, t)) {
            return false;
        }
        list[n] = (struct tool_to_write){.name = t->name, .text = t->text, .may_fail = !must};
        if ((must || p->calls.writing->by_schema) && !t->custom) {
            static const char none[] = "{\"type\":\"object\",\"additionalProperties\":false}";
            list[n].schema = t->schema ? t->schema : none;
            if (t->schema) {
                list[n].schema_bytes = t->schema_bytes;
            } else {
                list[n].schema_bytes = sizeof none - 1;
            }
        }
        n++;
    }
    p->calls.tools = list;
    p->calls.n_tools = n;
    return true;
}

/* Decides whether the answer's grammar contains calls. They can be enforced only if it is known
 * how the model writes them. */
static bool plan_calls(struct plan *p)
{
    struct request *r = p->r;
    const struct tool_parser *parser = r->model->parser;
    const struct tool_writing *w = parser ? parser->writing : NULL;
    if (!watches_calls(r) || (!parser && r->tool_mode == TOOLS_AUTO)) {
        return true;
    }
    if (!w && r->tool_mode == TOOLS_AUTO && r->constraint_param) {
        return true; // the answer is constrained, and must not contain calls
    }
    if (!w) {
        return call_error_set(&r->error, 400, "unsupported_value",
                              r->tool_mode == TOOLS_MUST ? r->tool_param : "tools",
                              "Unsupported value: this server does not know how this model writes "
                              "calls (--tool-call-parser), so it cannot constrain them to '%s'.",
                              r->tool_mode == TOOLS_MUST ? r->tool_param : "strict");
    }
    p->calls.writing = turn_writing(parser, r->model->tok);
    p->calls.one = !r->parallel_tool_calls;
    p->turn.calls = &p->calls;
    p->turn.must_call = r->tool_mode == TOOLS_MUST;
    p->turn.enders = parser->ends_reasoning;
    return list_tools(p);
}

/* ---- the answer -------------------------------------------------------------------------------
 */

static bool is_json(const char *s, size_t n)
{
    struct json_scan sc;
    enum json_token t;
    json_scan_init(&sc, s, n, JSON_SCAN_MAX_DEPTH);
    while ((t = json_scan_next(&sc)) != JSON_TOKEN_END && t != JSON_TOKEN_ERROR) {
    }
    return t == JSON_TOKEN_END;
}

/* Writes the constraint of the answer as a format of structural tags. False: the constraint was
 * rejected. */
static bool put_answer(struct plan *p)
{
    struct request *r = p->r;
    const struct grammar_source *s = &r->constraint;
    struct buf *out = &p->answer;
    if (grammar_is_json(s->kind) && !is_json(s->text, s->n_bytes)) {
        struct err err = {"it is not JSON"};
        return blame(p, ERR_INVALID, &err);
    }
    grammar_put_tag(s, out);
    p->turn.answer = out->data;
    p->turn.answer_bytes = out->n_bytes;
    return !out->failed || request_too_large(r);
}

/* ---- text before the answer ------------------------------------------------------------------ */

static bool thinks(const struct request *r)
{
    bool off = (r->has_thinks && !r->thinks) || (r->effort && strcmp(r->effort, "none") == 0);
    const struct request_prompt *p = &r->prompts[0];
    const char *text = r->prompt_text ? r->prompt_text : p->text;
    const size_t n_bytes = r->prompt_text ? r->prompt_text_bytes : p->text_bytes;
    bool closed = text && reasoning_is_closed(r->output.reasoning, text, n_bytes);
    return (r->messages || r->prompt_text) && !off && !closed && !r->continue_final_message;
}

/* Reasoning that the prompt has opened, and that a single token ends, is handled by the engine:
 * until that token the grammar is not needed. */
static void plan_reasoning(struct plan *p)
{
    struct request *r = p->r;
    struct turn *t = &p->turn;
    t->reasoning = r->output.reasoning;
    t->tok = r->model->tok;
    t->end_ids = r->model->info->eos;
    t->n_end_ids = r->model->info->n_eos;
    t->opened = r->output.starts_in_reasoning;
    t->may_think = reasoning_marks(t->reasoning)->opens[0] && !t->opened && thinks(r);
    const char *end = reasoning_end(t->reasoning);
    int32_t id = end ? tokenizer_find(r->model->tok, end, strlen(end)) : -1;
    bool only = !(t->calls && t->enders) && t->reasoning != REASONING_HARMONY;
    if (t->opened && id >= 0 && only) {
        r->constraint_after = end;
        r->constraint_after_id = id;
        t->opened = false;
        t->after_reasoning = true;
    }
}

/* ---- compiling ------------------------------------------------------------------------------- */

static bool compile(struct plan *p, const struct grammar_source *source)
{
    struct request *r = p->r;
    struct err err = {""};
    enum status st =
        grammars_take(r->model->grammars, r->model->tok, r->model->info, source, &r->grammar, &err);
    return st == OK || blame(p, st, &err);
}

/* Without calls, reasoning and markers the constraint itself is the grammar; otherwise it
 * becomes a part of a grammar of tags. */
static bool constrain(struct plan *p)
{
    struct request *r = p->r;
    if (!plan_calls(p)) {
        return false;
    }
    if (!p->turn.calls && !r->constraint_param) {
        return true;
    }
    if (!p->turn.calls) {
        r->output.parser = NULL; // the whole text is the answer
    }
    plan_reasoning(p);
    const struct turn *t = &p->turn;
    bool plain = !t->calls && !t->opened && !t->after_reasoning && !t->may_think &&
                 !reasoning_marks(t->reasoning)->answer_opens[0] &&
                 t->reasoning != REASONING_HARMONY;
    if (plain) {
        return compile(p, &r->constraint);
    }
    if (r->constraint_param && !put_answer(p)) {
        return false;
    }
    turn_put(&p->text, t);
    if (p->text.failed) {
        return request_too_large(r);
    }
    return compile(p, &(struct grammar_source){
                          .kind = GRAMMAR_TAGS, .text = p->text.data, .n_bytes = p->text.n_bytes});
}

bool request_constrain(struct request *r)
{
    struct plan p = {.r = r};
    if (!r->generates || (!r->constraint_param && !watches_calls(r))) {
        return true;
    }
    if (!r->model->tok) {
        const char *param;
        if (r->constraint_param) {
            param = r->constraint_param;
        } else {
            param = r->tool_param;
        }
        return call_error_set(&r->error, 400, "unsupported_value", param,
                              "This model has no tokenizer: its answers cannot be constrained.");
    }
    buf_init(&p.answer, MAX_BYTES);
    buf_init(&p.text, MAX_BYTES);
    bool good = constrain(&p);
    buf_deinit(&p.answer);
    buf_deinit(&p.text);
    return good;
}
