// SPDX-License-Identifier: Apache-2.0
/* Options of `sluice chat`: sampling settings, which /set can change too, and options of the
 * connection. All other options are passed on to the server. */
#include "server/cli/chat_options.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/nearest.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sampling settings by their names in a request. */
static const struct {
    const char *name;
    double min, max;
    bool whole;
    const char *help;
} settings[N_CHAT_SETTINGS] = {
    {"temperature", 0, 2, false, "T  randomness of the answers; 0: always the likeliest token"},
    {"top_p", 0, 1, false,
     "P  sample only from the likeliest tokens whose probabilities add up to P"},
    {"top_k", -1, 1e6, true, "N  sample only from the N likeliest tokens"},
    {"min_p", 0, 1, false, "P  leave out tokens less likely than P times the likeliest one"},
    {"max_tokens", 1, 1e9, true, "N  the longest answer"},
    {"seed", -1e15, 1e15, true, "N  the same seed gives the same answer"},
};

/* Options whose value is a text, which are kept as given. */
static const struct {
    const char *name;
    size_t offset;
    const char *help;
} texts[] = {
    {"system", offsetof(struct chat_options, system), "TEXT  the system prompt"},
    {"model", offsetof(struct chat_options, model),
     "NAME  the model (default: the first of /v1/models)"},
    {"api-key", offsetof(struct chat_options, api_key),
     "KEY  API key (default: the variable OPENAI_API_KEY)"},
    {"tools", offsetof(struct chat_options, tools_path),
     "FILE  JSON array of tools that the model may call; you type their results"},
};

enum { N_TEXTS = sizeof texts / sizeof texts[0] };

/* Compares names; "-" and "_" are equal. */
static bool same_name(const char *a, const char *b, size_t n_b)
{
    size_t i = 0;
    while (i < n_b && a[i] && (a[i] == '-' ? '_' : a[i]) == (b[i] == '-' ? '_' : b[i])) {
        i++;
    }
    return i == n_b && !a[i];
}

static int find_setting(const char *name, size_t n)
{
    for (int i = 0; i < N_CHAT_SETTINGS; i++) {
        if (same_name(settings[i].name, name, n)) {
            return i;
        }
    }
    return -1;
}

/* Sets a value; "default" leaves it to the server again. */
enum status chat_settings_set(struct chat_settings *s, const char *name, const char *value,
                              struct err *err)
{
    const int i = find_setting(name, strlen(name));
    if (i < 0) {
        struct nearest nearest = {.typed = name, .n_bytes = strlen(name)};
        for (int k = 0; k < N_CHAT_SETTINGS; k++) {
            nearest_try(&nearest, settings[k].name);
        }
        const char *meant = nearest_word(&nearest);
        return err_set(err, ERR_INVALID, "there is no setting '%.60s'%s%s%s", name,
                       text_if(meant, "; did you mean '"), or_empty(meant), text_if(meant, "'?"));
    }
    if (strcmp(value, "default") == 0) {
        s->is_set[i] = false;
        return OK;
    }
    char *end;
    const double v = strtod(value, &end);
    if (end == value || *end || !(v >= settings[i].min && v <= settings[i].max) ||
        (settings[i].whole && v != floor(v))) {
        return err_set(err, ERR_INVALID, "%s: '%.60s' is not a %snumber from %.15g to %.15g",
                       settings[i].name, value, text_if(settings[i].whole, "whole "),
                       settings[i].min, settings[i].max);
    }
    s->value[i] = v;
    s->is_set[i] = true;
    return OK;
}

/* The output of /set without arguments. */
void chat_settings_print(const struct chat_settings *s, struct buf *out)
{
    const size_t begin = out->n_bytes;
    for (int i = 0; i < N_CHAT_SETTINGS; i++) {
        if (s->is_set[i]) {
            buf_printf(out, "%s%s %.15g", text_if(out->n_bytes > begin, ", "), settings[i].name,
                       s->value[i]);
        }
    }
    if (out->n_bytes == begin) {
        buf_puts(out, "none");
    }
}

/* Writes the settings as members of a request. Those that are not set are left to the server. */
void chat_settings_put(const struct chat_settings *s, struct buf *out)
{
    for (int i = 0; i < N_CHAT_SETTINGS; i++) {
        if (s->is_set[i]) {
            buf_printf(out, ",\"%s\":%.15g", settings[i].name, s->value[i]);
        }
    }
}

/* ---- the command line ---------------------------------------------------------------------------
 */

/* *known is false if this is not one of chat's own options. */
static enum status take_option(struct chat_options *o, const char *name, size_t n_name,
                               const char *value, bool *known, struct err *err)
{
    *known = true;
    const int setting = find_setting(name, n_name);
    if (setting >= 0 && value) {
        return chat_settings_set(&o->settings, settings[setting].name, value, err);
    }
    for (int i = 0; i < N_TEXTS; i++) {
        if (!same_name(texts[i].name, name, n_name)) {
            continue;
        }
        if (value && strcmp(texts[i].name, "system") == 0) {
            free(o->system);
            o->system = xstrdup(value);
        } else if (value) {
            *(const char **)((char *)o + texts[i].offset) = value;
        }
        if (!value) {
            return err_set(err, ERR_INVALID, "--%s needs a value", texts[i].name);
        }
        return OK;
    }
    *known = false;
    if (setting < 0) {
        return OK;
    }
    return err_set(err, ERR_INVALID, "--%s needs a value", name);
}

/* The remaining options are for a server that the chat starts, so with a URL they are an error. */
static enum status check_rest(const struct chat_options *o, struct err *err)
{
    if (o->n_rest == 0) {
        return OK;
    }
    if (o->rest[0][0] != '-') {
        return err_set(err, ERR_INVALID,
                       "'%.200s' follows an option; the model or URL must come first, as in: "
                       "sluice chat %.200s ...",
                       o->rest[0], o->rest[0]);
    }
    if (o->target && strstr(o->target, "://")) {
        return err_set(err, ERR_INVALID,
                       "unknown option '%.200s'; options of `sluice serve` need a model, not the "
                       "URL of a running server",
                       o->rest[0]);
    }
    return OK;
}

/* An argument without a dash is the model or URL; it must be the first. */
enum status chat_options_parse(int argc, char **argv, struct chat_options *o, struct err *err)
{
    *o = (struct chat_options){.api_key = getenv("OPENAI_API_KEY")};
    o->rest = xcalloc((size_t)argc + 1, sizeof *o->rest);
    int i = 1;
    if (argc > 1 && argv[1][0] != '-') {
        o->target = argv[i++];
    }
    while (i < argc) {
        const char *word = argv[i];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            o->help = true;
            return OK;
        }
        bool known = false;
        const char *name = word + 2, *equals = strchr(word, '=');
        if (strncmp(word, "--", 2) == 0) {
            const size_t n = equals ? (size_t)(equals - name) : strlen(name);
            const char *next = i + 1 < argc ? argv[i + 1] : NULL;
            TRY(take_option(o, name, n, equals ? equals + 1 : next, &known, err));
        }
        if (!known) {
            o->rest[o->n_rest++] = argv[i];
        }
        i += known && !equals ? 2 : 1;
    }
    if (o->api_key && strpbrk(o->api_key, "\r\n")) {
        return err_set(err, ERR_INVALID, "the API key has a line break");
    }
    return check_rest(o, err);
}

void chat_options_deinit(struct chat_options *o)
{
    free(o->system);
    free(o->rest);
}

/* `help` is the value's name, two spaces, and the description. */
static void print_option(const char *name, const char *help)
{
    enum { COLUMN = 20 };
    const char *text = strstr(help, "  ");
    int n_value = (int)(text - help);
    int n_pad = greater(0, COLUMN - 1 - (int)strlen(name) - n_value);
    printf("  --%s %.*s%*s  %s\n", name, n_value, help, n_pad, "", text + 2);
}

void chat_options_help(void)
{
    printf(
        "usage: sluice chat [MODEL|URL] [OPTIONS]\n"
        "\n"
        "A conversation in the terminal with a model, which is served for as long as the chat "
        "lasts,\n"
        "or with a running server (http://HOST:PORT). Without either, the chat uses the server on\n"
        "127.0.0.1:8000 if there is one, otherwise the demo model. In the chat, /help lists the\n"
        "commands. Through a pipe, each line is a message, and only answers are printed.\n"
        "\n");
    for (int i = 0; i < N_TEXTS; i++) {
        print_option(texts[i].name, texts[i].help);
    }
    for (int i = 0; i < N_CHAT_SETTINGS; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", settings[i].name);
        for (char *c = name; *c; c++) {
            if (*c == '_') {
                *c = '-';
            }
        }
        print_option(name, settings[i].help);
    }
    printf("\nOther options are those of `sluice serve` (such as --max-model-len 4096) when a "
           "model is "
           "served.\n");
}
