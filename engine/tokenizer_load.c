/* tokenizer.json and the two files beside it. The vocabulary and the merges, which are nearly all of
 * the file, are read token by token; the small sections become trees. */
#include "engine/tokenizer_impl.h"

#include "engine/base/file.h"
#include "engine/base/json_scan.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct section {
    const char *text; // NULL: absent
    size_t n_bytes;
};

struct loader {
    struct tokenizer *tok;
    struct err *err;
    struct json_scan scan;
    struct buf a, b; // unescaped strings
    struct section added_tokens, normalizer, pre_tokenizer, post_processor, decoder;
    struct json_scan merges; // where they begin, if the vocabulary comes later
    bool has_merges, merges_wait, has_vocab, vocab_is_list;
    char type[32];
    char *unk_token;
    double dropout;
    int64_t unk_id, max_chars;
};

static enum status broken(struct loader *l, const char *what)
{
    if (l->scan.why) {
        return json_scan_error(&l->scan, l->err);
    }
    return err_set(l->err, ERR_FORMAT, "%s (near byte %zu)", what, l->scan.at);
}

/* The last key or string: in place if it can be, else unescaped into b. */
static const char *text_of(const struct json_scan *sc, struct buf *b, size_t *n)
{
    if (!sc->escaped) {
        *n = sc->text_bytes;
        return sc->text;
    }
    buf_clear(b);
    json_scan_unescape(sc, b);
    *n = b->n_bytes;
    return b->data ? b->data : "";
}

static bool take_section(struct loader *l, struct section *s)
{
    size_t start = l->scan.at;
    if (!json_scan_skip(&l->scan)) {
        return false;
    }
    *s = (struct section){l->scan.s + start, l->scan.at - start};
    return true;
}

enum status section_parse(const char *s, size_t n, struct json **root, struct err *err)
{
    struct json_limits limits = {.max_depth = 64, .max_values = 20u << 20};
    return json_parse(s, n, &limits, root, err);
}

/* ---- the model's vocabulary and merges ---- */

static enum status put_entry(struct loader *l, const char *text, size_t n, int64_t id)
{
    struct tokenizer *tok = l->tok;
    if (id < 0 || id > MAX_TOKEN_ID) {
        return err_set(l->err, ERR_LIMIT, "a token id below 0 or above %d", MAX_TOKEN_ID);
    }
    if (strings_get(&tok->texts, (int32_t)id, NULL)) {
        return err_set(l->err, ERR_UNSUPPORTED, "two tokens have the id %d", (int)id);
    }
    if (!strings_set(&tok->texts, (int32_t)id, text, n) ||
        !string_table_put(&tok->by_text, (int32_t)id)) {
        return err_set(l->err, ERR_NOMEM, "out of memory for the vocabulary");
    }
    return OK;
}

static enum status read_vocab_object(struct loader *l)
{
    enum json_token t;
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        size_t n;
        const char *text = text_of(&l->scan, &l->a, &n);
        int64_t id;
        if (json_scan_next(&l->scan) != JSON_TOKEN_NUMBER || !json_scan_int64(&l->scan, &id)) {
            return broken(l, "a token's id is not an integer");
        }
        TRY(put_entry(l, text, n, id));
    }
    return t == JSON_TOKEN_OBJECT_END ? OK : broken(l, "the vocabulary is broken");
}

/* Unigram: [["piece", log probability], ...]. */
static enum status read_vocab_list(struct loader *l)
{
    struct unigram *u = &l->tok->unigram;
    size_t cap = 0, n_pieces = 0;
    enum json_token t;
    if (!trie_init(&u->trie)) {
        return err_set(l->err, ERR_NOMEM, "out of memory");
    }
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_ARRAY) {
        if (json_scan_next(&l->scan) != JSON_TOKEN_STRING) {
            return broken(l, "a piece of the vocabulary is not a string");
        }
        size_t n;
        const char *text = text_of(&l->scan, &l->a, &n);
        TRY(put_entry(l, text, n, (int64_t)n_pieces));
        if (!trie_put(&u->trie, text, n, (int32_t)n_pieces)) {
            return err_set(l->err, ERR_LIMIT, "the vocabulary is too large");
        }
        if (json_scan_next(&l->scan) != JSON_TOKEN_NUMBER) {
            return broken(l, "a piece's score is not a number");
        }
        if (n_pieces == cap) {
            cap = cap ? 2 * cap : 1024;
            u->score = xrealloc(u->score, cap * sizeof *u->score);
        }
        u->score[n_pieces++] = json_scan_double(&l->scan);
        if (json_scan_next(&l->scan) != JSON_TOKEN_ARRAY_END) {
            return broken(l, "a piece has more than a text and a score");
        }
    }
    l->vocab_is_list = true;
    return t == JSON_TOKEN_ARRAY_END ? OK : broken(l, "the vocabulary is broken");
}

static enum status read_vocab(struct loader *l)
{
    if (l->has_vocab) {
        return broken(l, "two vocabularies");
    }
    l->has_vocab = true;
    // Real files have 70 to 130 bytes per entry, merges included; the table grows if need be.
    if (!string_table_init(&l->tok->by_text, &l->tok->texts, l->scan.n_bytes / 96)) {
        return err_set(l->err, ERR_NOMEM, "out of memory");
    }
    enum json_token t = json_scan_next(&l->scan);
    if (t == JSON_TOKEN_OBJECT) {
        TRY(read_vocab_object(l));
    } else if (t == JSON_TOKEN_ARRAY) {
        TRY(read_vocab_list(l));
    } else {
        return broken(l, "the vocabulary is neither an object nor a list");
    }
    l->tok->n_model = (int32_t)l->tok->by_text.n;
    if (l->vocab_is_list) {
        l->tok->n_model = l->tok->texts.n_ids;
    }
    return OK;
}

static enum status put_merge(struct loader *l, uint32_t rank, const char *a, size_t n_a,
                             const char *b, size_t n_b)
{
    struct tokenizer *tok = l->tok;
    int32_t left = string_table_find(&tok->by_text, a, n_a);
    int32_t right = string_table_find(&tok->by_text, b, n_b);
    const char *prefix = tok->bpe.prefix ? tok->bpe.prefix : "";
    size_t skip = strlen(prefix);
    char joined[1024];
    if (left < 0 || right < 0 || n_b < skip || n_a + n_b - skip > sizeof joined) {
        return err_set(l->err, ERR_FORMAT, "merge %u has a part that the vocabulary lacks", rank);
    }
    memcpy(joined, a, n_a);
    memcpy(joined + n_a, b + skip, n_b - skip);
    int32_t id = string_table_find(&tok->by_text, joined, n_a + n_b - skip);
    if (id < 0) {
        return err_set(l->err, ERR_FORMAT, "merge %u makes a token that the vocabulary lacks", rank);
    }
    return merge_table_put(&tok->bpe.merges.table, left, right, rank, id)
               ? OK
               : err_set(l->err, ERR_NOMEM, "out of memory for the merges");
}

/* "left right" */
static enum status read_merge_string(struct loader *l, uint32_t *rank)
{
    size_t n;
    const char *s = text_of(&l->scan, &l->a, &n);
    if (n >= 8 && memcmp(s, "#version", 8) == 0) {
        return OK;
    }
    const char *space = memchr(s, ' ', n);
    size_t n_a = space ? (size_t)(space - s) : n;
    if (!space || memchr(space + 1, ' ', n - n_a - 1)) {
        return err_set(l->err, ERR_FORMAT, "merge %u is not two parts", *rank);
    }
    return put_merge(l, (*rank)++, s, n_a, space + 1, n - n_a - 1);
}

/* ["left", "right"] */
static enum status read_merge_pair(struct loader *l, uint32_t *rank)
{
    size_t n_a, n_b;
    if (json_scan_next(&l->scan) != JSON_TOKEN_STRING) {
        return broken(l, "a merge is not two strings");
    }
    const char *a = text_of(&l->scan, &l->a, &n_a);
    if (json_scan_next(&l->scan) != JSON_TOKEN_STRING) {
        return broken(l, "a merge is not two strings");
    }
    const char *b = text_of(&l->scan, &l->b, &n_b);
    if (json_scan_next(&l->scan) != JSON_TOKEN_ARRAY_END) {
        return broken(l, "a merge is not two strings");
    }
    return put_merge(l, (*rank)++, a, n_a, b, n_b);
}

static enum status read_merges(struct loader *l)
{
    uint32_t rank = 0;
    enum json_token t = json_scan_next(&l->scan);
    if (t != JSON_TOKEN_ARRAY) {
        return broken(l, "merges are not a list");
    }
    if (!merge_table_init(&l->tok->bpe.merges.table, (size_t)l->tok->n_model)) {
        return err_set(l->err, ERR_NOMEM, "out of memory for the merges");
    }
    for (;;) {
        t = json_scan_next(&l->scan);
        if (t == JSON_TOKEN_ARRAY_END) {
            return OK;
        }
        if (t == JSON_TOKEN_STRING) {
            TRY(read_merge_string(l, &rank));
        } else if (t == JSON_TOKEN_ARRAY) {
            TRY(read_merge_pair(l, &rank));
        } else {
            return broken(l, "a merge is neither a string nor a pair");
        }
    }
}

/* ---- the model's other fields ---- */

static char *string_or_empty(struct loader *l, enum json_token t)
{
    size_t n = 0;
    const char *s = t == JSON_TOKEN_STRING ? text_of(&l->scan, &l->a, &n) : "";
    return xstrndup(s, n);
}

static enum status read_scalar(struct loader *l)
{
    struct json_scan key = l->scan;
    enum json_token t = json_scan_next(&l->scan);
    struct bpe *bpe = &l->tok->bpe;
    if (t == JSON_TOKEN_OBJECT || t == JSON_TOKEN_ARRAY) {
        return json_scan_skip(&l->scan) ? OK : broken(l, "the model is broken");
    }
    if (t == JSON_TOKEN_ERROR) {
        return broken(l, "the model is broken");
    }
    if (json_scan_is(&key, "type")) {
        size_t n = t == JSON_TOKEN_STRING ? l->scan.text_bytes : 0;
        snprintf(l->type, sizeof l->type, "%.*s", n < sizeof l->type ? (int)n : 0, l->scan.text);
    } else if (json_scan_is(&key, "unk_token")) {
        free(l->unk_token);
        l->unk_token = t == JSON_TOKEN_STRING ? string_or_empty(l, t) : NULL;
    } else if (json_scan_is(&key, "continuing_subword_prefix")) {
        free(bpe->prefix);
        bpe->prefix = string_or_empty(l, t);
    } else if (json_scan_is(&key, "end_of_word_suffix")) {
        free(bpe->suffix);
        bpe->suffix = string_or_empty(l, t);
    } else if (json_scan_is(&key, "dropout")) {
        l->dropout = t == JSON_TOKEN_NUMBER ? json_scan_double(&l->scan) : 0;
    } else if (json_scan_is(&key, "fuse_unk")) {
        bpe->fuse_unk = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "byte_fallback")) {
        bpe->byte_fallback = l->tok->unigram.byte_fallback = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "ignore_merges")) {
        bpe->ignore_merges = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "unk_id")) {
        if (t == JSON_TOKEN_NUMBER && !json_scan_int64(&l->scan, &l->unk_id)) {
            return broken(l, "unk_id is not an integer");
        }
    } else if (json_scan_is(&key, "max_input_chars_per_word")) {
        if (t != JSON_TOKEN_NUMBER || !json_scan_int64(&l->scan, &l->max_chars)) {
            return broken(l, "max_input_chars_per_word is not an integer");
        }
    }
    return OK;
}

/* A field that changes what the merges mean may come after them, so merges that come before the end
 * are remembered and read last. The usual order (merges last) costs nothing. */
static enum status read_model(struct loader *l)
{
    enum json_token t = json_scan_next(&l->scan);
    if (t != JSON_TOKEN_OBJECT) {
        return broken(l, "the model is not an object");
    }
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        if (json_scan_is(&l->scan, "vocab")) {
            TRY(read_vocab(l));
        } else if (json_scan_is(&l->scan, "merges")) {
            l->has_merges = true;
            l->merges_wait = !l->has_vocab;
            l->merges = l->scan;
            if (!l->merges_wait) {
                TRY(read_merges(l));
            } else if (!json_scan_skip(&l->scan)) {
                return broken(l, "the merges are broken");
            }
        } else {
            TRY(read_scalar(l));
        }
    }
    if (t != JSON_TOKEN_OBJECT_END || !l->has_vocab) {
        return broken(l, "the model has no vocabulary or does not end");
    }
    if (l->merges_wait) {
        struct json_scan after = l->scan;
        l->scan = l->merges;
        TRY(read_merges(l));
        l->scan = after;
    }
    return OK;
}

static enum status read_top(struct loader *l)
{
    static const struct {
        const char *key;
        size_t offset;
    } sections[] = {
        {"added_tokens", offsetof(struct loader, added_tokens)},
        {"normalizer", offsetof(struct loader, normalizer)},
        {"pre_tokenizer", offsetof(struct loader, pre_tokenizer)},
        {"post_processor", offsetof(struct loader, post_processor)},
        {"decoder", offsetof(struct loader, decoder)},
    };
    if (json_scan_next(&l->scan) != JSON_TOKEN_OBJECT) {
        return broken(l, "not a JSON object");
    }
    enum json_token t;
    bool has_model = false;
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        if (json_scan_is(&l->scan, "model")) {
            if (has_model) {
                return broken(l, "two models");
            }
            has_model = true;
            TRY(read_model(l));
            continue;
        }
        struct section ignored, *where = &ignored;
        for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
            if (json_scan_is(&l->scan, sections[i].key)) {
                where = (struct section *)((char *)l + sections[i].offset);
            }
        }
        if (!take_section(l, where)) {
            return broken(l, "a section is broken");
        }
    }
    if (t != JSON_TOKEN_OBJECT_END || json_scan_next(&l->scan) != JSON_TOKEN_END) {
        return broken(l, "the file is broken");
    }
    return has_model ? OK : err_set(l->err, ERR_FORMAT, "there is no model");
}

/* ---- putting it together ---- */

static enum status model_kind(struct loader *l)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    if (l->type[0] == '\0') { // old files: known by their shape
        strcpy(l->type, l->has_merges ? "BPE" : l->vocab_is_list ? "Unigram" : "WordPiece");
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(l->type, names[i]) == 0) {
            l->tok->model = (enum model_kind)i;
            bool is_list = l->tok->model == MODEL_UNIGRAM;
            if (is_list != l->vocab_is_list || (i == MODEL_BPE && !l->has_merges)) {
                return err_set(l->err, ERR_FORMAT, "the vocabulary does not fit the model %s",
                               l->type);
            }
            return OK;
        }
    }
    return err_set(l->err, ERR_UNSUPPORTED, "the model \"%s\" is not supported", l->type);
}

static enum status finish_unigram(struct loader *l)
{
    struct unigram *u = &l->tok->unigram;
    double least = 0;
    for (int32_t i = 0; i < l->tok->texts.n_ids; i++) {
        least = i == 0 || u->score[i] < least ? u->score[i] : least;
    }
    u->unk_score = least - 10; // the library's penalty
    if (l->unk_id >= l->tok->texts.n_ids || l->unk_id < -1) {
        return err_set(l->err, ERR_FORMAT, "unk_id is not in the vocabulary");
    }
    u->unk = (int32_t)l->unk_id;
    for (int b = 0; b < 256; b++) {
        u->byte_token[b] = l->tok->bpe.byte_token[b];
    }
    return OK;
}

static enum status finish_model(struct loader *l)
{
    struct tokenizer *tok = l->tok;
    tok->bpe.prefix = tok->bpe.prefix ? tok->bpe.prefix : xstrdup("");
    tok->bpe.suffix = tok->bpe.suffix ? tok->bpe.suffix : xstrdup("");
    int32_t unk = -1;
    if (l->unk_token) {
        unk = string_table_find(&tok->by_text, l->unk_token, strlen(l->unk_token));
        unk = unk < 0 ? UNK_MISSING : unk;
    }
    tok->bpe.unk = tok->wordpiece.unk = unk;
    tok->wordpiece.prefix = tok->bpe.prefix;
    tok->wordpiece.max_chars = l->max_chars > 0 ? (size_t)l->max_chars : 100;
    if (tok->model == MODEL_BPE && l->dropout != 0) {
        return err_set(l->err, ERR_UNSUPPORTED, "a BPE model with dropout gives random ids");
    }
    TRY(bpe_load(tok));
    return tok->model == MODEL_UNIGRAM ? finish_unigram(l) : OK;
}

typedef enum status section_reader(const struct json *node, struct tokenizer *tok, struct err *err);

static enum status read_section(struct loader *l, const struct section *s, const char *name,
                                section_reader *read)
{
    struct json *root;
    if (!s->text) {
        return OK;
    }
    enum status st = section_parse(s->text, s->n_bytes, &root, l->err);
    if (st == OK) {
        st = json_is(root, JSON_NULL) ? OK : read(root, l->tok, l->err);
        json_free(root);
    }
    return st == OK ? OK : err_prefix(l->err, st, "%s", name);
}

/* Byte symbols at the very end are never written out: the model takes bytes. Where a later step
 * sees them, they are characters like any other. */
static void settle_byte_level(struct tokenizer *tok)
{
    tok->byte_level = tok->model == MODEL_BPE && tok->n_stages > 0 &&
                      tok->stages[tok->n_stages - 1].kind == STAGE_BYTE_MAP;
    tok->n_stages -= tok->byte_level;
}

static struct added added_from(const struct json *node)
{
    const char *text = json_get_string(node, "content");
    bool special = json_get_bool(node, "special", false);
    return (struct added){
        .text = (char *)text, // only read
        .n_bytes = text ? strlen(text) : 0,
        .single_word = json_get_bool(node, "single_word", false),
        .lstrip = json_get_bool(node, "lstrip", false),
        .rstrip = json_get_bool(node, "rstrip", false),
        .normalized = json_get_bool(node, "normalized", !special),
        .special = special,
    };
}

static enum status read_added(const struct json *node, struct tokenizer *tok, struct err *err)
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

/* added_tokens_decoder: its flags hold over those of tokenizer.json. */
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
    return s ? s : json_get_string(node, "content");
}

/* A named token is special even where added_tokens forgot it. */
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
    const char *copy = arena_strndup(&tok->arena, text, strlen(text));
    if (at == sizeof tok->named / sizeof tok->named[0] || !copy) {
        return OK;
    }
    tok->named[at] = (struct tokenizer_named){name, copy, -1};
    tok->n_named = at == tok->n_named ? at + 1 : tok->n_named;
    return name_is_special(tok, text, err);
}

static enum status read_named(const struct json *node, struct tokenizer *tok, struct err *err)
{
    static const char *const names[] = {"bos_token", "eos_token",  "unk_token", "sep_token",
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

/* add_bos_token and add_eos_token hold over the post-processor. */
static void override_ends(struct tokenizer *tok, const struct json *config)
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
        return err_set(err, ERR_UNSUPPORTED, "more than 16 tokens around a text, or a broken id");
    }
    ids[(*n)++] = (int32_t)id;
    return OK;
}

static enum status read_template(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const struct json *specials = json_get(node, "special_tokens");
    bool seen = false;
    for (const struct json *p = json_first(json_get(node, "single")); p; p = json_next(p)) {
        const struct json *special = json_get(p, "SpecialToken");
        const char *name = json_get_string(special, "id");
        if (!special) {
            if (!json_get(p, "Sequence") || seen) {
                return err_set(err, ERR_UNSUPPORTED, "a template that is not tokens, text, tokens");
            }
            seen = true;
            continue;
        }
        const struct json *ids = json_get(name ? json_get(specials, name) : NULL, "ids");
        if (!ids) {
            return err_set(err, ERR_FORMAT, "the template's token \"%s\" has no ids",
                           name ? name : "");
        }
        for (const struct json *id = json_first(ids); id; id = json_next(id)) {
            int64_t v = -1;
            json_int64(id, &v);
            TRY(put_end(seen ? tok->suffix : tok->prefix, seen ? &tok->n_suffix : &tok->n_prefix, v,
                        err));
        }
    }
    return seen ? OK : err_set(err, ERR_UNSUPPORTED, "a template without the text");
}

/* ["[SEP]", 102] */
static int64_t pair_id(const struct json *pair)
{
    const struct json *second = json_first(pair) ? json_next(json_first(pair)) : NULL;
    int64_t id = -1;
    json_int64(second, &id);
    return id;
}

static enum status read_post(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const char *type = json_get_string(node, "type");
    type = type ? type : "";
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = json_get(node, "processors");
        for (const struct json *child = json_first(list); child; child = json_next(child)) {
            TRY(read_post(child, tok, err)); // as deep as the JSON reader allows
        }
        return OK;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return OK; // offsets only
    }
    if (tok->n_prefix + tok->n_suffix > 0) {
        return err_set(err, ERR_UNSUPPORTED, "two post-processors that add tokens");
    }
    if (strcmp(type, "TemplateProcessing") == 0) {
        return read_template(node, tok, err);
    }
    if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        TRY(put_end(tok->prefix, &tok->n_prefix, pair_id(json_get(node, "cls")), err));
        return put_end(tok->suffix, &tok->n_suffix, pair_id(json_get(node, "sep")), err);
    }
    return err_set(err, ERR_UNSUPPORTED, "the post-processor \"%s\" is not supported", type);
}

/* ---- after everything is read ---- */

/* Spelling -> bytes for byte-level models. A spelling with a character that is no byte symbol can
 * never be asked for. */
static enum status make_keys(struct tokenizer *tok, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, 1 << 24);
    bool good = string_table_init(&tok->by_key, &tok->keys, (size_t)tok->n_model);
    for (int32_t id = 0; good && id < tok->texts.n_ids; id++) {
        size_t n;
        const char *s = strings_get(&tok->texts, id, &n);
        if (s && string_table_find(&tok->by_text, s, n) == id && spelled_as_bytes(s, n, &bytes)) {
            good = strings_set(&tok->keys, id, bytes.data ? bytes.data : "", bytes.n_bytes) &&
                   string_table_put(&tok->by_key, id);
        }
    }
    buf_deinit(&bytes);
    return good ? OK : err_set(err, ERR_NOMEM, "out of memory for the vocabulary");
}

/* Added tokens that the model does not have get their spelling, too. */
static enum status place_added(struct tokenizer *tok, struct err *err)
{
    for (size_t i = 0; i < tok->n_added; i++) {
        const struct added *a = &tok->added[i];
        if (!strings_get(&tok->texts, a->id, NULL) &&
            !strings_set(&tok->texts, a->id, a->text, a->n_bytes)) {
            return err_set(err, ERR_NOMEM, "out of memory for the vocabulary");
        }
    }
    tok->added_of = xmalloc(((size_t)tok->texts.n_ids + 1) * sizeof *tok->added_of);
    memset(tok->added_of, 0xFF, ((size_t)tok->texts.n_ids + 1) * sizeof *tok->added_of);
    for (size_t i = 0; i < tok->n_added; i++) {
        tok->added_of[tok->added[i].id] = (int32_t)i;
    }
    for (size_t i = 0; i < tok->n_named; i++) {
        struct tokenizer_named *named = &tok->named[i];
        named->id = tokenizer_find(tok, named->text, strlen(named->text));
    }
    return OK;
}

static enum status read_config(struct tokenizer *tok, const struct json *config,
                               const struct json *map, struct err *err)
{
    TRY(read_added_decoder(json_get(config, "added_tokens_decoder"), tok, err));
    TRY(read_named(map, tok, err));
    return read_named(config, tok, err);
}

static enum status load_all(struct loader *l, const struct json *config, const struct json *map)
{
    struct tokenizer *tok = l->tok;
    TRY(read_top(l));
    TRY(model_kind(l));
    TRY(read_section(l, &l->normalizer, "normalizer", norm_load));
    TRY(read_section(l, &l->pre_tokenizer, "pre_tokenizer", stages_load));
    settle_byte_level(tok);
    TRY(read_section(l, &l->decoder, "decoder", decoders_load));
    TRY(finish_model(l));
    if (tok->byte_level) {
        TRY(make_keys(tok, l->err));
    }
    TRY(read_section(l, &l->added_tokens, "added_tokens", read_added));
    TRY(read_section(l, &l->post_processor, "post_processor", read_post));
    TRY(read_config(tok, config, map, l->err));
    TRY(place_added(tok, l->err));
    if (tok->model == MODEL_BPE) {
        TRY(bpe_finish(tok, l->err));
    }
    override_ends(tok, config);
    TRY(added_finish(tok, l->err));
    return decoders_make_pieces(tok, l->err);
}

enum status tokenizer_load_memory(const struct tokenizer_files *files, struct tokenizer **out,
                                  struct err *err)
{
    struct json *config = NULL, *map = NULL;
    struct loader l = {.err = err, .unk_id = -1, .max_chars = 100};
    l.tok = xcalloc(1, sizeof *l.tok);
    arena_init(&l.tok->arena, 1 << 20);
    buf_init(&l.a, 1 << 24);
    buf_init(&l.b, 1 << 24);
    json_scan_init(&l.scan, files->json, files->json_bytes, 128);
    enum status st = OK;
    if (files->config) {
        st = section_parse(files->config, files->config_bytes, &config, err);
        st = st == OK ? OK : err_prefix(err, st, "tokenizer_config.json");
    }
    if (st == OK && files->map) {
        st = section_parse(files->map, files->map_bytes, &map, err);
        st = st == OK ? OK : err_prefix(err, st, "special_tokens_map.json");
    }
    if (st == OK) {
        st = load_all(&l, config, map);
        st = st == OK ? OK : err_prefix(err, st, "tokenizer.json");
    }
    json_free(config);
    json_free(map);
    buf_deinit(&l.a);
    buf_deinit(&l.b);
    free(l.unk_token);
    if (st != OK) {
        tokenizer_free(l.tok);
        return st;
    }
    *out = l.tok;
    return OK;
}

static enum status read_beside(const char *dir, const char *name, char **data, size_t *n,
                               struct err *err)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return file_exists(path) ? file_read(path, 64 << 20, data, n, err) : OK;
}

static bool ends_in_json(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

enum status tokenizer_load(const char *dir_or_file, struct tokenizer **out, struct err *err)
{
    char path[4096];
    bool is_file = ends_in_json(dir_or_file);
    if (strlen(dir_or_file) > 4000) {
        return err_set(err, ERR_INVALID, "the path is too long");
    }
    snprintf(path, sizeof path, is_file ? "%s" : "%s/tokenizer.json", dir_or_file);
    struct file_map map;
    TRY(file_map_open(path, &map, err));
    char *config = NULL, *specials = NULL;
    struct tokenizer_files files = {.json = (const char *)map.data, .json_bytes = map.n_bytes};
    enum status st = map.n_bytes > MAX_FILE_BYTES
                         ? err_set(err, ERR_LIMIT, "%s: larger than %d MB", path,
                                   MAX_FILE_BYTES >> 20)
                         : OK;
    if (st == OK && !is_file) {
        st = read_beside(dir_or_file, "tokenizer_config.json", &config, &files.config_bytes, err);
    }
    if (st == OK && !is_file) {
        st = read_beside(dir_or_file, "special_tokens_map.json", &specials, &files.map_bytes, err);
    }
    files.config = config;
    files.map = specials;
    if (st == OK) {
        st = tokenizer_load_memory(&files, out, err);
        st = st == OK ? OK : err_prefix(err, st, "%s", dir_or_file);
    }
    file_unmap(&map);
    free(config);
    free(specials);
    return st;
}
