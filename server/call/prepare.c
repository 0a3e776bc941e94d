// SPDX-License-Identifier: Apache-2.0
/* Prepares a request on the pool: body, members, template, tokens, grammar. It works on
 * the request alone, so requests are prepared in parallel. */
#include "server/call/prepare.h"
#include "engine/base/optional.h"

#include "engine/base/minmax.h"
#include "server/call/beams.h"
#include "server/call/members.h"
#include "server/call/readers.h"
#include "server/call/shifts.h"

#include <stdlib.h>
#include <string.h>

enum { ARENA_MAX_BYTES = 256 << 20 }; // arbitrary: 16 times the default --max-body-bytes

/* One row per endpoint: the functions called before and after the members are read, the members
 * that contain text and messages, and what prompts are used for. Endpoints that neither generate
 * nor pool only need token ids. */
static const struct kind {
    void (*begin)(struct request *r); // may be NULL
    bool (*end)(struct request *r);
    const char *text, *messages; // names of the members with a text prompt and with messages; both
                                 // NULL: no prompts
    bool generates, pools;
    bool may_fill; // a prompt may fill the context: no token is drawn then
    bool clamps;   // max_tokens is reduced to the room in the context, not refused
} kinds[N_REQUEST_KINDS] = {
    [KIND_CHAT] = {chat_begin, chat_end, NULL, "messages", .generates = true},
    [KIND_CHAT_BATCH] = {chat_begin, chat_end, NULL, "messages", .generates = true},
    [KIND_LABELS] = {labels_begin, labels_end, "query", NULL, .generates = true},
    [KIND_COMPLETIONS] = {completion_begin, completion_end, "prompt", NULL, .generates = true},
    [KIND_EMBEDDINGS] = {vectors_begin, embeddings_end, "input", "messages", .pools = true},
    [KIND_POOLING] = {pooling_begin, pooling_end, "input", "messages"}, // the model decides whether
                                                                        // it generates or pools
    [KIND_CLASSIFY] = {classify_begin, classify_end, "input", "messages"},
    [KIND_COHERE_EMBED] = {cohere_begin, embeddings_end, "texts", NULL, .pools = true},
    [KIND_OLLAMA_CHAT] = {ollama_chat_begin, ollama_end, NULL, "messages", .generates = true,
                          .clamps = true},
    [KIND_OLLAMA_GENERATE] = {ollama_generate_begin, ollama_end, "prompt", "prompt",
                              .generates = true, .clamps = true},
    [KIND_OLLAMA_EMBED] = {ollama_embed_begin, embeddings_end, "input", NULL, .pools = true},
    [KIND_OLLAMA_OLD_EMBED] = {ollama_old_embed_begin, embeddings_end, "prompt", NULL,
                               .pools = true},
    [KIND_OLLAMA_LOAD] = {NULL, ollama_load_end, NULL, NULL},
    [KIND_NATIVE] = {native_begin, native_end, "prompt", NULL, .generates = true, .clamps = true},
    [KIND_INFILL] = {native_begin, infill_end, "prompt", NULL, .generates = true, .clamps = true},
    [KIND_NATIVE_EMBED] = {native_embed_begin, embeddings_end, "input", NULL, .pools = true},
    [KIND_APPLY_TEMPLATE] = {apply_begin, tokenize_end, NULL, "messages"},
    [KIND_SCORE] = {score_begin, score_end, "text_1",
                    NULL}, // the model decides whether it generates or pools
    [KIND_RERANK] = {score_begin, score_end, "documents", NULL},
    [KIND_TOKENS] = {tokens_begin, tokens_end, "token_ids", NULL, .generates = true},
    [KIND_DERENDER_CHAT] = {NULL, derender_chat_end, NULL, "messages"},
    [KIND_DERENDER] = {NULL, derender_end, NULL, NULL},
    [KIND_SYSTEMONE] = {decisions_begin, decisions_end, NULL, "state", .generates = true},
    [KIND_DECISIONS] = {decisions_begin, decisions_end, NULL, "input", .generates = true},
    [KIND_RENDER] = {render_begin, completion_end, "prompt", NULL},
    [KIND_RENDER_CHAT] = {render_chat_begin, chat_end, NULL, "messages"},
    [KIND_RENDER_RESPONSE] = {render_response_begin, responses_end, NULL, "input"},
    [KIND_RENDER_MESSAGE] = {render_message_begin, messages_end, NULL, "messages"},
    [KIND_COHERE_CHAT] = {cohere_chat_begin, chat_end, NULL, "messages", .generates = true},
    [KIND_RENDER_COHERE] = {cohere_chat_begin, chat_end, NULL, "messages"},
    [KIND_CHAT_INPUT_TOKENS] = {render_chat_begin, chat_end, NULL, "messages"},
    [KIND_RESPONSES] = {responses_begin, responses_end, NULL, "input", .generates = true},
    [KIND_RESPONSES_INPUT_TOKENS] = {responses_begin, responses_end, NULL, "input"},
    [KIND_COMPACT] = {compact_begin, compact_end, NULL, "input", .generates = true},
    [KIND_MESSAGES] = {messages_begin, messages_end, NULL, "messages", .generates = true},
    [KIND_COUNT_TOKENS] = {messages_begin, messages_end, NULL, "messages"},
    [KIND_TOKENIZE] = {tokenize_begin, tokenize_end, "prompt", "messages"},
    [KIND_DETOKENIZE] = {NULL, detokenize_end, NULL, NULL},
    [KIND_GENERATE] = {generate_begin, generate_end, "prompt", NULL, .generates = true,
                       .may_fill = true},
};

/* If the body may be of several kinds, the first kind with a characteristic member in the body is
 * chosen. */
static bool choose_kind(struct request *r)
{
    static const struct {
        const char *key;
        enum request_kind kind;
    } signs[] = {
        {"messages", KIND_CHAT}, {"prompt", KIND_COMPLETIONS}, {"input", KIND_EMBEDDINGS},
        {"query", KIND_RERANK},  {"queries", KIND_SCORE},      {"text_1", KIND_SCORE},
        {"data_1", KIND_SCORE},
    };
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++) {
        if (body_has(&r->body, signs[i].key)) {
            const struct scoring *scoring = &r->model->scoring;
            bool judged =
                signs[i].kind == KIND_EMBEDDINGS && (scoring->judges || scoring->labels.n > 0);
            r->kind = judged ? KIND_CLASSIFY : signs[i].kind;
            return true;
        }
    }
    return call_error_missing(&r->error, signs[0].key);
}

/* Some routes serve two APIs; a member tells which one. */
static bool read_body(struct request *r)
{
    if (!body_open(&r->body, r->text, r->n_bytes, &r->arena, &r->error)) {
        return false;
    }
    if (r->kind == KIND_INVOCATIONS && !choose_kind(r)) {
        return false;
    }
    if (r->kind == KIND_LLAMA_CHAT) {
        r->kind = KIND_CHAT;
        r->llama = true;
    }
    r->llama |= r->kind == KIND_CHAT && r->model->is_llama;
    if (r->kind == KIND_EITHER_EMBED) {
        r->kind = r->model->pooling == POOL_TOKENS ? KIND_NATIVE_EMBED : KIND_EMBEDDINGS;
    }
    if (r->kind == KIND_EITHER_COMPLETION) {
        r->kind = body_has(&r->body, "model") ? KIND_COMPLETIONS : KIND_NATIVE;
    }
    const struct kind *kind = &kinds[r->kind];
    if (!kind->end) { // request_test finds a missing row
        return call_error_set(&r->error, 500, "internal_error", NULL,
                              "There is no row for requests of kind %d.", (int)r->kind);
    }
    r->generates = kind->generates;
    r->pools = kind->pools;
    r->form = r->kind < N_KINDS_WITH_FORM ? 1u << r->kind : 0;
    request_begin(r);
    if (kind->begin) {
        kind->begin(r);
    }
    if (r->error.status || !members_read(r)) {
        return false;
    }
    if (r->generates && r->model->info->encoder) {
        return call_error_set(
            &r->error, 400, "unsupported_model", "model",
            "This model is an encoder: it gives embeddings or scores of texts, but "
            "it does not generate text.");
    }
    request_end(r);
    return kinds[r->kind].end(r); // `begin` may have changed the kind
}

static const char *prompt_key(const struct request *r)
{
    if (r->messages) {
        return kinds[r->kind].messages;
    }
    return kinds[r->kind].text;
}

/* A prompt has at least n_bytes / (length of the longest token) tokens. If that is already too
 * many, it is refused without being tokenized, unless tokens are only counted. */
static bool is_hopeless(struct request *r, size_t n_bytes)
{
    size_t least = n_bytes / tokenizer_longest_piece(r->model->tok);
    bool any_fits = r->truncate != 0 || (!r->generates && !r->pools);
    if (any_fits || least <= (size_t)request_input_limit(r)) {
        return false;
    }
    call_error_context_hopeless(&r->error, prompt_key(r), r->model->info->max_model_len,
                                (int64_t)least, r->max_is_asked ? r->max_tokens : 0);
    return true;
}

/* Appends the ids of one prompt's spans to the list. */
static bool encode(struct request *r, const struct text_span *spans, size_t n_spans,
                   bool parse_special)
{
    struct err err = {""};
    struct tokenizer_flags flags = {.add_special = r->add_special, .parse_special = parse_special};
    enum status st = tokenizer_encode(r->model->tok, spans, n_spans, flags, &r->ids, &err);
    if (st == ERR_LIMIT) {
        return request_too_large(r);
    }
    if (st == ERR_NOMEM) {
        return call_error_no_memory(&r->error);
    }
    if (st != OK) {
        return call_error_set(&r->error, 500, "internal_error", NULL,
                              "The prompt could not be tokenised.");
    }
    return true;
}

static bool no_tokenizer(struct request *r)
{
    const char *why = r->model->no_tok.text;
    return call_error_set(&r->error, 400, "unsupported_value", prompt_key(r),
                          "This model has no tokenizer%s%s%s: '%s' must be token ids.",
                          text_if(*why, " ("), why, text_if(*why, ")"), prompt_key(r));
}

static bool encode_prompt(struct request *r, struct request_prompt *p, const struct text_span *text)
{
    if (p->second) {
        return request_encode_pair(r, p);
    }
    return p->spans ? encode(r, p->spans, p->n_spans, true) : encode(r, text, 1, r->parse_special);
}

/* Ids of all prompts share one list, which may move while it grows, so positions are kept
 * and turned into pointers at the end. */
static bool tokenise(struct request *r)
{
    size_t *from = arena_alloc(&r->arena, r->n_prompts + 1, sizeof from[0]);
    if (!from) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        const char *text = r->prompts[i].text;
        from[i] = r->ids.n;
        if (!text) {
            continue;
        }
        if (!r->model->tok) {
            return no_tokenizer(r);
        }
        struct text_span span = {text, r->prompts[i].text_bytes, false};
        if (is_hopeless(r, span.n_bytes + r->prompts[i].second_bytes) ||
            !encode_prompt(r, &r->prompts[i], &span)) {
            return false;
        }
        r->prompts[i].n = (int32_t)(r->ids.n - from[i]);
    }
    for (size_t i = 0; i < r->n_prompts; i++) { // the list no longer moves
        if (r->prompts[i].text) {
            r->prompts[i].ids = r->ids.v + from[i];
        }
    }
    return true;
}

static bool template_failed(struct request *r, enum status st, const struct err *err)
{
    if (st == ERR_INVALID || st == ERR_LIMIT || st == ERR_FORMAT || st == ERR_UNSUPPORTED) {
        return call_error_set(&r->error, 400, "invalid_messages", prompt_key(r), "%s", err->text);
    }
    if (st == ERR_NOMEM) {
        return call_error_no_memory(&r->error);
    }
    return call_error_set(&r->error, 500, "internal_error", NULL, "The chat template failed.");
}

/* The prompt of a conversation; its ids are appended to those of earlier prompts. */
static bool render_chat(struct request *r, const struct chat_template *t,
                        const struct request_chat *chat, struct request_prompt *p)
{
    struct err err = {""};
    struct chat_input in = {
        .messages_json = chat->text,
        .messages_bytes = chat->n_bytes,
        .tools_json = r->tools,
        .tools_bytes = r->tools_bytes,
        .kwargs_json = r->kwargs,
        .kwargs_bytes = r->kwargs_bytes,
        .add_generation_prompt = r->add_generation_prompt,
        .continue_final_message = r->continue_final_message,
        .local_us = chat_clock_us(),
        .llama_variables = r->model->is_llama,
    };
    struct chat_output out;
    enum status st = chat_template_render(t, &in, &out, &err);
    if (st != OK) {
        return chat_check_roles(r, chat->messages, "", 0) && template_failed(r, st, &err);
    }
    size_t before = r->ids.n;
    const bool strict = r->model->config->strict_parameters;
    bool good = (!strict || chat_check_roles(r, chat->messages, out.text, out.n_bytes)) &&
                !is_hopeless(r, out.n_bytes) && encode(r, out.spans, out.n_spans, true);
    r->output.starts_in_reasoning = reasoning_is_open(r->output.reasoning, out.text, out.n_bytes);
    char *text = arena_strndup(&r->arena, out.text, out.n_bytes);
    *p = (struct request_prompt){
        .n = (int32_t)(r->ids.n - before), .text = text, .text_bytes = out.n_bytes};
    chat_output_deinit(&out);
    if (good && !text) {
        return request_too_large(r);
    }
    return good;
}

/* One conversation, or several of a batch. */
static bool render_all(struct request *r, const struct chat_template *t)
{
    const struct body_member *m = body_get(&r->body, "messages");
    bool own_words = r->form & (FORM_CHAT | FORM_TOKENIZE_CHAT | FORM_POOL_CHAT);
    struct request_chat one = {.messages = own_words && m ? m->node : NULL,
                               .text = r->messages,
                               .n_bytes = r->messages_bytes};
    const struct request_chat *chats = r->chats ? r->chats : &one;
    size_t n = r->chats ? r->n_chats : 1;
    r->prompts = arena_alloc(&r->arena, n, sizeof r->prompts[0]);
    if (!r->prompts) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < n; i++) {
        if (!render_chat(r, t, &chats[i], &r->prompts[r->n_prompts++])) {
            return false;
        }
    }
    const int32_t *ids = r->ids.v; // the list no longer moves
    for (size_t i = 0; i < n; i++) {
        r->prompts[i].ids = ids;
        ids += r->prompts[i].n;
    }
    return true;
}

/* The request's own template is used if it has one, otherwise the model's. */
static bool compile_and_render(struct request *r)
{
    struct err err = {""};
    struct chat_template *own = NULL;
    if (r->request_template) {
        enum status st = chat_template_compile(r->request_template, r->request_template_bytes,
                                               r->model->text_dir, &own, &err);
        if (st != OK) {
            return call_error_set(&r->error, 400, "invalid_value", "chat_template", "%s", err.text);
        }
    }
    const struct chat_template *t = own ? own : r->model->template;
    if (!t || !r->model->tok) {
        if (t) {
            return no_tokenizer(r);
        }
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model has no chat template; use /v1/completions.");
    }
    bool good = render_all(r, t);
    chat_template_free(own);
    return good;
}

/* A template in the request is compiled for this request only, and must not hold a thread of the
 * pool for long. */
static bool render(struct request *r)
{
    enum { OWN_TEMPLATE_MS = 1000 };
    chat_template_set_cpu_ms(r->request_template ? OWN_TEMPLATE_MS : 0);
    bool good = compile_and_render(r);
    chat_template_set_cpu_ms(0);
    return good;
}

/* Checks ids that the client sent; the tokenizer's need no check. */
static bool check_ids(struct request *r, const struct request_prompt *p)
{
    for (int32_t i = 0; i < p->n && !p->text; i++) {
        if (p->ids[i] >= r->model->info->vocab) {
            return call_error_set(&r->error, 400, "invalid_value", prompt_key(r),
                                  "Invalid '%s': token id %d is out of vocabulary.", prompt_key(r),
                                  p->ids[i]);
        }
    }
    return true;
}

/* Encoders expect special tokens on both sides. If a text is truncated, those of the side that is
 * cut off take the place of its tokens. */
static void keep_ends(const struct request *r, const struct request_prompt *p, int32_t keep)
{
    size_t before = 0, after = 0;
    int32_t *ids = r->ids.v ? r->ids.v + (p->ids - r->ids.v) : NULL; // the request's own list
    if (!r->model->info->encoder || !r->add_special || !p->text || p->spans) {
        return;
    }
    tokenizer_n_around(r->model->tok, &before, &after);
    if (before + after > (size_t)keep) {
        return;
    }
    if (r->truncate_right) {
        memmove(ids + keep - after, ids + p->n - after, after * sizeof *ids);
    } else {
        memmove(ids + p->n - keep, ids, before * sizeof *ids);
    }
}

/* Truncates the prompt to fit, keeping its end or its beginning. */
static void truncate_prompt(const struct request *r, struct request_prompt *p, int64_t context)
{
    int64_t keep;
    if (r->truncate < 0) {
        keep = context - (r->max_is_asked ? r->max_tokens : 1);
    } else {
        keep = r->truncate;
    }
    if (r->pools && r->truncate < 0) {
        keep = context;
    }
    if (r->truncate != 0 && keep > 0 && p->n > keep && !p->second) {
        keep_ends(r, p, (int32_t)keep);
        if (!r->truncate_right) {
            p->ids += p->n - keep;
            p->offsets = p->offsets ? p->offsets + 2 * (p->n - keep) : NULL;
        }
        p->n = (int32_t)keep;
        p->text = NULL; // the text stands for more tokens than remain
    }
}

/* Sets how many tokens may be generated for this prompt. */
static bool fit(struct request *r, struct request_prompt *p)
{
    int64_t context = r->model->info->max_model_len;
    truncate_prompt(r, p, context);
    if (p->n == 0 && r->kind != KIND_TOKENIZE) {
        return call_error_set(&r->error, 400, "invalid_value", prompt_key(r),
                              "Invalid '%s': the prompt has no tokens.", prompt_key(r));
    }
    int64_t wanted = r->has_max_tokens ? r->max_tokens : 1;
    int64_t room = context - p->n;
    if (!r->generates && !r->pools) {
        return true;
    }
    if (r->pools) {
        if (room >= 0) {
            return true;
        }
        return call_error_context_exceeded(&r->error, prompt_key(r), context, p->n, 0);
    }
    const bool may_shift = shifts_may(r);
    if (may_shift && p->n >= context) {
        if (!shifts_cut_prompt(r, p)) {
            return false;
        }
        room = context - p->n;
    }
    if (may_shift && room >= 1 && wanted > room) {
        r->shifts = true;
        p->max_tokens = (int32_t)wanted;
        return true;
    }
    bool clamps = !r->max_is_asked || r->max_shrinks || kinds[r->kind].clamps ||
                  r->model->config->clamp_max_tokens;
    int64_t least = wanted != 0 && !kinds[r->kind].may_fill;
    if (room < least || (room < wanted && !clamps)) {
        return call_error_context_exceeded(&r->error, prompt_key(r), context, p->n,
                                           r->max_is_asked ? r->max_tokens : 0);
    }
    p->max_tokens = (int32_t)(r->has_max_tokens && wanted < room ? wanted : room);
    if (r->params.min_tokens > p->max_tokens) {
        return call_error_set(&r->error, 400, "invalid_value", "min_tokens",
                              "Invalid 'min_tokens': must not be above the maximum of %d tokens.",
                              p->max_tokens);
    }
    return true;
}

/* Only some answers have a place for a vector of each token. */
static bool pools_as_asked(struct request *r)
{
    if (!r->pools || r->pooling != POOL_TOKENS || r->kind == KIND_NATIVE_EMBED ||
        r->kind == KIND_POOLING) {
        return true;
    }
    return call_error_set(&r->error, 400, "unsupported_value", prompt_key(r),
                          "This server returns a vector for each token (--pooler-config none), "
                          "which this endpoint cannot return: use /embedding or /pooling.");
}

enum prepare_stage prepare_body(struct request *r)
{
    r->pooling = r->model->pooling;
    arena_init(&r->arena, ARENA_MAX_BYTES);
    ids_init(&r->ids, 16 << 20);
    if (!read_body(r) || (!kinds[r->kind].text && !kinds[r->kind].messages)) {
        return PREPARE_DONE;
    }
    const bool renders = r->messages && r->given_prompt.n == 0;
    return renders && r->request_template ? PREPARE_TEMPLATE : PREPARE_PROMPT;
}

static bool find_prompts(struct request *r)
{
    if (r->given_prompt.n > 0) {
        return request_use_given(r);
    }
    return r->messages ? render(r) : tokenise(r);
}

/* Stops at the first error. Grammars come last, because they cost the most. */
void prepare_prompt(struct request *r)
{
    if (!find_prompts(r) || !request_find_offsets(r) || !request_find_labels(r) ||
        !pools_as_asked(r) || !request_split_inputs(r, prompt_key(r))) {
        return;
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (!check_ids(r, &r->prompts[i]) || !fit(r, &r->prompts[i]) ||
            !request_check_window(r, &r->prompts[i])) {
            return;
        }
    }
    if (!r->generates && !r->pools) {
        return;
    }
    struct sampling_params p = r->params;
    struct err err = {""};
    p.max_tokens = r->n_prompts > 0 ? r->prompts[0].max_tokens : 1;
    if (sampling_params_check(&p, r->model->info->vocab, &err) != OK) {
        call_error_set(&r->error, 400, "invalid_value", NULL, "%s", err.text);
        return;
    }
    if (!request_check_beams(r) || (r->generates && !request_limit_thinking(r))) {
        return;
    }
    request_constrain(r); // last, because it is the most work
}

void prepare_request(struct request *r)
{
    if (prepare_body(r) != PREPARE_DONE) {
        prepare_prompt(r);
    }
}
