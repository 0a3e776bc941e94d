#include "server/cli/config_load.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "server/cli/config_table.h"
#include "server/cli/config_value.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX_BYTES = 1 << 20 };

/* Where a value came from, the weakest first: a source never overwrites a stronger one. */
enum source { SOURCE_DEFAULT, SOURCE_FILE, SOURCE_VLLM_ENV, SOURCE_ENV, SOURCE_FLAG };

/* Parallel to option_rows. Kept beside struct config, because only printing asks for it. */
struct loading {
    struct config *config;
    char *file;
    unsigned char *source;
    bool *in_file; // rows that the file has named
};

static bool is_default(const struct config *c, const struct option_row *row)
{
    struct buf now;
    buf_init(&now, 1 << 20);
    config_value_print(c, row, &now);
    const char *initial = row->initial ? row->initial : "";
    struct config fresh = {0};
    struct buf then;
    buf_init(&then, 1 << 20);
    bool same = true;
    if (*initial) {
        config_value_set(&fresh, row, initial, NULL);
    }
    config_value_print(&fresh, row, &then);
    same = now.n_bytes == then.n_bytes && memcmp(now.n_bytes ? now.data : "",
                                                 then.n_bytes ? then.data : "", now.n_bytes) == 0;
    buf_deinit(&now);
    buf_deinit(&then);
    config_deinit(&fresh);
    return same;
}

/* Keys compare with '_' as '-'. */
static bool same_name(const char *name, const char *key, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        char c = key[i] == '_' ? '-' : key[i];
        if (name[i] == '\0' || name[i] != c) {
            return false;
        }
    }
    return name[n_bytes] == '\0';
}

static const struct option_row *find_row(const char *key, size_t n_bytes)
{
    for (size_t i = 0; i < n_option_aliases; i++) {
        if (same_name(option_aliases[i].alias, key, n_bytes)) {
            key = option_aliases[i].name;
            n_bytes = strlen(key);
            break;
        }
    }
    for (size_t i = 0; i < n_option_rows; i++) {
        if (same_name(option_rows[i].name, key, n_bytes)) {
            return &option_rows[i];
        }
    }
    return NULL;
}

static enum status unknown(const char *where, const char *key, size_t n_bytes, struct err *err)
{
    struct nearest nearest = {.typed = key, .n_bytes = n_bytes};
    for (size_t i = 0; i < n_option_rows; i++) {
        nearest_try(&nearest, option_rows[i].name);
    }
    for (size_t i = 0; i < n_option_aliases; i++) {
        nearest_try(&nearest, option_aliases[i].alias);
    }
    const char *meant = nearest_word(&nearest);
    int n = n_bytes > 100 ? 100 : (int)n_bytes;
    if (meant) {
        return err_set(err, ERR_INVALID, "%sunknown option '%.*s'; did you mean '%s'?", where, n,
                       key, meant);
    }
    return err_set(err, ERR_INVALID, "%sunknown option '%.*s'", where, n, key);
}

static enum status set(struct loading *l, const struct option_row *row, const char *value,
                       enum source source, struct err *err)
{
    unsigned char *from = &l->source[row - option_rows];
    if (row->type == OPTION_IGNORED || row->type == OPTION_IGNORED_VALUE) {
        log_info("option %s has no effect here: %s", row->name, row->help);
        return OK;
    }
    if (*from > source) {
        return OK;
    }
    if (*from < source) { // the first of this source replaces; lists then grow
        config_value_clear(l->config, row);
        *from = (unsigned char)source;
    }
    return config_value_set(l->config, row, value, err);
}

static bool takes_no_value(const struct option_row *row)
{
    return row->type == OPTION_BOOL || row->type == OPTION_IGNORED;
}

static bool is_negation(const char *name, size_t n_bytes, const struct option_row **row)
{
    if (n_bytes > 3 && memcmp(name, "no-", 3) == 0) {
        *row = find_row(name + 3, n_bytes - 3);
        return *row && takes_no_value(*row);
    }
    return false;
}

/* One flag at argv[i]; returns how many words it took through *used. */
static enum status read_flag(struct loading *l, int n_left, char **words, int *used,
                             struct err *err)
{
    const char *name = words[0] + (words[0][1] == '-' ? 2 : 1);
    const char *equals = strchr(name, '=');
    size_t n_bytes = equals ? (size_t)(equals - name) : strlen(name);
    *used = 1;
    if (same_name("config", name, n_bytes)) {
        const char *path = equals ? equals + 1 : n_left > 1 ? words[1] : NULL;
        if (!path) {
            return err_set(err, ERR_INVALID, "--config needs a file");
        }
        *used = equals ? 1 : 2;
        free(l->file);
        l->file = xstrdup(path);
        return OK;
    }
    const struct option_row *row = find_row(name, n_bytes);
    if (!row) {
        if (!is_negation(name, n_bytes, &row)) {
            return unknown("", words[0], strlen(words[0]), err);
        }
        return set(l, row, "false", SOURCE_FLAG, err);
    }
    if (takes_no_value(row)) {
        return set(l, row, equals ? equals + 1 : "true", SOURCE_FLAG, err);
    }
    if (equals) {
        return set(l, row, equals + 1, SOURCE_FLAG, err);
    }
    if (n_left < 2) {
        return err_set(err, ERR_INVALID, "--%s needs a value", row->name);
    }
    *used = 2;
    TRY(set(l, row, words[1], SOURCE_FLAG, err));
    while (row->type == OPTION_LIST && *used < n_left && words[*used][0] != '-') {
        TRY(set(l, row, words[*used], SOURCE_FLAG, err)); // --served-model-name a b
        *used += 1;
    }
    return OK;
}

static enum status read_flags(struct loading *l, int argc, char **argv, struct err *err)
{
    const struct option_row *model = find_row("model", 5);
    bool positional = false;
    for (int i = 1; i < argc;) {
        int used = 1;
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            TRY(read_flag(l, argc - i, argv + i, &used, err));
        } else if (positional) {
            return err_set(err, ERR_INVALID, "a second model '%s'", argv[i]);
        } else {
            TRY(set(l, model, argv[i], SOURCE_FLAG, err));
            positional = true;
        }
        i += used;
    }
    return OK;
}

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* One SLUICE_NAME=value. */
static enum status read_variable(struct loading *l, const char *variable, struct err *err)
{
    const char *equals = strchr(variable, '='), *key = variable + strlen("SLUICE_");
    size_t n_bytes = equals ? (size_t)(equals - key) : 0;
    char name[64];
    if (n_bytes == 0 || n_bytes >= sizeof name) {
        return OK;
    }
    for (size_t i = 0; i < n_bytes; i++) {
        name[i] = (char)tolower((unsigned char)key[i]);
    }
    if (same_name("config", name, n_bytes) && !l->file) {
        l->file = xstrdup(equals + 1);
    }
    const struct option_row *row = find_row(name, n_bytes);
    if (!row || equals[1] == '\0') { // other SLUICE_* names belong to tests and tools
        return OK;
    }
    enum status st = set(l, row, equals + 1, SOURCE_ENV, err);
    return st == OK ? OK : err_prefix(err, st, "environment SLUICE_%.*s", (int)n_bytes, key);
}

/* Who comes from vLLM brings its key in the environment, and maybe settings that do nothing here:
 * those are named, never their values. */
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
            st = *key ? set(l, find_row("api-key", 7), key, SOURCE_VLLM_ENV, err) : OK;
        } else if (has_prefix(*env, "VLLM_")) {
            buf_puts(&unknown, unknown.n_bytes > 0 ? ", " : "");
            buf_put(&unknown, *env, n_name);
        }
    }
    if (unknown.n_bytes > 0) {
        log_warn("environment variables of vLLM that have no effect here: %s", unknown.data);
    }
    buf_deinit(&unknown);
    return st;
}

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

/* Cuts a trailing comment and white space, and takes the quotes off. NULL if a quoted text does
 * not end, or is not all there is. */
static char *scalar(char *s)
{
    while (*s == ' ' || *s == '\t') {
        s++;
    }
    if (*s == '"' || *s == '\'') {
        char *end = strchr(s + 1, *s);
        const char *rest = end ? end + 1 + strspn(end + 1, " \t\r") : NULL;
        if (!rest || (*rest != '\0' && *rest != '#')) {
            return NULL;
        }
        *end = '\0';
        return s + 1;
    }
    char *end = s;
    for (char *p = s; *p; p++) {
        if (*p == '#' && (p == s || p[-1] == ' ' || p[-1] == '\t')) {
            break;
        }
        end = *p == ' ' || *p == '\t' || *p == '\r' ? end : p + 1;
    }
    *end = '\0';
    return s;
}

static enum status bad_quotes(const struct option_row *row, struct err *err)
{
    return err_set(err, ERR_FORMAT, "option %s: a quote does not end, or text follows it",
                   row->name);
}

static enum status set_line(struct loading *l, const struct option_row *row, char *value,
                            struct err *err)
{
    size_t n = strlen(value);
    if (row->type == OPTION_LIST && n >= 2 && value[0] == '[' && value[n - 1] == ']') {
        value[n - 1] = '\0';
        for (char *item = value + 1; item;) {
            char *comma = strchr(item, ',');
            if (comma) {
                *comma = '\0';
            }
            char *text = scalar(item);
            if (!text) {
                return bad_quotes(row, err);
            }
            if (*text) {
                TRY(set(l, row, text, SOURCE_FILE, err));
            }
            item = comma ? comma + 1 : NULL;
        }
        return OK;
    }
    return set(l, row, value, SOURCE_FILE, err);
}

/* One line; *list is the row that "- item" lines belong to. */
static enum status read_line(struct loading *l, char *line, const struct option_row **list,
                             struct err *err)
{
    bool indented = *line == ' ' || *line == '\t' || *line == '-';
    while (*line == ' ' || *line == '\t') {
        line++;
    }
    if (*line == '\0' || *line == '#' || *line == '\r' || strncmp(line, "---", 3) == 0) {
        return OK;
    }
    if (indented && *line == '-' && *list) {
        char *item = scalar(line + 1);
        return item ? set(l, *list, item, SOURCE_FILE, err) : bad_quotes(*list, err);
    }
    char *colon = strchr(line, ':');
    if (!colon || indented) {
        return err_set(err, ERR_FORMAT, "expected 'key: value'");
    }
    size_t n_bytes = (size_t)(colon - line);
    while (n_bytes > 0 && (line[n_bytes - 1] == ' ' || line[n_bytes - 1] == '\t')) {
        n_bytes--;
    }
    const struct option_row *row = find_row(line, n_bytes);
    if (!row) {
        return unknown("", line, n_bytes, err);
    }
    char *value = scalar(colon + 1);
    if (!value) {
        return bad_quotes(row, err);
    }
    *list = row->type == OPTION_LIST ? row : NULL;
    if (l->in_file[row - option_rows]) {
        return err_set(err, ERR_FORMAT, "option %s is in this file already", row->name);
    }
    l->in_file[row - option_rows] = true;
    if (*value == '\0' || strcmp(value, "null") == 0 || strcmp(value, "~") == 0) {
        return OK;
    }
    return set_line(l, row, value, err);
}

static enum status read_file(struct loading *l, struct err *err)
{
    char *text;
    size_t n_bytes;
    TRY(file_read(l->file, FILE_MAX_BYTES, &text, &n_bytes, err));
    const struct option_row *list = NULL;
    enum status st = OK;
    int number = 1;
    bool has_mark = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0; // of byte order
    for (char *line = text + (has_mark ? 3 : 0); st == OK && line && *line; number++) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        st = read_line(l, line, &list, err);
        line = end ? end + 1 : NULL;
    }
    free(text);
    return st == OK ? OK : err_prefix(err, st, "%s:%d", l->file, number - 1);
}

/* As browsers send it: scheme://host[:port], nothing behind. */
static bool is_origin(const char *text)
{
    const char *host = strstr(text, "://");
    bool plain = host && host > text && host[3] && !strpbrk(host + 3, "/ ,");
    return plain || strcmp(text, "*") == 0 || strcmp(text, "null") == 0;
}

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
        return err_set(err, ERR_INVALID, "ssl-certfile and ssl-keyfile go together");
    }
    if (c->overload_status != 429 && c->overload_status != 503) {
        return err_set(err, ERR_INVALID, "overload-status is 429 or 503");
    }
    if (c->root_path && c->root_path[0] != '/') {
        return err_set(err, ERR_INVALID, "root-path must begin with '/'");
    }
    if (!c->engine.model && !c->help && !c->print_config) {
        return err_set(err, ERR_INVALID, "which model? (sluice serve FOLDER)");
    }
    return OK;
}

/* "models/demo/" is how a shell completes it: the slash is no part of a name. */
static void trim_slashes(const char **folder)
{
    size_t n = *folder ? strlen(*folder) : 0, trimmed = n;
    while (trimmed > 1 && (*folder)[trimmed - 1] == '/') {
        trimmed--;
    }
    if (trimmed < n) {
        char *text = xstrndup(*folder, trimmed);
        free((void *)*folder);
        *folder = text;
    }
}

enum status config_load(struct config *c, int argc, char **argv, char **env, struct err *err)
{
    *c = (struct config){0};
    struct loading l = {.config = c, .source = xcalloc(n_option_rows, 1),
                        .in_file = xcalloc(n_option_rows, sizeof(bool))};
    enum status st = OK;
    for (size_t i = 0; st == OK && i < n_option_rows; i++) {
        if (option_rows[i].initial) {
            st = config_value_set(c, &option_rows[i], option_rows[i].initial, err);
        }
    }
    st = st == OK ? read_flags(&l, argc, argv, err) : st;
    st = st == OK ? read_env(&l, env, err) : st;
    st = st == OK && l.file ? read_file(&l, err) : st;
    st = st == OK ? check(c, err) : st;
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
    for (size_t i = 0; i < n_option_rows; i++) {
        config_value_clear(c, &option_rows[i]);
    }
}

void config_help(struct buf *out)
{
    buf_puts(out, "usage: sluice serve MODEL [OPTIONS]\n\n"
                  "Every option is also a key of --config FILE ('key: value' lines) and, as\n"
                  "SLUICE_MAX_MODEL_LEN for --max-model-len, an environment variable.\n");
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->section) {
            buf_printf(out, "\n%s:\n", row->section);
        }
        bool negatable = row->type == OPTION_BOOL && row->initial && row->initial[0] == 't';
        buf_printf(out, "  --%s%-*s %s", negatable ? "[no-]" : "",
                   negatable ? 25 : 30, row->name, row->help);
        if (row->choices) {
            buf_printf(out, " (%s)", row->choices);
        }
        if (row->initial && row->type != OPTION_BOOL) {
            buf_printf(out, " [%s]", row->initial);
        }
        buf_putc(out, '\n');
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

void config_print(const struct config *c, bool only_set, struct buf *out)
{
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->type >= OPTION_IGNORED || row->is_command) {
            continue;
        }
        bool initial = is_default(c, row);
        if (only_set && initial) {
            continue;
        }
        struct buf value;
        buf_init(&value, 1 << 20);
        config_value_print(c, row, &value);
        if (row->secret && value.n_bytes > 0) {
            buf_printf(out, "# %s: set, not shown\n", row->name);
        } else if (value.n_bytes == 0) {
            buf_printf(out, "# %s:\n", row->name);
        } else {
            buf_printf(out, "%s: %s%s\n", row->name, value.data, initial ? "  # default" : "");
        }
        buf_deinit(&value);
    }
}
