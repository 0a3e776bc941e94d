// SPDX-License-Identifier: Apache-2.0
/* Reading and printing a value according to its row: units, ranges, choices, lists and
 * JSON. Values are written through the row's offset. */
#include "server/cli/config_value.h"

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/optional.h"
#include "engine/base/words.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void *field(struct config *c, const struct option_row *row)
{
    return (char *)c + row->offset;
}

static const void *const_field(const struct config *c, const struct option_row *row)
{
    return (const char *)c + row->offset;
}

/* Integer rows have fields of two sizes. */
static int64_t get_int(const struct config *c, const struct option_row *row)
{
    const void *at = const_field(c, row);
    if (row->n_bytes == sizeof(int32_t)) {
        return *(const int32_t *)at;
    }
    return *(const int64_t *)at;
}

/* Sets an integer field; the row's bounds ensure that the value fits. */
static void set_int(struct config *c, const struct option_row *row, int64_t v)
{
    void *at = field(c, row);
    if (row->n_bytes == sizeof(int32_t)) {
        *(int32_t *)at = (int32_t)v;
    } else {
        *(int64_t *)at = v;
    }
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++) {
        if (strcasecmp(word, *words) == 0) {
            return true;
        }
    }
    return false;
}

/* YAML's words for a boolean are accepted, too. */
static bool read_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "1", "yes", "on", NULL};
    static const char *const no[] = {"false", "0", "no", "off", NULL};
    *out = is_one_of(text, yes);
    return *out || is_one_of(text, no);
}

/* vLLM's rule: lower-case suffixes are decimal, upper-case ones binary. */
static double unit_of(const char *suffix, bool bytes)
{
    static const char letters[] = "kmgt";
    if (*suffix == '\0') {
        return 1;
    }
    for (int i = 0; i < 4; i++) {
        bool small = *suffix == letters[i];
        bool capital = *suffix == letters[i] - 'a' + 'A';
        if (!small && !capital) {
            continue;
        }
        const char *rest = suffix + 1;
        bool is_iec = bytes && (strcmp(rest, "iB") == 0 || strcmp(rest, "i") == 0);
        bool is_si = bytes && strcmp(rest, "B") == 0;
        if (*rest && !is_iec && !is_si) {
            return 0;
        }
        return pow(is_iec || (capital && !is_si) ? 1024 : 1000, i + 1);
    }
    return 0;
}

/* The number of seconds in a unit; 0: unknown unit. */
static double seconds_of(const char *suffix)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"s", 1}, {"ms", 0.001}, {"m", 60}, {"h", 3600}, {"d", 86400}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(suffix, units[i].name) == 0) {
            return units[i].seconds;
        }
    }
    return 0;
}

/* The factor of a number's suffix; 0: unknown suffix. */
static double unit_of_type(enum option_type type, const char *suffix)
{
    switch (type) {
    case OPTION_SECONDS: return seconds_of(suffix);
    case OPTION_REAL: return *suffix == '\0';
    default: return unit_of(suffix, type == OPTION_BYTES);
    }
}

/* The form that a number must have, for error messages. */
static const char *number_form(enum option_type type)
{
    switch (type) {
    case OPTION_SECONDS: return "a time such as 30, 500ms or 2m";
    case OPTION_REAL: return "a number";
    case OPTION_BYTES: return "a size such as 4GiB";
    default: return "a whole number such as 8192 or 8k";
    }
}

/* Reads a number with a unit, and checks its range. 0 stands for "auto" if that is the default. */
static enum status read_number(const struct option_row *row, const char *text, double *out,
                               struct err *err)
{
    bool integral = row->type == OPTION_INT || row->type == OPTION_BYTES;
    if (integral && row->min <= 0 && (strcmp(text, "auto") == 0 || strcmp(text, "-1") == 0) &&
        row->initial && strcmp(row->initial, "auto") == 0) {
        *out = 0;
        return OK;
    }
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    double unit = unit_of_type(row->type, end);
    if (end == text || !isfinite(v) || unit == 0) {
        return err_set(err, ERR_INVALID, "option %s: '%.60s' is not %s", row->name, text,
                       number_form(row->type));
    }
    v *= unit;
    if (integral && v != floor(v)) {
        return err_set(err, ERR_INVALID, "option %s: '%.60s' is not a whole number", row->name,
                       text);
    }
    if (row->min == row->max && v != row->min) { // the option's help says why
        return err_set(err, ERR_INVALID, "option %s: '%.60s' is not supported (%s)", row->name,
                       text, row->help);
    }
    if (v < row->min || v > row->max) {
        return err_set(err, ERR_INVALID, "option %s: '%.60s' is not between %.15g and %.15g",
                       row->name, text, row->min, row->max);
    }
    *out = v;
    return OK;
}

/* Checks that a text is JSON; it is parsed where it is used. */
static enum status check_json(const struct option_row *row, const char *text, struct err *err)
{
    struct json *root;
    enum status st = json_parse(text, strlen(text), NULL, &root, err);
    if (st == OK && !json_is(root, JSON_OBJECT)) {
        st = err_set(err, ERR_INVALID, "not an object");
    }
    json_free(root);
    if (st != OK) {
        return err_prefix(err, st, "option %s", row->name);
    }
    return OK;
}

/* Adds an item. Empty ones are left out, so that a trailing comma does no harm. */
static void list_add(struct string_list *list, const char *item, size_t n_bytes)
{
    if (n_bytes > 0) {
        list->items = xrealloc(list->items, (list->n + 1) * sizeof list->items[0]);
        list->items[list->n++] = xstrndup(item, n_bytes);
    }
}

/* vLLM's notation for a list of origins: ["*"]. False: the text is not such an array. */
static bool list_add_array(struct string_list *list, const char *text)
{
    struct json *root = NULL;
    bool is_array = *text == '[' && json_parse(text, strlen(text), NULL, &root, NULL) == OK &&
                    json_is(root, JSON_ARRAY);
    for (const struct json *j = is_array ? json_first(root) : NULL; j; j = json_next(j)) {
        const char *item = json_string(j);
        list_add(list, or_empty(item), length_or_0(item));
    }
    json_free(root);
    return is_array;
}

/* Adds the items of a JSON array, or of words with commas between them. */
static void list_add_text(struct string_list *list, const char *text)
{
    if (list_add_array(list, text)) {
        return;
    }
    while (*text) {
        size_t n = strcspn(text, ",");
        list_add(list, text, n);
        text += n + (text[n] == ',');
    }
}

/* The choice that a word stands for: the word itself, or if it is a synonym, as in "x=a|y=b", the
 * word after the '='. */
static char *choice_of(const struct option_row *row, const char *word)
{
    size_t n = strlen(word);
    for (const char *s = row->synonyms; s && *s;) {
        size_t n_pair = strcspn(s, "|");
        if (n_pair > n && memcmp(s, word, n) == 0 && s[n] == '=') {
            return xstrndup(s + n + 1, n_pair - n - 1);
        }
        s += n_pair + (s[n_pair] == '|');
    }
    return xstrdup(word);
}

/* Sets a text, which the configuration owns. The old one is freed. */
static enum status set_text(struct config *c, const struct option_row *row, const char *text,
                            struct err *err)
{
    char *value = choice_of(row, text);
    enum status st = row->type == OPTION_JSON ? check_json(row, value, err) : OK;
    if (st != OK) {
        free(value);
        return st;
    }
    if (row->type == OPTION_CHOICE && words_find(row->choices, value) < 0) {
        free(value);
        return err_set(err, ERR_INVALID, "option %s: '%.40s' is not one of %s", row->name, text,
                       row->choices);
    }
    const char **at = field(c, row);
    free((void *)*at);
    *at = value;
    return OK;
}

/* All sources use this function, so that a value means the same in a file, a variable and a
 * flag. */
enum status config_value_set(struct config *c, const struct option_row *row, const char *text,
                             struct err *err)
{
    double number;
    switch (row->type) {
    case OPTION_STRING:
    case OPTION_CHOICE:
    case OPTION_JSON: return set_text(c, row, text, err);
    case OPTION_LIST:
        if (row->secret && !*text) { // from an unset variable, say: the server would be open
            return err_set(err, ERR_INVALID, "option %s: the value is empty", row->name);
        }
        if (row->may_be_object && text[0] == '{') {
            list_add(field(c, row), text, strlen(text));
        } else {
            list_add_text(field(c, row), text);
        }
        return OK;
    case OPTION_BOOL:
        if (!read_bool(text, field(c, row))) {
            return err_set(err, ERR_INVALID, "option %s: '%.60s' is neither true nor false",
                           row->name, text);
        }
        return OK;
    case OPTION_INT:
    case OPTION_BYTES:
        TRY(read_number(row, text, &number, err));
        set_int(c, row, (int64_t)number);
        return OK;
    case OPTION_REAL:
    case OPTION_SECONDS:
        TRY(read_number(row, text, &number, err));
        *(double *)field(c, row) = number;
        return OK;
    }
    return OK;
}

/* A word that is not JSON is written as a string. */
static void put_member_value(struct buf *out, const char *text)
{
    struct json *root = NULL;
    if (json_parse(text, strlen(text), NULL, &root, NULL) == OK) {
        buf_puts(out, text);
    } else {
        buf_put_json(out, text, strlen(text));
    }
    json_free(root);
}

/* {"a": {"b": text}} for "a.b", without the outermost braces. */
static void put_member(struct buf *out, const char *key, const char *text)
{
    int depth = 0;
    for (;; depth++) {
        size_t n = strcspn(key, ".");
        buf_put_json(out, key, n);
        if (key[n]) {
            buf_puts(out, ": {");
        } else {
            buf_puts(out, ": ");
        }
        if (!key[n]) {
            break;
        }
        key += n + 1;
    }
    put_member_value(out, text);
    for (; depth > 0; depth--) {
        buf_putc(out, '}');
    }
}

/* Adds a member to an option that is an object; a member that is already present is an error, since
 * otherwise the order of sources would decide silently. */
enum status config_value_set_member(struct config *c, const struct option_row *row, const char *key,
                                    const char *text, struct err *err)
{
    const char *now = *(const char **)field(c, row);
    if (!now) {
        now = "{}";
    }
    struct json *root = NULL;
    if (json_parse(now, strlen(now), NULL, &root, err) != OK || !json_is(root, JSON_OBJECT)) {
        json_free(root);
        return err_set(err, ERR_INVALID,
                       "option %s: the value is not a JSON object, so '%.60s' cannot be added",
                       row->name, now);
    }
    char *first = xstrndup(key, strcspn(key, "."));
    bool is_there = json_get(root, first) != NULL, is_empty = json_first(root) == NULL;
    free(first);
    json_free(root);
    if (is_there) {
        return err_set(err, ERR_INVALID,
                       "option %s: '%.60s' is set twice; write the whole object instead", row->name,
                       key);
    }
    struct buf all;
    buf_init(&all, 1 << 20);
    buf_put(&all, now, (size_t)(strrchr(now, '}') - now));
    if (!is_empty) {
        buf_puts(&all, ", ");
    }
    put_member(&all, key, text);
    buf_putc(&all, '}');
    enum status st = all.failed ? err_set(err, ERR_INVALID, "option %s: too long", row->name)
                                : set_text(c, row, all.data, err);
    buf_deinit(&all);
    return st;
}

/* Empties a list, before a source of higher precedence sets it anew. */
void config_value_clear(struct config *c, const struct option_row *row)
{
    struct string_list *list;
    switch (row->type) {
    case OPTION_STRING:
    case OPTION_CHOICE:
    case OPTION_JSON:
        free((void *)*(const char **)field(c, row));
        *(const char **)field(c, row) = NULL;
        break;
    case OPTION_LIST:
        list = field(c, row);
        for (size_t i = 0; i < list->n; i++) {
            free(list->items[i]);
        }
        free(list->items);
        *list = (struct string_list){0};
        break;
    case OPTION_BOOL: *(bool *)field(c, row) = false; break;
    case OPTION_INT:
    case OPTION_BYTES: set_int(c, row, 0); break;
    case OPTION_REAL:
    case OPTION_SECONDS: *(double *)field(c, row) = 0; break;
    }
}

/* Prints a text, in quotes if YAML would otherwise read it as something else. */
static void print_text(const char *s, struct buf *out)
{
    bool plain = *s && !strpbrk(s, "#'\"[]{},&*!|>%@`") && !strstr(s, ": ") && *s != ' ' &&
                 *s != '-' && strcmp(s, "null") != 0;
    if (plain) {
        buf_puts(out, s);
    } else {
        char quote = strchr(s, '\'') ? '"' : '\'';
        buf_putc(out, quote);
        buf_puts(out, s);
        buf_putc(out, quote);
    }
}

static void print_list(const struct string_list *list, struct buf *out)
{
    for (size_t i = 0; i < list->n; i++) {
        if (i) {
            buf_puts(out, ", ");
        } else {
            buf_puts(out, "[");
        }
        print_text(list->items[i], out);
    }
    if (list->n > 0) {
        buf_putc(out, ']');
    }
}

/* The inverse of config_value_set: reading the printed text gives the value again. */
void config_value_print(const struct config *c, const struct option_row *row, struct buf *out)
{
    const void *at = const_field(c, row);
    int64_t v;
    switch (row->type) {
    case OPTION_STRING:
    case OPTION_CHOICE:
    case OPTION_JSON:
        if (*(const char *const *)at) {
            print_text(*(const char *const *)at, out);
        }
        break;
    case OPTION_LIST: print_list(at, out); break;
    case OPTION_BOOL: buf_puts(out, bool_word(*(const bool *)at)); break;
    case OPTION_INT:
    case OPTION_BYTES:
        v = get_int(c, row);
        if (v == 0 && row->initial && strcmp(row->initial, "auto") == 0) {
            buf_puts(out, "auto");
        } else {
            buf_put_int(out, v);
        }
        break;
    case OPTION_REAL:
    case OPTION_SECONDS: buf_put_double(out, *(const double *)at); break;
    }
}
