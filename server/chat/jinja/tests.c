// SPDX-License-Identifier: Apache-2.0
/* The tests that follow `is`: each is a function and a row of the table. */
#include "server/chat/jinja/eval.h"
#include "server/chat/jinja/num.h"
#include "server/chat/jinja/unicode.h"

#include <string.h>

#define TEST_FN(name) static bool name(struct jrt *rt, struct jv v, const struct jv *a, bool *out)

/* Uses Python's modulo, so that negative numbers work. */
static bool remainder_is(struct jrt *rt, struct jv v, struct jv by, int64_t want, bool *out)
{
    struct jv rest;
    if (!jinja_binary(rt, JOP_MOD, v, by, &rest)) {
        return false;
    }
    return jv_equal(rt, rest, jv_int(want), out);
}

TEST_FN(is_odd)
{
    (void)a;
    return remainder_is(rt, v, jv_int(2), 1, out);
}

TEST_FN(is_even)
{
    (void)a;
    return remainder_is(rt, v, jv_int(2), 0, out);
}

TEST_FN(is_divisibleby)
{
    return remainder_is(rt, v, a[0], 0, out);
}

#define TYPE_TEST(name, condition)                                                                 \
    TEST_FN(name)                                                                                  \
    {                                                                                              \
        (void)rt, (void)a;                                                                         \
        *out = (condition);                                                                        \
        return true;                                                                               \
    }

TYPE_TEST(is_defined, v.type != JV_UNDEFINED)
TYPE_TEST(is_undefined, v.type == JV_UNDEFINED)
TYPE_TEST(is_none, v.type == JV_NONE)
TYPE_TEST(is_boolean, v.type == JV_BOOL)
TYPE_TEST(is_true, v.type == JV_BOOL && v.u.b)
TYPE_TEST(is_false, v.type == JV_BOOL && !v.u.b)
TYPE_TEST(is_integer, v.type == JV_INT || v.type == JV_BIG)
TYPE_TEST(is_float, v.type == JV_FLOAT)
TYPE_TEST(is_number, jv_is_number(v))
TYPE_TEST(is_string, v.type == JV_STR)
TYPE_TEST(is_mapping, v.type == JV_DICT)
TYPE_TEST(is_sequence, v.type == JV_UNDEFINED || v.type == JV_STR || v.type == JV_LIST ||
                           v.type == JV_TUPLE || v.type == JV_DICT || v.type == JV_RANGE ||
                           v.type == JV_BYTES)
TYPE_TEST(is_iterable, jv_is_iterable(v))
TYPE_TEST(is_callable, jv_is_callable(v))
TYPE_TEST(is_escaped, v.type == JV_STR && v.flag & JV_MARKUP)
TYPE_TEST(is_sameas, jv_same(v, a[0]))

/* Calls the method of str, so that `is lower` equals .islower(). */
static bool cased(struct jrt *rt, struct jv v, const char *method, bool *out)
{
    struct jstr *s;
    struct jv yes;
    struct jargs none = {0};
    if (!jv_to_str(rt, v, &s) ||
        !jinja_run_method(rt, jinja_methods_find(rt, method, strlen(method)), jv_str(s), &none,
                          &yes)) {
        return false;
    }
    *out = yes.u.b;
    return true;
}

TEST_FN(is_lower)
{
    (void)a;
    return cased(rt, v, "islower", out);
}

TEST_FN(is_upper)
{
    (void)a;
    return cased(rt, v, "isupper", out);
}

/* Tells whether a filter or test of this name exists. */
static bool known(struct jrt *rt, struct jv v, bool filters, bool *out)
{
    uint64_t hash;
    *out = false;
    if (v.type == JV_STR) {
        const struct jstr *s = v.u.s;
        if (!js_flat(rt, v.u.s)) {
            return false;
        }
        if (filters) {
            *out = jinja_filter_find(rt, s->s, s->n_bytes) != NULL;
        } else {
            *out = jinja_test_find(rt, s->s, s->n_bytes) != NULL;
        }
        return true;
    }
    if (!jv_hash(rt, v, &hash)) {
        return jrt_fail(rt, "TypeError", "unhashable type: '%s'", jv_type_name(v));
    }
    return true;
}

TEST_FN(is_filter)
{
    (void)a;
    return known(rt, v, true, out);
}

TEST_FN(is_test)
{
    (void)a;
    return known(rt, v, false, out);
}

TEST_FN(is_in)
{
    return jv_contains(rt, a[0], v, out);
}

TEST_FN(is_eq)
{
    return jv_equal(rt, v, a[0], out);
}

TEST_FN(is_ne)
{
    if (!jv_equal(rt, v, a[0], out)) {
        return false;
    }
    *out = !*out;
    return true;
}

TEST_FN(is_lt)
{
    return jv_compare(rt, v, a[0], JV_LT, out);
}

TEST_FN(is_le)
{
    return jv_compare(rt, v, a[0], JV_LE, out);
}

TEST_FN(is_gt)
{
    return jv_compare(rt, v, a[0], JV_GT, out);
}

TEST_FN(is_ge)
{
    return jv_compare(rt, v, a[0], JV_GE, out);
}

/* Names and numbers of arguments are those of Jinja2. */
const struct jinja_test jinja_tests[] = {
    {"odd", is_odd, 0},
    {"even", is_even, 0},
    {"divisibleby", is_divisibleby, 1},
    {"defined", is_defined, 0},
    {"undefined", is_undefined, 0},
    {"filter", is_filter, 0},
    {"test", is_test, 0},
    {"none", is_none, 0},
    {"boolean", is_boolean, 0},
    {"false", is_false, 0},
    {"true", is_true, 0},
    {"integer", is_integer, 0},
    {"float", is_float, 0},
    {"lower", is_lower, 0},
    {"upper", is_upper, 0},
    {"string", is_string, 0},
    {"mapping", is_mapping, 0},
    {"number", is_number, 0},
    {"sequence", is_sequence, 0},
    {"iterable", is_iterable, 0},
    {"callable", is_callable, 0},
    {"sameas", is_sameas, 1},
    {"escaped", is_escaped, 0},
    {"in", is_in, 1},
    {"==", is_eq, 1},
    {"eq", is_eq, 1},
    {"equalto", is_eq, 1},
    {"!=", is_ne, 1},
    {"ne", is_ne, 1},
    {">", is_gt, 1},
    {"gt", is_gt, 1},
    {"greaterthan", is_gt, 1},
    {"ge", is_ge, 1},
    {">=", is_ge, 1},
    {"<", is_lt, 1},
    {"lt", is_lt, 1},
    {"lessthan", is_lt, 1},
    {"<=", is_le, 1},
    {"le", is_le, 1},
    {NULL},
};
