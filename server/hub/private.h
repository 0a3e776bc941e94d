// SPDX-License-Identifier: Apache-2.0
/* Private to server/hub. Thread: main, except hub_hash. */
#ifndef SLUICE_SERVER_HUB_PRIVATE_H
#define SLUICE_SERVER_HUB_PRIVATE_H

#include "server/hub/hub.h"

#include "engine/base/buf.h"

/* ---- names.c --------------------------------------------------------------------------------- */

/* True for a path that stays within its folder: relative, separated by "/", without "." and ".."
 * components. */
bool hub_path_is_safe(const char *path);

bool hub_is_commit(const char *text);
/* True for a valid blob name: sha256 of a large file, git's sha1 of a small one, in lower case. */
bool hub_is_hash(const char *text);

/* ---- cache.c: the layout --------------------------------------------------------------------- */

/* Formats a path; ERR_LIMIT if it is too long. */
enum status hub_path(char out[PATH_MAX], struct err *err, const char *fmt, ...) PRINTF_LIKE(3, 4);

enum status hub_repo_path(const struct hub_settings *s, const char *id, char out[PATH_MAX],
                          struct err *err);
enum status hub_locks_path(const struct hub_settings *s, const char *id, char out[PATH_MAX],
                           struct err *err);

/* Creates the folder and its parents. Below `root` a symbolic link in place of a folder is
 * rejected, so that nothing is written outside the cache. */
enum status hub_make_folders(const char *root, const char *folder, struct err *err);

/* The commit that the cache has for a revision; false if it has no commit. */
bool hub_commit_of(const char *repo, const char *revision, char commit[41]);

/* Atomically makes snapshots/COMMIT/PATH a link to the blob. */
enum status hub_link_file(const char *repo, const char *commit, const char *path, const char *hash,
                          struct err *err);
/* Records the commit of a revision. */
enum status hub_write_ref(const char *repo, const char *revision, const char *commit,
                          struct err *err);

/* ---- needed.c: what a model needs ------------------------------------------------------------ */

/* True for small files that are read here: configuration, tokenizer, templates. */
bool hub_is_needed(const char *path);

struct hub_paths {
    char **items;
    size_t n, cap;
};

bool hub_paths_has(const struct hub_paths *paths, const char *path);
void hub_paths_add(struct hub_paths *paths, const char *path); // a copy, without duplicates
void hub_paths_free(struct hub_paths *paths);

#define HUB_ADAPTER "adapter_config.json" // what an adapter has in place of config.json

/* A kind of files that weights are stored in. */
struct hub_form {
    const char *whole, *index; // a single file; the index of several
    const char *pattern;       // of all others
};

/* The first form that some of the paths have; NULL if there is none. Safetensors come first, as
 * where the engine looks for weights. */
const struct hub_form *hub_form_of(const struct hub_paths *paths);
bool hub_form_has(const struct hub_form *form, const char *path); // true for a file of weights
bool hub_is_of_a_form(const char *path); // true for weights and indices of any form

/* The files named in an index, validated. `where` is for messages. */
enum status hub_read_index(const char *file, const char *where, struct hub_paths *out,
                           struct err *err);

/* True if the folder is complete: config.json, and the weights as the engine looks for them. */
bool hub_is_complete(const char *folder);

/* ---- pull.c, or no_curl.c in a build that cannot download ------------------------------------ */

enum status hub_pull(const struct hub_settings *settings, const struct hub_name *name,
                     char folder[PATH_MAX], struct err *err);

/* ---- hash.c ---------------------------------------------------------------------------------- */

/* The hash of an open file's first n_bytes, in hexadecimal. `like` is a hash of the same kind. */
enum status hub_hash(int fd, int64_t n_bytes, const char *like, char out[65], struct err *err);

#endif
