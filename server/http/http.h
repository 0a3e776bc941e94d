// SPDX-License-Identifier: Apache-2.0
/* The HTTP front end: one libuv loop that drives libmicrohttpd, with neither showing through. It
 * parses, bounds and times requests, matches routes, writes replies and event streams, notices
 * clients that leave, and drains. It moves bytes only: JSON, keys and tokens are its caller's.
 *
 * A request belongs to its handler's side from the handler's call until exactly one *terminal*
 * call: http_reply (or a relative), or http_stream_end. A handler returns at once; it makes the
 * terminal call before it returns, or calls http_defer and makes it later. When the client leaves
 * in between, on_gone says so once; the terminal call is still due (it then only gives the request
 * back), and until then every accessor stays valid.
 *
 * Nothing here blocks. Callbacks may call everything here but http_server_run and _close.
 * Thread: the loop thread (the one in http_server_run) for all, apart from http_wake and the
 * `work` function of http_pool_run. Before http_server_run the opening thread counts as it. */
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
    HTTP_GONE_CLOSED = 1, // the client closed, reset, or fell silent (TCP gave up)
    HTTP_GONE_SLOW,       // it stopped reading: over the hard bound, or no progress for too long
    HTTP_GONE_SHUTDOWN,   // the server stops without waiting any longer
};

/* What is known of one request when it ends. Borrowed text, valid during the call that gets it. */
struct http_record {
    const char *request_id, *peer, *method, *path;
    const char *route;      // the pattern; NULL if none matched
    const char *user_agent; // NULL if none
    const char *refusal;    // the code of an error that was answered in here; NULL if none
    char trace_id[33];      // of a traceparent header; "" if none
    int status;             // 499: the client left before the head went out
    enum http_gone gone;    // 0: served whole
    bool streamed;
    int64_t arrived_ns, head_ns, end_ns; // head_ns: when the reply began, 0: never
    uint64_t body_bytes, sent_bytes;     // received and sent, without heads
};

enum http_route_flags {
    HTTP_ROUTE_ALWAYS = 1, // also over the connection limit and while draining (health, metrics)
    HTTP_ROUTE_JSON = 2,   // a body must be application/json, *+json, or begin with '{'; else 415
    HTTP_ROUTE_QUIET = 4,  // no log line, unless log_quiet
};

struct http_route {
    const char *method; // "GET" (answers HEAD too), "POST", "DELETE"
    const char *path;   // "/v1/models/{id}": one {id} or two, of which one that comes last takes
                        // slashes, too, unless another row has the path first
    void (*handler)(struct http_request *req, void *arg);
    unsigned scope;        // for the authorize hook; 0: open to all
    size_t max_body_bytes; // 0: options.max_body_bytes
    unsigned flags;        // enum http_route_flags
};

enum http_state {
    HTTP_RUNNING,
    HTTP_DRAINING, // announced: readiness is red, new requests are still taken, replies say close
    HTTP_CLOSING,  // listeners are closed, new requests get 503; running ones end
    HTTP_STOPPED,
};

struct http_options {
    /* "127.0.0.1:8000", "[::1]:8000", "name:8000", ":8000" (all, IPv4 and IPv6), "unix:/path",
     * "fd:3" (inherited). Port 0: any free one, see http_server_address. */
    const char *const *listen;
    size_t n_listen;
    bool systemd;         // also take the sockets that systemd passed, and talk to NOTIFY_SOCKET
    bool signals;         // SIGTERM and SIGINT drain, SIGINT without delay (a second one stops);
                          // SIGHUP: on_reload, SIGUSR1: on_report
    const char *tls_cert; // PEM files; both set: TCP listeners speak TLS (Unix sockets do not)
    const char *tls_key;
    bool tls13_only; // else TLS 1.2 too, and nothing older
    /* Origins whose pages may read answers: a list "https://a,https://b", for all routes, and "*"
     * and "loopback" (pages of this machine) for those of cors_scope. NULL: none. */
    const char *cors_origins;
    unsigned cors_scope;   // routes with one of its bits; 0: all routes
    const char *root_path; // NULL or "/prefix" that is taken off every path

    /* Limits. 0 stands for the default in brackets. */
    size_t max_body_bytes;       // [16 MiB] then 413
    size_t max_body_total_bytes; // [1 GiB] all bodies that are held; then 503
    size_t max_header_bytes;     // [16 KiB] libmicrohttpd's pool for a connection; then 431
    unsigned max_connections;    // [10500] then 503; a few more are kept for HTTP_ROUTE_ALWAYS
    size_t stream_soft_bytes;    // [64 KiB] unsent bytes from which http_stream_is_full
    size_t stream_hard_bytes;    // [16 MiB] unsent bytes of earlier turns: over it a write cuts
    unsigned header_timeout_ms;  // [10 s] for a request's head, then 408
    unsigned body_timeout_ms;    // [30 s] for its body, plus 1 s per 64 KiB; then 408
    unsigned idle_timeout_ms;    // [75 s] keep-alive: above the 60 s of balancers
    unsigned stall_timeout_ms;   // [30 s] unsent bytes and no progress
    unsigned head_delay_ms;      // [5 s] a stream without a write sends its head with a comment
    unsigned keep_alive_ms;      // [15 s] between comments on a silent stream
    unsigned drain_delay_ms;     // [0] HTTP_DRAINING before HTTP_CLOSING; not when nobody has
                                 // been connected for that long: then nobody looks
    bool drain_if_busy;          // the delay is only for when requests run
    unsigned drain_timeout_ms;   // [25 s] for running requests, then on_drain_deadline
    unsigned dead_peer_ms;       // [10 s] an unplugged client is gone by then, silent or not
    bool tolerate_half_close;    // a client that shuts its writing side still reads
    int log_fd;                  // put_line's lines; 0: standard output; -1: none
    bool log_quiet;              // a line also for routes that have HTTP_ROUTE_QUIET
    size_t n_room;               // bytes that each request has for the caller: http_room

    const struct http_route *routes; // ended by a row with method NULL; must outlive the server
    void *arg;                       // for handlers and for all that follows

    /* All optional. */
    /* The body of an error that is answered in here, and its Content-Type. `code` is one of a few
     * static words ("unknown_url"). NULL: such answers have no body. */
    const char *(*put_error)(struct buf *b, int status, const char *code, const char *message);
    /* The log's line for a request, with its newline. NULL: there are none. */
    void (*put_line)(struct buf *b, const struct http_record *record, const void *room,
                     int64_t wall_ns);
    /* The head is read and well formed; whatever follows, on_done comes for it. */
    void (*on_head)(struct http_request *req, void *arg);
    /* After the head is read, before the body. False: it has made the terminal call. */
    bool (*authorize)(struct http_request *req, const struct http_route *route, void *arg);
    void (*on_wake)(void *arg);  // once after any number of http_wake, then one resume pass
    void (*on_drain)(void *arg); // when HTTP_DRAINING begins
    /* Drain time is over: end all requests now (an error event, a 503). What is left 2 s later is
     * cut with HTTP_GONE_SHUTDOWN. */
    void (*on_drain_deadline)(void *arg);
    void (*on_reload)(void *arg); // SIGHUP; certificates have been read again
    void (*on_report)(void *arg); // SIGUSR1: say in the log what is going on
    /* The response is out or cut: for metrics. Also for requests that no handler saw. */
    void (*on_done)(const struct http_record *record, const void *room, void *arg);
};

/* --- The server --- */

/* Binds and listens; connections wait in the backlog until http_server_run. The options are
 * copied, the strings are not kept. ERR_BUSY: another program listens there. */
enum status http_server_open(const struct http_options *options, struct http_server **server,
                             struct err *err);
/* Runs the loop until drained or stopped. 0: every request ended; 1: some were cut. */
int http_server_run(struct http_server *server);
void http_server_close(struct http_server *server); // after run; accepts NULL

/* The bound address of listener i, as "127.0.0.1:8000"; NULL past the last. */
const char *http_server_address(const struct http_server *server, size_t i);
enum http_state http_server_state(const struct http_server *server);
void http_server_drain(struct http_server *server); // as SIGTERM does; more calls do nothing
void http_server_stop(struct http_server *server);  // at once: cuts what is left

/* Tells systemd, when it asked: "READY=1", "STATUS=loading 40 %". Nothing without NOTIFY_SOCKET.
 * Watchdog pings are sent by the loop itself while the hook says true. */
void http_notify(struct http_server *server, const char *text);
void http_set_watchdog(struct http_server *server, bool (*healthy)(void *arg), void *arg);

struct http_stats {
    uint64_t n_accepted, n_refused;      // connections
    uint64_t n_requests, n_bad_requests; // all; refused by the guard or by libmicrohttpd's limits
    uint64_t n_gone[4];                  // by enum http_gone
    uint64_t n_events, n_short_sends;    // stream writes sent; sends that found the socket full
    uint64_t body_bytes, sent_bytes;     // bodies received; stream bytes sent
    unsigned n_connections, n_active, n_streams; // open; with a request; of these, streaming
    size_t held_body_bytes, held_stream_bytes;
    int64_t loop_lag_ns; // how late the last 100 ms tick was
};
void http_server_stats(const struct http_server *server, struct http_stats *stats);

/* Thread: any, until http_server_close. Cheap; calls coalesce, so on_wake takes all that there
 * is. */
void http_wake(struct http_server *server);

/* Runs work(arg) on the thread pool, then done(arg) on the loop. done always comes. */
void http_pool_run(struct http_server *server, void (*work)(void *arg), void (*done)(void *arg),
                   void *arg);
/* The same for work of minutes, which http_server_run does not wait for: when it returns before
 * done came, all that is left is to end the process, without http_server_close. */
void http_pool_run_unawaited(struct http_server *server, void (*work)(void *arg),
                             void (*done)(void *arg), void *arg);

/* --- Timers: embedded in the caller's struct, zeroed at first; 100 ms resolution, never early ---
 */

struct http_timer {
    struct http_timer *next, **link; // private
    int64_t due_tick;
    void (*on_due)(struct http_timer *timer, void *arg);
    void *arg;
};
/* Starts or restarts. It fires once. */
void http_timer_start(struct http_server *server, struct http_timer *timer, int64_t delay_ms,
                      void (*on_due)(struct http_timer *timer, void *arg), void *arg);
void http_timer_stop(struct http_server *server, struct http_timer *timer); // also if not running

/* --- A request: borrowed text, valid until the terminal call --- */

const char *http_param(const struct http_request *req);        // what {id} took, decoded; or NULL
const char *http_second_param(const struct http_request *req); // the second one
/* NULL if absent. Only in the hooks on_head and authorize and in the handler, until it returns:
 * copy what is needed later. */
const char *http_header(const struct http_request *req, const char *name);
/* False: a browser sends it for a page that cors_origins does not allow to. Likewise. */
bool http_origin_is_good(const struct http_request *req);
/* Whether a name, with or without a port, is this machine's alone: localhost, 127.*, [::1]. */
bool http_is_loopback(const char *host);
/* A query parameter, decoded; NULL if absent, "" if it has no value. */
const char *http_query(const struct http_request *req, const char *name);
const char *http_peer(const struct http_request *req);       // "192.0.2.1:5555", "unix"
const char *http_request_id(const struct http_request *req); // from x-request-id, or 32 hex digits
/* A body's own id, copied: unless the head brought one, or the reply has one already. */
void http_set_request_id(struct http_request *req, const char *id);
int64_t http_arrived_ns(const struct http_request *req); // clock_now_ns of the head

/* NUL-terminated behind n_bytes. Writable: an in-place parser may eat it. */
char *http_body(struct http_request *req, size_t *n_bytes);
/* Gives the memory back early (a stream needs its body no longer). http_body then says NULL. */
void http_body_free(struct http_request *req);

/* The caller's own n_room bytes, zero at first; put_line and on_done get them. */
void *http_room(struct http_request *req);

struct http_events {
    /* The client is gone. Called at most once, from the loop, never inside another call here. */
    void (*on_gone)(struct http_request *req, enum http_gone why, void *arg);
    /* A stream that was full has room again. May be NULL. */
    void (*on_writable)(struct http_request *req, void *arg);
};
/* Keeps the request beyond the handler's return. `events` must outlive it. */
void http_defer(struct http_request *req, const struct http_events *events, void *arg);
bool http_is_gone(const struct http_request *req);

/* --- Replies. Content-Length, Date, x-request-id, CORS and Connection are added --- */

/* Before the terminal call or http_stream_begin. Values with CR, LF or NUL are dropped. */
void http_reply_header(struct http_request *req, const char *name, const char *value);

/* Terminal. Copies the body. With a stream that was begun but has not sent its head, the reply
 * takes its place: a late refusal keeps its status. */
void http_reply(struct http_request *req, int status, const char *content_type, const void *body,
                size_t n_bytes);
/* Terminal. Takes the buffer's memory (the buffer is then empty). A failed buffer becomes 500. */
void http_reply_buf(struct http_request *req, int status, const char *content_type,
                    struct buf *body);

/* "Bad Request" for 400. */
const char *http_status_text(int status);

/* --- Streams: 200, chunked where the client can, one server-sent event per write --- */

/* The head waits for the first write, or goes out after head_delay_ms with a comment; then
 * comments keep a silent stream alive. content_type NULL: text/event-stream. */
void http_stream_begin(struct http_request *req, const char *content_type);
bool http_stream_head_sent(const struct http_request *req); // too late for another status

/* Adds whole events; the caller frames them ("data: ...\n\n"). Sent when another
 * stream is written, or at the end of the callback: writes in a row become one packet. Past
 * stream_soft_bytes the bytes are still taken (see http_stream_is_full: stop feeding it until
 * on_writable). A write while earlier turns of the loop have left more than stream_hard_bytes cuts
 * the client; what one turn writes does not count against it. Does nothing once the client is gone.
 */
void http_stream_write(struct http_request *req, const void *bytes, size_t n_bytes);
/* The same without a copy: room for n_bytes, to be filled before any other call here, then
 * commit with what was used. Never NULL. */
char *http_stream_reserve(struct http_request *req, size_t n_bytes);
void http_stream_commit(struct http_request *req, size_t n_bytes);
bool http_stream_is_full(const struct http_request *req);

/* Terminal. What was written is still sent, then the connection is kept alive. */
void http_stream_end(struct http_request *req);

#endif
