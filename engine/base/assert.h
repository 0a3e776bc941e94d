// SPDX-License-Identifier: Apache-2.0
/* ASSERT is always on: a broken invariant prints its location and aborts. It is for programming
 * errors only; bad input is reported by a status. Compiles as C11 and C++17.
 * Thread: any. */
#ifndef SLUICE_BASE_ASSERT_H
#define SLUICE_BASE_ASSERT_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
__attribute__((noreturn, cold))
#endif
void assert_failed(const char *what, const char *file, int line);

#define ASSERT(x) ((x) ? (void)0 : assert_failed(#x, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
