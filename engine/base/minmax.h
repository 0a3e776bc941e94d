// SPDX-License-Identifier: Apache-2.0
// lesser(a, b) and greater(a, b) for all arithmetic types. Each argument is evaluated once. The
// result has the common type of both, like `a < b ? a : b`. They are not constant expressions.
#ifndef SLUICE_BASE_MINMAX_H
#define SLUICE_BASE_MINMAX_H

#define MINMAX_FUNCTIONS(name, type)                                                               \
    static inline type min_##name(type a, type b)                                                  \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    static inline type max_##name(type a, type b)                                                  \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }

MINMAX_FUNCTIONS(int, int)
MINMAX_FUNCTIONS(unsigned, unsigned)
MINMAX_FUNCTIONS(long, long)
MINMAX_FUNCTIONS(unsigned_long, unsigned long)
MINMAX_FUNCTIONS(long_long, long long)
MINMAX_FUNCTIONS(unsigned_long_long, unsigned long long)
MINMAX_FUNCTIONS(float, float)
MINMAX_FUNCTIONS(double, double)

// (a) + (b) only selects the type, which is the common type of both; it is not evaluated.
#define MINMAX_OF(kind, a, b)                                                                      \
    _Generic((a) + (b),                                                                            \
        int: kind##_int,                                                                           \
        unsigned: kind##_unsigned,                                                                 \
        long: kind##_long,                                                                         \
        unsigned long: kind##_unsigned_long,                                                       \
        long long: kind##_long_long,                                                               \
        unsigned long long: kind##_unsigned_long_long,                                             \
        float: kind##_float,                                                                       \
        double: kind##_double)(a, b)

#define lesser(a, b) MINMAX_OF(min, a, b)
#define greater(a, b) MINMAX_OF(max, a, b)

#endif
