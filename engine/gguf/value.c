// SPDX-License-Identifier: Apache-2.0
/* Values of keys as C numbers, and the items of lists. All sizes were checked when the file was
 * read. */
#include "engine/gguf/value.h"

#include <string.h>

size_t gguf_value_bytes(uint32_t type)
{
    static const uint8_t n_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof n_bytes ? n_bytes[type] : 0;
}

static uint64_t load_uint(const unsigned char *data, size_t n_bytes)
{
    uint64_t v = 0;
    memcpy(&v, data, n_bytes); // little-endian, like the supported machines
    return v;
}

static bool int_of(enum gguf_type type, const unsigned char *data, int64_t *out)
{
    size_t n = gguf_value_bytes(type);
    uint64_t v = n ? load_uint(data, n) : 0;
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32: *out = (int64_t)v; return true;
    case GGUF_U64: *out = (int64_t)v; return v <= INT64_MAX;
    case GGUF_I8: *out = (int8_t)v; return true; // NOLINT(bugprone-signed-char-misuse): a number
    case GGUF_I16: *out = (int16_t)v; return true;
    case GGUF_I32: *out = (int32_t)v; return true;
    case GGUF_I64: *out = (int64_t)v; return true;
    default: return false;
    }
}

static bool number_of(enum gguf_type type, const unsigned char *data, double *out)
{
    int64_t whole;
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, data, sizeof f);
        *out = (double)f;
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(out, data, sizeof *out);
        return true;
    }
    bool found = int_of(type, data, &whole);
    *out = found ? (double)whole : 0.0;
    return found;
}

bool gguf_value_int(const struct gguf_value *v, int64_t *out)
{
    return v && !v->is_list && int_of(v->type, v->data, out);
}

bool gguf_value_number(const struct gguf_value *v, double *out)
{
    return v && !v->is_list && number_of(v->type, v->data, out);
}

struct gguf_walk gguf_walk(const struct gguf_value *list)
{
    bool is_list = list && list->is_list;
    return (struct gguf_walk){is_list ? list : NULL, is_list ? list->data : NULL, 0};
}

bool gguf_next_string(struct gguf_walk *w, const char **text, size_t *n_bytes)
{
    if (!w->v || w->v->type != GGUF_STRING || w->i == w->v->n) {
        return false;
    }
    *n_bytes = (size_t)load_uint(w->at, 8);
    *text = (const char *)w->at + 8;
    w->at += 8 + *n_bytes;
    w->i++;
    return true;
}

bool gguf_next_number(struct gguf_walk *w, double *out)
{
    if (!w->v || w->i == w->v->n || !number_of(w->v->type, w->at, out)) {
        return false;
    }
    w->at += gguf_value_bytes(w->v->type);
    w->i++;
    return true;
}
