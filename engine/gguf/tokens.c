// SPDX-License-Identifier: Apache-2.0
/* Generates tokenizer.json and tokenizer_config.json. */
#include "engine/gguf/make.h"
#include "engine/gguf/maker.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name
#define SPACE "\xE2\x96\x81" // stands for a space in SentencePiece vocabularies

/* ---- the vocabulary ----------------------------------------------------------------------- */

/* A list parallel to the tokens may be absent. If it is present, it must have the same length. */
static enum status beside(const struct gguf *g, const char *key, size_t n, const char *what,
                          struct gguf_walk *out, struct err *err)
{
    const struct gguf_value *v = gguf_get(g, key);
    if (v && (!v->is_list || v->n != n || v->type == GGUF_STRING)) {
        return err_set(err, ERR_FORMAT, "%s is not a list with a %s for each of the %zu tokens",
                       key, what, n);
    }
    *out = gguf_walk(v);
    return OK;
}

/* Fills in the texts, kinds and scores, which are three parallel lists in the file. */
static enum status fill(struct gguf_vocab *v, struct gguf_walk texts, struct gguf_walk kinds,
                        struct gguf_walk scores, struct err *err)
{
    for (size_t i = 0; i < v->n; i++) {
        struct gguf_token *t = &v->tokens[i];
        double kind = TOKEN_NORMAL;
        gguf_next_string(&texts, &t->text, &t->n_bytes);
        gguf_next_number(&kinds, &kind);
        gguf_next_number(&scores, &t->score);
        if (!(kind >= 0 && kind <= TOKEN_BYTE) || !isfinite(t->score)) {
            return err_set(err, ERR_FORMAT, "token %zu has an invalid type or score", i);
        }
        t->kind = (enum gguf_token_kind)kind;
        if (gguf_ends_turn(t)) {
            t->kind = TOKEN_CONTROL; // some files mark it with another kind
        }
    }
    return OK;
}

/* Kinds and scores are optional; if present, they must be as long as the texts. */
enum status gguf_vocab_open(const struct gguf *g, struct gguf_vocab *out, struct err *err)
{
    enum { MAX_TOKENS = 1 << 24 };
    const struct gguf_value *texts = gguf_get(g, KEY("tokens"));
    struct gguf_walk kinds, scores;
    *out = (struct gguf_vocab){0};
    if (!texts || !texts->is_list || texts->type != GGUF_STRING || texts->n < 1 ||
        texts->n > MAX_TOKENS) {
        return err_set(err, ERR_FORMAT,
                       "there is no list " KEY("tokens") ": the file has no "
                                                         "vocabulary");
    }
    TRY(beside(g, KEY("token_type"), texts->n, "type", &kinds, err));
    TRY(beside(g, KEY("scores"), texts->n, "score", &scores, err));
    out->n = texts->n;
    out->has_scores = scores.v != NULL;
    out->tokens = xcalloc(out->n, sizeof *out->tokens);
    enum status st = fill(out, gguf_walk(texts), kinds, scores, err);
    if (st != OK) {
        gguf_vocab_close(out);
    }
    return st;
}

void gguf_vocab_close(struct gguf_vocab *v)
{
    free(v->tokens);
    *v = (struct gguf_vocab){0};
}

/* ---- end-of-text ids ---------------------------------------------------------------------- */

static bool is_text(const struct gguf_token *t, const char *text)
{
    return t->n_bytes == strlen(text) && memcmp(t->text, text, t->n_bytes) == 0;
}

/* Markers that end a turn in chat templates. A file's keys name only one or two of them, but models
 * generate the others as well. */
bool gguf_ends_turn(const struct gguf_token *t)
{
    static const char *const texts[] = {"<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<end_of_turn>",
                                        "<turn|>",
                                        "<|endoftext|>",
                                        "<|end_of_text|>",
                                        "<|end_of_sentence|>",
                                        "<EOT>",
                                        "<end_of_utterance>",
                                        "<|END_OF_TURN_TOKEN|>",
                                        "<\uff5cend" SPACE "of" SPACE "sentence\uff5c>"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (is_text(t, texts[i])) {
            return true;
        }
    }
    return false;
}

static size_t add_id(int64_t *ids, size_t n, size_t max, int64_t id)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == id) {
            return n;
        }
    }
    if (n < max) {
        ids[n++] = id;
    }
    return n;
}

/* True for GPT-OSS, whose <|end|> only separates the parts of an answer. */
static bool ends_parts_alone(const struct gguf_vocab *v)
{
    bool found = false;
    for (size_t i = 0; i < v->n; i++) {
        found = found || is_text(&v->tokens[i], "<|return|>");
    }
    return found;
}

/* The ids that end an answer: those named by keys, and tokens recognised by their text. */
size_t gguf_end_ids(const struct gguf *g, const struct gguf_vocab *v, int64_t *out, size_t max)
{
    static const char *const keys[] = {KEY("eos_token_id"), KEY("eot_token_id"),
                                       KEY("eom_token_id")};
    size_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int64_t id;
        if (gguf_get_int(g, keys[i], &id) && id >= 0 && id < (int64_t)v->n) {
            n = add_id(out, n, max, id);
        }
    }
    struct gguf_walk w = gguf_walk(gguf_get(g, KEY("eos_token_ids")));
    for (double id; gguf_next_number(&w, &id);) {
        if (id >= 0 && id < (double)v->n) {
            n = add_id(out, n, max, (int64_t)id);
        }
    }
    bool parts = ends_parts_alone(v);
    for (size_t i = 0; i < v->n; i++) {
        const struct gguf_token *t = &v->tokens[i];
        if (gguf_ends_turn(t) && !(parts && is_text(t, "<|end|>"))) {
            n = add_id(out, n, max, (int64_t)i);
        }
    }
    return n;
}

/* ---- tokenizer.json ----------------------------------------------------------------------- */

/* Writes the added tokens, which are found in the text before it is split. Control tokens are
 * recognised only in templates, never in user text. Those of Phi-3 also swallow the white space
 * after them. */
static void put_added(const struct gguf *g, const struct gguf_vocab *v, struct buf *out)
{
    char arch[GGUF_ARCH_BYTES];
    bool first = true;
    bool phi3 =
        gguf_architecture(g, arch, NULL) == OK && strcmp(arch, "phi3") == 0 && v->has_scores;
    buf_puts(out, "\"added_tokens\":[");
    for (size_t i = 0; i < v->n; i++) {
        const struct gguf_token *t = &v->tokens[i];
        bool special = t->kind == TOKEN_CONTROL || t->kind == TOKEN_UNKNOWN;
        if ((!special && t->kind != TOKEN_USER_DEFINED) || t->n_bytes == 0) {
            continue;
        }
        bool swallows =
            phi3 && !is_text(t, "<unk>") && !is_text(t, "<s>") && !is_text(t, "<|endoftext|>");
        buf_printf(out, "%s{\"id\":%zu,\"content\":", first ? "" : ",", i);
        buf_put_json(out, t->text, t->n_bytes);
        buf_printf(out,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":%s,\"normalized\":false,"
                   "\"special\":%s}",
                   bool_word(swallows), bool_word(special));
        first = false;
    }
    buf_puts(out, "],");
}

static void put_token(struct buf *out, const struct gguf_token *t, size_t id)
{
    char none[32];
    if (t->n_bytes == 0) { // the id is unused
        snprintf(none, sizeof none, "[EMPTY_%zu]", id);
        buf_put_json(out, none, strlen(none));
        return;
    }
    buf_put_json(out, t->text, t->n_bytes);
}

/* A vocabulary whose merges are listed. */
static enum status put_vocab(const struct gguf *g, const struct gguf_vocab *v, struct buf *out,
                             struct err *err)
{
    const char *text;
    size_t n = 0;
    const struct gguf_value *merges = gguf_get(g, KEY("merges"));
    if (!merges || !merges->is_list || merges->type != GGUF_STRING) {
        return err_set(err, ERR_FORMAT, "there is no list " KEY("merges"));
    }
    buf_puts(out, "\"vocab\":{");
    for (size_t i = 0; i < v->n; i++) {
        if (i > 0) {
            buf_puts(out, ",");
        }
        put_token(out, &v->tokens[i], i);
        buf_printf(out, ":%zu", i);
    }
    buf_puts(out, "},\"merges\":[");
    struct gguf_walk w = gguf_walk(merges);
    for (bool first = true; gguf_next_string(&w, &text, &n); first = false) {
        if (!first) {
            buf_puts(out, ",");
        }
        buf_put_json(out, text, n);
    }
    buf_puts(out, "]}");
    return OK;
}

/* The pre-tokenizer that the file names, or that of its architecture if it names none but the
 * default. */
static enum status find_pre(const struct gguf *g, const struct gguf_pre **out, struct err *err)
{
    const char *name = NULL;
    size_t n = 0;
    const struct arch *arch = NULL;
    gguf_get_string(g, KEY("pre"), &name, &n);
    const bool usual = !name || (n == strlen("default") && memcmp(name, "default", n) == 0);
    if (usual && maker_find_arch(g, &arch, NULL) == OK && arch->pre) {
        name = arch->pre;
        n = strlen(name);
    }
    return gguf_find_pre(name, n, out, err);
}

/* Byte-level BPE. */
static enum status put_gpt2(const struct gguf *g, const struct gguf_vocab *v, struct buf *out,
                            struct err *err)
{
    const struct gguf_pre *pre = NULL;
    TRY(find_pre(g, &pre, err));
    gguf_put_pre(pre, out);
    buf_puts(out, "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",");
    buf_printf(out, "\"ignore_merges\":%s,", bool_word(gguf_pre_ignores_merges(pre)));
    return put_vocab(g, v, out, err);
}

/* Everything but the vocabulary of SentencePiece's BPE. */
static void put_spaces(const struct gguf *g, const struct gguf_vocab *v, bool prefix,
                       struct buf *out)
{
    int64_t unknown = 0;
    gguf_get_bool(g, KEY("add_space_prefix"), &prefix);
    gguf_get_int(g, KEY("unknown_token_id"), &unknown);
    buf_puts(out, "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (prefix) {
        buf_puts(out, "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},");
    }
    buf_puts(out,
             "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]},"
             "\"pre_tokenizer\":null,\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
             "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE "\"},\"content\":\" \"},"
             "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (prefix) {
        buf_puts(out, ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    }
    buf_puts(out, "]},\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true,");
    if (unknown >= 0 && unknown < (int64_t)v->n) {
        buf_puts(out, "\"unk_token\":");
        put_token(out, &v->tokens[unknown], (size_t)unknown);
        buf_putc(out, ',');
    }
}

/* Gemma 4 has listed merges. */
static enum status put_gemma4(const struct gguf *g, const struct gguf_vocab *v, struct buf *out,
                              struct err *err)
{
    put_spaces(g, v, false, out);
    return put_vocab(g, v, out, err);
}

/* SentencePiece BPE, in which scores determine which pieces are merged. */
static enum status put_llama(const struct gguf *g, const struct gguf_vocab *v, struct buf *out,
                             struct err *err)
{
    if (!v->has_scores) {
        return err_set(err, ERR_FORMAT, "there is no list " KEY("scores"));
    }
    put_spaces(g, v, true, out);
    buf_puts(out, "\"vocab\":[");
    for (size_t i = 0; i < v->n; i++) {
        if (i > 0) {
            buf_puts(out, ",[");
        } else {
            buf_puts(out, "[");
        }
        put_token(out, &v->tokens[i], i);
        buf_putc(out, ',');
        buf_put_double(out, v->tokens[i].score);
        buf_putc(out, ']');
    }
    buf_puts(out, "]}");
    return OK;
}

static const struct model_row {
    const char *name;
    enum status (*put)(const struct gguf *g, const struct gguf_vocab *v, struct buf *out,
                       struct err *err);
} models[] = {{"gpt2", put_gpt2}, {"llama", put_llama}, {"gemma4", put_gemma4}};

static enum status find_model(const struct gguf *g, const struct model_row **out, struct err *err)
{
    const char *name = "(none)";
    size_t n = strlen(name);
    gguf_get_string(g, KEY("model"), &name, &n);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (n == strlen(models[i].name) && memcmp(models[i].name, name, n) == 0) {
            *out = &models[i];
            return OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED,
                   KEY("model") ": the tokenizer '%.*s' is not supported; only gpt2 (byte-level "
                                "BPE), llama (SentencePiece) and gemma4 are",
                   (int)lesser(n, 40), name);
}

/* Writes the tokenizer.json of this vocabulary as Hugging Face's converter would. */
enum status gguf_make_tokenizer(const struct gguf *g, struct buf *out, struct err *err)
{
    const struct model_row *model = NULL;
    struct gguf_vocab v;
    TRY(find_model(g, &model, err));
    TRY(gguf_vocab_open(g, &v, err));
    buf_puts(out, "{\"version\":\"1.0\",");
    put_added(g, &v, out);
    enum status st = model->put(g, &v, out, err);
    buf_putc(out, '}');
    gguf_vocab_close(&v);
    return st;
}

/* ---- tokenizer_config.json ---------------------------------------------------------------- */

/* Returns false if there is no such token. */
static bool put_named(const struct gguf *g, const struct gguf_vocab *v, const char *name,
                      const char *key, int64_t otherwise, struct buf *out)
{
    int64_t id = otherwise;
    gguf_get_int(g, key, &id);
    bool found = id >= 0 && id < (int64_t)v->n && v->tokens[id].n_bytes > 0;
    if (found) {
        buf_printf(out, "\"%s\":", name);
        buf_put_json(out, v->tokens[id].text, v->tokens[id].n_bytes);
        buf_putc(out, ',');
    }
    return found;
}

/* The file's key takes precedence; without it, the model that the pre-tokenizer belongs to
 * decides. */
static bool adds_bos(const struct gguf *g, bool is_llama)
{
    const struct gguf_pre *pre = NULL;
    bool adds = is_llama || (find_pre(g, &pre, NULL) == OK && gguf_pre_adds_bos(pre));
    gguf_get_bool(g, KEY("add_bos_token"), &adds);
    return adds;
}

/* Writes a single template, or a list if the file has another one for requests with tools. */
static void put_templates(const struct gguf *g, struct buf *out)
{
    const char *text, *tools;
    size_t n, n_tools;
    if (!gguf_get_string(g, "tokenizer.chat_template", &text, &n)) {
        return;
    }
    buf_puts(out, ",\"chat_template\":");
    if (!gguf_get_string(g, "tokenizer.chat_template.tool_use", &tools, &n_tools)) {
        buf_put_json(out, text, n);
        return;
    }
    buf_puts(out, "[{\"name\":\"default\",\"template\":");
    buf_put_json(out, text, n);
    buf_puts(out, "},{\"name\":\"tool_use\",\"template\":");
    buf_put_json(out, tools, n_tools);
    buf_puts(out, "}]");
}

enum status gguf_make_tokenizer_config(const struct gguf *g, struct buf *out, struct err *err)
{
    const struct model_row *model = NULL;
    struct gguf_vocab v;
    bool eos = false;
    TRY(find_model(g, &model, err));
    TRY(gguf_vocab_open(g, &v, err));
    bool is_llama = model->put == put_llama;
    buf_putc(out, '{');
    bool has_bos = put_named(g, &v, "bos_token", KEY("bos_token_id"), is_llama ? 1 : -1, out);
    put_named(g, &v, "eos_token", KEY("eos_token_id"), is_llama ? 2 : -1, out);
    put_named(g, &v, "unk_token", KEY("unknown_token_id"), is_llama ? 0 : -1, out);
    put_named(g, &v, "pad_token", KEY("padding_token_id"), -1, out);
    gguf_get_bool(g, KEY("add_eos_token"), &eos);
    buf_printf(out, "\"add_bos_token\":%s,\"add_eos_token\":%s",
               bool_word(has_bos && adds_bos(g, is_llama)), bool_word(eos));
    put_templates(g, out);
    buf_putc(out, '}');
    gguf_vocab_close(&v);
    return OK;
}
