// SPDX-License-Identifier: Apache-2.0
/* A model by name: from the cache, or downloaded. */
#include "server/hub/private.h"

#include <fcntl.h>
#include <sys/stat.h>

/* Records the time of use for `sluice list`, even on file systems that do not store access times.
 */
static void note_use(const char *folder)
{
    char path[PATH_MAX];
    const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    if (hub_path(path, NULL, "%s/config.json", folder) == OK) {
        (void)utimensat(AT_FDCWD, path, times, 0); // fails if the cache is read-only
    }
}

/* Only complete models are found; incomplete ones would fail while loading. */
static bool find(const struct hub_settings *s, const struct hub_name *name, char folder[PATH_MAX])
{
    char repo[PATH_MAX], commit[41];
    if (hub_repo_path(s, name->id, repo, NULL) != OK ||
        !hub_commit_of(repo, name->revision, commit) ||
        hub_path(folder, NULL, "%s/snapshots/%s", repo, commit) != OK || !hub_is_complete(folder)) {
        return false;
    }
    note_use(folder);
    return true;
}

/* Unless `newest` is set, a model in the cache is used without asking the hub for a newer one. */
enum status hub_get(const struct hub_settings *s, const struct hub_name *name, bool newest,
                    char folder[PATH_MAX], struct err *err)
{
    const bool asks = newest && !s->offline;
    if (!asks && find(s, name, folder)) {
        return OK;
    }
    if (s->offline) {
        return err_set(err, ERR_IO,
                       "%s@%s is not completely in the cache %.200s, and HF_HUB_OFFLINE forbids "
                       "downloads: unset it, or use a model that 'sluice list' shows as complete",
                       name->id, name->revision, s->cache);
    }
    return hub_pull(s, name, folder, err);
}
