// SPDX-License-Identifier: Apache-2.0
/* Reads the environment, with the names and defaults of huggingface_hub. */
#include "engine/base/optional.h"
#include "server/hub/private.h"

#include "engine/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { TIMEOUT_S = 30 };

/* NULL if the variable is unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    if (value && *value) {
        return value;
    }
    return NULL;
}

/* True for the words that huggingface_hub accepts as true. */
static bool is_true(const char *value)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; value && i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(value, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* DIR/more, with "~/" expanded to the home folder. */
static enum status join(char *out, const char *dir, const char *more, struct err *err)
{
    const bool at_home = dir[0] == '~' && (dir[1] == '/' || dir[1] == '\0');
    const char *home = variable("HOME");
    if (at_home && !home) {
        return err_set(err, ERR_INVALID,
                       "there is no folder for the model cache, because HOME is not set: set "
                       "HF_HOME to a folder");
    }
    return hub_path(out, err, "%s%s%s", at_home ? home : "", dir + at_home, more);
}

/* HF_HOME, otherwise the user's cache folder. */
static enum status read_home(char home[PATH_MAX], struct err *err)
{
    const char *given = variable("HF_HOME"), *caches = variable("XDG_CACHE_HOME");
    if (given) {
        return join(home, given, "", err);
    }
    if (caches) {
        return join(home, caches, "/huggingface", err);
    }
    return join(home, "~", "/.cache/huggingface", err);
}

static enum status read_cache(struct hub_settings *s, const char *home, struct err *err)
{
    const char *given = variable("HF_HUB_CACHE");
    if (!given) {
        given = variable("HUGGINGFACE_HUB_CACHE");
    }
    if (given) {
        return join(s->cache, given, "", err);
    }
    return join(s->cache, home, "/hub", err);
}

/* The token is sent in a header. White space around it, such as a file's line end, is trimmed;
 * white space inside is an error. */
static enum status set_token(struct hub_settings *s, const char *text, const char *from,
                             struct err *err)
{
    static const char space[] = " \t\r\n";
    text += strspn(text, space);
    size_t n = strlen(text);
    while (n > 0 && strchr(space, text[n - 1])) {
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return err_set(err, ERR_INVALID,
                           "%.200s: a token must have no spaces or control characters", from);
        }
    }
    if (n >= sizeof s->token) {
        return err_set(err, ERR_LIMIT, "%.200s: too long for a token", from);
    }
    memcpy(s->token, text, n);
    s->token[n] = '\0';
    return OK;
}

/* Reads the token from the environment, otherwise from the file that huggingface_hub's login
 * writes. */
static enum status read_token(struct hub_settings *s, const char *home, struct err *err)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    for (size_t i = 0; i < 2; i++) {
        if (variable(names[i])) {
            return set_token(s, variable(names[i]), names[i], err);
        }
    }
    char path[PATH_MAX];
    const char *given = variable("HF_TOKEN_PATH");
    TRY(given ? join(path, given, "", err) : join(path, home, "/token", err));
    if (!file_exists(path)) {
        return OK;
    }
    char *text;
    size_t n_bytes;
    TRY(file_read(path, 4096, &text, &n_bytes, err));
    enum status st = set_token(s, text, path, err);
    free(text);
    return st;
}

/* The endpoint without its final slash. http is allowed for mirrors in a local network. */
static enum status read_endpoint(struct hub_settings *s, struct err *err)
{
    const char *given = variable("HF_ENDPOINT");
    const char *url = or_text(given, "https://huggingface.co");
    size_t n = strlen(url);
    while (n > 0 && url[n - 1] == '/') {
        n--;
    }
    const bool known = strncmp(url, "https://", 8) == 0 || strncmp(url, "http://", 7) == 0;
    if (!known || n >= sizeof s->endpoint || strpbrk(url, " \r\n?#@")) {
        return err_set(err, ERR_INVALID,
                       "HF_ENDPOINT: '%.200s' is not an address such as https://huggingface.co",
                       url);
    }
    snprintf(s->endpoint, sizeof s->endpoint, "%.*s", (int)n, url);
    return OK;
}

enum status hub_settings_read(struct hub_settings *s, struct err *err)
{
    *s = (struct hub_settings){.timeout_s = TIMEOUT_S};
    char home[PATH_MAX];
    TRY(read_home(home, err));
    TRY(read_cache(s, home, err));
    TRY(read_token(s, home, err));
    TRY(read_endpoint(s, err));
    s->offline = is_true(variable("HF_HUB_OFFLINE")) || is_true(variable("TRANSFORMERS_OFFLINE"));
    const char *seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT");
    const long n = seconds ? strtol(seconds, NULL, 10) : 0;
    if (n > 0 && n < 100000) {
        s->timeout_s = (int)n;
    }
    return OK;
}
