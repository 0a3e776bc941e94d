// SPDX-License-Identifier: Apache-2.0
#include "server/cli/adapter_options.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "server/hub/hub.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static enum status bad_entry(const char *text, struct err *err)
{
    return err_set(err, ERR_INVALID,
                   "option lora-modules: '%.200s' is neither NAME=FOLDER nor a JSON object with "
                   "name and path",
                   text);
}

static enum status read_object(const char *text, char **to_name, char **to_dir, struct err *err)
{
    struct json *root = NULL;
    if (json_parse(text, strlen(text), NULL, &root, NULL) != OK) {
        return bad_entry(text, err);
    }
    const char *name = json_get_string(root, "name"), *path = json_get_string(root, "path");
    enum status st = OK;
    if (!name || !path || json_get_bool(root, "is_3d_lora_weight", false)) {
        st = bad_entry(text, err);
    } else {
        *to_name = xstrdup(name);
        *to_dir = xstrdup(path);
    }
    json_free(root);
    return st;
}

static enum status read_entry(const char *text, char **name, char **dir, struct err *err)
{
    const char *equals = strchr(text, '=');
    if (text[0] == '{') {
        return read_object(text, name, dir, err);
    }
    if (!equals) {
        return bad_entry(text, err);
    }
    *name = xstrndup(text, (size_t)(equals - text));
    *dir = xstrdup(equals + 1);
    return OK;
}

/* A name may stand for one thing only. */
static enum status check_name(const struct config *c, int32_t i, struct err *err)
{
    const struct engine_options *o = &c->engine;
    const char *name = o->adapter_names[i];
    bool taken = false;
    for (int32_t k = 0; k < i; k++) {
        taken = taken || strcmp(o->adapter_names[k], name) == 0;
    }
    for (size_t k = 0; k < c->served_model_name.n; k++) {
        taken = taken || strcmp(c->served_model_name.items[k], name) == 0;
    }
    if (taken) {
        return err_set(err, ERR_INVALID, "option lora-modules: the name '%.100s' occurs twice",
                       name);
    }
    return *name && *o->adapter_dirs[i] ? OK : bad_entry(c->lora_modules.items[i], err);
}

enum status adapter_options_read(struct config *c, struct err *err)
{
    const struct string_list *given = &c->lora_modules;
    if (given->n > MAX_ADAPTERS) {
        return err_set(err, ERR_INVALID, "option lora-modules: at most %d adapters", MAX_ADAPTERS);
    }
    char **names = xcalloc(given->n + 1, sizeof *names),
         **dirs = xcalloc(given->n + 1, sizeof *dirs);
    enum status st = OK;
    c->engine.adapter_names = (const char *const *)names;
    c->engine.adapter_dirs = (const char *const *)dirs;
    for (size_t i = 0; i < given->n && st == OK; i++) {
        st = read_entry(given->items[i], &names[i], &dirs[i], err);
        c->engine.n_adapters += st == OK;
        st = st == OK ? check_name(c, (int32_t)i, err) : st;
    }
    c->engine.spare_adapters = greater(0, c->max_loras - c->engine.n_adapters);
    return st;
}

/* What is a path stays one; adapters_open says what is wrong with it. */
static enum status find_one(const char **dir, struct err *err)
{
    struct hub_name name;
    struct hub_settings settings;
    char folder[PATH_MAX];
    if (file_exists(*dir) || !hub_name_read(*dir, &name)) {
        return OK;
    }
    TRY(hub_settings_read(&settings, err));
    TRY(hub_get(&settings, &name, false, folder, err));
    log_info("adapter %s@%s is %s", name.id, name.revision, folder);
    free((char *)(uintptr_t)*dir);
    *dir = xstrdup(folder);
    return OK;
}

enum status adapter_options_find(struct config *c, struct err *err)
{
    const char **dirs = (const char **)(uintptr_t)c->engine.adapter_dirs;
    for (int32_t i = 0; i < c->engine.n_adapters; i++) {
        if (find_one(&dirs[i], err) != OK) {
            return err_prefix(err, ERR_IO, "adapter '%.64s'", c->engine.adapter_names[i]);
        }
    }
    return OK;
}

static void free_texts(const char *const *texts, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        free((char *)(uintptr_t)texts[i]);
    }
    free((void *)(uintptr_t)texts);
}

void adapter_options_free(struct config *c)
{
    struct engine_options *o = &c->engine;
    free_texts(o->adapter_names, o->n_adapters);
    free_texts(o->adapter_dirs, o->n_adapters);
    o->adapter_names = o->adapter_dirs = NULL;
    o->n_adapters = 0;
}
