// SPDX-License-Identifier: Apache-2.0
/* Downloads what is missing of a model: the list of a revision's files, the small files, and then
 * the weights that these name. A file is linked once its blob is complete, weights once all of them
 * are, and the revision's ref is written last. So the cache is consistent at all times, whatever
 * interrupts a download. */
#include "server/hub/pull.h"

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { MAX_LIST_BYTES = 64 << 20, MAX_FILES = 10000, LIST_MS = 100 };

/* ---- the list -------------------------------------------------------------------------------- */

struct list {
    struct pull *pull;
    struct buf text;
};

static void list_prepare(struct net_request *r)
{
    buf_clear(&((struct list *)r->arg)->text);
}

static bool list_take(struct net_request *r, const void *bytes, size_t n_bytes)
{
    struct list *l = r->arg;
    buf_put(&l->text, bytes, n_bytes);
    return !l->text.failed;
}

/* Called when the request for the list has ended. */
static void list_done(struct net_request *r)
{
    struct list *l = r->arg;
    if (r->end == NET_STOPPED) {
        l->pull->st = err_set(l->pull->err, ERR_LIMIT, "%s: its list of files is too long",
                              l->pull->name->id);
    } else if (r->end != NET_ANSWERED || r->answer.status != 200) {
        pull_explain(l->pull, r, NULL);
    }
}

/* Paths come from the network and become paths on disk, so each is checked. */
static enum status read_siblings(struct pull *p, const struct json *list)
{
    for (const struct json *c = json_first(list); c; c = json_next(c)) {
        const char *path = json_get_string(c, "rfilename");
        if (!path || !hub_path_is_safe(path)) {
            return err_set(p->err, ERR_FORMAT,
                           "%s: the hub lists a file '%.150s', which would be outside of the "
                           "model's folder; nothing was downloaded",
                           p->name->id, or_empty(path));
        }
        if (hub_is_needed(path) || hub_is_of_a_form(path)) {
            hub_paths_add(&p->listed, path);
        }
    }
    if (p->listed.n <= MAX_FILES) {
        return OK;
    }
    return err_set(p->err, ERR_LIMIT, "%s has more than %d files", p->name->id, MAX_FILES);
}

/* The list names the commit, so all later requests are for one revision even if the branch
 * moves. */
static enum status read_list(struct pull *p, const struct buf *text)
{
    struct json *root;
    if (json_parse(or_empty(text->data), text->n_bytes, NULL, &root, p->err) != OK) {
        return err_prefix(p->err, ERR_FORMAT, "%s: the hub's list of files", p->name->id);
    }
    const char *commit = json_get_string(root, "sha");
    enum status st = OK;
    if (!commit || !hub_is_commit(commit)) {
        st = err_set(p->err, ERR_FORMAT, "%s: the hub gave no commit for revision '%s'",
                     p->name->id, p->name->revision);
    } else {
        memcpy(p->commit, commit, sizeof p->commit);
        st = read_siblings(p, json_get(root, "siblings"));
    }
    json_free(root);
    return st;
}

static enum status list_files(struct pull *p)
{
    struct list l = {.pull = p};
    struct net_request r = {
        .from = -1, .prepare = list_prepare, .take = list_take, .done = list_done, .arg = &l};
    r.url = pull_list_url(p);
    buf_init(&l.text, MAX_LIST_BYTES);
    net_submit(p->net, &r);
    while (net_pending(p->net) > 0) {
        net_turn(p->net, LIST_MS);
    }
    enum status st = p->st == OK ? read_list(p, &l.text) : p->st;
    buf_deinit(&l.text);
    net_free(&r);
    return st;
}

/* ---- the needed files -------------------------------------------------------------------- */

/* Files are allocated one by one, since requests point to them. */
static struct pull_file *add_file(struct pull *p, const char *path)
{
    if (p->n_files == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->files = xrealloc(p->files, p->cap * sizeof *p->files);
    }
    struct pull_file *f = xcalloc(1, sizeof *f);
    f->pull = p;
    f->path = xstrdup(path);
    f->blob.fd = f->blob.lock_fd = -1;
    p->files[p->n_files++] = f;
    return f;
}

/* True for what GPT-2's older folders have in place of tokenizer.json. */
static bool is_in_its_place(const char *path)
{
    return strcmp(path, "vocab.json") == 0 || strcmp(path, "merges.txt") == 0 ||
           strcmp(path, "added_tokens.json") == 0;
}

/* Adds the files other than weights that the engine reads, and the weights' index. */
static enum status add_small(struct pull *p)
{
    if (!hub_paths_has(&p->listed, "config.json") && !hub_paths_has(&p->listed, HUB_ADAPTER)) {
        return err_set(p->err, ERR_UNSUPPORTED,
                       "%s has no config.json, so sluice cannot load it; choose a repository in "
                       "Hugging Face's format",
                       p->name->id);
    }
    const bool whole = hub_paths_has(&p->listed, "tokenizer.json");
    for (size_t i = 0; i < p->listed.n; i++) {
        const char *path = p->listed.items[i];
        if (hub_is_needed(path) && !(whole && is_in_its_place(path))) {
            add_file(p, path);
        }
    }
    p->form = hub_form_of(&p->listed);
    if (p->form && hub_paths_has(&p->listed, p->form->index)) {
        add_file(p, p->form->index);
    }
    return OK;
}

/* The shards that the index names must be in the list. */
static enum status add_shards(struct pull *p, const char *index_hash)
{
    char index[PATH_MAX];
    struct hub_paths shards = {0};
    TRY(hub_path(index, p->err, "%s/blobs/%s", p->repo, index_hash));
    enum status st = hub_read_index(index, p->name->id, &shards, p->err);
    for (size_t i = 0; i < shards.n && st == OK; i++) {
        if (!hub_paths_has(&p->listed, shards.items[i])) {
            st = err_set(p->err, ERR_FORMAT,
                         "%s: its index names %.150s, which the hub does not "
                         "list",
                         p->name->id, shards.items[i]);
        } else {
            add_file(p, shards.items[i]);
        }
    }
    hub_paths_free(&shards);
    return st;
}

/* Adds the weights as the engine looks for them: a single file, otherwise those of the index,
 * otherwise all there are. */
static enum status add_weights(struct pull *p)
{
    const struct hub_form *form = p->form;
    if (!form) {
        return err_set(p->err, ERR_UNSUPPORTED,
                       "%s has no weights in safetensors files and no pytorch_model.bin, so sluice "
                       "cannot load it; choose a repository that has them",
                       p->name->id);
    }
    if (hub_paths_has(&p->listed, form->whole)) {
        add_file(p, form->whole);
        return OK;
    }
    for (size_t i = 0; i < p->n_files; i++) {
        if (strcmp(p->files[i]->path, form->index) == 0) {
            return add_shards(p, p->files[i]->hash);
        }
    }
    for (size_t i = 0; i < p->listed.n; i++) {
        if (hub_form_has(form, p->listed.items[i])) {
            add_file(p, p->listed.items[i]);
        }
    }
    return OK;
}

/* ---- disk space ------------------------------------------------------------------------------ */

/* Counts the bytes that are present of all files from `first` on, and checks that the disk has
 * space for the rest. */
static enum status check_room(struct pull *p, size_t first)
{
    int64_t needed = 0;
    for (size_t i = first; i < p->n_files; i++) {
        char path[PATH_MAX];
        TRY(hub_path(path, p->err, "%s/blobs/%s", p->repo, p->files[i]->hash));
        const int64_t here = blob_allocated(path, p->files[i]->n_bytes);
        p->had_bytes += here;
        needed += p->files[i]->n_bytes - here;
    }
    struct statvfs disk;
    if (needed == 0 || statvfs(p->repo, &disk) != 0) {
        return OK;
    }
    const double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if ((double)needed <= room) {
        return OK;
    }
    return err_set(p->err, ERR_IO,
                   "%s needs %lld more bytes, and the disk of %.150s has %.0f free: delete "
                   "something ('sluice list' shows the models there, 'sluice remove' deletes one), "
                   "or set HF_HUB_CACHE to a folder on another disk",
                   p->name->id, (long long)needed, p->settings->cache, room);
}

static enum status link_files(struct pull *p, size_t first)
{
    for (size_t i = first; i < p->n_files; i++) {
        TRY(hub_link_file(p->repo, p->commit, p->files[i]->path, p->files[i]->hash, p->err));
    }
    return OK;
}

/* ---- the whole download ---------------------------------------------------------------------- */

static void tell(const char *line, void *arg)
{
    progress_note(arg, line);
}

static enum status make_folders(struct pull *p)
{
    char blobs[PATH_MAX];
    TRY(hub_repo_path(p->settings, p->name->id, p->repo, p->err));
    TRY(hub_locks_path(p->settings, p->name->id, p->locks, p->err));
    TRY(hub_path(blobs, p->err, "%s/blobs", p->repo));
    TRY(hub_make_folders(p->settings->cache, blobs, p->err));
    return hub_make_folders(p->settings->cache, p->locks, p->err);
}

static enum status get_small(struct pull *p)
{
    TRY(add_small(p));
    TRY(pull_describe(p));
    TRY(check_room(p, 0));
    TRY(pull_download(p));
    return link_files(p, 0);
}

/* Downloads the weights. Their sizes are requested first, so that disk space is checked before
 * hours of downloading. */
static enum status get_weights(struct pull *p)
{
    const size_t first = p->n_files;
    int64_t total = 0;
    TRY(add_weights(p));
    TRY(pull_describe(p));
    TRY(check_room(p, first));
    for (size_t i = 0; i < p->n_files; i++) {
        total += p->files[i]->n_bytes;
    }
    progress_begin(&p->progress, p->n_files, total, p->had_bytes);
    p->counts = true;
    TRY(pull_download(p));
    TRY(link_files(p, first));
    progress_end(&p->progress, total);
    return OK;
}

static enum status pull_all(struct pull *p)
{
    TRY(net_open(p->settings, tell, &p->progress, &p->net, p->err));
    TRY(list_files(p)); // before anything is created, so that a misspelt name leaves no trace
    TRY(make_folders(p));
    TRY(get_small(p));
    TRY(get_weights(p));
    return hub_write_ref(p->repo, p->name->revision, p->commit, p->err);
}

/* The network is closed before the files that its requests refer to. */
enum status hub_pull(const struct hub_settings *s, const struct hub_name *name,
                     char folder[PATH_MAX], struct err *err)
{
    struct pull p = {.settings = s, .name = name, .err = err};
    progress_init(&p.progress, name->id);
    enum status st = pull_all(&p);
    net_close(p.net); // running requests point to the files
    for (size_t i = 0; i < p.n_files; i++) {
        struct pull_file *f = p.files[i];
        blob_close(&f->blob);
        net_free(&f->head);
        free(f->storage);
        free(f->busy);
        free(f->path);
        free(f);
    }
    free(p.files);
    hub_paths_free(&p.listed);
    TRY(st);
    return hub_path(folder, err, "%s/snapshots/%s", p.repo, p.commit);
}
