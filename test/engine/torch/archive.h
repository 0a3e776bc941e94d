// SPDX-License-Identifier: Apache-2.0
/* Writes a zip archive of stored files, as torch.save does. Thread: one owner. */
#ifndef SLUICE_TEST_TORCH_ARCHIVE_H
#define SLUICE_TEST_TORCH_ARCHIVE_H

#include "engine/base/buf.h"

#include <string.h>

struct archive {
    struct buf file, directory;
    uint32_t n_files;
    bool large;          // sizes and offsets are written in zip64's fields
    uint16_t flags, how; // of the files that follow: flags, and the method of compression
};

static inline void archive_number(struct buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) {
        buf_putc(b, (char)(i < 8 ? v >> 8 * i & 0xFF : 0));
    }
}

static inline void archive_begin(struct archive *a)
{
    *a = (struct archive){.n_files = 0};
    buf_init(&a->file, 1 << 20);
    buf_init(&a->directory, 1 << 20);
}

static inline void archive_add(struct archive *a, const char *name, const void *data, size_t n)
{
    const size_t at = a->file.n_bytes, n_name = strlen(name);
    const uint64_t cut = 0xFFFFFFFF;
    buf_put(&a->file, "PK\3\4\0\0", 6);
    archive_number(&a->file, a->flags, 2);
    archive_number(&a->file, a->how, 2);
    archive_number(&a->file, 0, 16); // time, checksum and sizes, which are in the directory
    archive_number(&a->file, n_name, 2);
    archive_number(&a->file, 5, 2);
    buf_puts(&a->file, name);
    buf_put(&a->file, "FB\1\0Z", 5); // an extra field, for alignment
    buf_put(&a->file, data, n);

    struct buf *d = &a->directory;
    buf_put(d, "PK\1\2\0\0\0\0", 8);
    archive_number(d, a->flags, 2);
    archive_number(d, a->how, 2);
    archive_number(d, 0, 8);
    archive_number(d, a->large ? cut : n, 4);
    archive_number(d, a->large ? cut : n, 4);
    archive_number(d, n_name, 2);
    archive_number(d, a->large ? 28 : 0, 2);
    archive_number(d, 0, 10);
    archive_number(d, a->large ? cut : at, 4);
    buf_puts(d, name);
    if (a->large) {
        archive_number(d, 1, 2);
        archive_number(d, 24, 2);
        archive_number(d, n, 8);
        archive_number(d, n, 8);
        archive_number(d, at, 8);
    }
    a->n_files++;
}

/* a->file is the archive from now on. */
static inline void archive_end(struct archive *a)
{
    const size_t at = a->file.n_bytes, n = a->directory.n_bytes;
    struct buf *b = &a->file;
    buf_put(b, a->directory.data, n);
    if (a->large) {
        buf_puts(b, "PK\6\6");
        archive_number(b, 44, 8);
        archive_number(b, 0, 12);
        archive_number(b, a->n_files, 8);
        archive_number(b, a->n_files, 8);
        archive_number(b, n, 8);
        archive_number(b, at, 8);
        buf_put(b, "PK\6\7\0\0\0\0", 8);
        archive_number(b, at + n, 8);
        archive_number(b, 1, 4);
    }
    buf_put(b, "PK\5\6\0\0\0\0", 8);
    archive_number(b, a->large ? 0xFFFF : a->n_files, 2);
    archive_number(b, a->large ? 0xFFFF : a->n_files, 2);
    archive_number(b, a->large ? 0xFFFFFFFF : n, 4);
    archive_number(b, a->large ? 0xFFFFFFFF : at, 4);
    archive_number(b, 0, 2);
}

static inline void archive_free(struct archive *a)
{
    buf_deinit(&a->file);
    buf_deinit(&a->directory);
}

#endif
