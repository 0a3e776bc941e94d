// SPDX-License-Identifier: Apache-2.0
/* Sets of characters as ranges of code points, and their expression over UTF-8 bytes. */
#include "engine/grammar/charset.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { LAST = 0x10ffff, SURROGATE_LO = 0xd800, SURROGATE_HI = 0xdfff };

void charset_deinit(struct charset *s)
{
    free(s->v);
    *s = (struct charset){0};
}

void charset_add(struct charset *s, uint32_t lo, uint32_t hi)
{
    GROW(s->v, s->n, s->cap);
    s->v[s->n++] = (struct char_range){lo, hi};
}

void charset_add_all(struct charset *s, const struct charset *of)
{
    for (size_t i = 0; i < of->n; i++) {
        charset_add(s, of->v[i].lo, of->v[i].hi);
    }
}

static int by_lo(const void *p, const void *q)
{
    const struct char_range *a = p, *b = q;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Sorts the ranges, and merges those that overlap or touch. All other functions require this. */
void charset_sort(struct charset *s)
{
    if (s->n > 1) {
        qsort(s->v, s->n, sizeof *s->v, by_lo);
    }
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (n > 0 && s->v[i].lo <= s->v[n - 1].hi + 1) {
            s->v[n - 1].hi = greater(s->v[i].hi, s->v[n - 1].hi);
        } else {
            s->v[n++] = s->v[i];
        }
    }
    s->n = n;
}

/* The complement within all code points. */
void charset_invert(struct charset *s)
{
    charset_sort(s);
    struct charset out = {0};
    uint32_t from = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->v[i].lo > from) {
            charset_add(&out, from, s->v[i].lo - 1);
        }
        from = s->v[i].hi + 1;
    }
    if (from <= LAST) {
        charset_add(&out, from, LAST);
    }
    charset_deinit(s);
    *s = out;
}

/* ---- letter case ---- */

/* Characters that differ only in case, by Unicode's simple case folding. Each entry has the class
 * of its character; a class is named by one of its members. One list is sorted by character, the
 * other by class. */
static struct {
    struct cased {
        uint32_t c, class;
    } *by_c, *by_class;
    size_t n, cap;
    pthread_once_t once;
} cases = {.once = PTHREAD_ONCE_INIT};

static int by_class(const void *p, const void *q)
{
    const struct cased *a = p, *b = q;
    if (a->class != b->class) {
        return a->class < b->class ? -1 : 1;
    }
    return a->c < b->c ? -1 : a->c > b->c;
}

/* The Turkish dotless i and the capital I with a dot are not folded, because only some languages do
 * that. */
static uint32_t class_of(uint32_t c)
{
    if (c == 0x130 || c == 0x131) {
        return c;
    }
    return (uint32_t)utf8proc_tolower(utf8proc_toupper((int32_t)c));
}

static void make_cases(void)
{
    enum { LAST_CASED = 0x1ffff }; // no letter above this has a case
    for (uint32_t c = 0; c <= LAST_CASED; c++) {
        uint32_t class = class_of(c), upper = (uint32_t)utf8proc_toupper((int32_t)c);
        if (class != c || (upper != c && class_of(upper) == c)) {
            GROW(cases.by_c, cases.n, cases.cap);
            cases.by_c[cases.n++] = (struct cased){c, class};
        }
    }
    cases.by_class = xcalloc(cases.n, sizeof *cases.by_class);
    memcpy(cases.by_class, cases.by_c, cases.n * sizeof *cases.by_c);
    qsort(cases.by_class, cases.n, sizeof *cases.by_class, by_class);
}

/* The first entry that is not less than (c, class). */
static size_t first_case(const struct cased *v, uint32_t c, uint32_t class, bool classes)
{
    size_t lo = 0, hi = cases.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        bool below = classes ? v[mid].class < class : v[mid].c < c;
        if (below) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

void charset_add_cases(struct charset *s)
{
    pthread_once(&cases.once, make_cases);
    charset_sort(s);
    for (size_t i = 0, n = s->n; i < n; i++) {
        uint32_t end = s->v[i].hi;
        size_t at = first_case(cases.by_c, s->v[i].lo, 0, false);
        for (; at < cases.n && cases.by_c[at].c <= end; at++) {
            uint32_t class = cases.by_c[at].class;
            size_t k = first_case(cases.by_class, 0, class, true);
            for (; k < cases.n && cases.by_class[k].class == class; k++) {
                charset_add(s, cases.by_class[k].c, cases.by_class[k].c);
            }
        }
    }
}

/* ---- as bytes ---- */

struct pieces {
    uint32_t *v;
    size_t n, cap;
};

/* Characters of n bytes, each of which lies between the corresponding bytes of lo and hi. */
static uint32_t product(struct exprs *x, const uint8_t *lo, const uint8_t *hi, size_t n)
{
    uint32_t e = EXPR_EMPTY;
    while (n-- > 0) {
        e = expr_seq(x, expr_byte_range(x, lo[n], hi[n]), e);
    }
    return e;
}

/* Splits a range of characters whose encodings have equal length into products of byte ranges. */
static void add_products(struct exprs *x, uint32_t lo, uint32_t hi, struct pieces *out)
{
    uint8_t a[4], b[4];
    for (unsigned level = 1; level < 4; level++) {
        uint32_t mask = (1u << (6 * level)) - 1; // the bits in the last `level` bytes
        if ((lo & ~mask) == (hi & ~mask) || lo > hi) {
            break;
        }
        if (lo & mask) {
            add_products(x, lo, lo | mask, out);
            add_products(x, (lo | mask) + 1, hi, out);
            return;
        }
        if ((hi & mask) != mask) {
            add_products(x, lo, (hi & ~mask) - 1, out);
            add_products(x, hi & ~mask, hi, out);
            return;
        }
    }
    size_t n = utf8_encode(lo, (char *)a);
    utf8_encode(hi, (char *)b);
    GROW(out->v, out->n, out->cap);
    out->v[out->n++] = product(x, a, b, n);
}

/* Divides a range where the length of UTF-8 changes, and leaves out surrogates, which no valid text
 * contains. */
static void add_range(struct exprs *x, uint32_t lo, uint32_t hi, struct pieces *out)
{
    static const uint32_t last_of[] = {0x7f, 0x7ff, SURROGATE_LO - 1, SURROGATE_HI, 0xffff, LAST};
    for (size_t i = 0; i < sizeof last_of / sizeof *last_of && lo <= hi; i++) {
        uint32_t end = lesser(hi, last_of[i]);
        if (lo <= end && last_of[i] != SURROGATE_HI && lo <= 0x7f) {
            GROW(out->v, out->n, out->cap);
            out->v[out->n++] = expr_byte_range(x, (int)lo, (int)end);
        } else if (lo <= end && last_of[i] != SURROGATE_HI) {
            add_products(x, lo, end, out);
        }
        if (lo <= last_of[i]) {
            lo = last_of[i] + 1;
        }
    }
}

uint32_t charset_expr(struct exprs *x, struct charset *s)
{
    struct pieces p = {0};
    charset_sort(s);
    for (size_t i = 0; i < s->n && !x->failed; i++) {
        add_range(x, s->v[i].lo, s->v[i].hi, &p);
    }
    uint32_t e = expr_alt(x, p.v, p.n);
    free(p.v);
    return e;
}

/* ---- named sets ---- */

/* Runs of code points that have the same general category; computed once. */
static struct {
    struct category_run {
        uint32_t lo, hi;
        char name[2];
    } *v;
    size_t n, cap;
    pthread_once_t once;
} categories = {.once = PTHREAD_ONCE_INIT};

/* Computes the runs of equal categories over all code points, once per process, from utf8proc. */
static void make_categories(void)
{
    for (uint32_t c = 0; c <= LAST; c++) {
        const char *name = utf8proc_category_string((int32_t)c);
        struct category_run *last = NULL;
        if (categories.n) {
            last = &categories.v[categories.n - 1];
        }
        if (last && memcmp(last->name, name, 2) == 0) {
            last->hi = c;
            continue;
        }
        GROW(categories.v, categories.n, categories.cap);
        categories.v[categories.n++] = (struct category_run){c, c, {name[0], name[1]}};
    }
}

/* Adds all categories whose name starts with these n letters. */
static void add_runs(struct charset *s, const char *name, size_t n)
{
    pthread_once(&categories.once, make_categories);
    for (size_t i = 0; i < categories.n; i++) {
        if (memcmp(categories.v[i].name, name, n) == 0) {
            charset_add(s, categories.v[i].lo, categories.v[i].hi);
        }
    }
}

static void add_ascii_word(struct charset *s)
{
    charset_add(s, '0', '9');
    charset_add(s, 'A', 'Z');
    charset_add(s, '_', '_');
    charset_add(s, 'a', 'z');
}

/* Alphabetic characters, marks, decimal digits, connectors and joiners. */
static void add_unicode_word(struct charset *s)
{
    static const char *const names[] = {"L", "M", "Nd", "Nl", "Pc"};
    static const struct char_range more[] = {{0x200c, 0x200d},
                                             {0x24b6, 0x24e9},
                                             {0x1f130, 0x1f149},
                                             {0x1f150, 0x1f169},
                                             {0x1f170, 0x1f189}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        add_runs(s, names[i], strlen(names[i]));
    }
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        charset_add(s, more[i].lo, more[i].hi);
    }
}

/* White space as expression languages define it; Unicode has one character more. */
static void add_space(struct charset *s, bool unicode)
{
    static const struct char_range both[] = {
        {9, 13},          {32, 32},         {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
        {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
    };
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        charset_add(s, both[i].lo, both[i].hi);
    }
    if (unicode) {
        charset_add(s, 0x85, 0x85);
    }
}

/* \d, \w, \s and their complements. Their ASCII and Unicode meanings differ; where languages
 * disagree, the smaller set is used. */
bool charset_add_escape(struct charset *s, char letter, bool unicode)
{
    struct charset of = {0};
    bool invert = letter < 'a', common = invert && !unicode;
    unicode |= invert;
    switch (letter | 32) {
    case 'd':
        charset_add(&of, '0', '9');
        if (unicode) {
            add_runs(&of, "Nd", 2);
        }
        break;
    case 'w':
        (unicode ? add_unicode_word : add_ascii_word)(&of);
        if (common) {
            add_runs(&of, "No", 2); // some implementations count these as letters or digits
        }
        break;
    case 's': add_space(&of, unicode); break;
    default: return false;
    }
    if (invert) {
        charset_invert(&of);
    }
    charset_add_all(s, &of);
    charset_deinit(&of);
    return true;
}

static const struct {
    const char *name, *category;
} long_names[] = {
    {"Any", ""},
    {"Letter", "L"},
    {"Mark", "M"},
    {"Number", "N"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Decimal_Number", "Nd"},
    {"digit", "Nd"},
    {"punct", "P"},
};

/* \p{...}: the short or the long name of a category, or its first letter. */
bool charset_add_category(struct charset *s, const char *name, size_t n)
{
    static const char *const known = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc "
                                     "Sk So Zs Zl Zp Cc Cf Cs Co Cn";
    char want[24] = {0};
    if (n == 0 || n >= sizeof want) {
        return false;
    }
    memcpy(want, name, n);
    bool any = false;
    for (size_t i = 0; i < sizeof long_names / sizeof *long_names; i++) {
        if (strcmp(want, long_names[i].name) == 0) {
            strcpy(want, long_names[i].category);
            any = want[0] == 0;
        }
    }
    n = strlen(want);
    bool found = any || (n == 1 && strchr("LMNPSZC", want[0]));
    for (const char *k = known; n == 2 && *k; k += k[2] ? 3 : 2) {
        found |= memcmp(k, want, 2) == 0;
    }
    if (!found) {
        return false;
    }
    add_runs(s, want, n);
    return true;
}
