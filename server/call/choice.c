// SPDX-License-Identifier: Apache-2.0
/* One sample: passes the engine's tokens through the output parser to the format. */
#include "engine/base/optional.h"
#include "engine/engine.h"
#include "server/call/call.h"

#include "server/call/custom.h"
#include "server/call/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EVENT_BYTES = 32 << 10
}; // arbitrary: pending output is sent at this size, to notice a full
   // stream

/* Output of `kind` begins: passes pending output of another kind to the format. */
static void become(struct call_choice *ch, enum call_pending kind)
{
    if (!ch->call->request.stream && !ch->call->format->in_order) {
        return;
    }
    if (ch->pending != kind && ch->pending != PENDING_NONE) {
        ch->call->format->pending(ch);
    }
    ch->pending = kind;
}

/* Ends the tool call that was begun, if any: its arguments are complete. */
static void close_call(struct call_choice *ch)
{
    if (ch->has_call && ch->is_custom) {
        become(ch, PENDING_ARGUMENTS);
        custom_text(&ch->custom, &ch->arguments);
        buf_clear(&ch->custom);
    }
    become(ch, PENDING_NONE);
    if (ch->has_call && ch->call->format->call_end) {
        ch->call->format->call_end(ch);
    }
    ch->has_call = false;
}

/* Text or reasoning after a call ends it: what follows has a place of its own. */
static void close_open_call(struct call_choice *ch)
{
    if (ch->has_call) {
        close_call(ch);
    }
}

/* Held text of an answer that must be a call is the beginning of a call that was cut off, by the
 * limit of tokens or by a stop string or token. */
static void on_text(void *arg, const char *text, size_t n_bytes)
{
    struct call_choice *ch = arg;
    const bool is_held = ch->output.cut || ch->output.stopped || ch->stop_id >= 0;
    if (is_held && ch->call->request.tool_mode == TOOLS_MUST) {
        return;
    }
    close_open_call(ch);
    become(ch, PENDING_TEXT);
    ch->has_content = true;
    buf_put(&ch->content, text, n_bytes);
}

/* Reasoning that the client does not want is dropped, but its tokens are counted. */
static void on_reasoning(void *arg, const char *text, size_t n_bytes)
{
    struct call_choice *ch = arg;
    if (!ch->call->request.include_reasoning) {
        return;
    }
    close_open_call(ch);
    become(ch, PENDING_REASONING);
    ch->has_reasoning = true;
    buf_put(&ch->reasoning, text, n_bytes);
}

/* Kimi K2 numbers the calls of a conversation, and expects ids of this form in later turns. */
static void make_call_id(struct call_choice *ch, const char *name, char *id, size_t n_bytes)
{
    const struct request *r = &ch->call->request;
    if (strcmp(r->model->info->model_type, "kimi_k2") == 0) {
        snprintf(id, n_bytes, "functions.%.64s:%d", name, r->n_past_calls + ch->n_calls);
    } else {
        const char *prefix = ch->call->format->call_prefix;
        call_make_id(ch->call, or_text(prefix, "call_"), id);
    }
}

/* A call begins. Calls that the request does not allow are skipped: all of them if tool_choice is
 * none, those after the first without parallel_tool_calls. */
static void on_call(void *arg, const char *name, const char *id)
{
    struct call_choice *ch = arg;
    const struct request *r = &ch->call->request;
    close_call(ch);
    ch->is_custom = request_custom_tool(r, name) != NULL;
    ch->skip_call = r->tool_mode == TOOLS_OFF || (ch->n_calls > 0 && !r->parallel_tool_calls);
    ch->has_call = !ch->skip_call;
    if (ch->has_call) {
        char own[96];
        if (*id == '\0') {
            make_call_id(ch, name, own, sizeof own);
            id = own;
        }
        ch->call->format->call(ch, name, id);
        ch->n_calls++;
    }
}

/* Arguments of custom tools are collected, since they are text inside JSON that must be
 * decoded as a whole. */
static void on_arguments(void *arg, const char *text, size_t n_bytes)
{
    struct call_choice *ch = arg;
    if (ch->skip_call) {
        return;
    }
    if (ch->is_custom) {
        buf_put(&ch->custom, text, n_bytes);
        return;
    }
    become(ch, PENDING_ARGUMENTS);
    buf_put(&ch->arguments, text, n_bytes);
}

static const struct tool_sink SINK = {on_text, on_reasoning, on_call, on_arguments, NULL};

enum { N_PARTS = 10 };

/* The buffers in which a whole answer is collected, and a stream's events until they are sent. */
static void parts_of(struct call_choice *ch, struct buf *parts[N_PARTS])
{
    struct buf *all[N_PARTS] = {&ch->content,  &ch->reasoning, &ch->arguments, &ch->custom,
                                &ch->calls,    &ch->logprobs,  &ch->ids,       &ch->lists[0],
                                &ch->lists[1], &ch->lists[2]};
    memcpy(parts, all, sizeof all);
}

/* Every buffer has a limit, so that an endless answer fails instead of filling memory. */
void call_choice_init(struct call_choice *ch, struct call *c, int32_t index,
                      struct engine_request *r, int32_t sample)
{
    struct tool_sink sink = SINK;
    sink.arg = ch;
    ch->call = c;
    ch->index = index;
    ch->request = r;
    ch->sample = sample;
    ch->stop_id = -1;
    output_init(&ch->output, &c->request.output, &sink);
    struct buf *parts[N_PARTS];
    parts_of(ch, parts);
    for (int i = 0; i < N_PARTS; i++) {
        buf_init(parts[i], c->server->max_part_bytes);
    }
}

bool call_choice_is_cut(struct call_choice *ch)
{
    struct buf *parts[N_PARTS];
    parts_of(ch, parts);
    for (int i = 0; i < N_PARTS; i++) {
        if (parts[i]->failed) {
            return true;
        }
    }
    return false;
}

void call_choice_deinit(struct call_choice *ch)
{
    output_deinit(&ch->output);
    struct buf *parts[N_PARTS];
    parts_of(ch, parts);
    for (int i = 0; i < N_PARTS; i++) {
        buf_deinit(parts[i]);
    }
}

static bool is_stop_id(const struct call_choice *ch, int32_t id)
{
    const struct sampling_params *p = &ch->request->params;
    for (int32_t i = 0; i < p->n_stop_ids; i++) {
        if (p->stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

static bool is_eos(const struct call_choice *ch, int32_t id)
{
    const struct engine_info *info = ch->call->request.model->info;
    for (int32_t i = 0; i < info->n_eos; i++) {
        if (info->eos[i] == id) {
            return true;
        }
    }
    return false;
}

/* Takes one token. True if a stop string has ended the text. */
static bool take(struct call_choice *ch, int32_t i)
{
    const struct request *r = &ch->call->request;
    struct engine_output *out = &ch->request->outputs[ch->sample];
    int32_t id = out->tokens[i];
    if (r->return_token_ids || r->native_tokens || r->kind == KIND_NATIVE) {
        if (ch->ids.n_bytes) {
            buf_puts(&ch->ids, ",");
        }
        buf_put_int(&ch->ids, id);
    }
    size_t n_chars = ch->n_chars;
    if (out->logprobs) {
        ch->n_chars += call_token_characters(ch->call, id);
    }
    if (out->logprobs && ch->call->format->logprob) {
        ch->call->format->logprob(ch, id, &out->logprobs[i], n_chars);
    }
    bool stops = is_stop_id(ch, id);
    if (stops && !(r->output.include_stop && !is_eos(ch, id))) {
        return false; // a stop token ends the sample and is not text
    }
    return r->output.tok && !output_token(&ch->output, id);
}

/* The client's stop string or stop token that ended the sample; NULL: it ended otherwise, or with a
 * token that is a marker of the format. */
static const char *stop_of(const struct call_choice *ch)
{
    const struct output *o = &ch->output;
    if (o->stopped) {
        return o->options->stop[o->stop_index];
    }
    if (ch->stop_id < 0) {
        return NULL;
    }
    size_t n;
    const char *text = or_empty(tokenizer_token_text(o->options->tok, ch->stop_id, &n));
    for (const char *const *marker = o->parser->markers; *marker; marker++) {
        if (strcmp(*marker, text) == 0) {
            return NULL;
        }
    }
    return text;
}

/* True if the client's stop cut off the call that was being written. One that begins with the
 * marker that ends a call does not; a part of the marker may also be a part of the arguments. */
static bool stop_cut_a_call(const struct call_choice *ch)
{
    const struct output *o = &ch->output;
    const char *stop = o->parse.in_call ? stop_of(ch) : NULL;
    if (!stop) {
        return false;
    }
    const struct tool_writing *w = o->parser->writing;
    const char *marker = w ? strchr(or_empty(w->call_end), '<') : NULL;
    const char *last = marker ? strchr(marker, '>') : NULL;
    stop += strspn(stop, " \n");
    return !last || strncmp(stop, marker, (size_t)(last - marker) + 1) != 0;
}

/* OpenAI's word for why the sample ended. */
static const char *reason_of(struct call_choice *ch, int32_t finish, bool cut)
{
    if (finish == FINISH_LENGTH) {
        return "length";
    }
    if (ch->n_calls == 0 || cut || ch->call->request.is_named) { // as in OpenAI's API
        return "stop";
    }
    if (ch->call->request.old_calls) {
        return "function_call";
    }
    return "tool_calls";
}

static void end(struct call_choice *ch, int32_t finish)
{
    const bool cut = stop_cut_a_call(ch);
    ch->output.cut = cut || finish == FINISH_LENGTH;
    output_finish(&ch->output);
    ch->finish = reason_of(ch, finish, cut); // a format may keep what is pending for the last chunk
    close_call(ch);
    if (ch->call->request.stream) {
        ch->call->format->finish(ch);
    }
}

static void observe(struct call_choice *ch, int32_t n_new, int64_t now_ns)
{
    if (n_new > 0) {
        if (ch->t_last_ns > 0) {
            call_observe(ch->call, MEASURE_ITL, (double)(now_ns - ch->t_last_ns) * 1e-9);
        }
        ch->t_last_ns = now_ns;
    }
}

/* Hands pending output to the format. */
static void flush(struct call_choice *ch)
{
    if (ch->pending == PENDING_NONE && ch->ids.n_bytes > 0) {
        ch->pending = PENDING_TEXT; // ids are sent in each step, even if they form no text yet
    }
    if (ch->pending != PENDING_NONE) {
        ch->call->format->pending(ch);
        ch->pending = PENDING_NONE;
    }
}

/* True if one more token may be taken. If a stream is full, the rest waits for call_on_room. */
static bool has_room(struct call_choice *ch)
{
    if (!ch->call->request.stream) {
        return true;
    }
    size_t n = ch->content.n_bytes + ch->reasoning.n_bytes + ch->arguments.n_bytes +
               ch->logprobs.n_bytes + ch->ids.n_bytes;
    for (int i = 0; i < 3; i++) {
        n += ch->lists[i].n_bytes;
    }
    if (n >= EVENT_BYTES) {
        flush(ch);
    }
    return !ch->call->sink->is_full(ch->call);
}

/* Takes the available tokens: at least one, and as many as the sink has room for. True if a stop
 * string was found. */
static bool take_some(struct call_choice *ch, int32_t n)
{
    const bool one_by_one = ch->call->format->in_order && ch->call->request.logprobs;
    bool stopped = false;
    for (int32_t first = ch->n_taken; !stopped && ch->n_taken < n; ch->n_taken++) {
        if (ch->n_taken > first && !has_room(ch)) {
            break;
        }
        stopped = take(ch, ch->n_taken);
        if (one_by_one) {
            flush(ch);
        }
    }
    return stopped;
}

/* Takes the new tokens. The engine's thread writes tokens, then their number, then `finish`. They
 * are read in the opposite order, so that a finished sample has all of its tokens.
 */
bool call_choice_progress(struct call_choice *ch, int64_t now_ns)
{
    struct engine_output *out = &ch->request->outputs[ch->sample];
    int32_t finish = atomic_load_explicit(&out->finish, memory_order_acquire);
    int32_t n = atomic_load_explicit(&out->n_tokens, memory_order_acquire);
    bool over = finish == FINISH_STOP || finish == FINISH_LENGTH;
    if (!ch->started && (n > 0 || over)) {
        ch->started = true;
        if (ch->call->format->start) {
            ch->call->format->start(ch);
        }
    }
    observe(ch, n - ch->n_taken, now_ns);
    if (take_some(ch, n)) {
        if (finish == FINISH_NONE) {
            engine_stop(ch->call->server->engine, ch->request, ch->sample);
        }
        end(ch, FINISH_STOP);
        return true;
    }
    if (over && ch->n_taken == n) {
        if (finish == FINISH_STOP && n > 0 && is_stop_id(ch, out->tokens[n - 1]) &&
            !is_eos(ch, out->tokens[n - 1])) {
            ch->stop_id = out->tokens[n - 1];
        }
        end(ch, finish);
        return true;
    }
    if (ch->call->request.stream) {
        flush(ch);
    }
    return false;
}
