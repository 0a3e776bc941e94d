// SPDX-License-Identifier: Apache-2.0
/* The contents of the cache: listing it, and deleting a model or a revision. */
#include "engine/base/optional.h"
#include "server/hub/private.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- walks ----------------------------------------------------------------------------------- */

/* The sorted names in a folder; empty if the folder cannot be read. */
static void read_names(const char *folder, struct hub_paths *out)
{
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.') {
            hub_paths_add(out, list[i]->d_name);
        }
        free(list[i]);
    }
    if (n >= 0) {
        free(list);
    }
}

/* Files and links below a folder, as relative paths. */
static void read_tree(const char *folder, const char *under, struct hub_paths *out)
{
    struct hub_paths names = {0};
    char at[PATH_MAX], path[PATH_MAX];
    if (hub_path(at, NULL, "%s/%s", folder, under) != OK) {
        return;
    }
    read_names(at, &names);
    for (size_t i = 0; i < names.n; i++) {
        struct stat info;
        if (hub_path(path, NULL, "%s%s%s", under, text_if(*under, "/"), names.items[i]) != OK ||
            hub_path(at, NULL, "%s/%s", folder, path) != OK || lstat(at, &info) != 0) {
            continue;
        }
        if (S_ISDIR(info.st_mode)) {
            read_tree(folder, path, out);
        } else {
            hub_paths_add(out, path);
        }
    }
    hub_paths_free(&names);
}

/* The names of the blobs that a snapshot's links point to. */
static void read_blobs(const char *repo, const char *commit, struct hub_paths *out)
{
    char folder[PATH_MAX], at[PATH_MAX], target[PATH_MAX];
    struct hub_paths files = {0};
    if (hub_path(folder, NULL, "%s/snapshots/%s", repo, commit) != OK) {
        return;
    }
    read_tree(folder, "", &files);
    for (size_t i = 0; i < files.n; i++) {
        ssize_t n = -1;
        if (hub_path(at, NULL, "%s/%s", folder, files.items[i]) == OK) {
            n = readlink(at, target, sizeof target - 1);
        }
        if (n > 0) {
            target[n] = '\0';
            const char *slash = strrchr(target, '/');
            hub_paths_add(out, slash ? slash + 1 : target);
        }
    }
    hub_paths_free(&files);
}

/* ---- list ------------------------------------------------------------------------------------ */

/* "models--ORG--NAME" */
static bool id_of_folder(const char *folder, char id[HUB_ID_BYTES])
{
    static const char prefix[] = "models--";
    struct hub_name name;
    if (strncmp(folder, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    const char *org = folder + sizeof prefix - 1, *between = strstr(org, "--");
    if (!between || strlen(folder) >= HUB_ID_BYTES) {
        return false;
    }
    snprintf(id, HUB_ID_BYTES, "%.*s/%s", (int)(between - org), org, between + 2);
    return hub_name_read(id, &name) && !name.revision_given;
}

/* Adds a file's size, and its latest access or modification. */
static void add_use(const char *path, struct hub_entry *e)
{
    struct stat info;
    if (stat(path, &info) == 0) {
        if ((int64_t)info.st_blocks * 512 < info.st_size) {
            e->n_bytes += (int64_t)info.st_blocks * 512;
        } else {
            e->n_bytes += (int64_t)info.st_size;
        }
        const int64_t used = greater(info.st_atime, info.st_mtime);
        e->used_sec = greater(used, e->used_sec);
    }
}

/* A commit is shown by the branch or tag that points to it, "main" before others. */
static void name_revision(const char *repo, struct hub_entry *e)
{
    char folder[PATH_MAX], commit[41];
    struct hub_paths refs = {0};
    snprintf(e->revision, sizeof e->revision, "%s", e->commit);
    if (hub_path(folder, NULL, "%s/refs", repo) == OK) {
        read_tree(folder, "", &refs);
    }
    for (size_t i = 0; i < refs.n; i++) {
        const bool main = strcmp(refs.items[i], "main") == 0;
        if (hub_commit_of(repo, refs.items[i], commit) && strcmp(commit, e->commit) == 0 &&
            (main || strcmp(e->revision, e->commit) == 0)) {
            snprintf(e->revision, sizeof e->revision, "%s", refs.items[i]);
        }
    }
    hub_paths_free(&refs);
}

/* Reports one revision, with the size of its blobs and whether it is complete. */
static void report_revision(const char *repo, const char *id, const char *commit,
                            void (*each)(const struct hub_entry *, void *), void *arg)
{
    struct hub_entry e = {0};
    struct hub_paths blobs = {0};
    char path[PATH_MAX];
    snprintf(e.id, sizeof e.id, "%s", id);
    snprintf(e.commit, sizeof e.commit, "%s", commit);
    name_revision(repo, &e);
    read_blobs(repo, commit, &blobs);
    for (size_t i = 0; i < blobs.n; i++) {
        if (hub_path(path, NULL, "%s/blobs/%s", repo, blobs.items[i]) == OK) {
            add_use(path, &e);
        }
    }
    hub_paths_free(&blobs);
    e.complete =
        hub_path(path, NULL, "%s/snapshots/%s", repo, commit) == OK && hub_is_complete(path);
    each(&e, arg);
}

static bool is_part_of_download(const char *blob)
{
    const size_t n = strlen(blob), n_end = strlen(".incomplete");
    return n > n_end && strcmp(blob + n - n_end, ".incomplete") == 0;
}

/* Reports partial blobs that do not belong to a revision yet. */
static void report_parts(const char *repo, const char *id,
                         void (*each)(const struct hub_entry *, void *), void *arg)
{
    struct hub_entry e = {0};
    struct hub_paths blobs = {0};
    char path[PATH_MAX];
    bool any = false;
    snprintf(e.id, sizeof e.id, "%s", id);
    if (hub_path(path, NULL, "%s/blobs", repo) == OK) {
        read_names(path, &blobs);
    }
    for (size_t i = 0; i < blobs.n; i++) {
        if (is_part_of_download(blobs.items[i]) &&
            hub_path(path, NULL, "%s/blobs/%s", repo, blobs.items[i]) == OK) {
            add_use(path, &e);
            any = true;
        }
    }
    hub_paths_free(&blobs);
    if (any) {
        each(&e, arg);
    }
}

/* Models in the order of their names. */
enum status hub_list(const struct hub_settings *s,
                     void (*each)(const struct hub_entry *entry, void *arg), void *arg,
                     struct err *err)
{
    struct hub_paths folders = {0};
    struct stat info;
    if (stat(s->cache, &info) != 0 && errno != ENOENT) {
        return err_set(err, ERR_IO, "%.300s: %s", s->cache, strerror(errno));
    }
    read_names(s->cache, &folders);
    for (size_t i = 0; i < folders.n; i++) {
        char id[HUB_ID_BYTES], repo[PATH_MAX], path[PATH_MAX];
        struct hub_paths commits = {0};
        if (!id_of_folder(folders.items[i], id) || hub_repo_path(s, id, repo, NULL) != OK ||
            hub_path(path, NULL, "%s/snapshots", repo) != OK) {
            continue;
        }
        read_names(path, &commits);
        for (size_t k = 0; k < commits.n; k++) {
            if (hub_is_commit(commits.items[k])) {
                report_revision(repo, id, commits.items[k], each, arg);
            }
        }
        report_parts(repo, id, each, arg);
        hub_paths_free(&commits);
    }
    hub_paths_free(&folders);
    return OK;
}

/* ---- remove ---------------------------------------------------------------------------------- */

/* Takes all locks of a model, so that no download in progress loses its files. */
static enum status take_locks(const struct hub_settings *s, const char *id, int **fds,
                              size_t *n_fds, struct err *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct hub_paths locks = {0};
    TRY(hub_locks_path(s, id, folder, err));
    read_names(folder, &locks);
    *fds = xcalloc(locks.n + 1, sizeof **fds);
    enum status st = OK;
    for (size_t i = 0; i < locks.n && st == OK; i++) {
        int fd = -1;
        if (hub_path(path, NULL, "%s/%s", folder, locks.items[i]) == OK) {
            fd = open(path, O_RDWR | O_CLOEXEC);
        }
        if (fd >= 0) {
            (*fds)[(*n_fds)++] = fd;
            if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
                st = OK;
            } else {
                st = err_set(err, ERR_BUSY,
                             "%s is being downloaded by another process: stop that process first",
                             id);
            }
        }
    }
    hub_paths_free(&locks);
    return st;
}

static int delete_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static enum status delete_tree(const char *path, struct err *err)
{
    if (nftw(path, delete_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
    }
    return OK;
}

/* The size of all blobs. Revisions share blobs, so each is counted once. */
static int64_t size_of_blobs(const char *repo)
{
    char path[PATH_MAX];
    struct hub_entry all = {0};
    struct hub_paths blobs = {0};
    if (hub_path(path, NULL, "%s/blobs", repo) == OK) {
        read_names(path, &blobs);
    }
    for (size_t i = 0; i < blobs.n; i++) {
        if (hub_path(path, NULL, "%s/blobs/%s", repo, blobs.items[i]) == OK) {
            add_use(path, &all);
        }
    }
    hub_paths_free(&blobs);
    return all.n_bytes;
}

/* Deletes one revision's blobs that are not in `kept`. */
static enum status delete_blobs(const char *repo, const struct hub_paths *blobs,
                                const struct hub_paths *kept, struct err *err)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < blobs->n; i++) {
        if (hub_paths_has(kept, blobs->items[i])) {
            continue;
        }
        TRY(hub_path(path, err, "%s/blobs/%s", repo, blobs->items[i]));
        if (unlink(path) != 0 && errno != ENOENT) {
            return err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
        }
    }
    return OK;
}

static enum status delete_refs(const char *repo, const char *commit, struct err *err)
{
    char path[PATH_MAX], at[41];
    struct hub_paths refs = {0};
    TRY(hub_path(path, err, "%s/refs", repo));
    read_tree(path, "", &refs);
    for (size_t i = 0; i < refs.n; i++) {
        if (hub_commit_of(repo, refs.items[i], at) && strcmp(at, commit) == 0 &&
            hub_path(path, NULL, "%s/refs/%s", repo, refs.items[i]) == OK) {
            unlink(path);
        }
    }
    hub_paths_free(&refs);
    return OK;
}

/* Deletes the snapshot, then the blobs that no other snapshot links to. */
static enum status remove_revision(const char *repo, const char *commit, struct err *err)
{
    char folder[PATH_MAX], path[PATH_MAX];
    struct hub_paths commits = {0}, blobs = {0}, kept = {0};
    TRY(hub_path(folder, err, "%s/snapshots", repo));
    TRY(hub_path(path, err, "%s/%s", folder, commit));
    read_names(folder, &commits);
    read_blobs(repo, commit, &blobs);
    for (size_t i = 0; i < commits.n; i++) {
        if (strcmp(commits.items[i], commit) != 0) {
            read_blobs(repo, commits.items[i], &kept);
        }
    }
    enum status st = delete_refs(repo, commit, err); // refs first: none may point to a revision
                                                     // that is half deleted
    if (st == OK) {
        st = delete_tree(path, err);
    }
    if (st == OK) {
        st = delete_blobs(repo, &blobs, &kept, err);
    }
    if (st == OK && commits.n <= 1) {
        st = delete_tree(repo, err);
    }
    hub_paths_free(&commits);
    hub_paths_free(&blobs);
    hub_paths_free(&kept);
    return st;
}

static enum status remove_locked(const struct hub_name *name, const char *repo, struct err *err)
{
    char commit[41], path[PATH_MAX];
    struct stat info;
    if (!name->revision_given) {
        return delete_tree(repo, err);
    }
    if (!hub_commit_of(repo, name->revision, commit) ||
        hub_path(path, NULL, "%s/snapshots/%s", repo, commit) != OK || lstat(path, &info) != 0) {
        return err_set(err, ERR_INVALID,
                       "revision '%s' of %s is not in the cache; 'sluice list' shows what is",
                       name->revision, name->id);
    }
    return remove_revision(repo, commit, err);
}

/* All locks of the repository are held meanwhile, so no download is in progress. */
enum status hub_remove(const struct hub_settings *s, const struct hub_name *name,
                       int64_t *freed_bytes, struct err *err)
{
    char repo[PATH_MAX];
    struct stat info;
    int *fds = NULL;
    size_t n_fds = 0;
    TRY(hub_repo_path(s, name->id, repo, err));
    if (lstat(repo, &info) != 0 || !S_ISDIR(info.st_mode)) {
        return err_set(err, ERR_INVALID,
                       "%s is not in the cache %.200s; 'sluice list' shows what is", name->id,
                       s->cache);
    }
    enum status st = take_locks(s, name->id, &fds, &n_fds, err);
    const int64_t before = size_of_blobs(repo);
    if (st == OK) {
        st = remove_locked(name, repo, err);
    }
    *freed_bytes = before - size_of_blobs(repo);
    for (size_t i = 0; i < n_fds; i++) {
        close(fds[i]);
    }
    free(fds);
    return st;
}
