// SPDX-License-Identifier: Apache-2.0
/* Which files of a repository a model needs: those that the engine, the tokenizer and the templates
 * read, and no others (other formats, further copies of the weights, pictures). Of PyTorch's files
 * and safetensors only the latter are needed. */
#include "server/hub/private.h"

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INDEX_BYTES = 256 << 20 };

/* A pattern may contain one "*", which matches anything but "/". */
static const char *const needed[] = {
    "config.json",
    HUB_ADAPTER,
    "generation_config.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "modules.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "hf_quant_config.json",
};

static const struct hub_form forms[] = {
    {"model.safetensors", "model.safetensors.index.json", "*.safetensors"},
    {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"},
    {"adapter_model.bin", "adapter_model.bin.index.json", "adapter_model*.bin"},
};

enum { N_FORMS = sizeof forms / sizeof forms[0] };

static bool matches(const char *pattern, const char *path)
{
    const char *star = strchr(pattern, '*');
    if (!star) {
        return strcmp(pattern, path) == 0;
    }
    const size_t n_before = (size_t)(star - pattern), n_after = strlen(star + 1);
    const size_t n = strlen(path);
    return n > n_before + n_after && memcmp(pattern, path, n_before) == 0 &&
           strcmp(path + n - n_after, star + 1) == 0 &&
           !memchr(path + n_before, '/', n - n_before - n_after);
}

bool hub_is_needed(const char *path)
{
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        if (matches(needed[i], path)) {
            return true;
        }
    }
    return false;
}

bool hub_form_has(const struct hub_form *form, const char *path)
{
    return strcmp(path, form->whole) == 0 || matches(form->pattern, path);
}

bool hub_is_of_a_form(const char *path)
{
    for (int i = 0; i < N_FORMS; i++) {
        if (hub_form_has(&forms[i], path) || strcmp(forms[i].index, path) == 0) {
            return true;
        }
    }
    return false;
}

const struct hub_form *hub_form_of(const struct hub_paths *paths)
{
    for (int i = 0; i < N_FORMS; i++) {
        for (size_t k = 0; k < paths->n; k++) {
            if (hub_form_has(&forms[i], paths->items[k])) {
                return &forms[i];
            }
        }
    }
    return NULL;
}

bool hub_paths_has(const struct hub_paths *paths, const char *path)
{
    for (size_t i = paths->n; i-- > 0;) { // usually the last one added
        if (strcmp(paths->items[i], path) == 0) {
            return true;
        }
    }
    return false;
}

/* A set in the order of insertion; lists are short. */
void hub_paths_add(struct hub_paths *paths, const char *path)
{
    if (hub_paths_has(paths, path)) {
        return;
    }
    if (paths->n == paths->cap) {
        paths->cap = paths->cap ? 2 * paths->cap : 64;
        paths->items = xrealloc(paths->items, paths->cap * sizeof *paths->items);
    }
    paths->items[paths->n++] = xstrdup(path);
}

void hub_paths_free(struct hub_paths *paths)
{
    for (size_t i = 0; i < paths->n; i++) {
        free(paths->items[i]);
    }
    free(paths->items);
    *paths = (struct hub_paths){0};
}

/* The weights of a sharded model are those that its index names. */
enum status hub_read_index(const char *file, const char *where, struct hub_paths *out,
                           struct err *err)
{
    struct json *root;
    TRY(json_parse_file(file, MAX_INDEX_BYTES, &root, err));
    const struct json *map = json_get(root, "weight_map");
    enum status st =
        json_count(map) > 0
            ? OK
            : err_set(err, ERR_FORMAT, "%s: its index of weights names no files", where);
    for (const struct json *c = json_first(map); c && st == OK; c = json_next(c)) {
        const char *path = json_string(c);
        if (!path || !hub_path_is_safe(path)) {
            st = err_set(err, ERR_FORMAT,
                         "%s: its index of weights names '%.100s', which is not a file of that "
                         "folder",
                         where, path ? path : json_type_name(json_type(c)));
        } else {
            hub_paths_add(out, path);
        }
    }
    json_free(root);
    return st;
}

static bool folder_has(const char *folder, const char *path)
{
    char at[PATH_MAX];
    return hub_path(at, NULL, "%s/%s", folder, path) == OK && file_exists(at);
}

/* True if all shards named in the index are in the folder. */
static bool has_all_of_index(const char *folder, const char *name)
{
    char index[PATH_MAX];
    struct hub_paths shards = {0};
    bool all = hub_path(index, NULL, "%s/%s", folder, name) == OK &&
               hub_read_index(index, "", &shards, NULL) == OK;
    for (size_t i = 0; i < shards.n && all; i++) {
        all = folder_has(folder, shards.items[i]);
    }
    hub_paths_free(&shards);
    return all;
}

/* True if the folder has any weights of the form. Links to weights are created only when all of
 * them are complete, so one implies the rest. */
static bool has_some_weights(const char *folder, const struct hub_form *form)
{
    DIR *dir = opendir(folder);
    bool found = false;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        found = hub_form_has(form, e->d_name) && folder_has(folder, e->d_name);
    }
    if (dir) {
        closedir(dir);
    }
    return found;
}

/* True if the model, or the adapter, can be loaded: the folder has its config, and weights in one
 * of the known forms. */
bool hub_is_complete(const char *folder)
{
    if (!folder_has(folder, "config.json") && !folder_has(folder, HUB_ADAPTER)) {
        return false;
    }
    for (int i = 0; i < N_FORMS; i++) {
        if (folder_has(folder, forms[i].whole)) {
            return true;
        }
        if (folder_has(folder, forms[i].index)) {
            return has_all_of_index(folder, forms[i].index);
        }
        if (has_some_weights(folder, &forms[i])) {
            return true;
        }
    }
    return false;
}
