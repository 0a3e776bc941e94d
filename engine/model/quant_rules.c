// SPDX-License-Identifier: Apache-2.0
/* Rules that map names of modules to formats; the first one that fits applies. */
#include "engine/model/quant_rules.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/name_pattern.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

struct rule {
    enum rule_kind kind;
    char *text;
    struct name_pattern *pattern;
    struct quant_scheme scheme;
};

struct quant_rules {
    struct rule *rules;
    size_t n, cap;
};

struct quant_rules *quant_rules_new(void)
{
    return xcalloc(1, sizeof(struct quant_rules));
}

void quant_rules_free(struct quant_rules *r)
{
    if (!r) {
        return;
    }
    for (size_t i = 0; i < r->n; i++) {
        free(r->rules[i].text);
        name_pattern_free(r->rules[i].pattern);
    }
    free(r->rules);
    free(r);
}

enum status quant_rules_add(struct quant_rules *r, enum rule_kind kind, const char *text,
                            const struct quant_scheme *scheme, struct err *err)
{
    struct rule rule = {.kind = kind};
    if (kind == RULE_PATTERN) {
        TRY(name_pattern_compile(text, &rule.pattern, err));
    }
    rule.text = xstrdup(text);
    if (scheme) {
        rule.scheme = *scheme;
    }
    if (r->n == r->cap) {
        r->cap = r->cap ? r->cap * 2 : 16;
        r->rules = xrealloc(r->rules, r->cap * sizeof *r->rules);
    }
    r->rules[r->n++] = rule;
    return OK;
}

/* Dots at the ends of the text are ignored, because some lists contain "mlp.gate.". */
static bool has_part(const char *name, const char *text)
{
    text += text[0] == '.';
    size_t n = strlen(text);
    n -= n > 0 && text[n - 1] == '.';
    for (const char *at = name; n > 0 && at; at = strchr(at, '.')) {
        at += *at == '.';
        if (strncmp(at, text, n) == 0 && (at[n] == 0 || at[n] == '.')) {
            return true;
        }
    }
    return false;
}

/* A glob that matches a parent matches the module, too. */
static bool fits_glob(const char *name, const char *glob)
{
    char begin[512];
    size_t n = strlen(name);
    if (n >= sizeof begin) {
        return false;
    }
    memcpy(begin, name, n + 1);
    for (char *dot = begin + n; dot; dot = strrchr(begin, '.')) {
        *dot = 0;
        if (fnmatch(glob, begin, FNM_NOESCAPE) == 0) {
            return true;
        }
    }
    return false;
}

static bool fits(const struct rule *rule, const char *name)
{
    switch (rule->kind) {
    case RULE_ALL: return true;
    case RULE_NAME: return strcmp(name, rule->text) == 0;
    case RULE_PART: return has_part(name, rule->text);
    case RULE_GLOB: return fits_glob(name, rule->text);
    case RULE_PATTERN: return name_pattern_matches(rule->pattern, name);
    }
    return false;
}

/* `other` is a second name of the same module. A module without a rule is not quantised. */
const struct quant_scheme *quant_rules_find(const struct quant_rules *r, const char *name,
                                            const char *other)
{
    static const struct quant_scheme alone;
    for (size_t i = 0; i < r->n; i++) {
        if (fits(&r->rules[i], name) || fits(&r->rules[i], other)) {
            return &r->rules[i].scheme;
        }
    }
    return &alone;
}
