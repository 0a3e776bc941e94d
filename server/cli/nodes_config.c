// SPDX-License-Identifier: Apache-2.0
/* Several processes that share a model: their number and ranks from options or from the
 * launcher's environment, and a digest of everything they must agree on. */
#include "server/cli/nodes_config.h"

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/json.h"
#include "engine/base/minmax.h"
#include "engine/base/optional.h"
#include "engine/gguf/folder.h"
#include "engine/gguf/split.h"
#include "server/cli/config_value.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the place of this process --------------------------------------------------------------- */

static const char *env_get(char **env, const char *name)
{
    size_t n = strlen(name);
    for (; env && *env; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=' && (*env)[n + 1] != '\0') {
            return *env + n + 1;
        }
    }
    return NULL;
}

/* Reads a number from a variable. False if it is not set; any other value than a number in [0,
 * 2^20] is an error. */
static bool env_number(char **env, const char *name, int32_t *out, enum status *st, struct err *err)
{
    const char *text = env_get(env, name);
    if (!text) {
        return false;
    }
    char *end;
    long v = strtol(text, &end, 10);
    if (*end != '\0' || v < 0 || v > 1 << 20) {
        *st = err_set(err, ERR_INVALID, "%s: '%.60s' is not a number", name, text);
        return false;
    }
    *out = (int32_t)v;
    return true;
}

static const struct launcher {
    const char *name, *size, *rank, *leader;
} launchers[] = {
    {"LeaderWorkerSet", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS"},
    {"mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", NULL},
    {"mpirun", "PMI_SIZE", "PMI_RANK", NULL},
    {"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NODELIST"},
    {"srun", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_NODELIST"},
};

/* The first host of "host", "host,other" or "gpu[03-07,9]-ib". */
static void first_host(const char *list, char *out, size_t n_bytes)
{
    size_t n = 0;
    while (*list && *list != ',' && n + 1 < n_bytes) {
        if (*list == '[') {
            list++;
            while (*list && *list != '-' && *list != ',' && *list != ']' && n + 1 < n_bytes) {
                out[n++] = *list++;
            }
            list += strcspn(list, "]");
            list += *list == ']';
            continue;
        }
        out[n++] = *list++;
    }
    out[n] = '\0';
}

/* True if all processes, and so node 0, run on this host. */
static bool all_local(char **env, int32_t size)
{
    int32_t local = 0;
    enum status ignored = OK;
    return env_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", &local, &ignored, NULL) && local == size;
}

/* Reads the variables of one launcher (MPI, Slurm, torchrun, ...), which are used only if both size
 * and rank are set. */
static enum status read_launcher(char **env, const struct launcher *l, struct nodes_setting *out,
                                 bool *found, struct err *err)
{
    int32_t size, rank;
    enum status st = OK;
    *found = env_number(env, l->size, &size, &st, err) && env_number(env, l->rank, &rank, &st, err);
    if (st != OK || !*found) {
        return st;
    }
    if (size < 1 || rank >= size) {
        return err_set(err, ERR_INVALID, "%s=%d is impossible with %s=%d", l->rank, rank, l->size,
                       size);
    }
    out->place.n_nodes = size;
    out->place.node = rank;
    out->from = l->name;
    const char *leader = l->leader ? env_get(env, l->leader) : NULL;
    if (leader) {
        first_host(leader, out->leader, sizeof out->leader);
    } else if (all_local(env, size)) {
        snprintf(out->leader, sizeof out->leader, "127.0.0.1");
    }
    return OK;
}

/* Uses the first launcher whose variables are set. */
static enum status read_env(const struct config *c, char **env, struct nodes_setting *out,
                            struct err *err)
{
    bool found = false;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0] && !found; i++) {
        TRY(read_launcher(env, &launchers[i], out, &found, err));
    }
    const char *leader = env_get(env, "MASTER_ADDR");
    if (leader && out->leader[0] == '\0') {
        snprintf(out->leader, sizeof out->leader, "%s", leader);
    }
    if (c->nnodes == 0 && c->engine.tensor_parallel_size <= 1) {
        out->place.n_nodes = 1; // the launcher's processes are replicas
        out->place.node = 0;
    }
    return OK;
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 ||
           strcmp(host, "::1") == 0;
}

/* Options win over the environment; --nnodes 1 ignores it. */
enum status nodes_setting_read(const struct config *c, char **env, struct nodes_setting *out,
                               struct err *err)
{
    *out = (struct nodes_setting){.from = "options"};
    struct node_place *p = &out->place;
    p->n_nodes = 1;
    if (c->nnodes != 1) {
        TRY(read_env(c, env, out, err));
    }
    if (c->nnodes > 0) {
        p->n_nodes = (int32_t)c->nnodes;
    }
    if (c->node_rank >= 0) {
        p->node = (int32_t)c->node_rank;
    }
    p->port = (int32_t)c->master_port;
    p->token = or_empty(c->node_token);
    p->join_timeout_s = (int32_t)c->node_timeout;
    if (c->master_addr) {
        snprintf(out->leader, sizeof out->leader, "%s", c->master_addr);
    }
    p->leader = out->leader;
    p->bind = c->master_addr; // bind only to an address that the user gave: a launcher's name for
                              // this host may resolve to a loopback address here
    if (p->node >= p->n_nodes) {
        return err_set(err, ERR_INVALID, "node-rank %d: with %d nodes it must be between 0 and %d",
                       p->node, p->n_nodes, p->n_nodes - 1);
    }
    if (p->n_nodes > MAX_NODES) {
        return err_set(err, ERR_INVALID, "nnodes: at most %d", MAX_NODES);
    }
    if (p->n_nodes > 1 && c->engine.tensor_parallel_size % p->n_nodes != 0) {
        return err_set(err, ERR_INVALID,
                       "tensor-parallel-size is the number of devices of all nodes, and %d is not "
                       "a multiple of the %d nodes",
                       c->engine.tensor_parallel_size, p->n_nodes);
    }
    if (p->n_nodes > 1 && c->engine.spare_adapters > 0) {
        return err_set(err, ERR_UNSUPPORTED,
                       "max-loras: with %d nodes adapters cannot be loaded later; there may be %d, "
                       "those of --lora-modules",
                       p->n_nodes, c->engine.n_adapters);
    }
    if (p->n_nodes > 1 && p->node > 0 && out->leader[0] == '\0') {
        return err_set(err, ERR_INVALID, "master-addr: the address of node 0 is needed");
    }
    if (p->n_nodes > 1 && !*p->token && !c->no_node_token && !is_loopback(out->leader)) {
        return err_set(
            err, ERR_INVALID,
            "node-token: without a token anyone who can reach node 0's port could join: give all "
            "nodes the same token (or SLUICE_NODE_TOKEN), or pass --no-node-token");
    }
    return OK;
}

/* ---- the identity --------------------------------------------------------------------------- */

/* Fixed, because it must be the same on every node. The hash protects against mistakes, not
 * attacks. */
enum { KEY = 0x51a1ce };

static void put_hash(struct buf *out, const char *name, uint64_t hash)
{
    buf_printf(out, "%s: %016" PRIx64 "\n", name, hash);
}

static enum status put_file(struct buf *out, const char *label, const char *dir, const char *name,
                            struct err *err)
{
    char *data;
    size_t n;
    TRY(folder_read(dir, name, 1 << 26, &data, &n, err));
    put_hash(out, label, hash_bytes(data, n, KEY));
    free(data);
    return OK;
}

/* Hashes the whole header (for GGUF and PyTorch's zip archives, as many bytes as headers have) and
 * 64 samples: fine-tuned versions of one model differ only in their values. */
static uint64_t hash_weights(const struct file_map *m)
{
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096, GGUF_HEADER = 16 << 20 };
    uint64_t header = 0, h = m->n_bytes;
    if (m->n_bytes >= 8) {
        memcpy(&header, m->data, 8);
    }
    if (m->n_bytes >= 8 && (memcmp(m->data, "GGUF", 4) == 0 || memcmp(m->data, "PK\3\4", 4) == 0)) {
        header = lesser(m->n_bytes - 8, GGUF_HEADER);
    }
    size_t n;
    if (header < m->n_bytes - lesser(m->n_bytes, 8)) {
        n = (size_t)header + 8;
    } else {
        n = m->n_bytes;
    }
    h = hash_bytes(m->data, n, h ^ KEY);
    for (size_t i = 0; i < SAMPLES; i++) {
        size_t at = n + (m->n_bytes - n) / SAMPLES * i;
        size_t most = lesser(m->n_bytes - at, SAMPLE_BYTES);
        h = hash_bytes(m->data + at, most, h);
    }
    return h;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

static int is_safetensors(const struct dirent *e)
{
    return e->d_name[0] != '.' && ends_with(e->d_name, ".safetensors");
}

static int is_torch(const struct dirent *e)
{
    return (strncmp(e->d_name, "pytorch_model", 13) == 0 ||
            strncmp(e->d_name, "adapter_model", 13) == 0) &&
           ends_with(e->d_name, ".bin");
}

/* PyTorch's files are read only where there are no others. */
static int list_weights(const char *dir, struct dirent ***files)
{
    const int n = scandir(dir, files, is_safetensors, alphasort);
    if (n != 0) {
        return n;
    }
    free(*files);
    *files = NULL;
    return scandir(dir, files, is_torch, alphasort);
}

/* Writes a hash over samples of all weight files, in the order of their names; hashing hundreds of
 * gigabytes completely would take minutes. */
static enum status put_weights(struct buf *out, const char *label, const char *dir, struct err *err)
{
    struct dirent **files = NULL;
    int n = list_weights(dir, &files);
    enum status st = n < 0 ? err_set(err, ERR_IO, "%s cannot be read", dir) : OK;
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        char path[4300];
        struct file_map map;
        snprintf(path, sizeof path, "%s/%s", dir, files[i]->d_name);
        if (st == OK) {
            st = file_map_open(path, &map, err);
        }
        if (st == OK) {
            h = hash_bytes(files[i]->d_name, strlen(files[i]->d_name), h ^ hash_weights(&map));
            file_unmap(&map);
        }
        free(files[i]);
    }
    free(files);
    if (st == OK) {
        put_hash(out, label, h);
    }
    return st;
}

static enum status put_gguf(struct buf *out, const char *label, const char *path, struct err *err)
{
    struct split_file *files;
    size_t n;
    uint64_t h = 0;
    enum status st = split_open(path, &files, &n, err);
    for (size_t i = 0; i < n && st == OK; i++) {
        h ^= hash_weights(&files[i].map) + i;
    }
    split_close(files, n);
    if (st == OK) {
        put_hash(out, label, h);
    }
    return st;
}

/* Writes what identifies the model: its config and, unless they are random (load format dummy), its
 * weights. */
static enum status put_model(const struct config *c, struct buf *out, const char *config_label,
                             const char *weights_label, const char *dir, struct err *err)
{
    TRY(put_file(out, config_label, dir, "config.json", err));
    bool dummy = c->engine.load_format && strcmp(c->engine.load_format, "dummy") == 0;
    if (dummy) {
        return OK;
    }
    bool is_gguf;
    TRY(folder_is_file(dir, &is_gguf, err));
    return is_gguf ? put_gguf(out, weights_label, dir, err)
                   : put_weights(out, weights_label, dir, err);
}

/* Config and weights of each draft model are part of the identity. */
static enum status put_draft(const struct config *c, struct buf *out, struct err *err)
{
    struct json *j = NULL;
    const char *text = c->engine.speculative_config;
    if (!text || json_parse(text, strlen(text), NULL, &j, NULL) != OK) {
        return OK; // the engine will report the error
    }
    const struct json *model = json_get(j, "model");
    const struct json *one = model;
    if (json_is(model, JSON_ARRAY)) {
        one = json_first(model);
    }
    enum status st = OK;
    for (; one && st == OK; one = one == model ? NULL : json_next(one)) {
        const char *dir = json_string(one);
        if (dir) {
            st = put_model(c, out, "a draft model's config", "a draft model's weights", dir, err);
        } else {
            st = OK;
        }
    }
    json_free(j);
    return st;
}

/* The names, configs and weights of adapters, in their order, by which sequences refer to them. */
static enum status put_adapters(const struct config *c, struct buf *out, struct err *err)
{
    for (int32_t i = 0; i < c->engine.n_adapters; i++) {
        const char *dir = c->engine.adapter_dirs[i];
        buf_printf(out, "an adapter's name: %s\n", c->engine.adapter_names[i]);
        TRY(put_file(out, "an adapter's config", dir, "adapter_config.json", err));
        TRY(put_weights(out, "an adapter's weights", dir, err));
    }
    return OK;
}

/* Writes "label: value" lines, so that a difference can be reported by its label. Options that must
 * be equal on all nodes are marked in their rows. */
enum status nodes_identity(const struct config *c, struct buf *out, struct err *err)
{
    if (!c->engine.model) {
        return err_set(err, ERR_INVALID, "no model was given: pass a folder with config.json");
    }
    buf_printf(out, "version: %s\n", SLUICE_VERSION);
    TRY(put_model(c, out, "the model's config", "the model's weights", c->engine.model, err));
    TRY(put_draft(c, out, err));
    TRY(put_adapters(c, out, err));
    for (size_t i = 0; i < n_option_rows; i++) {
        if (option_rows[i].same_on_nodes) {
            buf_printf(out, "%s: ", option_rows[i].name);
            config_value_print(c, &option_rows[i], out);
            buf_putc(out, '\n');
        }
    }
    return OK;
}
