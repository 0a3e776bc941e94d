// SPDX-License-Identifier: Apache-2.0
/* Prints the help, and the effective configuration. */
#include "engine/base/optional.h"
#include "server/cli/config_load.h"
#include "server/cli/config_table.h"
#include "server/cli/config_value.h"

#include <string.h>

/* Compares printed values, because those of strings and lists are pointers. */
static bool is_default(const struct config *c, const struct option_row *row)
{
    struct buf now;
    buf_init(&now, 1 << 20);
    config_value_print(c, row, &now);
    const char *initial = or_empty(row->initial);
    struct config fresh = {0};
    struct buf then;
    buf_init(&then, 1 << 20);
    bool same = true;
    if (*initial) {
        config_value_set(&fresh, row, initial, NULL);
    }
    config_value_print(&fresh, row, &then);
    same = now.n_bytes == then.n_bytes &&
           memcmp(now.n_bytes ? now.data : "", then.n_bytes ? then.data : "", now.n_bytes) == 0;
    buf_deinit(&now);
    buf_deinit(&then);
    config_deinit(&fresh);
    return same;
}

/* Writes the words of a choice, wrapped to a terminal's width. */
static void put_choices(const char *choices, struct buf *out)
{
    enum { INDENT = 35, MAX_COLUMNS = 100 };
    bool many = strlen(choices) > MAX_COLUMNS - INDENT;
    size_t column = MAX_COLUMNS;
    buf_puts(out, " (");
    while (*choices) {
        size_t n = strcspn(choices, "|");
        n += choices[n] == '|';
        if (many && column + n > MAX_COLUMNS) {
            buf_printf(out, "\n%*s", INDENT, "");
            column = INDENT;
        }
        buf_put(out, choices, n);
        column += n;
        choices += n;
    }
    buf_putc(out, ')');
}

/* Prints the help from the table: sections, and options with their defaults. */
void config_help(struct buf *out)
{
    buf_puts(out,
             "usage: sluice serve MODEL [OPTIONS]\n\n"
             "Every option is also a key of --config FILE ('key: value' lines) and, as\n"
             "SLUICE_MAX_MODEL_LEN for --max-model-len, an environment variable. vLLM's flags\n"
             "that are not listed have no effect, and a line in the log says so; those that\n"
             "would change answers are refused with the reason.\n");
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->section) {
            buf_printf(out, "\n%s:\n", row->section);
        }
        bool negatable = row->type == OPTION_BOOL && row->initial && row->initial[0] == 't';
        buf_printf(out, "  --%s%-*s %s", negatable ? "[no-]" : "", negatable ? 25 : 30, row->name,
                   row->help);
        if (row->choices) {
            put_choices(row->choices, out);
        }
        if (row->initial && row->type != OPTION_BOOL) {
            buf_printf(out, " [%s]", row->initial);
        }
        buf_putc(out, '\n');
    }
}

/* The output is a valid configuration file. Secrets are replaced, and options that are commands,
 * such as help, are left out. */
void config_print(const struct config *c, bool only_set, struct buf *out)
{
    for (size_t i = 0; i < n_option_rows; i++) {
        const struct option_row *row = &option_rows[i];
        if (row->is_command) {
            continue;
        }
        bool initial = is_default(c, row);
        if (only_set && initial) {
            continue;
        }
        struct buf value;
        buf_init(&value, 1 << 20);
        config_value_print(c, row, &value);
        if (row->secret && value.n_bytes > 0) {
            buf_printf(out, "# %s: set, not shown\n", row->name);
        } else if (value.n_bytes == 0) {
            buf_printf(out, "# %s:\n", row->name);
        } else {
            buf_printf(out, "%s: %s%s\n", row->name, value.data, initial ? "  # default" : "");
        }
        buf_deinit(&value);
    }
}
