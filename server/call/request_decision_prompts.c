// SPDX-License-Identifier: Apache-2.0
/* Questions become prompts, and their labels token ids (decisions.h). */
#include "engine/base/optional.h"
#include "server/call/convert.h"
#include "server/call/decisions.h"
#include "server/call/readers.h"

#include <string.h>

/* The text of a label; `room` has room for one letter. */
static const char *label_text(int label, char room[2])
{
    room[0] = (char)(label >= LABEL_0 ? '0' + label - LABEL_0 : 'A' + label);
    room[1] = '\0';
    if (label == LABEL_YES) {
        return "yes";
    }
    return label == LABEL_NO ? "no" : room;
}

static void put_option(struct buf *b, const struct question *q, int i)
{
    const struct question_option *o = &q->options[i];
    char room[2];
    buf_puts(b, label_text(q->first_label + i, room));
    if (q->type != QUESTION_NOUL) {
        buf_printf(b, ": %s", o->name);
        if (o->description) {
            buf_printf(b, " - %s", o->description);
        }
    } else if (o->description) {
        buf_printf(b, ": %s", o->description);
    }
    buf_putc(b, '\n');
}

static void put_question(struct buf *b, const struct question *q)
{
    if (*q->instructions) {
        buf_printf(b, "Question: %s\n", q->instructions);
    }
    for (int i = 0; i < q->n_options; i++) {
        put_option(b, q, i);
    }
    if (q->first_label == LABEL_YES) {
        buf_puts(b, "Answer with yes or no only.");
    } else if (q->first_label == LABEL_0) {
        buf_puts(b, "Answer with the number of one level only.");
    } else {
        buf_puts(b, "Answer with the letter of one option only.");
    }
}

/* A question's chat. The text comes before the question, so that all questions share it as a
 * prefix. */
static bool put_chat(struct request *r, const struct question *q, struct request_chat *chat)
{
    const struct decisions *d = r->decisions;
    struct buf text, content;
    buf_init(&content, 64 << 20);
    buf_put(&content, d->state, d->state_bytes);
    buf_puts(&content, "\n\n");
    put_question(&content, q);
    buf_init(&text, 128 << 20);
    buf_putc(&text, '[');
    if (d->instructions && *d->instructions) {
        buf_puts(&text, "{\"role\":\"system\",\"content\":");
        convert_text(&text, d->instructions);
        buf_puts(&text, "},");
    }
    buf_puts(&text, "{\"role\":\"user\",\"content\":");
    text.failed |= content.failed;
    convert_text(&text, content.data);
    buf_puts(&text, "}]");
    buf_deinit(&content);
    body_put_nuls_back(&r->body, &text);
    *chat = (struct request_chat){
        .text = text.failed ? NULL : arena_strndup(&r->arena, text.data, text.n_bytes),
        .n_bytes = text.n_bytes};
    buf_deinit(&text);
    return chat->text || request_too_large(r);
}

/* The answer is read from the first token of a reply, so nothing may come before that token. */
void decisions_begin(struct request *r)
{
    r->add_generation_prompt = true;
    r->has_thinks = true;
    r->params = sampling_params_default();
    r->params.temperature = 0;
    r->params.num_speculative_tokens = 0;
    r->params.max_tokens = 1;
    r->max_tokens = 1;
    r->has_max_tokens = true;
}

bool decisions_end(struct request *r)
{
    const struct decisions *d = r->decisions;
    const struct json *kwargs = NULL;
    body_object(&r->body, "chat_template_kwargs", &kwargs);
    if (json_get_bool(kwargs, "enable_thinking", false)) {
        return call_error_set(&r->error, 400, "invalid_value", "chat_template_kwargs",
                              "Invalid 'chat_template_kwargs': the answer is the first token of a "
                              "reply, so thinking must be off.");
    }
    r->output.reasoning = r->model->reasoning;
    r->chats = arena_alloc(&r->arena, d->n_questions, sizeof *r->chats);
    if (!r->chats) {
        return request_too_large(r);
    }
    for (size_t i = 0; i < d->n_questions; i++) {
        if (!put_chat(r, &d->questions[i], &r->chats[r->n_chats++])) {
            return false;
        }
    }
    r->messages = r->chats[0].text;
    r->messages_bytes = r->chats[0].n_bytes;
    return true;
}

/* ---- the labels -------------------------------------------------------------------------------
 */

/* The end of a prompt: its tokens after the last special one, which the tokenizer may join with a
 * label. */
struct tail {
    const int32_t *ids;
    size_t n;
    struct buf text;
};

static void find_tail(const struct request *r, const struct request_prompt *p, struct tail *t)
{
    const struct tokenizer *tok = r->model->tok;
    int32_t from = p->n;
    size_t n_bytes;
    while (from > 0 && !tokenizer_is_special(tok, p->ids[from - 1])) {
        from--;
    }
    t->ids = p->ids + from;
    t->n = (size_t)(p->n - from);
    buf_init(&t->text, 1 << 20);
    for (size_t i = 0; i < t->n; i++) {
        const char *piece = tokenizer_piece(tok, t->ids[i], &n_bytes);
        buf_put(&t->text, piece, n_bytes);
    }
}

/* The first token of a label at the beginning of the reply; -1: it is joined with the prompt. */
static int32_t label_id(const struct request *r, const struct tail *t, const char *label)
{
    struct text_span spans[] = {{or_empty(t->text.data), t->text.n_bytes, false},
                                {label, strlen(label), false}};
    struct tokenizer_flags flags = {0};
    struct ids ids;
    int32_t id = -1;
    ids_init(&ids, 1 << 20);
    if (tokenizer_encode(r->model->tok, spans, 2, flags, &ids, NULL) == OK && ids.n > t->n &&
        (t->n == 0 || memcmp(ids.v, t->ids, t->n * sizeof *t->ids) == 0)) {
        id = ids.v[t->n];
    }
    ids_deinit(&ids);
    return id;
}

static bool has_label(const struct decisions *d, int32_t id)
{
    for (int32_t i = 0; i < d->n_ids; i++) {
        if (d->ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Marks the labels that the questions use. */
static void mark_labels(struct decisions *d)
{
    for (int l = 0; l < N_LABELS; l++) {
        d->place[l] = -1;
    }
    for (size_t i = 0; i < d->n_questions; i++) {
        const struct question *q = &d->questions[i];
        for (int l = q->first_label; l < q->first_label + q->n_options; l++) {
            d->place[l] = 0;
        }
    }
}

static bool find_labels(struct request *r, const struct tail *t)
{
    struct decisions *d = r->decisions;
    mark_labels(d);
    for (int l = 0; l < N_LABELS; l++) {
        char room[2];
        const char *text = label_text(l, room);
        if (d->place[l] < 0) {
            continue;
        }
        const int32_t id = label_id(r, t, text);
        if (id < 0 || has_label(d, id)) {
            return call_error_set(&r->error, 400, "unsupported_model", "model",
                                  "The label '%s' has no token of its own after this model's "
                                  "prompts.",
                                  text);
        }
        d->place[l] = d->n_ids;
        d->ids[d->n_ids++] = id;
    }
    return true;
}

/* All prompts end in the same way, so the labels are the same tokens after each. */
bool request_find_labels(struct request *r)
{
    struct decisions *d = r->decisions;
    struct tail tail;
    if (!d) {
        return true;
    }
    if (r->output.starts_in_reasoning) {
        return call_error_set(&r->error, 400, "unsupported_model", "model",
                              "This model begins every reply with reasoning, so its first token "
                              "answers no question.");
    }
    find_tail(r, &r->prompts[0], &tail);
    const bool good = find_labels(r, &tail);
    buf_deinit(&tail.text);
    r->params.logprobs = true;
    r->params.logprob_ids = d->ids;
    r->params.top_logprobs = d->n_ids;
    return good;
}
