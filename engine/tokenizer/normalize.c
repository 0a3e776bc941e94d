// SPDX-License-Identifier: Apache-2.0
/* Normalizers: text in, text out. Text that a step leaves unchanged is not copied. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- reading ---- */

static const struct {
    const char *name;
    enum normalizer_kind kind;
} simple[] = {
    {"NFC", NORMALIZE_NFC},
    {"NFD", NORMALIZE_NFD},
    {"NFKC", NORMALIZE_NFKC},
    {"NFKD", NORMALIZE_NFKD},
    {"Lowercase", NORMALIZE_LOWERCASE},
    {"StripAccents", NORMALIZE_STRIP_ACCENTS},
    {"Nmt", NORMALIZE_NMT},
    {"ByteLevel", NORMALIZE_BYTE_LEVEL},
};

/* Reads the members of those kinds that have any. */
static enum status load_details(struct normalizer *op, const char *type, const struct json *node,
                                struct err *err)
{
    if (strcmp(type, "Strip") == 0 || strcmp(type, "StripNormalizer") == 0) {
        op->kind = NORMALIZE_STRIP;
        op->left = json_get_bool(node, "strip_left", false);
        op->right = json_get_bool(node, "strip_right", false);
        return OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        const char *text = json_get_string(node, "prepend");
        op->kind = NORMALIZE_PREPEND;
        op->text = xstrdup(or_empty(text));
        op->text_bytes = strlen(op->text);
        if (!text) {
            return err_set(err, ERR_FORMAT, "Prepend needs a text");
        }
        return OK;
    }
    if (strcmp(type, "Replace") == 0) {
        const char *text = json_get_string(node, "content");
        op->kind = NORMALIZE_REPLACE;
        op->text = xstrdup(or_empty(text));
        op->text_bytes = strlen(op->text);
        TRY(pattern_load(json_get(node, "pattern"), &op->pattern, err));
        if (!text) {
            return err_set(err, ERR_FORMAT, "Replace needs its content");
        }
        return OK;
    }
    if (strcmp(type, "BertNormalizer") == 0) {
        op->kind = NORMALIZE_BERT;
        op->clean_text = json_get_bool(node, "clean_text", true);
        op->chinese_chars = json_get_bool(node, "handle_chinese_chars", true);
        op->lower = json_get_bool(node, "lowercase", true);
        op->strip_accents = json_get_bool(node, "strip_accents", op->lower);
        return OK;
    }
    if (strcmp(type, "Precompiled") == 0) {
        const char *map = json_get_string(node, "precompiled_charsmap");
        op->kind = NORMALIZE_PRECOMPILED;
        op->map = map ? charsmap_load(map, strlen(map)) : NULL;
        if (!op->map) {
            return err_set(err, ERR_FORMAT, "precompiled_charsmap cannot be read");
        }
        return OK;
    }
    return err_set(err, ERR_UNSUPPORTED, "the normalizer \"%s\" is not supported", type);
}

/* Flattens a sequence into the tokenizer's list. */
enum status normalizer_load(const struct json *node, struct tokenizer *tok, struct err *err)
{
    const char *type = json_get_string(node, "type");
    if (!type) {
        type = "";
    }
    if (strcmp(type, "Sequence") == 0) {
        const struct json *list = json_get(node, "normalizers");
        for (const struct json *child = json_first(list); child; child = json_next(child)) {
            TRY(normalizer_load(child, tok, err)); // the JSON reader bounds the depth
        }
        return OK;
    }
    if (tok->n_normalizers == MAX_STAGES) {
        return err_set(err, ERR_LIMIT, "more than %d normalizers", MAX_STAGES);
    }
    struct normalizer *op = &tok->normalizers[tok->n_normalizers++];
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        if (strcmp(type, simple[i].name) == 0) {
            op->kind = simple[i].kind;
            return OK;
        }
    }
    return load_details(op, type, node, err);
}

void normalizer_deinit(struct normalizer *op)
{
    pattern_deinit(&op->pattern);
    charsmap_free(op->map);
    free(op->text);
    *op = (struct normalizer){0};
}

/* ---- Unicode normalisation forms ---- */

static void put_cp(struct buf *out, uint32_t cp)
{
    char utf8[4];
    buf_put(out, utf8, utf8_encode(cp, utf8));
}

static int combining_class(int32_t cp)
{
    if (unicode_has_forms((uint32_t)cp)) {
        return utf8proc_get_property(cp)->combining_class;
    }
    return 0;
}

/* Sorts marks by combining class, stably. It makes one counting pass per class that occurs, so text
 * that consists only of marks costs at most 255 passes. */
static void order_marks(int32_t *cp, size_t n, int32_t *tmp)
{
    bool present[256] = {false};
    bool sorted = true;
    for (size_t i = 0; i < n; i++) {
        present[combining_class(cp[i])] = true;
        sorted = sorted && (i == 0 || combining_class(cp[i - 1]) <= combining_class(cp[i]));
    }
    if (sorted) {
        return;
    }
    size_t at = 0;
    for (int c = 0; c < 256; c++) {
        for (size_t i = 0; present[c] && i < n; i++) {
            if (combining_class(cp[i]) == c) {
                tmp[at++] = cp[i];
            }
        }
    }
    memcpy(cp, tmp, n * sizeof *cp);
}

/* Sorts the marks that follow one base by their class, as Unicode's canonical ordering requires. */
static void order_all(int32_t *cp, size_t n, int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && combining_class(cp[i]) != 0) {
            i++;
        }
        if (i > start + 1) {
            order_marks(cp + start, i - start, tmp);
        }
        i += i == start;
    }
}

/* Decomposes one character into at most `room` code points, which is always enough. */
static size_t decompose(uint32_t c, int options, int32_t *out, size_t room)
{
    utf8proc_ssize_t k = 0;
    if (unicode_has_forms(c)) {
        k = utf8proc_decompose_char((int32_t)c, out, (utf8proc_ssize_t)room, options, NULL);
    }
    if (k <= 0 || (size_t)k > room) {
        out[0] = (int32_t)c;
        return 1;
    }
    return (size_t)k;
}

/* Composes in place and returns the new length. Characters that the normalisation forms do not know
 * combine with nothing. */
static size_t compose_all(int32_t *cp, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n;) {
        size_t start = i;
        while (i < n && unicode_has_forms((uint32_t)cp[i])) {
            i++;
        }
        if (i == start) {
            cp[kept++] = cp[i++];
            continue;
        }
        memmove(cp + kept, cp + start, (i - start) * sizeof *cp);
        utf8proc_ssize_t k = utf8proc_normalize_utf32(cp + kept, (utf8proc_ssize_t)(i - start),
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        kept += k < 0 ? i - start : (size_t)k;
    }
    return kept;
}

/* Normalises s and appends the result; false when out of memory. */
static bool put_form(enum normalizer_kind form, const char *s, size_t n, struct buf *out)
{
    bool compat = form == NORMALIZE_NFKC || form == NORMALIZE_NFKD;
    bool compose = form == NORMALIZE_NFC || form == NORMALIZE_NFKC;
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    // A code point decomposes into at most 18 (U+FDFA).
    size_t cap = 18 * n + 1;
    int32_t small[2 * 256];
    int32_t *cp = 2 * cap <= 512 ? small : malloc(2 * cap * sizeof *cp);
    if (!cp) {
        return false;
    }
    size_t n_cp = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += unicode_next(s + i, &c);
        n_cp += decompose(c, options, cp + n_cp, cap - n_cp);
    }
    order_all(cp, n_cp, cp + cap);
    if (compose) {
        n_cp = compose_all(cp, n_cp);
    }
    for (size_t i = 0; i < n_cp; i++) {
        put_cp(out, (uint32_t)cp[i]);
    }
    if (cp != small) {
        free(cp);
    }
    return !out->failed;
}

static size_t ascii_run(const char *s, size_t n, size_t from)
{
    size_t i = from;
    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        if (w & 0x8080808080808080ULL) {
            break;
        }
    }
    while (i < n && (unsigned char)s[i] < 0x80) {
        i++;
    }
    return i - from;
}

/* Position of the next character that NFC may change, or n; *safe is the character before it. */
static size_t next_unsafe(const char *s, size_t n, size_t from, size_t *safe)
{
    size_t i = from;
    *safe = from;
    while (i < n) {
        size_t run = ascii_run(s, n, i);
        if (run > 0) {
            i += run;
            *safe = i - 1;
            continue;
        }
        uint32_t cp;
        size_t width = unicode_next(s + i, &cp);
        if (unicode_flags(cp) & U_NFC_UNSAFE) {
            return i;
        }
        *safe = i;
        i += width;
    }
    return n;
}

/* NFC leaves most text unchanged, so only stretches around unsafe characters use the tables. */
static bool apply_nfc(const char *s, size_t n, struct buf *out, bool *changed)
{
    size_t safe, at = next_unsafe(s, n, 0, &safe), copied = 0;
    *changed = at < n;
    while (at < n) {
        size_t start = lesser(safe, at);
        start = greater(copied, start);
        size_t end = at;
        while (end < n) {
            uint32_t cp;
            size_t width = unicode_next(s + end, &cp);
            if (!(unicode_flags(cp) & U_NFC_UNSAFE)) {
                break;
            }
            end += width;
        }
        buf_put(out, s + copied, start - copied);
        if (!put_form(NORMALIZE_NFC, s + start, end - start, out)) {
            return false;
        }
        copied = end;
        at = next_unsafe(s, n, end, &safe);
    }
    if (*changed) {
        buf_put(out, s + copied, n - copied);
    }
    return true;
}

/* True if no earlier character can combine with this one or be reordered with it. */
static bool begins_afresh(const char *s)
{
    uint32_t cp;
    int32_t first[18];
    unicode_next(s, &cp);
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    utf8proc_ssize_t k = utf8proc_decompose_char((int32_t)cp, first, 18, options, NULL);
    return k > 0 && k <= 18 && !(unicode_flags((uint32_t)first[0]) & U_NFC_UNSAFE);
}

/* NFD, NFKC and NFKD. ASCII is copied; the rest is normalised in pieces. A piece begins with the
 * ASCII character before it, because marks may combine with that. */
static bool apply_form(enum normalizer_kind form, const char *s, size_t n, struct buf *out,
                       bool *changed)
{
    if (form == NORMALIZE_NFC) {
        return apply_nfc(s, n, out, changed);
    }
    *changed = ascii_run(s, n, 0) < n;
    // Pieces end before an ASCII character, which never combines, or at 4 KiB, to bound memory.
    for (size_t i = 0; *changed && i < n;) {
        size_t run = ascii_run(s, n, i);
        size_t keep = run > 0 && i + run < n ? run - 1 : run;
        buf_put(out, s + i, keep);
        i += keep;
        size_t end = i < n ? i + unicode_lead_length((unsigned char)s[i]) : n;
        while (end < n && (unsigned char)s[end] >= 0x80) {
            if (end - i >= 4096 && begins_afresh(s + end)) {
                break;
            }
            end += unicode_lead_length((unsigned char)s[end]);
        }
        if (end > i && !put_form(form, s + i, end - i, out)) {
            return false;
        }
        i = end;
    }
    return true;
}

/* ---- the other steps ---- */

/* One character may become two. */
static void apply_lowercase(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp, low[2];
        i += unicode_next(s + i, &cp);
        size_t k = unicode_to_lower(cp, low);
        for (size_t j = 0; j < k; j++) {
            put_cp(out, low[j]);
        }
    }
}

static void apply_filter(uint32_t bits, const char *s, size_t n, struct buf *out, bool *head)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t width = unicode_next(s + i, &cp);
        if (!(unicode_flags(cp) & bits)) {
            buf_put(out, s + i, width);
        } else if (i == 0) {
            *head = true;
        }
        i += width;
    }
}

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F ||
           c == 0x9F;
}

static bool nmt_is_space(uint32_t c)
{
    return c == 9 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
}

/* NMT's rules: removes control characters, and replaces all kinds of white space by a space. *head
 * is set if the first character was removed. */
static void apply_nmt(const char *s, size_t n, struct buf *out, bool *head)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t width = unicode_next(s + i, &cp);
        if (nmt_drops(cp)) {
            *head = *head || i == 0;
        } else if (nmt_is_space(cp)) {
            buf_putc(out, ' ');
        } else {
            buf_put(out, s + i, width);
        }
        i += width;
    }
}

static bool is_cjk(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

/* Removes control characters, and adds spaces around ideographs. */
static void bert_clean(const struct normalizer *op, const char *s, size_t n, struct buf *out,
                       bool *head)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t width = unicode_next(s + i, &cp);
        uint32_t flags = unicode_flags(cp);
        if (op->clean_text && (flags & U_BERT_CONTROL)) {
            *head = *head || i == 0;
        } else if (op->clean_text && (flags & U_SPACE)) {
            buf_putc(out, ' ');
        } else if (op->chinese_chars && is_cjk(cp)) {
            buf_putc(out, ' ');
            buf_put(out, s + i, width);
            buf_putc(out, ' ');
        } else {
            buf_put(out, s + i, width);
        }
        i += width;
    }
}

/* BERT's normaliser: cleans, strips accents and lower-cases, in this order. */
static bool apply_bert(const struct normalizer *op, const char *s, size_t n, struct buf *out,
                       bool *head)
{
    struct buf a, b;
    buf_init(&a, out->max_bytes);
    buf_init(&b, out->max_bytes);
    bert_clean(op, s, n, &a, head);
    bool good = true;
    if (op->strip_accents && a.n_bytes > 0) {
        bool changed;
        good = apply_form(NORMALIZE_NFD, a.data, a.n_bytes, &b, &changed);
        if (changed) {
            buf_clear(&a);
            apply_filter(U_BERT_ACCENT, b.data, b.n_bytes, &a, head);
        }
    }
    if (op->lower && a.n_bytes > 0) {
        apply_lowercase(a.data, a.n_bytes, out);
    } else if (a.n_bytes > 0) {
        buf_put(out, a.data, a.n_bytes);
    }
    good = good && !a.failed && !b.failed;
    buf_deinit(&a);
    buf_deinit(&b);
    return good;
}

/* Replaces each space by `by`, the common case, without a search per space. */
static void replace_spaces(const char *s, size_t n, const char *by, size_t by_bytes,
                           struct buf *out)
{
    size_t spaces = 0;
    for (size_t i = 0; i < n; i++) {
        spaces += s[i] == ' ';
    }
    if (!buf_reserve(out, n + spaces * by_bytes + 8)) {
        buf_put(out, s, SIZE_MAX / 2); // marks the buffer as failed
        return;
    }
    char *p = out->data + out->n_bytes;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ') {
            *p++ = s[i];
        } else {
            memcpy(p, by, by_bytes);
            p += by_bytes;
        }
    }
    out->n_bytes = (size_t)(p - out->data);
    *p = '\0';
}

/* Replacing single spaces is so common that it has a separate path. */
static bool apply_replace(const struct normalizer *op, struct scratch *sc, const char *s, size_t n,
                          struct buf *out, bool *head)
{
    if (op->pattern.literal_bytes == 1 && op->pattern.literal[0] == ' ') {
        replace_spaces(s, n, op->text, op->text_bytes, out);
        return true;
    }
    struct pattern_walk w;
    pattern_walk_init(&w, &op->pattern, s, n);
    size_t start, end, copied = 0;
    int rc;
    while ((rc = pattern_walk_next(&w, sc, &start, &end)) > 0) {
        buf_put(out, s + copied, start - copied);
        buf_put(out, op->text, op->text_bytes);
        // In the library, the new text starts where the last character of the old text stood.
        *head = *head || (start == 0 && end > 0 &&
                          (op->text_bytes == 0 || end > unicode_lead_length((unsigned char)s[0])));
        copied = end;
    }
    buf_put(out, s + copied, n - copied);
    return rc == 0;
}

static void byte_level(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        put_cp(out, unicode_byte_symbol((unsigned char)s[i]));
    }
}

/* Strip only narrows the range of the text. */
static void apply_strip(const struct normalizer *op, const char **s, size_t *n, bool *head)
{
    if (op->left) {
        size_t k = unicode_space_prefix(*s, *n);
        *head = *head || k > 0;
        *s += k;
        *n -= k;
    }
    if (op->right) {
        *n -= unicode_space_suffix(*s, *n);
    }
}

/* Runs one step. *changed becomes false if the text is unchanged and `out` was not used. */
static bool apply_one(const struct normalizer *op, struct scratch *sc, const char *s, size_t n,
                      struct buf *out, bool *changed, bool *head)
{
    *changed = true;
    switch (op->kind) {
    case NORMALIZE_NFC:
    case NORMALIZE_NFD:
    case NORMALIZE_NFKC:
    case NORMALIZE_NFKD: return apply_form(op->kind, s, n, out, changed);
    case NORMALIZE_LOWERCASE: apply_lowercase(s, n, out); return true;
    case NORMALIZE_STRIP_ACCENTS: apply_filter(U_MARK, s, n, out, head); return true;
    case NORMALIZE_PREPEND:
        buf_put(out, op->text, op->text_bytes);
        buf_put(out, s, n);
        return true;
    case NORMALIZE_REPLACE: return apply_replace(op, sc, s, n, out, head);
    case NORMALIZE_BERT: return apply_bert(op, s, n, out, head);
    case NORMALIZE_NMT: apply_nmt(s, n, out, head); return true;
    case NORMALIZE_BYTE_LEVEL: byte_level(s, n, out); return true;
    case NORMALIZE_PRECOMPILED: charsmap_apply(op->map, s, n, out); return true;
    case NORMALIZE_STRIP: break;
    }
    *changed = false;
    return true;
}

/* Steps alternate between two buffers: each reads the output of the previous step and writes to the
 * other buffer. */
bool normalizer_apply(const struct tokenizer *tok, struct scratch *sc, const char **s, size_t *n,
                      bool *dropped_head)
{
    *dropped_head = false;
    int next = 0;
    for (size_t i = 0; i < tok->n_normalizers && *n > 0; i++) {
        const struct normalizer *op = &tok->normalizers[i];
        if (op->kind == NORMALIZE_STRIP) {
            apply_strip(op, s, n, dropped_head);
            continue;
        }
        struct buf *out = &sc->norm[next];
        buf_clear(out);
        bool changed;
        if (!apply_one(op, sc, *s, *n, out, &changed, dropped_head) || out->failed) {
            return false;
        }
        if (changed) {
            *s = or_empty(out->data);
            *n = out->n_bytes;
            next = !next;
        }
    }
    return true;
}
