// SPDX-License-Identifier: Apache-2.0
/* `sluice tokenize`: reads and writes JSON lines, using only the tokenizer's files. */
#include "server/cli/commands.h"
#include "server/cli/json_line.h"

#include "engine/base/buf.h"
#include "engine/base/optional.h"
#include "engine/tokenizer/detok.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 30, IDS_MAX = 1 << 28, DEPTH_MAX = 64 };

/* One line of input, with buffers that are used again. */
struct line {
    struct buf text, pair; // the members "text" and "pair", unescaped
    struct ids ids;
    bool has_text, has_pair, has_ids;
    bool add_special, parse_special, skip_special;
};

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: sluice tokenize [--decode | --stream] DIR\n"
        "\n"
        "Reads one JSON object per line from standard input and answers each with one line.\n"
        "DIR is a folder with tokenizer.json, or that file.\n"
        "\n"
        "  in   {\"text\": ..., \"add_special_tokens\": true, \"parse_special\": true}\n"
        "  out  {\"ids\": [...], \"tokens\": [...]}\n"
        "\n"
        "With \"pair\", a second text, the ids are those of both as one prompt, and \"second\" is\n"
        "the number of the first token of another type (0: all have the same).\n"
        "\n"
        "with --decode\n"
        "\n"
        "  in   {\"ids\": [...], \"skip_special_tokens\": false}\n"
        "  out  {\"text\": ...}\n"
        "\n"
        "and with --stream, the text of each token as a streaming client would see it\n"
        "\n"
        "  out  {\"deltas\": [...], \"flush\": ...}\n"
        "\n"
        "A line with an error is answered with {\"error\": ...}.\n"
        "add_special_tokens and parse_special are true by default.\n");
}

/* ---- reading a line ---- */

static enum status read_ids(struct json_scan *sc, struct line *line, struct err *err)
{
    enum json_token t = json_scan_next(sc);
    if (t != JSON_TOKEN_ARRAY) {
        return err_set(err, ERR_INVALID, "\"ids\" must be a list of integers");
    }
    while ((t = json_scan_next(sc)) == JSON_TOKEN_NUMBER) {
        int64_t id;
        if (!json_scan_int64(sc, &id) || id < 0 || id > INT32_MAX) {
            return err_set(err, ERR_INVALID, "\"ids\" has a number that is not a token id");
        }
        if (!ids_put(&line->ids, (int32_t)id)) {
            return err_set(err, ERR_LIMIT, "\"ids\" is too long");
        }
    }
    if (t != JSON_TOKEN_ARRAY_END) {
        return err_set(err, ERR_INVALID, "\"ids\" must be a list of integers");
    }
    line->has_ids = true;
    return OK;
}

static enum status read_text(struct json_scan *sc, const char *name, struct buf *text, bool *has,
                             struct err *err)
{
    if (json_scan_next(sc) != JSON_TOKEN_STRING) {
        return err_set(err, ERR_INVALID, "\"%s\" must be a string", name);
    }
    buf_clear(text);
    json_scan_unescape(sc, text);
    *has = true;
    return text->failed ? err_set(err, ERR_LIMIT, "\"%s\" is too long", name) : OK;
}

/* Unknown members are skipped, so that files of other tools can be used. */
static enum status read_member(struct json_scan *sc, void *arg, struct err *err)
{
    struct line *line = arg;
    if (json_scan_is(sc, "text")) {
        return read_text(sc, "text", &line->text, &line->has_text, err);
    }
    if (json_scan_is(sc, "pair")) {
        return read_text(sc, "pair", &line->pair, &line->has_pair, err);
    }
    if (json_scan_is(sc, "ids")) {
        return read_ids(sc, line, err);
    }
    if (json_scan_is(sc, "add_special_tokens")) {
        return json_line_flag(sc, "add_special_tokens", &line->add_special, err);
    }
    if (json_scan_is(sc, "parse_special")) {
        return json_line_flag(sc, "parse_special", &line->parse_special, err);
    }
    if (json_scan_is(sc, "skip_special_tokens")) {
        return json_line_flag(sc, "skip_special_tokens", &line->skip_special, err);
    }
    json_scan_skip(sc); // an error is found at the next token
    return OK;
}

static enum status read_line(struct line *line, const char *s, size_t n, struct err *err)
{
    line->ids.n = 0;
    line->has_text = line->has_pair = line->has_ids = line->skip_special = false;
    line->add_special = line->parse_special = true;
    return json_line_read(s, n, DEPTH_MAX, read_member, line, err);
}

/* ---- answering it ---- */

/* The text is not treated as user input: special tokens are recognised if parse_special is true. */
static enum status encode_line(const struct tokenizer *tok, struct line *line, struct buf *out,
                               struct err *err)
{
    if (!line->has_text) {
        return err_set(err, ERR_INVALID, "\"text\" is missing");
    }
    struct text_span span = {or_empty(line->text.data), line->text.n_bytes, false};
    struct tokenizer_flags flags = {line->add_special, line->parse_special};
    struct tokenizer_pair parts;
    line->ids.n = 0;
    if (line->has_pair) {
        const struct text_span both[2] = {span,
                                          {or_empty(line->pair.data), line->pair.n_bytes, false}};
        TRY(tokenizer_encode_pair(tok, both, line->parse_special, &line->ids, &parts, err));
    } else {
        TRY(tokenizer_encode(tok, &span, 1, flags, &line->ids, err));
    }
    buf_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < line->ids.n; i++) {
        if (i) {
            buf_puts(out, ",");
        }
        buf_put_int(out, line->ids.v[i]);
    }
    buf_puts(out, "],\"tokens\":[");
    for (size_t i = 0; i < line->ids.n; i++) {
        size_t n;
        const char *s = tokenizer_token_text(tok, line->ids.v[i], &n);
        if (i) {
            buf_puts(out, ",");
        }
        buf_put_json(out, or_empty(s), n);
    }
    buf_puts(out, "]");
    if (line->has_pair) {
        buf_puts(out, ",\"second\":");
        buf_put_int(out, (int64_t)parts.type_at);
    }
    buf_puts(out, "}\n");
    return OK;
}

static enum status decode_line(const struct tokenizer *tok, struct line *line, struct buf *out,
                               struct err *err)
{
    if (!line->has_ids) {
        return err_set(err, ERR_INVALID, "\"ids\" is missing");
    }
    buf_clear(&line->text);
    tokenizer_decode(tok, line->ids.v, line->ids.n, line->skip_special, &line->text);
    if (line->text.failed) {
        return err_set(err, ERR_LIMIT, "the text is too long");
    }
    buf_puts(out, "{\"text\":");
    buf_put_json(out, or_empty(line->text.data), line->text.n_bytes);
    buf_puts(out, "}\n");
    return OK;
}

static void put_delta(struct line *line, struct buf *out)
{
    buf_put_json(out, or_empty(line->text.data), line->text.n_bytes);
    buf_clear(&line->text);
}

/* Decodes in pieces, as a stream does; the result is the same as that of --decode. */
static enum status stream_line(const struct tokenizer *tok, struct line *line, struct buf *out,
                               struct err *err)
{
    if (!line->has_ids) {
        return err_set(err, ERR_INVALID, "\"ids\" is missing");
    }
    struct detok d;
    detok_init(&d, tok, line->skip_special);
    buf_clear(&line->text);
    buf_puts(out, "{\"deltas\":[");
    for (size_t i = 0; i < line->ids.n; i++) {
        detok_push(&d, line->ids.v[i], &line->text);
        if (i) {
            buf_puts(out, ",");
        }
        put_delta(line, out);
    }
    buf_puts(out, "],\"flush\":");
    detok_flush(&d, &line->text);
    put_delta(line, out);
    buf_puts(out, "}\n");
    return OK;
}

typedef enum status answer_fn(const struct tokenizer *tok, struct line *line, struct buf *out,
                              struct err *err);

/* An error is the answer to its line; later lines are still read. */
static int run(const struct tokenizer *tok, answer_fn *answer)
{
    struct line line = {0};
    struct buf out;
    char *s = NULL;
    size_t cap = 0;
    ssize_t n;
    buf_init(&line.text, LINE_MAX_BYTES);
    buf_init(&line.pair, LINE_MAX_BYTES);
    buf_init(&out, (size_t)4 * LINE_MAX_BYTES);
    ids_init(&line.ids, IDS_MAX);
    while ((n = getline(&s, &cap, stdin)) >= 0) {
        struct err err = {0};
        buf_clear(&out);
        enum status st = read_line(&line, s, (size_t)n, &err);
        if (st == OK) {
            st = answer(tok, &line, &out, &err);
        }
        if (st != OK || out.failed) {
            buf_clear(&out);
            json_line_put_error(&out, st == OK ? "the answer is too long" : err.text);
        }
        fwrite(out.data, 1, out.n_bytes, stdout);
        fflush(stdout);
    }
    free(s);
    buf_deinit(&line.text);
    buf_deinit(&line.pair);
    buf_deinit(&out);
    ids_deinit(&line.ids);
    return ferror(stdout) ? 1 : 0;
}

int cmd_tokenize(int argc, char **argv)
{
    answer_fn *answer = encode_line;
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--decode") == 0) {
            answer = decode_line;
        } else if (strcmp(argv[i], "--stream") == 0) {
            answer = stream_line;
        } else if (!dir && argv[i][0] != '-') {
            dir = argv[i];
        } else {
            usage(stderr);
            return 2;
        }
    }
    if (!dir) {
        usage(stderr);
        return 2;
    }
    struct tokenizer *tok;
    struct err err = {0};
    if (tokenizer_load(dir, &tok, &err) != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
        return 1;
    }
    int code = run(tok, answer);
    tokenizer_free(tok);
    return code;
}
