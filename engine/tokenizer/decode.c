// SPDX-License-Identifier: Apache-2.0
/* Ids back to text: the chain of decoders over a list of strings, exactly as in the library, and
 * the table of the text that each token adds to a stream. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static enum status set_text(struct decoder *d, const struct json *node, const char *key,
                            const char *otherwise, struct err *err)
{
    const char *text = json_get_string(node, key);
    if (!text) {
        text = otherwise;
    }
    if (!text) {
        return err_set(err, ERR_FORMAT, "a decoder lacks \"%s\"", key);
    }
    d->text = xstrdup(text);
    d->text_bytes = strlen(text);
    return OK;
}

/* One step of the decoder, by its type's name in tokenizer.json. */
static enum status load_details(struct decoder *d, const struct json *node, const char *type,
                                struct err *err)
{
    if (strcmp(type, "Replace") == 0) {
        d->kind = DECODE_REPLACE;
        TRY(pattern_load(json_get(node, "pattern"), &d->pattern, err));
        return set_text(d, node, "content", NULL, err);
    }
    if (strcmp(type, "Strip") == 0) {
        int64_t start = json_get_int(node, "start", 0), stop = json_get_int(node, "stop", 0);
        d->kind = DECODE_STRIP;
        d->start = start > 0 ? (size_t)start : 0;
        d->stop = stop > 0 ? (size_t)stop : 0;
        return set_text(d, node, "content", NULL, err);
    }
    if (strcmp(type, "Metaspace") == 0) {
        const char *scheme = json_get_string(node, "prepend_scheme");
        d->kind = DECODE_METASPACE;
        d->keeps_first = (scheme && strcmp(scheme, "never") == 0) ||
                         !json_get_bool(node, "add_prefix_space", true);
        return set_text(d, node, "replacement", NULL, err);
    }
    if (strcmp(type, "WordPiece") == 0) {
        d->kind = DECODE_WORDPIECE;
        d->cleanup = json_get_bool(node, "cleanup", true);
        return set_text(d, node, "prefix", "##", err);
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        d->kind = DECODE_BPE;
        return set_text(d, node, "suffix", "</w>", err);
    }
    return err_set(err, ERR_UNSUPPORTED, "the decoder \"%s\" is not supported", type);
}

/* Flattens a sequence of decoders into the tokenizer's list. */
enum status decoders_load(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const char *type = json_get_string(node, "type");
    if (!type) {
        type = "";
    }
    tok->has_decoder = true;
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = json_get(node, "decoders");
        for (const struct json *child = json_first(list); child; child = json_next(child)) {
            TRY(decoders_load(child, tok, err)); // the JSON reader bounds the depth
        }
        return OK;
    }
    if (tok->n_decoders == MAX_STAGES) {
        return err_set(err, ERR_LIMIT, "more than %d decoders", MAX_STAGES);
    }
    struct decoder *d = &tok->decoders[tok->n_decoders++];
    if (strcmp(type, "ByteLevel") == 0) {
        d->kind = DECODE_BYTE_LEVEL;
    } else if (strcmp(type, "ByteFallback") == 0) {
        d->kind = DECODE_BYTE_FALLBACK;
    } else if (strcmp(type, "Fuse") == 0) {
        d->kind = DECODE_FUSE;
    } else {
        return load_details(d, node, type, err);
    }
    return OK;
}

void decoder_deinit(struct decoder *d)
{
    pattern_deinit(&d->pattern);
    free(d->text);
    *d = (struct decoder){0};
}

/* ---- a list of strings ---- */

/* Strings one after another in one buffer, so that decoding steps need few allocations. */
struct list {
    struct buf bytes;
    size_t *end; // end offset of each string
    size_t n, cap;
};

static void list_close(struct list *l) // ends the current string
{
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 256;
        l->end = xrealloc(l->end, l->cap * sizeof *l->end);
    }
    l->end[l->n++] = l->bytes.n_bytes;
}

static void list_add(struct list *l, const char *s, size_t n)
{
    buf_put(&l->bytes, s, n);
    list_close(l);
}

static const char *list_get(const struct list *l, size_t i, size_t *n)
{
    size_t start = i > 0 ? l->end[i - 1] : 0;
    *n = l->end[i] - start;
    return l->bytes.data ? l->bytes.data + start : "";
}

static void list_clear(struct list *l)
{
    buf_clear(&l->bytes);
    l->n = 0;
}

/* ---- the decoders ---- */

/* Writes one U+FFFD for each maximal invalid part, like Rust's from_utf8_lossy. */
static void put_lossy(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t good = utf8_check(s + i, n - i);
        buf_put(out, s + i, good);
        i += good;
        if (i < n) {
            buf_puts(out, "\xEF\xBF\xBD");
            i += utf8_maximal_subpart(s + i, n - i);
        }
    }
}

/* Returns false if a character stands for no byte. */
bool spelled_as_bytes(const char *s, size_t n, struct buf *out)
{
    buf_clear(out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += unicode_next(s + i, &cp);
        int byte = unicode_symbol_byte(cp);
        if (byte < 0) {
            return false;
        }
        buf_putc(out, (char)byte);
    }
    return true;
}

/* Writes the bytes that the token's symbols stand for, or the token itself if it contains any other
 * character. */
static void put_bytes(struct buf *out, const char *s, size_t n)
{
    size_t before = out->n_bytes;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += unicode_next(s + i, &cp);
        int byte = unicode_symbol_byte(cp);
        if (byte < 0) {
            out->n_bytes = before;
            buf_put(out, s, n);
            return;
        }
        buf_putc(out, (char)byte);
    }
}

static void decode_byte_level(const struct list *in, struct list *out)
{
    struct buf bytes;
    buf_init(&bytes, out->bytes.max_bytes);
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = list_get(in, i, &n);
        put_bytes(&bytes, s, n);
    }
    if (bytes.n_bytes > 0) {
        put_lossy(&out->bytes, bytes.data, bytes.n_bytes);
    }
    list_close(out);
    buf_deinit(&bytes);
}

static void put_replaced(const struct decoder *d, struct scratch *sc, const char *s, size_t n,
                         struct buf *out)
{
    struct pattern_walk w;
    pattern_walk_init(&w, &d->pattern, s, n);
    size_t start, end, copied = 0;
    if (d->pattern.regex && utf8_check(s, n) != n) { // in a stream this may be part of a character
        buf_put(out, s, n);
        return;
    }
    // The library leaves an empty string unchanged, whatever the pattern.
    while (n > 0 && pattern_walk_next(&w, sc, &start, &end) > 0) {
        buf_put(out, s + copied, start - copied);
        buf_put(out, d->text, d->text_bytes);
        copied = end;
    }
    buf_put(out, s + copied, n - copied);
}

/* "<0xE2>" gives 0xE2; other tokens give -1. */
static int byte_of_token(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') {
        return -1;
    }
    if (s[3] == '+' && isxdigit((unsigned char)s[4])) { // Rust's parser accepts this, too
        char one[2] = {s[4], '\0'};
        return (int)strtol(one, NULL, 16);
    }
    if (!isxdigit((unsigned char)s[3]) || !isxdigit((unsigned char)s[4])) {
        return -1;
    }
    char two[3] = {s[3], s[4], '\0'};
    return (int)strtol(two, NULL, 16);
}

/* A run of byte tokens is text if it is valid UTF-8 as a whole. Otherwise each byte becomes U+FFFD,
 * as in the library. */
static void flush_bytes(struct buf *run, struct list *out)
{
    if (run->n_bytes == 0) {
        return;
    }
    if (utf8_check(run->data, run->n_bytes) == run->n_bytes) {
        list_add(out, run->data, run->n_bytes);
    } else {
        for (size_t i = 0; i < run->n_bytes; i++) {
            list_add(out, "\xEF\xBF\xBD", 3);
        }
    }
    buf_clear(run);
}

/* Consecutive byte tokens are joined before they are decoded, because a character may need
 * several. */
static void decode_byte_fallback(const struct list *in, struct list *out)
{
    struct buf run;
    buf_init(&run, out->bytes.max_bytes);
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = list_get(in, i, &n);
        int byte = byte_of_token(s, n);
        if (byte >= 0) {
            buf_putc(&run, (char)byte);
        } else {
            flush_bytes(&run, out);
            list_add(out, s, n);
        }
    }
    flush_bytes(&run, out);
    buf_deinit(&run);
}

static bool has_at(const char *s, size_t n, size_t at, const struct decoder *d)
{
    return n - at >= d->text_bytes && memcmp(s + at, d->text, d->text_bytes) == 0;
}

static void put_stripped(const struct decoder *d, const char *s, size_t n, struct buf *out)
{
    size_t from = 0;
    for (size_t k = 0; k < d->start && d->text_bytes > 0 && has_at(s, n, from, d); k++) {
        from += d->text_bytes;
    }
    size_t to = n;
    for (size_t k = 0; k < d->stop && d->text_bytes > 0 && to - from >= d->text_bytes &&
                       has_at(s, to, to - d->text_bytes, d);
         k++) {
        to -= d->text_bytes;
    }
    buf_put(out, s + from, to - from);
}

static void put_metaspace(const struct decoder *d, const char *s, size_t n, bool first,
                          struct buf *out)
{
    for (size_t i = 0; i < n;) {
        if (d->text_bytes > 0 && has_at(s, n, i, d)) {
            if (!first || d->keeps_first) {
                buf_putc(out, ' ');
            }
            i += d->text_bytes;
        } else {
            buf_putc(out, s[i++]);
        }
    }
}

/* Copies only if there is something to replace. */
static void replace_all(struct buf *b, const char *what, const char *by)
{
    struct buf out;
    buf_init(&out, b->max_bytes);
    size_t n = strlen(what), i = 0;
    const char *hit;
    while (b->data && (hit = memmem(b->data + i, b->n_bytes - i, what, n)) != NULL) {
        buf_put(&out, b->data + i, (size_t)(hit - b->data) - i);
        buf_puts(&out, by);
        i = (size_t)(hit - b->data) + n;
    }
    if (i > 0) {
        buf_put(&out, b->data + i, b->n_bytes - i);
        buf_clear(b);
        buf_put(b, out.data, out.n_bytes);
    }
    buf_deinit(&out);
}

/* The library cleans up each word before it joins the words; this does the same. */
static void put_wordpiece(const struct decoder *d, const char *s, size_t n, bool first,
                          struct buf *out)
{
    static const char *const cleanup[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    struct buf word;
    buf_init(&word, out->max_bytes);
    if (!first && has_at(s, n, 0, d)) {
        buf_put(&word, s + d->text_bytes, n - d->text_bytes);
    } else {
        if (!first) {
            buf_puts(&word, " ");
        }
        buf_put(&word, s, n);
    }
    for (size_t i = 0; d->cleanup && i < sizeof cleanup / sizeof cleanup[0]; i++) {
        replace_all(&word, cleanup[i][0], cleanup[i][1]);
    }
    buf_put(out, word.data, word.n_bytes);
    buf_deinit(&word);
}

static void put_bpe(const struct decoder *d, const char *s, size_t n, bool last, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        if (d->text_bytes > 0 && has_at(s, n, i, d)) {
            if (!last) {
                buf_puts(out, " ");
            }
            i += d->text_bytes;
        } else {
            buf_putc(out, s[i++]);
        }
    }
}

/* Decoders that handle each string separately. */
static void decode_each(const struct decoder *d, struct scratch *sc, const struct list *in,
                        struct list *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = list_get(in, i, &n);
        switch (d->kind) {
        case DECODE_REPLACE: put_replaced(d, sc, s, n, &out->bytes); break;
        case DECODE_STRIP: put_stripped(d, s, n, &out->bytes); break;
        case DECODE_METASPACE: put_metaspace(d, s, n, i == 0, &out->bytes); break;
        case DECODE_WORDPIECE: put_wordpiece(d, s, n, i == 0, &out->bytes); break;
        default: put_bpe(d, s, n, i + 1 == in->n, &out->bytes); break;
        }
        list_close(out);
    }
}

static void decode_one(const struct decoder *d, struct scratch *sc, const struct list *in,
                       struct list *out)
{
    if (d->kind == DECODE_BYTE_LEVEL) {
        decode_byte_level(in, out);
    } else if (d->kind == DECODE_BYTE_FALLBACK) {
        decode_byte_fallback(in, out);
    } else if (d->kind == DECODE_FUSE) {
        list_add(out, or_empty(in->bytes.data), in->bytes.n_bytes);
    } else {
        decode_each(d, sc, in, out);
    }
}

/* The string that decoding starts from: the normalised form of an added token if it has one,
 * otherwise the token's text. */
static const char *decode_text(const struct tokenizer *tok, int32_t id, size_t *n)
{
    int32_t at = id >= 0 && id < tok->texts.n_ids ? tok->added_of[id] : -1;
    if (at >= 0 && tok->added[at].normalized_text) {
        *n = tok->added[at].normalized_bytes;
        return tok->added[at].normalized_text;
    }
    return strings_get(&tok->texts, id, n);
}

/* Whether decoding skips the token. The library decides by the string that decoding starts from. A
 * normalised form may be spelled differently, and then counts as special only if another token has
 * that spelling and is special. */
static bool is_skipped(const struct tokenizer *tok, int32_t id)
{
    int32_t at = tok->added_of[id];
    if (at >= 0 && tok->added[at].normalized_text) {
        at = string_table_find(&tok->added_table, tok->added[at].normalized_text,
                               tok->added[at].normalized_bytes);
    }
    return at >= 0 && tok->added[at].special;
}

/* Two lists alternate as input and output of the decoders. */
void tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n_ids,
                      bool skip_special, struct buf *out)
{
    struct list lists[2] = {0};
    buf_init(&lists[0].bytes, out->max_bytes * 4);
    buf_init(&lists[1].bytes, out->max_bytes * 4);
    struct list *in = &lists[0], *next = &lists[1];
    for (size_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *s = decode_text(tok, ids[i], &n);
        if (s && !(skip_special && is_skipped(tok, ids[i]))) {
            list_add(in, s, n);
        }
    }
    struct scratch *sc = scratch_take(tok);
    for (size_t i = 0; i < tok->n_decoders; i++) {
        list_clear(next);
        decode_one(&tok->decoders[i], sc, in, next);
        struct list *swap = in;
        in = next;
        next = swap;
    }
    scratch_give(tok, sc);
    for (size_t i = 0; i < in->n; i++) {
        size_t n;
        const char *s = list_get(in, i, &n);
        if (i > 0 && !tok->has_decoder) {
            buf_puts(out, " ");
        }
        buf_put(out, s, n);
    }
    out->failed = out->failed || lists[0].bytes.failed || lists[1].bytes.failed;
    for (int i = 0; i < 2; i++) {
        buf_deinit(&lists[i].bytes);
        free(lists[i].end);
    }
}

/* ---- pieces of a stream ---- */

/* The text that one token adds in the middle of a stream, before UTF-8 is checked. */
static void put_piece(const struct tokenizer *tok, struct scratch *sc, const char *s, size_t n,
                      struct buf *out)
{
    if (tok->n_decoders == 1 && tok->decoders[0].kind == DECODE_BYTE_LEVEL) {
        put_bytes(out, s, n); // the common case, which happens a hundred thousand times at load
        return;
    }
    struct buf a, b;
    buf_init(&a, 1 << 24);
    buf_init(&b, 1 << 24);
    if (!tok->has_decoder) {
        buf_puts(&a, " ");
    }
    buf_put(&a, s, n);
    for (size_t i = 0; i < tok->n_decoders; i++) {
        const struct decoder *d = &tok->decoders[i];
        const char *text = or_empty(a.data);
        int byte;
        buf_clear(&b);
        switch (d->kind) {
        case DECODE_BYTE_LEVEL: put_bytes(&b, text, a.n_bytes); break;
        case DECODE_REPLACE: put_replaced(d, sc, text, a.n_bytes, &b); break;
        case DECODE_METASPACE: put_metaspace(d, text, a.n_bytes, false, &b); break;
        case DECODE_WORDPIECE: put_wordpiece(d, text, a.n_bytes, false, &b); break;
        case DECODE_BPE: put_bpe(d, text, a.n_bytes, false, &b); break;
        case DECODE_BYTE_FALLBACK:
            byte = byte_of_token(text, a.n_bytes);
            if (byte >= 0) {
                buf_putc(&b, (char)byte);
                // The bytes are part of a character, to which no further decoder applies.
                i = tok->n_decoders;
                break;
            }
            continue;
        default: continue; // Fuse only joins strings; Strip affects only the ends of a whole text
        }
        struct buf swap = a;
        a = b;
        b = swap;
    }
    buf_put(out, a.data, a.n_bytes);
    buf_deinit(&a);
    buf_deinit(&b);
}

/* The text of each token in a stream, computed once, so that streaming needs no decoders. */
enum status decoders_make_pieces(struct tokenizer *tok, struct err *err)
{
    struct scratch *sc = scratch_take(tok);
    struct buf piece;
    buf_init(&piece, 1 << 24);
    bool good = true, by_bytes = false;
    const uint64_t n_lost = buf_n_lost(); // decoders allocate their own buffers
    for (size_t i = 0; i < tok->n_normalizers; i++) {
        by_bytes = by_bytes || tok->normalizers[i].kind == NORMALIZE_BYTE_LEVEL;
    }
    tok->longest_piece = 1;
    for (int32_t id = 0; good && id < tok->texts.n_ids; id++) {
        size_t n;
        // The text of an added token is literal; only byte symbols must be decoded.
        const char *s;
        if (by_bytes) {
            s = decode_text(tok, id, &n);
        } else {
            s = strings_get(&tok->texts, id, &n);
        }
        if (!s) {
            continue;
        }
        buf_clear(&piece);
        put_piece(tok, sc, s, n, &piece);
        good = !piece.failed && buf_n_lost() == n_lost &&
               strings_set(&tok->pieces, id, or_empty(piece.data), piece.n_bytes);
        tok->longest_piece = greater(piece.n_bytes, tok->longest_piece);
    }
    buf_deinit(&piece);
    scratch_give(tok, sc);
    if (!good) {
        return err_set(err, ERR_NOMEM, "out of memory for the token table");
    }
    return OK;
}
