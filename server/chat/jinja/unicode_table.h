// SPDX-License-Identifier: Apache-2.0
/* The generated tables that unicode.c uses.
 * Thread: any; constant data. */
#ifndef SLUICE_SERVER_CHAT_JINJA_UNICODE_TABLE_H
#define SLUICE_SERVER_CHAT_JINJA_UNICODE_TABLE_H

#include <stdint.h>

enum { UNI_PAGE = 128, UNI_EXTRA = 0x400000 };

struct uni_record {
    int32_t map[4]; // a difference, or UNI_EXTRA + row of uni_extra
    uint16_t bits;
    int8_t decimal;
};

extern const struct uni_record uni_records[];
extern const uint32_t uni_extra[][3];
extern const uint16_t uni_pages[][UNI_PAGE];
extern const uint16_t uni_top[];

#endif
