// SPDX-License-Identifier: Apache-2.0
/* Looks up the names that a template uses in its runtime's tables. This file only uses the
 * runtime's pointer to the tables: their functions look up names themselves, so direct references
 * would be circular. */
#include "engine/base/minmax.h"
#include "server/chat/jinja/eval.h"

#include <string.h>

static bool is_called(const char *name, const char *s, size_t n_bytes)
{
    return strlen(name) == n_bytes && memcmp(name, s, n_bytes) == 0;
}

const struct jinja_filter *jinja_filter_find(const struct jrt *rt, const char *name, size_t n_bytes)
{
    for (const struct jinja_filter *f = rt->tables->filters; f->name; f++) {
        if (is_called(f->name, name, n_bytes)) {
            return f;
        }
    }
    return NULL;
}

const struct jinja_test *jinja_test_find(const struct jrt *rt, const char *name, size_t n_bytes)
{
    for (const struct jinja_test *t = rt->tables->tests; t->name; t++) {
        if (is_called(t->name, name, n_bytes)) {
            return t;
        }
    }
    return NULL;
}

const struct jinja_func *jinja_func_find(const struct jrt *rt, const char *name, size_t n_bytes)
{
    for (const struct jinja_func *f = rt->tables->funcs; f->name; f++) {
        if (is_called(f->name, name, n_bytes)) {
            return f;
        }
    }
    return NULL;
}

/* The order of the table of methods: strcmp, where s has no NUL. */
static int order(const char *name, const char *s, size_t n_bytes)
{
    size_t n = strlen(name);
    int c = memcmp(name, s, lesser(n, n_bytes));
    if (c != 0) {
        return c;
    }
    return n < n_bytes ? -1 : n > n_bytes;
}

/* The first row of this name, by binary search; rows of other types follow it. */
const struct jinja_method *jinja_methods_find(const struct jrt *rt, const char *name,
                                              size_t n_bytes)
{
    const struct jinja_method *methods = rt->tables->methods->rows;
    size_t low = 0, high = rt->tables->methods->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (order(methods[mid].name, name, n_bytes) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    bool found = low < rt->tables->methods->n && order(methods[low].name, name, n_bytes) == 0;
    return found ? &methods[low] : NULL;
}

const struct jinja_method *jinja_method_for(const struct jinja_method *first, struct jv self)
{
    for (const struct jinja_method *m = first; m && m->name && strcmp(m->name, first->name) == 0;
         m++) {
        if (m->types >> self.type & 1) {
            return m;
        }
    }
    return NULL;
}

/* Methods that change their object are forbidden by the sandbox, since values are shared. */
bool jinja_is_mutator(struct jv self, const char *name, size_t n_bytes)
{
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    static const char *const of_list[] = {"append", "clear",  "pop",    "reverse", "insert",
                                          "sort",   "extend", "remove", NULL};
    if (self.type != JV_DICT && self.type != JV_LIST) {
        return false;
    }
    for (const char *const *one = self.type == JV_DICT ? of_dict : of_list; *one; one++) {
        if (is_called(*one, name, n_bytes)) {
            return true;
        }
    }
    return false;
}
