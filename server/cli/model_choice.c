// SPDX-License-Identifier: Apache-2.0
/* Finds the model that a command loads: from the command line, or by asking if none was given. A
 * name is resolved to a folder, and the model is downloaded if necessary. */
#include "server/cli/model_choice.h"
#include "server/cli/adapter_options.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/nearest.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "server/hub/hub.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_OFFERS = 20 };

static void set_text(const char **field, const char *text)
{
    char *copy = xstrdup(text);
    free((void *)*field);
    *field = copy;
}

/* ---- no model was given ---------------------------------------------------------------------- */

struct offers {
    char *models[MAX_OFFERS];
    size_t n;
};

/* Finds the demo model: where `make` leaves it, where `make install` puts it, or in the current
 * folder. */
static bool find_demo(char out[PATH_MAX])
{
    static const char *const places[] = {"/../../models/demo", "/../share/sluice/models/demo"};
    char exe[PATH_MAX], path[PATH_MAX + 64];
    if (file_exists("models/demo/config.json")) {
        snprintf(out, PATH_MAX, "models/demo");
        return true;
    }
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[greater(n, 0)] = '\0';
    char *slash = strrchr(exe, '/');
    for (size_t i = 0; slash && i < 2; i++) {
        snprintf(path, sizeof path, "%.*s%s", (int)(slash - exe), exe, places[i]);
        if (realpath(path, out)) {
            return true;
        }
    }
    return false;
}

static void offer(struct offers *o, const char *model)
{
    if (o->n < MAX_OFFERS) {
        o->models[o->n++] = xstrdup(model);
    }
}

static void offer_cached(const struct hub_entry *e, void *arg)
{
    char name[HUB_ID_BYTES + HUB_REVISION_BYTES + 1];
    const bool main = strcmp(e->revision, "main") == 0;
    snprintf(name, sizeof name, main ? "%s" : "%s@%s", e->id, e->revision);
    if (e->complete) {
        offer(arg, name);
    }
}

/* Lists the models to offer: the bundled one and those in the cache. */
static void find_offers(struct offers *o)
{
    char demo[PATH_MAX];
    struct hub_settings settings;
    if (find_demo(demo)) {
        offer(o, demo);
    }
    if (hub_settings_read(&settings, NULL) == OK) {
        hub_list(&settings, offer_cached, o, NULL);
    }
}

static void free_offers(struct offers *o)
{
    for (size_t i = 0; i < o->n; i++) {
        free(o->models[i]);
    }
}

/* Reads a choice: a number of the list, an empty line for the first entry, or a model as on the
 * command line. */
static enum status read_choice(const struct offers *o, const char **model, struct err *err)
{
    char *line = NULL, *end;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    while (n > 0 && strchr(" \t\r\n", line[n - 1])) {
        line[--n] = '\0';
    }
    enum status st = OK;
    const char *typed = n > 0 ? line + strspn(line, " \t") : "";
    const long number = strtol(typed, &end, 10);
    if (n < 0 || (*typed == '\0' && o->n == 0)) {
        st = err_set(err, ERR_INVALID, "no model was chosen");
    } else if (*typed == '\0') {
        set_text(model, o->models[0]);
    } else if (*end != '\0') {
        set_text(model, typed);
    } else if (number >= 1 && (size_t)number <= o->n) {
        set_text(model, o->models[number - 1]);
    } else {
        st = err_set(err, ERR_INVALID, "the list has no number %.20s", typed);
    }
    free(line);
    return st;
}

/* Asks on standard error, since standard output may be a pipe. */
static enum status ask(const struct offers *o, const char **model, struct err *err)
{
    fprintf(stderr, "Which model?\n\n");
    for (size_t i = 0; i < o->n; i++) {
        const bool demo = strlen(o->models[i]) >= 11 &&
                          strcmp(o->models[i] + strlen(o->models[i]) - 11, "models/demo") == 0;
        fprintf(stderr, "  %2zu  %s%s\n", i + 1, o->models[i], text_if(demo, " (small, bundled)"));
    }
    fprintf(stderr,
            "\nEnter a number%s, a folder, a GGUF file, or a name such as ORG/NAME to download: ",
            text_if(o->n > 0, " (default: 1)"));
    fflush(stderr);
    return read_choice(o, model, err);
}

/* Asks only if both input and standard error are a terminal. */
enum status model_choose(struct config *c, bool may_ask, struct err *err)
{
    if (c->engine.model) {
        return OK;
    }
    struct offers o = {0};
    find_offers(&o);
    enum status st;
    if (may_ask && isatty(STDIN_FILENO) && isatty(STDERR_FILENO)) {
        st = ask(&o, &c->engine.model, err);
    } else {
        st = err_set(err, ERR_INVALID,
                     "no model was given: pass a folder with config.json, a GGUF file, or a name "
                     "such as ORG/NAME to download; models on this machine:%s%.150s%s%.150s",
                     o.n > 0 ? " " : " none", o.n > 0 ? o.models[0] : "", text_if(o.n > 1, ", "),
                     o.n > 1 ? o.models[1] : "");
    }
    free_offers(&o);
    return st;
}

/* ---- a folder or a name ---------------------------------------------------------------------- */

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Suggests a folder for a path that does not exist: the entry closest to its first missing part.
 * False if nothing is similar. */
static bool nearest_folder(const char *path, char out[PATH_MAX])
{
    char parent[PATH_MAX];
    size_t n = strlen(path);
    do { // shorten the path until it exists
        while (n > 0 && path[n - 1] != '/') {
            n--;
        }
        snprintf(parent, sizeof parent, "%.*s", n > 0 ? (int)n : 1, n > 0 ? path : ".");
        n -= n > 0;
    } while (n > 0 && !is_folder(parent));
    const char *typed = path + (strcmp(parent, ".") == 0 ? 0 : strlen(parent));
    struct nearest nearest = {.typed = typed, .n_bytes = strcspn(typed, "/")};
    struct dirent **list;
    int n_entries = scandir(parent, &list, NULL, alphasort);
    for (int i = 0; i < n_entries; i++) {
        if (list[i]->d_name[0] != '.') {
            nearest_try(&nearest, list[i]->d_name);
        }
    }
    const char *word = nearest_word(&nearest);
    bool found = false;
    if (word) {
        const bool here = strcmp(parent, ".") == 0;
        found =
            snprintf(out, PATH_MAX, "%s%s", here ? "" : parent, word) < PATH_MAX && is_folder(out);
    }
    for (int i = 0; i < n_entries; i++) {
        free(list[i]);
    }
    if (n_entries >= 0) {
        free(list);
    }
    return found;
}

static enum status no_folder(const char *model, struct err *err)
{
    char meant[PATH_MAX];
    if (nearest_folder(model, meant)) {
        return err_set(err, ERR_IO,
                       "model '%.150s': there is no such folder; did you mean '%.150s'?", model,
                       meant);
    }
    return err_set(err, ERR_IO,
                   "model '%.200s': there is no such folder; pass one with config.json, or a name "
                   "such as ORG/NAME to download",
                   model);
}

static bool has_gguf_ending(const char *path)
{
    const size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".gguf") == 0;
}

/* The error for a path that does not exist and cannot be a name on the hub. */
static enum status no_file(const char *model, struct err *err)
{
    const char *slash = strrchr(model, '/');
    char folder[PATH_MAX], meant[NAME_MAX + 1] = "";
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - model) : 1, slash ? model : ".");
    struct nearest nearest = {.typed = slash ? slash + 1 : model};
    nearest.n_bytes = strlen(nearest.typed);
    struct dirent **list = NULL;
    const int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (has_gguf_ending(list[i]->d_name)) {
            nearest_try(&nearest, list[i]->d_name);
        }
    }
    const char *word = nearest_word(&nearest);
    snprintf(meant, sizeof meant, "%s", or_empty(word));
    for (int i = 0; i < n; i++) {
        free(list[i]);
    }
    free(list);
    if (*meant) {
        return err_set(err, ERR_IO,
                       "model '%.150s': there is no such file; did you mean "
                       "'%.*s%.150s'?",
                       model, slash ? (int)(slash + 1 - model) : 0, model, meant);
    }
    return err_set(err, ERR_IO, "model '%.200s': there is no such file", model);
}

/* The error for a name that was not found: it may be a misspelt folder. */
static enum status no_name(const char *model, enum status st, struct err *err)
{
    char meant[PATH_MAX];
    const struct err why = *err;
    if (nearest_folder(model, meant)) {
        return err_set(err, st, "%.380s; or did you mean the folder '%.80s'?", why.text, meant);
    }
    return st;
}

/* Adds the names that clients may use: the full name, which comes first as on other servers, and
 * its last part. A '*', which allows any name, is kept. */
static void add_names(struct config *c, const struct hub_name *name)
{
    struct string_list *names = &c->served_model_name;
    if (names->n > 1 || (names->n == 1 && strcmp(names->items[0], "*") != 0)) {
        return;
    }
    names->items = xrealloc(names->items, (names->n + 2) * sizeof *names->items);
    names->items[names->n++] = xstrdup(name->id);
    names->items[names->n++] = xstrdup(strchr(name->id, '/') + 1);
}

/* A folder or GGUF file is used as it is; a name with one slash that is not a path is looked up in
 * the cache, and downloaded if it is not there. */
static enum status find_folder(struct config *c, struct err *err)
{
    const char *model = c->engine.model;
    struct hub_name name;
    struct hub_settings settings;
    char folder[PATH_MAX];
    if (is_folder(model)) {
        if (c->revision) {
            log_info("option revision has no effect here: the model is a folder");
        }
        return OK;
    }
    bool is_gguf;
    TRY(folder_is_file(model, &is_gguf, err));
    if (is_gguf) {
        return OK;
    }
    if (file_exists(model)) {
        return err_set(
            err, ERR_INVALID,
            "model '%.200s' is a file, but not a GGUF file; pass the folder that contains it",
            model);
    }
    if (has_gguf_ending(model)) {
        return no_file(model, err);
    }
    if (!hub_name_read(model, &name)) {
        return no_folder(model, err);
    }
    if (c->revision) {
        TRY(hub_name_set_revision(&name, c->revision, err));
    }
    TRY(hub_settings_read(&settings, err));
    enum status st = hub_get(&settings, &name, false, folder, err);
    if (st != OK) {
        return no_name(model, st, err);
    }
    log_info("model %s@%s is %s", name.id, name.revision, folder);
    set_text(&c->engine.model, folder);
    add_names(c, &name);
    return OK;
}

/* The model first, which is the larger download. */
enum status model_find(struct config *c, struct err *err)
{
    TRY(find_folder(c, err));
    return adapter_options_find(c, err);
}
