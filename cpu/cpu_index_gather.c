// SPDX-License-Identifier: Apache-2.0
/* Sparse attention: copies of the keys and values that a row has picked, in the order of their
 * positions, for attention. */
#include "cpu/cpu_index.h"
#include "engine/base/minmax.h"

#include <string.h>

static const uint64_t *bits_of(const struct cpu_backend *cpu, int32_t row, int32_t set)
{
    const struct index_room *room = &cpu->index;
    return room->bits + ((int64_t)row * room->n_sets + set) * room->n_words;
}

/* Stores the numbers [first, end) of the bits that are set. */
static void find_bits(const uint64_t *bits, int32_t first, int32_t end, int32_t *out)
{
    for (int32_t word = 0, n = 0; n < end; word++) {
        const int32_t of_word = __builtin_popcountll(bits[word]);
        if (n + of_word <= first) {
            n += of_word;
            continue;
        }
        for (uint64_t left = bits[word]; left && n < end; left &= left - 1, n++) {
            if (n >= first) {
                out[n - first] = word * 64 + __builtin_ctzll(left);
            }
        }
    }
}

/* The slots of keys [first, end) of the picked blocks. In a tree, keys from n_past on are those of
 * the row's path. */
static void find_slots_of_blocks(const struct cpu_backend *cpu, int32_t row, const uint64_t *bits,
                                 int32_t first, int32_t end, int32_t *slots)
{
    const struct pass_seq *seq = index_seq(cpu, row);
    const int32_t block = cpu->index.block, from = first / block;
    int32_t blocks[ATTN_CHUNK], path[MAX_TREE_NODES], n_path = 0;
    for (int32_t node = 0; node < seq->n_rows && seq->tree; node++) {
        if (index_sees(cpu, row, seq->n_past + node)) {
            path[n_path++] = seq->n_past + node;
        }
    }
    find_bits(bits, from, (end - 1) / block + 1, blocks);
    for (int32_t i = first; i < end; i++) {
        const int32_t pos = blocks[i / block - from] * block + i % block;
        slots[i - first] = seq->tree && pos >= seq->n_past ? path[pos - seq->n_past] : pos;
    }
}

/* A token's key in a plane of K: a column of units, each an element or a pair of codes. */
struct column {
    int32_t n_units, unit; // unit: bytes of one
    int64_t stride;
};

static struct column column_of(const struct kv_plane *p)
{
    const bool pairs = p->format != KV_PLAIN && p->format != KV_FP8;
    struct column c = {.n_units = pairs ? (p->width + 1) / 2 : p->width, .unit = 1};
    if (p->format == KV_PLAIN) {
        c.unit = (int32_t)dtype_bytes(p->dtype);
    } else if (pairs && p->format != KV_INT4) {
        c.unit = 2;
    }
    c.stride = (int64_t)c.unit * p->tokens;
    return c;
}

/* Copies m columns of a page together, because they share its cache lines. */
static void copy_columns(struct column c, const char *const *from, char *const *to, int32_t m)
{
    for (int64_t i = 0, at = 0; i < c.n_units; i++, at += c.stride) {
        for (int32_t j = 0; j < m; j++) {
            switch (c.unit) {
            case 1: to[j][at] = from[j][at]; break;
            case 2: memcpy(to[j] + at, from[j] + at, 2); break;
            default: memcpy(to[j] + at, from[j] + at, 4); break;
            }
        }
    }
}

/* Copies a token's value, with its scale. */
static void copy_value(const struct kv_plane *p, const char *from, int32_t token, char *to,
                       int32_t to_token)
{
    if (p->format != KV_PLAIN) {
        kv_move(p, from, token, to, to_token);
        return;
    }
    const size_t n_bytes = (size_t)p->width * dtype_bytes(p->dtype);
    memcpy(to + p->at + (size_t)to_token * n_bytes, from + p->at + (size_t)token * n_bytes,
           n_bytes);
}

size_t index_gather_bytes(const struct cpu_backend *cpu, const struct kv_pages *pages)
{
    return (size_t)(ATTN_CHUNK / cpu->limits.block_tokens + 2) * pages->head_bytes;
}

/* The tokens beside [first, end) in the first and the last page become zeros, since kernels may
 * multiply them by 0. */
void index_gather(const struct cpu_backend *cpu, const struct kv_pages *pages, int32_t row,
                  int32_t kv_head, int32_t first, int32_t end, char *to)
{
    const struct kv_plane *p = &pages->k;
    const int32_t tokens = cpu->limits.block_tokens, lane = index_seq(cpu, row)->lane;
    const int32_t first_page = first / tokens, n_pages = (end - 1) / tokens - first_page + 1;
    const size_t page_bytes = pages->head_bytes, head_at = (size_t)kv_head * page_bytes;
    const struct column c = column_of(p);
    int32_t slots[ATTN_CHUNK];
    const char *from[ATTN_CHUNK];
    char *copies[ATTN_CHUNK];
    ASSERT(first < end && end - first <= ATTN_CHUNK);
    if (cpu->index.block > 0) {
        find_slots_of_blocks(cpu, row, bits_of(cpu, row, kv_head), first, end, slots);
    } else {
        find_bits(bits_of(cpu, row, 0), first, end, slots);
    }
    memset(to, 0, page_bytes);
    memset(to + (size_t)(n_pages - 1) * page_bytes, 0, page_bytes);
    for (int32_t i = 0, m; i < end - first; i += m) {
        const char *page = cpu_kv_slot(cpu, pages, lane, slots[i]).block + head_at;
        for (m = 0; i + m < end - first && slots[i + m] / tokens == slots[i] / tokens; m++) {
            const int32_t token = slots[i + m] % tokens, number = first + i + m;
            char *copy = to + (size_t)(number / tokens - first_page) * page_bytes;
            from[m] = page + p->at + (int64_t)token * c.unit;
            copies[m] = copy + p->at + (int64_t)(number % tokens) * c.unit;
            if (p->has_scales) {
                kv_scale_put(p, copy, number % tokens, kv_scale_get(p, page, token));
            }
            if (!pages->geometry.v_in_k) {
                copy_value(&pages->v, page, token, copy, number % tokens);
            }
        }
        copy_columns(c, from, copies, m);
    }
}
