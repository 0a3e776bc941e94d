// SPDX-License-Identifier: Apache-2.0
/* /openapi.json: a description of the API in OpenAPI 3.1, made from the table of routes and the
 * table of request members, so that it cannot differ from what the server accepts. */
#include "server/api/openapi_parts.h"

#include <ctype.h>
#include <string.h>

/* The content type of a route's successful answer. */
enum answer {
    ANSWER_JSON,
    ANSWER_LIST /* or an object */,
    ANSWER_EVENTS /* or JSON */,
    ANSWER_EVENTS_LIST /* or JSON, an object or a list */,
    ANSWER_LINES /* or JSON */,
    ANSWER_TEXT,
    ANSWER_PAGE,
    ANSWER_BYTES,
    ANSWER_NOTHING
};

/* What the table of routes does not say about each route. */
static const struct about {
    const char *method, *path;
    const char *text;   // one line for people
    const char *schema; // schema of the request body; NULL: the route reads none
    enum answer answer;
    bool may_be_red; // a 503 has the same form as a 200
} abouts[] = {
    {"POST", "/v1/chat/completions", "Answers a conversation.", "ChatRequest", ANSWER_EVENTS,
     false},
    {"POST", "/chat/completions", "The same as /v1/chat/completions, with llama.cpp's defaults.",
     "ChatRequest", ANSWER_EVENTS, false},
    {"POST", "/v1/chat/completions/render",
     "vLLM's: returns the token ids and settings of a conversation.", "ChatRequest", ANSWER_JSON,
     false},
    {"POST", "/v1/chat/completions/batch", "vLLM's: answers several conversations.", "ChatsRequest",
     ANSWER_JSON, false},
    {"POST", "/generative_scoring", "vLLM's: the probabilities of given tokens after each text.",
     "LabelsRequest", ANSWER_JSON, false},
    {"POST", "/v1/systemone", "vLLM's: answers questions by the probabilities of a few labels.",
     "SystemoneRequest", ANSWER_JSON, false},
    {"POST", "/v1/decisions", "vLLM's: the same as /v1/systemone, in another form.",
     "DecisionsRequest", ANSWER_JSON, false},
    {"POST", "/classify", "vLLM's: classifies texts with a model that answers yes or no.",
     "ClassifyRequest", ANSWER_JSON, false},
    {"POST", "/pooling", "vLLM's: embeds texts, in its own format.", "PoolingRequest", ANSWER_JSON,
     false},
    {"POST", "/cohere/v2/chat", "Cohere's: answers a conversation.", "CohereChatRequest",
     ANSWER_EVENTS, false},
    {"POST", "/cohere/v2/chat/render",
     "vLLM's: returns the token ids and settings of a conversation.", "CohereChatRequest",
     ANSWER_JSON, false},
    {"POST", "/v2/embed", "Cohere's: embeds texts.", "CohereEmbedRequest", ANSWER_JSON, false},
    {"POST", "/v1/completions/render", "vLLM's: returns the token ids and settings of prompts.",
     "CompletionRequest", ANSWER_LIST, false},
    {"POST", "/v1/responses/render", "vLLM's: returns the token ids and settings of a response.",
     "RenderedResponse", ANSWER_JSON, false},
    {"POST", "/v1/messages/render", "vLLM's: returns the token ids and settings of a message.",
     "MessagesRequest", ANSWER_JSON, false},
    {"POST", "/v1/chat/completions/derender", "vLLM's: turns token ids into a chat's answer.",
     "DerenderChatRequest", ANSWER_JSON, false},
    {"POST", "/v1/completions/derender", "vLLM's: turns token ids into answers of completions.",
     "DerenderRequest", ANSWER_JSON, false},
    {"POST", "/inference/v1/generate", "vLLM's: continues a prompt of token ids with token ids.",
     "TokensRequest", ANSWER_EVENTS, false},
    {"POST", "/v1/chat/completions/input_tokens", "Counts the tokens of a conversation.",
     "ChatRequest", ANSWER_JSON, false},
    {"POST", "/chat/completions/input_tokens", "The same as /v1/chat/completions/input_tokens.",
     "ChatRequest", ANSWER_JSON, false},
    {"POST", "/responses", "The same as /v1/responses.", "ResponseRequest", ANSWER_EVENTS, false},
    {"POST", "/completions",
     "The same as /v1/completions if the body names a model, otherwise as llama.cpp's /completion.",
     "EitherCompletion", ANSWER_EVENTS_LIST, false},
    {"POST", "/embeddings", "The same as /v1/embeddings.", "EmbeddingRequest", ANSWER_JSON, false},
    {"POST", "/v1/score", "Scores the similarity of texts.", "ScoreRequest", ANSWER_JSON, false},
    {"POST", "/score", "The same as /v1/score.", "ScoreRequest", ANSWER_JSON, false},
    {"POST", "/v1/rerank", "Ranks documents by their relevance to a query.", "RerankRequest",
     ANSWER_LIST, false},
    {"POST", "/v2/rerank", "The same as /v1/rerank.", "RerankRequest", ANSWER_LIST, false},
    {"POST", "/rerank", "The same as /v1/rerank.", "RerankRequest", ANSWER_LIST, false},
    {"POST", "/v1/reranking", "The same as /v1/rerank.", "RerankRequest", ANSWER_LIST, false},
    {"POST", "/reranking", "The same as /v1/rerank.", "RerankRequest", ANSWER_LIST, false},
    {"POST", "/api/chat", "Ollama's: answers a conversation.", "OllamaChatRequest", ANSWER_LINES,
     false},
    {"POST", "/api/generate", "Ollama's: answers a prompt.", "OllamaGenerateRequest", ANSWER_LINES,
     false},
    {"POST", "/api/embed", "Ollama's: embeds texts.", "OllamaEmbedRequest", ANSWER_JSON, false},
    {"POST", "/api/show", "Ollama's: describes a model.", "OllamaShowRequest", ANSWER_JSON, false},
    {"POST", "/api/pull", "Ollama's; refused, because models are managed with commands.", NULL,
     ANSWER_JSON, false},
    {"POST", "/api/push", "Ollama's; refused.", NULL, ANSWER_JSON, false},
    {"POST", "/api/create", "Ollama's; refused.", NULL, ANSWER_JSON, false},
    {"POST", "/api/copy", "Ollama's; refused.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/stream", "llama.cpp's: the events of a stream that outlives its client.", NULL,
     ANSWER_EVENTS, false},
    {"DELETE", "/v1/stream", "llama.cpp's: ends such a stream.", NULL, ANSWER_NOTHING, false},
    {"DELETE", "/api/delete", "Ollama's; refused.", NULL, ANSWER_JSON, false},
    {"POST", "/api/embeddings",
     "Ollama's older route: embeds one text, without normalising the vector.",
     "OllamaOldEmbedRequest", ANSWER_JSON, false},
    {"GET", "/api/tags", "Ollama's: lists the served names.", NULL, ANSWER_JSON, false},
    {"GET", "/api/ps", "Ollama's: shows the loaded model.", NULL, ANSWER_JSON, false},
    {"GET", "/api/version", "The server's version.", NULL, ANSWER_JSON, false},
    {"POST", "/completion", "llama.cpp's: continues a prompt.", "NativeRequest", ANSWER_EVENTS_LIST,
     false},
    {"POST", "/infill", "llama.cpp's: fills the gap between two texts.", "InfillRequest",
     ANSWER_EVENTS_LIST, false},
    {"POST", "/embedding", "llama.cpp's: embeds texts.", "NativeEmbedRequest", ANSWER_LIST, false},
    {"POST", "/apply-template", "llama.cpp's: renders a conversation to its prompt.",
     "TokenizeMessages", ANSWER_JSON, false},
    {"GET", "/props", "llama.cpp's: settings and the chat template.", NULL, ANSWER_JSON, false},
    {"GET", "/slots", "llama.cpp's: lists the running requests, without their texts.", NULL,
     ANSWER_LIST, false},
    {"POST", "/invocations",
     "SageMaker's: takes a request of several kinds, recognised by its members.", "AnyRequest",
     ANSWER_EVENTS_LIST, false},
    {"POST", "/predict", "Vertex AI's: answers several requests, each given as an instance.",
     "PredictRequest", ANSWER_JSON, false},
    {"GET", "/models", "llama.cpp's: describes the model, with all its names.", NULL, ANSWER_JSON,
     true},
    {"POST", "/v1/completions", "Continues a prompt.", "CompletionRequest", ANSWER_EVENTS, false},
    {"POST", "/v1/responses", "Answers a list of input items.", "ResponseRequest", ANSWER_EVENTS,
     false},
    {"POST", "/v1/responses/input_tokens", "Counts the tokens of an input.", "ResponseRequest",
     ANSWER_JSON, false},
    {"POST", "/v1/responses/compact", "Shortens an input: its user messages and a summary.",
     "CompactRequest", ANSWER_JSON, false},
    {"GET", "/v1/responses/{id}", "Returns a stored response, or its events.", NULL, ANSWER_EVENTS,
     false},
    {"DELETE", "/v1/responses/{id}", "Deletes a stored response.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/responses/{id}/input_items", "Lists the input of a stored response.", NULL,
     ANSWER_JSON, false},
    {"POST", "/v1/responses/{id}/cancel", "Cancels a response that runs in the background.", NULL,
     ANSWER_JSON, false},
    {"POST", "/v1/conversations", "Creates a stored conversation.", "ConversationRequest",
     ANSWER_JSON, false},
    {"GET", "/v1/conversations/{id}", "Returns a stored conversation.", NULL, ANSWER_JSON, false},
    {"POST", "/v1/conversations/{id}", "Replaces the metadata of a conversation.",
     "MetadataRequest", ANSWER_JSON, false},
    {"DELETE", "/v1/conversations/{id}", "Deletes a conversation.", NULL, ANSWER_JSON, false},
    {"POST", "/v1/conversations/{id}/items", "Adds items to a conversation.", "ItemsRequest",
     ANSWER_JSON, false},
    {"GET", "/v1/conversations/{id}/items", "Lists the items of a conversation.", NULL, ANSWER_JSON,
     false},
    {"GET", "/v1/conversations/{id}/items/{item}", "Returns an item of a conversation.", NULL,
     ANSWER_JSON, false},
    {"DELETE", "/v1/conversations/{id}/items/{item}", "Deletes an item of a conversation.", NULL,
     ANSWER_JSON, false},
    {"POST", "/v1/messages", "Answers a conversation in Anthropic's format.", "MessagesRequest",
     ANSWER_EVENTS, false},
    {"POST", "/v1/messages/count_tokens",
     "Counts the tokens of a conversation in Anthropic's format.", "CountTokensRequest",
     ANSWER_JSON, false},
    {"POST", "/v1/embeddings", "Embeds texts.", "EmbeddingRequest", ANSWER_JSON, false},
    {"POST", "/v1/files", "Uploads a file for a batch.", "FileForm", ANSWER_JSON, false},
    {"GET", "/v1/files", "Lists the files.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/files/{id}", "Describes a file.", NULL, ANSWER_JSON, false},
    {"DELETE", "/v1/files/{id}", "Deletes a file.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/files/{id}/content", "Returns the content of a file.", NULL, ANSWER_BYTES, false},
    {"POST", "/v1/batches", "Creates a batch from a file of requests.", "BatchRequest", ANSWER_JSON,
     false},
    {"GET", "/v1/batches", "Lists the batches.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/batches/{id}", "Returns a batch.", NULL, ANSWER_JSON, false},
    {"POST", "/v1/batches/{id}/cancel", "Cancels a batch.", NULL, ANSWER_JSON, false},
    {"GET", "/v1/models",
     "Lists the served names, in Anthropic's form if the header anthropic-version is sent.", NULL,
     ANSWER_JSON, true},
    {"GET", "/v1/models/{id}", "Returns one of the served names.", NULL, ANSWER_JSON, false},
    {"POST", "/tokenize", "Converts a text or a conversation to token ids.", "TokenizeRequest",
     ANSWER_JSON, false},
    {"POST", "/v1/tokenize", "The same as /tokenize.", "TokenizeRequest", ANSWER_JSON, false},
    {"POST", "/detokenize", "Converts token ids to text.", "DetokenizeRequest", ANSWER_JSON, false},
    {"POST", "/v1/detokenize", "The same as /detokenize.", "DetokenizeRequest", ANSWER_JSON, false},
    {"GET", "/tokenizer_info", "The tokenizer's configuration.", NULL, ANSWER_JSON, false},
    {"GET", "/health", "Reports whether requests are served.", NULL, ANSWER_JSON, true},
    {"GET", "/v1/health", "The same as /health.", NULL, ANSWER_JSON, true},
    {"GET", "/ping", "The same as /health.", NULL, ANSWER_JSON, true},
    {"GET", "/health/live", "Liveness: fails if the process should be restarted.", NULL,
     ANSWER_JSON, true},
    {"GET", "/health/ready", "Readiness: fails if new requests should be sent elsewhere.", NULL,
     ANSWER_JSON, true},
    {"GET", "/load", "Counts the running and waiting requests.", NULL, ANSWER_JSON, false},
    {"GET", "/version", "The server's version.", NULL, ANSWER_JSON, false},
    {"GET", "/openapi.json", "This document.", NULL, ANSWER_JSON, false},
    {"GET", "/docs", "This document as a page.", NULL, ANSWER_PAGE, false},
    {"GET", "/metrics", "Metrics for Prometheus.", NULL, ANSWER_TEXT, false},
    {"GET", "/server_info", "The configuration and facts about the model.", NULL, ANSWER_JSON,
     false},
    {"GET", "/requests", "Lists the running and waiting requests.", NULL, ANSWER_JSON, false},
    {"POST", "/reset_prefix_cache", "Clears the prefix cache.", NULL, ANSWER_JSON, false},
    {"POST", "/drain", "Stops accepting requests, finishes the running ones, then exits.", NULL,
     ANSWER_JSON, false},
    {"POST", "/v1/load_lora_adapter", "vLLM's: loads an adapter from a folder of the server.",
     "LoadAdapterRequest", ANSWER_TEXT, false},
    {"POST", "/v1/unload_lora_adapter", "vLLM's: unloads an adapter.", "UnloadAdapterRequest",
     ANSWER_TEXT, false},
    {"GET", "/", "The status page.", NULL, ANSWER_PAGE, false},
    {"GET", "/page/{id}", "A part of the status page: its style and scripts.", NULL, ANSWER_TEXT,
     false},
    {"GET", "/status.json",
     "The numbers on the status page; with ?history=1 also those of the last minutes.", NULL,
     ANSWER_JSON, false},
};

/* Query parameters. */
#define PRINTABLE "{'type':'string','pattern':'^[^\\\\u0000-\\\\u001f\\\\u007f]*$'}"
#define WORDS "{'type':'string','pattern':'^[^\\\\u0000-\\\\u001f\\\\u007f]+$'}"
#define AFTER "{'name':'after','in':'query','schema':" PRINTABLE "}"
#define ORDER "{'name':'order','in':'query','schema':{'type':'string','enum':['asc','desc']}}"
#define ITEM_PAGE                                                                                  \
    AFTER "," ORDER                                                                                \
          ",{'name':'limit','in':'query','schema':{'type':'integer','minimum':1,'maximum':100}}"
static const struct {
    const char *method, *path, *parameters;
} queries[] = {
    {"POST", "/reset_prefix_cache",
     "{'name':'reset_running_requests','in':'query','schema':" PRINTABLE "}"},
    {"GET", "/v1/responses/{id}/input_items", ITEM_PAGE},
    {"GET", "/v1/conversations/{id}/items", ITEM_PAGE},
    {"GET", "/v1/responses/{id}",
     "{'name':'stream','in':'query','schema':{'type':'boolean'}},{'name':'starting_after','in':"
     "'query','schema':{'type':'integer','minimum':0}}"},
    {"GET", "/v1/stream",
     "{'name':'conv_id','in':'query','required':true,'schema':" WORDS
     "},{'name':'from','in':'query','schema':{'type':'integer','minimum':0}}"},
    {"DELETE", "/v1/stream", "{'name':'conv_id','in':'query','required':true,'schema':" WORDS "}"},
    {"GET", "/slots", "{'name':'fail_on_no_slot','in':'query','schema':" PRINTABLE "}"},
    {"GET", "/v1/files",
     AFTER
     ",{'name':'limit','in':'query','schema':{'type':'integer','minimum':1,'maximum':10000}}," ORDER
     ",{'name':'purpose','in':'query','schema':" PRINTABLE "}"},
    {"GET", "/v1/batches",
     AFTER ",{'name':'limit','in':'query','schema':{'type':'integer','minimum':1,'maximum':100}}"},
};

/* True if the body may be missing; it then counts as an empty object. */
static bool may_be_bare(const struct about *about)
{
    return strcmp(about->schema, "ConversationRequest") == 0;
}

/* Every route must have a row; openapi_test checks this. */
static const struct about *find_about(const struct http_route *route)
{
    for (size_t i = 0; i < sizeof abouts / sizeof abouts[0]; i++) {
        if (strcmp(abouts[i].path, route->path) == 0 &&
            strcmp(abouts[i].method, route->method) == 0) {
            return &abouts[i];
        }
    }
    static const struct about unknown = {.text = ""};
    return &unknown;
}

static void put_lower(struct buf *b, const char *word)
{
    for (; *word; word++) {
        buf_putc(b, (char)tolower((unsigned char)*word));
    }
}

/* "get_v1_models_id" */
static void put_operation_id(struct buf *b, const struct http_route *route)
{
    bool gap = true;
    put_json(b, "'operationId':'");
    put_lower(b, route->method);
    for (const char *p = route->path; *p; p++) {
        bool letter = isalnum((unsigned char)*p) != 0;
        if (letter && gap) {
            buf_puts(b, "_");
        }
        if (letter) {
            buf_putc(b, *p);
        }
        gap = !letter;
    }
    buf_putc(b, '"');
}

/* Writes the declarations of a route's answers: the successful one, and errors. */
static void put_responses(struct buf *b, const struct about *about, enum reply_form form)
{
    static const char *const forms[] = {
        [ANSWER_JSON] = "'content':{'application/json':{'schema':{'type':'object'}}}}",
        [ANSWER_LIST] = "'content':{'application/json':{'schema':{'type':['object','array']}}}}",
        [ANSWER_EVENTS_LIST] =
            "'content':{'application/json':{'schema':{'type':['object','array']}},"
            "'text/event-stream':{}}}",
        [ANSWER_EVENTS] = "'content':{'application/json':{'schema':{'type':'object'}},"
                          "'text/event-stream':{}}}",
        [ANSWER_LINES] = "'content':{'application/json':{'schema':{'type':'object'}},"
                         "'application/x-ndjson':{'schema':{'type':'string'}}}}",
        [ANSWER_TEXT] = "'content':{'text/plain':{'schema':{'type':'string'}}}}",
        [ANSWER_PAGE] = "'content':{'text/html':{'schema':{'type':'string'}}}}",
        [ANSWER_BYTES] = "'content':{'application/octet-stream':{'schema':{'type':'string'}}}}",
    };
    if (about->answer == ANSWER_NOTHING) {
        put_json(b, ",'responses':{'204':{'description':'OK'}");
    } else {
        put_json(b, ",'responses':{'200':{'description':'OK',");
        put_json(b, forms[about->answer]);
    }
    if (about->may_be_red) {
        put_json(b, ",'503':{'description':'Not now',");
        put_json(b, forms[about->answer]);
    }
    put_json(b, ",'default':{'description':'An error','content':{'application/json':{'schema':{"
                "'$ref':'#/components/schemas/");
    static const char *const errors[] = {
        [REPLY_OPENAI] = "Error",      [REPLY_ANTHROPIC] = "TypedError",
        [REPLY_OLLAMA] = "PlainError", [REPLY_COHERE] = "MessageError",
        [REPLY_VLLM] = "Error",        [REPLY_LLAMA] = "Error"};
    buf_puts(b, errors[form]);
    put_json(b, "'}}}}}");
}

/* Declares one path parameter per pair of braces. */
static bool put_path_parameters(struct buf *b, const char *path)
{
    bool any = false;
    for (const char *p = strchr(path, '{'); p; p = strchr(p + 1, '{')) {
        put_json(b, any ? ",{'name':'" : "{'name':'");
        buf_put(b, p + 1, strcspn(p + 1, "}"));
        put_json(b, "','in':'path','required':true,'schema':{'type':'string',"
                    "'pattern':'^[A-Za-z0-9_.-]+$'}}");
        any = true;
    }
    return any;
}

/* Writes the parameters: those of the path from its braces, those of the query from a table. */
static void put_parameters(struct buf *b, const struct http_route *route)
{
    struct buf all;
    buf_init(&all, 1 << 16);
    bool any = put_path_parameters(&all, route->path);
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++) {
        if (strcmp(queries[i].path, route->path) == 0 &&
            strcmp(queries[i].method, route->method) == 0) {
            if (any) {
                buf_puts(&all, ",");
            }
            put_json(&all, queries[i].parameters);
            any = true;
        }
    }
    if (any) {
        put_json(b, ",'parameters':[");
        buf_put(b, all.data, all.n_bytes);
        buf_putc(b, ']');
    }
    buf_deinit(&all);
}

/* Security depends on this server's keys and on the route's scope. */
static void put_operation(struct buf *b, const struct http_route *route,
                          const struct openapi_facts *facts)
{
    const struct about *about = find_about(route);
    bool keys = facts->config->api_key.n > 0 || facts->config->api_key_file;
    bool open = route->scope == 0 || (route->scope == SCOPE_METRICS && facts->config->open_metrics);
    buf_putc(b, '"');
    put_lower(b, route->method);
    buf_puts(b, "\":{");
    put_operation_id(b, route);
    put_key(b, "summary");
    put_text(b, about->text);
    put_parameters(b, route);
    if (about->schema) {
        bool form = strcmp(about->schema, "FileForm") == 0;
        if (may_be_bare(about)) {
            put_json(b, ",'requestBody':{'content':{'");
        } else {
            put_json(b, ",'requestBody':{'required':true,'content':{'");
        }
        if (form) {
            buf_puts(b, "multipart/form-data");
        } else {
            buf_puts(b, "application/json");
        }
        put_json(b, "':{'schema':{'$ref':'#/components/schemas/");
        buf_puts(b, about->schema);
        put_json(b, "'}}}}");
    }
    if (keys && !open) {
        put_json(b, ",'security':[{'bearer':[]},{'header':[]}]");
    }
    put_responses(b, about, reply_form_of(route));
    buf_putc(b, '}');
}

/* False for routes that have no use with this model or configuration; they are left out. */
static bool is_served(const struct http_route *route, const struct openapi_facts *facts)
{
    const struct call_model *m = facts->model;
    if (facts->config->engine.spare_adapters == 0 && strstr(route->path, "load_lora_adapter")) {
        return false;
    }
    if (!m) {
        return true;
    }
    return (m->fim.there || strcmp(route->path, "/infill") != 0) &&
           (m->scoring.judges || m->scoring.labels.n > 0 || strcmp(route->path, "/classify") != 0);
}

/* The methods of a path are members of one object. */
static void put_paths(struct buf *b, const struct http_route *routes,
                      const struct openapi_facts *facts)
{
    bool first = true;
    for (const struct http_route *r = routes; r->method; r++) {
        const struct http_route *same = routes;
        while (strcmp(same->path, r->path) != 0) {
            same++;
        }
        if (same != r || !is_served(r, facts)) { // not the first row of its path
            continue;
        }
        if (!first) {
            buf_puts(b, ",");
        }
        put_text(b, r->path);
        buf_puts(b, ":{");
        put_operation(b, r, facts);
        for (same = r + 1; same->method; same++) {
            if (strcmp(same->path, r->path) == 0) {
                buf_putc(b, ',');
                put_operation(b, same, facts);
            }
        }
        buf_putc(b, '}');
        first = false;
    }
}

void openapi_put(struct buf *b, const struct http_route *routes, const struct openapi_facts *facts)
{
    put_json(b, "{'openapi':'3.1.0','info':{'title':'sluice','version':'" SLUICE_VERSION
                "'},'paths':{");
    put_paths(b, routes, facts);
    put_json(b, "},'components':{");
    openapi_put_components(b, facts);
    buf_puts(b, "}}");
}

bool api_hides_docs(const struct api *a, struct http_request *req)
{
    if (a->config->disable_fastapi_docs) {
        reply_errorf(req, 404, "unknown_url", NULL, "This server shows no documentation.");
    }
    return a->config->disable_fastapi_docs;
}

void api_get_openapi(struct http_request *req, void *arg)
{
    const struct api *a = arg;
    if (api_hides_docs(a, req)) {
        return;
    }
    struct buf b;
    buf_init(&b, 1 << 22);
    struct openapi_facts facts = {.config = a->config};
    if (a->ready) {
        facts.model = &a->calls.model;
        facts.info = a->calls.model.info;
    }
    openapi_put(&b, a->routes, &facts);
    reply_json(req, 200, &b);
}
