// SPDX-License-Identifier: Apache-2.0
/* Reads a configuration file: "key: value" lines; lists are "[a, b]" or "- a" lines. */
#include "server/cli/config_source.h"

#include "engine/base/file.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_MAX_BYTES = 1 << 20 };

/* Strips a trailing comment, white space and quotes. NULL if a quoted text is unterminated or
 * followed by more. */
static char *scalar(char *s)
{
    while (*s == ' ' || *s == '\t') {
        s++;
    }
    if (*s == '"' || *s == '\'') {
        char *end = strchr(s + 1, *s);
        const char *rest = end ? end + 1 + strspn(end + 1, " \t\r") : NULL;
        if (!rest || (*rest != '\0' && *rest != '#')) {
            return NULL;
        }
        *end = '\0';
        return s + 1;
    }
    char *end = s;
    for (char *p = s; *p; p++) {
        if (*p == '#' && (p == s || p[-1] == ' ' || p[-1] == '\t')) {
            break;
        }
        if (!(*p == ' ' || *p == '\t' || *p == '\r')) {
            end = p + 1;
        }
    }
    *end = '\0';
    return s;
}

static enum status bad_quotes(const struct option_row *row, struct err *err)
{
    return err_set(err, ERR_FORMAT,
                   "option %s: unclosed quotation mark, or text after the closing one", row->name);
}

/* Sets the option of a line. A list is written on the line itself, as [a, b], or on the following
 * lines. */
static enum status set_line(struct loading *l, const struct option_row *row, char *value,
                            struct err *err)
{
    size_t n = strlen(value);
    if (row->type == OPTION_LIST && n >= 2 && value[0] == '[' && value[n - 1] == ']') {
        value[n - 1] = '\0';
        for (char *item = value + 1; item;) {
            char *comma = strchr(item, ',');
            if (comma) {
                *comma = '\0';
            }
            char *text = scalar(item);
            if (!text) {
                return bad_quotes(row, err);
            }
            if (*text) {
                TRY(loading_set(l, row, text, SOURCE_FILE, err));
            }
            item = comma ? comma + 1 : NULL;
        }
        return OK;
    }
    return loading_set(l, row, value, SOURCE_FILE, err);
}

/* Reads "- item" of the list that an earlier line started. */
static enum status read_item(struct loading *l, char *text, struct err *err)
{
    char *item = scalar(text);
    if (l->flag_list) {
        return vllm_flag_check(l->flag_list, item ? item : text, err);
    }
    if (item) {
        return loading_set(l, l->list, item, SOURCE_FILE, err);
    }
    return bad_quotes(l->list, err);
}

static bool is_null(const char *value)
{
    return *value == '\0' || strcmp(value, "null") == 0 || strcmp(value, "~") == 0;
}

/* Reads the line of an option. An option may occur once; the value null leaves its default. */
static enum status read_option_line(struct loading *l, const struct option_row *row, char *text,
                                    struct err *err)
{
    char *value = scalar(text);
    if (!value) {
        return bad_quotes(row, err);
    }
    l->list = row->type == OPTION_LIST ? row : NULL;
    if (l->in_file[row - option_rows]) {
        return err_set(err, ERR_FORMAT, "option %s occurs twice in this file", row->name);
    }
    l->in_file[row - option_rows] = true;
    if (!is_null(value)) {
        return set_line(l, row, value, err);
    }
    return OK;
}

/* Reads one line. A "- item" belongs to the list that the last option line started. */
static enum status read_line(struct loading *l, char *line, struct err *err)
{
    bool indented = *line == ' ' || *line == '\t' || *line == '-';
    while (*line == ' ' || *line == '\t') {
        line++;
    }
    if (*line == '\0' || *line == '#' || *line == '\r' || strncmp(line, "---", 3) == 0) {
        return OK;
    }
    if (indented && *line == '-' && (l->list || l->flag_list)) {
        return read_item(l, line + 1, err);
    }
    char *colon = strchr(line, ':');
    if (indented) {
        return err_set(err, ERR_FORMAT,
                       "expected 'key: value' without indentation; an object is written as JSON, "
                       "on the line of its key");
    }
    if (!colon) {
        return err_set(err, ERR_FORMAT, "expected 'key: value'");
    }
    size_t n_bytes = (size_t)(colon - line);
    while (n_bytes > 0 && (line[n_bytes - 1] == ' ' || line[n_bytes - 1] == '\t')) {
        n_bytes--;
    }
    const struct option_row *row = loading_find_row(line, n_bytes);
    l->list = NULL;
    l->flag_list = row ? NULL : loading_find_flag(line, n_bytes);
    if (row) {
        return read_option_line(l, row, colon + 1, err);
    }
    if (!l->flag_list) {
        return loading_unknown(line, n_bytes, err);
    }
    char *value = scalar(colon + 1);
    return loading_take_flag(l, l->flag_list, value ? value : colon + 1, SOURCE_FILE, err);
}

/* Reads the file. Errors name the file and the line. A byte order mark, which Windows editors
 * write, is skipped. */
enum status loading_read_file(struct loading *l, struct err *err)
{
    char *text;
    size_t n_bytes;
    TRY(file_read(l->file, FILE_MAX_BYTES, &text, &n_bytes, err));
    enum status st = OK;
    int number = 1;
    bool has_mark = n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0; // byte order mark
    for (char *line = text + (has_mark ? 3 : 0); st == OK && line && *line; number++) {
        char *end = strchr(line, '\n');
        if (end) {
            *end = '\0';
        }
        st = read_line(l, line, err);
        line = end ? end + 1 : NULL;
    }
    free(text);
    if (st != OK) {
        return err_prefix(err, st, "%s:%d", l->file, number - 1);
    }
    return OK;
}
