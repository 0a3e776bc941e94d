// SPDX-License-Identifier: Apache-2.0
/* Unicode properties used by Python's str methods. scripts/unicode_table.py generates the tables
 * from Python's unicodedata, so that case, white space and printability agree with the interpreter
 * that produced the test vectors.
 * Thread: any; constant data. */
#ifndef SLUICE_SERVER_CHAT_JINJA_UNICODE_H
#define SLUICE_SERVER_CHAT_JINJA_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

/* Bits of a code point's class. */
enum {
    UNI_ALPHA = 1 << 0,
    UNI_DIGIT = 1 << 1,   // str.isdigit
    UNI_DECIMAL = 1 << 2, // str.isdecimal
    UNI_NUMERIC = 1 << 3,
    UNI_LOWER = 1 << 4,
    UNI_UPPER = 1 << 5,
    UNI_TITLE = 1 << 6,
    UNI_SPACE = 1 << 7,
    UNI_PRINTABLE = 1 << 8,
    UNI_CASED = 1 << 9,
    UNI_CASE_IGNORABLE = 1 << 10,
    UNI_ID_START = 1 << 11,
    UNI_ID_CONTINUE = 1 << 12,
    UNI_LINE_BREAK = 1 << 13, // ends a line for str.splitlines
};

unsigned uni_class(uint32_t cp);
bool uni_is_space(uint32_t cp);
int uni_decimal(uint32_t cp); // the value of a decimal digit, -1 for others

enum uni_case { UNI_TO_UPPER, UNI_TO_LOWER, UNI_TO_TITLE, UNI_TO_FOLD };
/* The full mapping, without regard to context. Returns the number of code points, one to three. */
int uni_map(uint32_t cp, enum uni_case how, uint32_t out[3]);

#endif
