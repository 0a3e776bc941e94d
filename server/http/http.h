// SPDX-License-Identifier: Apache-2.0
/* The HTTP front end: one libuv loop that drives libmicrohttpd; callers see neither. It parses
 * requests, enforces limits and time-outs, matches routes, writes replies and event streams,
 * notices clients that leave, and drains. It only moves bytes: JSON, keys and tokens are up to its
 * caller.
 *
 * A request belongs to its handler from the handler's call until exactly one *terminal* call:
 * http_reply (or a variant), or http_stream_end. A handler must not block: it makes the terminal
 * call before it returns, or calls http_defer and makes it later. If the client leaves in between,
 * on_gone is called once; the terminal call is still required (it then only releases the request),
 * and until then every accessor stays valid.
 *
 * Nothing here blocks. Callbacks may call everything here except http_server_run and _close.
 * Thread: the loop thread (the one in http_server_run) for everything except http_wake and the
 * `work` function of http_pool_run. Before http_server_run the opening thread counts as the loop
 * thread. */
#ifndef SLUICE_SERVER_HTTP_HTTP_H
#define SLUICE_SERVER_HTTP_HTTP_H

#include "engine/base/buf.h"
#include "engine/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_server;
struct http_request;

enum http_gone {
    HTTP_GONE_CLOSED = 1, // the client closed or reset the connection, or became unreachable
    HTTP_GONE_SLOW, // it read too slowly: the hard limit was exceeded, or no byte was acknowledged
                    // for too long
    HTTP_GONE_SHUTDOWN, // the server stopped before the request ended
};

/* A summary of one request when it ends. Strings are borrowed, valid during the call that gets
 * it. */
struct http_record {
    const char *request_id, *peer, *method, *path;
    const char *route;      // the pattern; NULL if none matched
    const char *user_agent; // NULL if none
    const char *refusal;    // code of an error answered by this module; NULL if none
    char trace_id[33];      // from a traceparent header; "" if none
    int status;             // HTTP's; 499 if the client left before the reply's head was sent
    enum http_gone gone;    // 0: the whole reply was sent
    bool streamed;
    int64_t arrived_ns, head_ns, end_ns; // clock_now_ns; head_ns: the reply began, 0 if it never
                                         // did
    uint64_t body_bytes, sent_bytes;     // of the request and the reply, without headers
};

enum http_route_flags {
    HTTP_ROUTE_ALWAYS = 1, // served also above the connection limit and while draining (health,
                           // metrics)
    HTTP_ROUTE_JSON = 2,   // the body must be application/json or *+json, or begin with '{';
                           // otherwise 415
    HTTP_ROUTE_QUIET = 4,  // requests are not logged unless options.log_quiet is set
};

struct http_route {
    const char *method; // "GET" (also answers HEAD), "POST", "DELETE"
    const char *path;   // "/v1/models/{id}": one or two {id}; a last {id} also matches slashes,
                        // unless an earlier row matches
    void (*handler)(struct http_request *req, void *arg);
    unsigned scope;        // for `authorize`, which defines its bits; 0: open to everybody
    size_t max_body_bytes; // limit of this route; 0: options.max_body_bytes
    unsigned flags;        // enum http_route_flags
};

enum http_state {
    HTTP_RUNNING,
    HTTP_DRAINING, // reported as not ready; requests are still served, with Connection: close
    HTTP_CLOSING,  // listeners are closed, new requests get 503; running ones continue
    HTTP_STOPPED,
};

struct http_options {
    /* "127.0.0.1:8000", "[::1]:8000", "name:8000", ":8000" (all interfaces, IPv4 and IPv6),
     * "unix:/path", "fd:3" (inherited). Port 0: any free port, see http_server_address. */
    const char *const *listen;
    size_t n_listen;
    bool systemd;         // also use sockets passed by systemd, and notify NOTIFY_SOCKET
    bool signals;         // SIGTERM and SIGINT drain, SIGINT without delay (a second one stops);
                          // SIGHUP: on_reload, SIGUSR1: on_report
    const char *tls_cert; // PEM files; if both are set, TCP listeners use TLS (Unix sockets do not)
    const char *tls_key;
    bool tls13_only; // otherwise TLS 1.2 is also accepted
    /* Origins whose pages may read answers: "https://a,https://b" for all routes; "*" and
     * "loopback" (pages of this machine) only for the routes of cors_scope. NULL: no origin. */
    const char *cors_origins;
    bool cors_credentials; // pages may send cookies and certificates
    unsigned cors_scope;   // selects routes whose scope shares a bit with it; 0: all routes
    const char *root_path; // "/prefix" of a proxy, which is removed from every path; or NULL

    /* Limits. 0 means the default in brackets. */
    size_t max_body_bytes;       // [16 MiB] of one body; more is a 413
    size_t max_body_total_bytes; // [1 GiB] of all bodies in memory together; more is a 503
    size_t max_header_bytes;     // [16 KiB] libmicrohttpd's memory per connection, which limits a
                                 // request's head; more is a 431
    unsigned max_connections;    // [10500] further clients get a 503, except for HTTP_ROUTE_ALWAYS,
                                 // which has a small reserve
    unsigned max_per_address;    // open connections of one client address (IPv6: of one /64), more
                                 // get a 503; 0: no limit
    size_t stream_soft_bytes;    // [64 KiB] http_stream_is_full is true with this many unsent bytes
    size_t stream_hard_bytes;    // [16 MiB] a write disconnects the client if earlier turns of the
                                 // loop have left more unsent bytes
    unsigned header_timeout_ms;  // [10 s] for a client to send a request's head; then 408
    unsigned body_timeout_ms;    // [30 s] for it to send the body, plus 1 s per 64 KiB; then 408
    unsigned idle_timeout_ms;  // [75 s] for an idle connection to stay open; load balancers have 60
                               // s
    unsigned stall_timeout_ms; // [30 s] a client that acknowledges none of its unsent bytes for so
                               // long is disconnected
    unsigned head_delay_ms;  // [5 s] a stream that has nothing to send by then sends its head and a
                             // comment
    unsigned keep_alive_ms;  // [15 s] between the comments of a silent stream
    unsigned drain_delay_ms; // [0] time in HTTP_DRAINING before HTTP_CLOSING; skipped if nobody
                             // has been connected for that long, since nobody would notice
    bool drain_if_busy;      // skip the delay if no request is running
    unsigned drain_timeout_ms; // [25 s] for running requests to end; then on_drain_deadline
    unsigned dead_peer_ms;     // [10 s] to detect an unreachable client, idle or not
    bool tolerate_half_close; // a client that shuts down its writing side still reads: do not treat
                              // it as gone
    int log_fd;               // where put_line's lines go; 0: standard output; -1: none
    bool log_quiet;           // log routes with HTTP_ROUTE_QUIET too
    size_t n_room;            // size of http_room: the caller's own data in each request

    const struct http_route *routes; // end with a row whose method is NULL; must outlive the server
    void *arg;                       // passed to handlers and all callbacks below

    /* Callbacks, all optional. */
    /* Writes the body of an error answered by this module, and returns its Content-Type. `code` is
     * one of a few static words ("unknown_url"). NULL: such answers have no body. */
    const char *(*put_error)(struct buf *b, int status, const char *code, const char *message);
    /* Writes the log line for a request, with its newline. NULL: no log. */
    void (*put_line)(struct buf *b, const struct http_record *record, const void *room,
                     int64_t wall_ns);
    /* The head has been read and is well formed. on_done follows in every case. */
    void (*on_head)(struct http_request *req, void *arg);
    /* Called after the head and before the body. False: the callback has made the terminal call. */
    bool (*authorize)(struct http_request *req, const struct http_route *route, void *arg);
    void (*on_wake)(void *arg);  // called once after any number of http_wake calls
    void (*on_drain)(void *arg); // when HTTP_DRAINING begins
    /* The drain time is over: end all requests now (an error event, a 503). Those left 2 s later
     * are disconnected with HTTP_GONE_SHUTDOWN. */
    void (*on_drain_deadline)(void *arg);
    void (*on_reload)(void *arg); // SIGHUP; certificates have been reloaded
    void (*on_report)(void *arg); // SIGUSR1: log the current state
    /* A request has ended, with its reply sent or cut off. Also called for requests that no handler
     * saw. */
    void (*on_done)(const struct http_record *record, const void *room, void *arg);
};

/* --- The server --- */

/* Binds and listens; connections wait in the backlog until http_server_run. Options and strings are
 * copied. ERR_BUSY: another program uses an address. */
enum status http_server_open(const struct http_options *options, struct http_server **server,
                             struct err *err);
/* Runs the loop until the server is drained or stopped. Returns 0 if every request ended by itself,
 * 1 if some were cut off. */
int http_server_run(struct http_server *server);
void http_server_close(struct http_server *server); // after http_server_run; accepts NULL

/* The bound address of listener i, as "127.0.0.1:8000"; NULL past the last. */
const char *http_server_address(const struct http_server *server, size_t i);
enum http_state http_server_state(const struct http_server *server);
void http_server_drain(struct http_server *server); // like SIGTERM; further calls do nothing
void http_server_stop(struct http_server *server);  // stops at once, cutting off running requests

/* Sends a state such as "READY=1" or "STATUS=loading 40 %" to systemd; does nothing without
 * NOTIFY_SOCKET. The loop itself sends watchdog pings as long as the hook returns true. */
void http_notify(struct http_server *server, const char *text);
void http_set_watchdog(struct http_server *server, bool (*healthy)(void *arg), void *arg);

struct http_stats {
    uint64_t n_accepted, n_refused;      // connections accepted and refused
    uint64_t n_requests, n_bad_requests; // all requests; those rejected as malformed or too large
    uint64_t n_gone[4];                  // requests by enum http_gone
    uint64_t n_events, n_short_sends;    // stream writes; sends that the socket did not take
                                         // completely
    uint64_t body_bytes, sent_bytes;     // request bodies received; stream bytes sent
    unsigned n_connections, n_active, n_streams; // open connections; requests; those that stream
    size_t held_body_bytes, held_stream_bytes;
    int64_t loop_lag_ns; // how late the last 100 ms tick was
};
void http_server_stats(const struct http_server *server, struct http_stats *stats);

/* Has the loop call on_wake soon. Several calls may lead to one on_wake, so it must take everything
 * available, or call this for the rest: the loop looks at its connections in between. Cheap.
 * Thread: any, until http_server_close. */
void http_wake(struct http_server *server);

/* Runs work(arg) on the thread pool, then done(arg) on the loop. done is always called. */
void http_pool_run(struct http_server *server, void (*work)(void *arg), void (*done)(void *arg),
                   void *arg);
/* The same for work that may take minutes, which http_server_run does not wait for. If it returns
 * before done was called, exit the process without http_server_close. */
void http_pool_run_unawaited(struct http_server *server, void (*work)(void *arg),
                             void (*done)(void *arg), void *arg);

/* --- Timers: embedded in the caller's struct, zeroed initially; 100 ms resolution, never early
 * --- */

struct http_timer {
    struct http_timer *next, **link; // private
    int64_t due_tick;
    void (*on_due)(struct http_timer *timer, void *arg);
    void *arg;
};
/* Starts or restarts a timer, which fires once. */
void http_timer_start(struct http_server *server, struct http_timer *timer, int64_t delay_ms,
                      void (*on_due)(struct http_timer *timer, void *arg), void *arg);
// does nothing if it is not running
void http_timer_stop(struct http_server *server, struct http_timer *timer);

/* --- A request: borrowed strings, valid until the terminal call --- */

// what the pattern's first {id} matched, decoded; NULL without one
const char *http_param(const struct http_request *req);
const char *http_second_param(const struct http_request *req); // the same for the second {id}
/* NULL if absent. Only valid in on_head, authorize and the handler until it returns: copy what is
 * needed later. */
const char *http_header(const struct http_request *req, const char *name);
/* False if a browser sent the request for a page that cors_origins does not list. Valid as long as
 * http_header. */
bool http_origin_is_good(const struct http_request *req);
/* True if a host name, with or without a port, means this machine: localhost, 127.*, [::1]. */
bool http_is_loopback(const char *host);
/* A query parameter, decoded; NULL if absent, "" if it has no value. */
const char *http_query(const struct http_request *req, const char *name);
const char *http_peer(const struct http_request *req);       // "192.0.2.1:5555", "unix"
const char *http_request_id(const struct http_request *req); // from x-request-id, or 32 hex digits
/* Sets an id that was given in the body (copied). Does nothing if the head had an id, or once the
 * reply has one. */
void http_set_request_id(struct http_request *req, const char *id);
int64_t http_arrived_ns(const struct http_request *req); // clock_now_ns when the head was read

/* NUL-terminated after n_bytes. Writable, for in-place parsers. */
char *http_body(struct http_request *req, size_t *n_bytes);
/* Frees the body early, for streams that no longer need it. http_body then returns NULL. */
void http_body_free(struct http_request *req);

/* The caller's own n_room bytes, initially zero; put_line and on_done get them. */
void *http_room(struct http_request *req);

struct http_events {
    /* The client is gone. Called at most once, from the loop, never within another call here. */
    void (*on_gone)(struct http_request *req, enum http_gone why, void *arg);
    /* A stream for which http_stream_is_full was true has room again. May be NULL. */
    void (*on_writable)(struct http_request *req, void *arg);
};
/* Keeps the request after the handler returns. `events` must outlive it. */
void http_defer(struct http_request *req, const struct http_events *events, void *arg);
bool http_is_gone(const struct http_request *req);

/* --- Replies. Content-Length, Date, x-request-id, CORS and Connection are added --- */

/* Call it before the terminal call or http_stream_begin. Values with CR, LF or NUL are dropped. */
void http_reply_header(struct http_request *req, const char *name, const char *value);

/* Terminal. Copies the body. If a stream was begun but its head not sent, the reply replaces it, so
 * that a late error keeps its status. */
void http_reply(struct http_request *req, int status, const char *content_type, const void *body,
                size_t n_bytes);
/* Terminal. Takes the buffer's memory, leaving it empty. A failed buffer becomes a 500. */
void http_reply_buf(struct http_request *req, int status, const char *content_type,
                    struct buf *body);

/* "Bad Request" for 400. */
const char *http_status_text(int status);

/* --- Streams: status 200, chunked if the client supports it, one server-sent event per write
 * --- */

/* The head is sent with the first write, or with a comment after head_delay_ms; further comments
 * keep a silent stream alive. content_type NULL: text/event-stream. */
void http_stream_begin(struct http_request *req, const char *content_type);
bool http_stream_head_sent(const struct http_request *req); // true: http_reply can no longer
                                                            // replace the status

/* Appends whole events, framed by the caller ("data: ...\n\n"). They are sent when another stream
 * is written, or at the end of the callback, so consecutive writes form one packet. Bytes beyond
 * stream_soft_bytes are accepted, but the caller should stop until on_writable (see
 * http_stream_is_full). If earlier turns of the loop have left more than stream_hard_bytes, a write
 * disconnects the client; bytes of the current turn do not count. Does nothing once the client is
 * gone. */
void http_stream_write(struct http_request *req, const void *bytes, size_t n_bytes);
/* The same without a copy: memory for n_bytes, to be filled before any other call here, then
 * committed with the number used. Never NULL. */
char *http_stream_reserve(struct http_request *req, size_t n_bytes);
void http_stream_commit(struct http_request *req, size_t n_bytes);
bool http_stream_is_full(const struct http_request *req);

/* Terminal. Pending bytes are still sent; then the connection is kept alive. */
void http_stream_end(struct http_request *req);

#endif
