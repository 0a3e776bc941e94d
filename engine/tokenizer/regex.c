// SPDX-License-Identifier: Apache-2.0
/* Runs compiled patterns: PCRE2 with JIT, or a hand-written splitter. pattern.c translates
 * Oniguruma's syntax; split.c has the splitters. */
#include "engine/tokenizer/regex.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>

enum {
    MATCH_LIMIT = 50 * 1000 * 1000, // chosen: far more than real patterns need per match
    JIT_STACK_START = 64 << 10,
    JIT_STACK_MAX = 64 << 20, // chosen: enough for a backtracking pattern over a megabyte of text
};

/* Newlines are LF only and ^ matches at every line, as in Ruby. */
static enum status compile_pcre(struct regex *re, const char *translated, struct err *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) {
        return err_set(err, ERR_NOMEM, "out of memory");
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    re->code = pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!re->code) {
        PCRE2_UCHAR text[200];
        pcre2_get_error_message(code, text, sizeof text);
        return err_set(err, ERR_UNSUPPORTED, "the pattern \"%.200s\" does not compile: %s",
                       translated, (const char *)text);
    }
    // Without JIT the interpreter gives the same result more slowly.
    re->has_jit = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE) == 0;
    return OK;
}

/* Well-known patterns have a hand-written splitter (split.c). */
enum status regex_compile(const char *pattern, struct regex **out, struct err *err)
{
    splitter_fn *splitter = splitter_of(pattern);
    if (!splitter) {
        return regex_compile_pcre(pattern, out, err);
    }
    *out = xcalloc(1, sizeof **out);
    (*out)->splitter = splitter;
    return OK;
}

enum status regex_compile_pcre(const char *pattern, struct regex **out, struct err *err)
{
    struct regex *re = xcalloc(1, sizeof *re);
    struct buf translated;
    buf_init(&translated, 4 << 20);
    enum status st = pattern_translate(pattern, &translated, err);
    if (st == OK) {
        st = compile_pcre(re, or_empty(translated.data), err);
    }
    buf_deinit(&translated);
    if (st != OK) {
        regex_free(re);
        return st;
    }
    *out = re;
    return OK;
}

void regex_free(struct regex *re)
{
    if (re) {
        pcre2_code_free(re->code);
        free(re);
    }
}

/* The matcher's state is created for the scratch's first match, and then kept. */
static bool prepare_match(struct scratch *sc)
{
    if (sc->match_data) {
        return true;
    }
    sc->match_data = pcre2_match_data_create(1, NULL);
    sc->match_context = pcre2_match_context_create(NULL);
    sc->jit_stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
    if (!sc->match_data || !sc->match_context) {
        return false;
    }
    if (sc->jit_stack) {
        pcre2_jit_stack_assign(sc->match_context, NULL, sc->jit_stack);
    }
    pcre2_set_match_limit(sc->match_context, MATCH_LIMIT);
    pcre2_set_heap_limit(sc->match_context, 512 << 10); // KiB
    return true;
}

void regex_scratch_free(struct scratch *sc)
{
    pcre2_match_data_free(sc->match_data);
    pcre2_match_context_free(sc->match_context);
    pcre2_jit_stack_free(sc->jit_stack);
}

/* A text that needs more than the JIT's stack is matched by the interpreter, which uses the
 * heap. */
int regex_find_pcre(const struct regex *re, struct scratch *sc, const char *s, size_t n,
                    size_t from, size_t *start, size_t *end)
{
    if (!prepare_match(sc)) {
        return -1;
    }
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (re->has_jit) {
        rc =
            pcre2_jit_match(re->code, (PCRE2_SPTR)s, n, from, 0, sc->match_data, sc->match_context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(re->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         sc->match_data, sc->match_context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (rc < 0) {
        return -1;
    }
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(sc->match_data);
    *start = v[0];
    *end = v[1];
    // \K in a lookahead may put the start of a match after its end. No real pattern does that, but
    // a size must not wrap.
    if (v[0] <= v[1] && v[1] <= n) {
        return 1;
    }
    return -1;
}

int regex_find(const struct regex *re, struct scratch *sc, const char *s, size_t n, size_t from,
               size_t *start, size_t *end)
{
    if (re->splitter) {
        return re->splitter(s, n, from, start, end);
    }
    return regex_find_pcre(re, sc, s, n, from, start, end);
}

/* Searches the text in stretches of limited length. Some memmem, such as a thread sanitizer's, scan
 * all the memory that they are given, which would make many matches quadratic. */
static const char *find_literal(const struct pattern *p, const char *s, size_t n)
{
    enum { STRETCH = 4096 };
    for (size_t at = 0; at < n; at += STRETCH) {
        const size_t left = n - at, most = STRETCH + p->literal_bytes - 1;
        const char *hit = memmem(s + at, lesser(left, most), p->literal, p->literal_bytes);
        if (hit) {
            return hit;
        }
    }
    return NULL;
}

/* Skips an empty match directly after the last match. */
static int walk_next(struct regex_walk *w, struct scratch *sc, size_t *start, size_t *end)
{
    while (w->from <= w->n) {
        int rc = regex_find(w->re, sc, w->s, w->n, w->from, start, end);
        if (rc <= 0) {
            w->from = w->n + 1;
            return rc;
        }
        if (*start == *end && w->has_last && w->last_end == *end) {
            if (w->from < w->n) {
                w->from += unicode_lead_length((unsigned char)w->s[w->from]);
            } else {
                w->from++;
            }
            continue;
        }
        w->from = w->last_end = *end;
        w->has_last = true;
        return 1;
    }
    return 0;
}

/* Reads {"Regex": ...} or {"String": ...}, as in tokenizer.json. */
enum status pattern_load(const struct json *object, struct pattern *p, struct err *err)
{
    const char *regex = json_get_string(object, "Regex");
    const char *literal = json_get_string(object, "String");
    if (regex) {
        return regex_compile(regex, &p->regex, err);
    }
    if (!literal) {
        return err_set(err, ERR_FORMAT, "a pattern must be {\"Regex\": ...} or {\"String\": ...}");
    }
    p->literal = xstrdup(literal);
    p->literal_bytes = strlen(literal);
    return OK;
}

void pattern_deinit(struct pattern *p)
{
    regex_free(p->regex);
    free(p->literal);
    *p = (struct pattern){0};
}

void pattern_walk_init(struct pattern_walk *w, const struct pattern *p, const char *s, size_t n)
{
    *w = (struct pattern_walk){.pattern = p, .s = s, .n = n};
    w->regex = (struct regex_walk){.re = p->regex, .s = s, .n = n};
}

int pattern_walk_next(struct pattern_walk *w, struct scratch *sc, size_t *start, size_t *end)
{
    const struct pattern *p = w->pattern;
    if (p->regex) {
        return walk_next(&w->regex, sc, start, end);
    }
    if (p->literal_bytes == 0) {
        // The empty pattern matches before each character and at the end.
        if (w->from > w->n) {
            return 0;
        }
        *start = *end = w->from;
        if (w->from < w->n) {
            w->from += unicode_lead_length((unsigned char)w->s[w->from]);
        } else {
            w->from++;
        }
        return 1;
    }
    if (w->from >= w->n) {
        return 0;
    }
    const char *hit = find_literal(p, w->s + w->from, w->n - w->from);
    if (!hit) {
        w->from = w->n;
        return 0;
    }
    *start = (size_t)(hit - w->s);
    *end = *start + p->literal_bytes;
    w->from = *end;
    return 1;
}
