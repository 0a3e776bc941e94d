// SPDX-License-Identifier: Apache-2.0
/* Binds arguments to the parameters of functions, filters, tests and methods, and calls filters,
 * tests and methods, which are table rows that were looked up earlier (lookup.c). Nothing here
 * evaluates expressions. */
#include "server/chat/jinja/eval.h"

#include <string.h>

/* The name of parameter i of "a,b,c". */
static const char *param_at(const char *params, int i, size_t *n_bytes)
{
    while (i-- > 0 && params) {
        params = strchr(params, ',');
        params = params ? params + 1 : NULL;
    }
    const char *end = params ? strchr(params, ',') : NULL;
    *n_bytes = 0;
    if (params) {
        *n_bytes = end ? (size_t)(end - params) : strlen(params);
    }
    if (params && *n_bytes > 0) {
        return params;
    }
    return NULL;
}

static int count_params(const char *params)
{
    int n = *params != '\0';
    for (; *params; params++) {
        n += *params == ',';
    }
    return n;
}

/* Binds positional arguments, then named ones. `out` gets a value for each parameter, or
 * MISSING. */
bool jargs_bind(struct jrt *rt, const char *what, const struct jargs *args, const char *params,
                int n_required, struct jv *out)
{
    int n_params = count_params(params);
    for (int i = 0; i < n_params; i++) {
        out[i] = (size_t)i < args->n_pos ? args->pos[i] : jv_missing();
    }
    if (args->n_pos > (size_t)n_params) {
        return jrt_fail(rt, "TypeError", "%s() takes at most %d arguments (%zu given)", what,
                        n_params, args->n_pos);
    }
    for (size_t k = 0; k < args->n_kw; k++) {
        const struct jstr *name = args->kw[k].name;
        int found = -1;
        for (int i = 0; i < n_params; i++) {
            size_t n;
            const char *p = param_at(params, i, &n);
            if (n == name->n_bytes && memcmp(p, name->s, n) == 0) {
                found = i;
            }
        }
        int len = name->n_bytes < 100 ? (int)name->n_bytes : 100;
        if (found < 0) {
            return jrt_fail(rt, "TypeError", "%s() got an unexpected keyword argument '%.*s'", what,
                            len, name->s);
        }
        if (jv_is_given(out[found])) {
            return jrt_fail(rt, "TypeError", "%s() got multiple values for argument '%.*s'", what,
                            len, name->s);
        }
        out[found] = args->kw[k].value;
    }
    for (int i = 0; i < n_required; i++) {
        if (!jv_is_given(out[i])) {
            size_t n;
            const char *p = param_at(params, i, &n);
            return jrt_fail(rt, "TypeError", "%s() missing a required argument: '%.*s'", what,
                            (int)n, p);
        }
    }
    return true;
}

bool jinja_run_filter(struct jrt *rt, const struct jinja_filter *f, struct jv v,
                      const struct jargs *args, struct jv *out)
{
    struct jv bound[JINJA_MAX_PARAMS];
    if (f->params && !jargs_bind(rt, f->name, args, f->params, f->n_required, bound)) {
        return false;
    }
    return f->run(rt, v, bound, args, out);
}

bool jinja_run_test(struct jrt *rt, const struct jinja_test *t, struct jv v,
                    const struct jargs *args, bool *out)
{
    if (args->n_kw > 0 || args->n_pos != (size_t)t->n_args) {
        return jrt_fail(rt, "TypeError", "test %s takes %d arguments", t->name, t->n_args);
    }
    return t->run(rt, v, args->pos, out);
}

bool jinja_run_method(struct jrt *rt, const struct jinja_method *m, struct jv self,
                      const struct jargs *args, struct jv *out)
{
    struct jv bound[JINJA_MAX_PARAMS];
    if (m->by_position && args->n_kw > 0) {
        return jrt_fail(rt, "TypeError", "%s.%s() takes no keyword arguments", jv_type_name(self),
                        m->name);
    }
    if (m->params && !jargs_bind(rt, m->name, args, m->params, m->n_required, bound)) {
        return false;
    }
    return m->run(rt, self, bound, args, out);
}
