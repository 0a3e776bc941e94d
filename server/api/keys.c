#include "server/api/keys.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "server/api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key {
    char *text, *name;
    unsigned scopes;
};

struct keys {
    const struct config *config;
    struct key *list;
    size_t n;
};

static void clear(struct key *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(list[i].text);
        free(list[i].name);
    }
    free(list);
}

static void add(struct keys *k, const char *text, const char *name, unsigned scopes)
{
    k->list = xrealloc(k->list, (k->n + 1) * sizeof k->list[0]);
    k->list[k->n++] = (struct key){xstrdup(text), xstrdup(name), scopes};
}

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
            return err_set(err, ERR_FORMAT, "unknown scope '%.*s'", (int)(n < 30 ? n : 30), text);
        }
        *scopes |= bits[i];
        text += n + (text[n] == ',');
    }
    return OK;
}

static enum status read_line(struct keys *k, char *line, struct err *err)
{
    static const char space[] = " \t\r";
    char *rest = line;
    char *words[3] = {NULL, NULL, NULL};
    line[strcspn(line, "#")] = '\0';
    for (int i = 0; i < 3; i++) {
        rest += strspn(rest, space);
        words[i] = *rest ? rest : NULL;
        rest += strcspn(rest, space);
        if (*rest) {
            *rest++ = '\0';
        }
    }
    if (!words[0]) {
        return OK;
    }
    unsigned scopes = SCOPE_INFERENCE;
    if (words[1]) {
        TRY(read_scopes(words[1], &scopes, err));
    }
    char name[32];
    snprintf(name, sizeof name, "key%zu", k->n + 1);
    add(k, words[0], words[2] ? words[2] : name, scopes);
    return OK;
}

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
    return st == OK ? OK : err_prefix(err, st, "%s:%d", k->config->api_key_file, number - 1);
}

static enum status load(struct keys *k, struct err *err)
{
    const struct string_list *given = &k->config->api_key;
    for (size_t i = 0; i < given->n; i++) {
        add(k, given->items[i], "configured", SCOPE_INFERENCE | SCOPE_ADMIN | SCOPE_METRICS);
    }
    return k->config->api_key_file ? read_file(k, err) : OK;
}

enum status keys_open(const struct config *config, struct keys **out, struct err *err)
{
    *out = NULL;
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

enum status keys_reload(struct keys *keys, struct err *err)
{
    struct keys fresh = {.config = keys->config};
    enum status st = load(&fresh, err);
    if (st == OK) {
        clear(keys->list, keys->n);
        keys->list = fresh.list;
        keys->n = fresh.n;
    } else {
        clear(fresh.list, fresh.n);
    }
    return st;
}

/* The time depends on the lengths alone. */
static bool equal(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    unsigned char differ = na != nb;
    for (size_t i = 0; i < nb; i++) {
        differ |= (unsigned char)(b[i] ^ a[i < na ? i : 0]);
    }
    return differ == 0;
}

unsigned keys_find(const struct keys *keys, const char *key, const char **name)
{
    unsigned scopes = 0;
    for (size_t i = 0; i < keys->n; i++) {
        if (equal(keys->list[i].text, key)) {
            scopes = keys->list[i].scopes;
            *name = keys->list[i].name;
        }
    }
    return scopes;
}
