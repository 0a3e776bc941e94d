// SPDX-License-Identifier: Apache-2.0
/* Finds a model's chat template and special tokens, and renders requests with it. */
#include "server/chat/template.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "server/chat/jinja/json.h"
#include "server/chat/messages.h"
#include "server/chat/tools/parser.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_TEMPLATE_BYTES = 4 << 20, // the longest known template has 60 KB
    MAX_CONFIG_BYTES = 64 << 20,
    MAX_TOKENS = 64,
};

struct compiled {
    struct jinja_template *jinja; // NULL: absent
    struct chat_traits traits;
};

struct chat_template {
    struct compiled plain, tool_use; // tool_use: for requests with tools, if the model has such a
                                     // template
    struct chat_token tokens[MAX_TOKENS];
    size_t n_tokens;
    struct buf text; // source of both, one after the other
};

/* ---- loading ---- */

/* Sets a token, replacing an earlier value. Names after the first MAX_TOKENS are ignored. */
static void set_token(struct chat_template *t, const char *name, const char *text)
{
    for (size_t i = 0; i < t->n_tokens; i++) {
        if (strcmp(t->tokens[i].name, name) == 0) {
            free(t->tokens[i].text);
            t->tokens[i].text = xstrdup(text);
            return;
        }
    }
    if (t->n_tokens < MAX_TOKENS) {
        t->tokens[t->n_tokens++] =
            (struct chat_token){.name = xstrdup(name), .text = xstrdup(text)};
    }
}

/* "<s>" or {"content": "<s>", ...}. */
static void take_token(struct chat_template *t, const struct json *node, const char *name)
{
    const char *text = json_string(node);
    if (!text) {
        text = json_get_string(node, "content");
    }
    if (text) {
        set_token(t, name, text);
    }
}

/* Reads the special tokens that a config names, its own additional ones too; templates use them as
 * variables. */
static void take_tokens(struct chat_template *t, const struct json *config)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        take_token(t, json_get(config, names[i]), names[i]);
    }
    const struct json *extra = json_get(config, "extra_special_tokens");
    if (json_is(extra, JSON_OBJECT)) {
        for (const struct json *c = json_first(extra); c; c = json_next(c)) {
            take_token(t, c, json_key(c));
        }
    }
}

/* Compiles a template and keeps its text, because parsers are selected by words in it. */
static enum status compile(struct chat_template *t, struct compiled *c, const char *text,
                           size_t n_bytes, struct err *err)
{
    TRY(jinja_compile(text, n_bytes, &c->jinja, err));
    buf_put(&t->text, text, n_bytes);
    if (t->text.failed) {
        return err_set(err, ERR_NOMEM, "no memory for its text");
    }
    return OK;
}

static enum status compile_into(struct chat_template *t, struct compiled *c, const char *text,
                                size_t n_bytes, const char *where, struct err *err)
{
    if (c->jinja) {
        return OK; // an earlier source takes precedence
    }
    enum status st = compile(t, c, text, n_bytes, err);
    if (st != OK) {
        return err_prefix(err, st, "chat template %s", where);
    }
    return OK;
}

static enum status load_file(struct chat_template *t, struct compiled *c, const char *path,
                             struct err *err)
{
    char *text;
    size_t n;
    if (file_is_absent(path)) {
        return OK;
    }
    TRY(file_read(path, MAX_TEMPLATE_BYTES, &text, &n, err));
    enum status st = compile_into(t, c, text, n, path, err);
    free(text);
    return st;
}

/* A string, or a list of {name, template}. */
static enum status take_templates(struct chat_template *t, const struct json *node,
                                  const char *path, struct err *err)
{
    const char *text = json_string(node);
    if (text) {
        return compile_into(t, &t->plain, text, strlen(text), path, err);
    }
    const struct json *c = json_is(node, JSON_ARRAY) ? json_first(node) : NULL;
    for (; c; c = json_next(c)) {
        const char *name = json_get_string(c, "name");
        text = json_get_string(c, "template");
        if (name && text && strcmp(name, "default") == 0) {
            TRY(compile_into(t, &t->plain, text, strlen(text), path, err));
        } else if (name && text && strcmp(name, "tool_use") == 0) {
            TRY(compile_into(t, &t->tool_use, text, strlen(text), path, err));
        }
    }
    return OK;
}

static enum status load_config(struct chat_template *t, const char *dir, const char *name,
                               bool with_templates, struct err *err)
{
    char path[4096];
    struct json *root;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!folder_has(dir, name)) {
        return OK;
    }
    TRY(folder_json(dir, name, MAX_CONFIG_BYTES, &root, err));
    take_tokens(t, root);
    enum status st = OK;
    if (with_templates) {
        st = take_templates(t, json_get(root, "chat_template"), path, err);
    }
    json_free(root);
    return st;
}

/* Sources, in order of precedence: chat_template.jinja and its siblings, chat_template.json (of
 * processors), tokenizer_config.json. Tokens: special_tokens_map.json, which tokenizer_config.json
 * overrides. */
static enum status load_all(struct chat_template *t, const char *dir, bool with_templates,
                            struct err *err)
{
    char path[4096];
    if (with_templates) {
        snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
        TRY(load_file(t, &t->plain, path, err));
        snprintf(path, sizeof path, "%s/additional_chat_templates/tool_use.jinja", dir);
        TRY(load_file(t, &t->tool_use, path, err));
        TRY(load_config(t, dir, "chat_template.json", true, err));
    }
    TRY(load_config(t, dir, "special_tokens_map.json", false, err));
    return load_config(t, dir, "tokenizer_config.json", with_templates, err);
}

/* The parser's way of writing calls whose token this template knows. */
static const struct tool_writing *writing_of(const char *text)
{
    const struct tool_parser *parser = tool_parser_for_template(text);
    const struct tool_writing *w = parser ? parser->writing : NULL;
    while (w && w->needs && !strstr(text, w->needs)) {
        w = w->otherwise;
    }
    return w;
}

static void probe_one(const struct chat_template *t, struct compiled *c)
{
    if (!c->jinja) {
        return;
    }
    chat_traits_probe(c->jinja, t->tokens, t->n_tokens, &c->traits);
    const struct tool_writing *writing = writing_of(t->text.data);
    if (c->traits.leaves_calls_out && chat_can_write_calls(writing)) {
        c->traits.calls = writing;
    }
}

static void probe(struct chat_template *t)
{
    probe_one(t, &t->plain);
    probe_one(t, &t->tool_use);
}

static struct chat_template *new_template(void)
{
    struct chat_template *t = xcalloc(1, sizeof *t);
    buf_init(&t->text, 2 * MAX_TEMPLATE_BYTES);
    return t;
}

/* *out stays NULL if the folder has no template, which is not an error: such models serve
 * completions. */
enum status chat_template_load(const char *model_dir, struct chat_template **out, struct err *err)
{
    struct chat_template *t = new_template();
    *out = NULL;
    enum status st = load_all(t, model_dir, true, err);
    if (st != OK || (!t->plain.jinja && !t->tool_use.jinja)) {
        chat_template_free(t);
        return st;
    }
    if (!t->plain.jinja) { // a folder that only has tool_use
        t->plain = t->tool_use;
        t->tool_use = (struct compiled){0};
    }
    probe(t);
    *out = t;
    return OK;
}

/* For a template given by an operator or a request; special tokens still come from the model's
 * folder. */
enum status chat_template_compile(const char *text, size_t n_bytes, const char *model_dir,
                                  struct chat_template **out, struct err *err)
{
    struct chat_template *t = new_template();
    *out = NULL;
    enum status st = compile(t, &t->plain, text, n_bytes, err);
    if (st == OK && model_dir) {
        st = load_all(t, model_dir, false, err);
    }
    if (st != OK) {
        chat_template_free(t);
        return st;
    }
    probe(t);
    *out = t;
    return OK;
}

void chat_template_free(struct chat_template *t)
{
    if (!t) {
        return;
    }
    jinja_free(t->plain.jinja);
    jinja_free(t->tool_use.jinja);
    for (size_t i = 0; i < t->n_tokens; i++) {
        free(t->tokens[i].name);
        free(t->tokens[i].text);
    }
    buf_deinit(&t->text);
    free(t);
}

void chat_template_set_cpu_ms(int64_t ms)
{
    jrt_set_cpu_ms(ms);
}

const char *chat_template_text(const struct chat_template *t)
{
    return or_empty(t->text.data);
}

/* Local time in microseconds, as if it were UTC, because templates print dates without a zone. */
int64_t chat_clock_us(void)
{
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    localtime_r(&ts.tv_sec, &tm);
    return (int64_t)timegm(&tm) * 1000000 + ts.tv_nsec / 1000;
}

/* ---- continuing the last message ---- */

/* The text of the last message after shaping: a string, or its last text part. */
static struct jv *final_text(struct jrt *rt, struct jv messages)
{
    if (messages.type != JV_LIST || messages.u.list->n == 0) {
        return NULL;
    }
    struct jv last = messages.u.list->items[messages.u.list->n - 1];
    struct jentry *e = NULL;
    if (last.type == JV_DICT) {
        e = jd_find_text(rt, last.u.dict, "content", 7);
    }
    if (e && e->value.type == JV_STR) {
        return &e->value;
    }
    for (size_t i = e && e->value.type == JV_LIST ? e->value.u.list->n : 0; i-- > 0;) {
        struct jv part = e->value.u.list->items[i];
        struct jentry *text =
            part.type == JV_DICT ? jd_find_text(rt, part.u.dict, "text", 4) : NULL;
        if (text && text->value.type == JV_STR) {
            return &text->value;
        }
    }
    return NULL;
}

/* Appended to the last message's text, so that the prompt can be cut there. If its trailing space
 * is missing from the prompt, the template trims that text. */
static const char final_mark[] = "[END OF WHAT IS CONTINUED] ";

/* Appends the mark to the last message's text. *final is the text without it, or NULL. */
static bool mark_final(struct jrt *rt, struct jv messages, struct jstr **final)
{
    struct jv *text = final_text(rt, messages);
    struct jstr *mark = js_new(rt, final_mark, sizeof final_mark - 1, PROV_INPUT);
    if (!text || !mark || !js_flat(rt, text->u.s)) {
        return rt->st == OK;
    }
    *final = text->u.s;
    text->u.s = js_concat(rt, *final, mark);
    return text->u.s != NULL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* Cuts the prompt after the last message's text, so that the model continues it. If the template
 * trims that text, its trailing white space is excluded. */
static bool cut_after_final(struct jrt *rt, const struct jstr *final, struct jstr **out)
{
    const size_t n_mark = sizeof final_mark - 1;
    struct jstr *s = *out, *trimmed = js_new(rt, final_mark, n_mark - 1, PROV_INPUT);
    size_t at = SIZE_MAX;
    if (final && trimmed) {
        at = jt_rfind(s, trimmed, 0, s->n_bytes);
    }
    if (rt->st != OK) {
        return false;
    }
    if (at == SIZE_MAX) {
        rt->st = err_set(&rt->err, ERR_INVALID,
                         "continue_final_message: the template does not print the last message's "
                         "content, so there is nothing to continue");
        return false;
    }
    const bool is_whole = s->n_bytes - at >= n_mark && s->s[at + n_mark - 1] == ' ';
    size_t n_space = 0;
    while (n_space < final->n_bytes && is_space(final->s[final->n_bytes - 1 - n_space])) {
        n_space++;
    }
    if (is_whole || n_space == final->n_bytes) { // not trimmed, or only white space: cut at the
                                                 // mark
        n_space = 0;
    }
    for (; n_space > 0 && at > 0 && is_space(s->s[at - 1]); n_space--) {
        at--;
    }
    *out = js_sub(rt, s, 0, at);
    return *out != NULL;
}

/* ---- rendering ---- */

static bool set_tokens(struct jrt *rt, const struct chat_template *t)
{
    for (size_t i = 0; i < t->n_tokens; i++) {
        struct jstr *s = js_lit(rt, t->tokens[i].text);
        if (!s || !jinja_set(rt, t->tokens[i].name, strlen(t->tokens[i].name), jv_str(s))) {
            return false;
        }
    }
    return true;
}

/* The request's own variables, except those with a dedicated argument. */
static bool set_kwargs(struct jrt *rt, const struct chat_input *in)
{
    static const char *const reserved[] = {"messages", "tools", "add_generation_prompt"};
    struct jv v;
    if (!in->kwargs_json) {
        return true;
    }
    if (!jinja_from_json(rt, in->kwargs_json, in->kwargs_bytes, PROV_INPUT, "template variables",
                         &v)) {
        return false;
    }
    for (size_t i = 0; v.type == JV_DICT && i < v.u.dict->n; i++) {
        const struct jstr *key = v.u.dict->e[i].key.u.s;
        bool skip = false;
        for (size_t k = 0; !in->raw && k < sizeof reserved / sizeof reserved[0]; k++) {
            skip |= js_is(key, reserved[k]);
        }
        if (!skip && !jinja_set(rt, key->s, key->n_bytes, v.u.dict->e[i].value)) {
            return false;
        }
    }
    return true;
}

/* Sets the template's tokens, then the request's variables, which override them. */
static bool set_variables(struct jrt *rt, const struct chat_template *t,
                          const struct chat_input *in, const struct chat_traits *traits,
                          struct jstr **final)
{
    struct jv tools = jv_none(), messages = jv_missing();
    if (in->messages_json) {
        if (!jinja_from_json(rt, in->messages_json, in->messages_bytes, PROV_INPUT, "messages",
                             &messages) ||
            !(in->raw ? chat_trust_roles(rt, messages, in->trust_assistant)
                      : chat_shape(rt, messages, traits, in->trust_assistant)) ||
            (in->continue_final_message && !in->raw && !mark_final(rt, messages, final))) {
            return false;
        }
    }
    if (in->tools_json &&
        (!jinja_from_json(rt, in->tools_json, in->tools_bytes, PROV_INPUT, "tools", &tools) ||
         (traits->whole_tools && !chat_complete_tools(rt, tools)))) {
        return false;
    }
    if (!in->raw) {
        if (!set_tokens(rt, t) ||
            (in->llama_variables && !chat_set_llama_variables(rt, in->local_us, tools))) {
            return false;
        }
        jinja_set(rt, "add_generation_prompt", 21,
                  jv_bool(in->add_generation_prompt && !in->continue_final_message));
    }
    jinja_set(rt, "messages", 8, messages);
    jinja_set(rt, "tools", 5, tools);
    jinja_set(rt, "documents", 9, jv_none());
    return set_kwargs(rt, in);
}

/* Copies the result out of the arena, with one span for each run of equal provenance. */
static void copy_out(const struct jstr *s, struct chat_output *out)
{
    size_t n = s->prov == PROV_MIXED ? s->n_runs : s->n_bytes > 0;
    out->text = xmalloc(s->n_bytes + 1);
    memcpy(out->text, s->s, s->n_bytes);
    out->text[s->n_bytes] = '\0';
    out->n_bytes = s->n_bytes;
    out->spans = xcalloc(n > 0 ? n : 1, sizeof *out->spans);
    out->n_spans = n;
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        size_t to = s->prov == PROV_MIXED ? s->runs[i].end : s->n_bytes;
        out->spans[i] = (struct text_span){
            .text = out->text + from,
            .n_bytes = to - from,
            .is_input = s->prov == PROV_MIXED ? s->runs[i].input : s->prov == PROV_INPUT};
        from = to;
    }
}

static enum status render_once(const struct chat_template *t, const struct compiled *c,
                               const struct chat_input *in, const struct chat_traits *traits,
                               struct chat_output *out, struct err *err)
{
    struct jrt rt;
    struct jstr *s, *final = NULL;
    bool ok = jinja_begin(&rt, c->jinja, in->local_us) &&
              set_variables(&rt, t, in, traits, &final) && jinja_run(&rt, &s) &&
              (!in->continue_final_message || in->raw || cut_after_final(&rt, final, &s));
    enum status st = ok ? OK : rt.st;
    if (ok) {
        copy_out(s, out);
    } else if (err) {
        *err = rt.err;
    }
    jinja_end(&rt);
    return st;
}

/* An empty list counts as no tools. */
static bool has_tools(const struct chat_input *in)
{
    size_t i = 0;
    while (in->tools_json && i < in->tools_bytes && strchr(" \t\r\n", in->tools_json[i])) {
        i++;
    }
    return in->tools_json && in->tools_bytes - i >= 3 && in->tools_json[i] == '[';
}

/* Renders once, and if that fails again with null content as "" and complete tools. The second
 * error is reported: the first may be about null content that the template never expects. */
enum status chat_template_render(const struct chat_template *t, const struct chat_input *in,
                                 struct chat_output *out, struct err *err)
{
    const struct compiled *c;
    if (has_tools(in) && t->tool_use.jinja) {
        c = &t->tool_use;
    } else {
        c = &t->plain;
    }
    *out = (struct chat_output){0};
    enum status st = render_once(t, c, in, &c->traits, out, err);
    if (st != ERR_INVALID || in->raw || (c->traits.null_is_empty && !has_tools(in))) {
        return st;
    }
    /* The probe only tested null content in one place; this conversation may have it in another. */
    struct chat_traits again = c->traits;
    again.null_is_empty = again.whole_tools = true;
    return render_once(t, c, in, &again, out, err);
}

bool chat_template_wants_system_first(const struct chat_template *t)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"},"
        "{\"role\":\"system\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"d\"}]";
    const struct chat_input in = {.messages_json = messages,
                                  .messages_bytes = sizeof messages - 1,
                                  .add_generation_prompt = true};
    struct chat_output out;
    struct err err = {""};
    const bool raises = chat_template_render(t, &in, &out, &err) != OK;
    chat_output_deinit(&out);
    return raises;
}

void chat_output_deinit(struct chat_output *out)
{
    free(out->text);
    free(out->spans);
    *out = (struct chat_output){0};
}
