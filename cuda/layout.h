// SPDX-License-Identifier: Apache-2.0
/* The layout of device memory: KV pages, the lanes' state, and one pass as kernels see it. Host
 * code fills these structs; kernels take them by value. All pointers are to device memory and are
 * the same for every pass of a bucket of shapes, so that a captured graph may hold them.
 *
 * KV pages: [layer][page][kv_head][K|V][token][head_dim], where each layer has a separate region. A
 * page is a block of `block_tokens` tokens (16, 32 or 64; other sizes work in the plain kernels).
 * With v_in_k (MLA) there is no V: the value is the first head_dim_v elements of the key. Quantised
 * pages consist of records instead (struct kv_codes). Page `n_blocks` is the trash page: padding
 * rows write to it, and unset entries of a block table point to it. Pages after it belong to tree
 * paths (attention_plan.h), as do the lanes after the null lane.
 *
 * Lane `max_lanes` is the null lane, whose block table has trash pages only. Padding rows are rows
 * of the null lane with token 0 at position 0. They belong to no sequence (row_seq -1); an op may
 * compute anything for them, but must not fail. Compiles as C11 and C++17.
 * Thread: plain data. */
#ifndef SLUICE_CUDA_LAYOUT_H
#define SLUICE_CUDA_LAYOUT_H

#include "engine/device/backend.h"

/* Quantised pages: each head of a page is a sequence of records of `tokens` tokens (16, or the
 * whole page if that is not a multiple of 16). A record is
 *
 *   K [token][k_row] | V [token][v_row] | words of K [token] | words of V [token]
 *
 * so that one copy loads all of it. Rows are bytes, a multiple of 16, in element order; two 4-bit
 * codes share a byte, the first in the low half. In records of 16 tokens byte b of the K part (and
 * of the V part) is stored at b ^ (b >> 3 & 0x70), which avoids bank conflicts in shared memory. A
 * word is a scale, or a scale and zero as in cpu/cpu_kv_codes.h; for fp32 models it is two floats.
 * KV_INT8_SYMMETRIC is stored as KV_INT8 with a zero of 128. */
struct kv_codes {
    enum kv_format format;  // KV_PLAIN: not quantised, and the rest is unused
    float k_scale, v_scale; // for KV_FP8 without words
    // v_offset: from the start of the record; 0: V is a part of K
    int32_t tokens, k_row, v_row, v_offset;
    int32_t words_offset, word_bytes; // word_bytes 0: there are no words
    int32_t record_bytes;
};

/* One layer of a KV set. Element d of token t of kv head h in page p:
 *   K: base[p * page_stride + h * head_stride + t * head_dim_k + d]
 *   V: base[p * page_stride + h * head_stride + v_offset + t * v_token_stride + d]
 * In quantised pages strides count bytes, and v_offset only says whether there is a V. */
struct kv_view {
    void *base;
    enum dtype dtype; // dtype of the elements; for quantised pages, the dtype before quantisation
    int32_t n_kv_heads, head_dim_k, head_dim_v, block_tokens;
    int32_t n_pages; // including the trash page and the pages of tree paths
    int32_t head_stride, v_offset, v_token_stride; // in elements
    int64_t page_stride;                           // in elements
    struct kv_codes codes;
};

/* The bytes of the unit in which strides are given. */
static inline size_t kv_element_bytes(const struct kv_view *kv)
{
    return kv->codes.format == KV_PLAIN ? dtype_bytes(kv->dtype) : 1;
}

/* struct head_growth on the device. */
struct head_factors {
    const float *scale, *bias; // [heads]; both NULL: none
};

/* The numbers of real entries in the pass; all other entries of the bucket are padding. */
struct pass_counts {
    int32_t n_rows, n_seqs, n_groups, n_out, n_draws, n_pool;
    int32_t has_trees, n_keeps;
};

/* A lane's sampling parameters on the device. Each list has a fixed place in the struct. */
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

/* One pass. The arrays have the size of the bucket, not that of the pass. */
struct pass_view {
    const struct pass_counts *counts;
    const struct pass_row *rows;
    const int32_t *row_seq; // sequence of the row; -1: padding
    const struct pass_seq *seqs;
    const struct pass_group *groups;
    const uint64_t *tree_mask; // [rows, TREE_MASK_WORDS]; valid if the sequence is a tree
    const int32_t *out_rows;
    const struct pass_draw *draws;
    const struct pass_pool *pool;
    const struct state_keep *keeps;
    const void *attention_plan; // used only by the attention code

    int32_t *tokens;  // [rows]: token of each row, determined at the start of the pass
    int32_t *history; // [max_lanes + 1, history_stride]
    int32_t *blocks;  // [max_lanes + 1 + max_paths, blocks_stride]: block tables
    const struct lane_params *params; // [max_lanes + 1]
    const uint32_t *allowed; // [max_lanes + 1, allowed_stride]: bit i is set if id i may be drawn
    // [slots, allowed_stride]: masks of draws, including those of earlier passes
    const uint32_t *masks;
    const int32_t *mask_slots; // [max_masks]: where in `masks` each mask of the pass is
    float *pooled;             // [max_lanes + 1, hidden]
    float *laws; // [max_laws, vocab]: the distributions from which drafts were drawn, as
                 // exact_exp(score - top)
    unsigned long long *law_totals; // [max_laws]: sums of their masses
    int32_t vocab;
    int32_t history_stride, blocks_stride, allowed_stride;
    int32_t max_lanes, n_blocks; // index of the null lane; index of the trash page
    int32_t n_rows;              // number of rows of the bucket
    bool bidirectional;          // as in struct pass
};

#endif
