// SPDX-License-Identifier: Apache-2.0
/* Puts the members of a JSON text's objects into the order of a schema: a validator accepts any
 * order, constrained text has the order of `properties`.
 * Thread: the main thread. */
#ifndef SLUICE_TEST_GRAMMAR_ORDER_H
#define SLUICE_TEST_GRAMMAR_ORDER_H

#include "engine/base/buf.h"
#include "engine/grammar/schema_tree.h"

enum { ORDER_DEPTH = 128, ORDER_VALUES = 1 << 20 };

/* Searches all schemas below `v` for the `properties` that name the most members of the object. */
static inline void order_find(const struct tree_value *v, const struct tree_value *object,
                              uint32_t *most, const struct tree_value **best)
{
    const struct tree_value *names = NULL;
    if (v->type == JSON_OBJECT) {
        names = tree_get(v, "properties");
    }
    uint32_t n = 0;
    for (const struct tree_value *m = names ? object->first : NULL; m; m = m->next) {
        n += tree_get_n(names, m->key, m->n_key) != NULL;
    }
    if (n > *most) {
        *most = n;
        *best = names;
    }
    for (const struct tree_value *m = v->first; m; m = m->next) {
        order_find(m, object, most, best);
    }
}

static inline void order_put(const struct tree_value *schema, const struct tree_value *v,
                             struct buf *out);

static inline void order_member(const struct tree_value *schema, const struct tree_value *m,
                                bool *any, struct buf *out)
{
    if (*any) {
        buf_puts(out, ",");
    }
    *any = true;
    buf_put_json(out, m->key, m->n_key);
    buf_puts(out, ":");
    order_put(schema, m, out);
}

/* Members that the schema does not name come last, in their own order. */
static inline void order_object(const struct tree_value *schema, const struct tree_value *v,
                                struct buf *out)
{
    const struct tree_value *names = NULL, *m;
    uint32_t most = 0;
    bool any = false;
    order_find(schema, v, &most, &names);
    for (const struct tree_value *p = names ? names->first : NULL; p; p = p->next) {
        m = tree_get_n(v, p->key, p->n_key);
        if (m) {
            order_member(schema, m, &any, out);
        }
    }
    for (m = v->first; m; m = m->next) {
        if (!names || !tree_get_n(names, m->key, m->n_key)) {
            order_member(schema, m, &any, out);
        }
    }
}

static inline void order_put(const struct tree_value *schema, const struct tree_value *v,
                             struct buf *out)
{
    if (v->type == JSON_OBJECT) {
        buf_puts(out, "{");
        order_object(schema, v, out);
        buf_puts(out, "}");
    } else if (v->type == JSON_ARRAY) {
        buf_puts(out, "[");
        for (const struct tree_value *m = v->first; m; m = m->next) {
            order_put(schema, m, out);
            if (m->next) {
                buf_puts(out, ",");
            }
        }
        buf_puts(out, "]");
    } else if (v->type == JSON_STRING) {
        buf_put_json(out, v->text, v->n_text);
    } else if (v->type == JSON_NUMBER) {
        buf_put(out, v->text, v->n_text);
    } else {
        const char *truth = v->truth ? "true" : "false";
        if (v->type == JSON_NULL) {
            buf_puts(out, "null");
        } else {
            buf_puts(out, truth);
        }
    }
}

/* False if the text is not JSON. */
static inline bool order_text(const char *schema, size_t n_schema, const char *s, size_t n,
                              struct buf *out)
{
    struct tree of = {0}, text = {0};
    struct err err = {{0}};
    bool ok = tree_read(&of, schema, n_schema, ORDER_DEPTH, ORDER_VALUES, &err) == OK &&
              tree_read(&text, s, n, ORDER_DEPTH, ORDER_VALUES, &err) == OK;
    if (ok) {
        order_put(of.root, text.root, out);
    }
    tree_deinit(&of);
    tree_deinit(&text);
    return ok;
}

#endif
