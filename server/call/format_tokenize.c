/* /tokenize, /detokenize, /tokenizer_info: vLLM's shapes. */
#include "server/call/format.h"

static void reply_tokens(struct call *c)
{
    const struct api_prompt *p = &c->request.prompts[0];
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"count\":");
    buf_put_int(&body, p->n);
    buf_puts(&body, ",\"max_model_len\":");
    buf_put_int(&body, c->request.model->info->max_model_len);
    buf_puts(&body, ",\"tokens\":");
    call_put_ids(&body, p->ids, p->n);
    buf_puts(&body, ",\"token_strs\":");
    if (c->request.token_strs) {
        buf_putc(&body, '[');
        for (int32_t i = 0; i < p->n; i++) {
            size_t n = 0;
            const char *text = tokenizer_token_text(c->request.model->tok, p->ids[i], &n);
            buf_puts(&body, i ? "," : "");
            buf_put_json(&body, text ? text : "", n);
        }
        buf_putc(&body, ']');
    } else {
        buf_puts(&body, "null");
    }
    buf_putc(&body, '}');
    c->sink->whole(c, &body);
}

static void reply_text_of(struct call *c)
{
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"prompt\":");
    buf_put_json(&body, c->request.detokenized, c->request.detokenized_bytes);
    buf_putc(&body, '}');
    c->sink->whole(c, &body);
}

const struct call_format call_tokens_format = {.id_prefix = "tok-", .reply = reply_tokens};
const struct call_format call_text_format = {.id_prefix = "tok-", .reply = reply_text_of};
