// SPDX-License-Identifier: Apache-2.0
/* Loads tokenizer.json. The vocabulary and the merges (load_vocab.c, merges.c) are parsed token by
 * token; the small sections become trees. */
#include "engine/tokenizer/load.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool take_section(struct loader *l, struct section *s)
{
    size_t start = l->scan.at;
    if (!json_scan_skip(&l->scan)) {
        return false;
    }
    *s = (struct section){l->scan.s + start, l->scan.at - start};
    return true;
}

/* Parses the JSON text of one section into a tree. */
static enum status parse_section(const char *s, size_t n, struct json **root, struct err *err)
{
    struct json_limits limits = {.max_depth = 64, .max_values = 20u << 20};
    return json_parse(s, n, &limits, root, err);
}

/* ---- the model's other fields ---- */

static char *string_or_empty(struct loader *l, enum json_token t)
{
    size_t n = 0;
    const char *s = t == JSON_TOKEN_STRING ? loader_text(&l->scan, &l->a, &n) : "";
    return xstrndup(s, n);
}

/* One member of the model that is neither the vocabulary nor the merges. Unknown members are
 * skipped. */
static enum status read_scalar(struct loader *l)
{
    struct json_scan key = l->scan;
    enum json_token t = json_scan_next(&l->scan);
    struct bpe *bpe = &l->tok->bpe;
    if (t == JSON_TOKEN_OBJECT || t == JSON_TOKEN_ARRAY) {
        if (!json_scan_skip(&l->scan)) {
            return loader_error(l, "the model is malformed");
        }
        return OK;
    }
    if (t == JSON_TOKEN_ERROR) {
        return loader_error(l, "the model is malformed");
    }
    if (json_scan_is(&key, "type")) {
        size_t n = t == JSON_TOKEN_STRING ? l->scan.text_bytes : 0;
        snprintf(l->type, sizeof l->type, "%.*s", n < sizeof l->type ? (int)n : 0, l->scan.text);
    } else if (json_scan_is(&key, "unk_token")) {
        free(l->unk_token);
        if (t == JSON_TOKEN_STRING) {
            l->unk_token = string_or_empty(l, t);
        } else {
            l->unk_token = NULL;
        }
    } else if (json_scan_is(&key, "continuing_subword_prefix")) {
        free(bpe->prefix);
        bpe->prefix = string_or_empty(l, t);
    } else if (json_scan_is(&key, "end_of_word_suffix")) {
        free(bpe->suffix);
        bpe->suffix = string_or_empty(l, t);
    } else if (json_scan_is(&key, "dropout")) {
        if (t == JSON_TOKEN_NUMBER) {
            l->dropout = json_scan_double(&l->scan);
        } else {
            l->dropout = 0;
        }
    } else if (json_scan_is(&key, "fuse_unk")) {
        bpe->fuse_unk = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "byte_fallback")) {
        bpe->byte_fallback = l->tok->unigram.byte_fallback = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "ignore_merges")) {
        bpe->ignore_merges = t == JSON_TOKEN_TRUE;
    } else if (json_scan_is(&key, "unk_id")) {
        if (t == JSON_TOKEN_NUMBER && !json_scan_int64(&l->scan, &l->unk_id)) {
            return loader_error(l, "unk_id is not an integer");
        }
    } else if (json_scan_is(&key, "max_input_chars_per_word")) {
        if (t != JSON_TOKEN_NUMBER || !json_scan_int64(&l->scan, &l->max_chars)) {
            return loader_error(l, "max_input_chars_per_word is not an integer");
        }
    }
    return OK;
}

/* True for SentencePiece's BPE, whose merges follow from the scores of its pieces. */
static bool has_scores(const struct loader *l)
{
    return strcmp(l->type, "BPE") == 0 && l->vocab_is_list && !l->has_merges;
}

/* A field that changes the meaning of merges may come after them, so merges that are not last are
 * read only at the end. If merges are last, which is usual, this costs nothing. */
static enum status read_model(struct loader *l)
{
    enum json_token t = json_scan_next(&l->scan);
    if (t != JSON_TOKEN_OBJECT) {
        return loader_error(l, "the model is not an object");
    }
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        if (json_scan_is(&l->scan, "vocab")) {
            TRY(load_vocab(l));
        } else if (json_scan_is(&l->scan, "merges")) {
            l->has_merges = true;
            l->merges_wait = !l->has_vocab;
            l->merges = l->scan;
            if (!l->merges_wait) {
                TRY(load_merges(l));
            } else if (!json_scan_skip(&l->scan)) {
                return loader_error(l, "the merges are malformed");
            }
        } else {
            TRY(read_scalar(l));
        }
    }
    if (t != JSON_TOKEN_OBJECT_END || !l->has_vocab) {
        return loader_error(l, "the model has no vocabulary or is cut short");
    }
    if (l->merges_wait) {
        struct json_scan after = l->scan;
        l->scan = l->merges;
        TRY(load_merges(l));
        l->scan = after;
    }
    if (has_scores(l)) {
        return merges_of_scores(l->tok, l->tok->unigram.score, l->err);
    }
    return OK;
}

/* Sections may come in any order, so they are only located here. The model, however, is read at
 * once, because it is most of the file. */
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
        return loader_error(l, "not a JSON object");
    }
    enum json_token t;
    bool has_model = false;
    while ((t = json_scan_next(&l->scan)) == JSON_TOKEN_KEY) {
        if (json_scan_is(&l->scan, "model")) {
            if (has_model) {
                return loader_error(l, "two models");
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
            return loader_error(l, "a section is malformed");
        }
    }
    if (t != JSON_TOKEN_OBJECT_END || json_scan_next(&l->scan) != JSON_TOKEN_END) {
        return loader_error(l, "the file is malformed");
    }
    if (!has_model) {
        return err_set(l->err, ERR_FORMAT, "there is no model");
    }
    return OK;
}

/* ---- putting it together ---- */

/* Files from before the member "type" was introduced are recognised by their members. */
static enum status model_kind(struct loader *l)
{
    static const char *const names[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    if (l->type[0] == '\0') { // old files: recognised by their members
        if (l->has_merges) {
            strcpy(l->type, "BPE");
        } else {
            strcpy(l->type, l->vocab_is_list ? "Unigram" : "WordPiece");
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(l->type, names[i]) == 0) {
            l->tok->model = (enum model_kind)i;
            bool is_list = l->tok->model == MODEL_UNIGRAM || has_scores(l);
            if (is_list != l->vocab_is_list || (i == MODEL_BPE && !l->has_merges && !is_list)) {
                return err_set(l->err, ERR_FORMAT, "the vocabulary does not fit the model %s",
                               l->type);
            }
            return OK;
        }
    }
    return err_set(l->err, ERR_UNSUPPORTED, "the model \"%s\" is not supported", l->type);
}

/* The unknown token's score is the lowest score less the library's penalty. */
static enum status finish_unigram(struct loader *l)
{
    struct unigram *u = &l->tok->unigram;
    double least = 0;
    for (int32_t i = 0; i < l->tok->texts.n_ids; i++) {
        if (i == 0 || u->score[i] < least) {
            least = u->score[i];
        }
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

/* Called after all members are read, because they may come in any order. */
static enum status finish_model(struct loader *l)
{
    struct tokenizer *tok = l->tok;
    if (!tok->bpe.prefix) {
        tok->bpe.prefix = xstrdup("");
    }
    if (!tok->bpe.suffix) {
        tok->bpe.suffix = xstrdup("");
    }
    int32_t unk = -1;
    if (l->unk_token) {
        unk = string_table_find(&tok->by_text, l->unk_token, strlen(l->unk_token));
        if (unk < 0) {
            unk = UNK_MISSING;
        }
    }
    tok->bpe.unk = tok->wordpiece.unk = unk;
    tok->wordpiece.prefix = tok->bpe.prefix;
    if (l->max_chars > 0) {
        tok->wordpiece.max_chars = (size_t)l->max_chars;
    } else {
        tok->wordpiece.max_chars = 100;
    }
    if (tok->model == MODEL_BPE && l->dropout != 0) {
        return err_set(l->err, ERR_UNSUPPORTED, "a BPE model with dropout gives random ids");
    }
    TRY(bpe_load(tok));
    if (tok->model == MODEL_UNIGRAM) {
        return finish_unigram(l);
    }
    return OK;
}

typedef enum status section_reader(const struct json *node, struct tokenizer *tok, struct err *err);

/* The small sections are parsed after the vocabulary, because they refer to its ids. */
static enum status read_section(struct loader *l, const struct section *s, const char *name,
                                section_reader *read)
{
    struct json *root;
    if (!s->text) {
        return OK;
    }
    enum status st = parse_section(s->text, s->n_bytes, &root, l->err);
    if (st == OK) {
        if (json_is(root, JSON_NULL)) {
            st = OK;
        } else {
            st = read(root, l->tok, l->err);
        }
        json_free(root);
    }
    if (st != OK) {
        return err_prefix(l->err, st, "%s", name);
    }
    return OK;
}

/* A byte mapping in the last stage is skipped, because the model works on bytes. If later stages
 * see the symbols, they treat them as ordinary characters. */
static void settle_byte_level(struct tokenizer *tok)
{
    tok->byte_level = tok->model == MODEL_BPE && tok->n_stages > 0 &&
                      tok->stages[tok->n_stages - 1].kind == STAGE_BYTE_MAP;
    tok->n_stages -= tok->byte_level;
}

/* ---- after everything is read ---- */

/* Converts spellings to bytes for byte-level models. A spelling that contains another character can
 * never be looked up. */
static enum status make_keys(struct tokenizer *tok, struct err *err)
{
    struct buf bytes;
    size_t n_ids = 0;
    for (int32_t id = 0; id < tok->texts.n_ids; id++) {
        n_ids += strings_get(&tok->texts, id, NULL) != NULL;
    }
    // Of several equal spellings, by_text knows only the last one.
    bool unique = n_ids == tok->by_text.n;
    buf_init(&bytes, 1 << 24);
    bool good = string_table_init(&tok->by_key, &tok->keys, (size_t)tok->n_model);
    for (int32_t id = 0; good && id < tok->texts.n_ids; id++) {
        size_t n;
        const char *s = strings_get(&tok->texts, id, &n);
        if (s && (unique || string_table_find(&tok->by_text, s, n) == id) &&
            spelled_as_bytes(s, n, &bytes)) {
            good = strings_set(&tok->keys, id, or_empty(bytes.data), bytes.n_bytes) &&
                   string_table_put(&tok->by_key, id);
        }
    }
    buf_deinit(&bytes);
    if (!good) {
        return err_set(err, ERR_NOMEM, "out of memory for the vocabulary");
    }
    return OK;
}

/* Also stores the spellings of added tokens that the model's vocabulary lacks. */
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
        struct named_token *named = &tok->named[i];
        named->id = tokenizer_find(tok, named->text, strlen(named->text));
    }
    return OK;
}

/* The order matters: whether the model is byte-level follows from the pre-tokenizer and the
 * decoder, and added tokens need the model's ids. */
static enum status load_all(struct loader *l, const struct json *config, const struct json *map)
{
    struct tokenizer *tok = l->tok;
    TRY(read_top(l));
    TRY(model_kind(l));
    TRY(read_section(l, &l->normalizer, "normalizer", normalizer_load));
    TRY(read_section(l, &l->pre_tokenizer, "pre_tokenizer", stages_load));
    settle_byte_level(tok);
    TRY(read_section(l, &l->decoder, "decoder", decoders_load));
    TRY(finish_model(l));
    if (tok->byte_level) {
        TRY(make_keys(tok, l->err));
    }
    TRY(read_section(l, &l->added_tokens, "added_tokens", added_load));
    TRY(read_section(l, &l->post_processor, "post_processor", post_load));
    TRY(beside_load(tok, config, map, l->err));
    TRY(place_added(tok, l->err));
    if (tok->model == MODEL_BPE) {
        TRY(bpe_finish(tok, l->err));
    }
    beside_override_ends(tok, config);
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
    json_scan_init(&l.scan, files->json, files->json_bytes, 128);
    enum status st = OK;
    if (files->config) {
        st = parse_section(files->config, files->config_bytes, &config, err);
        if (st == OK) {
            st = OK;
        } else {
            st = err_prefix(err, st, "tokenizer_config.json");
        }
    }
    if (st == OK && files->map) {
        st = parse_section(files->map, files->map_bytes, &map, err);
        if (st == OK) {
            st = OK;
        } else {
            st = err_prefix(err, st, "special_tokens_map.json");
        }
    }
    if (st == OK) {
        st = load_all(&l, config, map);
        if (st != OK) {
            st = err_prefix(err, st, "tokenizer.json");
        }
    }
    json_free(config);
    json_free(map);
    buf_deinit(&l.a);
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
    if (file_is_absent(path)) {
        return OK;
    }
    return file_read(path, 64 << 20, data, n, err);
}

static bool ends_in_json(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

/* Loads a tokenizer from the metadata of a GGUF file. */
static enum status load_gguf(const char *path, struct tokenizer **out, struct err *err)
{
    char *json, *config = NULL;
    struct tokenizer_files files = {0};
    TRY(folder_read(path, "tokenizer.json", MAX_FILE_BYTES, &json, &files.json_bytes, err));
    enum status st = folder_read(path, "tokenizer_config.json", MAX_FILE_BYTES, &config,
                                 &files.config_bytes, err);
    files.json = json;
    files.config = config;
    if (st == OK) {
        st = tokenizer_load_memory(&files, out, err);
        if (st != OK) {
            st = err_prefix(err, st, "%.200s", path);
        }
    }
    free(json);
    free(config);
    return st;
}

/* Loads a tokenizer from the two files that are in place of tokenizer.json. */
static enum status load_pair(const char *dir, struct tokenizer **out, struct err *err)
{
    struct buf json, map;
    char *config = NULL;
    struct tokenizer_files files = {0};
    buf_init(&json, MAX_FILE_BYTES);
    buf_init(&map, 1 << 24);
    enum status st = pair_make(dir, &json, &map, err);
    if (st == OK) {
        st = read_beside(dir, "tokenizer_config.json", &config, &files.config_bytes, err);
    }
    if (st == OK) {
        files.json = json.data;
        files.json_bytes = json.n_bytes;
        files.map = map.data;
        files.map_bytes = map.n_bytes;
        files.config = config;
        st = tokenizer_load_memory(&files, out, err);
        if (st != OK) {
            st = err_prefix(err, st, "%s: vocab.json and merges.txt", dir);
        }
    }
    free(config);
    buf_deinit(&json);
    buf_deinit(&map);
    return st;
}

enum status tokenizer_load(const char *dir_or_file, struct tokenizer **out, struct err *err)
{
    bool is_gguf;
    TRY(folder_is_file(dir_or_file, &is_gguf, err));
    if (is_gguf) {
        return load_gguf(dir_or_file, out, err);
    }
    char path[4096];
    bool is_file = ends_in_json(dir_or_file);
    if (strlen(dir_or_file) > 4000) {
        return err_set(err, ERR_INVALID, "the path is too long");
    }
    if (!is_file && !folder_has(dir_or_file, "tokenizer.json") && tokenizer_is_in(dir_or_file)) {
        return load_pair(dir_or_file, out, err);
    }
    snprintf(path, sizeof path, is_file ? "%s" : "%s/tokenizer.json", dir_or_file);
    struct file_map map;
    TRY(file_map_open(path, &map, err));
    char *config = NULL, *specials = NULL;
    struct tokenizer_files files = {.json = (const char *)map.data, .json_bytes = map.n_bytes};
    enum status st = map.n_bytes > MAX_FILE_BYTES ? err_set(err, ERR_LIMIT, "%s: larger than %d MB",
                                                            path, MAX_FILE_BYTES >> 20)
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
        if (st != OK) {
            st = err_prefix(err, st, "%s", dir_or_file);
        }
    }
    file_unmap(&map);
    free(config);
    free(specials);
    return st;
}
