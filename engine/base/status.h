// SPDX-License-Identifier: Apache-2.0
/* Status codes, and error text for people. Functions return the enum. A `struct err` adds a
 * sentence during load, configuration and parsing, but never on the per-token path.
 * Compiles as C11 and C++17.
 * Thread: any. */
#ifndef SLUICE_BASE_STATUS_H
#define SLUICE_BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum status {
    OK = 0,
    ERR_INVALID = -1,     // the caller's (or client's) mistake
    ERR_BUSY = -2,        // over a limit for now; try again later
    ERR_NOMEM = -3,       // memory of a size given from outside is unavailable
    ERR_IO = -4,          // a file or socket failed
    ERR_FORMAT = -5,      // a file is malformed
    ERR_UNSUPPORTED = -6, // valid, but not supported
    ERR_DEVICE = -7,      // sticky: the backend is lost
    ERR_CANCELLED = -8,
    ERR_TIMEOUT = -9,
    ERR_LIMIT = -10, // an internal bound (depth, size, steps) was exceeded
    ERR_NAN = -11,   // a model produced NaN or infinity
};

struct err {
    char text[1024]; // the longest one lists all parsers of tool calls
};

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define PRINTF_LIKE(fmt, args)
#endif

/* A short English name of the status, static. */
const char *status_name(enum status st);

/* Writes the sentence and returns `st`, for `return err_set(err, ERR_IO, ...)`. `err` may be NULL.
 * Text that does not fit is cut. */
enum status err_set(struct err *err, enum status st, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Prepends "context: " to the current text and returns `st`. */
enum status err_prefix(struct err *err, enum status st, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_st_ = (call);                                                              \
        if (try_st_ != OK) {                                                                       \
            return try_st_;                                                                        \
        }                                                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
