// SPDX-License-Identifier: Apache-2.0
/* The model as requests see it: names, tokenizer, chat template, default parameters, and
 * which parsers and grammars its output needs. */
#include "server/call/model.h"

#include "server/call/adapters.h"
#include "server/call/grammars.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/json_scan.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TEXT_MAX_BYTES = 64 << 20 };

/* Reads a file of the folder. *text is NULL if it does not exist. */
static enum status read_in(const char *dir, const char *name, char **text, size_t *n_bytes,
                           struct err *err)
{
    *text = NULL;
    if (!folder_has(dir, name)) {
        return OK;
    }
    return folder_read(dir, name, TEXT_MAX_BYTES, text, n_bytes, err);
}

/* ---- the chat template ------------------------------------------------------------------------
 */

/* Looks first in the tokenizer's folder, if it is not the model's. */
static enum status load_template(struct call_model *m, const struct config *config, struct err *err)
{
    TRY(chat_template_load(m->text_dir, &m->template, err));
    const char *model = config->engine.model;
    bool other = strcmp(m->text_dir, model) != 0;
    if (m->template || !other) {
        return OK;
    }
    return chat_template_load(model, &m->template, err);
}

/* False if the text is more likely a mistyped file name than a template. llama.cpp accepts any
 * text. */
static bool is_template_text(const struct call_model *m, const char *text)
{
    return strchr(text, '{') || (m->is_llama && strchr(text, ' '));
}

/* --chat-template is a file or a template's text; otherwise the model's folder has one. The
 * template's text determines the parsers for reasoning and calls, unless options name them. */
static enum status open_template(struct call_model *m, const struct config *config, struct err *err)
{
    struct buf text;
    buf_init(&text, TEXT_MAX_BYTES);
    enum status st = OK;
    const uint64_t n_lost = buf_n_lost();
    if (config->chat_template && file_exists(config->chat_template)) {
        char *data;
        size_t n_bytes;
        st = file_read(config->chat_template, TEXT_MAX_BYTES, &data, &n_bytes, err);
        if (st == OK) {
            buf_put(&text, data, n_bytes);
            free(data);
        }
    } else if (config->chat_template && chat_template_named(config->chat_template)) {
        buf_puts(&text, chat_template_named(config->chat_template));
    } else if (config->chat_template) {
        buf_puts(&text, config->chat_template);
        if (!is_template_text(m, config->chat_template)) {
            st = err_set(err, ERR_IO,
                         "chat-template: '%.100s' is not a file, nor one of " CHAT_TEMPLATE_NAMES,
                         config->chat_template);
        }
    }
    if (st == OK && buf_n_lost() != n_lost) {
        st = err_set(err, ERR_NOMEM, "chat-template: no memory for its text");
    }
    if (st == OK && config->chat_template) {
        st = chat_template_compile(text.data, text.n_bytes, m->text_dir, &m->template, err);
        st = st == OK ? OK : err_prefix(err, st, "chat-template");
    } else if (st == OK) {
        st = load_template(m, config, err);
    }
    m->system_first = m->template && chat_template_wants_system_first(m->template);
    const char *all = m->template ? chat_template_text(m->template) : "";
    if (!reasoning_find(config->reasoning_parser, &m->reasoning)) {
        m->reasoning = reasoning_for_template(all);
    }
    const char *parser = config->tool_call_parser;
    if (strcmp(parser, "none") == 0) {
        m->parser = NULL;
    } else if (strcmp(parser, "auto") == 0) {
        m->parser = tool_parser_for_template(all);
    } else {
        m->parser = tool_parser_find(parser);
    }
    buf_deinit(&text);
    return st;
}

/* ---- sampling defaults ------------------------------------------------------------------------
 */

static const struct {
    const char *key;
    size_t offset;
} reals[] = {
    {"temperature", offsetof(struct sampling_params, temperature)},
    {"top_p", offsetof(struct sampling_params, top_p)},
    {"min_p", offsetof(struct sampling_params, min_p)},
    {"repetition_penalty", offsetof(struct sampling_params, repetition_penalty)},
    {"frequency_penalty", offsetof(struct sampling_params, frequency_penalty)},
    {"presence_penalty", offsetof(struct sampling_params, presence_penalty)},
};

static enum status bad_default(struct err *err, const char *key, const char *expected)
{
    return err_set(err, ERR_INVALID, "'%.60s' should be %s", key, expected);
}

/* An optional count; -1, which other servers use for "off", becomes 0. */
static enum status set_count(const struct json *o, const char *key, int32_t *v, struct err *err)
{
    const struct json *n = json_get(o, key);
    int64_t count;
    if (json_type(n) == JSON_NULL) {
        return OK;
    }
    if (!json_int64(n, &count) || count < -1 || count > INT32_MAX) {
        return bad_default(err, key, "a count");
    }
    *v = count < 0 ? 0 : (int32_t)count;
    return OK;
}

/* Values must be numbers; null leaves the default. */
static enum status set_defaults(struct call_model *m, const struct json *o, struct err *err)
{
    struct sampling_params *p = &m->defaults;
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        const struct json *n = json_get(o, reals[i].key);
        if (json_is(n, JSON_NUMBER)) {
            *(float *)((char *)p + reals[i].offset) = (float)json_number(n, 0);
        } else if (json_type(n) != JSON_NULL) {
            return bad_default(err, reals[i].key, "a number");
        }
    }
    const struct json *sample = json_get(o, "do_sample");
    if (json_type(sample) != JSON_NULL && !json_is(sample, JSON_BOOL)) {
        return bad_default(err, "do_sample", "true or false");
    }
    if (!json_bool(sample, true)) {
        p->temperature = 0; // greedy
    }
    int32_t max = 0;
    TRY(set_count(o, "top_k", &p->top_k, err));
    TRY(set_count(o, "max_new_tokens", &max, err));
    if (max > 0) {
        m->has_default_max_tokens = true;
        p->max_tokens = max;
    }
    return sampling_params_check(p, m->info->vocab, err);
}

/* Checks the operator's object: a key without effect is an error. */
static enum status check_keys(const struct json *o, struct err *err)
{
    static const char *const others[] = {"top_k", "do_sample", "max_new_tokens"};
    enum { N_REALS = sizeof reals / sizeof reals[0], N_OTHERS = sizeof others / sizeof others[0] };
    for (const struct json *c = json_first(o); c; c = json_next(c)) {
        char names[256] = "";
        bool known = false;
        for (int i = 0; i < N_REALS + N_OTHERS && !known; i++) {
            const char *name = i < N_REALS ? reals[i].key : others[i - N_REALS];
            size_t n = strlen(names);
            known = strcmp(json_key(c), name) == 0;
            snprintf(names + n, sizeof names - n, "%s%s", text_if(i > 0, ", "), name);
        }
        if (!known) {
            return err_set(err, ERR_INVALID, "unknown key '%.60s'; the known keys are %s",
                           json_key(c), names);
        }
    }
    return OK;
}

/* Reads --override-generation-config. */
static enum status override_defaults(struct call_model *m, const char *text, struct err *err)
{
    struct json *root = NULL;
    enum status st = json_parse(text, strlen(text), NULL, &root, err);
    if (st == OK) {
        st = check_keys(root, err);
    }
    if (st == OK) {
        st = set_defaults(m, root, err);
    }
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "override-generation-config");
    }
    return OK;
}

/* --generation-config: "auto" (the model's folder), "vllm" (none), or a folder. */
static enum status open_defaults(struct call_model *m, const struct config *config, struct err *err)
{
    const char *from = config->generation_config;
    m->defaults = sampling_params_default();
    if (strcmp(from, "auto") == 0) {
        m->defaults = m->info->defaults;
        m->defaults.max_tokens = 16;
    }
    size_t n_bytes = 0;
    char *text = NULL;
    if (strcmp(from, "vllm") != 0) {
        const char *dir = from;
        if (strcmp(from, "auto") == 0) {
            dir = config->engine.model;
        }
        TRY(read_in(dir, "generation_config.json", &text, &n_bytes, err));
        if (!text && dir == from) {
            return err_set(err, ERR_IO, "generation-config: no generation_config.json in '%.200s'",
                           from);
        }
    }
    struct json *root = NULL;
    enum status st = text ? json_parse(text, n_bytes, NULL, &root, err) : OK;
    free(text);
    if (st == OK && root) {
        int64_t max = json_get_int(root, "max_new_tokens", 0);
        if (strcmp(from, "auto") != 0) {
            st = set_defaults(m, root, err);
        } else if (max > 0 && max < INT32_MAX) { // "auto": the engine has read all other keys
            m->has_default_max_tokens = true;
            m->defaults.max_tokens = (int32_t)max;
        }
    }
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "generation-config");
    }
    const char *own = config->override_generation_config;
    if (own) {
        return override_defaults(m, own, err);
    }
    return OK;
}

/* ---- embeddings -------------------------------------------------------------------------------
 */

static bool pooling_of(const char *word, enum pool_kind *kind)
{
    static const struct {
        const char *word;
        enum pool_kind kind;
    } words[] = {{"mean", POOL_MEAN},  {"last", POOL_LAST}, {"none", POOL_TOKENS},
                 {"all", POOL_TOKENS}, {"max", POOL_MAX},   {"cls", POOL_FIRST},
                 {"first", POOL_FIRST}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(word, words[i].word) == 0) {
            *kind = words[i].kind;
            return true;
        }
    }
    return false;
}

static enum status bad_pooling(struct err *err, const char *word)
{
    return err_set(err, ERR_INVALID,
                   "pooler-config: '%.60s' is not supported; poolings are MEAN, LAST, MAX, NONE, "
                   "and CLS for encoders",
                   word);
}

/* Reads vLLM's pooler object. */
static enum status read_pooler_object(struct call_model *m, const char *text, struct err *err)
{
    struct json *root = NULL;
    enum status st = json_parse(text, strlen(text), NULL, &root, err);
    if (st != OK) {
        return err_prefix(err, st, "pooler-config");
    }
    m->splits_inputs = json_get_bool(root, "enable_chunked_processing", false);
    m->max_embed_tokens = (int64_t)json_number(json_get(root, "max_embed_len"), INT32_MAX);
    if (m->max_embed_tokens < 1 || m->max_embed_tokens > INT32_MAX) {
        st = err_set(err, ERR_INVALID, "pooler-config: max_embed_len is not from 1 to %d",
                     INT32_MAX);
    }
    static const char *const types[] = {"pooling_type", "seq_pooling_type"};
    static const char *const switches[] = {"normalize", "use_activation"};
    for (int i = 0; i < 2; i++) {
        const char *word = json_get_string(root, types[i]);
        if (st == OK && word && !pooling_of(word, &m->pooling)) {
            st = bad_pooling(err, word);
        }
        m->normalize = json_get_bool(root, switches[i], m->normalize);
    }
    json_free(root);
    return st;
}

/* Reads --pooler-config: an object, or one of the names. For "auto" the model's files say which
 * pooling it was trained with. A classifier's is a part of it. */
static enum status open_pooling(struct call_model *m, const struct config *config, struct err *err)
{
    const char *text = or_text(config->pooler_config, "auto");
    const enum pool_kind own = m->info->pooling;
    m->pooling = own == POOL_NONE ? POOL_MEAN : own;
    m->normalize = true;
    if (text[strspn(text, " \t")] == '{') {
        TRY(read_pooler_object(m, text, err));
    } else if (strcmp(text, "auto") != 0 && !pooling_of(text, &m->pooling)) {
        return bad_pooling(err, text);
    }
    if (m->pooling == POOL_FIRST && !m->info->encoder) {
        return bad_pooling(err, text);
    }
    if (m->info->n_labels > 0) {
        m->pooling = own;
    }
    return OK;
}

/* ---- /tokenizer_info -------------------------------------------------
 */

/* Adds "chat_template" to a configuration without one: the text of chat_template.jinja in the same
 * folder, or null. */
static enum status put_template(struct buf *out, const char *dir, bool is_first, struct err *err)
{
    char *template;
    size_t n_bytes = 0;
    TRY(read_in(dir, "chat_template.jinja", &template, &n_bytes, err));
    buf_puts(out, is_first ? "\"chat_template\":" : ",\"chat_template\":");
    if (template) {
        buf_put_json(out, template, n_bytes);
    } else {
        buf_puts(out, "null");
    }
    free(template);
    return OK;
}

/* Made once at start: vLLM's /tokenizer_info is the file's content with a few members
 * added. */
static enum status make_tokenizer_info(struct call_model *m, const char *dir, struct err *err)
{
    size_t n_bytes = 0;
    char *text;
    TRY(read_in(dir, "tokenizer_config.json", &text, &n_bytes, err));
    struct json *root = NULL;
    struct buf out;
    buf_init(&out, TEXT_MAX_BYTES);
    enum status st = text ? json_parse(text, n_bytes, NULL, &root, err) : OK;
    if (st == OK && json_is(root, JSON_OBJECT)) {
        size_t end = n_bytes;
        while (end > 0 && text[end - 1] != '}') {
            end--;
        }
        buf_put(&out, text, end - 1);
        if (!json_get(root, "chat_template")) {
            st = put_template(&out, dir, !json_first(root), err);
        }
        buf_putc(&out, '}');
        if (st == OK && out.failed) {
            st = err_set(err, ERR_NOMEM, "tokenizer_config.json: no memory for a copy of it");
        } else if (st == OK) {
            m->tokenizer_info = xstrndup(out.data, out.n_bytes);
        }
    }
    json_free(root);
    buf_deinit(&out);
    free(text);
    return st;
}

static bool is_folder(const char *path)
{
    return tokenizer_is_in(path);
}

static bool has_tokenizer(const char *path)
{
    return is_folder(path) || (strstr(path, ".json") && file_exists(path));
}

static const char *text_source(const struct config *config)
{
    if (config->tokenizer) {
        return config->tokenizer;
    }
    return config->engine.model;
}

/* Checked before the engine loads, which may take minutes. */
enum status call_model_check(const struct config *config, struct err *err)
{
    const char *from = text_source(config);
    if (config->skip_tokenizer_init || has_tokenizer(from)) {
        return OK;
    }
    if (config->tokenizer) {
        return err_set(err, ERR_IO, "tokenizer: '%.200s' has no tokenizer.json", from);
    }
    return err_set(err, ERR_IO,
                   "model '%.200s': it has no tokenizer.json; name another folder with "
                   "--tokenizer, or serve only token ids with --skip-tokenizer-init",
                   from);
}

static bool follows_llama(const struct config *config)
{
    return config->conventions && strcmp(config->conventions, "llama.cpp") == 0;
}

/* Sets the fields that need no file. Returns the path of the tokenizer. */
static const char *begin(struct call_model *m, const struct config *config,
                         const struct engine_info *info)
{
    *m = (struct call_model){.config = config,
                             .is_llama = follows_llama(config),
                             .info = info,
                             .created = clock_wall_sec(),
                             .grammars = grammars_open()};
    const char *model = config->engine.model;
    const char *from = text_source(config);
    call_model_make_names(m, config);
    m->text_dir = is_folder(from) ? from : model; // if it is a single file, nothing else is read
                                                  // from its folder
    uint64_t h = hash_bytes(model, strlen(model), (uint64_t)info->n_parameters);
    h ^= hash_bytes(SLUICE_VERSION, strlen(SLUICE_VERSION), (uint64_t)info->dtype);
    snprintf(m->fingerprint, sizeof m->fingerprint, "b%010" PRIx64, h & (uint64_t)0xffffffffff);
    return from;
}

/* The order matters: parsers are selected by the template, and need the tokenizer. */
enum status call_model_open(struct call_model *m, const struct config *config,
                            const struct engine_info *info, struct err *err)
{
    const char *from = begin(m, config, info);
    enum status st = call_model_check(config, err);
    if (st == OK && !config->skip_tokenizer_init) {
        st = tokenizer_load(from, &m->tok, err);
    }
    if (st == OK) {
        st = open_template(m, config, err);
    }
    if (st == OK) {
        st = open_defaults(m, config, err);
    }
    if (st == OK) {
        st = open_pooling(m, config, err);
    }
    if (st == OK) {
        st = scoring_open(&m->scoring, config, m->tok, m->template, info, err);
    }
    if (st == OK) {
        st = make_tokenizer_info(m, m->text_dir, err);
    }
    if (st != OK) {
        call_model_close(m);
        return st;
    }
    fim_open(&m->fim, m->tok);
    return OK;
}

/* For commands that only need ids. If the tokenizer cannot be loaded, requests with text are
 * refused with the reason. */
enum status call_model_open_prompts(struct call_model *m, const struct config *config,
                                    const struct engine_info *info, struct err *err)
{
    const char *from = begin(m, config, info);
    if (tokenizer_load(from, &m->tok, &m->no_tok) != OK) {
        log_warn("requests with text are refused: %s", m->no_tok.text);
        m->tok = NULL;
    }
    enum status st = open_defaults(m, config, err);
    if (st != OK) {
        call_model_close(m);
    }
    return st;
}

void call_model_close(struct call_model *m)
{
    grammars_close(m->grammars);
    call_adapters_close(m->adapters);
    tokenizer_free(m->tok);
    chat_template_free(m->template);
    scoring_close(&m->scoring);
    free((void *)m->names);
    free(m->folder_name);
    free(m->tokenizer_info);
    *m = (struct call_model){0};
}
