// SPDX-License-Identifier: Apache-2.0
/* Ollama's routes that report: the list of models, their capabilities, and the version. There is
 * one model, always loaded, and nothing about its files is revealed. */
#include "server/api/api.h"
#include "server/call/adapters.h"

#include "engine/base/json.h"
#include "engine/base/optional.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool refuse(const struct api *a, struct http_request *req)
{
    if (a->ready) {
        return false;
    }
    reply_errorf(req, 503, "model_loading", NULL, "The model is still loading.");
    return true;
}

static void put_text(struct buf *b, const char *text)
{
    buf_put_json(b, text, strlen(text));
}

/* A name without a tag gets ":latest". */
static void put_name(struct buf *b, const char *name)
{
    char text[256];
    const char *last = strrchr(name, '/');
    bool tagged = strchr(last ? last : name, ':') != NULL;
    snprintf(text, sizeof text, "%s%s", name, tagged ? "" : ":latest");
    put_text(b, text);
}

/* Writes Ollama's description of the weights, of which only the precision is known. `parent`: the
 * model's name, for an adapter; otherwise "". */
static void put_details(struct buf *b, const struct engine_info *i, const char *parent)
{
    static const char *const levels[] = {[DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F16] = "F16"};
    double n = (double)i->n_parameters;
    buf_puts(b, "{\"parent_model\":");
    put_text(b, parent);
    buf_puts(b, ",\"format\":\"safetensors\",\"family\":");
    put_text(b, i->model_type);
    buf_puts(b, ",\"families\":[");
    put_text(b, i->model_type);
    buf_printf(b, "],\"parameter_size\":\"%.1f%s\",\"quantization_level\":\"%s\"}",
               n >= 1e9 ? n * 1e-9 : n * 1e-6, n >= 1e9 ? "B" : "M", levels[i->dtype]);
}

static void put_model(struct buf *b, const struct api *a, const char *name, const char *parent,
                      bool running)
{
    const struct engine_info *i = a->calls.model.info;
    const char *sum = a->calls.model.fingerprint;
    buf_puts(b, "{\"name\":");
    put_name(b, name);
    buf_puts(b, ",\"model\":");
    put_name(b, name);
    if (running) {
        buf_puts(b, ",\"expires_at\":");
    } else {
        buf_puts(b, ",\"modified_at\":");
    }
    put_rfc3339(b, a->calls.model.created + (running ? 100LL * 365 * 86400 : 0));
    buf_printf(b, ",\"size\":%zu,\"digest\":\"%s\",\"details\":", i->weight_bytes, sum);
    put_details(b, i, parent);
    if (running) {
        buf_printf(b, ",\"size_vram\":%zu,\"context_length\":%d", i->weight_bytes,
                   i->max_model_len);
    }
    buf_putc(b, '}');
}

/* `running` is set for /api/ps, where the model has only one entry. */
static void reply_models(struct api *a, struct http_request *req, bool running)
{
    struct buf b;
    if (refuse(a, req)) {
        return;
    }
    const struct call_model *m = &a->calls.model;
    /* After the folder's name the list has the operator's full argument, which is a path. */
    bool one = running || m->names[0] == m->folder_name;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"models\":[");
    for (size_t i = 0; i < (one ? 1 : m->n_names); i++) {
        if (i) {
            buf_puts(&b, ",");
        }
        put_model(&b, a, m->names[i], "", running);
    }
    struct call_adapter list[MAX_ADAPTERS];
    const int32_t n = call_adapters_list(m->adapters, list);
    for (int32_t i = 0; i < n; i++) {
        buf_puts(&b, ",");
        put_model(&b, a, list[i].name, m->names[0], running);
    }
    buf_puts(&b, "]}");
    reply_json(req, 200, &b);
}

void api_ollama_tags(struct http_request *req, void *arg)
{
    reply_models(arg, req, false);
}

void api_ollama_running(struct http_request *req, void *arg)
{
    reply_models(arg, req, true);
}

void api_ollama_version(struct http_request *req, void *arg)
{
    api_get_version(req, arg);
}

/* ---- one model ------------------------------------------------------------------------------- */

/* The model's capabilities, which follow from its template and its head. */
static void put_capabilities(struct buf *b, const struct call_model *m)
{
    const char *between = "";
    buf_putc(b, '[');
    if (!m->info->headless) {
        buf_puts(b, "\"completion\"");
        between = ",";
    }
    if (m->parser) {
        buf_printf(b, "%s\"tools\"", between);
        between = ",";
    }
    if (call_model_limits_reasoning(m)) {
        buf_printf(b, "%s\"thinking\"", between);
        between = ",";
    }
    buf_printf(b, "%s\"embedding\"]", between);
}

static void put_shown(struct buf *b, const struct api *a)
{
    const struct call_model *m = &a->calls.model;
    const struct engine_info *i = m->info;
    buf_puts(b, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"\",\"template\":");
    put_text(b, m->template ? chat_template_text(m->template) : "");
    buf_puts(b, ",\"details\":");
    put_details(b, i, "");
    buf_puts(b, ",\"model_info\":{\"general.architecture\":");
    put_text(b, i->model_type);
    buf_printf(b, ",\"general.parameter_count\":%" PRId64, i->n_parameters);
    buf_printf(b, ",\"%s.context_length\":%d", i->model_type, i->max_model_len);
    buf_printf(b, ",\"%s.embedding_length\":%d", i->model_type, i->hidden);
    buf_printf(b, ",\"%s.vocab_size\":%d},\"capabilities\":", i->model_type, i->vocab);
    put_capabilities(b, m);
    buf_puts(b, ",\"modified_at\":");
    put_rfc3339(b, m->created);
    buf_putc(b, '}');
}

/* The body's "model" must be one of the served names. */
void api_ollama_show(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    const struct json_limits limits = {.max_depth = 8, .max_values = 1000};
    struct json *root = NULL;
    struct err err = {""};
    struct buf b;
    size_t n_bytes;
    if (refuse(a, req)) {
        return;
    }
    const char *body = http_body(req, &n_bytes);
    if (json_parse(or_empty(body), n_bytes, &limits, &root, &err) != OK) {
        reply_errorf(req, 400, "json_parse_error", NULL,
                     "We could not parse the JSON body of your request. (%s)", err.text);
        return;
    }
    const char *name = json_get_string(root, "model");
    if (!name) {
        name = json_get_string(root, "name"); // the older name of the member
    }
    if (!name) {
        reply_errorf(req, 400, "missing_required_parameter", "model",
                     "Missing required parameter: 'model'.");
    } else if (!call_model_name(&a->calls.model, name, true)) {
        reply_errorf(req, 404, "model_not_found", "model", "model '%.100s' not found", name);
    } else {
        buf_init(&b, 16 << 20);
        put_shown(&b, a);
        reply_json(req, 200, &b);
    }
    json_free(root);
}

/* Refuses routes that would add or remove models. */
void api_ollama_manage(struct http_request *req, void *arg)
{
    (void)arg;
    reply_errorf(req, 403, "unsupported_endpoint", NULL,
                 "This server serves the model that it was started with. Models are managed by its "
                 "commands: sluice pull, sluice list and sluice remove.");
}
