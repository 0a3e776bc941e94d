// SPDX-License-Identifier: Apache-2.0
/* Models by name: Hugging Face's cache folder and the hub that fills it. A name is ORG/NAME or
 * ORG/NAME@REVISION. What lies in the cache needs no network, and huggingface_hub reads what is
 * written here as we read what it writes:
 *
 *     CACHE/models--ORG--NAME/blobs/ETAG              a file's bytes; the name is its hash
 *     CACHE/models--ORG--NAME/snapshots/COMMIT/PATH   a link to its blob
 *     CACHE/models--ORG--NAME/refs/REVISION           which commit a branch or tag is at
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

/* False if the text is no such name. */
bool hub_name_read(const char *text, struct hub_name *name);

/* Takes a revision that was given apart from the name. */
enum status hub_name_set_revision(struct hub_name *name, const char *revision, struct err *err);

/* What the environment says: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
 * HF_HUB_DOWNLOAD_TIMEOUT. */
struct hub_settings {
    char endpoint[512]; // without a slash at its end
    char cache[PATH_MAX];
    char token[512]; // "": none
    bool offline;
    int timeout_s; // without a byte
};

enum status hub_settings_read(struct hub_settings *settings, struct err *err);

/* The folder of that revision: from the cache if all that a model needs is there, else what is
 * missing is downloaded, with the progress on standard error. `newest`: the hub is asked whether a
 * branch has moved on even then. */
enum status hub_get(const struct hub_settings *settings, const struct hub_name *name, bool newest,
                    char folder[PATH_MAX], struct err *err);

/* "1.5 GB" */
const char *hub_size_text(int64_t n_bytes, char out[32]);

struct hub_entry {
    char id[HUB_ID_BYTES];
    char commit[41];                   // "": nothing but parts of a download
    char revision[HUB_REVISION_BYTES]; // a branch or tag that is at this commit, else the commit
    int64_t n_bytes;                   // with what has come of a download
    int64_t used_sec;                  // since 1970
    bool complete;
};

/* Every revision in the cache, by name. */
enum status hub_list(const struct hub_settings *settings,
                     void (*each)(const struct hub_entry *entry, void *arg), void *arg,
                     struct err *err);

/* Deletes one revision and the blobs that no other refers to; without revision_given all of the
 * model. ERR_BUSY: it is being downloaded. */
enum status hub_remove(const struct hub_settings *settings, const struct hub_name *name,
                       int64_t *freed_bytes, struct err *err);

#endif
