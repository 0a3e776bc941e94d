// SPDX-License-Identifier: Apache-2.0
#include "engine/torch/zip.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    END_BYTES = 22,       // of the record at the end, without its comment
    MAX_COMMENT = 65535,  // the format's limit
    LOCATOR_BYTES = 20,   // of the record before it that leads to zip64's
    END64_BYTES = 56,     // of zip64's record
    ENTRY_BYTES = 46,     // of a file's entry in the directory, without its name
    LOCAL_BYTES = 30,     // of the header before a file's data, without its name
    FLAG_ENCRYPTED = 1,   // bit 0 of the flags
    MAX_FILES = 1 << 20,  // chosen: far above the number of tensors in one file
    EXTRA_ZIP64 = 1,      // the kind of extra field that has the large sizes
    EXTRA_HEAD_BYTES = 4, // of an extra field's kind and length
};

#define LARGE_LIMIT UINT32_C(0xFFFFFFFF) // the same for a 32-bit field

struct archive {
    const unsigned char *data;
    size_t n_bytes;
    const char *path;
    struct err *err;
};

/* Where the directory is, and how many files it lists. */
struct directory {
    uint64_t n_files, n_bytes, at;
};

static uint64_t number(const unsigned char *p, int n_bytes)
{
    uint64_t v = 0;
    for (int i = n_bytes; i-- > 0;) {
        v = v << 8 | p[i];
    }
    return v;
}

static enum status bad(const struct archive *a, const char *why)
{
    return err_set(a->err, ERR_FORMAT, "%.300s: %s (is the file cut short?)", a->path, why);
}

static enum status bad_file(const struct archive *a, const struct zip_file *f, const char *why)
{
    return err_set(a->err, ERR_FORMAT, "%.300s: its file %.*s %s", a->path,
                   (int)lesser(f->name_bytes, 100), f->name, why);
}

bool zip_is(const unsigned char *data, size_t n_bytes)
{
    return n_bytes >= 4 && memcmp(data, "PK\3\4", 4) == 0;
}

/* ---- the directory ------------------------------------------------------------------------ */

/* The record at the end of the archive, in front of a comment of any length. */
static bool find_end(const struct archive *a, size_t *at)
{
    if (a->n_bytes < END_BYTES) {
        return false;
    }
    const size_t last = a->n_bytes - END_BYTES, first = last - lesser(last, (size_t)MAX_COMMENT);
    for (size_t i = last + 1; i-- > first;) {
        const unsigned char *p = a->data + i;
        if (memcmp(p, "PK\5\6", 4) == 0 && number(p + 20, 2) == last - i) {
            *at = i;
            return true;
        }
    }
    return false;
}

/* The record at the end has no room for the numbers of a large archive; another one has them. */
static enum status read_end64(const struct archive *a, size_t end, struct directory *d)
{
    if (end < LOCATOR_BYTES || memcmp(a->data + end - LOCATOR_BYTES, "PK\6\7", 4) != 0) {
        return OK;
    }
    const uint64_t at = number(a->data + end - LOCATOR_BYTES + 8, 8);
    if (a->n_bytes < END64_BYTES || at > a->n_bytes - END64_BYTES ||
        memcmp(a->data + at, "PK\6\6", 4) != 0) {
        return bad(a, "the zip64 record is missing");
    }
    const unsigned char *p = a->data + at;
    *d = (struct directory){number(p + 32, 8), number(p + 40, 8), number(p + 48, 8)};
    return OK;
}

static enum status find_directory(const struct archive *a, struct directory *d)
{
    size_t end;
    if (!find_end(a, &end)) {
        return bad(a, "the zip archive has no end");
    }
    const unsigned char *p = a->data + end;
    *d = (struct directory){number(p + 10, 2), number(p + 12, 4), number(p + 16, 4)};
    TRY(read_end64(a, end, d));
    if (d->at > end || d->n_bytes > end - d->at) {
        return bad(a, "the zip archive's directory lies outside the file");
    }
    if (d->n_files > MAX_FILES || d->n_files * ENTRY_BYTES > d->n_bytes) {
        return bad(a, "the zip archive's directory has an impossible number of files");
    }
    return OK;
}

/* ---- one file ----------------------------------------------------------------------------- */

struct sizes {
    uint64_t packed, whole, at;
};

/* Sizes that do not fit into the entry follow in an extra field, in a fixed order. */
static bool read_large_sizes(const unsigned char *extra, size_t n_bytes, struct sizes *s)
{
    uint64_t *const large[] = {&s->whole, &s->packed, &s->at};
    while (n_bytes >= EXTRA_HEAD_BYTES) {
        const size_t kind = number(extra, 2), n = number(extra + 2, 2);
        if (n > n_bytes - EXTRA_HEAD_BYTES) {
            return false;
        }
        size_t used = 0;
        for (size_t i = 0; kind == EXTRA_ZIP64 && i < 3; i++) {
            if (*large[i] != LARGE_LIMIT) {
                continue;
            }
            if (n - used < 8) {
                return false;
            }
            *large[i] = number(extra + EXTRA_HEAD_BYTES + used, 8);
            used += 8;
        }
        extra += EXTRA_HEAD_BYTES + n;
        n_bytes -= EXTRA_HEAD_BYTES + n;
    }
    return true;
}

/* The name and the extra fields are repeated in front of the data, with lengths of their own. */
static enum status find_data(const struct archive *a, const struct sizes *s, struct zip_file *f)
{
    if (s->at > a->n_bytes || a->n_bytes - s->at < LOCAL_BYTES ||
        memcmp(a->data + s->at, "PK\3\4", 4) != 0) {
        return bad_file(a, f, "lies outside the archive (is the file cut short?)");
    }
    const unsigned char *p = a->data + s->at;
    const size_t skipped = LOCAL_BYTES + (size_t)(number(p + 26, 2) + number(p + 28, 2));
    if (a->n_bytes - s->at < skipped || a->n_bytes - s->at - skipped < s->whole) {
        return bad_file(a, f, "lies outside the archive (is the file cut short?)");
    }
    f->data = p + skipped;
    f->n_bytes = s->whole;
    return OK;
}

/* Reads the entry at *p, and moves *p behind it. */
static enum status read_file(const struct archive *a, const unsigned char **p,
                             const unsigned char *end, struct zip_file *f)
{
    const unsigned char *e = *p;
    if (end - e < ENTRY_BYTES || memcmp(e, "PK\1\2", 4) != 0) {
        return bad(a, "the zip archive's directory is malformed");
    }
    const size_t n_name = number(e + 28, 2), n_extra = number(e + 30, 2);
    const size_t n = ENTRY_BYTES + n_name + n_extra + number(e + 32, 2);
    if ((size_t)(end - e) < n) {
        return bad(a, "the zip archive's directory is malformed");
    }
    *f = (struct zip_file){.name = (const char *)e + ENTRY_BYTES, .name_bytes = n_name};
    struct sizes s = {number(e + 20, 4), number(e + 24, 4), number(e + 42, 4)};
    if (!read_large_sizes(e + ENTRY_BYTES + n_name, n_extra, &s)) {
        return bad_file(a, f, "has malformed sizes");
    }
    if (number(e + 10, 2) != 0 || s.packed != s.whole) {
        return bad_file(a, f, "is compressed: only archives as torch.save writes them are read");
    }
    if (number(e + 8, 2) & FLAG_ENCRYPTED) {
        return bad_file(a, f, "is encrypted");
    }
    *p = e + n;
    return find_data(a, &s, f);
}

/* ---- the archive -------------------------------------------------------------------------- */

static int compare(const char *a, size_t n_a, const char *b, size_t n_b)
{
    const int order = memcmp(a, b, lesser(n_a, n_b));
    if (order != 0 || n_a == n_b) {
        return order;
    }
    return n_a < n_b ? -1 : 1;
}

static int by_name(const void *a, const void *b)
{
    const struct zip_file *x = a, *y = b;
    return compare(x->name, x->name_bytes, y->name, y->name_bytes);
}

/* Two files of one name are refused: it would be unclear which one is meant. */
static enum status sort_files(const struct archive *a, struct zip *z)
{
    qsort(z->files, z->n_files, sizeof *z->files, by_name);
    for (size_t i = 1; i < z->n_files; i++) {
        if (by_name(&z->files[i - 1], &z->files[i]) == 0) {
            return bad_file(a, &z->files[i], "occurs twice");
        }
    }
    return OK;
}

enum status zip_open(const unsigned char *data, size_t n_bytes, const char *path, struct zip *out,
                     struct err *err)
{
    const struct archive a = {data, n_bytes, path, err};
    struct directory d = {0, 0, 0};
    *out = (struct zip){0};
    TRY(find_directory(&a, &d));
    out->files = mem_try_calloc(d.n_files + 1, sizeof *out->files);
    if (!out->files) {
        return err_set(err, ERR_NOMEM, "%.300s: no memory for its directory", path);
    }
    const unsigned char *p = data + d.at, *end = p + d.n_bytes;
    for (; out->n_files < d.n_files; out->n_files++) {
        TRY(read_file(&a, &p, end, &out->files[out->n_files]));
    }
    return sort_files(&a, out);
}

void zip_close(struct zip *z)
{
    free(z->files);
    *z = (struct zip){0};
}

const struct zip_file *zip_find(const struct zip *z, const char *name, size_t name_bytes)
{
    const struct zip_file key = {.name = name, .name_bytes = name_bytes};
    return z->n_files > 0 ? bsearch(&key, z->files, z->n_files, sizeof key, by_name) : NULL;
}
