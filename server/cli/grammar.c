// SPDX-License-Identifier: Apache-2.0
/* `sluice grammar`: checks whether texts match a grammar, and which tokens may come next. Reads
 * JSON lines; writes text for people, or JSON lines. */
#include "server/cli/commands.h"
#include "server/cli/json_line.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/grammar/grammar.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 1 << 28, LINE_DEPTH = 500, SHOWN_TOKENS = 20 };

/* The tokens of the model, if one was given. */
struct model {
    struct tokenizer *tok;
    struct grammar_vocab *vocab;
    uint32_t *words; // a mask with one bit per token
};

/* One line of input. Buffers are reused for all lines. */
struct line {
    struct grammar_source source;
    struct buf text, space, prefix;
    const char *strings; // the raw JSON array; NULL: none
    size_t n_strings;
    bool has_source, has_prefix;
};

static void usage(FILE *out)
{
    fprintf(out, "usage: sluice grammar [--json] [MODEL] < LINES\n"
                 "\n"
                 "Each line of standard input is a JSON object with a grammar, under one of the "
                 "names schema,\n"
                 "regex, gbnf, lark and tags, and texts to check:\n"
                 "\n"
                 "  {\"schema\": {\"type\": \"integer\"}, \"strings\": [\"12\", \"1.5\"]}\n"
                 "\n"
                 "The answer says for each text whether it matches. With --json it is one line,\n"
                 "{\"accepted\": [true, false]}, or {\"error\": ...} if the grammar is invalid.\n"
                 "\n"
                 "With a MODEL (a folder with tokenizer.json, or that file) and \"prefix\" (or "
                 "\"prefix_hex\") in the\n"
                 "line, the answer has the tokens that may follow this beginning of a text:\n"
                 "{\"allowed\": [ids], \"may_end\": false}.\n"
                 "\n"
                 "Optional with a schema: \"disable_any_whitespace\", \"whitespace_pattern\", "
                 "\"open_objects\".\n");
}

/* ---- reading a line ---- */

/* Reads a grammar's source: the text of a string, or the raw JSON of another value. */
static enum status read_source(struct json_scan *sc, struct line *l, enum grammar_kind kind,
                               struct err *err)
{
    size_t from = sc->at;
    while (from < sc->n_bytes &&
           (sc->s[from] == ':' || sc->s[from] == ' ' || sc->s[from] == '\t')) {
        from++;
    }
    if (l->has_source) {
        return err_set(err, ERR_INVALID, "the line has more than one grammar");
    }
    buf_clear(&l->text);
    if (!grammar_is_json(kind) || sc->s[from] == '"') {
        if (json_scan_next(sc) != JSON_TOKEN_STRING) {
            return err_set(err, ERR_INVALID, "\"%s\" must be a string", grammar_kind_names[kind]);
        }
        json_scan_unescape(sc, &l->text);
    } else if (json_scan_skip(sc)) {
        buf_put(&l->text, sc->s + from, sc->at - from);
    }
    l->source.kind = kind;
    l->has_source = true;
    if (l->text.failed) {
        return err_set(err, ERR_LIMIT, "the grammar is too long");
    }
    return OK;
}

/* A NUL at the end makes the text usable as a C string. */
static enum status read_text(struct json_scan *sc, const char *name, struct buf *out,
                             struct err *err)
{
    buf_clear(out);
    if (json_scan_next(sc) != JSON_TOKEN_STRING) {
        return err_set(err, ERR_INVALID, "\"%s\" must be a string", name);
    }
    json_scan_unescape(sc, out);
    buf_put(out, "", 0);
    if (out->failed) {
        return err_set(err, ERR_LIMIT, "\"%s\" is too long", name);
    }
    return OK;
}

/* Decodes hexadecimal digits in place. The prefix is given in hexadecimal because it may contain
 * any byte. */
static enum status unhex(struct buf *b, struct err *err)
{
    size_t n = 0;
    for (size_t i = 0; i + 1 < b->n_bytes; i += 2) {
        unsigned byte;
        if (sscanf(b->data + i, "%2x", &byte) != 1) {
            return err_set(err, ERR_INVALID, "\"prefix_hex\" must be hexadecimal digits");
        }
        b->data[n++] = (char)byte;
    }
    b->n_bytes = n;
    return OK;
}

/* Reads one member. They may be in any order; missing ones are reported after the whole line. */
static enum status read_member(struct json_scan *sc, void *arg, struct err *err)
{
    struct line *l = arg;
    for (int k = 0; k < GRAMMAR_N_KINDS; k++) {
        if (json_scan_is(sc, grammar_kind_names[k])) {
            return read_source(sc, l, (enum grammar_kind)k, err);
        }
    }
    if (json_scan_is(sc, "strings")) {
        size_t from = sc->at;
        json_scan_skip(sc);
        l->strings = memchr(sc->s + from, '[', sc->at - from);
        if (l->strings) {
            l->n_strings = (size_t)(sc->s + sc->at - l->strings);
        } else {
            l->n_strings = 0;
        }
        if (!l->strings) {
            return err_set(err, ERR_INVALID, "\"strings\" must be a list of strings");
        }
        return OK;
    }
    if (json_scan_is(sc, "prefix") || json_scan_is(sc, "prefix_hex")) {
        bool hex = json_scan_is(sc, "prefix_hex");
        l->has_prefix = true;
        TRY(read_text(sc, hex ? "prefix_hex" : "prefix", &l->prefix, err));
        if (hex) {
            return unhex(&l->prefix, err);
        }
        return OK;
    }
    if (json_scan_is(sc, "disable_any_whitespace")) {
        return json_line_flag(sc, "disable_any_whitespace", &l->source.disable_any_whitespace, err);
    }
    if (json_scan_is(sc, "open_objects")) {
        return json_line_flag(sc, "open_objects", &l->source.open_objects, err);
    }
    if (json_scan_is(sc, "whitespace_pattern")) {
        TRY(read_text(sc, "whitespace_pattern", &l->space, err));
        l->source.whitespace_pattern = l->space.data;
        return OK;
    }
    json_scan_skip(sc); // an error is found at the next token
    return OK;
}

/* Reads a line. A grammar is required; texts and a prefix are optional. */
static enum status read_line(struct line *l, const char *s, size_t n, struct err *err)
{
    l->source = (struct grammar_source){0};
    l->strings = NULL;
    l->has_source = l->has_prefix = false;
    TRY(json_line_read(s, n, LINE_DEPTH, read_member, l, err));
    if (!l->has_source) {
        return err_set(err, ERR_INVALID,
                       "the line has no \"schema\", \"regex\", \"gbnf\", \"lark\" or \"tags\"");
    }
    l->source.text = or_empty(l->text.data);
    l->source.n_bytes = l->text.n_bytes;
    return OK;
}

/* ---- answering it ---- */

/* How much of a text matches, and why not more. */
struct verdict {
    bool accepted, over;
    size_t n_good;
};

/* Matches the text as a whole. If that fails, matches it byte by byte to find where it stops
 * matching. */
static struct verdict judge(struct grammar *g, const char *s, size_t n)
{
    struct verdict v = {0};
    struct grammar_state state;
    enum status st = grammar_fold(g, s, n, &state);
    if (st == OK) {
        return (struct verdict){.accepted = grammar_may_end(g, state), .n_good = n};
    }
    v.over = st != ERR_INVALID;
    state = grammar_start(g);
    while (v.n_good < n && grammar_advance(g, &state, s + v.n_good, 1) == OK) {
        v.n_good++;
    }
    return v;
}

/* Prints the result: for people with the position where the text stops matching, for programs as
 * true or false. */
static void put_verdict(struct buf *out, struct verdict v, const char *s, size_t n, bool json)
{
    if (json) {
        if (v.accepted) {
            buf_puts(out, "true");
        } else {
            buf_puts(out, "false");
        }
        return;
    }
    if (v.accepted) {
        buf_puts(out, "  accepted  ");
    } else {
        buf_puts(out, "  refused   ");
    }
    buf_put_json(out, s, n);
    if (v.over) {
        buf_puts(out, ": too complex");
    } else if (!v.accepted && v.n_good == n) {
        buf_puts(out, ": incomplete, more must follow");
    } else if (!v.accepted) {
        buf_printf(out, ": no match from byte %zu on", v.n_good);
    }
    buf_putc(out, '\n');
}

/* Writes a verdict for each string of the line's array. */
static enum status put_strings(struct grammar *g, const struct line *l, bool json, struct buf *out,
                               struct err *err)
{
    struct json_scan sc;
    struct buf text;
    enum json_token t;
    bool first = true;
    buf_init(&text, LINE_MAX_BYTES);
    json_scan_init(&sc, l->strings, l->n_strings, LINE_DEPTH);
    json_scan_next(&sc);
    if (json) {
        buf_puts(out, "{\"accepted\":[");
    }
    while ((t = json_scan_next(&sc)) == JSON_TOKEN_STRING) {
        buf_clear(&text);
        json_scan_unescape(&sc, &text);
        const char *s = or_empty(text.data);
        if (json && !first) {
            buf_puts(out, ",");
        }
        put_verdict(out, judge(g, s, text.n_bytes), s, text.n_bytes, json);
        first = false;
    }
    if (json) {
        buf_puts(out, "]}\n");
    }
    buf_deinit(&text);
    if (t != JSON_TOKEN_ARRAY_END) {
        return err_set(err, ERR_INVALID, "\"strings\" must be a list of strings");
    }
    return OK;
}

/* Writes the allowed tokens: their ids as JSON, or the first few as text. */
static void put_allowed(const struct model *m, bool may_end, bool json, struct buf *out)
{
    size_t n = 0, left = SHOWN_TOKENS;
    if (json) {
        buf_puts(out, "{\"allowed\":[");
    }
    for (int32_t id = 0; id < tokenizer_vocab_size(m->tok); id++) {
        if (!(m->words[id >> 5] >> (id & 31) & 1)) {
            continue;
        }
        n++;
        if (json) {
            if (n > 1) {
                buf_puts(out, ",");
            }
            buf_put_int(out, id);
        } else if (left > 0) {
            size_t n_piece;
            const char *piece = tokenizer_piece(m->tok, id, &n_piece);
            buf_printf(out, "  %7d  ", id);
            buf_put_json(out, or_empty(piece), piece ? n_piece : 0);
            buf_putc(out, '\n');
            left--;
        }
    }
    if (json) {
        buf_printf(out, "],\"may_end\":%s}\n", bool_word(may_end));
    } else {
        buf_printf(out, "  %zu tokens may follow%s\n", n, text_if(may_end, "; the text may end"));
    }
}

/* Writes the mask after the prefix, as the engine would compute it for the next token. */
static enum status put_mask(struct grammar *g, const struct model *m, const struct line *l,
                            bool json, struct buf *out, struct err *err)
{
    struct grammar_state state;
    enum status st = grammar_fold(g, or_empty(l->prefix.data), l->prefix.n_bytes, &state);
    if (st == OK) {
        st = grammar_mask(g, state, m->words);
    }
    if (st != OK) {
        return err_set(err, st,
                       st == ERR_INVALID ? "no text of the grammar begins with the prefix"
                                         : "the grammar is too complex for this prefix");
    }
    put_allowed(m, grammar_may_end(g, state), json, out);
    return OK;
}

/* Compiles the grammar once for all of the line's texts. */
static enum status answer(const struct model *m, struct line *l, bool json, struct buf *out,
                          struct err *err)
{
    struct grammar *g;
    if (l->has_prefix && !m->tok) {
        return err_set(err, ERR_INVALID, "\"prefix\" needs a model");
    }
    TRY(grammar_compile(&l->source, NULL, m->vocab, &g, err));
    if (!json) {
        struct grammar_stats stats;
        grammar_stats(g, &stats);
        buf_printf(out, "%s: compiled, %zu rules, %zu expressions\n",
                   grammar_kind_names[l->source.kind], stats.n_rules, stats.n_expressions);
    }
    enum status st = OK;
    if (l->strings) {
        st = put_strings(g, l, json, out, err);
    }
    if (st == OK && l->has_prefix) {
        st = put_mask(g, m, l, json, out, err);
    } else if (st == OK && !l->strings && json) {
        buf_puts(out, "{\"accepted\":[]}\n");
    }
    grammar_free(g);
    return st;
}

/* A line with an error gets an error as its answer; the others are not affected. */
static int run(const struct model *m, bool json)
{
    struct line line = {0};
    struct buf out;
    char *s = NULL;
    size_t cap = 0;
    ssize_t n;
    buf_init(&line.text, LINE_MAX_BYTES);
    buf_init(&line.space, LINE_MAX_BYTES);
    buf_init(&line.prefix, LINE_MAX_BYTES);
    buf_init(&out, (size_t)2 * LINE_MAX_BYTES);
    while ((n = getline(&s, &cap, stdin)) >= 0) {
        struct err err = {{0}};
        buf_clear(&out);
        enum status st = read_line(&line, s, (size_t)n, &err);
        if (st == OK) {
            st = answer(m, &line, json, &out, &err);
        }
        if (st != OK) {
            buf_clear(&out);
            if (json) {
                json_line_put_error(&out, err.text);
            } else {
                buf_puts(&out, "refused: ");
                buf_puts(&out, err.text);
                buf_puts(&out, "\n");
            }
        }
        fwrite(out.data, 1, out.n_bytes, stdout);
        fflush(stdout);
    }
    free(s);
    buf_deinit(&line.text);
    buf_deinit(&line.space);
    buf_deinit(&line.prefix);
    buf_deinit(&out);
    return ferror(stdout) != 0;
}

/* Loads the model's tokens; its weights are not read. */
static enum status open_model(const char *path, struct model *m, struct err *err)
{
    TRY(tokenizer_load(path, &m->tok, err));
    int32_t end = tokenizer_eos(m->tok), n = tokenizer_vocab_size(m->tok);
    TRY(grammar_vocab_open(m->tok, n, &end, end >= 0, &m->vocab, err));
    m->words = xcalloc(grammar_mask_words(m->vocab) + 1, sizeof *m->words);
    return OK;
}

int cmd_grammar(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            return 0;
        }
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (!path && argv[i][0] != '-') {
            path = argv[i];
        } else {
            usage(stderr);
            return 2;
        }
    }
    struct model m = {0};
    struct err err = {{0}};
    int code = 1;
    if (path && open_model(path, &m, &err) != OK) {
        fprintf(stderr, "sluice: %s\n", err.text);
    } else {
        code = run(&m, json);
    }
    free(m.words);
    grammar_vocab_free(m.vocab);
    tokenizer_free(m.tok);
    return code;
}
