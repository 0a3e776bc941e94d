// SPDX-License-Identifier: Apache-2.0
/* Checks a checkpoint's weights while it is opened: that no value is NaN or infinite, and that
 * checksums match if the folder has them. */
#include "engine/model/check.h"
#include "engine/model/wrappers.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/sha256.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    PIECE = 64,      // consecutive elements of a sample; they lie within two pages
    MAX_PIECES = 16, // per tensor
    // Chosen: samples per checkpoint; reading them from a disk takes about a second.
    ALL_PIECES = 1 << 14,
    MAX_SUMS_BYTES = 4 << 20,
    MAX_THREADS = 8,
};

/* How much is read: nothing, samples of every tensor, or all. */
enum check_depth check_depth_of(const char *name)
{
    if (name && strcmp(name, "off") == 0) {
        return CHECK_OFF;
    }
    if (name && strcmp(name, "full") == 0) {
        return CHECK_FULL;
    }
    return CHECK_SAMPLED;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Floating-point formats: a value is NaN or infinite if all bits of `special` are set. */
static const struct form {
    const char *name;
    size_t n_bytes;
    uint64_t special, sign;
} forms[] = {
    {"F64", 8, 0x7ff0000000000000, 0x8000000000000000},
    {"F32", 4, 0x7f800000, 0x80000000},
    {"BF16", 2, 0x7f80, 0x8000},
    {"F16", 2, 0x7c00, 0x8000},
    {"F8_E5M2", 1, 0x7c, 0x80},
    {"F8_E4M3", 1, 0x7f, 0x80},
};

static const struct form *form_of(const struct checkpoint_tensor *t)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strcmp(forms[i].name, t->dtype_name) == 0) {
            return &forms[i];
        }
    }
    return NULL;
}

struct findings {
    int64_t bad_at; // index of the first NaN or infinity; -1: none
    bool has_value; // some value is not zero
};

/* The compiler generates a loop for each width if n_bytes is constant. Data may be unaligned. */
static inline void scan_width(const unsigned char *data, int64_t first, int64_t n, size_t n_bytes,
                              const struct form *f, struct findings *out)
{
    uint64_t any = 0;
    for (int64_t i = first; i < first + n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + (size_t)i * n_bytes, n_bytes); // little-endian, like the files
        any |= bits & ~f->sign;
        if ((bits & f->special) == f->special && out->bad_at < 0) {
            out->bad_at = i;
        }
    }
    out->has_value = out->has_value || any != 0;
}

static void scan(const struct checkpoint_tensor *t, const struct form *f, int64_t first, int64_t n,
                 struct findings *out)
{
    switch (f->n_bytes) {
    case 1: scan_width(t->data, first, n, 1, f, out); break;
    case 2: scan_width(t->data, first, n, 2, f, out); break;
    case 4: scan_width(t->data, first, n, 4, f, out); break;
    default: scan_width(t->data, first, n, 8, f, out); break;
    }
}

bool check_is_mask(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", ".attn.causal_mask"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t m = strlen(ends[i]);
        if (n > m && strcmp(name + n - m, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The samples include the first and the last elements, because files are usually truncated or
 * overwritten at their ends. */
static void scan_pieces(const struct checkpoint_tensor *t, const struct form *f, int64_t n,
                        int32_t n_pieces, struct findings *out)
{
    for (int32_t k = 0; k < n_pieces; k++) {
        int64_t first = n_pieces > 1 ? (n - PIECE) / (n_pieces - 1) * k : 0;
        scan(t, f, k == n_pieces - 1 ? n - PIECE : first, PIECE, out);
    }
}

/* For a tensor whose sample is all zero: true if the whole tensor is zero. */
static bool is_zero(const struct checkpoint_tensor *t, const struct form *f, int64_t n)
{
    enum { STRIDE = 1 << 16 };
    struct findings found = {.bad_at = -1};
    for (int64_t i = 0; i < n && !found.has_value; i += STRIDE) {
        scan(t, f, i, lesser(n - i, STRIDE), &found);
    }
    return !found.has_value;
}

/* A block is invalid if its scale or its offset is NaN or infinite. */
static bool is_finite(const struct block_format *f, const unsigned char *block)
{
    bool good = true;
    for (int32_t part = 0; part < f->n / f->shared; part++) {
        struct block_scale s = f->scale(block, part);
        good = good && isfinite(block_scale_value(s)) && isfinite(block_offset_value(s));
    }
    return good;
}

/* Whether a block's values are finite depends only on its scale and offset, so only those are
 * checked. */
static enum status check_blocks(const struct checkpoint_tensor *t, int32_t n_pieces, bool full,
                                struct err *err)
{
    size_t n = t->n_bytes / (size_t)t->blocks->n_bytes, step = n / (size_t)(4 * n_pieces) + 1;
    if (full) {
        step = 1;
    }
    for (size_t i = 0; i < n; i = i == n - 1 || i + step < n ? i + step : n - 1) {
        if (!is_finite(t->blocks, t->data + i * (size_t)t->blocks->n_bytes)) {
            return err_set(err, ERR_FORMAT,
                           "%s: tensor %s: the scale of block %zu (%s) is NaN or "
                           "infinite (download the file again)",
                           t->file, t->name, i, t->dtype_name);
        }
    }
    return OK;
}

/* Large tensors are sampled unless `full`, because a broken download usually damages long runs of
 * bytes. A tensor of zeros only causes a warning, since some published files contain such
 * tensors. */
static enum status check_tensor(const struct checkpoint_tensor *t, int32_t n_pieces, bool full,
                                struct err *err)
{
    const bool is_read = t->dtype_known && !wrapper_is_tower(t->name) && !check_is_mask(t->name);
    const struct form *f = is_read ? form_of(t) : NULL; // the loader reports unknown dtypes
    int64_t n = f ? (int64_t)(t->n_bytes / f->n_bytes) : 0;
    struct findings found = {.bad_at = -1};
    if (t->blocks) {
        return check_blocks(t, n_pieces, full, err);
    }
    if (n == 0) {
        return OK;
    }
    if (full || n <= (int64_t)n_pieces * PIECE) {
        scan(t, f, 0, n, &found);
    } else {
        scan_pieces(t, f, n, n_pieces, &found);
    }
    if (found.bad_at >= 0) {
        return err_set(err, ERR_FORMAT,
                       "%s: tensor %s: element %lld (%s) is NaN or infinite "
                       "(download the file again; --check-weights off loads it anyway)",
                       t->file, t->name, (long long)found.bad_at, t->dtype_name);
    }
    if (!found.has_value && t->n_dims >= 2 && is_zero(t, f, n)) {
        log_warn("%s: tensor %s is all zero", t->file, t->name);
    }
    return OK;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Files are hashed on several threads, because one thread is slower than a disk. */
struct sums {
    const struct checkpoint *ck;
    unsigned char (*digest)[SHA256_BYTES];
    size_t n_files;
    _Atomic size_t next;
};

/* The loop of a thread: takes the next file until none is left. */
static void *hash_files(void *arg)
{
    struct sums *s = arg;
    for (size_t i; (i = atomic_fetch_add(&s->next, 1)) < s->n_files;) {
        struct checkpoint_file file;
        struct sha256 state;
        checkpoint_file(s->ck, i, &file);
        sha256_begin(&state);
        sha256_add(&state, file.data, file.n_bytes);
        sha256_end(&state, s->digest[i]);
    }
    return NULL;
}

/* Uses as many threads as there are processors, the caller's included. */
static void hash_all(struct sums *s)
{
    pthread_t threads[MAX_THREADS];
    long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    size_t n = 0, wanted = lesser(s->n_files, MAX_THREADS);
    if ((long)wanted >= n_cpus) {
        wanted = (size_t)greater(n_cpus, 1);
    }
    while (n + 1 < wanted && pthread_create(&threads[n], NULL, hash_files, s) == 0) {
        n++;
    }
    hash_files(s);
    while (n > 0) {
        pthread_join(threads[--n], NULL);
    }
}

/* Finds a file's line in sha256sum's format, "HEX  NAME" or "HEX *NAME"; NULL: none. */
static const char *find_sum(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; *line; line += line[0] == '\n') {
        const char *at = line + strspn(line, "0123456789abcdefABCDEF");
        bool is_sum =
            at - line == 2 * SHA256_BYTES && at[0] == ' ' && (at[1] == ' ' || at[1] == '*');
        if (is_sum && strcspn(at + 2, "\r\n") == n && memcmp(at + 2, name, n) == 0) {
            return line;
        }
        line += strcspn(line, "\n");
    }
    return NULL;
}

static bool says(const char *hex, const unsigned char digest[SHA256_BYTES])
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    return strncasecmp(hex, text, 2 * SHA256_BYTES) == 0;
}

/* All names are checked before the first byte is hashed, because hashing takes minutes. Extra lines
 * in the file of sums are ignored. */
static enum status check_sums(const struct checkpoint *ck, const char *path, const char *text,
                              struct err *err)
{
    struct sums s = {.ck = ck};
    struct checkpoint_file file;
    enum status st = OK;
    for (; checkpoint_file(ck, s.n_files, &file); s.n_files++) {
        if (!find_sum(text, file.name)) {
            return err_set(err, ERR_FORMAT, "%s: no checksum of %s", path, file.name);
        }
    }
    s.digest = xmalloc((s.n_files + 1) * sizeof *s.digest);
    hash_all(&s);
    for (size_t i = 0; i < s.n_files && st == OK; i++) {
        checkpoint_file(ck, i, &file);
        if (!says(find_sum(text, file.name), s.digest[i])) {
            st = err_set(err, ERR_FORMAT, "%s is not the file that %s lists: its SHA-256 differs",
                         file.name, path);
        }
    }
    free(s.digest);
    return st;
}

/* The more tensors there are, the fewer samples each gets, so that opening takes about the same
 * time for all models. */
enum status checkpoint_check_weights(const struct checkpoint *ck, const char *dir,
                                     enum check_depth depth, struct err *err)
{
    char path[PATH_MAX];
    size_t n, n_bytes;
    const struct checkpoint_tensor *tensors = checkpoint_tensors(ck, &n);
    if (depth == CHECK_OFF) {
        return OK;
    }
    int32_t n_pieces = n > 0 ? (int32_t)(ALL_PIECES / n) : 1;
    n_pieces = lesser(n_pieces, MAX_PIECES);
    for (size_t i = 0; i < n; i++) {
        TRY(check_tensor(&tensors[i], greater(n_pieces, 1), depth == CHECK_FULL, err));
    }
    snprintf(path, sizeof path, "%s/sluice.sha256", dir);
    if (!file_exists(path)) {
        return OK;
    }
    char *text;
    TRY(file_read(path, MAX_SUMS_BYTES, &text, &n_bytes, err));
    enum status st = check_sums(ck, path, text, err);
    free(text);
    return st;
}
