// SPDX-License-Identifier: Apache-2.0
/* Older folders without tokenizer.json: GPT-2's vocab.json and merges.txt, from which the text of
 * such a file is made, so that one reader serves both. Other classes have files of these names,
 * too, but read them in another way. */
#include "engine/tokenizer/load.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SMALL_BYTES = 64 << 20 };

bool tokenizer_is_in(const char *dir)
{
    return folder_has(dir, "tokenizer.json") ||
           (folder_has(dir, "vocab.json") && folder_has(dir, "merges.txt"));
}

/* A small file of the folder; *out is NULL if there is none. */
static enum status read_small(const char *dir, const char *name, struct json **out, struct err *err)
{
    *out = NULL;
    return folder_has(dir, name) ? folder_json(dir, name, MAX_SMALL_BYTES, out, err) : OK;
}

static bool is_one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* The class is that of the config, or of the model's family. */
static enum status check_class(const char *dir, const struct json *config, struct err *err)
{
    static const char *const classes[] = {"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer",
                                          "CodeGenTokenizerFast"};
    static const char *const families[] = {"gpt2", "opt", "gptj", "codegen"};
    const char *class = json_get_string(config, "tokenizer_class");
    struct json *model;
    if (class && is_one_of(class, classes, sizeof classes / sizeof classes[0])) {
        return OK;
    }
    TRY(read_small(dir, "config.json", &model, err));
    const char *family = or_empty(json_get_string(model, "model_type"));
    const bool known = is_one_of(family, families, sizeof families / sizeof families[0]);
    json_free(model);
    if (!class && known) {
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED,
                   "%s: there is no tokenizer.json, and vocab.json with merges.txt are supported "
                   "only for GPT-2's tokenizer, not for %s",
                   dir, or_text(class, "an unnamed class"));
}

static const char *text_of(const struct json *token)
{
    const char *text = json_string(token);
    return text ? text : json_get_string(token, "content");
}

static void put_text(struct buf *b, const char *text)
{
    buf_put_json(b, text, strlen(text));
}

/* Special tokens as in special_tokens_map.json, with those that the class has by default. */
static void put_map(struct buf *b, const struct json *config, const struct json *map)
{
    static const struct {
        const char *name, *usual;
    } rows[] = {{"bos_token", "<|endoftext|>"},
                {"eos_token", "<|endoftext|>"},
                {"unk_token", "<|endoftext|>"},
                {"sep_token", NULL},
                {"pad_token", NULL},
                {"cls_token", NULL},
                {"mask_token", NULL}};
    const struct json *more = json_get(map, "additional_special_tokens");
    buf_puts(b, "{\"additional_special_tokens\":[");
    bool first = true;
    for (const struct json *c = json_first(more); c; c = json_next(c)) {
        buf_puts(b, text_if(!first, ","));
        put_text(b, or_empty(text_of(c)));
        first = false;
    }
    buf_puts(b, "]");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *text = text_of(json_get(config, rows[i].name));
        if (!text) {
            text = text_of(json_get(map, rows[i].name));
        }
        if (!text) {
            text = rows[i].usual;
        }
        if (text) {
            buf_printf(b, ",\"%s\":", rows[i].name);
            put_text(b, text);
        }
    }
    buf_puts(b, "}");
}

/* added_tokens.json has the ids of tokens that were added later, in any order. */
struct later {
    int64_t id;
    const char *text;
};

static int by_id(const void *a, const void *b)
{
    const int64_t x = ((const struct later *)a)->id, y = ((const struct later *)b)->id;
    return (x > y) - (x < y);
}

static enum status put_added(struct buf *b, const char *dir, const struct json *added,
                             struct err *err)
{
    const size_t n = json_count(added);
    struct later *list = xcalloc(n + 1, sizeof *list);
    size_t i = 0;
    enum status st = OK;
    for (const struct json *c = json_first(added); c && st == OK; c = json_next(c), i++) {
        list[i].text = json_key(c);
        if (!list[i].text || !json_int64(c, &list[i].id) || list[i].id < 0) {
            st = err_set(err, ERR_FORMAT, "%s: added_tokens.json must map texts to ids", dir);
        }
    }
    qsort(list, n, sizeof *list, by_id);
    buf_puts(b, "\"added_tokens\":[");
    for (i = 0; i < n && st == OK; i++) {
        buf_printf(b, "%s{\"content\":", text_if(i > 0, ","));
        put_text(b, list[i].text);
        buf_puts(b, "}");
    }
    buf_puts(b, "],");
    free(list);
    return st;
}

/* A line of merges.txt is two spellings with a space between them. The first line may name a
 * version. */
static void put_merges(struct buf *b, const char *text, size_t n)
{
    static const char version[] = "#version";
    bool first = true;
    buf_puts(b, "\"merges\":[");
    for (const char *at = text, *end = text + n; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t whole = (size_t)((stop ? stop : end) - at);
        const size_t used = whole - (whole > 0 && at[whole - 1] == '\r');
        const bool names_version =
            used >= sizeof version - 1 && memcmp(at, version, sizeof version - 1) == 0;
        if (used > 0 && !names_version) {
            buf_puts(b, text_if(!first, ","));
            buf_put_json(b, at, used);
            first = false;
        }
        at += whole + 1;
    }
    buf_puts(b, "]");
}

/* What GPT-2's class makes of the two files. The vocabulary is checked when the text is read. */
static enum status put_tokenizer(struct buf *b, const char *dir, const struct json *config,
                                 struct err *err)
{
    char *vocab, *merges;
    size_t vocab_bytes, merges_bytes;
    struct json *added;
    TRY(read_small(dir, "added_tokens.json", &added, err));
    buf_puts(b, "{");
    const enum status st = put_added(b, dir, added, err);
    json_free(added);
    TRY(st);
    buf_printf(b,
               "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
               "\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":true},"
               "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
               "\"model\":{\"type\":\"BPE\",\"vocab\":",
               bool_word(json_get_bool(config, "add_prefix_space", false)));
    TRY(folder_read(dir, "vocab.json", MAX_FILE_BYTES, &vocab, &vocab_bytes, err));
    buf_put(b, vocab, vocab_bytes);
    free(vocab);
    buf_puts(b, ",");
    TRY(folder_read(dir, "merges.txt", MAX_FILE_BYTES, &merges, &merges_bytes, err));
    put_merges(b, merges, merges_bytes);
    free(merges);
    buf_puts(b, "}}");
    return OK;
}

enum status pair_make(const char *dir, struct buf *json, struct buf *map, struct err *err)
{
    struct json *config, *specials = NULL;
    TRY(read_small(dir, "tokenizer_config.json", &config, err));
    enum status st = read_small(dir, "special_tokens_map.json", &specials, err);
    st = st == OK ? check_class(dir, config, err) : st;
    st = st == OK ? put_tokenizer(json, dir, config, err) : st;
    if (st == OK) {
        put_map(map, config, specials);
    }
    json_free(config);
    json_free(specials);
    if (st == OK && (json->failed || map->failed)) {
        return err_set(err, ERR_LIMIT, "%s: its vocabulary is too large", dir);
    }
    return st;
}
