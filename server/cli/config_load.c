// SPDX-License-Identifier: Apache-2.0
/* Loads a configuration from defaults, file, environment and flags. Each of these overrides those
 * before it, whatever the order in which they are read. */
#include "server/cli/config_load.h"
#include "server/cli/adapter_options.h"

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/base/words.h"
#include "engine/device/params.h"
#include "server/cli/config_source.h"
#include "server/cli/config_value.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* For a Service called "sluice", Kubernetes sets SLUICE_PORT=tcp://ADDRESS:PORT in the containers
 * of its namespace, unless they have enableServiceLinks: false. Docker's links are written alike.
 */
static bool is_service_link(const char *name, const char *value)
{
    return strcmp(name, "port") == 0 &&
           (has_prefix(value, "tcp://") || has_prefix(value, "udp://"));
}

/* Reads one variable, SLUICE_NAME=value. */
static enum status read_variable(struct loading *l, const char *variable, struct err *err)
{
    const char *equals = strchr(variable, '='), *key = variable + strlen("SLUICE_");
    size_t n_bytes = equals ? (size_t)(equals - key) : 0;
    char name[64] = "";
    if (n_bytes == 0 || n_bytes >= sizeof name) {
        return OK;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        name[i] = (char)tolower((unsigned char)key[i]);
    }
    if (is_service_link(name, equals + 1)) {
        log_info("environment SLUICE_PORT=%s is the address of a service, and is ignored",
                 equals + 1);
        return OK;
    }
    if (loading_is_name("config", name, n_bytes) && !l->file) {
        l->file = xstrdup(equals + 1);
    }
    const struct option_row *row = loading_find_row(name, n_bytes);
    if (!row || equals[1] == '\0') { // other SLUICE_* names belong to tests and tools
        return OK;
    }
    enum status st = loading_set(l, row, equals + 1, SOURCE_ENV, err);
    if (st != OK) {
        return err_prefix(err, st, "environment SLUICE_%.*s", (int)n_bytes, key);
    }
    return OK;
}

/* Users of vLLM may have its API key in the environment, which is used, and other settings, which
 * have no effect. The latter are logged by name, never with their values. */
static enum status read_vllm_env(struct loading *l, char **env, struct err *err)
{
    static const char api_key[] = "VLLM_API_KEY=";
    struct buf unknown;
    buf_init(&unknown, 4096);
    enum status st = OK;
    for (; st == OK && *env; env++) {
        size_t n_name = strcspn(*env, "=");
        if (has_prefix(*env, api_key)) {
            const char *key = *env + strlen(api_key);
            const struct option_row *row = loading_find_row("api-key", 7);
            if (*key) {
                st = loading_set(l, row, key, SOURCE_VLLM_ENV, err);
            } else {
                st = OK;
            }
        } else if (has_prefix(*env, "VLLM_")) {
            if (unknown.n_bytes > 0) {
                buf_puts(&unknown, ", ");
            }
            buf_put(&unknown, *env, n_name);
        }
    }
    if (unknown.n_bytes > 0) {
        log_warn("environment variables of vLLM that have no effect here: %s", unknown.data);
    }
    buf_deinit(&unknown);
    return st;
}

/* Reads the SLUICE_* variables that name an option; others belong to tests and tools. vLLM's API
 * key is used only if no other is given. */
static enum status read_env(struct loading *l, char **env, struct err *err)
{
    if (!env) {
        return OK;
    }
    for (char **e = env; *e; e++) {
        if (has_prefix(*e, "SLUICE_")) {
            TRY(read_variable(l, *e, err));
        }
    }
    return read_vllm_env(l, env, err);
}

/* True for an origin as browsers send it: scheme://host[:port] and nothing after it. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    bool plain = host && host > text && host[3] && !strpbrk(host + 3, "/ ,");
    return plain || words_find("*|null|loopback|localhost", text) >= 0;
}

/* Checks that involve several options, or more than the type of a value. */
static enum status check(const struct config *c, struct err *err)
{
    for (size_t i = 0; i < c->allowed_origins.n; i++) {
        const char *origin = c->allowed_origins.items[i];
        if (!is_origin(origin)) {
            return err_set(err, ERR_INVALID,
                           "allowed-origins: '%.100s' is not an origin such as https://a.example",
                           origin);
        }
    }
    if ((c->ssl_certfile == NULL) != (c->ssl_keyfile == NULL)) {
        return err_set(err, ERR_INVALID, "ssl-certfile and ssl-keyfile must be given together");
    }
    if (c->overload_status != 429 && c->overload_status != 503) {
        return err_set(err, ERR_INVALID, "overload-status must be 429 or 503");
    }
    if (c->root_path && c->root_path[0] != '/') {
        return err_set(err, ERR_INVALID, "root-path must begin with '/'");
    }
    return OK;
}

/* Removes the slash that shell completion adds to "models/demo/". */
static void trim_slashes(const char **folder)
{
    size_t n = length_or_0(*folder), trimmed = n;
    while (trimmed > 1 && (*folder)[trimmed - 1] == '/') {
        trimmed--;
    }
    if (trimmed < n) {
        char *text = xstrndup(*folder, trimmed);
        free((void *)*folder);
        *folder = text;
    }
}

static enum status choose_conventions(struct loading *l, struct err *err)
{
    const struct option_row *row = loading_find_row("conventions", 11);
    if (strcmp(l->config->conventions, "auto") != 0) {
        l->is_llama = strcmp(l->config->conventions, "llama.cpp") == 0;
        return OK;
    }
    if (l->is_llama) {
        log_info("answers follow llama.cpp's conventions, because its flags were given; see "
                 "--conventions");
        return config_value_set(l->config, row, "llama.cpp", err);
    }
    return config_value_set(l->config, row, "vllm", err);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* llama.cpp's server ignores the model that a request names, because its clients write anything
 * there. With its conventions this server ignores it, too, unless --served-model-name is given. Of
 * several aliases its default is the first in alphabetical order. */
static enum status allow_any_name(struct loading *l, struct err *err)
{
    struct string_list *names = &l->config->served_model_name;
    if (!l->is_llama || l->has_names) {
        return OK;
    }
    if (names->n > 1) {
        qsort(names->items, names->n, sizeof names->items[0], by_text);
    }
    log_info("requests may name any model, as in llama.cpp; --served-model-name limits the names");
    return config_value_set(l->config, loading_find_row("served-model-name", 17), "*", err);
}

/* llama.cpp divides --ctx-size by --parallel, unless the sequences share one cache. */
static void divide_context(const struct loading *l)
{
    struct engine_options *e = &l->config->engine;
    if (!l->is_llama || !l->has_ctx_size || !l->has_parallel || l->is_unified) {
        return;
    }
    if (e->max_num_seqs > 1 && e->max_model_len >= e->max_num_seqs) {
        e->max_model_len /= e->max_num_seqs;
        log_info("each sequence has a context of %lld tokens, --ctx-size divided by --parallel as "
                 "in llama.cpp; with --kv-unified, or --max-model-len, it is not divided",
                 (long long)e->max_model_len);
    }
}

/* llama.cpp serves metrics only with --metrics. */
static enum status close_metrics(const struct loading *l, struct err *err)
{
    if (!l->is_llama || l->has_metrics) {
        return OK;
    }
    log_info("/metrics is not served without --metrics, as in llama.cpp");
    return config_value_set(l->config, loading_find_row("disable-routes", 14), "/metrics", err);
}

/* llama.cpp's --spec-draft-n-max has no meaning without a draft model, and may be large. */
static enum status settle_drafts(const struct loading *l, struct err *err)
{
    enum { MOST = 15 }; // the engine's limit
    static const char key[] = "num_speculative_tokens";
    const struct option_row *row = loading_find_row("speculative-config", 18);
    const char *text = l->config->engine.speculative_config;
    struct json *config = NULL;
    char most[16];
    enum status st = OK;
    if (!l->is_llama || !text || json_parse(text, strlen(text), NULL, &config, NULL) != OK) {
        return OK;
    }
    snprintf(most, sizeof most, "%d", MOST);
    if (!json_get(config, "model") && !json_get(config, "method")) {
        log_info("there are no drafts without a draft model or a method; see --speculative-config");
        config_value_clear(l->config, row);
    } else if (json_get_int(config, key, 0) > MOST && json_count(config) == 2) {
        log_info("at most %s tokens are drafted for a sequence in one step", most);
        const char *model = json_get_string(config, "model"); // the only other flag there is
        config_value_clear(l->config, row);
        st = config_value_set_member(l->config, row, "model", or_empty(model), err);
        if (st == OK) {
            st = config_value_set_member(l->config, row, key, most, err);
        }
    }
    json_free(config);
    return st;
}

/* The file is named by a flag or variable, so these are read first; `source` remembers for
 * each option where its value comes from. */
enum status config_load(struct config *c, int argc, char **argv, char **env, struct err *err)
{
    *c = (struct config){0};
    struct loading l = {.config = c,
                        .source = xcalloc(n_option_rows, 1),
                        .in_file = xcalloc(n_option_rows, sizeof(bool))};
    enum status st = OK;
    for (size_t i = 0; st == OK && i < n_option_rows; i++) {
        if (option_rows[i].initial) {
            st = config_value_set(c, &option_rows[i], option_rows[i].initial, err);
        }
    }
    if (st == OK) {
        st = loading_read_flags(&l, argc, argv, err);
    }
    if (st == OK) {
        st = read_env(&l, env, err);
    }
    if (st == OK && l.file) {
        st = loading_read_file(&l, err);
    }
    if (st == OK) {
        st = choose_conventions(&l, err);
    }
    if (st == OK) {
        st = allow_any_name(&l, err);
        divide_context(&l);
    }
    if (st == OK) {
        st = close_metrics(&l, err);
    }
    if (st == OK) {
        st = settle_drafts(&l, err);
    }
    if (st == OK) {
        st = check(c, err);
    }
    if (st == OK) {
        st = adapter_options_read(c, err);
    }
    trim_slashes(&c->engine.model);
    free(l.source);
    free(l.in_file);
    free(l.file);
    if (st != OK) {
        config_deinit(c);
    }
    return st;
}

void config_deinit(struct config *c)
{
    adapter_options_free(c);
    for (size_t i = 0; i < n_option_rows; i++) {
        config_value_clear(c, &option_rows[i]);
    }
}

void config_set_log_level(const struct config *c, bool quiet)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(names[i], c->log_level) == 0) {
            log_set_level(quiet && i == LOG_INFO ? LOG_WARN : (enum log_level)i);
        }
    }
}
