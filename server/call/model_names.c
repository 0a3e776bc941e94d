// SPDX-License-Identifier: Apache-2.0
/* The names by which requests choose the model or one of its adapters. */
#include "server/call/adapters.h"
#include "server/call/model.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The last part of the folder's path. For "." and ".." it is the name of the folder that they refer
 * to; for the root folder it is "model". */
static char *name_of_folder(const char *path)
{
    const char *last = last_part(path);
    if (*last && strcmp(last, ".") != 0 && strcmp(last, "..") != 0) {
        return xstrdup(last);
    }
    char *real = realpath(path, NULL);
    const char *name = real ? last_part(real) : "";
    char *copy = xstrdup(*name ? name : "model");
    free(real);
    return copy;
}

/* The served names. If the operator gives none, they are the folder's name and the whole argument,
 * as in vLLM. A '*' in the list is not a name: it lets clients use any name. */
void call_model_make_names(struct call_model *m, const struct config *config)
{
    const struct string_list *given = &config->served_model_name;
    const char **names = xcalloc(given->n + 2, sizeof names[0]);
    size_t n = 0;
    for (size_t i = 0; i < given->n; i++) {
        bool any = strcmp(given->items[i], "*") == 0;
        m->any_name = m->any_name || any;
        if (!any) {
            names[n++] = given->items[i];
        }
    }
    m->folder_name = name_of_folder(config->engine.model);
    if (n == 0) {
        names[0] = m->folder_name;
        names[1] = config->engine.model;
        n = strcmp(names[0], names[1]) == 0 ? 1 : 2;
    }
    m->names = names;
    m->n_names = n;
    m->adapters = call_adapters_open(config);
}

/* The model's own names come first. If the server accepts any name, an empty or unknown one stands
 * for the first. */
static const char *take(const struct call_model *m, const char *name, int32_t *place)
{
    const char *found = NULL;
    *place = 0;
    for (size_t i = 0; name && i < m->n_names; i++) {
        if (strcmp(m->names[i], name) == 0) {
            return m->names[i];
        }
    }
    if (name) {
        *place = call_adapters_take(m->adapters, name, &found);
    }
    return found || (name && !m->any_name) ? found : m->names[0];
}

const char *call_model_take(const struct call_model *m, const char *name, bool tagged,
                            int32_t *place)
{
    static const char tag[] = ":latest";
    char text[512];
    const char *found = take(m, name, place);
    size_t n = length_or_0(name), n_tag = sizeof tag - 1;
    if (!found && tagged && n > n_tag && n < sizeof text && strcmp(name + n - n_tag, tag) == 0) {
        snprintf(text, sizeof text, "%.*s", (int)(n - n_tag), name);
        found = take(m, text, place);
    }
    return found;
}

const char *call_model_name(const struct call_model *m, const char *name, bool tagged)
{
    int32_t place;
    const char *found = call_model_take(m, name, tagged, &place);
    call_adapters_give(m->adapters, place);
    return found;
}
