// SPDX-License-Identifier: Apache-2.0
/* `sluice serve MODEL`: starts listening at once, loads the model on a pool thread, serves,
 * drains. */
#include "engine/base/optional.h"
#include "server/cli/commands.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/cluster/nodes.h"
#include "engine/engine.h"
#include "server/api/api.h"
#include "server/api/keys.h"
#include "server/cli/config_load.h"
#include "server/cli/devices.h"
#include "server/cli/engine_config.h"
#include "server/cli/last_resort.h"
#include "server/cli/model_choice.h"
#include "server/cli/nodes_config.h"
#include "server/cli/serve_node.h"
#include "server/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LOG_PATIENCE_MS = 500,
    LAST_RESORT_S = 4 // the process exits after this time even if a device hangs in the driver
};

/* The whole state of the server. The loop's thread owns it, except while `load` runs. */
struct serve {
    struct config config;
    struct buf config_text; // for /server_info
    struct api api;
    struct http_server *http;
    struct store *store;
    struct engine_options options;
    struct engine *engine;
    struct call_model model;
    enum status load_status;
    struct err load_error;
    bool loading;
};

/* ---- loading --------------------------------------------------------------------------------- */

static void on_progress(double share, const char *what, void *arg)
{
    struct serve *s = arg;
    (void)what;
    atomic_store(&s->api.load_permille, (int)(share * 1000));
}

static void wake(void *arg)
{
    http_wake(((struct serve *)arg)->http);
}

static void tell_nodes(struct serve *s)
{
    if (s->options.nodes) {
        nodes_fail(s->options.nodes, s->load_error.text);
    }
}

/* On a pool thread, so that health checks are answered meanwhile. If loading fails, the other
 * nodes, which wait for this one, are told. */
static void load(void *arg)
{
    struct serve *s = arg;
    const struct config *c = &s->config;
    s->load_status = engine_config(c, &s->options, &s->load_error);
    if (s->load_status != OK) {
        tell_nodes(s);
        return;
    }
    s->options.on_progress = on_progress;
    s->options.wake = wake;
    s->options.callback_arg = s;
    s->load_status = engine_open(&s->options, &s->engine, &s->load_error);
    if (s->load_status == OK) {
        s->load_status = call_model_open(&s->model, c, engine_info(s->engine), &s->load_error);
    }
    if (s->load_status == OK && s->model.tok) {
        engine_add_eos(s->engine, tokenizer_eos(s->model.tok));
    }
    if (s->load_status != OK) {
        tell_nodes(s);
    }
}

/* Back on the loop's thread, after `load`: from now on calls are accepted. */
static void loaded(void *arg)
{
    struct serve *s = arg;
    s->loading = false;
    if (s->load_status != OK) {
        log_error("%s", s->load_error.text);
        s->api.load_failed = true;
        http_server_stop(s->http);
        return;
    }
    const struct engine_info *i = engine_info(s->engine);
    s->api.calls.engine = s->engine;
    s->api.calls.model = s->model;
    api_set_ready(&s->api);
    log_info("ready after %.1f s: %s, %.1f M parameters on %s, context %d, %d sequences, %d KV "
             "blocks of %d tokens (%lld in %s), tool calls: %s",
             (double)(s->api.ready_ns - s->api.started_ns) * 1e-9, i->model_type,
             (double)i->n_parameters * 1e-6, i->device, i->max_model_len, i->max_num_seqs,
             i->n_blocks, i->block_tokens, (long long)i->n_blocks * i->block_tokens,
             i->kv_cache_dtype, s->model.parser ? s->model.parser->name : "none");
    http_notify(s->http, "READY=1");
}

/* ---- listening ------------------------------------------------------------------------------- */

static bool is_healthy(void *arg)
{
    return ((struct api *)arg)->health != HEALTH_DEAD;
}

enum { MAX_HOSTS = 8 }; // arbitrary

struct addresses {
    size_t n;
    char text[MAX_HOSTS][512];
    const char *list[MAX_HOSTS];
};

/* IPv6 addresses need brackets before the port. */
static void add_host(struct addresses *a, const char *host, size_t n, int port)
{
    bool bare6 = memchr(host, ':', n) && host[0] != '[';
    a->list[a->n] = a->text[a->n];
    snprintf(a->text[a->n++], sizeof a->text[0], bare6 ? "[%.*s]:%d" : "%.*s:%d", (int)n, host,
             port);
}

/* The addresses to listen on: the Unix socket, or each host of the comma-separated list. */
static enum status addresses_of(const struct config *c, struct addresses *a, struct err *err)
{
    if (c->uds) {
        a->list[a->n] = a->text[a->n];
        snprintf(a->text[a->n++], sizeof a->text[0], "unix:%s", c->uds);
        return OK;
    }
    for (const char *at = c->host;; at++) { // skips the comma
        size_t n = strcspn(at, ",");
        if (n == 0) {
            return err_set(err, ERR_INVALID, "--host has an empty address: '%.200s'", c->host);
        }
        if (a->n == MAX_HOSTS) {
            return err_set(err, ERR_LIMIT, "--host has more than %d addresses", MAX_HOSTS);
        }
        add_host(a, at, n, (int)c->port);
        at += n;
        if (!*at) {
            break;
        }
    }
    if (a->n > 1 && c->port == 0) {
        return err_set(
            err, ERR_INVALID,
            "--port 0 would select a different port for each address of --host: give a port");
    }
    return OK;
}

/* The origins in the form that http.h expects: comma-separated. */
static char *join(const struct string_list *list)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < list->n; i++) {
        if (i) {
            buf_puts(&b, ",");
        }
        buf_puts(&b, list->items[i]);
    }
    return b.data;
}

enum { NEVER_S = 1000000 }; // longer than any stream can be silent

/* Converts seconds to milliseconds, with a bound. */
static unsigned ms(double seconds)
{
    if (seconds * 1000 > 4e9) {
        return 4000000000U;
    }
    return (unsigned)(seconds * 1000);
}

/* The error for a port that is in use, the most common mistake when starting a second server. */
static enum status address_in_use(const struct config *c, struct err *err)
{
    struct err first = *err;
    if (c->uds) {
        return err_set(
            err, ERR_BUSY,
            "%s; another server uses this socket, or it is a file of another kind: choose "
            "another path with --uds PATH",
            first.text);
    }
    return err_set(err, ERR_BUSY,
                   "%s; another program, perhaps a server that you started before, uses port %d: "
                   "stop it, or choose another port with --port N (0: any free one)",
                   first.text, (int)c->port);
}

/* Called before the model is loaded, so that clients get "loading" instead of a refused
 * connection. */
static enum status listen_now(struct serve *s, struct err *err)
{
    const struct config *c = &s->config;
    struct addresses addresses = {0};
    enum status st = addresses_of(c, &addresses, err);
    if (st != OK) {
        return st;
    }
    char *origins = join(&c->allowed_origins);
    struct http_options o = {
        .listen = addresses.list,
        .n_listen = getenv("LISTEN_FDS") ? 0 : addresses.n,
        .systemd = true,
        .signals = true,
        .tls_cert = c->ssl_certfile,
        .tls_key = c->ssl_keyfile,
        .tls13_only = c->ssl_min_version && strcmp(c->ssl_min_version, "1.3") == 0,
        .cors_origins = or_text(origins, "loopback"),
        .cors_scope = SCOPE_INFERENCE,
        .cors_credentials = c->allow_credentials,
        .root_path = c->root_path,
        .max_body_bytes = (size_t)c->max_body_bytes,
        .max_connections = (unsigned)c->max_connections,
        .max_per_address = (unsigned)c->max_connections_per_address,
        .header_timeout_ms = ms(c->header_timeout),
        .body_timeout_ms = ms(c->body_timeout),
        .idle_timeout_ms = ms(c->keep_alive_timeout),
        .head_delay_ms = ms(c->head_delay),
        .keep_alive_ms = ms(c->sse_keep_alive_interval > 0 ? c->sse_keep_alive_interval : NEVER_S),
        .drain_delay_ms = ms(c->drain_delay < 0 ? 5 : c->drain_delay),
        .drain_if_busy = c->drain_delay < 0,
        .drain_timeout_ms = ms(c->shutdown_timeout),
        .log_fd = c->enable_log_requests ? 0 : -1,
        .log_quiet = c->enable_log_probes,
        .routes = api_routes,
        .arg = &s->api,
        .authorize = api_authorize,
        .on_wake = api_on_wake,
        .on_drain = api_on_drain,
        .on_drain_deadline = api_on_drain_deadline,
        .on_reload = api_on_reload,
        .on_report = api_on_report,
        .on_done = api_on_done,
    };
    reply_set_options(&o);
    st = http_server_open(&o, &s->http, err);
    free(origins);
    s->api.http = s->http;
    if (st == ERR_BUSY) {
        return address_in_use(c, err);
    }
    return st;
}

/* Logs what an operator needs to know about this run. */
static void announce(const struct serve *s)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    config_print(&s->config, true, &text);
    for (char *line = text.data; line && *line;) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        log_info("config: %s", line);
        line = end ? end + 1 : NULL;
    }
    buf_deinit(&text);
    for (size_t i = 0; http_server_address(s->http, i); i++) {
        log_info("listening on %s", http_server_address(s->http, i));
    }
    if (s->store && !s->config.data_dir) {
        log_info("files and batches are deleted when the server ends, unless --data-dir is given");
    }
}

/* Opens the store of files and batches. Without a folder it is a temporary file. */
static enum status open_store(struct serve *s, struct err *err)
{
    const struct config *c = &s->config;
    struct store_options o = {
        .dir = c->data_dir, .max_bytes = c->data_max_bytes, .max_file_bytes = API_MAX_FILE_BYTES};
    enum status st = store_open(&o, &s->store, err);
    if (st == ERR_UNSUPPORTED && !c->data_dir) {
        log_info("files and batches are disabled: %s", err->text);
        return OK;
    }
    TRY(st);
    api_set_store(&s->api, s->store);
    return OK;
}

/* Checks the model's files before listening, so that clients never see an address whose model
 * cannot be loaded. */
static enum status prepare(struct serve *s, struct err *err)
{
    TRY(engine_config_check(&s->config, err));
    TRY(call_model_check(&s->config, err));
    TRY(keys_open(&s->config, &s->api.keys, err));
    TRY(open_store(s, err));
    return listen_now(s, err);
}

/* Closes the parts in the reverse order of opening. */
static int run(struct serve *s)
{
    struct err err = {""};
    buf_init(&s->config_text, 1 << 20);
    config_print(&s->config, false, &s->config_text);
    api_init(&s->api, &s->config, s->config_text.data);
    s->api.routes = api_routes;
    if (prepare(s, &err) != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        api_deinit(&s->api);
        store_close(s->store);
        return 1;
    }
    announce(s);
    s->loading = true;
    api_watch(&s->api);
    status_watch(&s->api);
    http_set_watchdog(s->http, is_healthy, &s->api);
    http_pool_run_unawaited(s->http, load, loaded, s);
    int rc = http_server_run(s->http);
    if (s->loading) { // loading may take minutes more, and exit() would wait for its thread
        log_info("stopped while the model was loading");
        log_close(LOG_PATIENCE_MS);
        _exit(0);
    }
    bool dead = s->api.health == HEALTH_DEAD;
    if (dead) {
        last_resort_begin(LAST_RESORT_S);
    }
    if (s->engine) {
        engine_stop_all(s->engine);
        api_on_wake(&s->api); // deliver the terminal events
        if (dead && s->load_status == OK) {
            return EXIT_DEAD; // the system cleans up hanging device work
        }
        engine_close(s->engine);
    }
    devices_release(&s->options);
    call_model_close(&s->model);
    http_server_close(s->http);
    api_deinit(&s->api);
    store_close(s->store);
    if (rc != 0) {
        log_warn("some requests were cut off");
    }
    if (s->load_status != OK) {
        return 1;
    }
    return dead ? EXIT_DEAD : 0;
}

/* The exit code if no model is found, otherwise 0. */
static int find_model(struct config *c)
{
    struct err err = {""};
    int rc = model_choose(c, true, &err) != OK ? 2 : model_find(c, &err) != OK;
    if (rc != 0) {
        fprintf(stderr, "sluice: %s\n", err.text);
    }
    return rc;
}

/* Checks options before anything else, because a usage error has its own exit status. */
int cmd_serve(int argc, char **argv)
{
    static struct serve s; // too large for the stack, and used until the process ends
    struct err err = {""};
    struct buf text;
    if (config_load(&s.config, argc, argv, environ, &err) != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        return 2;
    }
    buf_init(&text, 1 << 20);
    if (s.config.help || s.config.print_config) {
        if (s.config.help) {
            config_help(&text);
        } else {
            config_print(&s.config, false, &text);
        }
        fputs(text.data, stdout);
        buf_deinit(&text);
        config_deinit(&s.config);
        return 0;
    }
    config_set_log_level(&s.config, false);
    int rc = find_model(&s.config);
    if (rc != 0) {
        config_deinit(&s.config);
        return rc;
    }
    struct nodes_setting nodes;
    if (nodes_setting_read(&s.config, environ, &nodes, &err) != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        config_deinit(&s.config);
        return 2;
    }
    log_open();
    rc = nodes.place.node > 0 ? serve_node(&s.config) : run(&s);
    log_close(LOG_PATIENCE_MS);
    buf_deinit(&s.config_text);
    config_deinit(&s.config);
    return rc;
}
