// SPDX-License-Identifier: Apache-2.0
/* llama.cpp's routes that report settings and running requests. For operators; they reveal no
 * prompts or paths. */
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/engine.h"
#include "server/api/api.h"

#include <inttypes.h>
#include <string.h>

static void put_text(struct buf *b, const char *text)
{
    buf_put_json(b, text, strlen(text));
}

static void put_token(struct buf *b, const struct tokenizer *tok, int32_t id)
{
    size_t n = 0;
    const char *text = tok && id >= 0 ? tokenizer_token_text(tok, id, &n) : NULL;
    buf_put_json(b, or_empty(text), n);
}

static bool refuse(const struct api *a, struct http_request *req)
{
    if (!a->ready) {
        reply_errorf(req, 503, "model_loading", NULL, "The model is still loading.");
    }
    return !a->ready;
}

/* Defaults under llama.cpp's names; -1 means unlimited or random there. */
static void put_defaults(struct buf *b, const struct call_model *m)
{
    const struct sampling_params *p = &m->defaults;
    buf_printf(b,
               "{\"id\":0,\"id_task\":-1,\"n_ctx\":%d,\"speculative\":%s,\"is_processing\":false,"
               "\"params\":{\"n_predict\":%d,\"seed\":%" PRId64 ",\"top_k\":%d,\"temperature\":",
               m->info->max_model_len, bool_word(m->info->n_spec_tokens > 0),
               m->has_default_max_tokens ? p->max_tokens : -1,
               m->config->seed != 0 ? m->config->seed : -1, p->top_k);
    buf_put_double(b, (double)p->temperature);
    buf_puts(b, ",\"top_p\":");
    buf_put_double(b, (double)p->top_p);
    buf_puts(b, ",\"min_p\":");
    buf_put_double(b, (double)p->min_p);
    buf_puts(b, ",\"repeat_penalty\":");
    buf_put_double(b, (double)p->repetition_penalty);
    buf_puts(b, ",\"presence_penalty\":");
    buf_put_double(b, (double)p->presence_penalty);
    buf_puts(b, ",\"frequency_penalty\":");
    buf_put_double(b, (double)p->frequency_penalty);
    buf_puts(b, ",\"stop\":[]}}");
}

/* Reveals no prompts or paths, unlike llama.cpp's own answer. */
void api_props(struct http_request *req, void *arg)
{
    struct api *a = arg;
    const struct call_model *m = &a->calls.model;
    struct buf b;
    if (refuse(a, req)) {
        return;
    }
    buf_init(&b, 16 << 20);
    buf_puts(&b, "{\"default_generation_settings\":");
    put_defaults(&b, m);
    buf_printf(&b, ",\"total_slots\":%d,\"model_alias\":", m->info->max_num_seqs);
    put_text(&b, m->names[0]);
    buf_puts(&b, ",\"model_path\":"); // only the last part of the path: folders are not revealed
    put_text(&b, m->folder_name);
    buf_printf(&b, ",\"chat_template\":");
    put_text(&b, m->template ? chat_template_text(m->template) : "");
    buf_printf(&b,
               ",\"chat_template_caps\":{\"supports_tools\":%s},\"modalities\":{\"vision\":false,"
               "\"audio\":false},\"bos_token\":",
               bool_word(m->parser));
    put_token(&b, m->tok, m->tok ? tokenizer_bos(m->tok) : -1);
    buf_puts(&b, ",\"eos_token\":");
    put_token(&b, m->tok, m->tok ? tokenizer_eos(m->tok) : -1);
    buf_puts(&b, ",\"build_info\":\"sluice " SLUICE_VERSION "\",\"is_sleeping\":false}");
    reply_json(req, 200, &b);
}

/* A running sample takes the place of a slot. */
static void put_slot(struct buf *b, const struct api *a, int32_t id, const struct call_choice *ch)
{
    const struct engine_info *i = a->calls.model.info;
    buf_printf(b, "%s{\"id\":%d,\"n_ctx\":%d,\"speculative\":%s,\"is_processing\":%s",
               text_if(id, ","), id, i->max_model_len, bool_word(i->n_spec_tokens > 0),
               bool_word(ch));
    if (ch) {
        int32_t left = ch->request->params.max_tokens - ch->n_taken;
        buf_printf(b,
                   ",\"n_prompt_tokens\":%d,\"next_token\":[{\"has_next_token\":true,"
                   "\"n_remain\":%d,\"n_decoded\":%d}]",
                   ch->request->n_prompt, left, ch->n_taken);
    } else {
        buf_puts(b, ",\"next_token\":[{\"has_next_token\":false,\"n_remain\":-1,\"n_decoded\":0}]");
    }
    buf_putc(b, '}');
}

/* There are no real slots: running requests are listed as if each occupied one of max_num_seqs
 * slots. */
void api_slots(struct http_request *req, void *arg)
{
    struct api *a = arg;
    struct buf b;
    struct engine_stats s;
    int32_t id = 0;
    if (refuse(a, req)) {
        return;
    }
    api_put_stats(a, &s);
    int32_t n = a->calls.model.info->max_num_seqs, n_running = lesser(s.n_running, n);
    buf_init(&b, 64 << 20);
    buf_putc(&b, '[');
    for (const struct call *c = a->calls.calls; c && id < n_running; c = c->next) {
        for (size_t i = 0; i < c->n_choices && !c->answered && id < n_running; i++) {
            if (!c->choices[i].finish) {
                put_slot(&b, a, id++, &c->choices[i]);
            }
        }
    }
    if (n_running == n && http_query(req, "fail_on_no_slot")) {
        buf_deinit(&b);
        reply_errorf(req, 503, "server_overloaded", NULL, "No slot is free.");
        return;
    }
    while (id < n) {
        put_slot(&b, a, id++, NULL);
    }
    buf_putc(&b, ']');
    reply_json(req, 200, &b);
}
