// SPDX-License-Identifier: Apache-2.0
/* State dicts: which tensors are read, and that shapes, offsets and sizes that do not fit are
 * refused by name. test/model/test_torch_files.py reads files of torch.save itself. */
#include "engine/torch/torch.h"

#include "test/check.h"
#include "test/engine/torch/archive.h"

/* ---- pickles ------------------------------------------------------------------------------ */

static struct buf pickle;

static void op(const char *bytes)
{
    buf_puts(&pickle, bytes);
}

static void text(const char *s)
{
    buf_putc(&pickle, 'X');
    archive_number(&pickle, strlen(s), 4);
    buf_puts(&pickle, s);
}

static void integer(int64_t v)
{
    buf_put(&pickle, "\x8a\x08", 2);
    archive_number(&pickle, (uint64_t)v, 8);
}

static void integers(const int64_t *v, int n)
{
    op("(");
    for (int i = 0; i < n; i++) {
        integer(v[i]);
    }
    op("t");
}

/* A tensor of the storage `key`, which is said to have `n` elements. */
struct spec {
    const char *type, *key; // of the storage
    int64_t n, offset;
    int n_dims;
    int64_t dims[9], strides[9];
    const char *dtype; // NULL: that of the storage
};

static void tensor_args(const struct spec *t)
{
    op("((");
    text("storage");
    op(t->type);
    text(t->key);
    text("cuda:0");
    integer(t->n);
    op("tQ");
    integer(t->offset);
    integers(t->dims, t->n_dims);
    integers(t->strides, t->n_dims);
    op("\x89"
       "ccollections\nOrderedDict\n)R");
    if (t->dtype) {
        op(t->dtype);
    }
    op("t");
}

static void tensor(const struct spec *t)
{
    op(t->dtype ? "ctorch._utils\n_rebuild_tensor_v3\n" : "ctorch._utils\n_rebuild_tensor_v2\n");
    tensor_args(t);
    op("R");
}

static void begin(void)
{
    buf_init(&pickle, 1 << 16);
    op("\x80\x02}(");
}

static void entry(const char *name, const struct spec *t)
{
    text(name);
    tensor(t);
}

/* ---- files -------------------------------------------------------------------------------- */

static const float numbers[] = {0, 1, 2, 3, 4, 5};
static struct archive archive;

/* The pickle, and six numbers as storage 0. */
static enum status end(struct torch_file **f, struct err *err)
{
    op("u.");
    archive_begin(&archive);
    archive_add(&archive, "m/data.pkl", pickle.data, pickle.n_bytes);
    archive_add(&archive, "m/byteorder", "little", 6);
    archive_add(&archive, "m/data/0", numbers, sizeof numbers);
    archive_end(&archive);
    const struct file_map map = {(unsigned char *)archive.file.data, archive.file.n_bytes};
    *err = (struct err){""};
    *f = NULL;
    return torch_open(&map, "x.bin", f, err);
}

static void done(struct torch_file *f)
{
    torch_close(f);
    archive_free(&archive);
    buf_deinit(&pickle);
}

static void check_refused(const char *words)
{
    struct torch_file *f;
    struct err err;
    CHECK(end(&f, &err) != OK);
    if (!strstr(err.text, words)) {
        CHECK_FAIL("'%s' is not in: %s", words, err.text);
    }
    done(f);
}

static const struct spec whole = {.type = "ctorch\nFloatStorage\n",
                                  .key = "0",
                                  .n = 6,
                                  .n_dims = 2,
                                  .dims = {2, 3},
                                  .strides = {3, 1}};

static bool is_in_file(const struct torch_tensor *t)
{
    const char *data = (const char *)t->data;
    return data >= archive.file.data &&
           data + t->n_bytes <= archive.file.data + archive.file.n_bytes;
}

static float value(const struct torch_tensor *t, size_t i)
{
    float v;
    memcpy(&v, t->data + i * sizeof v, sizeof v);
    return v;
}

/* ---- what is read ------------------------------------------------------------------------- */

TEST(tensors_point_into_the_file)
{
    struct torch_file *f;
    struct err err;
    struct spec row = whole, bytes = whole;
    row.offset = 3;
    row.n_dims = 1;
    row.dims[0] = 3;
    row.strides[0] = 1;
    bytes.type = "ctorch.storage\nUntypedStorage\n";
    bytes.n = 24;
    bytes.dtype = "ctorch\nbfloat16\n}";
    begin();
    entry("a", &whole);
    entry("b", &row);
    entry("c", &bytes);
    CHECK_EQ(end(&f, &err), OK);
    CHECK_EQ(torch_n_tensors(f), 3);
    const struct torch_tensor *a = torch_tensor_at(f, 0), *b = torch_tensor_at(f, 1);
    CHECK_STR(a->name, "a");
    CHECK_STR(a->dtype_name, "F32");
    CHECK_EQ(a->n_dims, 2);
    CHECK(a->dims[0] == 2 && a->dims[1] == 3 && a->n_bytes == 24);
    CHECK(is_in_file(a) && is_in_file(b) && value(a, 5) == 5.0f);
    CHECK(b->n_dims == 1 && b->n_bytes == 12 && value(b, 0) == 3.0f);
    CHECK_STR(torch_tensor_at(f, 2)->dtype_name, "BF16");
    CHECK_EQ(torch_tensor_at(f, 2)->n_bytes, 12);
    done(f);
}

TEST(elements_are_brought_in_order)
{
    struct torch_file *f;
    struct err err;
    struct spec turned = whole, column = whole, one = whole, none = whole;
    turned.dims[0] = 3, turned.dims[1] = 2, turned.strides[0] = 1, turned.strides[1] = 3;
    column.dims[1] = 1, column.offset = 2;
    one.n_dims = 3, one.dims[0] = 1, one.dims[1] = 2, one.dims[2] = 3; // the stride of a 1 is free
    one.strides[0] = INT64_MAX, one.strides[1] = 3, one.strides[2] = 1;
    none.dims[0] = 0, none.dims[1] = INT64_MAX, none.strides[0] = INT64_MAX;
    begin();
    entry("turned", &turned);
    entry("column", &column);
    entry("one", &one);
    entry("none", &none);
    CHECK_EQ(end(&f, &err), OK);
    static const float want[] = {0, 3, 1, 4, 2, 5};
    for (size_t i = 0; i < 6; i++) {
        CHECK_EQ(value(torch_tensor_at(f, 0), i), want[i]);
    }
    CHECK(!is_in_file(torch_tensor_at(f, 0)));
    CHECK_EQ(value(torch_tensor_at(f, 1), 0), 2);
    CHECK_EQ(value(torch_tensor_at(f, 1), 1), 5);
    CHECK(is_in_file(torch_tensor_at(f, 2)));
    CHECK_EQ(torch_tensor_at(f, 3)->n_bytes, 0);
    done(f);
}

TEST(parameters_are_tensors)
{
    struct torch_file *f;
    struct err err;
    begin();
    text("plain");
    op("ctorch._utils\n_rebuild_parameter\n(");
    tensor(&whole);
    op("\x88}tR");
    text("with attributes");
    op("ctorch._utils\n_rebuild_parameter_with_state\n(");
    tensor(&whole);
    op("\x88}}tR");
    text("of a type");
    op("ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_"
       "v2\nctorch\nTensor\n");
    tensor_args(&whole);
    op("}tR");
    CHECK_EQ(end(&f, &err), OK);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(torch_tensor_at(f, i)->n_bytes, 24);
        CHECK_EQ(value(torch_tensor_at(f, i), 4), 4);
    }
    done(f);
}

/* ---- what is refused ---------------------------------------------------------------------- */

/* One tensor, "w", with one thing changed. */
#define REFUSED(words, ...)                                                                        \
    do {                                                                                           \
        struct spec s = whole;                                                                     \
        __VA_ARGS__;                                                                               \
        begin();                                                                                   \
        entry("w", &s);                                                                            \
        check_refused("x.bin: tensor w " words);                                                   \
    } while (0)

TEST(tensors_outside_their_storage_are_refused)
{
    REFUSED("lies outside its storage", s.offset = 1);
    REFUSED("lies outside its storage", s.offset = INT64_MAX);
    REFUSED("lies outside its storage", s.dims[0] = 3);
    REFUSED("lies outside its storage", s.strides[0] = 4);
    REFUSED("lies outside its storage", s.strides[0] = INT64_MAX, s.strides[1] = INT64_MAX);
    REFUSED("has a shape that is too large", s.dims[0] = INT64_MAX, s.dims[1] = 3);
    REFUSED("has a malformed shape", s.offset = -1);
    REFUSED("has a malformed shape", s.dims[0] = -2);
    REFUSED("has a malformed shape", s.strides[0] = -3);
    REFUSED("has a malformed shape", s.n_dims = 9);
}

TEST(storages_must_be_in_the_file_and_of_its_size)
{
    REFUSED("has a storage of another size than its data", s.n = 5);
    REFUSED("has a storage of another size than its data", s.n = INT64_MAX);
    REFUSED("has a storage of another size than its data", s.type = "ctorch\nHalfStorage\n");
    REFUSED("has a storage that is not in the file", s.key = "1");
    REFUSED("has a storage that is not in the file", s.key = "../data.pkl");
    REFUSED("has a malformed storage", s.type = "ctorch\nfloat32\n");
    REFUSED("has a malformed storage", s.type = "N");
    REFUSED("has no type of elements", s.type = "ctorch.storage\nUntypedStorage\n", s.n = 24);
}

/* Such a tensor needs no space in the file and could ask for any amount of memory. */
TEST(tensors_that_repeat_elements_are_limited)
{
    REFUSED("is a view, and the views together are larger than the file", s.dims[0] = 1 << 20,
            s.strides[0] = 0);
    struct torch_file *f;
    struct err err;
    struct spec s = whole;
    s.dims[0] = 4;
    s.strides[0] = 0;
    begin();
    entry("w", &s);
    CHECK_EQ(end(&f, &err), OK);
    CHECK_EQ(torch_tensor_at(f, 0)->n_bytes, 48);
    CHECK_EQ(value(torch_tensor_at(f, 0), 10), 1);
    done(f);
}

TEST(other_entries_are_refused)
{
    static const char *const values[] = {
        "N", "K\5", "}", "ccollections\nOrderedDict\n)R", "ctorch\nSize\n)R", "ctorch\nfloat32\n"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        begin();
        text("w");
        op(values[i]);
        check_refused("x.bin: tensor w is not a tensor");
    }
    begin();
    op("K\5");
    tensor(&whole);
    check_refused("an entry's name is not text");
    begin();
    text("w");
    op("ctorch._utils\n_rebuild_sparse_tensor\n)R");
    check_refused("x.bin uses the pickled global torch._utils._rebuild_sparse_tensor");
    begin();
    op("u0"); // leaves the pickle without a value
    check_refused("the opcode 0x30");
}

TEST(marked_tensors_are_refused)
{
    begin();
    text("w");
    op("ctorch._utils\n_rebuild_tensor_v2\n((");
    text("storage");
    op(whole.type);
    text("0");
    text("cpu");
    integer(6);
    op("tQ");
    integer(0);
    integers(whole.dims, 2);
    integers(whole.strides, 2);
    op("\x89}}");
    text("neg");
    op("\x88stR");
    check_refused("x.bin: tensor w is a conjugate or a negative view");
}

static void check_file(const char *bytes, size_t n, const char *words)
{
    struct torch_file *f;
    struct err err = {""};
    const struct file_map map = {(const unsigned char *)bytes, n};
    CHECK(torch_open(&map, "x.bin", &f, &err) != OK);
    if (!strstr(err.text, words)) {
        CHECK_FAIL("'%s' is not in: %s", words, err.text);
    }
}

TEST(other_files_are_refused)
{
    check_file("", 0, "not a file of torch.save");
    check_file("\x80\x02\x8a\x0al\xfc\x9c", 7, "before PyTorch 1.6");
    check_file("version https://git-lfs.github.com/spec/v1", 42, "git lfs pull");
    static const char *const orders[] = {"big", "little."};
    for (size_t i = 0; i < 3; i++) {
        struct archive a;
        archive_begin(&a);
        if (i < 2) {
            archive_add(&a, "m/data.pkl", "\x80\x02}.", 4);
            archive_add(&a, "m/byteorder", orders[i], strlen(orders[i]));
        } else {
            archive_add(&a, "m/n/data.pkl", "\x80\x02}.", 4);
        }
        archive_end(&a);
        check_file(a.file.data, a.file.n_bytes, i < 2 ? "big-endian" : "but not one of torch.save");
        archive_free(&a);
    }
    struct archive a;
    archive_begin(&a);
    archive_add(&a, "m/data.pkl", "\x80\x02].", 4);
    archive_end(&a);
    check_file(a.file.data, a.file.n_bytes, "not a state dict");
    archive_free(&a);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
