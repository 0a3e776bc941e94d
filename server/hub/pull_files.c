// SPDX-License-Identifier: Apache-2.0
/* The bytes of a download: first the hash and size of each file, then its parts. Several parts of
 * one or more files are downloaded concurrently, in the order of the list. */
#include "server/hub/pull.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TURN_MS = 100, MAX_REFUSED = 4, MAX_WRONG = 2 };

#define LOCK_AGAIN_NS 500000000LL
#define MAX_FILE_BYTES (1LL << 50)

/* A slot for one request. Parts of the first files come first, so that files complete one
 * after another. */
struct worker {
    struct net_request request;
    struct pull_file *file; // the file of its request; NULL: idle
    int32_t part;
    bool remembered; // the request uses the remembered address of an earlier redirect
};

/* ---- hash and size of a file ----------------------------------------------------------------- */

/* The answer to HEAD has the hash, which names the blob, and the size, which decides its parts. */
static void described(struct net_request *r)
{
    struct pull_file *f = r->arg;
    struct pull *p = f->pull;
    const struct net_answer *a = &r->answer;
    if (r->end != NET_ANSWERED || a->status >= 400) {
        pull_explain(p, r, f->path);
        return;
    }
    const char *hash = a->linked_etag[0] ? a->linked_etag : a->etag;
    int64_t n_bytes = a->linked_bytes;
    if (n_bytes < 0) {
        n_bytes = a->status < 300 ? a->n_bytes : -1;
    }
    if (p->st != OK) {
        return;
    }
    if (!hub_is_hash(hash) || n_bytes < 0 || n_bytes > MAX_FILE_BYTES) {
        p->st = err_set(p->err, ERR_FORMAT,
                        "%s: the hub gave no valid hash and size for %.150s (hash '%.80s'), so its "
                        "contents could not be verified",
                        p->name->id, f->path, hash);
    } else if (a->commit[0] && strcmp(a->commit, p->commit) != 0) {
        p->st = err_set(p->err, ERR_FORMAT, "%s: the hub sent %.150s of another commit: try again",
                        p->name->id, f->path);
    } else {
        snprintf(f->hash, sizeof f->hash, "%s", hash);
        f->n_bytes = n_bytes;
    }
}

enum status pull_describe(struct pull *p)
{
    for (size_t i = 0; i < p->n_files; i++) {
        struct pull_file *f = p->files[i];
        if (!f->hash[0]) {
            f->head = (struct net_request){.head = true, .from = -1, .done = described, .arg = f};
            f->head.url = pull_file_url(p, f->path);
            net_submit(p->net, &f->head);
        }
    }
    while (net_pending(p->net) > 0 && p->st == OK) {
        net_turn(p->net, TURN_MS);
    }
    return p->st;
}

/* ---- a part ---------------------------------------------------------------------------------- */

/* Sets the range to what the part still lacks. A server without ranges sends the whole file. */
static void prepare_part(struct net_request *r)
{
    struct worker *w = r->arg;
    struct pull_file *f = w->file;
    struct blob *b = &f->blob;
    if (f->no_ranges) {
        b->got[w->part] = 0; // only the whole file is available
    }
    r->keeps = !f->no_ranges;
    const int64_t begin = w->part * b->part_bytes, got = b->got[w->part];
    const bool all = b->n_parts == 1 && got == 0;
    r->from = all ? -1 : begin + got;
    r->to = begin + blob_part_bytes(b, w->part);
    free(r->url);
    w->remembered = f->storage != NULL;
    if (f->storage) {
        r->url = xstrdup(f->storage);
    } else {
        r->url = pull_file_url(f->pull, f->path);
    }
}

/* The first bytes tell whether the range was respected; a wrong range would corrupt the
 * file. */
static bool take_bytes(struct net_request *r, const void *bytes, size_t n_bytes)
{
    struct worker *w = r->arg;
    struct pull_file *f = w->file;
    struct pull *p = f->pull;
    const struct net_answer *a = &r->answer;
    if (r->from >= 0 && a->status == 200) {
        f->no_ranges = true;
        return false;
    }
    /* True for the first bytes of the response: the part has not grown since the range was set. */
    const bool first = blob_part_bytes(&f->blob, w->part) - f->blob.got[w->part] == r->to - r->from;
    if (r->from >= 0 && first && (a->first_byte != r->from || a->total_bytes != f->n_bytes)) {
        p->st = err_set(p->err, ERR_FORMAT,
                        "%s: the server sent another range of %.150s than was requested",
                        p->name->id, f->path);
        return false;
    }
    struct err why = {""};
    enum status st = blob_write(&f->blob, w->part, bytes, n_bytes, &why);
    if (st != OK) {
        p->st = err_set(p->err, st, "%s: %.100s: %.300s", p->name->id, f->path, why.text);
    }
    return st == OK;
}

/* The answer is useless but a retry may succeed: ask the hub for the address again. */
static void refused(struct worker *w)
{
    struct pull_file *f = w->file;
    const struct net_request *r = &w->request;
    if (w->remembered) {
        const bool known = !f->storage || strcmp(f->storage, r->url) != 0;
        if (known) {
            return; // another request has handled this already
        }
        free(f->storage);
        f->storage = NULL;
    }
    struct pull *p = f->pull;
    if (++f->n_refused > MAX_REFUSED) {
        p->st =
            err_set(p->err, ERR_IO,
                    "%s: the hub redirects to another host for %.150s, and that host refuses it "
                    "(status %ld): try again later; the download continues where it stopped",
                    p->name->id, f->path, r->answer.status);
    }
}

/* The address of a redirect is remembered for the next parts. It expires, so it is forgotten when
 * it fails. */
static void part_done(struct net_request *r)
{
    struct worker *w = r->arg;
    struct pull_file *f = w->file;
    f->busy[w->part] = false;
    f->n_active--;
    const bool elsewhere = w->remembered || r->redirected_to;
    const bool served = r->end == NET_ANSWERED && r->answer.status / 100 == 2;
    if (served && r->redirected_to) {
        free(f->storage);
        f->storage = r->redirected_to;
        r->redirected_to = NULL;
    }
    if (f->pull->st == OK && served) {
        if (f->blob.got[w->part] < blob_part_bytes(&f->blob, w->part)) {
            refused(w); // the response was shorter than requested
        } else {
            f->n_refused = 0;
        }
    } else if (f->pull->st == OK && !(r->end == NET_STOPPED && f->no_ranges)) {
        if (elsewhere && r->end == NET_ANSWERED) {
            refused(w); // a redirect's address may have expired
        } else {
            pull_explain(f->pull, r, f->path);
        }
    }
    net_free(r);
    w->file = NULL;
}

static void start_part(struct worker *w, struct pull_file *f, int32_t part)
{
    w->file = f;
    w->part = part;
    w->request = (struct net_request){
        .prepare = prepare_part, .take = take_bytes, .done = part_done, .arg = w};
    f->busy[part] = true;
    f->n_active++;
    net_submit(f->pull->net, &w->request);
}

/* ---- a file ---------------------------------------------------------------------------------- */

static void set_busy(struct pull_file *f)
{
    free(f->busy);
    f->busy = xcalloc((size_t)f->blob.n_parts + 1, sizeof *f->busy);
}

/* True if another file with the same bytes is being downloaded: a repository may have them under
 * two names. */
static bool another_loads_it(const struct pull *p, const struct pull_file *f)
{
    for (size_t i = 0; i < p->n_files; i++) {
        const struct pull_file *o = p->files[i];
        if (o != f && (o->state == FILE_LOADS || o->state == FILE_CHECKS) &&
            strcmp(o->hash, f->hash) == 0) {
            return true;
        }
    }
    return false;
}

static void file_done(struct pull_file *f)
{
    blob_close(&f->blob);
    f->state = FILE_DONE;
}

/* Takes the file's lock. If another process is downloading the file, tries again later. */
static enum status open_file(struct pull_file *f)
{
    struct pull *p = f->pull;
    char path[PATH_MAX], lock[PATH_MAX];
    const int64_t now = clock_now_ns();
    if (now < f->look_ns || another_loads_it(p, f)) {
        return OK;
    }
    TRY(hub_path(path, p->err, "%s/blobs/%s", p->repo, f->hash));
    TRY(hub_path(lock, p->err, "%s/%s.lock", p->locks, f->hash));
    if (blob_exists(path, f->n_bytes)) {
        f->state = FILE_DONE;
        return OK;
    }
    enum status st = blob_open(&f->blob, path, lock, f->hash, f->n_bytes, p->err);
    if (st == ERR_BUSY) {
        blob_close(&f->blob);
        f->look_ns = now + LOCK_AGAIN_NS;
        if (!f->reported_busy) {
            progress_note(&p->progress,
                          "another process is downloading a part of it; waiting for that process");
            f->reported_busy = true;
        }
        return OK;
    }
    TRY(st);
    if (f->blob.fd < 0) {
        file_done(f);
        return OK;
    }
    set_busy(f);
    f->state = FILE_LOADS;
    return OK;
}

/* The hash does not match: downloads the file once more; the second time it is an error. */
static enum status wrong_bytes(struct pull_file *f)
{
    struct pull *p = f->pull;
    free(f->storage);
    f->storage = NULL;
    if (++f->n_wrong < MAX_WRONG) {
        progress_note(&p->progress, "a file arrived with a wrong hash: downloading it once more");
        f->state = FILE_LOADS;
        return blob_start_over(&f->blob, f->no_ranges, p->err);
    }
    unlink(f->blob.incomplete);
    return err_set(p->err, ERR_FORMAT,
                   "%s: %.150s does not have the hash that the hub announced (%s instead of %s), "
                   "so it was deleted; try again later",
                   p->name->id, f->path, f->blob.found, f->hash);
}

/* Takes the result of the hashing thread. A correct file gets its blob's name. */
static enum status take_check_result(struct pull_file *f)
{
    struct blob *b = &f->blob;
    const int check = atomic_load(&b->check);
    if (check == BLOB_CHECKING) {
        return OK;
    }
    blob_check_join(b);
    if (check == BLOB_BAD) {
        return wrong_bytes(f);
    }
    if (check == BLOB_UNREADABLE) {
        return err_set(f->pull->err, ERR_IO, "%.300s: %.150s", b->incomplete, b->check_err.text);
    }
    TRY(blob_finish(b, f->pull->err));
    file_done(f);
    return OK;
}

/* Moves a file to its next state: waiting, loading, checking, done. */
static enum status advance(struct pull_file *f)
{
    struct blob *b = &f->blob;
    if (f->state == FILE_CHECKS) {
        return take_check_result(f);
    }
    if (f->state != FILE_LOADS || f->n_active > 0) {
        return OK;
    }
    if (blob_got(b) == f->n_bytes) {
        f->state = FILE_CHECKS;
        return blob_check_start(b, f->pull->err);
    }
    if (f->no_ranges && b->n_parts > 1) {
        TRY(blob_start_over(b, true, f->pull->err));
        set_busy(f);
    }
    return OK;
}

/* An unfinished part that no request is downloading; -1: none. */
static int32_t open_part(const struct pull_file *f)
{
    const struct blob *b = &f->blob;
    for (int32_t i = 0; i < b->n_parts; i++) {
        if (!f->busy[i] && b->got[i] < blob_part_bytes(b, i)) {
            return i;
        }
    }
    return -1;
}

/* ---- all files ----------------------------------------------------------------------------- */

/* Assigns work to an idle worker, if there is any. */
static enum status assign_part(struct pull *p, struct worker *w)
{
    for (size_t i = 0; i < p->n_files && !w->file; i++) {
        struct pull_file *f = p->files[i];
        if (f->state == FILE_WAITS) {
            TRY(open_file(f));
        }
        const bool reshapes = f->no_ranges && f->n_active > 0; // wait until its requests have ended
        int32_t part = -1;
        if (f->state == FILE_LOADS && !reshapes) {
            part = open_part(f);
        }
        if (part >= 0 && !(f->no_ranges && f->blob.n_parts > 1)) {
            start_part(w, f, part);
        }
    }
    return OK;
}

static int64_t bytes_here(const struct pull *p)
{
    int64_t sum = 0;
    for (size_t i = 0; i < p->n_files; i++) {
        const struct pull_file *f = p->files[i];
        if (f->state == FILE_DONE || f->state == FILE_CHECKS) {
            sum += f->n_bytes;
        }
        if (f->state == FILE_LOADS) {
            sum += blob_got(&f->blob);
        }
    }
    return sum;
}

/* Gives work to idle workers, advances files, and lets the network run. */
static enum status turn(struct pull *p, struct worker *workers, bool *all_done)
{
    for (size_t i = 0; i < NET_MAX_ACTIVE; i++) {
        if (!workers[i].file) {
            TRY(assign_part(p, &workers[i]));
        }
    }
    bool done = true;
    for (size_t i = 0; i < p->n_files; i++) {
        TRY(advance(p->files[i]));
        done = done && p->files[i]->state == FILE_DONE;
    }
    *all_done = done;
    if (!done) {
        net_turn(p->net, TURN_MS);
    }
    if (p->counts) {
        progress_at(&p->progress, bytes_here(p));
    }
    return p->st;
}

/* On an error the network is closed at once, since requests point into the workers. */
enum status pull_download(struct pull *p)
{
    struct worker *workers = xcalloc(NET_MAX_ACTIVE, sizeof *workers);
    bool all_done = false;
    while (!all_done && p->st == OK) {
        p->st = turn(p, workers, &all_done);
    }
    if (p->st != OK) { // requests point into the workers
        net_close(p->net);
        p->net = NULL;
    }
    for (size_t i = 0; i < NET_MAX_ACTIVE; i++) {
        net_free(&workers[i].request);
    }
    free(workers);
    return p->st;
}
