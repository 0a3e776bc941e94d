// SPDX-License-Identifier: Apache-2.0
/* The cache's layout: paths, links and refs, and which models are complete. */
#include "server/hub/private.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Formats a path. A path that is too long is an error, and never truncated. */
enum status hub_path(char out[PATH_MAX], struct err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, args);
    va_end(args);
    if (n >= 0 && n < PATH_MAX) {
        return OK;
    }
    return err_set(err, ERR_LIMIT, "a path in the cache is too long: %.200s...", out);
}

/* "models--ORG--NAME" */
static enum status folder_of(const char *under, const char *id, char out[PATH_MAX], struct err *err)
{
    const char *slash = strchr(id, '/');
    return hub_path(out, err, "%s/models--%.*s--%s", under, (int)(slash - id), id, slash + 1);
}

enum status hub_repo_path(const struct hub_settings *s, const char *id, char out[PATH_MAX],
                          struct err *err)
{
    return folder_of(s->cache, id, out, err);
}

enum status hub_locks_path(const struct hub_settings *s, const char *id, char out[PATH_MAX],
                           struct err *err)
{
    char under[PATH_MAX];
    TRY(hub_path(under, err, "%s/.locks", s->cache));
    return folder_of(under, id, out, err);
}

/* Creates missing folders below root, which exists. */
enum status hub_make_folders(const char *root, const char *folder, struct err *err)
{
    char path[PATH_MAX];
    const size_t n_root = strlen(root);
    TRY(hub_path(path, err, "%s/", folder));
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        struct stat info;
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return err_set(err, ERR_IO, "%.300s: the folder cannot be created: %s", path,
                           strerror(errno));
        }
        const bool inside = (size_t)(slash - path) > n_root;
        if (inside && (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode))) {
            return err_set(err, ERR_IO, "%.300s is not a folder: delete it and try again", path);
        }
        *slash = '/';
    }
    return OK;
}

/* The commit that the cache has for a branch or tag. Does not use the network. */
bool hub_commit_of(const char *repo, const char *revision, char commit[41])
{
    if (hub_is_commit(revision)) {
        memcpy(commit, revision, 41);
        return true;
    }
    char path[PATH_MAX], *text;
    size_t n;
    if (hub_path(path, NULL, "%s/refs/%s", repo, revision) != OK ||
        file_read(path, 4096, &text, &n, NULL) != OK) {
        return false;
    }
    text[strcspn(text, " \t\r\n")] = '\0';
    const bool found = hub_is_commit(text);
    if (found) {
        memcpy(commit, text, 41);
    }
    free(text);
    return found;
}

/* Renames a file created next to its target, so that nobody sees a partial one. */
static enum status put_in_place(const char *made, const char *path, struct err *err)
{
    if (rename(made, path) == 0) {
        return OK;
    }
    enum status st = err_set(err, ERR_IO, "%.300s: %s", path, strerror(errno));
    unlink(made);
    return st;
}

/* A snapshot's file is a relative link to its blob, as in huggingface_hub's cache. The link is
 * created under another name and renamed, so that the file is never missing. */
enum status hub_link_file(const char *repo, const char *commit, const char *path, const char *hash,
                          struct err *err)
{
    char at[PATH_MAX], folder[PATH_MAX], made[PATH_MAX], target[PATH_MAX], old[PATH_MAX];
    struct buf up;
    TRY(hub_path(at, err, "%s/snapshots/%s/%s", repo, commit, path));
    TRY(hub_path(folder, err, "%.*s", (int)(strrchr(at, '/') - at), at));
    TRY(hub_make_folders(repo, folder, err));
    buf_init(&up, PATH_MAX);
    buf_puts(&up, "../../");
    for (const char *c = path; *c; c++) {
        if (*c == '/') {
            buf_puts(&up, "../");
        }
    }
    enum status st = hub_path(target, err, "%sblobs/%s", up.data, hash);
    buf_deinit(&up);
    TRY(st);
    ssize_t n = readlink(at, old, sizeof old - 1);
    if (n > 0 && (size_t)n == strlen(target) && memcmp(old, target, (size_t)n) == 0) {
        return OK;
    }
    TRY(hub_path(made, err, "%s.%d.new", at, (int)getpid()));
    unlink(made); // left by a killed process with the same pid
    if (symlink(target, made) != 0) {
        return err_set(err, ERR_IO, "%.300s: the link cannot be created: %s", at, strerror(errno));
    }
    return put_in_place(made, at, err);
}

/* O_NOFOLLOW: a link in the cache must not lead elsewhere. */
static enum status write_text(const char *path, const char *text, struct err *err)
{
    const size_t n_bytes = strlen(text);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    ssize_t n = fd < 0 ? -1 : write(fd, text, n_bytes);
    const int why = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (n != (ssize_t)n_bytes) {
        return err_set(err, ERR_IO, "%.300s: %s", path, n < 0 ? strerror(why) : "cut short");
    }
    return OK;
}

/* Called last, when the cache has everything that the commit needs. */
enum status hub_write_ref(const char *repo, const char *revision, const char *commit,
                          struct err *err)
{
    char path[PATH_MAX], folder[PATH_MAX], made[PATH_MAX], now[41];
    if (hub_commit_of(repo, revision, now) && strcmp(now, commit) == 0) {
        return OK; // a commit needs no ref
    }
    TRY(hub_path(path, err, "%s/refs/%s", repo, revision));
    TRY(hub_path(folder, err, "%.*s", (int)(strrchr(path, '/') - path), path));
    TRY(hub_path(made, err, "%s/%d.new", folder, (int)getpid()));
    TRY(hub_make_folders(repo, folder, err));
    TRY(write_text(made, commit, err));
    return put_in_place(made, path, err);
}
