// SPDX-License-Identifier: Apache-2.0
/* Requests to the hub, many at a time, on one thread. Redirects are followed here rather than by
 * libcurl, so that the token is sent to the endpoint only. Temporary failures (network, 429, 5xx)
 * are retried after a delay, within limits.
 * Thread: one owner. */
#ifndef SLUICE_SERVER_HUB_NET_H
#define SLUICE_SERVER_HUB_NET_H

#include "server/hub/private.h"

#include <curl/curl.h>

enum { NET_MAX_ACTIVE = 8 };

/* How a request has ended. */
enum net_end {
    NET_ANSWERED, // a response with any status, including errors
    NET_FAILED,   // no response, or an incomplete one; see `why`
    NET_STOPPED,  // `take` returned false
};

/* The last response. */
struct net_answer {
    long status;
    int64_t n_bytes, linked_bytes;   // -1: unknown
    int64_t first_byte, total_bytes; // values of Content-Range; -1: absent
    int64_t retry_after_s;
    char etag[80], linked_etag[80], commit[48], error_code[64];
};

struct net_request {
    /* Set by the caller; `prepare` (may be NULL) may change them before every attempt. */
    char *url; // address; owned
    bool head;
    bool keeps; // the caller keeps bytes received before an interruption; each such progress resets
                // the number of attempts
    int64_t from, to; // range of bytes, excluding `to`; from < 0: everything
    void (*prepare)(struct net_request *r);
    /* Receives bytes of a 2xx response. Returning false stops the request. */
    bool (*take)(struct net_request *r, const void *bytes, size_t n_bytes);
    void (*done)(struct net_request *r); // the request has ended; may submit it again
    void *arg;
    /* The result. */
    enum net_end end;
    struct net_answer answer;
    CURLcode code;
    char why[CURL_ERROR_SIZE + 64];
    char *redirected_to; // where the hub redirected to, on another host; NULL: nowhere; owned
    /* Private to net.c. */
    CURL *easy;
    struct curl_slist *headers;
    char *at; // address after redirects; NULL: url
    int n_hops, n_tries;
    int64_t waited_ns, not_before_ns;
    bool took; // this attempt received bytes
    struct net_request *next;
};

struct net;

/* `tell` gets a line for the user while nothing seems to happen, such as the wait before a retry.
 */
enum status net_open(const struct hub_settings *s, void (*tell)(const char *line, void *arg),
                     void *arg, struct net **out, struct err *err);
void net_close(struct net *net); // abandons unfinished requests; accepts NULL

void net_submit(struct net *net, struct net_request *r);
void net_free(struct net_request *r); // frees what it owns

/* Advances all requests; waits for at most timeout_ms. */
void net_turn(struct net *net, int timeout_ms);
size_t net_pending(const struct net *net); // submitted and not finished

#endif
