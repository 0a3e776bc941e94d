// SPDX-License-Identifier: Apache-2.0
/* vLLM's return_token_offsets: the characters of the prompt's text that each of its tokens stands
 * for. The tokens' own texts are laid along the prompt, which works as long as the tokenizer does
 * not rewrite it. */
#include "server/call/readers.h"

#include <string.h>

/* A position in the text, counted in bytes and in characters. */
struct place {
    size_t at;
    int32_t n_chars; // whole characters before it
};

static bool begins_character(char byte)
{
    return ((unsigned char)byte & 0xC0) != 0x80;
}

static void move_by(const struct request_prompt *p, struct place *place, size_t n_bytes)
{
    for (size_t end = place->at + n_bytes; place->at < end; place->at++) {
        place->n_chars += begins_character(p->text[place->at]);
    }
}

static bool matches(const struct request_prompt *p, size_t at, const char *piece, size_t n_bytes)
{
    return n_bytes <= p->text_bytes - at && memcmp(p->text + at, piece, n_bytes) == 0;
}

/* Moves to the end of a token. Some tokenizers put a space before a text, and added tokens may take
 * the spaces around them. */
static bool lay(const struct request_prompt *p, struct place *place, const char *piece,
                size_t n_bytes, int32_t *start)
{
    const bool added_space =
        n_bytes > 0 && piece[0] == ' ' && !matches(p, place->at, piece, n_bytes);
    piece += added_space;
    n_bytes -= added_space;
    while (!matches(p, place->at, piece, n_bytes) && matches(p, place->at, " ", 1)) {
        move_by(p, place, 1);
    }
    if (!matches(p, place->at, piece, n_bytes)) {
        return false;
    }
    /* A token in the middle of a character stands for all of it. */
    const bool inside = place->at < p->text_bytes && !begins_character(p->text[place->at]);
    *start = place->n_chars - inside;
    move_by(p, place, n_bytes);
    return true;
}

/* Finds where each token's text starts and ends in the prompt, counted in characters. */
static bool find_offsets(struct request *r, struct request_prompt *p)
{
    const struct tokenizer *tok = r->model->tok;
    size_t n_before = 0, n_after = 0;
    struct place place = {0, 0};
    int32_t *offsets = arena_alloc(&r->arena, 2 * (size_t)p->n + 1, sizeof *offsets);
    if (!offsets) {
        return request_too_large(r);
    }
    if (r->add_special) {
        tokenizer_n_around(tok, &n_before, &n_after);
    }
    memset(offsets, 0,
           2 * (size_t)p->n * sizeof *offsets); // tokens around the text have none of it
    for (size_t i = n_before; i + n_after < (size_t)p->n; i++) {
        size_t n_bytes = 0;
        const char *piece = tokenizer_is_special(tok, p->ids[i])
                                ? tokenizer_token_text(tok, p->ids[i], &n_bytes)
                                : tokenizer_piece(tok, p->ids[i], &n_bytes);
        if (!piece || !lay(p, &place, piece, n_bytes, &offsets[2 * i])) {
            return call_error_set(&r->error, 400, "unsupported_value", "return_token_offsets",
                                  "Unsupported value: this model's tokenizer rewrites the text, so "
                                  "that its tokens have no offsets there.");
        }
        offsets[2 * i + 1] = place.n_chars;
    }
    p->offsets = offsets;
    return true;
}

bool request_find_offsets(struct request *r)
{
    const bool renders = r->kind == KIND_RENDER || r->kind == KIND_RENDER_CHAT;
    for (size_t i = 0; renders && r->wants_offsets && i < r->n_prompts; i++) {
        if (r->prompts[i].text && !find_offsets(r, &r->prompts[i])) {
            return false;
        }
    }
    return true;
}
