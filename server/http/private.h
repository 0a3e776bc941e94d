// SPDX-License-Identifier: Apache-2.0
/* Shared by the files of the front end: connections, requests, the server. Private to server/http.
 * Ownership: libmicrohttpd owns the socket and calls us when it opens and closes one. A connection
 * lives until its socket is closed and its last request is freed. A request lives until both the
 * handler (by its terminal call) and libmicrohttpd have released it.
 * Thread: the loop. */
#ifndef SLUICE_SERVER_HTTP_PRIVATE_H
#define SLUICE_SERVER_HTTP_PRIVATE_H

#include "engine/base/assert.h"
#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/http/http.h"

#include <microhttpd.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>
#include <uv.h>

enum {
    TICK_MS = 100, // one slot of the timer wheel
    N_WHEEL = 256, // slots of the wheel: one turn is 25.6 s
    N_LINGER = 64, // rejected sockets that stay open until their clients have read the answer
    SCRATCH_BYTES = 64 << 10, // limits one write of the direct writer
    CHUNK_HEAD = 6,           // "00be\r\n"
    MAX_CHUNK = 60000,        // bytes of data: its length has four hex digits, and it fits into the
                              // scratch buffer
    DISCARD_BYTES = 32 << 20, // a rejected body is read up to this size, so that the client sees
                              // the reply
    MAX_LISTENERS = 16,       // arbitrary
    ADDRESS_BYTES = 8,        // of a client's address, to count its connections
    N_ADDRESS_SLOTS = 4096,
    REST_MS = 100, // arbitrary: time to read what arrived before a FIN
    NEVER = -1,
};

struct http_conn;

struct http_listener {
    uv_poll_t poll;
    struct http_server *server;
    int fd;
    bool is_unix, inherited, polling;
    char address[160];
    char *unlink_path; // file of a Unix socket that we created; NULL otherwise
};

/* One libmicrohttpd daemon: plain, or TLS with one set of certificates. */
struct http_daemon {
    struct MHD_Daemon *mhd;
    uv_poll_t poll;
    struct http_server *server;
    struct http_daemon *next;
    bool tls, retired, ready; // ready: its epoll descriptor is ready, or it asked to be run
    unsigned n_connections;
};

/* In the order in which a request passes them; up to CONN_BODY it is still being received. */
enum conn_phase { CONN_NEW, CONN_HEAD, CONN_BODY, CONN_HANDLER, CONN_REPLY, CONN_IDLE };

struct http_conn {
    struct http_server *server;
    struct http_daemon *daemon;
    struct MHD_Connection *mhd; // NULL once libmicrohttpd has closed it
    struct http_conn *next, **link;
    struct http_request *req; // the current request
    int fd;
    unsigned n_refs; // libmicrohttpd's reference, and one per request
    enum conn_phase phase;
    bool over_limit; // accepted above the limit: serves only HTTP_ROUTE_ALWAYS, and is closed after
                     // one request; see http_conn_make_place
    bool half_closed; // the peer has shut down its writing side, or both
    bool broken;      // reset, timed out or closed by us
    bool wants_out;   // EPOLLOUT is requested
    int64_t left_ns;  // when half_closed was set
    int64_t deadline_ns;
    int64_t acked_bytes;          // bytes acknowledged at the last check for a stalled reply
    struct http_timer timer;      // fires at deadline_ns or earlier; if earlier, it is restarted
    struct http_address *address; // NULL: not counted
    char peer[64];
};

struct reply_header {
    struct reply_header *next;
    char *name, *value; // in one allocation with the node
};

/* A stream's unsent bytes: framed for the direct writer, raw for libmicrohttpd's. Members up to
 * `out` are accessed for each token. */
struct stream {
    bool begun, started; // started: the head may be sent, or has been
    bool direct;         // we write chunks to the socket ourselves, rather than libmicrohttpd
    bool open;           // direct, and libmicrohttpd has sent the head: only we write to the socket
    bool ended, full;
    int fd;          // the connection's socket, while open
    uint64_t n_sent; // bytes sent, for the log line
    int64_t last_write_ns;
    struct buf out;
    size_t sent;     // bytes of `out` already sent
    int64_t turn_ns; // the last turn of the loop that wrote; n_left_over: bytes that were unsent
                     // when that turn began
    size_t n_left_over;
    const char *content_type;
    struct http_timer timer; // delays the head, later sends keep-alive comments
};

struct http_request {
    /* The members that each token accesses come first, in 64 bytes: with thousands of streams each
     * further cache line is a miss. stream.c asserts their size. */
    struct http_server *server;
    enum http_gone gone;
    bool completed; // libmicrohttpd has released it
    bool terminal;
    struct stream stream;

    struct http_conn *conn;
    const struct http_route *route;
    const struct http_events *events;
    void *events_arg;

    /* State. */
    bool head_done;   // http_handle's first call for it has returned
    bool in_callback; // we are inside a libmicrohttpd callback for it
    bool handed;      // the handler was called and has not made its terminal call
    bool deferred;
    bool suspended; // suspended in libmicrohttpd
    bool queued;    // the response was passed to libmicrohttpd
    bool must_close, refused, is_bad;
    bool gone_reported;

    /* The server's lists; a request is in each at most once. */
    struct http_request *next_resume, *next_gone, *next_flush;
    bool in_resume, in_gone, in_flush;

    /* The request. `text` holds the raw URI, the path and the query parameters. */
    bool http10, is_head, expects_continue, has_body;
    char method[16];
    const char *path, *param, *second_param, *query;
    char *text, *query_end;
    const char *uri_seen; // where the URI is in libmicrohttpd's memory, n_uri bytes: for the guard
    size_t n_uri;
    char *value_seen, *after_value; // of an argument that libmicrohttpd reads, in its memory
    char id[132];
    bool id_is_given;                                     // the client gave it in the head
    const char *origin, *content_type, *content_encoding; // borrowed from libmicrohttpd
    uint64_t content_length;
    char *body;
    size_t n_body, body_cap, max_body;
    uint64_t n_discarded;

    struct MHD_Response *response;
    int status;
    size_t n_reply;
    struct reply_header *headers;
    struct http_record record;
    char user_agent[64];
    max_align_t room[]; // options.n_room bytes: http_room
};

struct http_server {
    struct http_options options;
    char *root_path, *cors_origins, *tls_cert, *tls_key;
    uv_loop_t loop;
    uv_async_t wake;
    uv_idle_t again; // runs libmicrohttpd again at once (never a 0 ms timer: libuv 1.44 would
                     // starve I/O)
    uv_timer_t tick;
    uv_poll_t watch; // the private epoll descriptor
    uv_signal_t sigterm, sigint, sighup, sigusr1;
    int watch_fd, spare_fd;
    int mhd_version; // of the library in use: 0x00097500 is 0.9.75

    struct http_listener listeners[MAX_LISTENERS];
    size_t n_listeners;
    struct http_daemon *daemons, *plain, *tls;

    struct http_conn *conns;
    struct http_address *addresses[N_ADDRESS_SLOTS]; // with options.max_per_address
    struct http_conn *accepting; // the connection being accepted, for libmicrohttpd's notification
    struct http_request *resume, *gone, *flush, **resume_tail, **gone_tail, **flush_tail;
    bool settling;
    struct {
        int fd;
        int64_t due_ns;
    } linger[N_LINGER];

    char *spare_room; // where http_stream_reserve points when the scratch buffer cannot be used
    size_t n_spare_room;
    bool reserved_scratch;
    char *scratch; // direct writer: n_scratch unsent bytes of the stream of scratch_req
    struct http_request *scratch_req;
    size_t n_scratch;

    struct http_timer *wheel[N_WHEEL];
    unsigned n_timers;
    int64_t tick_now, tick_base_ns; // the wheel's position, and the time of position 0
    int64_t now_ns;                 // when this turn of the loop began
    int64_t last_tick_ns;
    int64_t left_ns; // when a connection last ended; 0: none has

    enum http_state state;
    struct http_timer drain_timer;
    bool stopping, deadline_passed, was_cut;
    int64_t stop_ns;
    char *notify_path;
    bool (*healthy)(void *arg);
    void *healthy_arg;
    int64_t watchdog_ns, watchdog_last_ns;
    uint64_t id_seed, n_ids;
    int64_t accept_pause_ns; // when to accept again after descriptors ran out
    struct http_stats stats;
    struct buf log_lines;
    struct line_writer *log_writer; // NULL: no request log
    uint64_t n_log_dropped, n_log_reported;
    unsigned n_pool_jobs;
};

enum { CUT_GRACE_MS = 2000 }; // time for connections that were cut off to close

/* http.c */
void http_server_begin(struct http_server *s); // first part of http_server_run; afterwards the
                                               // caller may call uv_run itself

/* turn.c */
void http_settle(struct http_server *s); // call it at the end of every callback: does everything
                                         // that the callback made due
void http_check_drained(struct http_server *s);

/* daemon.c */
enum status http_daemon_open(struct http_server *s, bool tls, struct http_daemon **out,
                             struct err *err);
void http_daemons_run(struct http_server *s);
bool http_daemons_pending(struct http_server *s);
void http_daemon_retire(struct http_server *s, struct http_daemon *d);
void http_daemons_close(struct http_server *s);

/* listen.c */
enum status http_listen_open(struct http_server *s, const char *spec, struct err *err);
enum status http_listen_take(struct http_server *s, int fd, struct err *err);
void http_listen_start(struct http_server *s);
void http_listen_close(struct http_server *s);
void http_listen_tick(struct http_server *s);

/* error.c */
/* Initialises b and writes an error's body. Returns its Content-Type; NULL: no body. */
const char *http_put_error(const struct http_server *s, struct buf *b, int status, const char *code,
                           const char *message);
/* Writes an error as raw bytes to a socket on which libmicrohttpd cannot answer. */
void http_refuse_raw(const struct http_server *s, int fd, int status, const char *code,
                     const char *message, int retry_after_s);

/* address.c */
/* Counts a connection from this address. *out is to be passed to http_address_leave when the
 * connection ends. False: the address already has max_per_address connections. */
bool http_address_enter(struct http_server *s, const struct sockaddr *sa,
                        struct http_address **out);
void http_address_leave(struct http_server *s, struct http_address *a); // accepts NULL

/* conn.c */
void http_conn_open(struct http_conn *c, struct MHD_Connection *mhd);
void http_conn_closed(struct http_conn *c);
void http_conn_release(struct http_conn *c);
void http_conn_phase(struct http_conn *c, enum conn_phase phase, int64_t deadline_ms);
void http_conn_deadline(struct http_conn *c, int64_t deadline_ms);
void http_conn_cut(struct http_conn *c);
/* Time limit for a head, shorter for connections above the limit. */
int64_t http_conn_head_ms(const struct http_conn *c);
/* Closes the oldest connection above the limit whose request is incomplete. A probe sends its
 * request at once, so its connection is rarely the oldest. False: there is none. */
bool http_conn_make_place(struct http_server *s);
void http_conn_want_out(struct http_conn *c, bool on);
void http_watch_ready(struct http_server *s);

/* request.c */
enum MHD_Result http_handle(void *arg, struct MHD_Connection *mhd, const char *url,
                            const char *method, const char *version, const char *data,
                            size_t *n_data, void **context);
void *http_uri_seen(void *arg, const char *uri, struct MHD_Connection *mhd);
void http_argument_seen(struct MHD_Connection *mhd, const char *s);
void http_completed(void *arg, struct MHD_Connection *mhd, void **context,
                    enum MHD_RequestTerminationCode code);
void http_request_lost(struct http_conn *c); // before http_conn_closed
void http_request_gone(struct http_request *req, enum http_gone why);
void http_request_resume(struct http_request *req);
void http_request_release(struct http_request *req); // frees the request if neither libmicrohttpd,
                                                     // the handler nor a list holds it

/* guard.c: rejects what libmicrohttpd wrongly accepts. 0: fine; otherwise the HTTP status. Stores
 * what it learnt from the headers. */
int http_guard(struct http_request *req, const char *method, const char *version, const char **why);

/* route.c */
const struct http_route *http_route_find(struct http_request *req, struct buf *allow);
/* The path's route for another method, or any method; NULL: no such path. */
const struct http_route *http_route_of_path(struct http_request *req, const char *method);
bool http_split_uri(struct http_request *req, const char *raw);

/* reply.c */
struct MHD_Response *http_make_stream(struct http_request *req);
void http_refuse(struct http_request *req, int status, const char *code, const char *message);
void http_refusef(struct http_request *req, int status, const char *code, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
bool http_cors_preflight(struct http_request *req);

/* stream.c */
void http_flush_scratch(struct http_server *s);
void http_stream_flush(struct http_request *req);
void http_stream_opened(struct http_request *req);
void http_stream_drop(struct http_request *req); // the client is gone: discards unsent bytes
ssize_t http_stream_read(void *arg, uint64_t pos, char *bytes, size_t max_bytes);
void http_stream_timer(struct http_timer *timer, void *arg);

/* timer.c */
void http_timers_tick(struct http_server *s);

/* systemd.c */
int http_systemd_sockets(void); // the number of sockets passed by systemd; descriptors start at 3
void http_systemd_open(struct http_server *s);
void http_systemd_tick(struct http_server *s);

/* log.c */
void http_log_request(struct http_request *req);
void http_log_tick(struct http_server *s);
void http_log_open(struct http_server *s);
void http_log_close(struct http_server *s);

#endif
