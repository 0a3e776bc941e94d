// SPDX-License-Identifier: Apache-2.0
/* How things lie in device memory: the KV pages, the lanes' state, and what one pass looks like to
 * a kernel. Host code fills these structs; kernels take them by value. All pointers are to device
 * memory and stay the same for a bucket of shapes, so that a captured graph may hold them.
 *
 * KV pages: [layer][page][kv_head][K|V][token][head_dim], each layer in a region of its own. A page
 * is a block of `block_tokens` tokens (16, 32 or 64; other sizes work in the plain kernels). With
 * v_in_k (MLA) there is no V: the value is the first head_dim_v of the key. Pages of codes are made
 * of records instead (struct kv_codes). Page `n_blocks` is the trash page: rows that pad a bucket
 * write there, and unset entries of a block table point to it. Pages behind it belong to paths of
 * trees (attention_plan.h), as do the lanes behind the null lane.
 *
 * Lane `max_lanes` is the null lane: its table is all trash. Padding rows are rows of it with token
 * 0 at position 0; they belong to no sequence (row_seq -1), and ops need only not be harmed by
 * them.
 * Compiles as C11 and C++17. Thread: plain data. */
#ifndef SLUICE_CUDA_LAYOUT_H
#define SLUICE_CUDA_LAYOUT_H

#include "engine/device/backend.h"

/* Codes instead of numbers: a head of a page is records of `tokens` (16, or all of a page whose
 * tokens are no multiple of that), which follow each other, each of them
 *
 *   K [token][k_row] | V [token][v_row] | words of K [token] | words of V [token]
 *
 * so that one copy brings all of it. Rows are bytes, a multiple of 16, in the order of the numbers;
 * two codes of four bits to a byte, the first in the low half. In records of 16 tokens byte b of
 * the K's, or V's, lies at b ^ (b >> 3 & 0x70), so that rows do not meet in the banks of shared
 * memory. A word is a scale, or scale and zero as cpu/cpu_kv_codes.h has them; of fp32 two floats.
 * KV_INT8_SYMMETRIC is stored as KV_INT8 with a zero of 128. */
struct kv_codes {
    enum kv_format format;  // KV_PLAIN: these are numbers, and what follows is unused
    float k_scale, v_scale; // of KV_FP8 without words
    int32_t tokens, k_row, v_row, v_offset; // v_offset: from the record's begin; 0: V is in K
    int32_t words_offset, word_bytes;       // word_bytes 0: there are none
    int32_t record_bytes;
};

/* One layer of a KV set. Element d of token t of kv head h in page p:
 *   K: base[p * page_stride + h * head_stride + t * head_dim_k + d]
 *   V: base[p * page_stride + h * head_stride + v_offset + t * v_token_stride + d]
 * Of codes an element is a byte, and v_offset only says whether there is a V. */
struct kv_view {
    void *base;
    enum dtype dtype; // of numbers; of codes: what they are the codes of
    int32_t n_kv_heads, head_dim_k, head_dim_v, block_tokens;
    int32_t n_pages;                               // with the trash page, and those of tree paths
    int32_t head_stride, v_offset, v_token_stride; // in elements
    int64_t page_stride;                           // in elements
    struct kv_codes codes;
};

/* Bytes of what the strides count. */
static inline size_t kv_element_bytes(const struct kv_view *kv)
{
    return kv->codes.format == KV_PLAIN ? dtype_bytes(kv->dtype) : 1;
}

/* What is real in the pass; the rest of the bucket is padding. */
struct pass_counts {
    int32_t n_rows, n_seqs, n_groups, n_out, n_draws, n_pool;
    int32_t has_trees, n_keeps;
};

/* A lane's sampling parameters on the device. The lists have places of their own in it. */
struct lane_params {
    float temperature, top_p, min_p;
    float repetition_penalty, frequency_penalty, presence_penalty;
    int32_t top_k, min_tokens;
    uint32_t seed_low, seed_high;
    int32_t n_stop_ids, n_bias, n_bad_words, n_allowed;
    int32_t stop_ids[MAX_STOP_IDS];
    struct logit_bias bias[MAX_BIAS];
    int32_t bad_word_lengths[MAX_BAD_WORDS];
    int32_t bad_word_tokens[MAX_BAD_TOKENS];
};

/* One pass. Arrays have the bucket's size, not the pass's. */
struct pass_view {
    const struct pass_counts *counts;
    const struct pass_row *rows;
    const int32_t *row_seq; // the row's sequence; -1: padding
    const struct pass_seq *seqs;
    const struct pass_group *groups;
    const uint64_t *tree_mask; // [rows, TREE_MASK_WORDS]; meaningful where the sequence is a tree
    const int32_t *out_rows;
    const struct pass_draw *draws;
    const struct pass_pool *pool;
    const struct state_keep *keeps;
    const void *attention_plan; // attention.h's own

    int32_t *tokens;                  // [rows]: each row's token, resolved when the pass begins
    int32_t *history;                 // [max_lanes + 1, history_stride]
    int32_t *blocks;                  // [max_lanes + 1 + max_paths, blocks_stride]: block tables
    const struct lane_params *params; // [max_lanes + 1]
    const uint32_t *allowed;          // [max_lanes + 1, allowed_stride]: bit i: id i may be drawn
    const uint32_t *masks;            // [max_masks, allowed_stride], of the draws
    float *pooled;                    // [max_lanes + 1, hidden]
    float *laws; // [max_laws, vocab]: what drafts were drawn from, exact_exp(score - top)
    unsigned long long *law_totals; // [max_laws]: sums of their masses
    int32_t vocab;
    int32_t history_stride, blocks_stride, allowed_stride;
    int32_t max_lanes, n_blocks; // the null lane, the trash page
    int32_t n_rows;              // the bucket's rows
};

#endif
