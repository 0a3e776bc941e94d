// SPDX-License-Identifier: Apache-2.0
/* Basic properties of values: undefined and its reason, type names, truth, numeric value. */
#include "server/chat/jinja/eval.h"

/* Makes the value of a missing name or attribute, which is an error only when it is used. */
bool jv_undefined(struct jrt *rt, struct jv obj, struct jv name, struct jv *out)
{
    /* Messages only mention the type of the object, so repeated lookups of the same attribute can
     * share one undefined. */
    struct jundef *u = rt->last_missing;
    bool simple = name.type == JV_STR && (obj.type == JV_STR || obj.type == JV_DICT);
    bool again = u && simple && u->name.u.s == name.u.s && u->obj.type == obj.type &&
                 u->obj.flag == obj.flag && !u->unsafe;
    if (!again) {
        u = jrt_alloc(rt, 1, sizeof *u);
        if (!u) {
            return false;
        }
        *u = (struct jundef){.obj = obj, .name = name};
        if (simple) {
            rt->last_missing = u;
        }
    }
    *out = (struct jv){.type = JV_UNDEFINED, .u.undef = u};
    return true;
}

bool jv_undefined_hint(struct jrt *rt, const char *hint, struct jv *out)
{
    if (!jv_undefined(rt, jv_missing(), jv_missing(), out)) {
        return false;
    }
    out->u.undef->hint = hint;
    return true;
}

/* Names as Python's type() gives them. */
const char *jv_type_name(struct jv v)
{
    switch (v.type) {
    case JV_MISSING: return "missing";
    case JV_UNDEFINED: return "Undefined";
    case JV_NONE: return "NoneType";
    case JV_BOOL: return "bool";
    case JV_INT:
    case JV_BIG: return "int";
    case JV_FLOAT: return "float";
    case JV_STR: return v.flag & JV_MARKUP ? "Markup" : "str";
    case JV_BYTES: return "bytes";
    case JV_LIST: return "list";
    case JV_TUPLE: return v.flag & JV_GROUP ? "_GroupTuple" : "tuple";
    case JV_DICT: return "dict";
    case JV_RANGE: return "range";
    case JV_VIEW:
        switch (v.u.view->kind) {
        case JVIEW_KEYS: return "dict_keys";
        case JVIEW_VALUES: return "dict_values";
        default: return "dict_items";
        }
    case JV_ITER: return "generator";
    case JV_NAMESPACE: return "Namespace";
    case JV_MACRO: return "Macro";
    case JV_LOOP: return "LoopContext";
    case JV_CYCLER: return "Cycler";
    case JV_JOINER: return "Joiner";
    case JV_FUNC: return v.u.func->is_class ? "type" : "function";
    case JV_METHOD: return "builtin_function_or_method";
    default: return "object";
    }
}

/* Empty sequences, zeros, None and undefined values are false. */
bool jv_truth(struct jv v)
{
    switch (v.type) {
    case JV_MISSING:
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.u.b;
    case JV_INT: return v.u.i != 0;
    case JV_FLOAT: return v.u.f != 0;
    case JV_STR:
    case JV_BYTES: return v.u.s->n_bytes > 0;
    case JV_LIST:
    case JV_TUPLE: return v.u.list->n > 0;
    case JV_DICT: return v.u.dict->n > 0;
    case JV_RANGE: return v.u.range->n > 0;
    case JV_VIEW: return v.u.view->dict->n > 0;
    default: return true;
    }
}

/* The value of a number that fits a double; big integers are handled elsewhere. */
bool jv_small_number(struct jv v, double *f)
{
    switch (v.type) {
    case JV_BOOL: *f = v.u.b; return true;
    case JV_INT: *f = (double)v.u.i; return true;
    case JV_FLOAT: *f = v.u.f; return true;
    default: return false;
    }
}

bool jv_is_integer(struct jv v)
{
    return v.type == JV_BOOL || v.type == JV_INT || v.type == JV_BIG;
}

bool jv_is_callable(struct jv v)
{
    return v.type == JV_MACRO || v.type == JV_FUNC || v.type == JV_METHOD || v.type == JV_JOINER ||
           v.type == JV_LOOP || v.type == JV_UNDEFINED; // Undefined has a __call__ (that raises)
}
