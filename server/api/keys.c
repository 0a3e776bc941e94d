// SPDX-License-Identifier: Apache-2.0
/* API keys: from options and from a file, each with scopes and a tenant. A file can be
 * read again while the server runs. */
#include "server/api/keys.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "server/api/api.h"
#include "server/call/tenant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `name` appears in logs in place of the key. */
struct key {
    char *text, *name;
    unsigned scopes;
    struct tenant *tenant;
};

struct keys {
    const struct config *config;
    struct key *list;
    size_t n;
};

/* Frees the keys. Tenants have a reference count: running requests keep theirs. */
static void clear(struct key *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(list[i].text);
        free(list[i].name);
        tenant_drop(list[i].tenant);
    }
    free(list);
}

static void add(struct keys *k, const char *text, const char *name, unsigned scopes,
                const struct tenant_limits *limits)
{
    k->list = xrealloc(k->list, (k->n + 1) * sizeof k->list[0]);
    k->list[k->n++] = (struct key){xstrdup(text), xstrdup(name), scopes, tenant_new(limits)};
}

/* Reads a comma-separated list of scopes. */
static enum status read_scopes(const char *text, unsigned *scopes, struct err *err)
{
    static const char *const names[] = {"inference", "admin", "metrics", "all"};
    static const unsigned bits[] = {SCOPE_INFERENCE, SCOPE_ADMIN, SCOPE_METRICS,
                                    SCOPE_INFERENCE | SCOPE_ADMIN | SCOPE_METRICS};
    for (*scopes = 0; *text;) {
        size_t n = strcspn(text, ","), i = 0;
        while (i < 4 && (strlen(names[i]) != n || memcmp(names[i], text, n) != 0)) {
            i++;
        }
        if (i == 4) {
            return err_set(err, ERR_FORMAT, "unknown scope '%.*s'", (int)lesser(n, 30), text);
        }
        *scopes |= bits[i];
        text += n + (text[n] == ',');
    }
    return OK;
}

/* Returns the next word of the line, terminated in place; NULL at the end. */
static char *next_word(char **rest)
{
    static const char space[] = " \t\r";
    char *word = *rest + strspn(*rest, space);
    *rest = word + strcspn(word, space);
    if (**rest) {
        *(*rest)++ = '\0';
    }
    return *word ? word : NULL;
}

/* After the key, words with '=' are settings; the first other word lists the scopes, the second is
 * the name. */
static enum status read_line(struct keys *k, char *line, struct err *err)
{
    struct tenant_limits limits = tenant_limits_default(k->config);
    const char *others[2] = {NULL, NULL};
    unsigned scopes = SCOPE_INFERENCE;
    line[strcspn(line, "#")] = '\0';
    char *rest = line, *key = next_word(&rest);
    if (!key) {
        return OK;
    }
    int n_others = 0;
    for (char *word; (word = next_word(&rest)) != NULL;) {
        if (strchr(word, '=')) {
            TRY(tenant_limits_set(&limits, word, err));
        } else if (n_others < 2) {
            others[n_others++] = word;
        }
    }
    TRY(tenant_limits_check(&limits, err));
    if (others[0]) {
        TRY(read_scopes(others[0], &scopes, err));
    }
    char name[32];
    snprintf(name, sizeof name, "key%zu", k->n + 1);
    add(k, key, others[1] ? others[1] : name, scopes, &limits);
    return OK;
}

/* Reads the key file. Errors name the line. The text is erased afterwards, since it contains
 * secrets. */
static enum status read_file(struct keys *k, struct err *err)
{
    char *text;
    size_t n_bytes;
    TRY(file_read(k->config->api_key_file, 1 << 20, &text, &n_bytes, err));
    enum status st = OK;
    int number = 1;
    for (char *line = text; st == OK && line; number++) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        st = read_line(k, line, err);
        line = end ? end + 1 : NULL;
    }
    memset(text, 0, n_bytes);
    free(text);
    if (st != OK) {
        return err_prefix(err, st, "%s:%d", k->config->api_key_file, number - 1);
    }
    return OK;
}

/* Loads the keys of options, which have all scopes, and those of the file. */
static enum status load(struct keys *k, struct err *err)
{
    const struct string_list *given = &k->config->api_key;
    const struct tenant_limits limits = tenant_limits_default(k->config);
    for (size_t i = 0; i < given->n; i++) {
        add(k, given->items[i], "configured", SCOPE_INFERENCE | SCOPE_ADMIN | SCOPE_METRICS,
            &limits);
    }
    if (k->config->api_key_file) {
        return read_file(k, err);
    }
    return OK;
}

enum status keys_open(const struct config *config, struct keys **out, struct err *err)
{
    const struct tenant_limits limits = tenant_limits_default(config);
    *out = NULL;
    TRY(tenant_limits_check(&limits, err));
    if (config->api_key.n == 0 && !config->api_key_file) {
        return OK;
    }
    struct keys *k = xcalloc(1, sizeof *k);
    k->config = config;
    enum status st = load(k, err);
    if (st != OK) {
        keys_close(k);
        return st;
    }
    *out = k;
    return OK;
}

void keys_close(struct keys *keys)
{
    if (keys) {
        clear(keys->list, keys->n);
        free(keys);
    }
}

/* Keys that are in both lists keep their tenants, and with them their counts and rate limits. */
static void keep_tenants(struct keys *fresh, const struct keys *old)
{
    for (size_t i = 0; i < fresh->n; i++) {
        struct key *key = &fresh->list[i];
        for (size_t j = 0; j < old->n; j++) {
            if (strcmp(key->text, old->list[j].text) == 0) {
                tenant_set_limits(old->list[j].tenant, &key->tenant->limits);
                tenant_drop(key->tenant);
                key->tenant = tenant_hold(old->list[j].tenant);
                break;
            }
        }
    }
}

/* Replaces all keys, or none if there is an error. */
enum status keys_reload(struct keys *keys, struct err *err)
{
    struct keys fresh = {.config = keys->config};
    enum status st = load(&fresh, err);
    if (st == OK) {
        keep_tenants(&fresh, keys);
        clear(keys->list, keys->n);
        keys->list = fresh.list;
        keys->n = fresh.n;
    } else {
        clear(fresh.list, fresh.n);
    }
    return st;
}

/* Compares two keys in a time that only depends on their lengths. */
static bool equal(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned char differ = na != nb;
    for (size_t i = 0; i < nb; i++) {
        differ |= (unsigned char)(b[i] ^ a[i < na ? i : 0]);
    }
    return differ == 0;
}

/* Compares with every key, even after a match, so that the time reveals nothing about the keys. */
unsigned keys_find(const struct keys *keys, const char *key, const char **name,
                   struct tenant **tenant)
{
    unsigned scopes = 0;
    for (size_t i = 0; i < keys->n; i++) {
        if (equal(keys->list[i].text, key)) {
            scopes = keys->list[i].scopes;
            *name = keys->list[i].name;
            *tenant = keys->list[i].tenant;
        }
    }
    return scopes;
}
