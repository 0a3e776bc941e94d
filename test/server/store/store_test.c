// SPDX-License-Identifier: Apache-2.0
/* The store: owners, pages, one answer per line, and consistency after a kill at any moment. */
#include "server/store/store.h"

#include "engine/base/minmax.h"
#include "test/check.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

/* Opens a store in a folder (durable), or a temporary one. */
static struct store *open_store(bool durable)
{
    struct store_options o = {
        .dir = durable ? folder : NULL, .max_bytes = 64 << 20, .max_file_bytes = 8 << 20};
    struct store *s;
    struct err err = {""};
    if (store_open(&o, &s, &err) != OK) {
        printf("%s\n", err.text);
        abort();
    }
    return s;
}

static void new_folder(void)
{
    static int count;
    snprintf(folder, sizeof folder, "/tmp/sluice-store-%d-%d", (int)getpid(), count++);
}

static void remove_folder(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK_EQ(system(command), 0);
}

/* Contents change every 1,000 bytes, so that a read at a wrong offset is noticed. */
static struct stored_file put_file(struct store *s, const char *owner, const char *name, size_t n)
{
    struct stored_file f = {.created_at = 100};
    struct store_upload *u;
    struct err err = {""};
    snprintf(f.filename, sizeof f.filename, "%s", name);
    snprintf(f.purpose, sizeof f.purpose, "batch");
    CHECK_EQ(store_upload_begin(s, &u, &err), OK);
    for (size_t i = 0; i < n; i += 1000) {
        char piece[1000];
        memset(piece, 'a' + (int)(i / 1000 % 26), sizeof piece);
        CHECK_EQ(store_upload_write(u, piece, lesser(n - i, 1000), &err), OK);
    }
    CHECK_EQ(store_upload_end(u, owner, &f, &err), OK);
    return f;
}

/* Reads in odd pieces; another owner neither sees nor deletes it, and learns nothing from
 * the error. */
TEST(a_file_is_returned_whole_and_only_to_its_owner)
{
    struct store *s = open_store(false);
    struct err err = {""};
    enum status st;
    struct stored_file f = put_file(s, "ann", "in.jsonl", 3500000), found;
    CHECK(strncmp(f.id, "file-", 5) == 0 && f.bytes == 3500000);
    CHECK(store_file_find(s, "ann", f.id, &found, &st, &err));
    CHECK(strcmp(found.filename, "in.jsonl") == 0 && found.bytes == f.bytes);
    CHECK(!store_file_find(s, "bob", f.id, &found, &st, &err) && st == OK);
    CHECK(!store_file_delete(s, "bob", f.id, &st, &err) && st == OK);

    struct buf b;
    buf_init(&b, 8 << 20);
    for (int64_t at = 0; at < f.bytes; at += 700001) {
        CHECK_EQ(store_file_read(s, f.id, at, 700001, &b, &err), OK);
    }
    REQUIRE(b.n_bytes == (size_t)f.bytes);
    for (size_t i = 0; i < b.n_bytes; i++) {
        REQUIRE(b.data[i] == 'a' + (int)(i / 1000 % 26));
    }
    buf_deinit(&b);
    CHECK(store_file_delete(s, "ann", f.id, &st, &err));
    CHECK(!store_file_find(s, "ann", f.id, &found, &st, &err));
    store_close(s);
}

/* Two limits apply during an upload: that of one file, and that of the store for all files
 * together. */
TEST(sizes_are_bounded)
{
    struct store *s = open_store(false);
    struct err err = {""};
    struct store_upload *u;
    static char big[1 << 20];
    CHECK_EQ(store_upload_begin(s, &u, &err), OK);
    enum status st = OK;
    for (int i = 0; i < 9 && st == OK; i++) {
        st = store_upload_write(u, big, sizeof big, &err);
    }
    CHECK_EQ(st, ERR_LIMIT); // the limit of one file
    store_upload_drop(u);
    for (int i = 0; i < 12; i++) { // the limit of the store: 64 MiB
        struct stored_file f = {.created_at = 1};
        st = store_upload_begin(s, &u, &err);
        for (int k = 0; k < 8 && st == OK; k++) {
            st = store_upload_write(u, big, sizeof big, &err);
        }
        if (st != OK) {
            store_upload_drop(u);
            break;
        }
        CHECK_EQ(store_upload_end(u, "", &f, &err), OK);
    }
    CHECK_EQ(st, ERR_LIMIT);
    struct store_usage usage;
    CHECK_EQ(store_usage(s, &usage, &err), OK);
    CHECK(usage.n_files == 7 && usage.bytes <= usage.max_bytes);
    store_close(s);
}

/* A page's cursor is the last id, and files of other owners in between do not shift it. */
TEST(a_page_begins_where_the_last_one_ended)
{
    struct store *s = open_store(false);
    struct err err = {""};
    char last[STORE_ID_BYTES] = "";
    for (int i = 0; i < 7; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", i);
        put_file(s, "ann", name, 10);
        put_file(s, "bob", name, 10);
    }
    for (int i = 0; i < 7; i += 3) {
        struct store_page page = {.limit = 3, .after = last[0] ? last : NULL, .oldest_first = true};
        struct stored_file *files;
        size_t n;
        bool more;
        REQUIRE(store_file_list(s, "ann", &page, &files, &n, &more, &err) == OK);
        REQUIRE(n == (i == 6 ? 1 : 3));
        CHECK_EQ(more, i < 6);
        for (size_t k = 0; k < n; k++) {
            CHECK_EQ(files[k].filename[1], '0' + i + (int)k);
        }
        snprintf(last, sizeof last, "%s", files[n - 1].id);
        free(files);
    }
    store_close(s);
}

static void make_batch(struct store *s, struct stored_batch *b)
{
    struct err err = {""};
    *b = (struct stored_batch){.created_at = 100, .expires_at = 90000};
    snprintf(b->owner, sizeof b->owner, "ann");
    snprintf(b->endpoint, sizeof b->endpoint, "/v1/completions");
    CHECK_EQ(store_batch_create(s, b, &err), OK);
}

/* One answer of 10 bytes for the line, with its usage. */
static enum status answer(struct store *s, const char *id, int64_t line, bool failed)
{
    struct err err = {""};
    char text[64];
    int n = snprintf(text, sizeof text, "{\"line\":%d}", (int)line);
    struct batch_answer a = {.line = line,
                             .failed = failed,
                             .text = text,
                             .n_bytes = (size_t)n,
                             .input_tokens = 3,
                             .output_tokens = 2};
    return store_batch_answer(s, id, &a, 1, &err);
}

/* The states of a batch in order: an answer is stored once, moves from a wrong state fail,
 * and the files have the lines in order, successes separate from errors. */
TEST(a_batch_lives_from_validating_to_its_files)
{
    struct store *s = open_store(false);
    struct err err = {""};
    enum status st;
    struct stored_batch b, found;
    make_batch(s, &b);
    CHECK_EQ(store_batch_begin(s, b.id, 4, "m", 110, &err), OK);
    for (int64_t line = 3; line >= 0; line--) {
        CHECK_EQ(answer(s, b.id, line, line == 2), OK);
        CHECK_EQ(answer(s, b.id, line, false), OK); // the first answer is kept
    }
    uint8_t bits[1];
    CHECK_EQ(store_batch_answered(s, b.id, bits, 4, &err), OK);
    CHECK_EQ(bits[0], 15);
    CHECK(!store_batch_move(s, b.id, 1u << BATCH_VALIDATING, BATCH_FAILED, 120, &st, &err));
    CHECK(store_batch_move(s, b.id, 1u << BATCH_IN_PROGRESS, BATCH_FINALIZING, 130, &st, &err));
    CHECK_EQ(store_batch_finish(s, b.id, BATCH_COMPLETED, 140, 0, &err), OK);
    REQUIRE(store_batch_find(s, "ann", b.id, &found, &st, &err));
    CHECK(found.status == BATCH_COMPLETED && found.n_completed == 3 && found.n_failed == 1);
    CHECK(found.input_tokens == 12 && found.output_tokens == 8);
    CHECK(found.since[BATCH_IN_PROGRESS] == 110 && found.since[BATCH_COMPLETED] == 140);
    struct buf text;
    buf_init(&text, 1 << 16);
    CHECK_EQ(store_file_read(s, found.output_file, 0, 1 << 16, &text, &err), OK);
    CHECK(strcmp(text.data, "{\"line\":0}\n{\"line\":1}\n{\"line\":3}\n") == 0);
    buf_clear(&text);
    CHECK_EQ(store_file_read(s, found.error_file, 0, 1 << 16, &text, &err), OK);
    CHECK(strcmp(text.data, "{\"line\":2}\n") == 0);
    buf_deinit(&text);
    stored_batch_deinit(&found);
    CHECK(!store_batch_find(s, "bob", b.id, &found, &st, &err) && st == OK);
    CHECK_EQ(store_expire(s, 200, 150, &err), OK);
    CHECK(!store_batch_find(s, "ann", b.id, &found, &st, &err) && st == OK);
    store_close(s);
}

/* The parts of a response have the same size, so that the total is known. */
static enum status put_response(struct store *s, const char *owner, const char *id, size_t n,
                                int64_t expires_at)
{
    struct stored_response r = {.previous = "resp_0", .created_at = 5, .expires_at = expires_at};
    struct err err = {""};
    snprintf(r.id, sizeof r.id, "%s", id);
    struct buf *parts[] = {&r.input, &r.output, &r.body};
    for (int i = 0; i < 3; i++) {
        buf_init(parts[i], 32 << 20);
        buf_printf(parts[i], "%s-%d", id, i);
    }
    for (size_t i = 0; i < n; i++) {
        buf_putc(&r.body, 'x');
    }
    enum status st = store_response_put(s, owner, &r, &err);
    stored_response_deinit(&r);
    return st;
}

static bool has_response(struct store *s, const char *owner, const char *id)
{
    struct stored_response r;
    struct err err = {""};
    enum status st;
    bool found = store_response_find(s, owner, id, &r, &st, &err);
    CHECK_EQ(st, OK);
    stored_response_deinit(&r);
    return found;
}

/* Ids of responses are chosen by clients, so two owners may have the same. */
TEST(a_response_is_returned_only_to_its_owner_until_it_expires)
{
    new_folder();
    struct store *s = open_store(true);
    struct err err = {""};
    enum status st;
    CHECK_EQ(put_response(s, "ann", "resp_1", 0, 0), OK);
    CHECK_EQ(put_response(s, "ann", "resp_2", 0, 100), OK);
    CHECK_EQ(put_response(s, "bob", "resp_1", 9, 0), OK);
    store_close(s);
    s = open_store(true);
    struct stored_response r;
    REQUIRE(store_response_find(s, "ann", "resp_1", &r, &st, &err));
    CHECK_STR(r.previous, "resp_0");
    CHECK_STR(r.input.data, "resp_1-0");
    CHECK_STR(r.output.data, "resp_1-1");
    CHECK_STR(r.body.data, "resp_1-2");
    CHECK_EQ(r.created_at, 5);
    stored_response_deinit(&r);
    CHECK_EQ(store_expire(s, 100, 0, &err), OK);
    CHECK(!has_response(s, "ann", "resp_2") && has_response(s, "ann", "resp_1"));
    CHECK(!store_response_delete(s, "eve", "resp_1", &st, &err) && st == OK);
    CHECK(store_response_delete(s, "ann", "resp_1", &st, &err));
    CHECK(!has_response(s, "ann", "resp_1") && has_response(s, "bob", "resp_1"));
    CHECK_EQ(put_response(s, "bob", "resp_1", 5, 0), OK); // replaces the first
    REQUIRE(store_response_find(s, "bob", "resp_1", &r, &st, &err));
    CHECK_EQ(r.body.n_bytes, 8 + 5);
    stored_response_deinit(&r);
    store_close(s);
    remove_folder();
}

/* The limit of 16 MiB evicts the oldest; a response that can never fit evicts nothing. */
TEST(the_oldest_responses_make_room)
{
    struct store *s = open_store(false); // 16 MiB are for responses
    char id[32];
    for (int i = 0; i < 40; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        CHECK_EQ(put_response(s, "", id, 1 << 20, 0), OK);
    }
    CHECK(has_response(s, "", "resp_39") && has_response(s, "", "resp_26"));
    CHECK(!has_response(s, "", "resp_22") && !has_response(s, "", "resp_0"));
    CHECK_EQ(put_response(s, "", "resp_large", 17 << 20, 0), ERR_LIMIT);
    CHECK(has_response(s, "", "resp_39"));
    store_close(s);
}

/* Two servers on one folder would corrupt each other's state; the second is refused. */
TEST(a_folder_has_one_owner)
{
    new_folder();
    struct store *s = open_store(true), *other;
    struct store_options o = {.dir = folder, .max_bytes = 1 << 20, .max_file_bytes = 1 << 20};
    struct err err = {""};
    pid_t child = fork();
    if (child == 0) {
        _exit(store_open(&o, &other, &err) == ERR_BUSY && strstr(err.text, "another server") ? 0
                                                                                             : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    store_close(s);
    remove_folder();
}

/* A child stores answers and reports each by a byte in a pipe after the store said OK; then it is
 * killed at a random moment. Each reported answer must be stored, and none of them twice. */
TEST(a_kill_at_any_moment_loses_no_answer)
{
    enum { LINES = 40, KILLS = 40 };
    for (int round = 0; round < KILLS; round++) {
        new_folder();
        struct store *s = open_store(true);
        struct err err = {""};
        struct stored_batch b;
        make_batch(s, &b);
        CHECK_EQ(store_batch_begin(s, b.id, LINES, "m", 1, &err), OK);
        store_close(s);
        int fds[2];
        REQUIRE(pipe(fds) == 0);
        pid_t child = fork();
        if (child == 0) {
            s = open_store(true);
            for (int64_t line = 0; line < LINES; line++) {
                if (answer(s, b.id, line, false) != OK || write(fds[1], "x", 1) != 1) {
                    _exit(1);
                }
            }
            store_batch_finish(s, b.id, BATCH_COMPLETED, 2, 0, &err);
            pause();
        }
        usleep((useconds_t)(round * 700));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(fds[1]);
        char told[LINES];
        ssize_t n_told = read(fds[0], told, sizeof told);
        close(fds[0]);

        s = open_store(true);
        struct stored_batch found;
        enum status st;
        uint8_t bits[LINES / 8];
        REQUIRE(store_batch_find(s, "ann", b.id, &found, &st, &err));
        CHECK(found.n_completed >= n_told && found.n_completed <= LINES);
        if (found.status == BATCH_COMPLETED) {
            struct buf text;
            buf_init(&text, 1 << 16);
            CHECK_EQ(store_file_read(s, found.output_file, 0, 1 << 16, &text, &err), OK);
            int64_t n = 0;
            for (size_t i = 0; i < text.n_bytes; i++) {
                n += text.data[i] == '\n';
            }
            CHECK_EQ(n, LINES);
            buf_deinit(&text);
        } else {
            CHECK_EQ(store_batch_answered(s, b.id, bits, LINES, &err), OK);
            for (int64_t line = 0; line < LINES; line++) {
                CHECK_EQ((bits[line / 8] >> line % 8 & 1) != 0, line < found.n_completed);
            }
        }
        stored_batch_deinit(&found);
        store_close(s);
        remove_folder();
    }
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
