// SPDX-License-Identifier: Apache-2.0
/* Quantised checkpoints: the decoded numbers of each tensor have the stored sum (weights.json),
 * exactly. */
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/model/quant.h"
#include "test/check.h"
#include "test/sha256.h"

#include <dirent.h>

/* weights.json counts all experts of one tensor as a dimension of their own. */
static void shape_of(const struct json *j, int64_t *n_experts, int64_t *n_out, int64_t *n_in)
{
    const struct json *dims[3] = {NULL, json_first(json_get(j, "shape")), NULL};
    dims[2] = json_next(dims[1]);
    if (json_next(dims[2])) {
        dims[0] = dims[1];
        dims[1] = dims[2];
        dims[2] = json_next(dims[1]);
    }
    *n_experts = dims[0] ? (int64_t)json_number(dims[0], 1) : 1;
    *n_out = (int64_t)json_number(dims[1], 0);
    *n_in = (int64_t)json_number(dims[2], 0);
}

/* Decodes the tensor by rows and by elements, which must agree, and compares the digest of
 * its f32 values. */
static void check_tensor(const struct checkpoint *ck, const struct quant *q, const struct json *j)
{
    char name[256];
    snprintf(name, sizeof name, "%s", json_key(j));
    char *suffix = strstr(name, ".weight");
    if (suffix) {
        *suffix = 0;
    }
    struct err err = {""};
    struct module m = {.checkpoint = ck, .name = name, .err = &err};
    shape_of(j, &m.n_experts, &m.n_out, &m.n_in);
    struct weight_part p;
    bool found = false;
    if (quant_read(q, &m, name, &p, &found) != OK || !found) {
        CHECK_FAIL("%s: %s", name, err.text);
        return;
    }
    struct sha256 sum, unsigned_sum; // some stored sums were computed with all zeros positive
    sha256_begin(&sum);
    sha256_begin(&unsigned_sum);
    float *row = xmalloc((size_t)p.n_cols * sizeof *row);
    int64_t n_unlike = 0;
    for (int64_t r = 0; r < p.n_rows; r++) {
        weight_part_read(&p, r, 0, p.n_cols, row);
        for (int64_t c = 0; c < p.n_cols; c++) {
            n_unlike += row[c] != weight_part_get(&p, r, c);
        }
        sha256_add(&sum, row, (size_t)p.n_cols * sizeof *row);
        for (int64_t c = 0; c < p.n_cols; c++) {
            row[c] += 0.0f;
        }
        sha256_add(&unsigned_sum, row, (size_t)p.n_cols * sizeof *row);
    }
    char hex[65], unsigned_hex[65];
    sha256_end_hex(&sum, hex);
    sha256_end_hex(&unsigned_sum, unsigned_hex);
    const char *want = json_get_string(j, "sha256_f32");
    if (!want || (strcmp(hex, want) != 0 && strcmp(unsigned_hex, want) != 0)) {
        CHECK_FAIL("%s of %s: the sum is %s", name, checkpoint_dir(ck), hex);
    }
    CHECK_EQ(n_unlike, 0);
    free(row);
}

/* Every tensor that weights.json lists. */
static void check_folder(const char *dir)
{
    char path[600];
    snprintf(path, sizeof path, "%s/weights.json", dir);
    struct err err = {""};
    struct json *sums = NULL;
    struct checkpoint *ck = NULL;
    struct quant *q = NULL;
    if (json_parse_file(path, 64 << 20, &sums, &err) != OK ||
        checkpoint_open(dir, &ck, &err) != OK || quant_open(dir, &q, &err) != OK || !q) {
        CHECK_FAIL("%s: %s", dir, err.text);
    } else {
        CHECK(json_first(sums) != NULL);
        for (const struct json *j = json_first(sums); j; j = json_next(j)) {
            check_tensor(ck, q, j);
        }
    }
    quant_close(q);
    checkpoint_close(ck);
    json_free(sums);
}

/* Every folder below root; false if there is no such folder. */
static bool check_root(const char *root)
{
    DIR *d = opendir(root);
    if (!d) {
        return false;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char dir[512];
        snprintf(dir, sizeof dir, "%.200s/%.200s", root, e->d_name);
        DIR *is_folder = e->d_name[0] != '.' ? opendir(dir) : NULL;
        if (is_folder) {
            closedir(is_folder);
            check_folder(dir);
        }
    }
    closedir(d);
    return true;
}

TEST(weights_have_the_stored_checksums)
{
    CHECK(check_root("test/golden-quant"));
}

/* More folders, which are not in the repository. */
TEST(weights_of_other_folders_have_the_stored_checksums)
{
    char root[300];
    const char *shared = getenv("SLUICE_SHARED");
    snprintf(root, sizeof root, "%.250s/golden-quant", shared ? shared : "../shared");
    if (!check_root(root)) {
        SKIP("no ../shared");
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
