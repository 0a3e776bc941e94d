// SPDX-License-Identifier: Apache-2.0
/* Errors whose message contains the repr of a value: using an undefined value, and indexing with a
 * value that is not an index. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"

/* The object's name in the message of an undefined value: "None" for none, otherwise "<type>
 * object". */
static bool describe(struct jrt *rt, struct jv v, const char **text)
{
    if (v.type == JV_NONE) {
        *text = "None";
        return true;
    }
    struct jsb b;
    jsb_init(&b, rt);
    if (v.type == JV_NAMESPACE) {
        jsb_puts(&b, "jinja2.utils.Namespace");
    } else {
        jsb_puts(&b, jv_type_name(v));
    }
    jsb_puts(&b, " object");
    jsb_putc(&b, '\0', false);
    *text = b.s;
    return !b.failed;
}

/* Fails with Jinja2's message: the hint, or which name was looked up in which type of object. */
bool jv_fail_undefined(struct jrt *rt, struct jv undefined)
{
    const struct jundef *u = undefined.u.undef;
    const char *kind = u->unsafe ? "SecurityError" : "UndefinedError";
    if (u->hint) {
        return jrt_fail(rt, kind, "%s", u->hint);
    }
    struct jstr *name;
    const char *object;
    if (!jv_repr(rt, u->name, &name) || !js_flat(rt, name)) {
        return false;
    }
    int n = name->n_bytes < 200 ? (int)name->n_bytes : 200;
    if (!jv_is_given(u->obj)) {
        return jrt_fail(rt, kind, "%.*s is undefined", n, name->s);
    }
    if (!describe(rt, u->obj, &object)) {
        return false;
    }
    if (u->unsafe) {
        return jrt_fail(rt, kind, "access to attribute %.*s of '%s' object is unsafe.", n, name->s,
                        jv_type_name(u->obj));
    }
    if (u->name.type == JV_STR) {
        return jrt_fail(rt, kind, "'%s' has no attribute %.*s", object, n, name->s);
    }
    return jrt_fail(rt, kind, "%s has no element %.*s", object, n, name->s);
}

/* Clamps big integers, since every use has much lower bounds. */
bool jv_as_index(struct jrt *rt, struct jv v, int64_t *i)
{
    if (v.type == JV_BIG) {
        *i = v.u.big->negative ? INT64_MIN / 2 : INT64_MAX / 2;
        return true;
    }
    if (!jv_is_integer(v)) {
        if (v.type == JV_UNDEFINED) {
            return jv_fail_undefined(rt, v);
        }
        return jrt_fail(rt, "TypeError", "'%s' object cannot be interpreted as an integer",
                        jv_type_name(v));
    }
    *i = v.type == JV_BOOL ? v.u.b : v.u.i;
    return true;
}
