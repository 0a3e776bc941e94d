// SPDX-License-Identifier: Apache-2.0
/* Requests to the hub with libcurl, several at a time, with retries. One thread;
 * everything happens in net_turn. */
#include "server/hub/net.h"

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_HOPS = 6, MAX_TRIES = 5, CONNECT_S = 15 };

#define MS 1000000LL
#define FIRST_WAIT_NS (250 * MS)
#define LONGEST_WAIT_NS (300000 * MS) // limits the sum of all waits of one request

/* Requests in `active` were given to libcurl; those in `queue` wait for a slot, or for the time of
 * their next attempt. */
struct net {
    const struct hub_settings *settings;
    void (*tell)(const char *line, void *arg);
    void *tell_arg;
    CURLM *multi;
    const char *certificates;  // a file; NULL: libcurl's default
    struct net_request *queue; // requests that wait for a slot, or for their next attempt
    struct net_request *active[NET_MAX_ACTIVE];
    size_t n_active, n_queued;
};

/* ---- addresses ------------------------------------------------------------------------------- */

static char *url_part(CURLU *u, CURLUPart part)
{
    char *text = NULL;
    curl_url_get(u, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0);
    return text;
}

/* True if two addresses have the same scheme, host and port. */
static bool same_origin(const char *a, const char *b)
{
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *u = curl_url(), *v = curl_url();
    bool same = u && v && curl_url_set(u, CURLUPART_URL, a, 0) == CURLUE_OK &&
                curl_url_set(v, CURLUPART_URL, b, 0) == CURLUE_OK;
    for (size_t i = 0; i < 3 && same; i++) {
        char *x = url_part(u, parts[i]), *y = url_part(v, parts[i]);
        same = x && y && strcasecmp(x, y) == 0;
        curl_free(x);
        curl_free(y);
    }
    curl_url_cleanup(u);
    curl_url_cleanup(v);
    return same;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

/* True if the line is the header `name`; *value is then its value, without leading white space. */
static bool header_is(const char *line, size_t n_bytes, const char *name, const char **value)
{
    const size_t n = strlen(name);
    if (n_bytes <= n || strncasecmp(line, name, n) != 0 || line[n] != ':') {
        return false;
    }
    *value = line + n + 1;
    *value += strspn(*value, " \t");
    return true;
}

/* An etag without its quotes and weakness mark. */
static void keep_etag(const char *value, char *out, size_t out_bytes)
{
    if (strncmp(value, "W/", 2) == 0) {
        value += 2;
    }
    value += *value == '"';
    snprintf(out, out_bytes, "%.*s", (int)strcspn(value, "\" \r\n"), value);
}

static void keep_word(const char *value, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%.*s", (int)strcspn(value, " \r\n"), value);
}

static void keep_range(const char *value, struct net_answer *a)
{
    long long first, last, total;
    if (sscanf(value, "bytes %lld-%lld/%lld", &first, &last, &total) == 3) {
        a->first_byte = first;
        a->total_bytes = total;
    }
}

/* The address of a large file redirects to other storage; the hub's own headers give its hash and
 * size. */
static void read_header(const char *line, size_t n_bytes, struct net_answer *a)
{
    const char *value;
    if (header_is(line, n_bytes, "etag", &value)) {
        keep_etag(value, a->etag, sizeof a->etag);
    } else if (header_is(line, n_bytes, "x-linked-etag", &value)) {
        keep_etag(value, a->linked_etag, sizeof a->linked_etag);
    } else if (header_is(line, n_bytes, "x-linked-size", &value)) {
        a->linked_bytes = strtoll(value, NULL, 10);
    } else if (header_is(line, n_bytes, "x-repo-commit", &value)) {
        keep_word(value, a->commit, sizeof a->commit);
    } else if (header_is(line, n_bytes, "x-error-code", &value)) {
        keep_word(value, a->error_code, sizeof a->error_code);
    } else if (header_is(line, n_bytes, "content-range", &value)) {
        keep_range(value, a);
    }
}

/* Each status line begins a new response: there are several with redirects and retries. */
static size_t on_header(char *bytes, size_t one, size_t n_bytes, void *arg)
{
    (void)one;
    struct net_request *r = arg;
    char line[512];
    if (n_bytes > 5 && memcmp(bytes, "HTTP/", 5) == 0) { // start of a response
        r->answer = (struct net_answer){
            .n_bytes = -1, .linked_bytes = -1, .first_byte = -1, .total_bytes = -1};
    }
    snprintf(line, sizeof line, "%.*s", n_bytes < sizeof line ? (int)n_bytes : 511, bytes);
    read_header(line, strlen(line), &r->answer);
    return n_bytes;
}

/* Passes on the body, unless it belongs to an error. */
static size_t on_body(char *bytes, size_t one, size_t n_bytes, void *arg)
{
    (void)one;
    struct net_request *r = arg;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->answer.status);
    if (r->answer.status / 100 != 2) {
        return n_bytes; // body of an error or a redirect
    }
    r->took = r->took || n_bytes > 0;
    return r->take(r, bytes, n_bytes) ? n_bytes : 0; // 0 makes libcurl stop
}

static void add_header(struct net_request *r, const char *line)
{
    struct curl_slist *list = curl_slist_append(r->headers, line);
    if (list) {
        r->headers = list;
    }
}

/* Options common to all requests. libcurl verifies certificates by default. */
static void set_options(const struct net *net, CURL *easy)
{
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    // one connection per request
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "sluice/" SLUICE_VERSION);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)net->settings->timeout_s);
    if (net->certificates) {
        curl_easy_setopt(easy, CURLOPT_CAINFO, net->certificates);
    }
}

/* Sets the options of this request. The token is sent only to the hub, never to the storage that it
 * redirects to. */
static void set_request(const struct net *net, struct net_request *r, const char *url)
{
    if (net->settings->token[0] && same_origin(url, net->settings->endpoint)) {
        char line[sizeof net->settings->token + 32];
        snprintf(line, sizeof line, "Authorization: Bearer %s", net->settings->token);
        add_header(r, line);
    }
    curl_easy_setopt(r->easy, CURLOPT_URL, url);
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->headers);
    curl_easy_setopt(r->easy, CURLOPT_NOBODY, r->head ? 1L : 0L);
    curl_easy_setopt(r->easy, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_ERRORBUFFER, r->why);
    curl_easy_setopt(r->easy, CURLOPT_PRIVATE, r);
    if (r->from >= 0) {
        char range[64];
        snprintf(range, sizeof range, "%lld-%lld", (long long)r->from, (long long)r->to - 1);
        curl_easy_setopt(r->easy, CURLOPT_RANGE, range);
    }
}

/* Starts a request, or continues it where the last attempt ended. */
static void start(struct net *net, struct net_request *r)
{
    if (!r->at && r->prepare) {
        r->prepare(r);
    }
    r->easy = curl_easy_init();
    r->took = false;
    r->why[0] = '\0';
    if (!r->easy) {
        r->end = NET_FAILED;
        r->code = CURLE_OUT_OF_MEMORY;
        r->done(r);
        return;
    }
    set_options(net, r->easy);
    set_request(net, r, r->at ? r->at : r->url);
    curl_multi_add_handle(net->multi, r->easy);
    net->active[net->n_active++] = r;
}

/* Removes a request from libcurl; its state is kept. */
static void put_aside(struct net *net, struct net_request *r)
{
    curl_multi_remove_handle(net->multi, r->easy);
    curl_easy_cleanup(r->easy);
    curl_slist_free_all(r->headers);
    r->easy = NULL;
    r->headers = NULL;
    for (size_t i = 0; i < net->n_active; i++) {
        if (net->active[i] == r) {
            net->active[i] = net->active[--net->n_active];
            return;
        }
    }
}

/* ---- results ------------------------------------------------------------------------ */

static void queue(struct net *net, struct net_request *r)
{
    struct net_request **at = &net->queue;
    while (*at) {
        at = &(*at)->next;
    }
    r->next = NULL;
    *at = r;
    net->n_queued++;
}

static void begin_again(struct net_request *r)
{
    free(r->at);
    r->at = NULL;
    r->n_hops = 0;
}

/* Fails the request because its redirect is unacceptable. */
static void refuse(struct net_request *r, const char *why, const char *where)
{
    r->end = NET_FAILED;
    r->code = CURLE_BAD_FUNCTION_ARGUMENT; // not worth retrying
    snprintf(r->why, sizeof r->why, "%s %.150s", why, where);
}

/* True if the request continues at another address. A HEAD request stays on its host, because the
 * redirect response itself has the headers that it needs. */
static bool follow(struct net *net, struct net_request *r, const char *where)
{
    const char *here = r->at ? r->at : r->url;
    if (r->head && !same_origin(where, net->settings->endpoint)) {
        return false;
    }
    if (strncmp(here, "https://", 8) == 0 && strncmp(where, "https://", 8) != 0) {
        refuse(r, "a redirect to an address without encryption is refused:", where);
        return false;
    }
    if (++r->n_hops > MAX_HOPS) {
        refuse(r, "too many redirects, the last one to", where);
        return false;
    }
    char *copy = xstrdup(where);
    free(r->at);
    r->at = copy;
    if (!same_origin(where, net->settings->endpoint)) {
        free(r->redirected_to);
        r->redirected_to = xstrdup(where);
    }
    r->not_before_ns = 0;
    queue(net, r);
    return true;
}

/* True if another attempt may help: after overload, a timeout or a broken connection, but not after
 * a refusal. */
static bool is_passing(const struct net_request *r)
{
    if (r->end == NET_ANSWERED) {
        const long status = r->answer.status;
        return status == 429 || status == 408 || status / 100 == 5;
    }
    switch (r->code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_SSL_CONNECT_ERROR: return r->end == NET_FAILED;
    default: return false;
    }
}

/* Schedules another attempt if that may help, and returns whether it did. Progress resets the
 * number of attempts. */
static bool try_again(struct net *net, struct net_request *r)
{
    const bool nearer = r->took && r->keeps;
    if (nearer) {
        r->n_tries = 0;
    }
    if (nearer) {
        r->waited_ns = 0;
    }
    if (!is_passing(r)) {
        return false;
    }
    int64_t wait_ns = FIRST_WAIT_NS << lesser(r->n_tries, 6);
    const bool asked = r->end == NET_ANSWERED && r->answer.retry_after_s > 0;
    if (asked && r->answer.retry_after_s > LONGEST_WAIT_NS / (1000 * MS)) {
        return false;
    }
    if (asked) {
        wait_ns = r->answer.retry_after_s * 1000 * MS;
    }
    if ((!asked && r->n_tries + 1 >= MAX_TRIES) || r->waited_ns + wait_ns > LONGEST_WAIT_NS) {
        return false;
    }
    if (asked) {
        char line[128];
        snprintf(line, sizeof line, "the hub asks to wait %lld s (status %ld)",
                 (long long)r->answer.retry_after_s, r->answer.status);
        net->tell(line, net->tell_arg);
    }
    r->n_tries++;
    r->waited_ns += wait_ns;
    r->not_before_ns = clock_now_ns() + wait_ns;
    begin_again(r);
    queue(net, r);
    return true;
}

static void read_result(struct net_request *r, CURLcode code, char **where)
{
    curl_off_t n_bytes = -1, retry_after = 0;
    char *to = NULL;
    r->code = code;
    curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &r->answer.status);
    curl_easy_getinfo(r->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &n_bytes);
    curl_easy_getinfo(r->easy, CURLINFO_RETRY_AFTER, &retry_after);
    curl_easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &to);
    r->answer.n_bytes = n_bytes;
    r->answer.retry_after_s = retry_after;
    *where = to && r->answer.status / 100 == 3 ? xstrdup(to) : NULL;
    r->end = code == CURLE_WRITE_ERROR ? NET_STOPPED : NET_FAILED;
    if (code == CURLE_OK) {
        r->end = NET_ANSWERED;
    }
    if (r->why[0] == '\0') {
        snprintf(r->why, sizeof r->why, "%s", curl_easy_strerror(code));
    }
}

/* Handles a response: follows its redirect, schedules a retry, or reports the result. */
static void finish(struct net *net, struct net_request *r, CURLcode code)
{
    char *where;
    read_result(r, code, &where);
    put_aside(net, r);
    const bool goes_on = r->end == NET_ANSWERED && where && follow(net, r, where);
    free(where);
    if (!goes_on && !try_again(net, r)) {
        begin_again(r);
        r->done(r);
    }
}

/* ---- all requests -----------------------------------------------------------------------------
 */

/* libcurl looks for certificates where the distribution that built it keeps them; this machine may
 * have them elsewhere. */
static const char *find_certificates(void)
{
    static const char *const variables[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE"};
    static const char *const places[] = {"/etc/ssl/certs/ca-certificates.crt",
                                         "/etc/pki/tls/certs/ca-bundle.crt",
                                         "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = getenv(variables[i]);
        if (value && *value) {
            return value;
        }
    }
    const char *own = curl_version_info(CURLVERSION_NOW)->cainfo;
    for (size_t i = 0; own && !file_exists(own) && i < sizeof places / sizeof places[0]; i++) {
        if (file_exists(places[i])) {
            return places[i];
        }
    }
    return NULL;
}

/* curl_global_init is called before any thread may use libcurl. */
enum status net_open(const struct hub_settings *s, void (*tell)(const char *line, void *arg),
                     void *arg, struct net **out, struct err *err)
{
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        return err_set(err, ERR_IO, "libcurl could not be initialised");
    }
    struct net *net = xcalloc(1, sizeof *net);
    *net = (struct net){
        .settings = s, .tell = tell, .tell_arg = arg, .certificates = find_certificates()};
    net->multi = curl_multi_init();
    if (!net->multi) {
        free(net);
        return err_set(err, ERR_NOMEM, "libcurl could not be initialised");
    }
    curl_multi_setopt(net->multi, CURLMOPT_MAXCONNECTS, 2L * NET_MAX_ACTIVE);
    *out = net;
    return OK;
}

void net_free(struct net_request *r)
{
    free(r->url);
    free(r->at);
    free(r->redirected_to);
    r->url = r->at = r->redirected_to = NULL;
}

void net_close(struct net *net)
{
    if (!net) {
        return;
    }
    while (net->n_active > 0) {
        put_aside(net, net->active[0]);
    }
    curl_multi_cleanup(net->multi);
    curl_global_cleanup();
    free(net);
}

void net_submit(struct net *net, struct net_request *r)
{
    r->n_tries = 0;
    r->waited_ns = r->not_before_ns = 0;
    queue(net, r);
}

size_t net_pending(const struct net *net)
{
    return net->n_active + net->n_queued;
}

/* Retries wait until their time; other requests start in order. */
static void start_due(struct net *net)
{
    const int64_t now = clock_now_ns();
    for (struct net_request **at = &net->queue; *at && net->n_active < NET_MAX_ACTIVE;) {
        struct net_request *r = *at;
        if (r->not_before_ns > now) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        net->n_queued--;
        start(net, r);
    }
}

/* A turn of the loop: starts, moves data, and reports what has ended. */
void net_turn(struct net *net, int timeout_ms)
{
    int n_running, n_left;
    start_due(net);
    curl_multi_perform(net->multi, &n_running);
    for (CURLMsg *m; (m = curl_multi_info_read(net->multi, &n_left));) {
        struct net_request *r = NULL;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r);
        finish(net, r, code);
    }
    start_due(net);
    curl_multi_poll(net->multi, NULL, 0, timeout_ms, NULL);
}
