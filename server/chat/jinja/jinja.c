// SPDX-License-Identifier: Apache-2.0
/* The interface of the interpreter: compile a source, then any number of renders, each
 * with its own runtime. */
#include "server/chat/jinja/jinja.h"

#include "engine/base/mem.h"
#include "server/chat/jinja/filters.h"
#include "server/chat/jinja/methods.h"

#include <stdlib.h>
#include <string.h>

static const struct jinja_tables tables = {
    .filters = jinja_filters,
    .tests = jinja_tests,
    .funcs = jinja_funcs,
    .methods = &jinja_methods,
};

static void rt_init(struct jrt *rt)
{
    *rt = (struct jrt){.steps_beyond = JINJA_MAX_STEPS, .tables = &tables};
    arena_init(&rt->arena, JINJA_MAX_MEMORY);
}

/* All tokens concatenated; comments are not tokens. */
static bool make_gist(struct jinja_template *t, const struct jtoken *tokens, size_t n_tokens)
{
    size_t n = 0;
    for (size_t i = 0; i < n_tokens; i++) {
        n += tokens[i].n_bytes + 1;
    }
    t->gist = jrt_alloc(&t->rt, n, 1);
    if (!t->gist) {
        return false;
    }
    for (size_t i = 0; i < n_tokens; i++) {
        memcpy(t->gist + t->gist_bytes, tokens[i].s, tokens[i].n_bytes);
        t->gist_bytes += tokens[i].n_bytes + 1;
    }
    return true;
}

/* Runs lexer, parser and two passes over the tree. Everything that belongs to the template is in
 * its own arena. */
enum status jinja_compile(const char *source, size_t n_bytes, struct jinja_template **out,
                          struct err *err)
{
    struct jinja_template *t = xcalloc(1, sizeof *t);
    struct jtoken *tokens;
    size_t n_tokens;
    *out = NULL;
    rt_init(&t->rt);
    if (jinja_lex(&t->rt, source, n_bytes, &tokens, &n_tokens) && make_gist(t, tokens, n_tokens) &&
        jinja_parse(t, tokens, n_tokens) && jinja_check(t) && jinja_scopes(t)) {
        *out = t;
        return OK;
    }
    enum status st = t->rt.st == ERR_LIMIT ? ERR_LIMIT : ERR_FORMAT;
    err_set(err, st, "%s", t->rt.err.text);
    jinja_free(t);
    return st;
}

void jinja_free(struct jinja_template *t)
{
    if (t) {
        arena_deinit(&t->rt.arena);
        free(t);
    }
}

bool jinja_mentions(const struct jinja_template *t, const char *word)
{
    return memmem(t->gist, t->gist_bytes, word, strlen(word)) != NULL;
}

/* Global functions are variables too, so the request's variables can override them. */
bool jinja_begin(struct jrt *rt, const struct jinja_template *t, int64_t local_us)
{
    rt_init(rt);
    rt->t = t;
    rt->local_us = local_us;
    rt->n_vars = t->names.n;
    rt->vars = jrt_alloc(rt, (size_t)t->names.n, sizeof rt->vars[0]); // all MISSING
    for (int i = 0; rt->vars && i < t->names.n; i++) {
        const struct jstr *name = t->names.names[i];
        const struct jinja_func *f = jinja_func_find(rt, name->s, name->n_bytes);
        if (f) {
            rt->vars[i] = (struct jv){.type = JV_FUNC, .u.func = f};
        }
    }
    return rt->vars != NULL;
}

/* Names that the template does not mention have no symbol and are ignored. */
bool jinja_set(struct jrt *rt, const char *name, size_t n_bytes, struct jv value)
{
    int sym = jinja_find_symbol(rt->t, name, n_bytes);
    if (sym >= 0) {
        rt->vars[sym] = value;
    }
    return rt->st == OK;
}

bool jinja_run(struct jrt *rt, struct jstr **out)
{
    struct jsb b;
    jsb_init(&b, rt);
    rt->out = &b;
    rt->frame = NULL;
    bool ok = jframe_hide(rt, NULL, &rt->t->hidden) &&
              jinja_exec(rt, rt->t->body, rt->t->n_body) != FLOW_FAIL;
    rt->out = NULL;
    *out = ok && rt->st == OK ? jsb_done(&b) : NULL;
    return *out != NULL;
}

void jinja_end(struct jrt *rt)
{
    arena_deinit(&rt->arena);
}
