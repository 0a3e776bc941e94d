// SPDX-License-Identifier: Apache-2.0
/* A download in progress. Shared by pull.c (which files), pull_files.c (their bytes) and explain.c
 * (why it failed).
 * Thread: main. */
#ifndef SLUICE_SERVER_HUB_PULL_H
#define SLUICE_SERVER_HUB_PULL_H

#include "server/hub/blob.h"
#include "server/hub/net.h"
#include "server/hub/progress.h"

enum pull_state { FILE_WAITS, FILE_LOADS, FILE_CHECKS, FILE_DONE };

struct pull_file {
    struct pull *pull;
    char *path;    // the file's path in the repository
    char hash[65]; // "": not yet requested from the hub
    int64_t n_bytes;
    struct net_request head;
    enum pull_state state;
    struct blob blob;
    bool *busy;    // [blob.n_parts]: true while a request for the part is running
    char *storage; // the address that the hub redirected to; NULL: ask the hub
    bool no_ranges, reported_busy;
    int n_active;           // number of running requests
    int n_refused, n_wrong; // consecutive useless answers; downloads with the wrong hash
    int64_t look_ns;        // clock_now_ns: when to try its lock again
};

struct pull {
    const struct hub_settings *settings;
    const struct hub_name *name;
    struct net *net;
    struct progress progress;
    char repo[PATH_MAX], locks[PATH_MAX], commit[41];
    struct hub_paths listed;     // files of the repository that may be needed
    const struct hub_form *form; // of the weights; NULL: there are none
    struct pull_file **files;
    size_t n_files, cap;
    int64_t had_bytes; // bytes that were present before this download
    bool counts;       // true once all sizes are known, so that progress can be shown
    enum status st;    // the first failure; `err` has its message
    struct err *err;
};

/* Requests the hash and size of files where these are unknown. */
enum status pull_describe(struct pull *p);

/* Downloads all unfinished files into the cache's blobs. */
enum status pull_download(struct pull *p);

/* The hub's URLs: the list of the revision, and a file of the commit. The caller frees them. */
char *pull_list_url(const struct pull *p);
char *pull_file_url(const struct pull *p, const char *path);

/* Explains why a request failed. `what` is a file, or NULL for the model. */
enum status pull_explain(struct pull *p, const struct net_request *r, const char *what);

#endif
