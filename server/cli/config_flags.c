// SPDX-License-Identifier: Apache-2.0
/* Reads a configuration from command-line flags. */
#include "engine/base/optional.h"
#include "server/cli/config_source.h"

#include "engine/base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A parsed flag name: its row, and the value that the name itself implies. */
struct name {
    const char *text;
    size_t n_bytes;
    const struct option_row *row;
    const struct vllm_flag *flag;
    const char *member; // member of the row's object
    const char *value;  // the value that the name implies: "false" for --no-x, "3" for -O3;
                        // otherwise NULL
};

static bool find_plain(struct name *n, const char *text, size_t n_bytes)
{
    n->row = loading_find_row(text, n_bytes);
    n->flag = n->row ? NULL : loading_find_flag(text, n_bytes);
    return n->row || n->flag;
}

static bool takes_no_value(const struct name *n)
{
    if (n->row) {
        return n->row->type == OPTION_BOOL;
    }
    return n->flag->takes == TAKES_NOTHING;
}

/* Resolves --x, --no-x, -O3, and --x.key (a member of x's object). */
static bool find_name(struct name *n)
{
    const char *dot = memchr(n->text, '.', n->n_bytes);
    n->value = NULL;
    if (find_plain(n, n->text, n->n_bytes)) {
        return true;
    }
    if (n->n_bytes > 3 && memcmp(n->text, "no-", 3) == 0) {
        n->value = "false";
        return find_plain(n, n->text + 3, n->n_bytes - 3) && takes_no_value(n);
    }
    if (n->text[0] == 'O' && isdigit((unsigned char)n->text[1])) {
        n->value = n->text + 1;
        return find_plain(n, n->text, 1);
    }
    if (dot) {
        n->row = loading_find_member(n->text, n->n_bytes, &n->member);
    } else {
        n->row = NULL;
    }
    if (dot && !n->row) {
        n->flag = loading_find_flag(n->text, (size_t)(dot - n->text));
    } else {
        n->flag = NULL;
    }
    return n->row || n->flag;
}

/* Sets the value of a flag: a vLLM flag that is translated, a member of an object, or an option. */
static enum status take(struct loading *l, const struct name *n, const char *value, struct err *err)
{
    if (n->flag) {
        return loading_take_flag(l, n->flag, value, SOURCE_FLAG, err);
    }
    if (n->member) {
        size_t n_bytes = (size_t)(n->text + n->n_bytes - n->member);
        return loading_set_member(l, n->row, n->member, n_bytes, value, SOURCE_FLAG, err);
    }
    return loading_set(l, n->row, value, SOURCE_FLAG, err);
}

static bool is_flag(const char *word)
{
    return word[0] == '-' && word[1] != '\0';
}

static enum status read_config_flag(struct loading *l, const char *path, struct err *err)
{
    if (!path) {
        return err_set(err, ERR_INVALID, "--config needs a file");
    }
    free(l->file);
    l->file = xstrdup(path);
    return OK;
}

/* Reads the flag at argv[i]; *used becomes the number of words it took. */
static enum status read_flag(struct loading *l, int n_left, char **words, int *used,
                             struct err *err)
{
    struct name n = {.text = words[0] + (words[0][1] == '-' ? 2 : 1)};
    const char *equals = strchr(n.text, '=');
    const char *next = n_left > 1 ? words[1] : NULL, *value = equals ? equals + 1 : next;
    n.n_bytes = equals ? (size_t)(equals - n.text) : strlen(n.text);
    *used = equals ? 1 : 2;
    if (loading_is_name("config", n.text, n.n_bytes)) {
        return read_config_flag(l, value, err);
    }
    if (!find_name(&n)) {
        return loading_unknown(words[0], (size_t)(n.text - words[0]) + n.n_bytes, err);
    }
    loading_note_name(l, n.text, n.n_bytes);
    bool maybe = n.flag && n.flag->takes == TAKES_MAYBE;
    bool alone = takes_no_value(&n) || (maybe && (!next || is_flag(next)));
    if (n.value || (alone && !equals)) {
        *used = 1;
        return take(l, &n, or_text(n.value, "true"), err);
    }
    if (!value) {
        return err_set(err, ERR_INVALID, "--%s needs a value", n.row ? n.row->name : n.flag->name);
    }
    TRY(take(l, &n, value, err));
    bool takes_more;
    if (n.row) {
        takes_more = n.row->type == OPTION_LIST;
    } else {
        takes_more = n.flag->takes == TAKES_WORDS;
    }
    while (!equals && takes_more && *used < n_left && words[*used][0] != '-') {
        if (n.row) {
            TRY(take(l, &n, words[*used], err)); // --served-model-name a b
        }
        *used += 1;
    }
    return OK;
}

/* Reads flags, and one argument without a dash, the model. */
enum status loading_read_flags(struct loading *l, int argc, char **argv, struct err *err)
{
    const struct option_row *model = loading_find_row("model", 5);
    bool positional = false;
    for (int i = 1; i < argc;) {
        int used = 1;
        if (is_flag(argv[i])) {
            TRY(read_flag(l, argc - i, argv + i, &used, err));
        } else if (positional) {
            return err_set(err, ERR_INVALID,
                           "unexpected argument '%s': the model is given already, and a text with "
                           "spaces needs quotes",
                           argv[i]);
        } else {
            TRY(loading_set(l, model, argv[i], SOURCE_FLAG, err));
            positional = true;
        }
        i += used;
    }
    return OK;
}
