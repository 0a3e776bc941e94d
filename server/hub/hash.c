// SPDX-License-Identifier: Apache-2.0
/* Hashes as the hub uses them: sha256 of large files; for small ones git's sha1 of a blob, whose
 * input starts with its length.
 * Thread: any. */
#include "server/hub/private.h"

#include "engine/base/mem.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20 };

/* Adds the first n_bytes of the file, in pieces; a file that ends earlier is an error.
 */
static enum status add_file(gnutls_hash_hd_t hash, int fd, int64_t n_bytes, struct err *err)
{
    unsigned char *chunk = xmalloc(CHUNK_BYTES);
    enum status st = OK;
    for (int64_t at = 0; at < n_bytes && st == OK;) {
        const int64_t left = n_bytes - at;
        ssize_t n = pread(fd, chunk, left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES, at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            st = err_set(err, ERR_IO, "%s", n < 0 ? strerror(errno) : "cut short");
        } else {
            gnutls_hash(hash, chunk, (size_t)n);
            at += n;
        }
    }
    free(chunk);
    return st;
}

/* The length of the expected hash tells which kind to compute. */
enum status hub_hash(int fd, int64_t n_bytes, const char *like, char out[65], struct err *err)
{
    const bool git = strlen(like) == 40;
    gnutls_digest_algorithm_t kind = GNUTLS_DIG_SHA256;
    if (git) {
        kind = GNUTLS_DIG_SHA1;
    }
    gnutls_hash_hd_t hash;
    unsigned char digest[32];
    if (gnutls_hash_init(&hash, kind) != 0) {
        return err_set(err, ERR_UNSUPPORTED, "GnuTLS refuses %s here", git ? "SHA-1" : "SHA-256");
    }
    if (git) {
        char head[64];
        int n = snprintf(head, sizeof head, "blob %lld", (long long)n_bytes);
        gnutls_hash(hash, head, (size_t)n + 1); // including its NUL
    }
    enum status st = add_file(hash, fd, n_bytes, err);
    gnutls_hash_deinit(hash, digest);
    for (int i = 0; i < (git ? 20 : 32); i++) {
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
    return st;
}
