// SPDX-License-Identifier: Apache-2.0
/* Weights that stay quantised: their products have the bits of the same weights decoded at load. */
#include "test/device/op_harness.h"

/* A format, as files have it. The packing of whole bytes is tested with the codec. */
struct format {
    const char *name;
    enum dtype values, scales;
    bool zeros;
    int32_t zero;
    enum tensor_scale tensor_scale;
    int32_t block_rows, block_cols; // rows and columns that share a scale; 0: all
};

/* One per layout of codes and scales. */
static const struct format formats[] = {
    {"int4", DT_U4, DT_F16, false, 8, TENSOR_SCALE_NONE, 1, 32},
    {"int4 of channels", DT_U4, DT_BF16, false, 8, TENSOR_SCALE_NONE, 1, 0},
    {"int4 with zeros", DT_U4, DT_BF16, true, 1, TENSOR_SCALE_NONE, 1, 64},
    {"int8", DT_U8, DT_BF16, false, 128, TENSOR_SCALE_NONE, 1, 0},
    {"int8 with zeros", DT_U8, DT_F32, true, 1, TENSOR_SCALE_NONE, 1, 48},
    {"signed int8", DT_I8, DT_F32, false, 0, TENSOR_SCALE_NONE, 1, 0},
    {"fp8", DT_E4M3, DT_F32, false, 0, TENSOR_SCALE_NONE, 0, 0},
    {"fp8 in blocks", DT_E4M3, DT_BF16, false, 0, TENSOR_SCALE_NONE, 40, 32},
    {"nvfp4", DT_E2M1, DT_E4M3, false, 0, TENSOR_SCALE_DIVIDES, 1, 16},
    {"nvfp4 of modelopt", DT_E2M1, DT_E4M3, false, 0, TENSOR_SCALE_TIMES, 1, 16},
    {"mxfp4", DT_E2M1, DT_E8M0, false, 0, TENSOR_SCALE_NONE, 1, 32},
    {"int2", DT_U2, DT_F16, false, 2, TENSOR_SCALE_NONE, 1, 32},
};

enum { N_FORMATS = sizeof formats / sizeof formats[0] };

/* Formats that store numbers and scales together in blocks, and the offset of the scales in a
 * block; -1: of the highest bits of a divided scale. */
static const struct {
    const char *name;
    int32_t n_scales, scale_at[2];
} in_blocks[] = {
    {"Q4_0", 1, {0}},   {"Q4_1", 2, {0, 2}}, {"Q5_0", 1, {0}},      {"Q5_1", 2, {0, 2}},
    {"Q8_0", 1, {0}},   {"Q4_K", 2, {0, 2}}, {"Q5_K", 2, {0, 2}},   {"Q6_K", 1, {208}},
    {"IQ4_NL", 1, {0}}, {"MXFP4", 0, {0}},   {"Q2_K", 2, {80, 82}}, {"Q3_K", 1, {108}},
    {"IQ4_XS", 1, {0}}, {"IQ1_S", 1, {0}},   {"IQ1_M", -1, {55}},   {"IQ2_XXS", 1, {0}},
    {"IQ2_XS", 1, {0}}, {"IQ2_S", 1, {0}},   {"IQ3_XXS", 1, {0}},   {"IQ3_S", 1, {0}},
    {"TQ1_0", 1, {52}}, {"TQ2_0", 1, {64}},
};

enum { N_IN_BLOCKS = sizeof in_blocks / sizeof in_blocks[0] };

static void *random_bytes(size_t n)
{
    uint8_t *bytes = xmalloc(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)op_bits();
    }
    return bytes;
}

/* Scales that give weights of a typical size. */
static void *random_scales(enum dtype dtype, size_t n)
{
    float *scales = xmalloc(n * sizeof *scales);
    uint8_t *small = random_bytes(n);
    for (size_t i = 0; i < n; i++) {
        scales[i] = 0.01f + 0.02f * op_uniform();
        small[i] = (uint8_t)(dtype == DT_E8M0 ? 118 + small[i] % 6 : 0x20 + small[i] % 0x50);
    }
    if (dtype == DT_E4M3 || dtype == DT_E8M0) {
        free(scales);
        return small;
    }
    free(small);
    void *stored = op_stored(dtype, scales, n);
    free(scales);
    return stored;
}

/* A tensor of n_out x n_in in memory of its own. */
static struct weight_part make_tensor(const struct format *f, int32_t n_out, int32_t n_in)
{
    struct weight_part p = weight_part_plain(NULL, f->values, n_out, n_in, 0);
    struct weight_codec *c = &p.codec;
    int32_t per_byte = 8 / dtype_bits(f->values);
    int64_t row_bytes = (n_in + per_byte - 1) / per_byte;
    c->values = (struct number_grid){random_bytes((size_t)(row_bytes * n_out)),
                                     f->values,
                                     per_byte > 1 ? PACK_BYTES : PACK_NONE,
                                     row_bytes,
                                     1,
                                     0};
    // avoids the code of NaN
    for (int64_t i = 0; f->values == DT_E4M3 && i < row_bytes * n_out; i++) {
        uint8_t *byte = (uint8_t *)c->values.data + i;
        if ((*byte & 0x7F) == 0x7F) {
            *byte = 0;
        }
    }
    c->block_rows = f->block_rows ? f->block_rows : n_out;
    c->block_cols = f->block_cols ? f->block_cols : n_in;
    int64_t rows = (n_out + c->block_rows - 1) / c->block_rows;
    int64_t cols = (n_in + c->block_cols - 1) / c->block_cols;
    c->scales = (struct number_grid){
        random_scales(f->scales, (size_t)(rows * cols)), f->scales, PACK_NONE, cols, 1, 0};
    if (f->zeros) {
        c->zeros = (struct number_grid){random_bytes((size_t)(rows * cols)),
                                        f->values,
                                        per_byte > 1 ? PACK_BYTES : PACK_NONE,
                                        cols,
                                        1,
                                        0};
    }
    c->zero = f->zero;
    c->tensor_scale_use = f->tensor_scale;
    if (f->tensor_scale == TENSOR_SCALE_DIVIDES) {
        c->tensor_scale = 37.5f;
    } else {
        c->tensor_scale = 0.013f;
    }
    return p;
}

/* The same for a format with blocks. */
static struct weight_part make_blocks(int32_t i, int32_t n_out, int32_t n_in)
{
    const struct block_format *f = block_format_find(in_blocks[i].name);
    size_t n = (size_t)n_out * (size_t)(n_in / f->n);
    uint8_t *bytes = random_bytes(n * (size_t)f->n_bytes);
    for (size_t b = 0; b < n; b++) {
        uint8_t *block = bytes + b * (size_t)f->n_bytes;
        for (int32_t s = 0; s < in_blocks[i].n_scales; s++) {
            uint16_t scale = (uint16_t)(0x0800 + op_bits() % 0x2000);
            memcpy(block + in_blocks[i].scale_at[s], &scale, sizeof scale);
        }
        if (in_blocks[i].n_scales < 0) {
            block[in_blocks[i].scale_at[0]] &= 0x2F;
        } else if (in_blocks[i].n_scales == 0) {
            block[0] = (uint8_t)(116 + block[0] % 8);
        }
    }
    return weight_part_blocks(bytes, f, n_out, n_in);
}

static void free_tensor(struct weight_part *p)
{
    free((void *)p->codec.values.data);
    free((void *)p->codec.scales.data);
    free((void *)p->codec.zeros.data);
}

/* The same weights as plain floats. */
static struct weight_part make_plain(const struct weight_part *p)
{
    float *values = xmalloc((size_t)(p->n_rows * p->n_cols) * sizeof *values);
    for (int64_t r = 0; r < p->n_rows; r++) {
        for (int64_t c = 0; c < p->n_cols; c++) {
            values[r * p->n_cols + c] = weight_part_get(p, r, c);
        }
    }
    return weight_part_plain(values, DT_F32, p->n_rows, p->n_cols, p->n_cols);
}

/* Several tensors as one weight, as q, k and v are. */
static struct weight *open_parts(struct op_rig *r, const struct weight_part *parts, int32_t n,
                                 enum dtype dtype, int32_t segments)
{
    struct weight_desc d = {.name = "test",
                            .kind = WEIGHT_LINEAR,
                            .dtype = dtype,
                            .n_in = parts[0].n_cols,
                            .n_experts = 1,
                            .n_parts = n,
                            .parts = parts,
                            .k_segments = segments};
    for (int32_t i = 0; i < n; i++) {
        d.n_out += parts[i].n_rows;
    }
    struct weight *w = NULL;
    struct err err = {""};
    if (r->ops->weight_open(r->be, &d, &w, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return w;
}

/* Embedding tables are read by rows. */
static struct weight *open_table(struct op_rig *r, const struct weight_part *part, enum dtype dtype)
{
    struct weight_desc d = {.name = "test",
                            .kind = WEIGHT_EMBED,
                            .dtype = dtype,
                            .n_out = part->n_rows,
                            .n_in = part->n_cols,
                            .n_experts = 1,
                            .n_parts = 1,
                            .parts = part,
                            .k_segments = 1};
    struct weight *w = NULL;
    struct err err = {""};
    if (r->ops->weight_open(r->be, &d, &w, &err) != OK) {
        CHECK_FAIL("%s", err.text);
    }
    return w;
}

static float *product(struct op_rig *r, const struct weight *w, const float *x, int32_t rows)
{
    struct linear_args a = {
        .weight = w,
        .x = op_tensor(r, x, rows, (int32_t)w->n_in, (int32_t)w->n_in),
        .y = op_tensor(r, NULL, rows, (int32_t)w->n_out, (int32_t)w->n_out + 3),
        .n_rows = rows,
    };
    CHECK_EQ(r->ops->linear(r->be, &a), OK);
    return op_fetch(r, a.y, rows, (int32_t)w->n_out);
}

struct cut {
    int32_t first_row, n_rows, first_col, n_cols, segments;
};

/* Two tensors stacked, each cut, compared with the same tensors decoded. */
static void try_tensors(const char *backend, const char *name, struct weight_part *whole,
                        enum dtype dtype, const struct cut *cut)
{
    static const int32_t rows[] = {1, 2, 5, 16, 40, 213};
    struct backend_limits limits = op_limits();
    struct op_rig rig = op_open(backend, dtype, &limits);
    struct weight_part parts[2], plain[2];
    for (int32_t i = 0; i < 2; i++) {
        parts[i] =
            weight_part_slice(whole[i], cut->first_row, cut->n_rows, cut->first_col, cut->n_cols);
        plain[i] = make_plain(&parts[i]);
    }
    struct weight *w = open_parts(&rig, parts, 2, dtype, cut->segments);
    struct weight *same = open_parts(&rig, plain, 2, dtype, cut->segments);
    CHECK(w && w->coded && w->packed_bytes < same->packed_bytes);
    int32_t n = strcmp(backend, "scalar") == 0 ? 5 : 6;
    float *x = op_random((size_t)213 * cut->n_cols, 1.0f);
    for (int32_t i = 0; i < n && w && same; i++) {
        float *y = product(&rig, w, x, rows[i]), *want = product(&rig, same, x, rows[i]);
        size_t n_bytes = (size_t)rows[i] * (size_t)w->n_out * sizeof *y;
        if (memcmp(y, want, n_bytes) != 0) {
            CHECK_FAIL("%s: %s, type %d, %d rows, columns %d + %d, %d segments", backend, name,
                       dtype, rows[i], cut->first_col, cut->n_cols, cut->segments);
        }
        free(y);
        free(want);
    }
    for (int32_t i = 0; i < 2; i++) {
        free_tensor(&whole[i]);
        free((void *)plain[i].codec.values.data);
    }
    free(x);
    op_close(&rig);
}

static void try_cut(const char *backend, const struct format *f, enum dtype dtype,
                    const struct cut *cut)
{
    struct weight_part whole[2] = {make_tensor(f, 190, 416), make_tensor(f, 190, 416)};
    try_tensors(backend, f->name, whole, dtype, cut);
}

/* Cuts that begin within a block of scales, and segments of K. */
OP_TEST(products_of_codes_have_the_bits_of_numbers)
{
    static const struct cut cuts[] = {
        {0, 190, 0, 416, 1},
        {0, 190, 0, 416, 2},
        {3, 77, 208, 208, 1},
        {3, 77, 208, 208, 2},
    };
    for (int32_t i = 0; i < N_FORMATS; i++) {
        try_cut(backend, &formats[i], DT_BF16, &cuts[i % 4]);
        try_cut(backend, &formats[i], i % 3 ? DT_BF16 : DT_F16, &cuts[(i + 2) % 4]);
    }
}

/* Windows begin and end inside blocks, but not inside a group of codes. */
OP_TEST(products_of_blocks_have_the_bits_of_numbers)
{
    static const struct cut cuts[] = {
        {0, 190, 0, 512, 1},  {0, 190, 0, 512, 2}, {3, 77, 128, 256, 2},
        {3, 77, 208, 304, 1}, {3, 77, 16, 96, 1},
    };
    for (int32_t i = 0; i < N_IN_BLOCKS; i++) {
        for (int32_t k = 0; k < 2; k++) {
            const struct cut *cut = &cuts[(i + 2 * k) % 5];
            struct weight_part whole[2] = {make_blocks(i, 190, 512), make_blocks(i, 190, 512)};
            try_tensors(backend, in_blocks[i].name, whole, k ? DT_F16 : DT_BF16, cut);
        }
    }
}

/* Parts of different formats, each of which begins a tile. */
OP_TEST(products_of_unlike_blocks_have_the_bits_of_numbers)
{
    static const struct cut cuts[] = {{0, 128, 0, 512, 1}, {64, 64, 128, 256, 2}};
    for (int32_t i = 0; i < N_IN_BLOCKS; i++) {
        int32_t other = (i + 3) % N_IN_BLOCKS;
        struct weight_part whole[2] = {make_blocks(i, 190, 512), make_blocks(other, 190, 512)};
        try_tensors(backend, in_blocks[i].name, whole, i % 2 ? DT_F16 : DT_BF16, &cuts[i % 2]);
    }
}

/* Rows of a table that stays coded equal the decoded rows, rounded as at load. */
OP_TEST(rows_of_blocks_are_those_of_numbers)
{
    for (int32_t i = 0; i < N_IN_BLOCKS; i++) {
        enum dtype dtype = i % 2 ? DT_F16 : DT_BF16;
        struct backend_limits limits = op_limits();
        struct op_rig rig = op_open(backend, dtype, &limits);
        struct weight_part whole = make_blocks(i, 70, 256), plain = make_plain(&whole);
        struct weight *w = open_table(&rig, &whole, dtype), *same = open_table(&rig, &plain, dtype);
        float *row = xmalloc(256 * sizeof *row), *want = xmalloc(256 * sizeof *row);
        CHECK(w && w->coded && same && !same->coded);
        for (int64_t r = 0; r < 70 && w && same; r++) {
            cpu_weight_row((struct cpu_backend *)rig.be, w, r, row);
            cpu_weight_row((struct cpu_backend *)rig.be, same, r, want);
            CHECK(memcmp(row, want, 256 * sizeof *row) == 0);
        }
        free(row);
        free(want);
        free((void *)whole.codec.values.data);
        free((void *)plain.codec.values.data);
        op_close(&rig);
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
