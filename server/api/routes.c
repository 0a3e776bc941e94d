// SPDX-License-Identifier: Apache-2.0
/* The handler of each route. The handlers that start calls differ only in the kind of call. */
#include "server/api/api.h"

#define CALL(name, kind)                                                                           \
    static void name(struct http_request *req, void *arg)                                          \
    {                                                                                              \
        api_start(arg, req, kind);                                                                 \
    }

CALL(chat, KIND_CHAT)
CALL(completions, KIND_COMPLETIONS)
CALL(responses, KIND_RESPONSES)
CALL(responses_input_tokens, KIND_RESPONSES_INPUT_TOKENS)
CALL(compact, KIND_COMPACT)
CALL(messages, KIND_MESSAGES)
CALL(count_tokens, KIND_COUNT_TOKENS)
CALL(embeddings, KIND_EMBEDDINGS)
CALL(either_embed, KIND_EITHER_EMBED)
CALL(score, KIND_SCORE)
CALL(rerank, KIND_RERANK)
CALL(ollama_chat, KIND_OLLAMA_CHAT)
CALL(ollama_generate, KIND_OLLAMA_GENERATE)
CALL(ollama_embed, KIND_OLLAMA_EMBED)
CALL(ollama_old_embed, KIND_OLLAMA_OLD_EMBED)
CALL(native, KIND_NATIVE)
CALL(infill, KIND_INFILL)
CALL(native_embed, KIND_NATIVE_EMBED)
CALL(apply_template, KIND_APPLY_TEMPLATE)
CALL(chat_batch, KIND_CHAT_BATCH)
CALL(labels, KIND_LABELS)
CALL(systemone, KIND_SYSTEMONE)
CALL(decisions, KIND_DECISIONS)
CALL(classify, KIND_CLASSIFY)
CALL(pooling, KIND_POOLING)
CALL(cohere_embed, KIND_COHERE_EMBED)
CALL(cohere_chat, KIND_COHERE_CHAT)
CALL(render_cohere, KIND_RENDER_COHERE)
CALL(invocations, KIND_INVOCATIONS)
CALL(llama_chat, KIND_LLAMA_CHAT)
CALL(either_completion, KIND_EITHER_COMPLETION)
CALL(tokens, KIND_TOKENS)
CALL(render, KIND_RENDER)
CALL(render_chat, KIND_RENDER_CHAT)
CALL(render_response, KIND_RENDER_RESPONSE)
CALL(render_message, KIND_RENDER_MESSAGE)
CALL(derender, KIND_DERENDER)
CALL(derender_chat, KIND_DERENDER_CHAT)
CALL(chat_input_tokens, KIND_CHAT_INPUT_TOKENS)
CALL(tokenize, KIND_TOKENIZE)
CALL(detokenize, KIND_DETOKENIZE)

#define INFER(path, handler) {"POST", path, handler, SCOPE_INFERENCE, 0, HTTP_ROUTE_JSON}
#define PROBE(path, handler) {"GET", path, handler, 0, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET}

const struct http_route api_routes[] = {
    INFER("/v1/chat/completions", chat),
    INFER("/chat/completions", llama_chat),
    INFER("/v1/chat/completions/batch", chat_batch),
    INFER("/v1/completions", completions),
    INFER("/completions", either_completion),
    INFER("/v1/chat/completions/render", render_chat),
    INFER("/v1/completions/render", render),
    INFER("/v1/responses/render", render_response),
    INFER("/v1/messages/render", render_message),
    INFER("/v1/chat/completions/derender", derender_chat),
    INFER("/v1/completions/derender", derender),
    INFER("/inference/v1/generate", tokens),
    INFER("/v1/chat/completions/input_tokens", chat_input_tokens),
    INFER("/chat/completions/input_tokens", chat_input_tokens),
    INFER("/v1/responses", responses),
    INFER("/responses", responses),
    INFER("/v1/responses/input_tokens", responses_input_tokens),
    INFER("/v1/responses/compact", compact),
    {"GET", "/v1/responses/{id}/input_items", api_response_items, SCOPE_INFERENCE, 0, 0},
    {"POST", "/v1/responses/{id}/cancel", api_response_cancel, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/responses/{id}", api_response_get, SCOPE_INFERENCE, 0, 0},
    {"DELETE", "/v1/responses/{id}", api_response_delete, SCOPE_INFERENCE, 0, 0},
    INFER("/v1/conversations", api_conversations_create),
    INFER("/v1/conversations/{id}/items", api_conversation_add),
    {"GET", "/v1/conversations/{id}/items", api_conversation_items, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/conversations/{id}/items/{item}", api_conversation_item, SCOPE_INFERENCE, 0, 0},
    {"DELETE", "/v1/conversations/{id}/items/{item}", api_conversation_item_delete, SCOPE_INFERENCE,
     0, 0},
    {"GET", "/v1/conversations/{id}", api_conversation_get, SCOPE_INFERENCE, 0, 0},
    INFER("/v1/conversations/{id}", api_conversation_update),
    {"DELETE", "/v1/conversations/{id}", api_conversation_delete, SCOPE_INFERENCE, 0, 0},
    INFER("/v1/messages", messages),
    INFER("/v1/messages/count_tokens", count_tokens),
    INFER("/v1/embeddings", embeddings),
    INFER("/embeddings", either_embed),
    INFER("/v1/score", score),
    INFER("/score", score),
    INFER("/v1/rerank", rerank),
    INFER("/v2/rerank", rerank),
    INFER("/rerank", rerank),
    INFER("/v1/reranking", rerank),
    INFER("/reranking", rerank),
    INFER("/generative_scoring", labels),
    INFER("/v1/systemone", systemone),
    INFER("/v1/decisions", decisions),
    INFER("/classify", classify),
    INFER("/pooling", pooling),
    INFER("/v2/embed", cohere_embed),
    INFER("/cohere/v2/chat", cohere_chat),
    INFER("/cohere/v2/chat/render", render_cohere),
    INFER("/invocations", invocations),
    INFER("/predict", api_predict),
    INFER("/completion", native),
    INFER("/infill", infill),
    INFER("/embedding", native_embed),
    INFER("/apply-template", apply_template),
    {"GET", "/props", api_props, SCOPE_ADMIN, 0, 0},
    {"GET", "/slots", api_slots, SCOPE_ADMIN, 0, 0},
    {"GET", "/v1/stream", api_stream_resume, SCOPE_INFERENCE, 0, 0},
    {"DELETE", "/v1/stream", api_stream_delete, SCOPE_INFERENCE, 0, 0},
    INFER("/api/chat", ollama_chat),
    INFER("/api/generate", ollama_generate),
    INFER("/api/embed", ollama_embed),
    INFER("/api/embeddings", ollama_old_embed),
    {"POST", "/api/show", api_ollama_show, SCOPE_INFERENCE, 1 << 16, HTTP_ROUTE_JSON},
    {"GET", "/api/tags", api_ollama_tags, SCOPE_INFERENCE, 0, HTTP_ROUTE_QUIET},
    {"GET", "/api/ps", api_ollama_running, SCOPE_INFERENCE, 0, HTTP_ROUTE_QUIET},
    {"POST", "/api/pull", api_ollama_manage, SCOPE_INFERENCE, 1 << 16, 0},
    {"POST", "/api/push", api_ollama_manage, SCOPE_INFERENCE, 1 << 16, 0},
    {"POST", "/api/create", api_ollama_manage, SCOPE_INFERENCE, 1 << 20, 0},
    {"POST", "/api/copy", api_ollama_manage, SCOPE_INFERENCE, 1 << 16, 0},
    {"DELETE", "/api/delete", api_ollama_manage, SCOPE_INFERENCE, 1 << 16, 0},
    PROBE("/api/version", api_ollama_version),
    {"POST", "/v1/files", api_files_create, SCOPE_INFERENCE, API_MAX_FORM_BYTES, 0},
    {"GET", "/v1/files", api_files_list, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/files/{id}/content", api_file_content, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/files/{id}", api_file_get, SCOPE_INFERENCE, 0, 0},
    {"DELETE", "/v1/files/{id}", api_file_delete, SCOPE_INFERENCE, 0, 0},
    {"POST", "/v1/batches", api_batches_create, SCOPE_INFERENCE, 1 << 20, HTTP_ROUTE_JSON},
    {"GET", "/v1/batches", api_batches_list, SCOPE_INFERENCE, 0, 0},
    {"POST", "/v1/batches/{id}/cancel", api_batch_cancel, SCOPE_INFERENCE, 1 << 20, 0},
    {"GET", "/v1/batches/{id}", api_batch_get, SCOPE_INFERENCE, 0, 0},
    {"GET", "/v1/models", api_models, SCOPE_INFERENCE, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {"GET", "/v1/models/{id}", api_model_one, SCOPE_INFERENCE, 0, HTTP_ROUTE_QUIET},
    {"GET", "/models", api_llama_models, SCOPE_INFERENCE, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    INFER("/tokenize", tokenize),
    INFER("/v1/tokenize", tokenize),
    INFER("/detokenize", detokenize),
    INFER("/v1/detokenize", detokenize),
    {"GET", "/tokenizer_info", api_tokenizer_info, SCOPE_INFERENCE, 0, 0},
    PROBE("/health", api_get_health),
    PROBE("/v1/health", api_get_health),
    PROBE("/ping", api_get_health),
    PROBE("/health/live", api_get_live),
    PROBE("/health/ready", api_get_ready),
    PROBE("/load", api_get_load),
    PROBE("/version", api_get_version),
    {"GET", "/openapi.json", api_get_openapi, 0, 0, HTTP_ROUTE_QUIET},
    {"GET", "/docs", api_docs_page, 0, 0, HTTP_ROUTE_QUIET},
    {"GET", "/metrics", api_get_metrics, SCOPE_METRICS, 0, HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {"GET", "/server_info", api_get_server_info, SCOPE_ADMIN, 0, 0},
    {"GET", "/requests", api_get_requests, SCOPE_ADMIN, 0, 0},
    {"POST", "/reset_prefix_cache", api_reset_prefix_cache, SCOPE_ADMIN, 0, 0},
    {"POST", "/drain", api_drain, SCOPE_ADMIN, 0, 0},
    {"POST", "/v1/load_lora_adapter", api_load_adapter, SCOPE_ADMIN, 1 << 16, HTTP_ROUTE_JSON},
    {"POST", "/v1/unload_lora_adapter", api_unload_adapter, SCOPE_ADMIN, 1 << 16, HTTP_ROUTE_JSON},
    {"GET", "/", api_status_page, 0, 0, HTTP_ROUTE_QUIET},
    {"GET", "/page/{id}", api_page_part, 0, 0, HTTP_ROUTE_QUIET},
    {"GET", "/status.json", api_status_data, SCOPE_METRICS, 0,
     HTTP_ROUTE_ALWAYS | HTTP_ROUTE_QUIET},
    {NULL, NULL, NULL, 0, 0, 0},
};
