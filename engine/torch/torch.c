// SPDX-License-Identifier: Apache-2.0
#include "engine/torch/torch.h"

#include "engine/base/mem.h"
#include "engine/base/minmax.h"
#include "engine/base/utf8.h"
#include "engine/torch/globals.h"
#include "engine/torch/pickle.h"
#include "engine/torch/zip.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAME_BYTES = 4096, // chosen; a tensor's
    MAX_NESTING = 8,       // chosen: a tensor in a parameter in a call of a type
};

struct torch_file {
    struct torch_tensor *tensors;
    size_t n_tensors, cap_tensors;
    unsigned char **copies; // of tensors whose elements do not lie in order
    size_t n_copies, cap_copies, copied_bytes;
};

struct reader {
    struct torch_file *f;
    const char *path;
    struct err *err;
    struct zip zip;
    struct pickle pickle;
    const char *folder; // the name of the archive's top folder, with its slash
    size_t folder_bytes;
    size_t file_bytes;
    const char *name; // of the tensor that is being read
};

/* A tensor as the pickle describes it: some elements of a storage. */
struct view {
    const struct torch_global_row *type; // STORAGE or DTYPE
    const struct zip_file *storage;
    int64_t offset;
    int32_t n_dims;
    int64_t dims[TORCH_MAX_DIMS], strides[TORCH_MAX_DIMS];
    size_t n; // elements
};

static enum status bad(const struct reader *r, const char *why)
{
    return err_set(r->err, ERR_FORMAT, "%.300s: tensor %.200s %s", r->path, r->name, why);
}

/* ---- nodes of the pickle ------------------------------------------------------------------ */

static const struct pickle_node *node(const struct reader *r, pickle_ref ref)
{
    return pickle_at(&r->pickle, ref);
}

/* The row of a GLOBAL; NULL for other nodes. */
static const struct torch_global_row *global(const struct reader *r, pickle_ref ref)
{
    const struct pickle_node *n = node(r, ref);
    return n->kind == PICKLE_GLOBAL ? torch_global_row(n->number) : NULL;
}

static bool is_global(const struct reader *r, pickle_ref ref, enum torch_global what)
{
    const struct torch_global_row *row = global(r, ref);
    return row && row->what == what;
}

static bool text_is(const struct pickle_node *n, const char *text)
{
    return n->kind == PICKLE_TEXT && n->n_bytes == strlen(text) &&
           memcmp(n->text, text, n->n_bytes) == 0;
}

/* ---- a storage ---------------------------------------------------------------------------- */

/* The file PREFIX/NAME of the archive, where PREFIX is its top folder. */
static const struct zip_file *find_file(const struct reader *r, const char *folder,
                                        const char *name, size_t n)
{
    char path[512];
    const size_t n_folder = strlen(folder);
    if (n > 64 || r->folder_bytes + n_folder + n > sizeof path) {
        return NULL;
    }
    memcpy(path, r->folder, r->folder_bytes);
    memcpy(path + r->folder_bytes, folder, n_folder);
    memcpy(path + r->folder_bytes + n_folder, name, n);
    return zip_find(&r->zip, path, r->folder_bytes + n_folder + n);
}

/* ("storage", its class, its key, the device that it was on, the number of its elements); the last
 * is in bytes if the class is that of all types. */
static enum status read_storage(const struct reader *r, pickle_ref ref, struct view *v)
{
    const struct pickle_node *n = node(r, ref);
    const pickle_ref id = n->kind == PICKLE_PERSISTENT ? n->args : 0;
    const struct pickle_node *key = node(r, pickle_item_at(&r->pickle, id, 2));
    const struct pickle_node *count = node(r, pickle_item_at(&r->pickle, id, 4));
    const struct torch_global_row *type = global(r, pickle_item_at(&r->pickle, id, 1));
    if (!text_is(node(r, pickle_item_at(&r->pickle, id, 0)), "storage") || !type ||
        (type->what != TORCH_STORAGE && type->what != TORCH_STORAGE_OF_BYTES) ||
        key->kind != PICKLE_TEXT || count->kind != PICKLE_INT || count->number < 0) {
        return bad(r, "has a malformed storage");
    }
    v->storage = find_file(r, "data/", key->text, key->n_bytes);
    if (!v->storage) {
        return bad(r, "has a storage that is not in the file");
    }
    size_t n_bytes;
    const size_t width = type->what == TORCH_STORAGE ? type->element_bytes : 1;
    if (!mem_mul((size_t)count->number, width, &n_bytes) || n_bytes != v->storage->n_bytes) {
        return bad(r, "has a storage of another size than its data");
    }
    v->type = type;
    return OK;
}

/* ---- a tensor's shape --------------------------------------------------------------------- */

/* A tuple of integers >= 0; its length, or -1. */
static int32_t read_ints(const struct reader *r, pickle_ref ref, int64_t out[TORCH_MAX_DIMS])
{
    const struct pickle_node *tuple = node(r, ref);
    if (tuple->kind == PICKLE_CALL && is_global(r, tuple->function, TORCH_SIZE)) {
        ref = pickle_item_at(&r->pickle, tuple->args, 0);
        tuple = node(r, ref);
    }
    if (tuple->kind != PICKLE_TUPLE || tuple->n > TORCH_MAX_DIMS) {
        return -1;
    }
    for (uint32_t i = 0; i < tuple->n; i++) {
        const struct pickle_node *item = node(r, pickle_item_at(&r->pickle, ref, i));
        if (item->kind != PICKLE_INT || item->number < 0) {
            return -1;
        }
        out[i] = item->number;
    }
    return (int32_t)tuple->n;
}

/* The number of elements, and that the last one lies in the storage. */
static enum status check_bounds(const struct reader *r, struct view *v)
{
    const size_t n_storage = v->storage->n_bytes / v->type->element_bytes;
    size_t last = (size_t)v->offset;
    v->n = 1;
    for (int32_t i = 0; i < v->n_dims; i++) {
        if (!mem_mul(v->n, (size_t)v->dims[i], &v->n)) {
            return bad(r, "has a shape that is too large");
        }
    }
    for (int32_t i = 0; i < v->n_dims && v->n > 0; i++) {
        size_t step;
        if (!mem_mul((size_t)(v->dims[i] - 1), (size_t)v->strides[i], &step) ||
            step > SIZE_MAX - last) {
            return bad(r, "lies outside its storage");
        }
        last += step;
    }
    if (v->n > 0 ? last >= n_storage : last > n_storage) {
        return bad(r, "lies outside its storage");
    }
    return OK;
}

static bool is_in_order(const struct view *v)
{
    int64_t step = 1;
    for (int32_t i = v->n_dims; i-- > 0 && v->n > 0;) {
        if (v->dims[i] != 1 && v->strides[i] != step) {
            return false;
        }
        step *= v->dims[i];
    }
    return true;
}

/* ---- elements ----------------------------------------------------------------------------- */

/* Moves to the next index, the last one fastest; *at follows, in elements. */
static void advance(const struct view *v, int64_t index[TORCH_MAX_DIMS], int64_t *at)
{
    for (int32_t i = v->n_dims; i-- > 0;) {
        if (v->dims[i] == 1) {
            continue; // its stride may be anything
        }
        *at += v->strides[i];
        if (++index[i] < v->dims[i]) {
            return;
        }
        *at -= v->strides[i] * v->dims[i];
        index[i] = 0;
    }
}

/* Copies are limited to the size of the file, so that a small file cannot ask for much memory: a
 * tensor that repeats elements can have any size. */
static enum status copy_in_order(struct reader *r, const struct view *v, struct torch_tensor *t)
{
    struct torch_file *f = r->f;
    const size_t width = v->type->element_bytes;
    if (t->n_bytes > r->file_bytes - f->copied_bytes) {
        return bad(r, "is a view, and the views together are larger than the file; save copies "
                      "of them: tensor.clone()");
    }
    unsigned char *copy = mem_try_calloc(v->n, width);
    if (!copy) {
        return err_set(r->err, ERR_NOMEM, "%.300s: no memory for tensor %.200s", r->path, r->name);
    }
    if (f->n_copies == f->cap_copies) {
        f->cap_copies = f->cap_copies ? f->cap_copies * 2 : 16;
        f->copies = xrealloc(f->copies, f->cap_copies * sizeof *f->copies);
    }
    f->copies[f->n_copies++] = copy;
    f->copied_bytes += t->n_bytes;
    int64_t index[TORCH_MAX_DIMS] = {0}, at = v->offset;
    for (size_t i = 0; i < v->n; i++) {
        memcpy(copy + i * width, v->storage->data + (size_t)at * width, width);
        advance(v, index, &at);
    }
    t->data = copy;
    return OK;
}

static enum status read_elements(struct reader *r, const struct view *v, struct torch_tensor *t)
{
    const size_t width = v->type->element_bytes;
    t->dtype_name = v->type->dtype_name;
    t->n_dims = v->n_dims;
    memcpy(t->dims, v->dims, sizeof t->dims);
    if (!mem_mul(v->n, width, &t->n_bytes)) {
        return bad(r, "has a shape that is too large");
    }
    t->data = v->storage->data + (size_t)v->offset * width;
    return is_in_order(v) ? OK : copy_in_order(r, v, t);
}

/* ---- a tensor ----------------------------------------------------------------------------- */

/* Follows parameters, and calls of a type, to the call that makes the tensor. */
static enum status find_call(const struct reader *r, pickle_ref ref, pickle_ref *function,
                             pickle_ref *args)
{
    for (int32_t i = 0; i < MAX_NESTING; i++) {
        const struct pickle_node *call = node(r, ref);
        if (call->kind != PICKLE_CALL || call->has_state || call->n > 0) {
            break;
        }
        *function = call->function;
        *args = call->args;
        if (is_global(r, *function, TORCH_CALL_OF_TYPE) &&
            is_global(r, pickle_item_at(&r->pickle, *args, 1), TORCH_TYPE)) {
            *function = pickle_item_at(&r->pickle, *args, 0);
            *args = pickle_item_at(&r->pickle, *args, 2);
        }
        if (is_global(r, *function, TORCH_TENSOR) ||
            is_global(r, *function, TORCH_TENSOR_OF_DTYPE)) {
            return OK;
        }
        if (!is_global(r, *function, TORCH_PARAMETER)) {
            break;
        }
        ref = pickle_item_at(&r->pickle, *args, 0);
    }
    return bad(r, "is not a tensor; a state dict of tensors is expected, as in "
                  "torch.save(model.state_dict(), ...)");
}

/* Elements that are conjugated or negated when they are read are marked behind the other
 * arguments, where most tensors have nothing. */
static bool has_marks(const struct reader *r, pickle_ref args, bool has_dtype)
{
    const struct pickle_node *marks = node(r, pickle_item_at(&r->pickle, args, has_dtype ? 7 : 6));
    return marks->kind != PICKLE_NONE && (marks->kind != PICKLE_DICT || marks->n > 0);
}

static enum status read_view(const struct reader *r, pickle_ref ref, struct view *v)
{
    pickle_ref function = 0, args = 0;
    TRY(find_call(r, ref, &function, &args));
    TRY(read_storage(r, pickle_item_at(&r->pickle, args, 0), v));
    const bool has_dtype = is_global(r, function, TORCH_TENSOR_OF_DTYPE);
    if (has_dtype) {
        v->type = global(r, pickle_item_at(&r->pickle, args, 6));
    }
    if (!v->type || v->type->element_bytes == 0) {
        return bad(r, "has no type of elements");
    }
    const struct pickle_node *offset = node(r, pickle_item_at(&r->pickle, args, 1));
    v->n_dims = read_ints(r, pickle_item_at(&r->pickle, args, 2), v->dims);
    if (offset->kind != PICKLE_INT || offset->number < 0 || v->n_dims < 0 ||
        read_ints(r, pickle_item_at(&r->pickle, args, 3), v->strides) != v->n_dims) {
        return bad(r, "has a malformed shape");
    }
    if (has_marks(r, args, has_dtype)) {
        return bad(r, "is a conjugate or a negative view, which is not supported");
    }
    v->offset = offset->number;
    return check_bounds(r, v);
}

static enum status read_name(struct reader *r, pickle_ref key, char **out)
{
    const struct pickle_node *n = node(r, key);
    if (n->kind != PICKLE_TEXT || n->n_bytes > MAX_NAME_BYTES || memchr(n->text, 0, n->n_bytes) ||
        utf8_check(n->text, n->n_bytes) != n->n_bytes) {
        return err_set(r->err, ERR_FORMAT,
                       "%.300s: an entry's name is not text, or has more than %d bytes", r->path,
                       MAX_NAME_BYTES);
    }
    *out = xstrndup(n->text, n->n_bytes);
    return OK;
}

static enum status read_tensor(struct reader *r, const struct pickle_item *item)
{
    struct torch_file *f = r->f;
    struct view v = {0};
    if (f->n_tensors == f->cap_tensors) {
        f->cap_tensors = f->cap_tensors ? f->cap_tensors * 2 : 256;
        f->tensors = xrealloc(f->tensors, f->cap_tensors * sizeof *f->tensors);
    }
    struct torch_tensor *t = &f->tensors[f->n_tensors];
    *t = (struct torch_tensor){0};
    TRY(read_name(r, item->key, &t->name));
    f->n_tensors++;
    r->name = t->name;
    TRY(read_view(r, item->value, &v));
    return read_elements(r, &v, t);
}

/* ---- the file ----------------------------------------------------------------------------- */

/* The root is a dict of tensors, plain or ordered. */
static enum status read_tensors(struct reader *r)
{
    const struct pickle_node *root = node(r, r->pickle.root);
    const bool is_dict = root->kind == PICKLE_DICT ||
                         (root->kind == PICKLE_CALL && is_global(r, root->function, TORCH_DICT) &&
                          node(r, root->args)->n == 0);
    if (!is_dict) {
        return err_set(r->err, ERR_FORMAT, "%.300s: not a state dict, but another object of Python",
                       r->path);
    }
    uint32_t at = root->first;
    for (uint32_t i = 0; i < root->n; i++) {
        const struct pickle_item *item = &r->pickle.items[at];
        TRY(read_tensor(r, item));
        at = item->next;
    }
    return OK;
}

static bool ends_with(const struct zip_file *f, const char *end)
{
    const size_t n = strlen(end);
    return f->name_bytes >= n && memcmp(f->name + f->name_bytes - n, end, n) == 0;
}

/* All files are in one folder, which is named after the saved file. */
static enum status find_pickle(struct reader *r, const struct zip_file **out)
{
    for (size_t i = 0; i < r->zip.n_files; i++) {
        const struct zip_file *f = &r->zip.files[i];
        const char *slash = memchr(f->name, '/', f->name_bytes);
        if (slash && ends_with(f, "/data.pkl") &&
            (size_t)(slash - f->name) + strlen("/data.pkl") == f->name_bytes) {
            r->folder = f->name;
            r->folder_bytes = (size_t)(slash - f->name) + 1;
            *out = f;
            return OK;
        }
    }
    return err_set(r->err, ERR_FORMAT, "%.300s: a zip archive, but not one of torch.save", r->path);
}

static enum status check_byte_order(const struct reader *r)
{
    const struct zip_file *order = find_file(r, "", "byteorder", strlen("byteorder"));
    if (order && (order->n_bytes != 6 || memcmp(order->data, "little", 6) != 0)) {
        return err_set(r->err, ERR_UNSUPPORTED,
                       "%.300s: saved on a big-endian machine, which is not supported", r->path);
    }
    return OK;
}

/* Files of other kinds, each with its own sentence. */
static enum status check_kind(const struct file_map *map, const char *path, struct err *err)
{
    static const unsigned char old[] = {0x80, 0x02, 0x8a, 0x0a};
    if (zip_is(map->data, map->n_bytes)) {
        return OK;
    }
    if (map->n_bytes > sizeof old && memcmp(map->data, old, sizeof old) == 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%.300s: in the form that torch.save wrote before PyTorch 1.6, which is not "
                       "supported; convert it with Python: import torch; f = '%.300s'; "
                       "torch.save(torch.load(f, weights_only=True), f)",
                       path, path);
    }
    if (map->n_bytes > 8 && memcmp(map->data, "version ", 8) == 0) {
        return err_set(err, ERR_FORMAT,
                       "%.300s: a Git LFS pointer and not the weights: run `git lfs pull` in that "
                       "folder",
                       path);
    }
    return err_set(err, ERR_FORMAT, "%.300s: not a file of torch.save, or cut short", path);
}

static enum status read_file(struct reader *r, const struct file_map *map)
{
    const struct zip_file *pickle = NULL;
    TRY(zip_open(map->data, map->n_bytes, r->path, &r->zip, r->err));
    TRY(find_pickle(r, &pickle));
    TRY(check_byte_order(r));
    TRY(pickle_open(pickle->data, pickle->n_bytes, r->path, torch_find_global, &r->pickle, r->err));
    return read_tensors(r);
}

enum status torch_open(const struct file_map *map, const char *path, struct torch_file **out,
                       struct err *err)
{
    TRY(check_kind(map, path, err));
    struct torch_file *f = xcalloc(1, sizeof *f);
    struct reader r = {.f = f, .path = path, .err = err, .file_bytes = map->n_bytes};
    const enum status st = read_file(&r, map);
    zip_close(&r.zip);
    pickle_close(&r.pickle);
    if (st != OK) {
        torch_close(f);
        return st;
    }
    *out = f;
    return OK;
}

void torch_close(struct torch_file *f)
{
    if (!f) {
        return;
    }
    for (size_t i = 0; i < f->n_tensors; i++) {
        free(f->tensors[i].name);
    }
    for (size_t i = 0; i < f->n_copies; i++) {
        free(f->copies[i]);
    }
    free(f->tensors);
    free(f->copies);
    free(f);
}

size_t torch_n_tensors(const struct torch_file *f)
{
    return f->n_tensors;
}

const struct torch_tensor *torch_tensor_at(const struct torch_file *f, size_t i)
{
    return &f->tensors[i];
}
