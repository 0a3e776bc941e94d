// SPDX-License-Identifier: Apache-2.0
/* Models by name: Hugging Face's cache folder, and the hub it is filled from. A name is ORG/NAME or
 * ORG/NAME@REVISION. Models in the cache need no network. The layout is shared with huggingface_hub
 * in both directions:
 *
 *     CACHE/models--ORG--NAME/blobs/ETAG              a file's bytes; the name is its hash
 *     CACHE/models--ORG--NAME/snapshots/COMMIT/PATH   a link to its blob
 *     CACHE/models--ORG--NAME/refs/REVISION           the commit of a branch or tag
 *     CACHE/.locks/models--ORG--NAME/ETAG.lock        held while that blob is downloaded
 *
 * Thread: main. */
#ifndef SLUICE_SERVER_HUB_HUB_H
#define SLUICE_SERVER_HUB_HUB_H

#include "engine/base/status.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HUB_ID_BYTES = 200, HUB_REVISION_BYTES = 200 };

struct hub_name {
    char id[HUB_ID_BYTES];             // "ORG/NAME"
    char revision[HUB_REVISION_BYTES]; // a branch, a tag or a commit; "main" if none was given
    bool revision_given;
};

/* False if the text is not a valid name. */
bool hub_name_read(const char *text, struct hub_name *name);

/* Sets a revision that was given separately from the name. */
enum status hub_name_set_revision(struct hub_name *name, const char *revision, struct err *err);

/* Settings from the environment: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
 * HF_HUB_DOWNLOAD_TIMEOUT. */
struct hub_settings {
    char endpoint[512]; // without a trailing slash
    char cache[PATH_MAX];
    char token[512]; // "": none
    bool offline;
    int timeout_s; // longest wait without receiving a byte
};

enum status hub_settings_read(struct hub_settings *settings, struct err *err);

/* Finds the folder of that revision in the cache. If it is incomplete, the missing files are
 * downloaded, with progress on standard error. With `newest` the hub is asked in any case whether
 * the branch has moved. */
enum status hub_get(const struct hub_settings *settings, const struct hub_name *name, bool newest,
                    char folder[PATH_MAX], struct err *err);

/* "1.5 GB" */
const char *hub_size_text(int64_t n_bytes, char out[32]);

struct hub_entry {
    char id[HUB_ID_BYTES];
    char commit[41];                   // "": the entry is an unfinished download
    char revision[HUB_REVISION_BYTES]; // a branch or tag at this commit, otherwise the commit
    int64_t n_bytes;                   // on disk, including those of unfinished downloads
    int64_t used_sec;                  // last use, in seconds since 1970
    bool complete;
};

/* Lists every revision in the cache by name. */
enum status hub_list(const struct hub_settings *settings,
                     void (*each)(const struct hub_entry *entry, void *arg), void *arg,
                     struct err *err);

/* Deletes one revision and the blobs that no other revision uses; if no revision was given, deletes
 * the whole model. ERR_BUSY: it is being downloaded. */
enum status hub_remove(const struct hub_settings *settings, const struct hub_name *name,
                       int64_t *freed_bytes, struct err *err);

#endif
