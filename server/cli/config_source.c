// SPDX-License-Identifier: Apache-2.0
/* Names of options in all spellings, and the precedence of sources. */
#include "server/cli/config_source.h"
#include "engine/base/optional.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "server/cli/config_value.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* An underscore in the key matches a dash in the name. */
bool loading_is_name(const char *name, const char *key, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        char c = key[i] == '_' ? '-' : key[i];
        if (name[i] == '\0' || name[i] != c) {
            return false;
        }
    }
    return name[n_bytes] == '\0';
}

/* Finds a row by its name or alias. */
const struct option_row *loading_find_row(const char *key, size_t n_bytes)
{
    for (size_t i = 0; i < n_option_aliases; i++) {
        if (loading_is_name(option_aliases[i].alias, key, n_bytes)) {
            key = option_aliases[i].name;
            n_bytes = strlen(key);
            break;
        }
    }
    for (size_t i = 0; i < n_option_rows; i++) {
        if (loading_is_name(option_rows[i].name, key, n_bytes)) {
            return &option_rows[i];
        }
    }
    return NULL;
}

/* vLLM's flags come first, so they win if both servers use a name. NULL after the last. */
static const struct vllm_flag *flag_at(size_t i)
{
    if (i < n_vllm_flags) {
        return &vllm_flags[i];
    }
    i -= n_vllm_flags;
    if (i < n_llama_flags) {
        return &llama_flags[i];
    }
    i -= n_llama_flags;
    return i < n_llama_draft_flags ? &llama_draft_flags[i] : NULL;
}

static bool is_of_llama(const struct vllm_flag *flag)
{
    return flag && (flag < vllm_flags || flag >= vllm_flags + n_vllm_flags);
}

const struct vllm_flag *loading_find_flag(const char *key, size_t n_bytes)
{
    const struct vllm_flag *f;
    for (size_t i = 0; (f = flag_at(i)) != NULL; i++) {
        if (loading_is_name(f->name, key, n_bytes) ||
            (f->alias && loading_is_name(f->alias, key, n_bytes))) {
            return f;
        }
    }
    return NULL;
}

/* Aliases of options, and other flags, that only command lines of llama.cpp's server have. */
static bool is_llama_name(const char *key, size_t n_bytes)
{
    // clang-format off
    static const char *const aliases[] = {
        "alias", "a", "c", "ctx-size", "np", "parallel", "ctk", "cache-type-k", "ctv", "cache-type-v",
        "hf-repo", "hf", "hfr", "rea", "keep", "chat-template-file", "cors-origins",
        "cors-credentials", "ssl-key-file", "ssl-cert-file",
    };
    // clang-format on
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (loading_is_name(aliases[i], key, n_bytes)) {
            return true;
        }
    }
    const struct vllm_flag *flag = loading_find_flag(key, n_bytes);
    return !loading_find_row(key, n_bytes) && is_of_llama(flag);
}

/* `names` ends with NULL. */
static bool is_any_name(const char *const *names, const char *key, size_t n_bytes)
{
    while (*names && !loading_is_name(*names, key, n_bytes)) {
        names++;
    }
    return *names;
}

void loading_note_name(struct loading *l, const char *key, size_t n_bytes)
{
    static const char *const ctx_size[] = {"ctx-size", "c", NULL};
    static const char *const parallel[] = {"parallel", "np", NULL};
    static const char *const kv_unified[] = {"kv-unified", "kvu", NULL};
    static const char *const metrics[] = {"metrics", "no-metrics", NULL};
    const bool negated = n_bytes > 3 && memcmp(key, "no-", 3) == 0;
    l->is_llama |= is_llama_name(key, n_bytes);
    l->is_llama |= negated && is_llama_name(key + 3, n_bytes - 3);
    l->has_names |= loading_is_name("served-model-name", key, n_bytes);
    l->has_ctx_size |= is_any_name(ctx_size, key, n_bytes);
    l->has_parallel |= is_any_name(parallel, key, n_bytes);
    l->is_unified |= is_any_name(kv_unified, key, n_bytes);
    l->has_metrics |= is_any_name(metrics, key, n_bytes);
}

/* The error for an unknown key, with the nearest name among options, aliases and vLLM's
 * flags. */
enum status loading_unknown(const char *key, size_t n_bytes, struct err *err)
{
    const size_t n_dashes = n_bytes > 2 && strncmp(key, "--", 2) == 0 ? 2 : 0; // the dashes of a
                                                                               // flag
    struct nearest nearest = {.typed = key + n_dashes, .n_bytes = n_bytes - n_dashes};
    for (size_t i = 0; i < n_option_rows; i++) {
        nearest_try(&nearest, option_rows[i].name);
    }
    for (size_t i = 0; i < n_option_aliases; i++) {
        nearest_try(&nearest, option_aliases[i].alias);
    }
    for (size_t i = 0; flag_at(i); i++) {
        nearest_try(&nearest, flag_at(i)->name);
    }
    const char *meant = nearest_word(&nearest);
    int n = n_bytes > 100 ? 100 : (int)n_bytes;
    if (meant) {
        return err_set(err, ERR_INVALID, "unknown option '%.*s'; did you mean '%s%s'?", n, key,
                       text_if(n_dashes, "--"), meant);
    }
    return err_set(err, ERR_INVALID, "unknown option '%.*s'", n, key);
}

/* True if the source may set the option, or extend it if it is a list: no source of higher
 * precedence has set it. */
static bool may_set(struct loading *l, const struct option_row *row, enum source source)
{
    unsigned char *from = &l->source[row - option_rows];
    if (*from < source) { // the first value of a source replaces earlier values; others extend a
                          // list
        config_value_clear(l->config, row);
        *from = (unsigned char)source;
    }
    return *from == source;
}

enum status loading_set(struct loading *l, const struct option_row *row, const char *value,
                        enum source source, struct err *err)
{
    if (may_set(l, row, source)) {
        return config_value_set(l->config, row, value, err);
    }
    return OK;
}

/* "option.member" of an option that is a JSON object; *member points into the key. */
const struct option_row *loading_find_member(const char *key, size_t n_bytes, const char **member)
{
    const char *dot = memchr(key, '.', n_bytes);
    const struct option_row *row = NULL;
    if (dot) {
        row = loading_find_row(key, (size_t)(dot - key));
    }
    *member = dot ? dot + 1 : NULL;
    if (row && (row->type == OPTION_JSON || row->may_be_object)) {
        return row;
    }
    return NULL;
}

/* Sets a member, unless a source that takes precedence has set the option. */
enum status loading_set_member(struct loading *l, const struct option_row *row, const char *member,
                               size_t n_bytes, const char *value, enum source source,
                               struct err *err)
{
    if (!may_set(l, row, source)) {
        return OK;
    }
    char *key = xstrndup(member, n_bytes);
    enum status st = config_value_set_member(l->config, row, key, value, err);
    free(key);
    return st;
}

/* Handles a flag of vLLM that is not an option here: refuses it with a reason, ignores it with a
 * line in the log, or translates it. */
enum status loading_take_flag(struct loading *l, const struct vllm_flag *flag, const char *value,
                              enum source source, struct err *err)
{
    TRY(vllm_flag_check(flag, value, err));
    const char *other = flag->becomes, *member;
    const bool off = strcasecmp(value, "false") == 0;
    if (flag->closes && off) {
        return loading_set(l, loading_find_row("disable-routes", 14), flag->closes, source, err);
    }
    if (!other) {
        log_info("option %s has no effect here: %s", flag->name, flag->why);
        return OK;
    }
    if (*value == '\0' || off) { // as if the flag were absent
        return OK;
    }
    const struct option_row *row = loading_find_member(other, strlen(other), &member);
    if (row) {
        return loading_set_member(l, row, member, strlen(member), value, source, err);
    }
    other += strlen("no-");
    return loading_set(l, loading_find_row(other, strlen(other)), "false", source, err);
}
