// SPDX-License-Identifier: Apache-2.0
/* The device half of few_kv.cu: how a warp processes one row and KV head whose pages hold codes.
 * few.cuh has what does not depend on the pages.
 * Thread: device code, one warp at a time. */
#ifndef SLUICE_CUDA_KERNELS_ATTENTION_FEW_KV_CUH
#define SLUICE_CUDA_KERNELS_ATTENTION_FEW_KV_CUH

#include "cuda/kernels/attention/codes_load.cuh"
#include "cuda/kernels/attention/few.cuh"

enum { FEW_KV_MAX_SLOTS = 5, FEW_KV_BARRIER_BYTES = 384 }; // room for 2 + 8 x 5 barriers

/* few_params, and the ring: slots per warp, and bytes of a record in it. */
struct few_kv_params {
    struct few_params few;
    struct few_bounds bounds; // zeros: no window, no sinks
    int32_t n_slots, record_room;
};

#if HAVE_SM90A

template <enum kv_format F, typename T, int DIM>
struct few_kv : few<T, DIM, false, BY_CLUSTER_OF_CODES, false> {
    using B = few<T, DIM, false, BY_CLUSTER_OF_CODES, false>;
    using S = typename B::S;
    using K = code_kind<F>;
    static constexpr int J = S::J, TILES = S::TILES, ROW = DIM * K::BITS / 8;
    static constexpr int WORDS = K::STEPS == 2 ? 1 : 2; // words of codes in 8 elements
    static constexpr int OWN = DIM / 32; // elements of the new key per lane while they are encoded
    const struct few_kv_params &all;
    float *fresh; // [2][DIM]: the unit's new key and value, written by the warp that stores them

    uint32_t operands[J][4]; // of the products with keys: the rotated heads as fp16
    float q_sum[2];          // for heads 2 t and 2 t + 1
    float total[2], zeros[2];

    __device__ __forceinline__ const struct kv_codes &codes() const
    {
        return B::p.kv.codes;
    }

    /* ---- records */

    __device__ __forceinline__ void start()
    {
        if (B::lane == 0) {
            for (int i = 0; i < all.n_slots; i++) {
                barrier_init(&B::full[i], 1);
            }
            barrier_init_done();
        }
        const int r = B::first / B::p.heads_y();
        B::info = B::p.rows[r];
        if (B::p.row_seq[r] < 0) {
            B::info.slot_pos = -1;
        }
        __syncwarp();
        B::ahead.next_pages = B::look_up(0, 0);
        B::enter(0);
#pragma unroll 1
        for (int i = 0; i < all.n_slots; i++) {
            fetch(i);
        }
    }

    __device__ __forceinline__ void fetch(int to)
    {
        const int chunk = B::worker + B::ahead.i * B::n_workers;
        if (chunk >= B::ahead.n_chunks) {
            return;
        }
        if (B::ahead.i > 0 && (B::ahead.i & 31) == 0) {
            B::ahead.pages = B::look_up(B::ahead.unit, B::ahead.i);
        }
        const int page = (int)__shfl_sync(0xffffffffu, B::ahead.pages, B::ahead.i & 31);
        if (B::lane == 0) {
            const struct kv_place from = kv_place_of(B::p.kv, page, B::ahead.kv_head,
                                                     chunk * CHUNK & (B::p.kv.block_tokens - 1));
            const uint32_t n_bytes = (uint32_t)codes().record_bytes;
            barrier_expect(&B::full[to], n_bytes);
            bulk_load(B::slots + to * all.record_room, from.record, n_bytes, &B::full[to],
                      policy_evict_first());
        }
        __syncwarp();
        B::ahead.i++;
    }

    /* ---- the new row */

    /* Makes the query's operands, with its elements paired as key_operands pairs codes. Returns the
     * sum of the rounded elements. */
    __device__ __forceinline__ float make_operands(int j, const float (&x)[8])
    {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int reg = i % 2, word = K::STEPS == 2 ? 0 : i / 2;
            const int at = word * 4 + q_dim<F>(i / 2 % K::STEPS, reg);
            const float by = (reg == 1 ? K::ODD : 1.0f) * QUERY_FACTOR;
            // queries are rounded to the model's type first, as rope.cu does when it stores them
            operands[j][i] = half_pair(to_float(from_float<T>(x[at])) * by,
                                       to_float(from_float<T>(x[at + q_pair<F>()])) * by);
            const float2 rounded = half_values(operands[j][i]);
            sum += (rounded.x + rounded.y) * (reg == 1 ? 1.0f / K::ODD : 1.0f);
        }
        return sum;
    }

    /* The lane's elements of vector j, with the norm. */
    __device__ __forceinline__ void elements_of(int j, float scale, float (&x)[8]) const
    {
        const float *weight = B::lane >> 2 < B::p.group ? B::p.q_norm : B::p.k_norm;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float2 v = unpack<T>(B::q[j][e]);
            x[2 * e] = v.x;
            x[2 * e + 1] = v.y;
        }
        if (B::p.q_norm) {
#pragma unroll
            for (int e = 0; e < 8; e += 4) {
                const float4 w =
                    *reinterpret_cast<const float4 *>(weight + few_dim<DIM>(B::lane, j) + e);
                x[e] *= scale * (w.x + B::p.norm_offset);
                x[e + 1] *= scale * (w.y + B::p.norm_offset);
                x[e + 2] *= scale * (w.z + B::p.norm_offset);
                x[e + 3] *= scale * (w.w + B::p.norm_offset);
            }
        }
    }

    /* Normalises and rotates the rows. stores: this warp has the unit's last chunk, so it keeps the
     * new key and value in `fresh`. */
    __device__ __forceinline__ void rotate(bool stores)
    {
        const float scale = B::p.q_norm ? few_norm_scale<T, DIM>(B::q, B::p.eps) : 1.0f;
        const bool value_ok = are_storable<T, true>(B::value);
        const bool key_ok = __all_sync(0xffffffffu, value_ok);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < J / 2; j++) {
            float a[8], b[8];
            elements_of(j, scale, a);
            elements_of(j + J / 2, scale, b);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float4 cs = B::rope.cos_sin[j * 4 + e];
                turn(a[2 * e], b[2 * e], cs.x, cs.y);
                turn(a[2 * e + 1], b[2 * e + 1], cs.z, cs.w);
            }
            sum += make_operands(j, a);
            sum += make_operands(j + J / 2, b);
            if (stores && B::lane >> 2 == B::p.group) {
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    fresh[few_dim<DIM>(B::lane, j) + e] = key_ok ? a[e] : NAN;
                    fresh[few_dim<DIM>(B::lane, j + J / 2) + e] = b[e];
                }
            }
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            q_sum[h] = __shfl_sync(0xffffffffu, sum, ((B::lane & 3) * 2 + h) * 4);
        }
        if (stores && B::lane < DIM / 8) {
            const uint32_t words[4] = {B::value.x, B::value.y, B::value.z, B::value.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float2 v = unpack<T>(value_ok ? words[e] : 0);
                fresh[DIM + B::lane * 8 + 2 * e] = v.x;
                fresh[DIM + B::lane * 8 + 2 * e + 1] = v.y;
            }
        }
        __syncwarp();
    }

    /* Encodes the new key and value, as rope.cu does, into the last chunk and into their page. */
    __device__ __forceinline__ void add_new(char *chunk)
    {
        const struct kv_codes &c = codes();
        const struct kv_place page =
            kv_place_of(B::p.kv, B::new_page, B::kv_head, B::past & (B::p.kv.block_tokens - 1));
        const struct kv_place here = {chunk, page.token};
#pragma unroll 1
        for (int is_v = 0; is_v < 2; is_v++) {
            float x[OWN];
            struct kv_range r = KV_NO_RANGE;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                x[i] = fresh[is_v * DIM + B::lane * OWN + i];
                kv_range_add(r, x[i]);
            }
            const struct kv_scale s = kv_scale_of(c, is_v, kv_range_of_lanes(r, 0xffffffffu, 32));
            uint32_t word = 0;
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                word |= kv_code_of(F == KV_INT8 ? c.format : F, s, x[i]) << (i * K::BITS);
            }
            put_codes(kv_byte(c, here, is_v, B::lane * OWN * K::BITS / 8), word);
            if (B::part == 0) {
                put_codes(kv_byte(c, page, is_v, B::lane * OWN * K::BITS / 8), word);
            }
            if (B::lane == 0) {
                kv_scale_put(c, here, is_v, s);
                if (B::part == 0) {
                    kv_scale_put(c, page, is_v, s);
                }
            }
        }
        fence_async(); // before the copy engine refills the slot
        __syncwarp();
    }

    __device__ __forceinline__ static void put_codes(char *to, uint32_t word)
    {
        constexpr int BYTES = OWN * K::BITS / 8;
        if constexpr (BYTES == 4) {
            *(uint32_t *)to = word;
        } else if constexpr (BYTES == 2) {
            *(uint16_t *)to = (uint16_t)word;
        } else {
            *(uint8_t *)to = (uint8_t)word;
        }
    }

    /* ---- chunks */

    __device__ __forceinline__ static int swizzled_byte(int token, int byte)
    {
        const int b = token * ROW + byte;
        return b ^ (b >> 3 & 0x70);
    }

    /* The products of keys g ([0], [1]) and g + 8 with heads 2 t and 2 t + 1. */
    __device__ __forceinline__ void score(const char *record, float (&x)[4]) const
    {
        float s[2][4] = {};
        const int g = B::lane >> 2;
#pragma unroll
        for (int j = 0; j < J; j++) {
#pragma unroll
            for (int w = 0; w < WORDS; w++) {
                const int byte = few_dim<DIM>(B::lane, j) * K::BITS / 8 + w * 4;
                uint32_t low[2 * K::STEPS], high[2 * K::STEPS];
                key_operands<F>(*(const uint32_t *)(record + swizzled_byte(g, byte)), low);
                key_operands<F>(*(const uint32_t *)(record + swizzled_byte(g + 8, byte)), high);
#pragma unroll
                for (int i = 0; i < K::STEPS; i++) {
                    const uint32_t a[4] = {low[2 * i], high[2 * i], low[2 * i + 1],
                                           high[2 * i + 1]};
                    const int o = (w + i) * 2;
                    mma_16x8x16(s[(w + i) % 2], a, operands[j][o], operands[j][o + 1], f16_t());
                }
            }
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            x[e] = s[0][e] + s[1][e];
        }
    }

    struct key_factors {
        float k, k_zero, v_log, v_inverse, v_zero;
    };

    /* The factors of a key of the chunk, which starts with key `first` of the sequence. */
    __device__ __forceinline__ struct key_factors factors_of(const char *record, int key,
                                                             int first) const
    {
        const struct kv_codes &c = codes();
        const float unit = K::UNIT / QUERY_FACTOR * B::p.scale_log2;
        if (first + key > B::past) {
            return {};
        }
        if (c.word_bytes == 0) {
            return {c.k_scale * unit, 0.0f, 0.0f, 1.0f, 0.0f};
        }
        const uint32_t *words = (const uint32_t *)(record + c.words_offset);
        const struct kv_scale k = kv_scale_of_word(c.format, words[key]);
        const struct kv_scale v = kv_scale_of_word(c.format, words[RECORD_KEYS + key]);
        return {k.scale * unit, k.zero * (1.0f / K::UNIT), log2_fast(v.scale), reciprocal(v.scale),
                v.zero};
    }

    /* Adds the chunk in the slot, whose first key is key `first` of the sequence. */
    __device__ __forceinline__ void add_chunk(const char *record, int first)
    {
        const int g = B::lane >> 2;
        float x[4];
        score(record, x);
        const struct key_factors keys[2] = {factors_of(record, g, first),
                                            factors_of(record, g + 8, first)};
        uint32_t weights[2];
        float decay[2];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const struct key_factors &key = keys[e / 2];
            x[e] = __fmaf_rn(__fmaf_rn(-key.k_zero, q_sum[e & 1], x[e]), key.k, key.v_log);
            x[e] = first + g + e / 2 * 8 <= B::past ? x[e] : -INFINITY;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float high = fmaxf(column_max(x[h], x[h + 2]), B::top[h]);
            const float safe = high == -INFINITY ? 0.0f : high;
            decay[h] = exp2_fast(B::top[h] - safe);
            B::top[h] = high;
            x[h] = exp2_fast(x[h] - safe);
            x[h + 2] = exp2_fast(x[h + 2] - safe);
            total[h] =
                total[h] * decay[h] + x[h] * keys[0].v_inverse + x[h + 2] * keys[1].v_inverse;
            zeros[h] *= decay[h];
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t pair = half_pair(x[2 * k], x[2 * k + 1]);
            const float2 rounded = half_values(pair);
            zeros[0] += rounded.x * keys[k].v_zero;
            zeros[1] += rounded.y * keys[k].v_zero;
            weights[k] = transposed(pair);
        }
#pragma unroll
        for (int f = 0; f < TILES; f++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                B::values[f][e] *= decay[e & 1];
            }
        }
        add_values(record + RECORD_KEYS * ROW, first, weights);
    }

    __device__ __forceinline__ void add_values(const char *v, int first,
                                               const uint32_t (&weights)[2])
    {
        constexpr int PIECES = TILES / K::STEPS;
#pragma unroll
        for (int c = 0; c < PIECES; c += 2) {
            uint32_t words[4];
            ldmatrix_x4_transposed(words,
                                   v + swizzled_byte(B::lane & 15, (c + (B::lane >> 4)) * 16));
            if (F == KV_FP8) { // codes after the new key may be NaN
                const int key = first + (B::lane & 3) * 2;
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    const int k = key + w % 2 * 8;
                    words[w] &=
                        (k <= B::past ? 0xffffu : 0u) | (k + 1 <= B::past ? 0xffff0000u : 0u);
                }
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t low[2 * K::STEPS], up[2 * K::STEPS];
                value_operands<F>(words[2 * h], low);
                value_operands<F>(words[2 * h + 1], up);
#pragma unroll
                for (int s = 0; s < K::STEPS; s++) {
                    const uint32_t a[4] = {low[2 * s], low[2 * s + 1], up[2 * s], up[2 * s + 1]};
                    mma_16x8x16(B::values[(c + h) * K::STEPS + s], a, weights[0], weights[1],
                                f16_t());
                }
            }
        }
    }

    /* Processes this warp's chunks, the first of which are in flight. */
    __device__ __forceinline__ void add_chunks()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            B::top[h] = -INFINITY;
            total[h] = zeros[h] = 0.0f;
        }
#pragma unroll
        for (int f = 0; f < TILES; f++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                B::values[f][e] = 0.0f;
            }
        }
#pragma unroll 1
        for (int c = B::worker; c < B::n_chunks; c += B::n_workers) {
            barrier_wait(&B::full[B::slot], B::parity);
            char *at = B::slots + B::slot * all.record_room;
            if (c == B::n_chunks - 1) {
                add_new(at);
            }
            add_chunk(at, c * CHUNK);
            __syncwarp();
            fetch(B::slot);
            if (++B::slot == all.n_slots) {
                B::slot = 0;
                B::parity ^= 1;
            }
        }
    }

    /* Like few::send, but converts the maxima to units of scores, which few::join_all expects. */
    __device__ __forceinline__ void send(float *room, uint64_t *bar, int n) const
    {
        const int g = B::lane >> 2, h = (B::lane & 3) * 2, log_dims = S::LOG_TILES + 4;
        const int log_mine = log_dims - B::p.log_cluster, n_mine = 1 << log_mine;
        const float stored = codes().word_bytes == 0 ? codes().v_scale : 1.0f;
        float zero[2], sum[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            zero[e] = of_keys(zeros[e]);
            sum[e] = of_keys(total[e]);
        }
        if (B::worker >= n || h >= B::p.group) {
            return;
        }
        float *mine = room + ((B::worker * n_mine) << B::p.log_heads) + h;
#pragma unroll
        for (int i = 0; i < TILES * 2; i++) {
            const int f = i / 2, odd = i % 2;
            const int d = f / K::STEPS * K::NUMBERS + g * 2 * K::STEPS + f % K::STEPS * 2 + odd;
            const float by = odd ? K::UNIT * K::ODD : K::UNIT;
            B::put(mine + ((d & (n_mine - 1)) << B::p.log_heads), bar, d >> log_mine,
                   (B::values[f][2 * odd] * by - zero[0]) * stored,
                   (B::values[f][2 * odd + 1] * by - zero[1]) * stored);
        }
        if (g < 1 << B::p.log_cluster) {
            float *rest =
                room + ((B::n_workers * n_mine + B::worker * 2) << B::p.log_heads) + h * 2;
            const float unit = 1.0f / B::p.scale_log2;
            B::put(rest, bar, g, B::top[0] * unit, sum[0]);
            B::put(rest + 2, bar, g, B::top[1] * unit, sum[1]);
        }
    }

    __device__ __forceinline__ static float of_keys(float x)
    {
        x += __shfl_xor_sync(0xffffffffu, x, 4);
        x += __shfl_xor_sync(0xffffffffu, x, 8);
        return x + __shfl_xor_sync(0xffffffffu, x, 16);
    }
};

#endif // HAVE_SM90A

#endif
