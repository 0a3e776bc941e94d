// SPDX-License-Identifier: Apache-2.0
/* A download while it runs: what pull.c (what is needed), pull_files.c (its bytes) and explain.c
 * (why not) share. Thread: main. */
#ifndef SLUICE_SERVER_HUB_PULL_H
#define SLUICE_SERVER_HUB_PULL_H

#include "server/hub/blob.h"
#include "server/hub/net.h"
#include "server/hub/progress.h"

enum pull_state { FILE_WAITS, FILE_LOADS, FILE_CHECKS, FILE_DONE };

struct pull_file {
    struct pull *pull;
    char *path;    // in the repository
    char hash[65]; // "": the hub was not asked yet
    int64_t n_bytes;
    struct net_request head;
    enum pull_state state;
    struct blob blob;
    bool *busy;    // [blob.n_parts], a request is under way for it
    char *storage; // where the hub sent us for its bytes; NULL: ask again
    bool no_ranges, told_busy;
    int n_active;           // requests under way
    int n_refused, n_wrong; // answers without use, in a row; contents with another hash
    int64_t look_ns;        // when to try its lock again
};

struct pull {
    const struct hub_settings *settings;
    const struct hub_name *name;
    struct net *net;
    struct progress progress;
    char repo[PATH_MAX], locks[PATH_MAX], commit[41];
    struct hub_paths listed; // files of the repository that may be needed
    struct pull_file **files;
    size_t n_files, cap;
    int64_t had_bytes; // of the files, before this
    bool counts;       // the sizes of all files are known: progress can be told
    enum status st;    // the first failure, with its sentence
    struct err *err;
};

/* Asks the hub for the hash and size of the files that have none. */
enum status pull_describe(struct pull *p);

/* Brings all files that are not done into the cache's blobs. */
enum status pull_download(struct pull *p);

/* Where the hub has the list of the revision, and a file of the commit. The caller frees it. */
char *pull_list_url(const struct pull *p);
char *pull_file_url(const struct pull *p, const char *path);

/* The sentence for a request that brought nothing. `what` is a file, or NULL for the model. */
enum status pull_explain(struct pull *p, const struct net_request *r, const char *what);

#endif
