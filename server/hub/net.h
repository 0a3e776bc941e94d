// SPDX-License-Identifier: Apache-2.0
/* Requests to the hub, many at a time, on one thread. Redirects are followed here and not by
 * libcurl: the token goes to the endpoint alone. What fails for a moment (the network, 429, 5xx) is
 * tried again after a while, within bounds. Thread: one owner. */
#ifndef SLUICE_SERVER_HUB_NET_H
#define SLUICE_SERVER_HUB_NET_H

#include "server/hub/private.h"

#include <curl/curl.h>

enum { NET_MAX_ACTIVE = 8 };

/* How a request has ended. */
enum net_end {
    NET_ANSWERED, // with a status, also one that says no
    NET_FAILED,   // no answer, or only a part of one: `why`
    NET_STOPPED,  // `take` wanted no more
};

/* Of the last answer. */
struct net_answer {
    long status;
    int64_t n_bytes, linked_bytes;   // -1: not said
    int64_t first_byte, total_bytes; // of a Content-Range; -1: there is none
    int64_t retry_after_s;
    char etag[80], linked_etag[80], commit[48], error_code[64];
};

struct net_request {
    /* The caller's; `prepare` (may be NULL) may set them anew before every try. */
    char *url; // owned
    bool head;
    bool keeps;       // what came before a cut is not asked for again: then tries begin anew
    int64_t from, to; // a range without `to`; from < 0: all
    void (*prepare)(struct net_request *r);
    /* Bytes of a 2xx answer; false: no more of them. */
    bool (*take)(struct net_request *r, const void *bytes, size_t n_bytes);
    void (*done)(struct net_request *r); // may submit it again
    void *arg;
    /* The result. */
    enum net_end end;
    struct net_answer answer;
    CURLcode code;
    char why[CURL_ERROR_SIZE + 64];
    char *redirected_to; // where another host has the bytes, NULL if nowhere; owned
    /* net.c's. */
    CURL *easy;
    struct curl_slist *headers;
    char *at; // the address of this hop; NULL: url
    int n_hops, n_tries;
    int64_t waited_ns, not_before_ns;
    bool took; // some bytes in this try
    struct net_request *next;
};

struct net;

/* tell: what a person should know while nothing seems to happen. */
enum status net_open(const struct hub_settings *s, void (*tell)(const char *line, void *arg),
                     void *arg, struct net **out, struct err *err);
void net_close(struct net *net); // drops what has not ended; accepts NULL

void net_submit(struct net *net, struct net_request *r);
void net_free(struct net_request *r); // what it owns

/* Moves everything on, and waits at most so long for something to do. */
void net_turn(struct net *net, int timeout_ms);
size_t net_pending(const struct net *net); // submitted and not done

#endif
