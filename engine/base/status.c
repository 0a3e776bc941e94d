// SPDX-License-Identifier: Apache-2.0
#include "engine/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(enum status st)
{
    switch (st) {
    case OK: return "ok";
    case ERR_INVALID: return "invalid";
    case ERR_BUSY: return "busy";
    case ERR_NOMEM: return "out of memory";
    case ERR_IO: return "input/output error";
    case ERR_FORMAT: return "malformed";
    case ERR_UNSUPPORTED: return "unsupported";
    case ERR_DEVICE: return "device lost";
    case ERR_CANCELLED: return "cancelled";
    case ERR_TIMEOUT: return "timed out";
    case ERR_LIMIT: return "over a limit";
    case ERR_NAN: return "not a number";
    }
    return "unknown";
}

enum status err_set(struct err *err, enum status st, const char *fmt, ...)
{
    if (err) {
        va_list args;
        va_start(args, fmt);
        vsnprintf(err->text, sizeof err->text, fmt, args);
        va_end(args);
    }
    return st;
}

enum status err_prefix(struct err *err, enum status st, const char *fmt, ...)
{
    if (!err) {
        return st;
    }
    struct err old = *err;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text) {
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %.1000s", old.text);
    }
    return st;
}
