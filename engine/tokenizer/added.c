// SPDX-License-Identifier: Apache-2.0
/* Added tokens: strings that are cut out of the text before any other processing. */
#include "engine/tokenizer/impl.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/tokenizer/unicode.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* HTML tags, which occur in harmless text. Gemma lists some as added tokens. */
static bool is_html_name(const char *s, size_t n)
{
    static const char *const names[] = {
        "table", "caption", "thead", "tbody", "tfoot", "tr",         "th",     "td",  "h1",
        "h2",    "h3",      "h4",    "h5",    "h6",    "blockquote", "strong", "em",  "b",
        "i",     "u",       "s",     "sub",   "sup",   "code",       "p",      "br",  "hr",
        "ul",    "ol",      "li",    "div",   "span",  "a",          "img",    "pre", "html",
        "head",  "body",    "q",     "del",   "ins",   "mark",       "small"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0) {
            return true;
        }
    }
    return false;
}

/* True for strings that are treated as control tokens although the file does not call them
 * special. */
static bool looks_like_markup(const char *s, size_t n)
{
    bool angle = n > 2 && s[0] == '<' && s[n - 1] == '>';
    bool square = n > 2 && s[0] == '[' && s[n - 1] == ']';
    if (!angle && !square) {
        return false;
    }
    size_t slash = s[1] == '/';
    return !(angle && is_html_name(s + 1 + slash, n - 2 - slash));
}

/* The id that the library assigns to a new token. It is the model's id for that text, if there is
 * one; otherwise the next id after the model's entries (counted without gaps) and after the ids
 * assigned so far. */
static int32_t new_id(struct tokenizer *tok, const char *text, size_t n)
{
    int32_t id = string_table_find(&tok->by_text, text, n);
    if (id < 0) {
        id = greater(tok->next_added_id, tok->n_model);
        tok->next_added_id = id + 1;
    }
    return id;
}

/* Appends the token, under the model's id for this text or under a new one. */
static int32_t append(struct tokenizer *tok, const struct added *token)
{
    if (tok->n_added == tok->cap_added) {
        tok->cap_added = tok->cap_added ? 2 * tok->cap_added : 64;
        tok->added = xrealloc(tok->added, tok->cap_added * sizeof *tok->added);
    }
    int32_t at = (int32_t)tok->n_added++;
    tok->added[at] = (struct added){.id = new_id(tok, token->text, token->n_bytes),
                                    .text = xstrndup(token->text, token->n_bytes),
                                    .n_bytes = token->n_bytes};
    return at;
}

/* A later entry for the same text changes its flags. */
enum status added_put(struct tokenizer *tok, const struct added *token, struct err *err)
{
    if (token->n_bytes == 0) {
        return OK;
    }
    if (!tok->added_table.slots && !string_table_init(&tok->added_table, &tok->added_texts, 64)) {
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    int32_t at = string_table_find(&tok->added_table, token->text, token->n_bytes);
    if (at < 0) {
        at = append(tok, token);
        if (!strings_set(&tok->added_texts, at, token->text, token->n_bytes) ||
            !string_table_put(&tok->added_table, at) || tok->added[at].id > MAX_TOKEN_ID) {
            return err_set(err, ERR_LIMIT, "too many added tokens");
        }
    }
    struct added *a = &tok->added[at];
    a->single_word = token->single_word;
    a->lstrip = token->lstrip;
    a->rstrip = token->rstrip;
    a->normalized = token->normalized;
    a->special = token->special;
    a->control = a->special || looks_like_markup(a->text, a->n_bytes);
    return OK;
}

static void note_first(uint64_t bits[4], const char *s)
{
    unsigned char c = (unsigned char)s[0];
    bits[c / 64] |= 1ULL << (c % 64);
}

/* Tokens marked as normalized are searched for in normalised text. So their own text is normalised
 * here, once. */
static enum status normalize_text(struct tokenizer *tok, struct added *a, struct err *err)
{
    struct scratch *sc = scratch_take(tok);
    const char *s = a->text;
    size_t n = a->n_bytes;
    bool head, good = normalizer_apply(tok, sc, &s, &n, &head);
    if (good && (n != a->n_bytes || memcmp(s, a->text, n) != 0)) {
        free(a->normalized_text);
        a->normalized_text = xstrndup(s, n);
        a->normalized_bytes = n;
    }
    scratch_give(tok, sc);
    if (!good) {
        return err_set(err, ERR_LIMIT, "an added token cannot be normalised");
    }
    return OK;
}

/* Called once all added tokens are known: computes their normalised forms and builds the two tries.
 * If the model's ids have gaps, an assigned id may also belong to a later token, which then owns
 * the id. The earlier token is no longer recognised in text, so that user text cannot become a
 * special token in this way. */
enum status added_finish(struct tokenizer *tok, struct err *err)
{
    if (!trie_init(&tok->raw_trie) || !trie_init(&tok->normalized_trie)) {
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    for (size_t i = 0; i < tok->n_added; i++) {
        struct added *a = &tok->added[i];
        const char *text = a->text;
        size_t n = a->n_bytes;
        if (tok->added_of[a->id] != (int32_t)i) {
            continue;
        }
        if (a->normalized) {
            TRY(normalize_text(tok, a, err));
            if (a->normalized_text) {
                text = a->normalized_text;
            }
            if (a->normalized_text) {
                n = a->normalized_bytes;
            }
        }
        if (n == 0) { // with an empty text the library would cut between all bytes, or fail
            return err_set(err, ERR_UNSUPPORTED, "the added token %d normalises to nothing",
                           (int)a->id);
        }
        tok->has_normalized = tok->has_normalized || a->normalized;
        note_first(a->normalized ? tok->normalized_first : tok->raw_first, text);
        struct trie *t = a->normalized ? &tok->normalized_trie : &tok->raw_trie;
        if (!trie_put(t, text, n, (int32_t)i)) {
            return err_set(err, ERR_LIMIT, "too many added tokens");
        }
    }
    return OK;
}

static bool is_word(uint32_t cp)
{
    return (unicode_flags(cp) & U_RUST_WORD) != 0;
}

/* A single_word token must not touch a word character on either side. */
static bool stands_alone(const struct added_search *a, size_t start, size_t end)
{
    uint32_t cp;
    if (start > 0) {
        unicode_previous(a->s, start, &cp);
        if (is_word(cp)) {
            return false;
        }
    }
    if (end < a->n) {
        unicode_next(a->s + end, &cp);
        if (is_word(cp)) {
            return false;
        }
    }
    return true;
}

/* The position of the next byte of user input at or after `at`. */
static size_t next_input(struct added_search *a, size_t at)
{
    while (a->next_input < a->n_input && a->input[a->next_input].end <= at) {
        a->next_input++;
    }
    if (a->next_input == a->n_input) {
        return SIZE_MAX;
    }
    size_t start = a->input[a->next_input].start;
    return greater(start, at);
}

static bool is_allowed(const struct added_search *a, int32_t index, bool has_input)
{
    const struct added *token = &a->tok->added[index];
    return (a->parse_special || !token->special) && !(has_input && token->control);
}

/* The longest of the tokens at `at` that are allowed there. A longer token that is not allowed does
 * not hide a shorter one that is. */
static int32_t longest(struct added_search *a, size_t at, size_t *end)
{
    uint32_t node = 0;
    int32_t best = -1;
    size_t limit = a->n_input > 0 ? next_input(a, at) : SIZE_MAX;
    for (size_t i = at; i < a->n; i++) {
        node = trie_step(a->trie, node, (unsigned char)a->s[i]);
        if (node == 0) {
            break;
        }
        int32_t v = a->trie->value[node];
        if (v >= 0 && is_allowed(a, v, i + 1 > limit)) {
            best = v;
            *end = i + 1;
        }
    }
    return best;
}

/* Skips bytes that begin no added token, which is most of a text. */
static size_t skip_to_candidate(const struct added_search *a, size_t at)
{
    while (at < a->n) {
        unsigned char c = (unsigned char)a->s[at];
        if (a->first_bytes[c / 64] >> (c % 64) & 1) {
            break;
        }
        at++;
    }
    return at;
}

/* Finds the next added token from the left, and the longest one at its place. White space next to
 * the token belongs to the match if the token's flags (lstrip, rstrip) say so. */
bool added_search_next(struct added_search *a, struct range *match, int32_t *index)
{
    for (;;) {
        size_t start = skip_to_candidate(a, a->from), end = 0;
        if (start >= a->n) {
            a->from = a->n;
            return false;
        }
        int32_t v = longest(a, start, &end);
        if (v < 0) {
            a->from = start + 1;
            continue;
        }
        const struct added *token = &a->tok->added[v];
        a->from = end;
        if (token->single_word && !stands_alone(a, start, end)) {
            continue; // as in the library, the text that it covers is not searched again
        }
        if (token->lstrip) {
            size_t low = a->covered;
            if (start > low) {
                start = start - unicode_space_suffix(a->s + low, start - low);
            } else {
                start = low;
            }
        }
        if (token->rstrip) {
            // If the previous match swallowed part of the white space, the space ends where that
            // match ended.
            if (end < a->covered) {
                end = a->covered;
            } else {
                end = end + unicode_space_prefix(a->s + end, a->n - end);
            }
        }
        if (start >= end) {
            continue; // the match lies entirely in text that the previous match swallowed
        }
        a->covered = end;
        *match = (struct range){start, end};
        *index = v;
        return true;
    }
}
