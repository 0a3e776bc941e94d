// SPDX-License-Identifier: Apache-2.0
/* Format specifications ("{:>8.2f}", "%08.3f") applied to single values.
 * Thread: one owner (of the runtime). */
#ifndef SLUICE_SERVER_CHAT_JINJA_FORMAT_H
#define SLUICE_SERVER_CHAT_JINJA_FORMAT_H

#include "server/chat/jinja/eval.h"

struct jspec {
    struct jstr *fill; // one character; NULL: a space
    char align;        // < > = ^ or 0
    char sign;         // + - space or 0
    bool alternate, zero, no_negative_zero;
    int64_t width, precision; // -1: not given
    char grouping;            // , _ or 0
    char type;                // 0: none
};

bool jspec_parse(struct jrt *rt, const struct jstr *text, struct jspec *spec);
/* The sign to write: "-", or for other numbers "+", a space or nothing, as the specification
 * says. */
const char *jspec_sign(const struct jspec *spec, bool negative);
/* format(v, spec), appended. */
bool jspec_put(struct jsb *b, struct jv v, const struct jspec *spec);
bool jspec_put_int(struct jsb *b, struct jv v, const struct jspec *spec);
bool jspec_put_float(struct jsb *b, double f, const struct jspec *spec);
bool jspec_put_padded(struct jsb *b, struct jstr *s, const struct jspec *spec, char default_align);

#endif
