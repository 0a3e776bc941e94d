// SPDX-License-Identifier: Apache-2.0
/* Checks whether a path is a model, and if not, suggests which model was probably meant. */
#include "server/cli/model_folder.h"

#include "engine/base/file.h"
#include "engine/gguf/folder.h"

#include <dirent.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* False if the path would be too long. */
static bool join(char *out, size_t n_out, const char *folder, const char *name)
{
    const bool slash = folder[0] && folder[strlen(folder) - 1] == '/';
    const int n = snprintf(out, n_out, slash ? "%s%s" : "%s/%s", folder, name);
    return n > 0 && (size_t)n < n_out;
}

static bool is_model(const char *folder)
{
    char path[PATH_MAX];
    return join(path, sizeof path, folder, "config.json") && file_exists(path);
}

static bool is_gguf_file(const char *path)
{
    bool is;
    return folder_is_file(path, &is, NULL) == OK && is;
}

/* The first model in `folder` by name: a folder, or a GGUF file. */
static bool find_inside(const char *folder, char *out, size_t n_out)
{
    struct dirent **list = NULL;
    const int n = scandir(folder, &list, NULL, alphasort);
    bool found = false;
    for (int i = 0; i < n; i++) {
        found = found || (list[i]->d_name[0] != '.' && join(out, n_out, folder, list[i]->d_name) &&
                          (is_model(out) || is_gguf_file(out)));
        free(list[i]);
    }
    free(list);
    return found;
}

/* Also detects a common mistake: giving the folder that contains the model's folder. */
enum status model_folder_check(const char *model, struct err *err)
{
    char inside[PATH_MAX];
    bool is_file;
    TRY(folder_is_file(model, &is_file, err));
    if (is_file || is_model(model)) {
        return OK;
    }
    if (find_inside(model, inside, sizeof inside)) {
        return err_set(err, ERR_IO, "model '%.150s': it has no config.json; did you mean '%.150s'?",
                       model, inside);
    }
    return err_set(err, ERR_IO,
                   "model '%.150s': it has no config.json, so it is not a model folder; was a "
                   "download interrupted?",
                   model);
}
