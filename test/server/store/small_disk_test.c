// SPDX-License-Identifier: Apache-2.0
/* The store on a full disk. The functions below simulate a small file system: they come before
 * libc's, for SQLite too, and let no file in `folder` grow beyond `room`. */
#include "server/store/store.h"

#include "engine/base/minmax.h"
#include "test/check.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static int64_t room = INT64_MAX; // bytes that all files in the folder may have

/* Whether the file lies in the folder that is small. */
static bool is_inside(int fd, struct stat *st)
{
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[greater(n, 0)] = '\0';
    return strncmp(path, folder, strlen(folder)) == 0 && fstat(fd, st) == 0;
}

/* The size of all files in the folder, as the simulated disk counts it. */
static int64_t used(void)
{
    int64_t n_bytes = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        struct stat st;
        if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode)) {
            n_bytes += st.st_size;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return n_bytes;
}

/* True if the file may end at `end`. Overwriting needs no room. */
static bool has_room(int fd, int64_t end)
{
    struct stat st;
    if (room == INT64_MAX || !is_inside(fd, &st) || end <= st.st_size ||
        used() + end - st.st_size <= room) {
        return true;
    }
    errno = ENOSPC;
    return false;
}

/* SQLite writes with pwrite64. */
ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) {
        *(void **)&real = dlsym(RTLD_NEXT, "pwrite64");
    }
    if (has_room(fd, at + (int64_t)n)) {
        return real(fd, bytes, n, at);
    }
    return -1;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    return pwrite64(fd, bytes, n, at);
}

int posix_fallocate(int fd, off_t at, off_t n)
{
    if (has_room(fd, at + n)) {
        return ftruncate(fd, at + n);
    }
    return ENOSPC;
}

/* Does nothing: power cuts are not tested here, and a busy disk would be slow. */
int fdatasync(int fd)
{
    (void)fd;
    return 0;
}

int fsync(int fd)
{
    return fdatasync(fd);
}

/* ---- the tests ------------------------------------------------------------------------------ */

static struct store *open_store(void)
{
    struct store_options o = {.dir = folder, .max_bytes = 64 << 20, .max_file_bytes = 32 << 20};
    struct store *s = NULL;
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
    snprintf(folder, sizeof folder, "/tmp/sluice-small-%d-%d", (int)getpid(), count++);
    room = INT64_MAX;
}

static void remove_folder(struct store *s)
{
    char command[128];
    store_close(s);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK_EQ(system(command), 0);
}

/* Writes a file in pieces, like an upload. */
static enum status put_file(struct store *s, size_t n, struct stored_file *f)
{
    struct store_upload *u;
    struct err err = {""};
    static char bytes[1 << 16];
    *f = (struct stored_file){.created_at = 1};
    enum status st = store_upload_begin(s, &u, &err);
    for (size_t i = 0; i < n && st == OK; i += sizeof bytes) {
        st = store_upload_write(u, bytes, lesser(n - i, sizeof bytes), &err);
    }
    if (st != OK) {
        store_upload_drop(u);
        return st;
    }
    return store_upload_end(u, "ann", f, &err);
}

/* More files than fit. */
enum { MAX_FILES = 64 };

/* Stores files of this size until the store reports that it is full; returns their number. */
static int fill(struct store *s, size_t n_bytes, struct stored_file files[MAX_FILES])
{
    int n = 0;
    enum status st;
    do {
        st = put_file(s, n_bytes, &files[n]);
    } while (st == OK && ++n < MAX_FILES);
    CHECK_EQ(st, ERR_LIMIT);
    return n;
}

/* A small row: a response of two bytes. */
static enum status respond(struct store *s, int i)
{
    struct stored_response r = {.created_at = 5, .expires_at = 100 + i};
    struct err err = {""};
    snprintf(r.id, sizeof r.id, "resp_%d", i);
    buf_init(&r.body, 1 << 20);
    buf_puts(&r.body, "{}");
    enum status st = store_response_put(s, "ann", &r, &err);
    stored_response_deinit(&r);
    return st;
}

/* Other programs have filled the disk: space freed by deletions is taken by them. */
TEST(everything_can_be_deleted_from_a_full_disk)
{
    new_folder();
    struct store *s = open_store();
    struct err err = {""};
    enum status st = OK;
    struct stored_file files[MAX_FILES];
    struct stored_conversation c = {.created_at = 1, .metadata = (char[]){"{}"}};
    struct stored_batch b = {.created_at = 1, .expires_at = 9};
    for (int i = 0; i < 8; i++) {
        REQUIRE(put_file(s, 1 << 20, &files[i]) == OK);
    }
    REQUIRE(respond(s, 0) == OK && respond(s, 1) == OK);
    REQUIRE(store_conversation_create(s, "ann", &c, NULL, 0, &err) == OK);
    snprintf(b.owner, sizeof b.owner, "ann");
    REQUIRE(store_batch_create(s, &b, &err) == OK);

    room = used();
    CHECK(put_file(s, 3 << 20, &files[8]) == ERR_LIMIT);
    for (int round = 0; round < 8; round++) {
        room = used();
        CHECK(store_file_delete(s, "ann", files[round].id, &st, &err));
    }
    room = used();
    CHECK(store_response_delete(s, "ann", "resp_0", &st, &err));
    room = used();
    CHECK(store_conversation_delete(s, "ann", c.id, &st, &err));
    room = used();
    CHECK(store_batch_move(s, b.id, 1u << BATCH_VALIDATING, BATCH_CANCELLING, 3, &st, &err));
    CHECK_EQ(store_batch_finish(s, b.id, BATCH_CANCELLED, 3, 0, &err), OK);
    room = used();
    CHECK_EQ(store_expire(s, 300, 300, &err), OK);
    struct store_usage usage;
    CHECK_EQ(store_usage(s, &usage, &err), OK);
    CHECK(usage.n_files == 0 && usage.n_batches == 0);
    remove_folder(s);
}

/* The store itself has filled the disk: space freed by deletions can be used again, repeatedly, and
 * after a restart. */
TEST(deletions_on_a_full_disk_make_room)
{
    new_folder();
    mkdir(folder, 0700);
    room = 8 << 20;
    struct store *s = open_store();
    struct stored_file files[MAX_FILES];
    struct err err = {""};
    enum status st;
    int n = fill(s, 700000, files);
    CHECK(n >= 6);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < n; i++) {
            CHECK(store_file_delete(s, "ann", files[i].id, &st, &err));
        }
        if (round % 3 == 2) {
            store_close(s);
            s = open_store();
        }
        int again = fill(s, 700000, files);
        if (again < n - 1) {
            CHECK_FAIL("%d files fit at first, %d in round %d", n, again, round);
        }
        n = again;
    }
    CHECK_EQ(respond(s, 1), OK); // a few rows always fit
    remove_folder(s);
}

/* What a failed upload has written is deleted, and so is a file, even if they are larger than the
 * reserve. */
TEST(a_large_upload_that_fails_leaves_room)
{
    new_folder();
    mkdir(folder, 0700);
    room = 16 << 20;
    struct store *s = open_store();
    struct stored_file f;
    struct err err = {""};
    enum status st;
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(put_file(s, 20 << 20, &f), ERR_LIMIT);
        CHECK_EQ(put_file(s, 8 << 20, &f), OK);
        CHECK(store_file_delete(s, "ann", f.id, &st, &err));
    }
    remove_folder(s);
}

/* Once the disk has room again, the reserve is complete and the database grows as before. */
TEST(a_disk_that_has_room_again_is_used_as_before)
{
    new_folder();
    mkdir(folder, 0700);
    room = 6 << 20;
    struct store *s = open_store();
    struct stored_file files[MAX_FILES], more[MAX_FILES];
    struct err err = {""};
    enum status st;
    struct stat reserve;
    char path[128];
    int n = fill(s, 500000, files);
    CHECK(n > 0 && store_file_delete(s, "ann", files[0].id, &st, &err));
    room = 16 << 20;
    CHECK(fill(s, 500000, more) > n);
    snprintf(path, sizeof path, "%s/sluice.db-reserve", folder);
    room = 32 << 20;
    CHECK(fill(s, 500000, more) > 10);
    room = 40 << 20;
    CHECK_EQ(put_file(s, 500000, &more[0]), OK);
    CHECK(stat(path, &reserve) == 0 && reserve.st_size == 2 << 20);
    remove_folder(s);
}

int main(int argc, char **argv)
{
    return check_main(argc, argv);
}
