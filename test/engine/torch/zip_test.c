// SPDX-License-Identifier: Apache-2.0
/* Zip archives: what is in them, and that every size and offset is checked. */
#include "engine/torch/zip.h"

#include "test/check.h"
#include "test/engine/torch/archive.h"

static enum status open_at(const void *data, size_t n, struct err *err)
{
    struct zip z;
    unsigned char *copy = malloc(n + 1); // of the exact size, so that a sanitizer sees an overrun
    if (!copy) {
        abort();
    }
    unsigned char *at = copy + 1;
    if (n > 0) {
        memcpy(at, data, n);
    }
    *err = (struct err){""};
    const enum status st = zip_open(at, n, "x.bin", &z, err);
    for (size_t i = 0; i < z.n_files; i++) {
        CHECK(z.files[i].data >= at && z.files[i].data + z.files[i].n_bytes <= at + n);
    }
    zip_close(&z);
    free(copy);
    return st;
}

static void make(struct archive *a, bool large)
{
    archive_begin(a);
    a->large = large;
    archive_add(a, "m/data.pkl", "pickle", 6);
    archive_add(a, "m/data/1", "", 0);
    archive_add(a, "m/data/0", "four", 4);
    archive_end(a);
}

TEST(files_are_found_by_their_names)
{
    for (int large = 0; large < 2; large++) {
        struct archive a;
        struct zip z;
        struct err err;
        make(&a, large);
        CHECK(zip_is((unsigned char *)a.file.data, a.file.n_bytes));
        CHECK_EQ(zip_open((unsigned char *)a.file.data, a.file.n_bytes, "x", &z, &err), OK);
        CHECK_EQ(z.n_files, 3);
        const struct zip_file *f = zip_find(&z, "m/data/0", 8);
        CHECK(f && f->n_bytes == 4 && memcmp(f->data, "four", 4) == 0);
        f = zip_find(&z, "m/data/1", 8);
        CHECK(f && f->n_bytes == 0);
        CHECK(!zip_find(&z, "m/data/", 7) && !zip_find(&z, "m/data/00", 9) && !zip_find(&z, "", 0));
        zip_close(&z);
        archive_free(&a);
    }
}

TEST(a_comment_at_the_end_is_skipped)
{
    struct archive a;
    struct err err;
    make(&a, false);
    a.file.data[a.file.n_bytes - 2] = 5;
    CHECK(open_at(a.file.data, a.file.n_bytes, &err) != OK);
    buf_puts(&a.file, "PK\5\6!");
    CHECK_EQ(open_at(a.file.data, a.file.n_bytes, &err), OK);
    archive_free(&a);
}

TEST(every_truncation_is_refused)
{
    for (int large = 0; large < 2; large++) {
        struct archive a;
        struct err err;
        make(&a, large);
        for (size_t n = 0; n < a.file.n_bytes; n++) {
            CHECK_EQ(open_at(a.file.data, n, &err), ERR_FORMAT);
            CHECK(strstr(err.text, "cut short"));
        }
        archive_free(&a);
    }
}

/* Most changes make the archive malformed; none may lead outside of it. */
TEST(no_changed_byte_leads_outside)
{
    for (int large = 0; large < 2; large++) {
        struct archive a;
        struct err err;
        int n_refused = 0;
        make(&a, large);
        for (size_t i = 0; i < a.file.n_bytes; i++) {
            for (int v = 0; v < 256; v += 15) {
                const char before = a.file.data[i];
                a.file.data[i] = (char)v;
                n_refused += open_at(a.file.data, a.file.n_bytes, &err) != OK;
                a.file.data[i] = before;
            }
        }
        CHECK(n_refused > 1000);
        archive_free(&a);
    }
}

static void check_refused(struct archive *a, const char *words)
{
    struct err err;
    archive_end(a);
    CHECK(open_at(a->file.data, a->file.n_bytes, &err) != OK);
    if (!strstr(err.text, words)) {
        CHECK_FAIL("'%s' is not in: %s", words, err.text);
    }
    archive_free(a);
}

TEST(compressed_encrypted_and_repeated_files_are_refused)
{
    struct archive a;
    archive_begin(&a);
    a.how = 8;
    archive_add(&a, "m/data.pkl", "x", 1);
    check_refused(&a, "m/data.pkl is compressed");
    archive_begin(&a);
    a.flags = 1;
    archive_add(&a, "m/data.pkl", "x", 1);
    check_refused(&a, "m/data.pkl is encrypted");
    archive_begin(&a);
    archive_add(&a, "m/data.pkl", "x", 1);
    archive_add(&a, "m/data.pkl", "y", 1);
    check_refused(&a, "m/data.pkl occurs twice");
    archive_begin(&a);
    archive_add(&a, "m/data.pkl", "x", 1);
    a.n_files = 60000;
    check_refused(&a, "impossible number of files");
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
