// SPDX-License-Identifier: Apache-2.0
/* /tokenize, /detokenize, /tokenizer_info: vLLM's shapes. */
#include "server/call/format.h"

#include "engine/base/optional.h"
#include "engine/base/utf8.h"

/* llama.cpp's [{"id":..,"piece":..}]: a piece that is part of a character is its bytes. */
static void put_pieces(struct buf *b, const struct call *c, const struct request_prompt *p)
{
    const struct tokenizer *tok = c->request.model->tok;
    buf_putc(b, '[');
    for (int32_t i = 0; i < p->n; i++) {
        size_t n = 0;
        const char *piece;
        if (tokenizer_is_special(tok, p->ids[i])) {
            piece = tokenizer_token_text(tok, p->ids[i], &n);
        } else {
            piece = tokenizer_piece(tok, p->ids[i], &n);
        }
        buf_printf(b, "%s{\"id\":%d,\"piece\":", text_if(i, ","), p->ids[i]);
        if (piece && utf8_check(piece, n) != n) {
            for (size_t k = 0; k < n; k++) {
                buf_printf(b, "%c%d", k ? ',' : '[', (unsigned char)piece[k]);
            }
            buf_putc(b, ']');
        } else {
            buf_put_json(b, or_empty(piece), n);
        }
        buf_putc(b, '}');
    }
    buf_putc(b, ']');
}

/* Writes vLLM's members. If the body has llama.cpp's names, `tokens` may be a list of pieces. */
static void reply_tokens(struct call *c)
{
    const struct request_prompt *p = &c->request.prompts[0];
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"count\":");
    buf_put_int(&body, p->n);
    buf_puts(&body, ",\"max_model_len\":");
    buf_put_int(&body, c->request.model->info->max_model_len);
    buf_puts(&body, ",\"tokens\":");
    if (c->request.native_tokens && c->request.token_strs) {
        put_pieces(&body, c, p);
    } else {
        call_put_ids(&body, p->ids, p->n);
    }
    buf_puts(&body, ",\"token_strs\":");
    if (c->request.token_strs) {
        buf_putc(&body, '[');
        for (int32_t i = 0; i < p->n; i++) {
            size_t n = 0;
            const char *text = tokenizer_token_text(c->request.model->tok, p->ids[i], &n);
            if (i) {
                buf_puts(&body, ",");
            }
            buf_put_json(&body, or_empty(text), n);
        }
        buf_putc(&body, ']');
    } else {
        buf_puts(&body, "null");
    }
    buf_putc(&body, '}');
    call_whole(c, &body);
}

/* vLLM's `prompt`; if the body names no model, also llama.cpp's `content`. */
static void reply_text_of(struct call *c)
{
    struct buf body;
    buf_init(&body, (size_t)1 << 30);
    buf_puts(&body, "{\"prompt\":");
    buf_put_json(&body, c->request.detokenized, c->request.detokenized_bytes);
    if (!body_has(&c->request.body, "model")) {
        buf_puts(&body, ",\"content\":");
        buf_put_json(&body, c->request.detokenized, c->request.detokenized_bytes);
    }
    buf_putc(&body, '}');
    call_whole(c, &body);
}

const struct call_format call_tokens_format = {.id_prefix = "tok-", .reply = reply_tokens};
const struct call_format call_text_format = {.id_prefix = "tok-", .reply = reply_text_of};
