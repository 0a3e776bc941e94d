// SPDX-License-Identifier: Apache-2.0
/* Files of a batch run: the input, which must be seekable, and the output, which can be
 * continued. */
#include "server/cli/run_batch.h"

#include "engine/base/json.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the input ------------------------------------------------------------------------------- */

/* Uses pread, so that several threads can read at the same time. */
static enum status read_at(void *arg, int64_t offset, size_t max_bytes, struct buf *out,
                           struct err *err)
{
    int fd = *(const int *)arg;
    if (!buf_reserve(out, max_bytes)) {
        return err_set(err, ERR_NOMEM, "no memory for the input");
    }
    while (max_bytes > 0) {
        ssize_t n = pread(fd, out->data + out->n_bytes, max_bytes, (off_t)offset);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return err_set(err, ERR_IO, "the input cannot be read: %s", strerror(errno));
        }
        if (n == 0) {
            break;
        }
        out->n_bytes += (size_t)n;
        offset += n;
        max_bytes -= (size_t)n;
    }
    out->data[out->n_bytes] = '\0';
    return OK;
}

/* A pipe is copied to a file without a name, since lines are read more than once. */
static enum status copy_input(int from, int *to, struct err *err)
{
    FILE *copy = tmpfile();
    char chunk[1 << 16];
    ssize_t n = 0;
    while (copy && ((n = read(from, chunk, sizeof chunk)) > 0 || (n < 0 && errno == EINTR))) {
        if (n > 0 && fwrite(chunk, 1, (size_t)n, copy) != (size_t)n) {
            break;
        }
    }
    bool good = copy && n == 0 && fflush(copy) == 0;
    *to = good ? dup(fileno(copy)) : -1;
    if (*to < 0) {
        err_set(err, ERR_IO, "standard input cannot be copied: %s", strerror(errno));
    }
    if (copy) {
        fclose(copy);
    }
    return *to < 0 ? ERR_IO : OK;
}

/* The caller must close the descriptor. */
enum status batch_input_open(const char *path, int *fd, struct job_input *in, struct err *err)
{
    *in = (struct job_input){read_at, fd};
    if (strcmp(path, "-") == 0) {
        *fd = STDIN_FILENO;
    } else {
        *fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    if (*fd < 0) {
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (lseek(*fd, 0, SEEK_CUR) >= 0) {
        return OK;
    }
    int pipe = *fd;
    enum status st = copy_input(pipe, fd, err);
    close(pipe);
    return st;
}

enum status batch_check_output(int input, const char *path, struct err *err)
{
    struct stat in, out;
    bool same = strcmp(path, "-") != 0 && fstat(input, &in) == 0 && stat(path, &out) == 0 &&
                S_ISREG(in.st_mode) && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
    if (same) {
        return err_set(err, ERR_INVALID, "%s is the input; name another file for the answers",
                       path);
    }
    return OK;
}

/* ---- the answers of an earlier run ----------------------------------------------------------- */

static int compare_ids(const void *a, const void *b, void *arg)
{
    const struct job_lines *l = arg;
    return strcmp(job_line_id(l, *(const int32_t *)a), job_line_id(l, *(const int32_t *)b));
}

/* Marks the line with this id as answered, by binary search. Ids that are not in the input are
 * ignored. */
static void mark(struct job_lines *l, const int32_t *sorted, const char *id)
{
    int32_t low = 0, high = l->n;
    while (low < high) {
        int32_t mid = low + (high - low) / 2, order = strcmp(job_line_id(l, sorted[mid]), id);
        if (order == 0) {
            l->lines[sorted[mid]].is_answered = true;
            return;
        }
        if (order < 0) {
            low = mid + 1;
        }
        if (order >= 0) {
            high = mid;
        }
    }
}

/* Marks the request that this line answers. False if the line is not an answer. */
static bool mark_line(struct job_lines *l, const int32_t *sorted, const char *line, size_t n_bytes)
{
    struct json *root = NULL;
    bool is_answer = false;
    if (json_parse(line, n_bytes, NULL, &root, NULL) == OK) {
        const char *id = json_get_string(root, "custom_id");
        if (id) {
            mark(l, sorted, id);
            is_answer = true;
        }
    }
    json_free(root);
    return is_answer;
}

/* True for the remains of an interrupted run: an incomplete answer at the end or, after a power
 * cut, zeros in place of pages that never reached the disk. What follows either is unreliable. */
static bool is_torn(const char *line, size_t n_bytes)
{
    return memchr(line, 0, n_bytes) || (line[0] == '{' && line[n_bytes - 1] != '\n');
}

/* Marks answered lines. *whole becomes the end of the last complete answer. */
static enum status read_answers(FILE *file, struct job_lines *l, const int32_t *sorted,
                                off_t *whole, struct err *err)
{
    enum status st = OK;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    for (int32_t i = 1; st == OK && (n = getline(&line, &cap, file)) > 0; i++) {
        if (is_torn(line, (size_t)n)) {
            break;
        }
        if (!mark_line(l, sorted, line, (size_t)n)) {
            st = err_set(err, ERR_INVALID,
                         "resume: line %d of the output is not an answer; the file was not changed",
                         i);
        }
        *whole += n;
    }
    free(line);
    return st;
}

/* Marks answered lines, and truncates the file after the last complete answer. */
static enum status take_up(FILE *file, struct job_lines *l, struct err *err)
{
    int32_t *sorted = xcalloc((size_t)l->n + 1, sizeof *sorted);
    off_t whole = 0;
    for (int32_t i = 0; i < l->n; i++) {
        sorted[i] = i;
    }
    qsort_r(sorted, (size_t)l->n, sizeof *sorted, compare_ids, l);
    enum status st = read_answers(file, l, sorted, &whole, err);
    free(sorted);
    TRY(st);
    if (fflush(file) != 0 || ftruncate(fileno(file), whole) != 0 ||
        fseeko(file, whole, SEEK_SET) != 0) {
        return err_set(err, ERR_IO, "the output of the earlier run cannot be continued: %s",
                       strerror(errno));
    }
    return OK;
}

/* ---- the output ------------------------------------------------------------------------------ */

/* With `resume`, lines that the output answers are marked as done, and an incomplete last line is
 * removed. */
enum status batch_output_open(struct batch_output *o, const char *path, bool ordered, bool resume,
                              struct job_lines *lines, struct err *err)
{
    *o = (struct batch_output){.ordered = ordered, .lines = lines};
    if (strcmp(path, "-") == 0) {
        o->file = stdout;
    } else {
        o->file = resume ? fopen(path, "r+") : NULL;
        if (!o->file) {
            o->file = fopen(path, resume ? "a+" : "w");
        }
    }
    if (!o->file) {
        return err_set(err, ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (resume && o->file != stdout) {
        TRY(take_up(o->file, lines, err));
    }
    if (ordered) {
        o->held = xcalloc((size_t)lines->n + 1, sizeof *o->held);
    }
    return OK;
}

static void put_line(struct batch_output *o, const char *text, size_t n_bytes)
{
    fwrite(text, 1, n_bytes, o->file);
    putc('\n', o->file);
}

/* For ordered output: writes held answers until one is missing. Those of an earlier run are already
 * in the file. */
static void put_held(struct batch_output *o)
{
    for (; o->n_written < o->lines->n; o->n_written++) {
        char *text = o->held[o->n_written];
        if (text) {
            put_line(o, text, strlen(text));
            free(text);
            o->held[o->n_written] = NULL;
        } else if (!o->lines->lines[o->n_written].is_answered) {
            return;
        }
    }
}

/* In input order, an answer waits until all answers before it have arrived. */
enum status batch_output_put(struct batch_output *o, const struct batch_answer *answers, size_t n,
                             struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct batch_answer *a = &answers[i];
        if (o->ordered) {
            o->held[a->line] = xstrndup(a->text, a->n_bytes);
        } else {
            put_line(o, a->text, a->n_bytes);
        }
    }
    if (o->ordered) {
        put_held(o);
    }
    if (fflush(o->file) != 0 || ferror(o->file)) {
        return err_set(err, ERR_IO, "the output cannot be written: %s", strerror(errno));
    }
    return OK;
}

/* Answers that are still held are not written; a later run with --resume computes them again. */
enum status batch_output_close(struct batch_output *o, struct err *err)
{
    enum status st = OK;
    for (int32_t i = 0; o->held && i < o->lines->n; i++) {
        free(o->held[i]);
    }
    free(o->held);
    if (o->file && (o->file == stdout ? fflush(stdout) : fclose(o->file)) != 0) {
        st = err_set(err, ERR_IO, "the output cannot be written: %s", strerror(errno));
    }
    *o = (struct batch_output){0};
    return st;
}
