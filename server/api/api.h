// SPDX-License-Identifier: Apache-2.0
/* The OpenAI API over HTTP: the server's state, its routes and handlers. The processing of a
 * request, from its body to its answer, is a call (server/call/call.h); this module provides the
 * host and the sink of calls.
 * Thread: the loop, unless said otherwise. */
#ifndef SLUICE_SERVER_API_API_H
#define SLUICE_SERVER_API_API_H

#include "server/api/health.h"
#include "server/api/metrics.h"
#include "server/api/reply.h"
#include "server/api/status.h"
#include "server/call/call.h"
#include "server/http/http.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct batches;
struct keys;
struct store;
struct kept_stream;

/* Limits of /v1/files: a body is held in memory, within http's max_body_total_bytes. */
enum { API_MAX_FILE_BYTES = 200 << 20, API_MAX_FORM_BYTES = API_MAX_FILE_BYTES + (1 << 16) };

enum { SCOPE_INFERENCE = 1, SCOPE_ADMIN = 2, SCOPE_METRICS = 4 };

struct api {
    struct call_server calls; // must be first: the calls' host casts its address to struct api
    const struct config *config;
    const char *config_text; // the output of --print-config, without secrets; borrowed
    const struct http_route *routes;
    struct http_server *http;
    struct keys *keys;
    struct tenant *anyone; // shared by all clients if there are no keys
    struct metrics metrics;
    struct status_history history;
    struct store *store;         // NULL if the build has no store; not owned
    struct batches *batches;     // NULL if there is no store
    struct kept_stream *streams; // that can be resumed (resume.c)
    int64_t data_retention_s;    // how long files and batches are kept; 0: for ever
    bool ready, load_failed, draining;
    atomic_int load_permille; // written by the loading thread
    int64_t started_ns, ready_ns;
    /* The watchdog's state: the engine's step count at its last check, and when that count
     * changed. */
    int64_t seen_steps, seen_step_ns, longest_step_ns, dead_ms;
    bool was_idle;
    enum api_health health;
    struct http_timer tick;
};

/* ---- the server (api.c) ---------------------------------------------------------------------- */

void api_init(struct api *a, const struct config *config, const char *config_text);
/* Sets where files and batches are kept. Call it before api_set_ready. */
void api_set_store(struct api *a, struct store *store);
/* Called when the model is loaded: a->calls.engine and a->calls.model must be set. */
void api_set_ready(struct api *a);
void api_deinit(struct api *a); // call it after the loop has ended

bool api_authorize(struct http_request *req, const struct http_route *route, void *arg);
void api_on_wake(void *arg);
void api_on_drain(void *arg);
void api_on_drain_deadline(void *arg);
void api_on_reload(void *arg);
void api_on_report(void *arg); // logs the scheduler's state and the table of requests
void api_on_done(const struct http_record *record, const void *room, void *arg);

/* ---- the watchdog (health.c) ----------------------------------------------------------------- */

/* Starts its timer. */
void api_watch(struct api *a);
enum api_health api_check_health(struct api *a, int64_t now_ns);
/* True if calls must be refused at the moment; then it has answered the request. */
bool api_refuses(struct api *a, struct http_request *req);

/* ---- the answers of calls (calls.c) ---------------------------------------------------------- */

extern const struct call_host api_call_host;

/* Called from a handler; takes the request. */
void api_start(struct api *a, struct http_request *req, enum request_kind kind);
/* The address of the client that waits for the answer, "192.0.2.1:5555"; NULL if none waits. */
const char *api_call_peer(const struct call *c);

/* The document of /openapi.json (openapi.c). */
struct openapi_facts {
    const struct config *config;
    const struct engine_info *info; // NULL while loading
    const struct call_model *model; // NULL while loading
};
void openapi_put(struct buf *b, const struct http_route *routes, const struct openapi_facts *facts);

/* True if the operator has disabled the document. The request is then answered with 404. */
bool api_hides_docs(const struct api *a, struct http_request *req);

/* The engine's statistics, which are zero while the model is loading, and the share of KV blocks in
 * use, from 0 to 1 (load.c). */
void api_put_stats(struct api *a, struct engine_stats *s);
double api_kv_usage(const struct engine_stats *s);
/* Adds the header with the load (load.c), if the request asks for it. To be called before the reply
 * begins. */
void orca_put_header(struct api *a, struct http_request *req);

/* ---- endpoints --------------------------------------------------------------------------------
 */

extern const struct http_route api_routes[]; // routes.c

void api_files_create(struct http_request *req, void *arg);
void api_files_list(struct http_request *req, void *arg);
void api_file_get(struct http_request *req, void *arg);
void api_file_content(struct http_request *req, void *arg);
void api_file_delete(struct http_request *req, void *arg);
void api_batches_create(struct http_request *req, void *arg);
void api_batches_list(struct http_request *req, void *arg);
void api_batch_get(struct http_request *req, void *arg);
void api_batch_cancel(struct http_request *req, void *arg);
void api_response_get(struct http_request *req, void *arg);
void api_response_delete(struct http_request *req, void *arg);
void api_response_cancel(struct http_request *req, void *arg);
void api_response_items(struct http_request *req, void *arg);
void api_conversations_create(struct http_request *req, void *arg);
void api_conversation_get(struct http_request *req, void *arg);
void api_conversation_update(struct http_request *req, void *arg);
void api_conversation_delete(struct http_request *req, void *arg);
void api_conversation_add(struct http_request *req, void *arg);
void api_conversation_items(struct http_request *req, void *arg);
void api_conversation_item(struct http_request *req, void *arg);
void api_conversation_item_delete(struct http_request *req, void *arg);
void api_tokenizer_info(struct http_request *req, void *arg);
/* True if the operator has disabled this path (--disable-routes). The request is then answered:
 * with 404 for a page, as if it did not exist, and with 501, which clients of llama.cpp recognise,
 * for any other path. */
bool api_is_disabled(const struct api *a, struct http_request *req, const char *path, bool page);

void api_models(struct http_request *req, void *arg);
void api_llama_models(struct http_request *req, void *arg);
void api_props(struct http_request *req, void *arg);
void api_predict(struct http_request *req, void *arg); // predict.c
void api_slots(struct http_request *req, void *arg);
void api_stream_resume(struct http_request *req, void *arg); // resume.c
void api_stream_delete(struct http_request *req, void *arg);
void api_ollama_tags(struct http_request *req, void *arg);
void api_ollama_running(struct http_request *req, void *arg);
void api_ollama_manage(struct http_request *req, void *arg);
void api_ollama_show(struct http_request *req, void *arg);
void api_ollama_version(struct http_request *req, void *arg);
void api_model_one(struct http_request *req, void *arg);
void api_get_health(struct http_request *req, void *arg);
void api_get_live(struct http_request *req, void *arg);
void api_get_ready(struct http_request *req, void *arg);
void api_get_load(struct http_request *req, void *arg);
void api_get_version(struct http_request *req, void *arg);
void api_get_openapi(struct http_request *req, void *arg);
void api_docs_page(struct http_request *req, void *arg);
void api_get_metrics(struct http_request *req, void *arg);
void api_get_server_info(struct http_request *req, void *arg);
void api_get_requests(struct http_request *req, void *arg);
void api_reset_prefix_cache(struct http_request *req, void *arg);
void api_drain(struct http_request *req, void *arg);
void api_load_adapter(struct http_request *req, void *arg); // adapters.c
void api_unload_adapter(struct http_request *req, void *arg);
void api_status_page(struct http_request *req, void *arg);
void api_page_part(struct http_request *req, void *arg);
void api_status_data(struct http_request *req, void *arg);

#endif
