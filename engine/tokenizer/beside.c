// SPDX-License-Identifier: Apache-2.0
/* Everything around the model: the added tokens and the post-processor of tokenizer.json, and the
 * settings of tokenizer_config.json and special_tokens_map.json. */
#include "engine/tokenizer/impl.h"

#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>

/* ---- added tokens ---- */

static struct added added_from(const struct json *node)
{
    const char *text = json_get_string(node, "content");
    bool special = json_get_bool(node, "special", false);
    return (struct added){
        .text = (char *)text, // read only
        .n_bytes = length_or_0(text),
        .single_word = json_get_bool(node, "single_word", false),
        .lstrip = json_get_bool(node, "lstrip", false),
        .rstrip = json_get_bool(node, "rstrip", false),
        .normalized = json_get_bool(node, "normalized", !special),
        .special = special,
    };
}

enum status added_load(const struct json *node, struct tokenizer *tok, struct err *err)
{
    for (const struct json *child = json_first(node); child; child = json_next(child)) {
        struct added token = added_from(child);
        TRY(added_put(tok, &token, err));
    }
    return OK;
}

/* ---- tokenizer_config.json and special_tokens_map.json ---- */

struct keyed {
    long id;
    const struct json *node;
};

static int compare_keyed(const void *a, const void *b)
{
    long x = ((const struct keyed *)a)->id, y = ((const struct keyed *)b)->id;
    return (x > y) - (x < y);
}

/* The flags in added_tokens_decoder override those in tokenizer.json. */
static enum status read_added_decoder(const struct json *node, struct tokenizer *tok,
                                      struct err *err)
{
    size_t n = json_count(node), i = 0;
    struct keyed *list = xcalloc(n + 1, sizeof *list);
    for (const struct json *child = json_first(node); child; child = json_next(child)) {
        list[i++] = (struct keyed){strtol(json_key(child), NULL, 10), child};
    }
    qsort(list, n, sizeof *list, compare_keyed);
    enum status st = OK;
    for (i = 0; i < n && st == OK; i++) {
        struct added token = added_from(list[i].node);
        st = added_put(tok, &token, err);
    }
    free(list);
    return st;
}

static const char *token_string(const struct json *node)
{
    const char *s = json_string(node);
    if (s) {
        return s;
    }
    return json_get_string(node, "content");
}

/* A named token is special even if added_tokens does not list it. */
static enum status name_is_special(struct tokenizer *tok, const char *text, struct err *err)
{
    size_t n = strlen(text);
    if (string_table_find(&tok->added_table, text, n) >= 0 ||
        string_table_find(&tok->by_text, text, n) < 0) {
        return OK;
    }
    struct added token = {.text = (char *)text, .n_bytes = n, .special = true};
    return added_put(tok, &token, err);
}

static enum status put_named(struct tokenizer *tok, const char *name, const char *text,
                             struct err *err)
{
    size_t at = 0;
    while (at < tok->n_named && strcmp(tok->named[at].name, name) != 0) {
        at++;
    }
    if (at == sizeof tok->named / sizeof tok->named[0]) {
        return OK;
    }
    const char *copy = arena_strndup(&tok->arena, text, strlen(text));
    if (!copy) {
        return err_set(err, ERR_NOMEM, "no memory for the token '%.60s'", text);
    }
    tok->named[at] = (struct named_token){name, copy, -1};
    if (at == tok->n_named) {
        tok->n_named = at + 1;
    }
    return name_is_special(tok, text, err);
}

/* Reads the special tokens that the config names, in addition to those marked in tokenizer.json. */
static enum status read_named(const struct json *node, struct tokenizer *tok, struct err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = token_string(json_get(node, names[i]));
        if (text) {
            TRY(put_named(tok, names[i], text, err));
        }
    }
    const struct json *more = json_get(node, "additional_special_tokens");
    for (const struct json *child = json_first(more); child; child = json_next(child)) {
        const char *text = token_string(child);
        if (text) {
            TRY(name_is_special(tok, text, err));
        }
    }
    return OK;
}

enum status beside_load(struct tokenizer *tok, const struct json *config, const struct json *map,
                        struct err *err)
{
    TRY(read_added_decoder(json_get(config, "added_tokens_decoder"), tok, err));
    TRY(read_named(map, tok, err));
    return read_named(config, tok, err);
}

/* add_bos_token and add_eos_token override the post-processor. */
void beside_override_ends(struct tokenizer *tok, const struct json *config)
{
    const struct json *bos = json_get(config, "add_bos_token");
    const struct json *eos = json_get(config, "add_eos_token");
    int32_t bos_id = tokenizer_bos(tok), eos_id = tokenizer_eos(tok);
    if (json_is(bos, JSON_BOOL) && bos_id >= 0) {
        bool has = tok->n_prefix > 0 && tok->prefix[0] == bos_id;
        if (has && !json_bool(bos, false)) {
            tok->n_prefix--;
            memmove(tok->prefix, tok->prefix + 1, tok->n_prefix * sizeof tok->prefix[0]);
        } else if (!has && json_bool(bos, false) && tok->n_prefix < 16) {
            memmove(tok->prefix + 1, tok->prefix, tok->n_prefix * sizeof tok->prefix[0]);
            tok->prefix[0] = bos_id;
            tok->n_prefix++;
        }
    }
    if (json_is(eos, JSON_BOOL) && eos_id >= 0) {
        bool has = tok->n_suffix > 0 && tok->suffix[tok->n_suffix - 1] == eos_id;
        if (has && !json_bool(eos, false)) {
            tok->n_suffix--;
        } else if (!has && json_bool(eos, false) && tok->n_suffix < 16) {
            tok->suffix[tok->n_suffix++] = eos_id;
        }
    }
}

/* ---- post-processor ---- */

static enum status put_end(int32_t *ids, size_t *n, int64_t id, struct err *err)
{
    if (id < 0 || id > MAX_TOKEN_ID || *n == 16) {
        return err_set(err, ERR_UNSUPPORTED, "more than 16 tokens around a text, or an invalid id");
    }
    ids[(*n)++] = (int32_t)id;
    return OK;
}

/* The ids of a template's token. */
static enum status put_special(const struct json *specials, const char *name, int32_t *ids,
                               size_t *n, struct err *err)
{
    const struct json *list = json_get(name ? json_get(specials, name) : NULL, "ids");
    if (!list) {
        return err_set(err, ERR_FORMAT, "the template's token \"%s\" has no ids", or_empty(name));
    }
    for (const struct json *id = json_first(list); id; id = json_next(id)) {
        int64_t v = -1;
        json_int64(id, &v);
        TRY(put_end(ids, n, v, err));
    }
    return OK;
}

/* Supports only templates of the form tokens, text, tokens, which amount to a prefix and a suffix
 * of ids. */
static enum status read_single(const struct json *node, struct tokenizer *tok, struct err *err)
{
    bool seen = false;
    for (const struct json *p = json_first(json_get(node, "single")); p; p = json_next(p)) {
        const struct json *special = json_get(p, "SpecialToken");
        if (special) {
            TRY(put_special(json_get(node, "special_tokens"), json_get_string(special, "id"),
                            seen ? tok->suffix : tok->prefix,
                            seen ? &tok->n_suffix : &tok->n_prefix, err));
            continue;
        }
        if (!json_get(p, "Sequence") || seen) {
            return err_set(err, ERR_UNSUPPORTED, "a template that is not tokens, text, tokens");
        }
        seen = true;
    }
    return seen ? OK : err_set(err, ERR_UNSUPPORTED, "a template without the text");
}

/* The template of pairs: both texts in order, with types that do not fall. Few models read pairs,
 * so that another form matters only to them. */
static enum status read_pair(const struct json *node, struct pair_ends *pair, struct err *err)
{
    static const char *const texts[] = {"A", "B"};
    size_t part = 0;
    pair->type_at = -1;
    for (const struct json *p = json_first(json_get(node, "pair")); p; p = json_next(p)) {
        const struct json *special = json_get(p, "SpecialToken"), *text = json_get(p, "Sequence");
        const int64_t type = json_get_int(special ? special : text, "type_id", 0);
        if (type == 1 && pair->type_at < 0 && part > 0) {
            pair->type_at = part == 1 ? (int32_t)pair->n[1] : INT32_MAX;
        }
        pair->unsupported |= type != (pair->type_at >= 0) || pair->type_at == INT32_MAX;
        if (special) {
            TRY(put_special(json_get(node, "special_tokens"), json_get_string(special, "id"),
                            pair->ids[part], &pair->n[part], err));
        } else if (part < 2 && strcmp(or_empty(json_get_string(text, "id")), texts[part]) == 0) {
            part++;
        } else {
            pair->unsupported = true;
        }
    }
    pair->unsupported |= part != 2;
    return OK;
}

static enum status read_template(const struct json *node, struct tokenizer *tok, struct err *err)
{
    tok->pair = (struct pair_ends){0};
    TRY(read_single(node, tok, err));
    return read_pair(node, &tok->pair, err);
}

/* BERT puts one token between the texts and tells them apart, RoBERTa puts two and does not. */
static enum status make_pair(const struct tokenizer *tok, bool typed, struct pair_ends *pair,
                             struct err *err)
{
    *pair = (struct pair_ends){.type_at = typed ? 1 : -1};
    TRY(put_end(pair->ids[0], &pair->n[0], tok->prefix[0], err));
    for (int i = typed; i < 2; i++) {
        TRY(put_end(pair->ids[1], &pair->n[1], tok->suffix[0], err));
    }
    return put_end(pair->ids[2], &pair->n[2], tok->suffix[0], err);
}

/* ["[SEP]", 102] */
static int64_t pair_id(const struct json *pair)
{
    const struct json *second = NULL;
    if (json_first(pair)) {
        second = json_next(json_first(pair));
    }
    int64_t id = -1;
    json_int64(second, &id);
    return id;
}

/* Only processors that add tokens around the text have an effect here. Unknown ones are errors. */
enum status post_load(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const char *type = json_get_string(node, "type");
    if (!type) {
        type = "";
    }
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = json_get(node, "processors");
        for (const struct json *child = json_first(list); child; child = json_next(child)) {
            TRY(post_load(child, tok, err)); // the JSON reader bounds the depth
        }
        return OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return OK; // this processor affects offsets only
    }
    if (tok->n_prefix + tok->n_suffix > 0) {
        return err_set(err, ERR_UNSUPPORTED, "two post-processors that add tokens");
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(node, tok, err);
    }
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        TRY(put_end(tok->prefix, &tok->n_prefix, pair_id(json_get(node, "cls")), err));
        TRY(put_end(tok->suffix, &tok->n_suffix, pair_id(json_get(node, "sep")), err));
        return make_pair(tok, type[0] == 'B', &tok->pair, err);
    }
    return err_set(err, ERR_UNSUPPORTED, "the post-processor \"%s\" is not supported", type);
}
